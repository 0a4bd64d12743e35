//! Which `CUresult` a device's failure is.

use weft_device::{DeviceError, FaultKind, LoadError};
use weft_wire::Status;

/// The sticky status of a kernel fault.
#[must_use]
pub fn status_of(kind: FaultKind) -> Status {
    match kind {
        FaultKind::IllegalAddress => Status::ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => Status::MISALIGNED_ADDRESS,
        FaultKind::InvalidAddressSpace => Status::INVALID_ADDRESS_SPACE,
        FaultKind::InvalidPc => Status::INVALID_PC,
        FaultKind::IllegalInstruction => Status::ILLEGAL_INSTRUCTION,
        FaultKind::Trap | FaultKind::Device => Status::LAUNCH_FAILED,
        FaultKind::Assert => Status::ASSERT,
        FaultKind::StackOverflow => Status::HARDWARE_STACK_ERROR,
        FaultKind::Timeout => Status::LAUNCH_TIMEOUT,
    }
}

/// The status of a call that the device could not serve.
pub(crate) fn status_of_device(error: &DeviceError) -> Status {
    match error {
        DeviceError::OutOfMemory { .. } => Status::OUT_OF_MEMORY,
        DeviceError::NotAnAllocation { .. } | DeviceError::BadRange { .. } => Status::INVALID_VALUE,
        DeviceError::LaunchResources(_) => Status::LAUNCH_OUT_OF_RESOURCES,
        DeviceError::QueueFull => Status::NOT_READY,
        DeviceError::Lost(_) => Status::DEVICE_UNAVAILABLE,
    }
}

/// The status of a module that did not load.
pub(crate) fn status_of_load(error: &LoadError) -> Status {
    match error {
        LoadError::InvalidPtx(_) => Status::INVALID_PTX,
        LoadError::InvalidImage(_) => Status::INVALID_IMAGE,
        LoadError::NoBinary(_) => Status::NO_BINARY_FOR_GPU,
        LoadError::Symbol(_) => Status::SHARED_OBJECT_SYMBOL_NOT_FOUND,
        LoadError::Device(error) => status_of_device(error),
    }
}
