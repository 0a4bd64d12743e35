//! Bodies of answers to synchronous commands.

use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::message;

message! {
    /// A device address.
    pub struct Address {
        /// The address.
        address: u64,
    }
}
message! {
    /// Memory without an address.
    pub struct Physical {
        /// The session's number for it.
        memory: u64,
    }
}
message! {
    /// What an exported allocation is known by in its vGPU.
    pub struct MemoryKey {
        /// Not to be guessed.
        key: [u8; 16],
    }
}
message! {
    /// Another session's allocation.
    pub struct Imported {
        /// Its address in this session.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
        /// How many sessions have mapped it so far, this one included.
        number: u32,
    }
}
message! {
    /// Device memory of the vGPU, in bytes.
    pub struct MemoryUse {
        /// Still free.
        free: u64,
        /// The quota.
        total: u64,
    }
}
message! {
    /// How many bytes were written into the answer block that the command named.
    pub struct Written {
        /// Bytes written.
        bytes: u64,
    }
}
message! {
    /// Time between two events.
    pub struct Elapsed {
        /// Nanoseconds; negative when `end` came first.
        ns: i64,
    }
}
message! {
    /// A host function that is due.
    pub struct HostCall {
        /// The client's number for it.
        call: u64,
    }
}
message! {
    /// One kernel parameter.
    pub struct Param {
        /// Offset in the parameter block, in bytes.
        offset: u32,
        /// Size in bytes.
        size: u32,
    }
}
message! {
    /// A kernel of a module: all that `cuFuncGetAttribute` and a launch need.
    pub struct Function {
        /// Entry name.
        name: String,
        /// Parameters in order.
        params: Vec<Param>,
        /// Bytes of the parameter block.
        param_bytes: u32,
        /// Static shared memory in bytes.
        shared_bytes: u32,
        /// Local memory per thread in bytes.
        local_bytes: u32,
        /// Constant memory in bytes.
        const_bytes: u32,
        /// Registers per thread.
        registers: u32,
        /// Most threads per block.
        max_threads: u32,
        /// Threads per block that a launch must have in x, y, z (`.reqntid`).
        required_block: Option<[u32; 3]>,
        /// PTX version × 10.
        ptx_version: u32,
    }
}
message! {
    /// A variable of a module.
    pub struct Global {
        /// Symbol name.
        name: String,
        /// Device address.
        address: u64,
        /// Size in bytes.
        bytes: u64,
    }
}
message! {
    /// The symbols of a loaded module.
    pub struct Module {
        /// Kernels; a launch names one by its index here.
        functions: Vec<Function>,
        /// Variables.
        globals: Vec<Global>,
    }
}
