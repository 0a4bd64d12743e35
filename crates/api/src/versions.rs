//! Versions of an interface whose two sides are upgraded one after the other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The versions that a side speaks: the newest one and those before it, without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl Versions {
    /// What a side speaks that cannot say what it speaks: that came with version 2.
    pub const UNSAID: Self = Self { oldest: 1, newest: 1 };

    /// What a side speaks by the rule: its own version, and the one before.
    #[must_use]
    pub const fn up_to(newest: u32) -> Self {
        let oldest = if newest > 1 { newest - 1 } else { newest };
        Self { oldest, newest }
    }

    /// Whether a version is one of them.
    #[must_use]
    pub const fn contain(self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest version that both sides speak.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let version = self.newest.min(other.newest);
        (version >= self.oldest.max(other.oldest)).then_some(version)
    }

    /// What is to be done if there is none: which side is to be upgraded.
    #[must_use]
    pub fn advice(self, other: Self) -> &'static str {
        if other.newest < self.oldest { "upgrade that one" } else { "upgrade this side first" }
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self::UNSAID
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            return write!(f, "version {}", self.newest);
        }
        write!(f, "versions {} to {}", self.oldest, self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_that_are_one_version_apart_speak_the_older_ones() {
        let own = Versions::up_to(5);
        for (newest, common) in [(3, None), (4, Some(4)), (5, Some(5)), (6, Some(5)), (7, None)] {
            let other = Versions::up_to(newest);
            assert_eq!(own.common(other), common, "{newest}");
            assert_eq!(other.common(own), common, "{newest}");
        }
        assert_eq!(own.advice(Versions::up_to(3)), "upgrade that one");
        assert_eq!(own.advice(Versions::up_to(7)), "upgrade this side first");
        assert_eq!(Versions::up_to(1), Versions::UNSAID);
        assert_eq!(own.to_string(), "versions 4 to 5");
    }
}
