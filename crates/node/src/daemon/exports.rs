//! Which allocations sessions let others of their vGPU use. Pure.
//!
//! An entry is found by a key that nobody can guess, from another session of the same vGPU alone.
//! It goes with the first of its frames that its session gives back. The book dies with the daemon:
//! what was imported stays, but keys from before a restart are unknown after it.

use std::collections::BTreeMap;

use crate::link::Run;

/// Most entries of one session.
const EXPORTS_MAX: usize = 1024;

/// What a session exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Export {
    /// Whose it is.
    pub(crate) session: u32,
    /// The vGPU of that session.
    pub(crate) vgpu: u32,
    /// Bytes that the frames hold.
    pub(crate) bytes: u64,
    /// The frames.
    pub(crate) runs: Vec<Run>,
    /// How often it was imported.
    pub(crate) imports: u32,
}

/// All exports.
#[derive(Debug, Default)]
pub(crate) struct Exports(BTreeMap<[u8; 16], Export>);

impl Exports {
    /// Adds an export under `fresh`, unless the frames are exported already; the key of the entry,
    /// or nothing when the session has too many.
    pub(crate) fn add(&mut self, fresh: [u8; 16], export: Export) -> Option<[u8; 16]> {
        let of_session = || self.0.iter().filter(|(_, have)| have.session == export.session);
        if let Some((key, _)) = of_session().find(|(_, have)| have.runs == export.runs) {
            return Some(*key);
        }
        if of_session().count() >= EXPORTS_MAX {
            return None;
        }
        self.0.insert(fresh, export);
        Some(fresh)
    }

    /// What `session` of `vgpu` may import under this key. Its own frames it has already.
    pub(crate) fn find(&mut self, key: [u8; 16], session: u32, vgpu: u32) -> Option<&Export> {
        let export = self.0.get_mut(&key)?;
        if export.vgpu != vgpu || export.session == session {
            return None;
        }
        export.imports = export.imports.saturating_add(1);
        Some(export)
    }

    /// The session gives these frames back.
    pub(crate) fn forget_frames(&mut self, session: u32, runs: &[Run]) {
        let touches =
            |(a, a_count): &Run, (b, b_count): &Run| a < &(b + b_count) && b < &(a + a_count);
        let given = |own: &Run| runs.iter().any(|run| touches(own, run));
        self.0.retain(|_, export| export.session != session || !export.runs.iter().any(given));
    }

    /// The session is over.
    pub(crate) fn forget_session(&mut self, session: u32) {
        self.0.retain(|_, export| export.session != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 16] = [7; 16];

    fn export(session: u32, vgpu: u32, first: u64) -> Export {
        Export { session, vgpu, bytes: 8192, runs: vec![(first, 2)], imports: 0 }
    }

    #[test]
    fn only_other_sessions_of_the_vgpu_find_it_and_only_by_its_key() {
        let mut exports = Exports::default();
        assert_eq!(exports.add(KEY, export(1, 10, 4)), Some(KEY));
        assert_eq!(exports.add([8; 16], export(1, 10, 4)), Some(KEY), "the same frames");
        assert_eq!(exports.find(KEY, 2, 11), None, "another vGPU's");
        assert_eq!(exports.find(KEY, 1, 10), None, "its own");
        assert_eq!(exports.find([8; 16], 2, 10), None);
        let found = exports.find(KEY, 2, 10).unwrap();
        assert_eq!((found.session, found.imports, &found.runs[..]), (1, 1, &[(4, 2)][..]));
        assert_eq!(exports.find(KEY, 3, 10).unwrap().imports, 2);
    }

    #[test]
    fn it_goes_with_its_frames_and_its_session() {
        let mut exports = Exports::default();
        exports.add(KEY, export(1, 10, 4));
        exports.forget_frames(1, &[(0, 4), (6, 9)]);
        exports.forget_frames(2, &[(0, 100)]);
        assert!(exports.find(KEY, 2, 10).is_some());
        exports.forget_frames(1, &[(5, 1)]);
        assert!(exports.find(KEY, 2, 10).is_none());
        exports.add(KEY, export(1, 10, 4));
        exports.forget_session(1);
        assert!(exports.find(KEY, 2, 10).is_none());
    }

    #[test]
    fn a_session_has_only_so_many() {
        let mut exports = Exports::default();
        for i in 0..1024_u64 {
            let mut key = KEY;
            key[..8].copy_from_slice(&i.to_ne_bytes());
            assert_eq!(exports.add(key, export(1, 10, 4 * i)), Some(key));
        }
        assert_eq!(exports.add([9; 16], export(1, 10, 1 << 40)), None);
        assert_eq!(exports.add([9; 16], export(2, 10, 1 << 40)), Some([9; 16]));
    }
}
