//! How far the parts that an operation names are those that a turn touches.
//!
//! Arguments of a launch are addresses, and say where an allocation begins; how much of it the
//! kernel touches they do not say. So a turn that begins with such an operation is held against
//! what was named, also while that is not believed.

use alloc::vec::Vec;

/// Named parts that are remembered: beyond so many, what is older counts half.
const MEMORY: usize = 64;

/// What the operation named with which a turn began, and what came of those before.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    pub(super) parts: Vec<usize>,
    right: usize,
    wrong: usize,
}

impl Named {
    /// A turn is over that touched the parts for which `is_touched`.
    pub(super) fn judge(&mut self, is_touched: impl Fn(usize) -> bool) {
        let right = self.parts.iter().filter(|part| is_touched(**part)).count();
        self.right += right;
        self.wrong += self.parts.len() - right;
        self.parts.clear();
        while self.right + self.wrong > MEMORY {
            (self.right, self.wrong) = (self.right / 2, self.wrong / 2);
        }
    }

    /// At most a quarter of what was named was not touched. Who has named nothing yet is believed.
    pub(super) const fn is_believed(&self) -> bool {
        4 * self.wrong <= self.right + self.wrong
    }
}
