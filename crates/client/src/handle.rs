//! The opaque 64-bit handles that an application holds.
//!
//! A handle is `generation << 32 | kind << 28 | ordinal << 24 | index`. The kind tells a stream
//! from an event, the generation tells a live object from one that had the same slot before, and
//! the ordinal names the device, so that no call needs to trust what the application passes.

/// What a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `CUcontext`.
    Context = 1,
    /// `CUstream`.
    Stream = 2,
    /// `CUevent`.
    Event = 3,
    /// `CUmodule`.
    Module = 4,
    /// `CUfunction`.
    Function = 5,
    /// `CUlibrary`.
    Library = 6,
    /// `CUkernel`.
    Kernel = 7,
    /// `CUgraph`.
    Graph = 8,
    /// `CUgraphNode`.
    GraphNode = 9,
    /// `CUgraphExec`.
    GraphExec = 10,
    /// `CUmemoryPool`.
    MemPool = 11,
    /// `CUlinkState`.
    Link = 12,
    /// `CUuserObject`.
    UserObject = 13,
}

const INDEX_BITS: u32 = 24;
const ORDINAL_BITS: u32 = 4;
const KIND_BITS: u32 = 4;
const GENERATION_SHIFT: u32 = INDEX_BITS + ORDINAL_BITS + KIND_BITS;

/// Most slots a table can have.
pub(crate) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

/// Most devices of a process, and the ordinal of those that it does not see.
pub(crate) const ORDINALS_MAX: u8 = weft_wire::id::DEVICES_MAX;
const _: () = assert!((ORDINALS_MAX as u32) < 1 << ORDINAL_BITS, "a handle has room for it");

/// A handle taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) kind: u8,
    pub(crate) ordinal: u8,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Parts {
    pub(crate) fn raw(self) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT
            | u64::from(self.kind & 0xf) << (INDEX_BITS + ORDINAL_BITS)
            | u64::from(self.ordinal & 0xf) << INDEX_BITS
            | u64::from(self.index & INDEX_MAX)
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes the fields of the word apart")]
    pub(crate) fn of(raw: u64) -> Self {
        Self {
            kind: (raw >> (INDEX_BITS + ORDINAL_BITS)) as u8 & 0xf,
            ordinal: (raw >> INDEX_BITS) as u8 & 0xf,
            index: raw as u32 & INDEX_MAX,
            generation: (raw >> GENERATION_SHIFT) as u32,
        }
    }
}

/// A typed handle.
pub(crate) trait Handle: Copy {
    const KIND: Kind;
    fn from_raw(raw: u64) -> Self;
    fn raw(self) -> u64;
}

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident,)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The null handle.
            pub const NULL: Self = Self(0);

            /// The handle that an application passed, unchecked.
            #[must_use]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The value that the application holds.
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// Whether it is the null handle.
            #[must_use]
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }

        impl Handle for $name {
            const KIND: Kind = Kind::$name;
            fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
            fn raw(self) -> u64 {
                self.0
            }
        }
    )*};
}

handles! {
    /// A `CUcontext`.
    Context,
    /// A `CUstream`, or one of the special values.
    Stream,
    /// A `CUevent`.
    Event,
    /// A `CUmodule`.
    Module,
    /// A `CUfunction`. Calls that take one accept a [`Kernel`]'s value too, as the driver does.
    Function,
    /// A `CUlibrary`.
    Library,
    /// A `CUkernel`.
    Kernel,
    /// A `CUgraph`.
    Graph,
    /// A `CUgraphNode`.
    GraphNode,
    /// A `CUgraphExec`.
    GraphExec,
    /// A `CUmemoryPool`.
    MemPool,
    /// A `CUlinkState`.
    Link,
    /// A `CUuserObject`.
    UserObject,
}

impl Context {
    /// The device that it was made on.
    pub(crate) fn ordinal(self) -> u8 {
        Parts::of(self.0).ordinal
    }
}

impl Stream {
    /// `CU_STREAM_LEGACY`. The null handle means the same in the plain variants of the calls.
    pub const LEGACY: Self = Self(1);
    /// `CU_STREAM_PER_THREAD`. The `_ptsz` and `_ptds` variants of the calls replace null by it.
    pub const PER_THREAD: Self = Self(2);
}

/// The kind that a raw handle claims to be of.
pub(crate) fn claims(raw: u64, kind: Kind) -> bool {
    Parts::of(raw).kind == kind as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_handle_keeps_its_parts(
            kind in 1_u8..14, ordinal in 0_u8..16, index in 0..=INDEX_MAX, generation in 1_u32..,
        ) {
            let parts = Parts { kind, ordinal, index, generation };
            prop_assert_eq!(Parts::of(parts.raw()), parts);
            prop_assert!(parts.raw() > Stream::PER_THREAD.raw());
        }
    }
}
