//! Modules: images in, symbols out.

use weft_device::{Device, FunctionInfo, LoadedModule, Op};
use weft_wire::codec::encode_to_vec;
use weft_wire::command::{Block, LaunchSpec};
use weft_wire::id::{ContextId, ModuleId, StreamId};
use weft_wire::{Status, container, reply};

use crate::border::{payload_bytes, release_word};
use crate::error::{Reject, Violation};
use crate::fault::status_of_load;
use crate::output::{Caller, Output};
use crate::session::{REPLY_BYTES_MAX, Session};
use crate::stream::{Operation, Task};
use crate::wait::Action;

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: ContextId,
    pub(crate) device: weft_device::ModuleId,
    functions: Vec<FunctionInfo>,
    /// Bytes of its images, for the bound.
    pub(crate) bytes: u64,
}

impl<D: Device> Session<D> {
    pub(crate) fn module_load(
        &mut self,
        (context, id): (ContextId, ModuleId),
        images: &[Block],
        answer: &Block,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        self.context(context)?;
        let bytes = images.iter().try_fold(0_u64, |sum, image| sum.checked_add(image.bytes));
        let small = bytes.filter(|bytes| *bytes <= self.limits.image_bytes);
        let Some(bytes) = small.filter(|_| (1..=self.limits.images).contains(&images.len())) else {
            return Err(Status::INVALID_VALUE.into());
        };
        let is_full = self.module_bytes.saturating_add(bytes) > self.limits.module_bytes;
        if is_full || !self.has_module_room {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        if self.modules.get(id.index, id.generation).is_some() {
            return Err(Violation::Slot { what: "module", index: id.index }.into());
        }
        // The tenant may change shared bytes at any time, so they are copied before they are
        // parsed.
        let mut copies = Vec::with_capacity(images.len());
        for image in images {
            copies.push(self.shared.block(image)?.to_vec());
        }
        let target = self.shared.block(answer)?;
        let unpacked = copies.iter().map(|image| container::unpack(image));
        let unpacked: Result<Vec<Vec<&[u8]>>, _> = unpacked.collect();
        let slices = unpacked.map_err(|_| Status::INVALID_IMAGE)?.concat();
        let outcome = self.device.load(&slices);
        images.iter().for_each(|image| out.release(image.release));
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(error) => {
                out.release(answer.release);
                self.reply_text(caller, status_of_load(&error), &error.to_string(), out);
                return Ok(());
            }
        };
        let room = usize::try_from(answer.bytes.min(self.limits.list_bytes)).unwrap_or(0);
        let encoded = encode_to_vec(&symbols(&loaded), room);
        let written = encoded.ok().filter(|encoded| target.write_from(encoded).is_ok());
        out.release(answer.release);
        let Some(written) = written else {
            self.device.unload(loaded.id);
            let text = format!("the module's symbols do not fit into {room} bytes");
            self.reply_text(caller, Status::OUT_OF_MEMORY, &text, out);
            return Ok(());
        };
        let device = loaded.id;
        let module = Module { context, device, functions: loaded.functions, bytes };
        if self.modules.insert(id.index, id.generation, module).is_err() {
            self.device.unload(device);
            return Err(Violation::Slot { what: "module", index: id.index }.into());
        }
        self.module_bytes += bytes;
        self.answer_with(caller, &reply::Written { bytes: written.len() as u64 }, out);
        Ok(())
    }

    fn reply_text(&mut self, caller: Caller, status: Status, text: &str, out: &mut dyn Output) {
        let end = text.floor_char_boundary(REPLY_BYTES_MAX);
        out.reply(caller, status, text.as_bytes().get(..end).unwrap_or_default());
    }

    /// Unloads after all work accepted so far.
    pub(crate) fn module_unload(
        &mut self,
        id: ModuleId,
        caller: Caller,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let module = self.modules.remove(id.index, id.generation).ok_or(Status::INVALID_HANDLE)?;
        self.module_bytes = self.module_bytes.saturating_sub(module.bytes);
        self.wait_for_all(caller, Action::Unload(module.device), out);
        Ok(())
    }

    pub(crate) fn is_loaded(&self, id: ModuleId) -> bool {
        self.modules.get(id.index, id.generation).is_some()
    }

    /// A checked launch in a context, or in any for the legacy stream. The parameters are copied;
    /// their block is not released here.
    pub(crate) fn launch_op(
        &self,
        spec: &LaunchSpec<'_>,
        context: Option<ContextId>,
    ) -> Result<Op, Reject> {
        let id = spec.module;
        let module = self.modules.get(id.index, id.generation).ok_or(Status::INVALID_HANDLE)?;
        if context.is_some_and(|context| context != module.context) {
            return Err(Status::INVALID_CONTEXT.into());
        }
        let function = usize::try_from(spec.function).ok();
        let function = function.and_then(|index| module.functions.get(index));
        let function = function.ok_or(Status::INVALID_HANDLE)?;
        if payload_bytes(&spec.params) != function.param_bytes.into() {
            return Err(Status::INVALID_VALUE.into());
        }
        let params = self.shared.copied(&spec.params)?;
        Ok(self.launch_limits.check(module.device, function, spec, params)?)
    }

    pub(crate) fn launch(
        &mut self,
        stream: StreamId,
        spec: &LaunchSpec<'_>,
        out: &mut dyn Output,
    ) -> Result<(), Reject> {
        let key = self.stream(stream)?;
        let context = self.streams.get(key).and_then(|stream| stream.context);
        let op = self.launch_op(spec, context)?;
        if let Some(word) = release_word(&spec.params) {
            out.release(word);
        }
        self.push_operation(key, op, [None, None], None);
        Ok(())
    }

    /// Queues a checked operation.
    pub(crate) fn push_operation(
        &mut self,
        stream: crate::stream::StreamKey,
        op: Op,
        releases: [Option<u32>; 2],
        caller: Option<Caller>,
    ) {
        let bytes = kept_bytes(&op);
        let key = crate::launch::cost_key(&op);
        let operation = Box::new(Operation { op, key, releases, spent_ns: 0, done_bytes: 0 });
        self.streams.push(stream, Task::Operation(operation), None, bytes, caller);
    }
}

fn kept_bytes(op: &Op) -> u64 {
    match op {
        Op::Launch(launch) => launch.params.len() as u64,
        Op::Copy { src, .. } => match &src.place {
            weft_device::Place::Inline(bytes) => bytes.len() as u64,
            weft_device::Place::Device(_) | weft_device::Place::Host(_) => 0,
        },
        Op::Fill(_) => 0,
    }
}

fn symbols(loaded: &LoadedModule) -> reply::Module {
    let param =
        |param: &weft_device::ParamInfo| reply::Param { offset: param.offset, size: param.size };
    let function = |function: &FunctionInfo| reply::Function {
        name: function.name.clone(),
        params: function.params.iter().map(param).collect(),
        param_bytes: function.param_bytes,
        shared_bytes: function.shared_bytes,
        local_bytes: function.local_bytes,
        const_bytes: function.const_bytes,
        registers: function.registers,
        max_threads: function.max_threads,
        required_block: function.required_block,
        ptx_version: function.ptx_version,
    };
    let global = |global: &weft_device::GlobalInfo| reply::Global {
        name: global.name.clone(),
        address: global.address,
        bytes: global.bytes,
    };
    reply::Module {
        functions: loaded.functions.iter().map(function).collect(),
        globals: loaded.globals.iter().map(global).collect(),
    }
}
