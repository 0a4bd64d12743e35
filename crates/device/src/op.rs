//! Operations a device executes, and what comes back.

use weft_ring::SharedSpan;

/// A loaded module, unique within one `Device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// An operation in flight, unique within one `Device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// An in-order queue of the device (a hardware stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// One operation of the device's engines.
#[derive(Debug, Clone)]
pub enum Op {
    /// Run a kernel, or the rest of one.
    Launch(Launch),
    /// Copy between any two places.
    Copy {
        /// Where to.
        dst: Endpoint,
        /// Where from.
        src: Endpoint,
        /// How much.
        shape: CopyShape,
    },
    /// Fill device memory with a pattern.
    Fill(Fill),
}

/// A kernel launch, possibly resumed at a later thread block.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Module that holds the kernel.
    pub module: ModuleId,
    /// Index into [`LoadedModule::functions`].
    pub function: u32,
    /// Thread blocks in x, y, z; each ≥ 1.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z; each ≥ 1.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// The parameter block, laid out as [`FunctionInfo::params`] says.
    pub params: Vec<u8>,
    /// First thread block to run, in linear order (x fastest).
    pub first_block: u64,
}

/// A row-wise copy: `depth` slices of `height` rows of `width` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyShape {
    /// Bytes per row.
    pub width: u64,
    /// Rows per slice; 1 for a linear copy.
    pub height: u64,
    /// Slices; 1 for a linear or two-dimensional copy.
    pub depth: u64,
}

/// One side of a copy.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Where the first byte lies.
    pub place: Place,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// Bytes from one slice to the next.
    pub slice: u64,
}

/// A place bytes can be copied from or to.
#[derive(Debug, Clone)]
pub enum Place {
    /// A device address.
    Device(u64),
    /// Memory shared with the tenant: arena block or pinned window.
    Host(SharedSpan),
    /// Bytes that travelled inside the command. Source only.
    Inline(Vec<u8>),
}

/// A fill of `height` rows of `width` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// First device address, aligned to the element size.
    pub address: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// Elements per row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Element size in bytes: 1, 2 or 4.
    pub element: u8,
    /// The element's bits.
    pub value: u32,
}

/// A finished (piece of an) operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub op: OpId,
    /// How it ended.
    pub outcome: Outcome,
    /// Device clock when the device began it, in ns.
    pub start_ns: u64,
    /// Device clock when it ended, in ns. `end_ns − start_ns` is the device time it occupied.
    pub end_ns: u64,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// It stopped at its time limit, to go on later.
    Partial {
        /// A launch: the first thread block that has not run. A copy or a fill: so many of its
        /// bytes are done, in the order of rows, then slices; a fill's are whole elements.
        reached: u64,
    },
    /// The kernel misbehaved; the context is unusable from here on.
    Fault(Box<Fault>),
}

/// What a kernel did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// An address that is not mapped, or not for this access.
    IllegalAddress,
    /// An address not aligned to the access.
    MisalignedAddress,
    /// An operation on the wrong state space.
    InvalidAddressSpace,
    /// A jump or call to no function.
    InvalidPc,
    /// An instruction the device cannot execute in this state.
    IllegalInstruction,
    /// `trap`, a failed assertion.
    Trap,
    /// A device-side assertion (`__assertfail`).
    Assert,
    /// Local memory or call depth exhausted.
    StackOverflow,
    /// Killed at the time limit for one kernel.
    Timeout,
    /// The device itself failed.
    Device,
}

/// A fault with everything the node's log should say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Kernel name.
    pub kernel: String,
    /// Thread block (x, y, z).
    pub block: [u32; 3],
    /// Thread in the block (x, y, z).
    pub thread: [u32; 3],
    /// The address, where one is involved.
    pub address: Option<u64>,
    /// Line of the PTX text, 1-based; 0 if unknown.
    pub line: u32,
    /// The instruction or message.
    pub detail: String,
}

/// A module on the device, and its symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedModule {
    /// Its id.
    pub id: ModuleId,
    /// Kernels, in the order of [`Launch::function`].
    pub functions: Vec<FunctionInfo>,
    /// Global and constant variables.
    pub globals: Vec<GlobalInfo>,
}

/// What a tenant may ask of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Entry name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Bytes of the whole parameter block.
    pub param_bytes: u32,
    /// Static shared memory in bytes.
    pub shared_bytes: u32,
    /// Local memory per thread in bytes.
    pub local_bytes: u32,
    /// Constant memory in bytes.
    pub const_bytes: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Most threads a block of this kernel may have.
    pub max_threads: u32,
    /// `.reqntid`, if given.
    pub required_block: Option<[u32; 3]>,
    /// PTX version × 10.
    pub ptx_version: u32,
}

/// One kernel parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamInfo {
    /// Offset in the parameter block, in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// A module's global or constant variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalInfo {
    /// Symbol name.
    pub name: String,
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}
