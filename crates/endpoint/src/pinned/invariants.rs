//! What holds of a window whatever it was told. Fields are taken apart by name, so that a new one
//! does not compile until something is said of it.

use super::*;

impl Window {
    /// # Panics
    /// When it keeps more than it may, or has lost count of it.
    pub(crate) fn verify(&self) {
        let Self { base, bytes, allocations, graphs, graph_rows } = self;
        // The one over the bound ends the session.
        assert!(allocations.len() <= ALLOCATIONS_MAX + 1, "{} allocations", allocations.len());
        let mut end = *base;
        for (address, length) in allocations {
            assert!(*length > 0 && *address >= end, "allocations overlap at {address:#x}");
            end = address + length;
        }
        assert!(end <= base + bytes, "an allocation beyond the window");
        // A kernel's every word may point into another allocation.
        let most = usize::try_from(PARAM_BYTES_MAX / 8).unwrap_or(usize::MAX);
        let mut rows = graphs.len();
        for Graph { count, nodes } in graphs.values() {
            assert!(*count <= GRAPH_NODES_MAX && nodes.len() <= *count as usize);
            for (node, touched) in nodes {
                assert!(node < count && (1..=most).contains(&touched.rows()));
                rows += touched.rows();
            }
        }
        assert_eq!(*graph_rows, rows, "graphs' uses are miscounted");
        assert!(rows <= GRAPH_ROWS_MAX + most, "{rows} uses by graphs");
    }
}
