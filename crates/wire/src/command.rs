//! The one table of commands: everything a lane carries from a tenant to its worker.
//!
//! `commands!` declares each command once. From it come the enum [`Command`], its codec,
//! [`Command::kind`], [`Command::is_sync`], [`Command::stream`], [`Command::survives_fault`],
//! [`Command::try_for_each_block`] and [`KINDS`] (for fuzz targets, traces and docs). A row is
//!
//! ```text
//! number class [stream; fault] Name { field: type, … }
//! ```
//!
//! with the class `sync` or `async`, the field that names the stream whose progress word counts the
//! command, or nothing, and `refused` or `survives` for what becomes of it after a fault.
//! An *async* command gets no answer; its failure is sticky and reported by a later call. A *sync*
//! command is answered in the caller's completion word with a [`crate::Status`] and the body that
//! the command's documentation names.

use alloc::vec::Vec;

use crate::codec::{DecodeError, EncodeError, Field, Reader, Writer, message};
use crate::id::{ContextId, EventId, GraphExecId, ModuleId, StreamId};

/// Most bytes of one encoded command: what fits into one lane record.
pub const COMMAND_BYTES_MAX: usize = 496;

/// Largest encoded node list of a graph, and largest answer of a module load, in bytes.
pub const LIST_BYTES_MAX: usize = 16 << 20;

message! {
    /// A block of the session's arena. The worker releases it when it has read or written it.
    pub struct Block {
        /// Offset from the start of the arena, in bytes.
        offset: u64,
        /// Bytes that belong to the command.
        bytes: u64,
        /// Index of the block's release word.
        release: u32,
    }
}

/// Bytes that a command brings along.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload<'a> {
    /// Inside the command itself.
    Inline(&'a [u8]),
    /// In an arena block.
    Arena(Block),
    /// In the pinned window, at this host address (same on both sides).
    Pinned {
        /// Host address of the first byte.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
}

impl<'a> Field<'a> for Payload<'a> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Inline(bytes) => {
                0_u8.encode(writer)?;
                bytes.encode(writer)
            }
            Self::Arena(block) => {
                1_u8.encode(writer)?;
                block.encode(writer)
            }
            Self::Pinned { address, bytes } => {
                2_u8.encode(writer)?;
                address.encode(writer)?;
                bytes.encode(writer)
            }
        }
    }
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Self::Inline(Field::decode(reader)?)),
            1 => Ok(Self::Arena(Block::decode(reader)?)),
            2 => Ok(Self::Pinned { address: u64::decode(reader)?, bytes: u64::decode(reader)? }),
            other => Err(DecodeError::InvalidValue(other.into())),
        }
    }
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq)]
pub enum Place<'a> {
    /// A device address.
    Device(u64),
    /// Shared or inline bytes. Inline is a source only.
    Host(Payload<'a>),
}

impl Place<'_> {
    /// The arena block that it is, if it is one.
    pub fn block(&self) -> Option<&Block> {
        match self {
            Self::Host(Payload::Arena(block)) => Some(block),
            Self::Host(Payload::Inline(_) | Payload::Pinned { .. }) | Self::Device(_) => None,
        }
    }
}

impl<'a> Field<'a> for Place<'a> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Device(address) => {
                0_u8.encode(writer)?;
                address.encode(writer)
            }
            Self::Host(payload) => {
                1_u8.encode(writer)?;
                payload.encode(writer)
            }
        }
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Self::Device(u64::decode(reader)?)),
            1 => Ok(Self::Host(Payload::decode(reader)?)),
            other => Err(DecodeError::InvalidValue(other.into())),
        }
    }
}

message! {
    /// One side of a copy with its strides, in bytes. Strides are 0 for a linear copy.
    pub struct Endpoint<'a> {
        /// Where the first byte lies.
        place: Place<'a>,
        /// From one row to the next.
        pitch: u64,
        /// From one slice to the next.
        slice: u64,
    }
}

message! {
    /// Bytes per row, rows per slice, slices. A linear copy is `(bytes, 1, 1)`.
    pub struct Shape {
        /// Bytes per row.
        width: u64,
        /// Rows per slice.
        height: u64,
        /// Slices.
        depth: u64,
    }
}

message! {
    /// What to launch and with what. `params` is the laid-out parameter block.
    pub struct LaunchSpec<'a> {
        /// Module of the kernel.
        module: ModuleId,
        /// Index of the kernel in the module's function list.
        function: u32,
        /// Thread blocks in x, y, z.
        grid: [u32; 3],
        /// Threads per block in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory in bytes.
        shared_bytes: u32,
        /// The kernel's parameter block.
        params: Payload<'a>,
    }
}

message! {
    /// A fill of device memory.
    pub struct FillSpec {
        /// First device address.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Elements per row.
        width: u64,
        /// Rows.
        height: u64,
        /// Element size in bytes: 1, 2 or 4.
        element: u8,
        /// The element's bits.
        value: u32,
    }
}

/// How a stream waits for a value in memory (`CUstreamWaitValue_flags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `(signed)(*address − value) >= 0`.
    GreaterOrEqual,
    /// `*address == value`.
    Equal,
    /// `*address & value != 0`.
    And,
    /// `!(*address | value) != 0`.
    Nor,
}

impl<'a> Field<'a> for Comparison {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let code: u8 = match self {
            Self::GreaterOrEqual => 0,
            Self::Equal => 1,
            Self::And => 2,
            Self::Nor => 3,
        };
        code.encode(writer)
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Self::GreaterOrEqual),
            1 => Ok(Self::Equal),
            2 => Ok(Self::And),
            3 => Ok(Self::Nor),
            other => Err(DecodeError::InvalidValue(other.into())),
        }
    }
}

/// What may bring arena blocks along: every type of a command's fields says which.
trait Blocks {
    /// Visits them until one is refused.
    fn try_for_each_block<E>(
        &self,
        visit: &mut dyn FnMut(&Block) -> Result<(), E>,
    ) -> Result<(), E>;
}

macro_rules! without_blocks {
    ($($type:ty),+) => {$(
        impl Blocks for $type {
            fn try_for_each_block<E>(
                &self,
                _visit: &mut dyn FnMut(&Block) -> Result<(), E>,
            ) -> Result<(), E> {
                Ok(())
            }
        }
    )+};
}

without_blocks!(bool, i32, u32, u64, [u8; 16], Shape, FillSpec, Comparison);
without_blocks!(ContextId, ModuleId, StreamId, EventId, GraphExecId);

impl Blocks for Block {
    fn try_for_each_block<E>(
        &self,
        visit: &mut dyn FnMut(&Block) -> Result<(), E>,
    ) -> Result<(), E> {
        visit(self)
    }
}

impl Blocks for Vec<Block> {
    fn try_for_each_block<E>(
        &self,
        visit: &mut dyn FnMut(&Block) -> Result<(), E>,
    ) -> Result<(), E> {
        self.iter().try_for_each(visit)
    }
}

impl Blocks for Payload<'_> {
    fn try_for_each_block<E>(
        &self,
        visit: &mut dyn FnMut(&Block) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Arena(block) => visit(block),
            Self::Inline(_) | Self::Pinned { .. } => Ok(()),
        }
    }
}

impl Blocks for Endpoint<'_> {
    fn try_for_each_block<E>(
        &self,
        visit: &mut dyn FnMut(&Block) -> Result<(), E>,
    ) -> Result<(), E> {
        self.place.block().map_or(Ok(()), visit)
    }
}

impl Blocks for LaunchSpec<'_> {
    fn try_for_each_block<E>(
        &self,
        visit: &mut dyn FnMut(&Block) -> Result<(), E>,
    ) -> Result<(), E> {
        self.params.try_for_each_block(visit)
    }
}

macro_rules! commands {
    ($(
        $(#[$meta:meta])*
        $kind:literal $class:ident [$($stream:ident)?; $fault:ident] $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        /// One command. See the module documentation.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Command<'a> {
            $($(#[$meta])* $name { $($(#[$field_meta])* $field: $type,)* },)*
        }

        /// Number, name and whether it is answered, of every command.
        pub const KINDS: &[(u16, &str, bool)] =
            &[$(($kind, stringify!($name), commands!(@sync $class)),)*];

        impl<'a> Command<'a> {
            /// The command's number on the wire.
            pub fn kind(&self) -> u16 {
                match self { $(Self::$name { .. } => $kind,)* }
            }

            /// The command's name, for logs.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name),)* }
            }

            /// Whether the sender waits for an answer.
            pub fn is_sync(&self) -> bool {
                match self { $(Self::$name { .. } => commands!(@sync $class),)* }
            }

            /// The stream whose progress word counts the command.
            pub fn stream(&self) -> Option<StreamId> {
                match self { $(Self::$name { $($stream,)? .. } => commands!(@stream $($stream)?),)* }
            }

            /// Whether it is carried out after a fault, too: what keeps both sides' tables alike,
            /// and what ends a fault.
            pub fn survives_fault(&self) -> bool {
                match self { $(Self::$name { .. } => commands!(@fault $fault),)* }
            }

            /// Visits the arena blocks that the command brings along, until one is refused.
            pub fn try_for_each_block<E>(
                &self,
                visit: &mut dyn FnMut(&Block) -> Result<(), E>,
            ) -> Result<(), E> {
                match self {
                    $(Self::$name { $($field,)* } => {
                        $($field.try_for_each_block(visit)?;)*
                        Ok(())
                    })*
                }
            }

            /// Writes the command to the front of `buffer` and returns its length.
            #[inline]
            pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, EncodeError> {
                let mut writer = Writer::new(buffer);
                self.kind().encode(&mut writer)?;
                match self {
                    $(Self::$name { $($field,)* } => { $($field.encode(&mut writer)?;)* })*
                }
                Ok(writer.len())
            }

            /// Reads exactly one command.
            #[inline]
            pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(bytes);
                let command = match u16::decode(&mut reader)? {
                    $($kind => Self::$name { $($field: Field::decode(&mut reader)?,)* },)*
                    other => return Err(DecodeError::UnknownKind(other)),
                };
                reader.finish()?;
                Ok(command)
            }
        }
    };
    (@sync sync) => { true };
    (@sync async) => { false };
    (@stream) => { None };
    (@stream $stream:ident) => { Some(*$stream) };
    (@fault survives) => { true };
    (@fault refused) => { false };
}

commands! {
    // Contexts.

    /// Creates a context. Cannot fail within [`crate::id::CONTEXTS_MAX`].
    1 async [; survives] ContextCreate { context: ContextId, }
    /// Destroys a context and everything in it, after its work has ended.
    2 sync [; survives] ContextDestroy { context: ContextId, }
    /// Answers when all work of the context has ended.
    3 sync [; refused] ContextSynchronize { context: ContextId, }
    /// Answers at once. The cheapest round trip; also carries a sticky error back.
    4 sync [; refused] Ping {}
    /// Takes what kernels printed. The reply body is the next bytes of it; empty when there is
    /// nothing more.
    5 sync [; survives] TakeOutput {}

    // Memory.

    /// Allocates device memory. Answer: [`crate::reply::Address`].
    10 sync [; refused] MemAlloc { context: ContextId, bytes: u64, }
    /// Frees device memory after the work submitted before it.
    11 sync [; refused] MemFree { address: u64, }
    /// Allocates in stream order. Answer: [`crate::reply::Address`].
    12 sync [; refused] MemAllocAsync { context: ContextId, stream: StreamId, bytes: u64, }
    /// Frees in stream order.
    13 async [stream; refused] MemFreeAsync { stream: StreamId, address: u64, }
    /// Memory use of the vGPU. Answer: [`crate::reply::MemoryUse`].
    14 sync [; survives] MemInfo {}
    /// Accounts for pinned host memory of the session; `bytes` is the new total. When it is less,
    /// what was given back is cleared before the answer, after the work submitted before it.
    15 sync [; survives] PinnedQuota { bytes: u64, }
    /// A piece of the pinned window is in use from here on (`used` is 1), or no longer (0): whole
    /// pages, within what [`Self::PinnedQuota`] granted. What is in no piece cannot be used.
    16 async [; survives] PinnedRange { address: u64, bytes: u64, used: u32, }
    /// The tenant's own pages from `host` on are from here on those of the pinned window at
    /// `address`: kernels find them under either address. All three are whole pages.
    17 sync [; refused] HostMap { host: u64, address: u64, bytes: u64, }
    /// They are no longer; the work that uses them has ended.
    18 sync [; survives] HostUnmap { host: u64, }
    /// Whole pages of what lies behind the pinned window become managed memory: they are paid for
    /// and have slots like device memory, and host and device find them at `address`.
    19 sync [; refused] ManagedAlloc { address: u64, bytes: u64, }
    /// They are no longer, after the work submitted before it.
    23 sync [; refused] ManagedFree { address: u64, }
    /// Managed memory is going to be used by the device.
    24 async [; survives] ManagedPrefetch { address: u64, bytes: u64, }
    /// Lets other sessions of the vGPU use the allocation that holds `address`. Answer:
    /// [`crate::reply::MemoryKey`].
    25 sync [; refused] MemExport { address: u64, }
    /// Maps what another session of the vGPU exported. Answer: [`crate::reply::Imported`]; freed
    /// like any allocation.
    26 sync [; refused] MemImport { context: ContextId, key: [u8; 16], }

    // Addresses and memory apart from each other; both belong to the session, not to a context.

    /// Takes device addresses that nothing is mapped at. `bytes` and `alignment` (a power of two)
    /// are whole pages. Answer: [`crate::reply::Address`].
    90 sync [; refused] MemReserve { bytes: u64, alignment: u64, }
    /// Gives addresses back that nothing is mapped at any more; `address` is where they begin.
    91 sync [; refused] MemUnreserve { address: u64, }
    /// Takes zeroed memory without addresses, in whole pages. Answer: [`crate::reply::Physical`].
    92 sync [; refused] MemCreate { bytes: u64, }
    /// Gives it back, once it is mapped nowhere.
    93 sync [; refused] MemRelease { memory: u64, }
    /// Maps all of it at reserved addresses.
    94 sync [; refused] MemMap { address: u64, memory: u64, }
    /// Unmaps what is mapped at `address`, after the work submitted before it.
    95 sync [; refused] MemUnmap { address: u64, }

    // Copies and fills.

    /// Copies in stream order. Async: host blocks are released when done.
    20 async [stream; refused] Copy<'a> { stream: StreamId, dst: Endpoint<'a>, src: Endpoint<'a>, shape: Shape, }
    /// The same, answered when the copy is done.
    21 sync [stream; refused] CopySync<'a> { stream: StreamId, dst: Endpoint<'a>, src: Endpoint<'a>, shape: Shape, }
    /// Fills in stream order.
    22 async [stream; refused] Fill { stream: StreamId, fill: FillSpec, }

    // Modules.

    /// Loads one or several images as a module. Answer: [`crate::reply::Module`] written into
    /// `answer` (an arena block), its length in the reply body as [`crate::reply::Written`]. On
    /// failure the reply body is the error log as text (UTF-8, cut to what fits).
    30 sync [; refused] ModuleLoad { context: ContextId, module: ModuleId, images: Vec<Block>, answer: Block, }
    /// Unloads a module after the work that uses it.
    31 sync [; survives] ModuleUnload { module: ModuleId, }

    // Launches.

    /// Launches a kernel in stream order.
    40 async [stream; refused] Launch<'a> { stream: StreamId, launch: LaunchSpec<'a>, }

    // Streams and events.

    /// Creates a stream. `blocking` streams order themselves with the legacy stream.
    50 async [; survives] StreamCreate { context: ContextId, stream: StreamId, blocking: bool, priority: i32, }
    /// Destroys a stream after its work.
    51 async [; survives] StreamDestroy { stream: StreamId, }
    /// Answers when the stream's work submitted so far has ended.
    52 sync [; refused] StreamSynchronize { stream: StreamId, }
    /// Answers at once: success or not ready.
    53 sync [; refused] StreamQuery { stream: StreamId, }
    /// Later work of the stream waits for the event's last record before this command.
    54 async [stream; refused] StreamWaitEvent { stream: StreamId, event: EventId, }
    /// Later work waits until the 32- or 64-bit word at `address` compares true.
    55 async [stream; refused] StreamWaitValue {
        stream: StreamId, address: u64, value: u64, wide: bool, comparison: Comparison,
    }
    /// Writes a 32- or 64-bit word in stream order.
    56 async [stream; refused] StreamWriteValue { stream: StreamId, address: u64, value: u64, wide: bool, }
    /// Creates an event.
    60 async [; survives] EventCreate { context: ContextId, event: EventId, }
    /// Destroys an event.
    61 async [; survives] EventDestroy { event: EventId, }
    /// Records the event in stream order. `record` counts this event's records from 1; when the
    /// record completes it is stored into the event's progress word.
    62 async [stream; refused] EventRecord { event: EventId, stream: StreamId, record: u64, }
    /// Answers when the record has completed.
    63 sync [; refused] EventSynchronize { event: EventId, record: u64, }
    /// Answers at once: success or not ready.
    64 sync [; refused] EventQuery { event: EventId, record: u64, }
    /// Time between two completed records. Answer: [`crate::reply::Elapsed`].
    65 sync [; refused] EventElapsed { start: EventId, end: EventId, }

    // Events of several sessions of a vGPU: cells of 16 bytes in memory that they share, how many
    // records were accepted and the highest that has completed. Each answers at once, so that what
    // one process has done is so before it can tell another one.

    /// A new cell, without records.
    66 sync [; refused] SharedEventCreate { cell: u64, }
    /// Records the event in stream order.
    67 sync [stream; refused] SharedEventRecord { cell: u64, stream: StreamId, }
    /// Later work of the stream waits for the last record of any session before this command.
    68 sync [stream; refused] SharedEventWait { cell: u64, stream: StreamId, }
    /// Success or not ready.
    69 sync [; refused] SharedEventQuery { cell: u64, }

    // Host functions: the client's callback thread asks, runs, and says when it is done.

    /// A host function in stream order; `call` is the client's number for it.
    70 async [stream; refused] HostFunction { stream: StreamId, call: u64, }
    /// Answers with the number of the next due host function ([`crate::reply::HostCall`]).
    71 sync [; refused] HostFunctionNext {}
    /// The host function has returned; the stream goes on.
    72 async [; survives] HostFunctionDone { call: u64, }

    // Graphs travel as node lists and run in pieces.

    /// Instantiates a graph; the nodes lie encoded ([`GraphNode`] list) in `nodes`.
    80 sync [; refused] GraphInstantiate { context: ContextId, graph: GraphExecId, nodes: Block, }
    /// Replaces one kernel node's launch.
    81 async [; refused] GraphSetKernel<'a> { graph: GraphExecId, node: u32, launch: LaunchSpec<'a>, }
    /// Launches the graph in stream order.
    82 async [stream; refused] GraphLaunch { graph: GraphExecId, stream: StreamId, }
    /// Destroys the graph after its launches.
    83 async [; survives] GraphDestroy { graph: GraphExecId, }
    /// Replaces one node (any kind); the new [`GraphNode`] lies encoded in `node_bytes`.
    84 sync [; refused] GraphSetNode { graph: GraphExecId, node: u32, node_bytes: Block, }
}

impl Command<'_> {
    /// The arena block that the worker writes for its client, if there is one; it reads the others.
    pub fn output_block(&self) -> Option<&Block> {
        if let Self::Copy { dst, .. } | Self::CopySync { dst, .. } = self {
            dst.place.block()
        } else if let Self::ModuleLoad { answer, .. } = self {
            Some(answer)
        } else {
            None
        }
    }
}

/// What one node of a graph does.
#[derive(Debug, Clone, PartialEq)]
pub enum GraphWork<'a> {
    /// Nothing.
    Empty,
    /// A kernel.
    Kernel(LaunchSpec<'a>),
    /// A copy between device addresses and pinned memory.
    Copy {
        /// Where to.
        dst: Endpoint<'a>,
        /// Where from.
        src: Endpoint<'a>,
        /// How much.
        shape: Shape,
    },
    /// A fill.
    Fill(FillSpec),
    /// A host function of the client.
    HostFunction(u64),
    /// Record an event.
    EventRecord(EventId),
    /// Wait for an event.
    EventWait(EventId),
}

/// A node and the indices of the nodes it waits for, all smaller than its own.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphNode<'a> {
    /// Nodes that must end first; indices into the same list, below this node's own.
    pub after: Vec<u32>,
    /// What it does.
    pub work: GraphWork<'a>,
}

impl<'a> Field<'a> for GraphWork<'a> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Empty => 0_u8.encode(writer),
            Self::Kernel(launch) => {
                1_u8.encode(writer)?;
                launch.encode(writer)
            }
            Self::Copy { dst, src, shape } => {
                2_u8.encode(writer)?;
                dst.encode(writer)?;
                src.encode(writer)?;
                shape.encode(writer)
            }
            Self::Fill(fill) => {
                3_u8.encode(writer)?;
                fill.encode(writer)
            }
            Self::HostFunction(call) => {
                4_u8.encode(writer)?;
                call.encode(writer)
            }
            Self::EventRecord(event) => {
                5_u8.encode(writer)?;
                event.encode(writer)
            }
            Self::EventWait(event) => {
                6_u8.encode(writer)?;
                event.encode(writer)
            }
        }
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Self::Empty),
            1 => Ok(Self::Kernel(Field::decode(reader)?)),
            2 => Ok(Self::Copy {
                dst: Field::decode(reader)?,
                src: Field::decode(reader)?,
                shape: Field::decode(reader)?,
            }),
            3 => Ok(Self::Fill(Field::decode(reader)?)),
            4 => Ok(Self::HostFunction(Field::decode(reader)?)),
            5 => Ok(Self::EventRecord(Field::decode(reader)?)),
            6 => Ok(Self::EventWait(Field::decode(reader)?)),
            other => Err(DecodeError::InvalidValue(other.into())),
        }
    }
}

impl<'a> Field<'a> for GraphNode<'a> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.after.encode(writer)?;
        self.work.encode(writer)
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { after: Field::decode(reader)?, work: Field::decode(reader)? })
    }
}
