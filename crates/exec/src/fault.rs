//! Which `CUresult` a device's failure is, and what a fault does to the session.

use weft_device::{Device, DeviceError, Fault, FaultKind, LoadError};
use weft_wire::id::ContextId;
use weft_wire::{Status, progress};

use crate::output::Output;
use crate::session::Session;
use crate::stream::{Begun, State, StreamKey, Task};

/// The sticky status of a kernel fault.
#[must_use]
pub fn status_of(kind: FaultKind) -> Status {
    match kind {
        FaultKind::IllegalAddress => Status::ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => Status::MISALIGNED_ADDRESS,
        FaultKind::InvalidAddressSpace => Status::INVALID_ADDRESS_SPACE,
        FaultKind::InvalidPc => Status::INVALID_PC,
        FaultKind::IllegalInstruction => Status::ILLEGAL_INSTRUCTION,
        FaultKind::Trap => Status::LAUNCH_FAILED,
        FaultKind::Device => Status::DEVICE_UNAVAILABLE,
        FaultKind::Assert => Status::ASSERT,
        FaultKind::StackOverflow => Status::HARDWARE_STACK_ERROR,
        FaultKind::Timeout => Status::LAUNCH_TIMEOUT,
    }
}

/// The status of a call that the device could not serve.
pub(crate) fn status_of_device(error: &DeviceError) -> Status {
    match error {
        DeviceError::OutOfMemory { .. } => Status::OUT_OF_MEMORY,
        DeviceError::NotAnAllocation { .. }
        | DeviceError::BadRange { .. }
        | DeviceError::Refused(_) => Status::INVALID_VALUE,
        DeviceError::LaunchResources(_) => Status::LAUNCH_OUT_OF_RESOURCES,
        DeviceError::Unsupported(_) => Status::NOT_SUPPORTED,
        DeviceError::NotExported => Status::INVALID_HANDLE,
        DeviceError::QueueFull => Status::NOT_READY,
        DeviceError::Lost(_) => Status::DEVICE_UNAVAILABLE,
    }
}

/// The status of a module that did not load.
pub(crate) fn status_of_load(error: &LoadError) -> Status {
    match error {
        LoadError::InvalidPtx(_) => Status::INVALID_PTX,
        LoadError::NewerPtx(_) => Status::UNSUPPORTED_PTX_VERSION,
        LoadError::InvalidImage(_) => Status::INVALID_IMAGE,
        LoadError::NoBinary(_) => Status::NO_BINARY_FOR_GPU,
        LoadError::Symbol(_) => Status::SHARED_OBJECT_SYMBOL_NOT_FOUND,
        LoadError::Device(error) => status_of_device(error),
    }
}

impl<D: Device> Session<D> {
    pub(crate) fn report(&mut self, fault: &Fault, out: &mut dyn Output) {
        let Fault { kind, kernel, block, thread, address, line, detail } = fault;
        tracing::error!(
            ?kind,
            kernel,
            ?block,
            ?thread,
            address = address.map(tracing::field::debug),
            line,
            detail,
            "kernel fault"
        );
        self.poison(status_of(*kind), out);
    }

    /// The session is unusable until every context that lives now is gone: drops what is queued and
    /// answers whoever waits. Operations in flight end on their own.
    pub(crate) fn poison(&mut self, status: Status, out: &mut dyn Output) {
        if self.sticky.is_some() {
            return;
        }
        self.sticky = Some(status);
        self.poisoned = self.contexts.union(&self.leaving).copied().collect();
        let code = u64::try_from(status.code()).unwrap_or(0);
        out.notice(progress::NOTICE_FAULT, code);
        for key in self.streams.busy().to_vec() {
            self.drop_queued(key, status, out);
        }
        self.events.forget_waits();
        let waiting = self.waits.take_plain();
        let asking = self.host.clear();
        waiting.into_iter().chain(asking).for_each(|caller| out.reply(caller, status, &[]));
        self.polling.stop();
    }

    fn drop_queued(&mut self, key: StreamKey, status: Status, out: &mut dyn Output) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let queued = std::mem::take(&mut stream.queued);
        for item in queued {
            self.streams.bytes = self.streams.bytes.saturating_sub(item.bytes);
            match &item.task {
                Task::Operation(operation) => {
                    operation.releases.iter().flatten().for_each(|word| out.release(*word));
                }
                Task::Free { address, .. } => self.free_now(*address),
                // Another session may wait for it.
                Task::RecordCell { cell, record } => cell.complete(&mut self.device, *record),
                Task::Nothing
                | Task::Wait(_)
                | Task::WaitValue { .. }
                | Task::WriteValue { .. }
                | Task::WaitCell { .. }
                | Task::Record { .. }
                | Task::Host { .. } => {}
            }
            if let Some(caller) = item.caller {
                out.reply(caller, status, &[]);
            }
            let (seq, counts) = (item.seq, item.counts);
            let begun = Begun { seq, counts, caller: None, state: State::Passed };
            if let Some(stream) = self.streams.get_mut(key) {
                stream.begun.push_back(begun);
            }
        }
    }

    /// A context is gone: the fault with the last one that lived when it happened.
    pub(crate) fn recover(&mut self, context: ContextId, out: &mut dyn Output) {
        let was_poisoned = self.poisoned.remove(&context);
        if was_poisoned && self.poisoned.is_empty() && self.sticky.take().is_some() {
            tracing::info!("the session's contexts were reset after a fault");
            out.notice(progress::NOTICE_FAULT, 0);
        }
    }
}
