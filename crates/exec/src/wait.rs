//! Synchronous commands that are answered later.

use std::collections::BTreeMap;

use weft_device::ModuleId;
use weft_wire::id::ContextId;

use crate::output::Caller;

/// What happens when everything that a wait needs has ended, before its answer.
#[derive(Debug)]
pub(crate) enum Action {
    /// Nothing.
    Answer,
    /// Frees an allocation, of so many bytes if no other session has it.
    Free { address: u64, bytes: Option<u64> },
    /// Allocates so many bytes.
    Alloc { context: ContextId, bytes: u64 },
    /// Gives the system back what the tenant gave back of its window.
    Discard,
    /// Unmaps memory that was taken without addresses.
    Unmap(u64),
    /// Gives it back; at once, where it is not mapped.
    Release(u64),
    /// Unloads a module.
    Unload(ModuleId),
    /// Frees and unloads what a context owned.
    Destroy(Box<Remains>),
}

/// What a destroyed context leaves to clean up.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) context: ContextId,
    pub(crate) modules: Vec<ModuleId>,
    pub(crate) addresses: Vec<u64>,
}

/// One synchronous command that waits for points of streams or a record.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) caller: Caller,
    pub(crate) action: Action,
    /// How many things it still needs.
    pub(crate) left: usize,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    next: u64,
    waits: BTreeMap<u64, Wait>,
}

impl Waits {
    /// The number of the next wait.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn insert(&mut self, number: u64, wait: Wait) {
        self.waits.insert(number, wait);
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }

    /// One thing that the wait needs has ended; returns the wait once that was the last.
    pub(crate) fn ended(&mut self, number: u64) -> Option<Wait> {
        let wait = self.waits.get_mut(&number)?;
        wait.left = wait.left.saturating_sub(1);
        if wait.left == 0 { self.waits.remove(&number) } else { None }
    }

    /// Whether one of them frees memory.
    pub(crate) fn any_frees(&self) -> bool {
        self.waits.values().any(|wait| {
            matches!(wait.action, Action::Free { .. } | Action::Unmap(_) | Action::Destroy(_))
        })
    }

    /// Takes all waits that only want an answer.
    pub(crate) fn take_plain(&mut self) -> Vec<Caller> {
        let plain = self.waits.extract_if(.., |_, wait| matches!(wait.action, Action::Answer));
        plain.map(|(_, wait)| wait.caller).collect()
    }
}
