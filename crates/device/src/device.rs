//! The trait every backend implements.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weft_ring::{Cell, MemoryFile, SharedMemory};

use crate::soft::Geometry;
use crate::{
    BackendConfig, Completion, DeviceInfo, DevicePage, Launch, LoadedModule, ModuleId, MovedRun,
    Op, OpId, QueueId,
};

/// Device memory of one vGPU, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes the vGPU may still allocate.
    pub free: u64,
    /// The vGPU's quota.
    pub total: u64,
}

/// Another session's allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Import {
    /// Where it is mapped; freed like an allocation.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// How many imports of it there were, this one included.
    pub number: u32,
}

/// What [`Device::drive`] left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driven {
    /// No operation is in flight.
    Idle,
    /// Work remains that needs this thread: call again soon.
    Busy,
    /// Nothing to compute before this instant (device clock, ns); completions become due then.
    WaitUntil(u64),
}

/// Why the device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Neither the quota nor the device has room for the request.
    #[error("out of device memory: {requested} bytes asked")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
    },
    /// The address is not the start of a live allocation.
    #[error("address {address:#x} is not the start of an allocation")]
    NotAnAllocation {
        /// The address given.
        address: u64,
    },
    /// A copy or fill touches device addresses that are not mapped.
    #[error("device range {address:#x}+{bytes} is not mapped")]
    BadRange {
        /// First address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The launch asks for more than the device or the kernel allows.
    #[error("launch needs more resources than available: {0}")]
    LaunchResources(String),
    /// This kind of device cannot do it at all.
    #[error("this device does not support {0}")]
    Unsupported(&'static str),
    /// No living session of the vGPU exports memory under this key.
    #[error("no memory of this vGPU is exported under this key")]
    NotExported,
    /// The driver does not take the operation; the device is as it was.
    #[error("the driver refuses it: {0}")]
    Refused(String),
    /// The queue of operations in flight is full; drive the device and try again.
    #[error("device queue is full")]
    QueueFull,
    /// The device is gone (driver error, daemon withdrew it).
    #[error("device lost: {0}")]
    Lost(String),
}

/// Why an image did not load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The text is not PTX that this device understands; the message names line and text.
    #[error("{0}")]
    InvalidPtx(String),
    /// The text is newer than the compiler of this device.
    #[error("{0}")]
    NewerPtx(String),
    /// The image is no PTX, fatbin or cubin at all.
    #[error("{0}")]
    InvalidImage(String),
    /// Only machine code for other devices is in the image.
    #[error("no image for this device: {0}")]
    NoBinary(String),
    /// A symbol stays undefined or is defined twice.
    #[error("{0}")]
    Symbol(String),
    /// Globals do not fit.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The device that a session goes to.
#[derive(Debug)]
pub struct Destination {
    /// What it is.
    pub backend: BackendConfig,
    /// The page that all sessions there share.
    pub page: DevicePage,
    /// The vGPU's frames there.
    pub frames: MemoryFile,
    /// The vGPU's private table there, read-only.
    pub table: Arc<SharedMemory>,
    /// The physical table there, read-only.
    pub physical: Arc<SharedMemory>,
    /// How memory is divided there.
    pub geometry: Geometry,
    /// Where the frames of the vGPU's sessions go, by the first frame.
    pub moved: Vec<MovedRun>,
}

/// Addresses and memory of a session that are taken apart from each other. All of it is in whole
/// pages, which the caller sees to, and ends with the session.
pub trait VirtualMemory {
    /// Takes addresses that nothing is mapped at, at a multiple of `alignment` (a power of two).
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] when so many are not left.
    fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, DeviceError>;

    /// Gives them back.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`] when they do not begin at `address`;
    /// [`DeviceError::Refused`] while something is mapped there.
    fn unreserve(&mut self, address: u64) -> Result<(), DeviceError>;

    /// Takes zeroed memory; the number that it is known by.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create(&mut self, bytes: u64) -> Result<u64, DeviceError>;

    /// Gives it back when it is mapped nowhere, and maps it nowhere any more.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`] for an unknown number.
    fn release(&mut self, memory: u64) -> Result<(), DeviceError>;

    /// Maps all of it at reserved addresses.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`] for an unknown number; [`DeviceError::BadRange`] for
    /// addresses that are not reserved, or where something is mapped.
    fn map_memory(&mut self, address: u64, memory: u64) -> Result<(), DeviceError>;

    /// Unmaps what is mapped from `address` on. Operations in flight no longer use it.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`] when no mapping begins there.
    fn unmap_memory(&mut self, address: u64) -> Result<(), DeviceError>;
}

/// One step of a swap plan, as far as it is one session's: a part is a slot's worth of its device
/// addresses. Which memory of the device a part has while it is there is the device's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapStep {
    /// What the part holds goes to host memory, and its memory on the device is given back.
    Save {
        /// Which part.
        part: u64,
    },
    /// It comes back, under the addresses that it had.
    Bring {
        /// Which part.
        part: u64,
    },
}

/// Where a part of a session's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartUse {
    /// Which part.
    pub part: u64,
    /// Bytes of it that are on the device.
    pub resident_bytes: u64,
    /// Bytes of it that are in host memory, or nowhere yet.
    pub saved_bytes: u64,
}

/// A swap plan ended before its last step. Nothing is lost: what could not be saved is on the
/// device, what could not be brought is in host memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step {step} of a swap plan: {error}")]
pub struct SwapError {
    /// Which step failed; those before it are done.
    pub step: usize,
    /// Why: [`DeviceError::OutOfMemory`] when the host has no memory to save to, or the device none
    /// to bring to; [`DeviceError::Refused`] while something is in flight; [`DeviceError::Lost`].
    pub error: DeviceError,
}

/// Memory that leaves the device and comes back while its addresses stay: what executes swap plans
/// on devices whose driver moves memory.
pub trait Swapping {
    /// Bytes of addresses in a part.
    fn part_bytes(&self) -> u64;

    /// The parts that have memory, by number.
    fn parts(&self) -> Vec<PartUse>;

    /// Carries steps out in order. A part that is where the step wants it is left alone. Returns
    /// the bytes copied.
    ///
    /// # Errors
    /// [`SwapError`], at the first step that fails.
    fn swap(&mut self, steps: &[SwapStep]) -> Result<u64, SwapError>;

    /// Saves parts, the last ones first, until so many bytes are off the device, or all; who keeps
    /// the account ([`crate::FrameSource::holds`]) is told what is left there. Returns the bytes
    /// copied.
    ///
    /// # Errors
    /// [`SwapError`], at the first part that fails.
    fn save_some(&mut self, bytes: u64) -> Result<u64, SwapError>;
}

/// One session's view of a device: its context, memory, modules and queue of operations.
///
/// All calls come from one thread. Operations started on one queue finish in order. The caller
/// starts an operation only when everything it depends on has completed or precedes it in the same
/// queue.
pub trait Device: std::fmt::Debug {
    /// Fixed properties.
    fn info(&self) -> &DeviceInfo;

    /// The device clock, in ns. `CLOCK_MONOTONIC` on the software device.
    fn now_ns(&self) -> u64;

    /// Memory use and quota of the vGPU (not of this session alone).
    fn memory_use(&self) -> MemoryUse;

    /// Allocates at least `bytes` (> 0) and returns the device address, aligned to at least 512.
    fn alloc(&mut self, bytes: u64) -> Result<u64, DeviceError>;

    /// Frees an allocation. Operations in flight must no longer use it.
    fn free(&mut self, address: u64) -> Result<(), DeviceError>;

    /// Addresses and memory apart from each other, where sessions may have that.
    fn virtual_memory(&mut self) -> Option<&mut dyn VirtualMemory> {
        None
    }

    /// Executes swap plans, where the device's driver can move memory under its addresses. An
    /// operation that starts while parts are in host memory has them brought first.
    fn swapping(&mut self) -> Option<&mut dyn Swapping> {
        None
    }

    /// Links and loads images as one module. Several images are linked together.
    fn load(&mut self, images: &[&[u8]]) -> Result<LoadedModule, LoadError>;

    /// Unloads a module; unknown ids are ignored.
    fn unload(&mut self, module: ModuleId);

    /// Puts an operation on a queue. Copies and fills were range-checked by
    /// [`Device::check_range`].
    ///
    /// After about `max_ns` of device time it stops, as [`crate::Outcome::Partial`]: a launch
    /// between blocks, of which at least one runs, a copy or a fill between pieces. A device that
    /// cannot stop one does all of it.
    fn start(&mut self, queue: QueueId, op: Op, max_ns: Option<u64>) -> Result<OpId, DeviceError>;

    /// The same, of an operation of which nobody asks when it ends, but when the next one of its
    /// queue does. A device that pays for telling ends may tell both together, once that one has
    /// ended or nothing follows, and the time that they took in equal parts.
    fn start_open(&mut self, queue: QueueId, op: Op) -> Result<OpId, DeviceError> {
        self.start(queue, op, None)
    }

    /// Nothing more follows what was started so: its end is told by itself.
    fn close(&mut self) {}

    /// Whether `address..address + bytes` is mapped device memory.
    fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Reads the 32-bit (or, if `wide`, 64-bit) word at a naturally aligned device address: what a
    /// stream that waits for a value looks at. Sees everything that completed operations wrote.
    fn read_word(&mut self, address: u64, wide: bool) -> Result<u64, DeviceError>;

    /// Writes the word, whole. Operations started later see it.
    fn write_word(&mut self, address: u64, value: u64, wide: bool) -> Result<(), DeviceError>;

    /// The aligned 64-bit word at `address`, for what several sessions change at once.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] by devices whose memory sessions do not share;
    /// [`DeviceError::BadRange`] when it is not mapped or not aligned.
    fn shared_word(&mut self, _address: u64) -> Result<Cell<AtomicU64>, DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }

    /// Executes for at most about `slice_ns` of the calling thread's time and says what remains.
    fn drive(&mut self, slice_ns: u64) -> Driven;

    /// Takes the next completion, in the order operations finished.
    fn poll(&mut self) -> Option<Completion>;

    /// Ends the running operation (an endless kernel) as [`crate::FaultKind::Timeout`].
    fn abort(&mut self, op: OpId);

    /// Takes what kernels printed since the last call. Output is bounded; what does not fit is
    /// lost, as on a GPU.
    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Thread blocks of a launch that execute together, so that a time limit stops it between two
    /// such waves; nothing if it is not stopped before its end.
    fn wave(&self, _launch: &Launch) -> Option<u64> {
        self.info().capabilities.slice_blocks.then_some(1)
    }

    /// Modelled or predicted device time of an operation in ns, if the device knows it beforehand.
    fn estimate_ns(&self, op: &Op) -> Option<u64>;

    /// Device time that the operation in execution has occupied so far, in ns, if the device knows
    /// it better than by how long it was driven: where other load takes the processor, say.
    fn occupied_ns(&self) -> Option<u64> {
        None
    }

    /// The operation that is submitted next was ready at `since_ns` of the device's clock, when the
    /// one before it ended: what it takes to launch it is a part of it. `None` takes that back: the
    /// device was not kept for it. For devices whose launches are the worker's own work.
    fn launches_since(&mut self, _since_ns: Option<u64>) {}

    /// Whether work that cannot be ended occupies the device: then the process must end.
    fn is_stuck(&self) -> bool {
        false
    }

    /// Whether what executes on the device does so on the calling thread's processor, as far as is
    /// known: then whoever else polls there keeps it from that.
    fn executes_here(&self) -> bool {
        false
    }

    /// The tenant has taken a piece of the pinned window: only such pieces are used. `address` is
    /// the tenant's.
    fn pin_host(&mut self, _address: u64, _bytes: u64) {}

    /// It has given that back. Operations in flight no longer use it.
    fn unpin_host(&mut self, _address: u64, _bytes: u64) {}

    /// The tenant's pages from `host` on are those of the pinned window at `address` (the
    /// tenant's): kernels may use either address.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]; [`DeviceError::BadRange`] for pages that are mapped already or
    /// outside of the window; [`DeviceError::OutOfMemory`] beyond a bound on such ranges.
    fn map_host(&mut self, _host: u64, _address: u64, _bytes: u64) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("host memory that is registered"))
    }

    /// They are no longer. Operations in flight no longer use them.
    ///
    /// # Errors
    /// [`DeviceError::NotAnAllocation`] when nothing begins at `host`.
    fn unmap_host(&mut self, host: u64) -> Result<(), DeviceError> {
        Err(DeviceError::NotAnAllocation { address: host })
    }

    /// Whole pages behind the pinned window become managed memory: paid for and placed like the
    /// device's own, at `address` for kernels, too.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] unless [`crate::Capabilities::managed`];
    /// [`DeviceError::BadRange`] for pages that are managed already or not behind the window;
    /// [`DeviceError::OutOfMemory`].
    fn manage(&mut self, _address: u64, _bytes: u64) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("managed memory of its own"))
    }

    /// Managed memory there is going to be used, as far as there is any. Freed by [`Self::free`].
    fn expect(&mut self, _address: u64, _bytes: u64) {}

    /// Copies what the session has in the device's memory to another device of its kind, which it
    /// is to go to. Nothing may be in flight, and nothing else may change until
    /// [`Self::end_move`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`]; [`DeviceError::Refused`] while something is in flight, or for
    /// a device that it cannot go to. It stays where it is then.
    fn begin_move(&mut self, _to: Destination) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("sessions that move"))
    }

    /// Goes to the device that was copied to, or stays and forgets the copy. Addresses, modules and
    /// handles stay as they are.
    fn end_move(&mut self, _goes: bool) {}

    /// Lets other sessions of the vGPU map the allocation that begins at `address`; the key that
    /// they need.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`], [`DeviceError::NotAnAllocation`].
    fn export(&mut self, _address: u64) -> Result<[u8; 16], DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }

    /// Maps an allocation that another session of the vGPU exported.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`], [`DeviceError::NotExported`], [`DeviceError::OutOfMemory`]
    /// when there are no addresses left.
    fn import(&mut self, _key: [u8; 16]) -> Result<Import, DeviceError> {
        Err(DeviceError::Unsupported("memory that several sessions use"))
    }
}
