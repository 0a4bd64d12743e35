//! Whoever waits for what becomes of an instance is told when something has.

use std::hash::{BuildHasher as _, RandomState};

use tokio::sync::Notify;

/// Bells. Instances share them: who waits for another one is woken for nothing, and waits on.
const BELLS: usize = 64;

/// The bells.
#[derive(Debug)]
pub struct News {
    bells: [Notify; BELLS],
    hasher: RandomState,
}

impl Default for News {
    fn default() -> Self {
        Self { bells: std::array::from_fn(|_| Notify::new()), hasher: RandomState::new() }
    }
}

impl News {
    /// An instance's.
    #[must_use]
    pub fn of(&self, instance: &str) -> &Notify {
        let number = usize::try_from(self.hasher.hash_one(instance) % (BELLS as u64));
        &self.bells[number.unwrap_or_default()]
    }

    /// Something has become of an instance.
    pub fn tell(&self, instance: &str) {
        self.of(instance).notify_waiters();
    }
}
