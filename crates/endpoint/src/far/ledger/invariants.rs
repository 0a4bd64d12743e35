//! What holds of a session's debts whatever its endpoint and its worker did. Fields are taken apart
//! by name, so that a new one does not compile until something is said of it.

use std::collections::BTreeSet;

use weft_wire::progress::WORDS;

use super::*;

impl Shadowed {
    /// Bytes of all copies.
    pub(in crate::far) fn all(&self) -> usize {
        lock(&self.0).values().sum()
    }
}

impl Ledger {
    /// Commands that wrote, or may have.
    pub(in crate::far) fn writes(&self) -> u64 {
        self.writes
    }

    /// # Panics
    /// When it keeps more than it may, or has lost count of it.
    pub(in crate::far) fn verify(&self) {
        let Self {
            calls,
            awaited,
            lent,
            is_lent,
            writing,
            rows,
            writes,
            shadows: _,
            kept: _,
            vgpu: _,
            shadowed: _,
            streams: _,
            events: _,
        } = self;
        assert_eq!(calls.len(), usize::from(ANSWER_SLOTS));
        assert_eq!(*awaited, calls.iter().flatten().count(), "calls are miscounted");
        let blocks: BTreeSet<u32> = lent.iter().map(|one| one.release).collect();
        assert_eq!(blocks.len(), lent.len(), "a block is lent twice");
        assert_eq!(is_lent.len(), ARENA_BLOCKS as usize);
        for (block, is_lent) in (0..).zip(is_lent) {
            assert_eq!(*is_lent, blocks.contains(&block), "block {block}");
        }
        assert_eq!(*rows, writing.iter().map(Writing::count).sum::<usize>(), "rows are miscounted");
        assert!(*rows <= ROWS_MAX || writing.len() == 1, "{rows} rows of {}", writing.len());
        assert!(writing.iter().all(|one| one.count() > 0 && one.number <= *writes));
        self.verify_shadows();
    }

    fn verify_shadows(&self) {
        let Self { writing, shadows, kept, vgpu, shadowed, streams, events, .. } = self;
        assert!((1..=STREAM_WORDS).contains(streams) && (STREAM_WORDS..=WORDS).contains(events));
        let mut users = BTreeMap::<Rows, usize>::new();
        for rows in writing.iter().flat_map(|one| &one.given) {
            *users.entry(*rows).or_default() += 1;
        }
        let counted = shadows.iter().map(|(rows, shadow)| (*rows, shadow.users)).collect();
        assert_eq!(users, counted, "who has an allocation is miscounted");
        let mut all = 0;
        for Shadow { bytes, kept, users: _ } in shadows.values() {
            assert!(bytes.as_ref().is_none_or(|bytes| bytes.len() == *kept));
            all += kept;
        }
        assert_eq!(*kept, all, "copies are miscounted");
        assert!(all <= SHADOWS_MAX, "{all} bytes of copies");
        let accounted = lock(&shadowed.0).get(vgpu).copied().unwrap_or(0);
        assert_eq!(accounted, all, "the vGPU's account differs");
    }
}
