//! How much one session may keep.

use std::num::NonZeroU64;

/// Bounds of a session. Reaching one is a normal outcome with a name: [`crate::Accepted::Full`], a
/// refusal or a [`crate::Violation`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// Commands of one stream that have not ended.
    pub stream_depth: usize,
    /// Commands of all streams that have not ended.
    pub depth: usize,
    /// Bytes of parameters and inline data that queued commands keep.
    pub queued_bytes: u64,
    /// Device operations in flight.
    pub in_flight: usize,
    /// Waits (synchronous commands not answered yet).
    pub waits: usize,
    /// Live device allocations.
    pub allocations: usize,
    /// Images of one module.
    pub images: usize,
    /// Bytes of one module's images together.
    pub image_bytes: u64,
    /// Bytes of the images of all loaded modules together.
    pub module_bytes: u64,
    /// Nodes of one graph.
    pub graph_nodes: usize,
    /// Bytes of one graph's encoded nodes, and of one answer of a module load.
    pub list_bytes: u64,
    /// Bytes of all graphs together.
    pub graph_bytes: u64,
    /// Memory of so many bytes, and of an unknown number, is released only by
    /// [`crate::Session::release_memory`].
    pub long_release_bytes: Option<u64>,
    /// Device time of its own after which a kernel is ended as `CUDA_ERROR_LAUNCH_TIMEOUT`, in ns.
    pub kernel_ns: Option<NonZeroU64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stream_depth: 16_384,
            depth: 65_536,
            queued_bytes: 64 << 20,
            in_flight: 1024,
            waits: 1024,
            allocations: 1 << 18,
            images: 64,
            image_bytes: 256 << 20,
            module_bytes: 1 << 30,
            graph_nodes: 1 << 16,
            list_bytes: weft_wire::command::LIST_BYTES_MAX as u64,
            graph_bytes: 128 << 20,
            long_release_bytes: None,
            kernel_ns: None,
        }
    }
}
