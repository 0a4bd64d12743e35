//! What the software GPU reports of itself.

use std::collections::BTreeMap;

use crate::{Attribute, Capabilities, DeviceInfo};

/// Most threads of a block.
pub(crate) const THREADS_MAX: u32 = 1024;
/// Most shared memory of a block (with opt-in), in bytes.
pub(crate) const SHARED_BYTES_OPTIN: u32 = 64 << 10;
/// A block's shared memory is handed out in units of this many bytes (CUDA C Programming Guide,
/// compute capability 7.5), and only behind them does an access fault.
pub(crate) const SHARED_GRANULE_BYTES: u32 = 256;
/// Multiprocessors that it pretends to have.
const MULTIPROCESSORS: i32 = 16;

/// `CUdevice_attribute` numbers and values of a device of compute capability 7.5. Attributes that
/// are not listed are 0.
const ATTRIBUTES: &[(Attribute, i32)] = &[
    (1, 1024),       // MAX_THREADS_PER_BLOCK
    (2, 1024),       // MAX_BLOCK_DIM_X
    (3, 1024),       // MAX_BLOCK_DIM_Y
    (4, 64),         // MAX_BLOCK_DIM_Z
    (5, i32::MAX),   // MAX_GRID_DIM_X
    (6, 65_535),     // MAX_GRID_DIM_Y
    (7, 65_535),     // MAX_GRID_DIM_Z
    (8, 48 << 10),   // MAX_SHARED_MEMORY_PER_BLOCK
    (9, 64 << 10),   // TOTAL_CONSTANT_MEMORY
    (10, 32),        // WARP_SIZE
    (11, i32::MAX),  // MAX_PITCH
    (12, 65_536),    // MAX_REGISTERS_PER_BLOCK
    (13, 1_000_000), // CLOCK_RATE in kHz: %clock counts nanoseconds
    (14, 512),       // TEXTURE_ALIGNMENT
    (15, 1),         // GPU_OVERLAP
    (16, MULTIPROCESSORS),
    (17, 0),         // KERNEL_EXEC_TIMEOUT
    (18, 0),         // INTEGRATED
    (19, 1),         // CAN_MAP_HOST_MEMORY
    (20, 0),         // COMPUTE_MODE: default
    (30, 512),       // SURFACE_ALIGNMENT
    (31, 1),         // CONCURRENT_KERNELS
    (32, 0),         // ECC_ENABLED
    (33, 0),         // PCI_BUS_ID
    (34, 0),         // PCI_DEVICE_ID
    (36, 1_000_000), // MEMORY_CLOCK_RATE in kHz
    (37, 64),        // GLOBAL_MEMORY_BUS_WIDTH
    (38, 4 << 20),   // L2_CACHE_SIZE
    (39, 1024),      // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 1),         // ASYNC_ENGINE_COUNT
    (41, 1),         // UNIFIED_ADDRESSING
    (75, 7),         // COMPUTE_CAPABILITY_MAJOR
    (76, 5),         // COMPUTE_CAPABILITY_MINOR
    (78, 1),         // STREAM_PRIORITIES_SUPPORTED
    (79, 1),         // GLOBAL_L1_CACHE_SUPPORTED
    (80, 1),         // LOCAL_L1_CACHE_SUPPORTED
    (81, 64 << 10),  // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    (82, 65_536),    // MAX_REGISTERS_PER_MULTIPROCESSOR
    (83, 1),         // MANAGED_MEMORY
    (86, 0),         // HOST_NATIVE_ATOMIC_SUPPORTED
    (87, 2),         // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    (89, 1),         // CONCURRENT_MANAGED_ACCESS
    (91, 1),         // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (92, 1),         // CAN_USE_STREAM_MEM_OPS_V1
    (93, 1),         // CAN_USE_64_BIT_STREAM_MEM_OPS_V1
    (94, 1),         // CAN_USE_STREAM_WAIT_VALUE_NOR_V1
    (95, 1),         // COOPERATIVE_LAUNCH
    (97, 64 << 10),  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    (99, 1),         // HOST_REGISTER_SUPPORTED
    (102, 1),        // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (106, 16),       // MAX_BLOCKS_PER_MULTIPROCESSOR
    (115, 1),        // MEMORY_POOLS_SUPPORTED
    (122, 1),        // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),        // CAN_USE_STREAM_WAIT_VALUE_NOR
];

/// The software GPU with `memory_bytes` of memory.
#[must_use]
pub fn device_info(memory_bytes: u64) -> DeviceInfo {
    DeviceInfo {
        name: "Weft Software GPU".to_owned(),
        backend: "soft".to_owned(),
        uuid: *b"weft software gp",
        compute_capability: (7, 5),
        memory_bytes,
        attributes: ATTRIBUTES.iter().copied().collect::<BTreeMap<_, _>>(),
        capabilities: Capabilities {
            slice_blocks: true,
            cancel: true,
            preemptive: false,
            runs_ahead: false,
            managed: true,
        },
    }
}
