//! Which allocations sessions let others of their vGPU use. Pure.
//!
//! An entry is found by a key that nobody can guess, from another session of the same vGPU alone.
//! It goes with the first of its frames that its session gives back. The book dies with the daemon:
//! what was imported stays, but keys from before a restart are unknown after it.

use std::collections::{BTreeMap, BTreeSet};

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

/// What names an export: nobody can guess it.
type Key = [u8; 16];

/// All exports.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    by_key: BTreeMap<Key, Export>,
    /// The keys of each session.
    of_session: BTreeMap<u32, BTreeSet<Key>>,
    /// How many frames of which export begin at a frame of a vGPU. A frame is exported once.
    by_first: BTreeMap<(u32, u64), (u64, Key)>,
}

impl Exports {
    /// Adds an export of frames that are the session's under `fresh`, unless they are exported
    /// already; the key of the entry, or nothing when the session has too many, or names frames
    /// twice.
    pub(crate) fn add(&mut self, fresh: Key, export: Export) -> Option<Key> {
        if let Some(key) = self.find_same(&export) {
            return Some(key);
        }
        let of_session = self.of_session.get(&export.session).map_or(0, BTreeSet::len);
        if of_session >= EXPORTS_MAX {
            return None;
        }
        for (entered, &(first, count)) in export.runs.iter().enumerate() {
            if self.touching(export.vgpu, first, count).is_some() {
                for (first, _) in &export.runs[..entered] {
                    self.by_first.remove(&(export.vgpu, *first));
                }
                return None;
            }
            self.by_first.insert((export.vgpu, first), (count, fresh));
        }
        self.of_session.entry(export.session).or_default().insert(fresh);
        self.by_key.insert(fresh, export);
        Some(fresh)
    }

    /// The entry of the same session that has exactly these frames.
    fn find_same(&self, export: &Export) -> Option<Key> {
        let (_, key) = self.by_first.get(&(export.vgpu, export.runs.first()?.0))?;
        let have = self.by_key.get(key)?;
        (have.session == export.session && have.runs == export.runs).then_some(*key)
    }

    /// An entry that has any of these frames.
    fn touching(&self, vgpu: u32, first: u64, count: u64) -> Option<Key> {
        let last = first.saturating_add(count).saturating_sub(1);
        let own = self.by_first.range((vgpu, 0)..=(vgpu, last)).next_back();
        let ((_, start), (length, key)) = own?;
        (start.saturating_add(*length) > first).then_some(*key)
    }

    /// What `session` of `vgpu` may import under this key. Its own frames it has already.
    pub(crate) fn find(&mut self, key: Key, session: u32, vgpu: u32) -> Option<&Export> {
        let export = self.by_key.get_mut(&key)?;
        if export.vgpu != vgpu || export.session == session {
            return None;
        }
        export.imports = export.imports.saturating_add(1);
        Some(export)
    }

    /// What the sessions of a vGPU export, and under which keys.
    pub(crate) fn of_vgpu(&self, vgpu: u32) -> Vec<([u8; 16], Export)> {
        let own = self.by_key.iter().filter(|(_, export)| export.vgpu == vgpu);
        own.map(|(key, export)| (*key, export.clone())).collect()
    }

    /// The session that had these frames of a vGPU has given them back.
    pub(crate) fn forget_frames(&mut self, vgpu: u32, runs: &[Run]) {
        for &(first, count) in runs {
            while let Some(key) = self.touching(vgpu, first, count) {
                self.forget(key);
            }
        }
    }

    /// The session is over.
    pub(crate) fn forget_session(&mut self, session: u32) {
        for key in self.of_session.remove(&session).unwrap_or_default() {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: Key) {
        let Some(export) = self.by_key.remove(&key) else { return };
        for (first, _) in &export.runs {
            self.by_first.remove(&(export.vgpu, *first));
        }
        if let Some(keys) = self.of_session.get_mut(&export.session) {
            keys.remove(&key);
        }
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
        exports.forget_frames(10, &[(0, 4), (6, 9)]);
        exports.forget_frames(11, &[(0, 99)]);
        assert!(exports.find(KEY, 2, 10).is_some());
        exports.forget_frames(10, &[(5, 1)]);
        assert!(exports.find(KEY, 2, 10).is_none());
        exports.add(KEY, export(1, 10, 4));
        exports.forget_session(1);
        assert!(exports.find(KEY, 2, 10).is_none());
        assert!(exports.by_first.is_empty() && exports.of_session.is_empty());
    }

    #[test]
    fn frames_are_exported_once_and_runs_without_an_end_are_survived() {
        let mut exports = Exports::default();
        let several = |runs: &[Run]| Export { runs: runs.to_vec(), ..export(1, 10, 0) };
        assert_eq!(exports.add(KEY, several(&[(4, 4), (20, 2)])), Some(KEY));
        for runs in [&[(7, 1)][..], &[(0, 5)], &[(30, 1), (21, 1)], &[(40, 2), (41, 2)]] {
            assert_eq!(exports.add([9; 16], several(runs)), None, "{runs:?}");
        }
        assert_eq!(exports.add([8; 16], several(&[(30, 12)])), Some([8; 16]), "nothing is left");
        exports.forget_frames(10, &[(u64::MAX, u64::MAX), (42, u64::MAX)]);
        assert_eq!(exports.by_key.len(), 2);
        exports.forget_frames(10, &[(0, u64::MAX)]);
        assert!(exports.by_key.is_empty() && exports.by_first.is_empty());
    }

    /// Comparing each freed run with each exported one takes a billion steps here.
    #[test]
    fn what_is_freed_is_found_among_many_without_a_look_at_each() {
        let mut exports = Exports::default();
        let runs = |of: u64| (0..1024_u64).map(move |run| (2 * (1024 * of + run), 1));
        for of in 0..1024_u64 {
            let mut key = KEY;
            key[..8].copy_from_slice(&of.to_ne_bytes());
            let export = Export { runs: runs(of).collect(), ..export(1, 10, 0) };
            assert_eq!(exports.add(key, export), Some(key));
        }
        // All of them lie between the exported ones.
        let freed: Vec<Run> = runs(0).map(|(first, _)| (first + 1, 1)).collect();
        for _ in 0..100 {
            exports.forget_frames(10, &freed);
        }
        assert_eq!(exports.by_key.len(), 1024);
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
