//! Handles: the client chooses them, the worker checks them.

use crate::codec::{DecodeError, EncodeError, Field, Reader, Writer};

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {$(
        $(#[$meta])*
        ///
        /// `index` is a slot of the client's table; `generation` tells the slot's owners apart, so
        /// that a stale handle is noticed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            /// Slot in the client's table of this kind.
            pub index: u32,
            /// Which owner of the slot.
            pub generation: u32,
        }

        impl<'a> Field<'a> for $name {
            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                self.index.encode(writer)?;
                self.generation.encode(writer)
            }
            #[inline]
            fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(Self { index: u32::decode(reader)?, generation: u32::decode(reader)? })
            }
        }
    )*};
}

handles! {
    /// A CUDA context of the session.
    ContextId,
    /// A stream. [`StreamId::LEGACY`] is the legacy default stream of every context.
    StreamId,
    /// An event.
    EventId,
    /// A loaded module.
    ModuleId,
    /// An instantiated graph.
    GraphExecId,
}

impl StreamId {
    /// The legacy default stream: it waits for all blocking streams and they wait for it.
    pub const LEGACY: Self = Self { index: 0, generation: 0 };
}

/// Most streams of a session; slot numbers are below it.
pub const STREAMS_MAX: u32 = 65_536;
/// Most events of a session.
pub const EVENTS_MAX: u32 = 1 << 20;
/// Most modules of a session.
pub const MODULES_MAX: u32 = 1 << 16;
/// Most instantiated graphs of a session.
pub const GRAPHS_MAX: u32 = 1 << 16;
/// Most vGPUs that a process has as its devices.
pub const DEVICES_MAX: u8 = 15;
/// Most contexts of a session.
pub const CONTEXTS_MAX: u32 = 1 << 10;
