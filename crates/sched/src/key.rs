//! Dense keys and the two small numbers that everything is written in.
//!
//! The driver chooses the keys, small and dense (a slab index): the core indexes arrays by them and
//! never hashes. A key may be used again after its owner was removed.

use alloc::vec::Vec;
use core::fmt;

use crate::codec::{Codec, Malformed, Reader};

/// Keys at or above this are refused ([`EventError::KeyTooLarge`](crate::EventError)): a stray key
/// must not make the core allocate an array of its size. 65,536 vGPUs with 16 sessions each fit.
pub const KEY_LIMIT: u32 = 1 << 20;

/// Declares a key over a number that is shown after a prefix.
macro_rules! key {
    ($(#[$doc:meta])* $name:ident($number:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $number);

        impl Codec for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                <$number>::take(input).map(Self)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

pub(crate) use key;

/// Declares keys that are array indices.
macro_rules! dense_key {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        key!($(#[$doc])* $name(u32), $prefix);

        impl $name {
            /// The key as an array index.
            pub(crate) fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

dense_key!(
    /// A device of this node.
    DeviceKey, "d"
);
dense_key!(
    /// A tenant: whose vGPUs share the tenant's part of every device.
    TenantKey, "t"
);
dense_key!(
    /// A vGPU: the unit of scheduling and accounting.
    VgpuKey, "v"
);
dense_key!(
    /// A session, one (process, vGPU) pair: what a grant is addressed to.
    SessionKey, "s"
);

dense_key!(
    /// A task of a pool: a self-contained kernel launch with its buffers.
    TaskKey, "k"
);

impl TenantKey {
    /// The tenant that every node has from the beginning, with weight 1. Drivers without tenants
    /// give it all vGPUs: these then share the device by their own weights.
    pub const DEFAULT: Self = Self(0);
}

/// A dense key or none, no larger than a key: queues have several of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaybeKey(u32);

impl MaybeKey {
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn get(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0)
    }

    pub(crate) fn is(self, key: u32) -> bool {
        self.get() == Some(key)
    }

    /// It is none from now on if it is `key`.
    pub(crate) fn forget(&mut self, key: u32) {
        if self.is(key) {
            *self = Self::NONE;
        }
    }
}

impl Default for MaybeKey {
    fn default() -> Self {
        Self::NONE
    }
}

impl From<Option<u32>> for MaybeKey {
    fn from(key: Option<u32>) -> Self {
        key.map_or(Self::NONE, Self)
    }
}

impl fmt::Debug for MaybeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Codec for MaybeKey {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        <Option<u32> as Codec>::take(input).map(Self::from)
    }
}

/// A relative share, 1 to 10,000: a tenant's of a device, a vGPU's of its tenant's part, a
/// session's of its vGPU's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u32", into = "u32"))]
pub struct Weight(u32);

impl Weight {
    /// The smallest weight, and the default.
    pub const ONE: Self = Self(1);
    /// The largest weight.
    pub const MAX: Self = Self(10_000);

    /// A weight, if `value` is one of 1 to 10,000.
    pub fn new(value: u32) -> Result<Self, WeightError> {
        if (Self::ONE.0..=Self::MAX.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(WeightError { value })
        }
    }

    /// The number itself.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Codec for Weight {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::new(u32::take(input)?).map_err(|_| input.malformed("weight"))
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u32> for Weight {
    type Error = WeightError;

    fn try_from(value: u32) -> Result<Self, WeightError> {
        Self::new(value)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

/// A number that is no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("weight = {value} is not allowed: a weight is 1 to 10000")]
pub struct WeightError {
    /// The number refused.
    pub value: u32,
}
