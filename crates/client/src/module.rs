//! Modules: loaded once on the worker, looked up in a local shadow of their symbols.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use weft_wire::codec::decode_all;
use weft_wire::id::ModuleId;
use weft_wire::reply::{self, Written};
use weft_wire::{Command, Status, container};

use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::function::FunctionState;
use crate::handle::{Context, Function, Module};
use crate::pointer::{Range, RangeKind};
use crate::session::Session;
use crate::table::Removed;

/// Room for a module's symbols at the first try and at the second, in bytes.
const ANSWER_SIZES: [usize; 2] = [256 << 10, 16 << 20];

/// A loaded module.
#[derive(Debug)]
pub(crate) struct ModuleState {
    pub(crate) handle: Module,
    pub(crate) id: ModuleId,
    pub(crate) context: Context,
    /// Kernels in the worker's order, which a launch names them by.
    pub(crate) functions: Vec<Arc<reply::Function>>,
    by_name: BTreeMap<String, u32>,
    globals: BTreeMap<String, (u64, u64)>,
    /// Handles given out so far, by index.
    handles: Mutex<BTreeMap<u32, Function>>,
}

/// Why a module did not load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadFailure {
    /// The code for the application.
    pub status: Status,
    /// What the compiler says, for the JIT error log; may be empty.
    pub log: String,
}

impl From<Status> for LoadFailure {
    fn from(status: Status) -> Self {
        Self { status, log: String::new() }
    }
}

impl Client {
    /// Loads an image (PTX text without its final zero, fatbin, cubin, or what
    /// [`Client::link_complete`] made) into the current context.
    ///
    /// # Errors
    /// [`LoadFailure`] with the code and the compiler's log.
    pub fn module_load(&self, image: &[u8]) -> Result<Module, LoadFailure> {
        self.module_load_limited(image, None)
    }

    /// The same; threads of its kernels have at most so many registers.
    ///
    /// # Errors
    /// As [`Self::module_load`].
    pub fn module_load_limited(
        &self,
        image: &[u8],
        registers: Option<u32>,
    ) -> Result<Module, LoadFailure> {
        let context = self.current()?;
        let images = unpack(image)?;
        let registers = least_registers(image, registers);
        self.load_images(&context, &images, registers).map(|module| module.handle)
    }

    pub(crate) fn load_images(
        &self,
        context: &ContextState,
        images: &[&[u8]],
        registers: Option<u32>,
    ) -> Result<Arc<ModuleState>, LoadFailure> {
        let placeholder = |slot: crate::table::SlotId, handle| ModuleState {
            handle,
            id: ModuleId { index: slot.index, generation: slot.generation },
            context: context.handle,
            functions: Vec::new(),
            by_name: BTreeMap::new(),
            globals: BTreeMap::new(),
            handles: Mutex::default(),
        };
        let session = &context.session;
        let reserved = self.modules.insert(session.ordinal, placeholder);
        let (handle, empty) = reserved.map_err(|_| Status::OUT_OF_MEMORY)?;
        let loaded = session.load_as(context, empty.id, images);
        let mut symbols = match loaded {
            Ok(symbols) => symbols,
            Err(failure) => {
                self.modules.remove(handle);
                return Err(failure);
            }
        };
        for function in &mut symbols.functions {
            // The device has as many as a kernel needs; what a compiler would have kept in local
            // memory only shows here.
            function.registers = function.registers.min(registers.unwrap_or(u32::MAX));
        }
        let module = Arc::new(with_symbols(handle, empty.id, context.handle, symbols));
        for (start, bytes) in module.globals.values().copied().filter(|(_, bytes)| *bytes > 0) {
            // A variable that host memory shadows can still be reached by its name and by kernels.
            if !session.keeps_global(start, bytes) {
                continue;
            }
            let kind = RangeKind::Global(handle);
            let number = self.number();
            self.ranges.insert(Range { start, bytes, kind, context: context.handle, number });
        }
        self.modules.replace(handle, Arc::clone(&module));
        Ok(module)
    }

    /// Unloads a module.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module_unload(&self, module: Module) -> Result<(), Status> {
        let state = self.modules.get(module).ok_or(Status::INVALID_HANDLE)?;
        let removed = self.forget_module(&state).ok_or(Status::INVALID_HANDLE)?;
        self.home(removed.context)?.call(&Command::ModuleUnload { module: removed.id })
    }

    /// Takes out a module's local objects.
    pub(crate) fn forget_module(&self, module: &ModuleState) -> Option<Removed<'_, ModuleState>> {
        for function in lock(&module.handles).values() {
            self.functions.remove(*function);
        }
        self.ranges.forget_module(module.handle);
        self.modules.remove(module.handle)
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `NOT_FOUND`.
    pub fn module_function(&self, module: Module, name: &str) -> Result<Function, Status> {
        let module = self.modules.get(module).ok_or(Status::INVALID_HANDLE)?;
        let index = *module.by_name.get(name).ok_or(Status::NOT_FOUND)?;
        self.function_of(&module, index)
    }

    /// The handle of a module's kernel; the same one every time.
    pub(crate) fn function_of(
        &self,
        module: &Arc<ModuleState>,
        index: u32,
    ) -> Result<Function, Status> {
        let mut handles = lock(&module.handles);
        if let Some(function) = handles.get(&index) {
            return Ok(*function);
        }
        let at = usize::try_from(index).map_err(|_| Status::NOT_FOUND)?;
        let info = module.functions.get(at).ok_or(Status::NOT_FOUND)?;
        let made = self.functions.insert(0, |_, _: Function| {
            FunctionState::new(module.handle, module.id, index, module.context, Arc::clone(info))
        });
        let (handle, _) = made.map_err(|_| Status::OUT_OF_MEMORY)?;
        handles.insert(index, handle);
        Ok(handle)
    }

    /// A variable's address and size in bytes.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `NOT_FOUND`.
    pub fn module_global(&self, module: Module, name: &str) -> Result<(u64, u64), Status> {
        let module = self.modules.get(module).ok_or(Status::INVALID_HANDLE)?;
        module.globals.get(name).copied().ok_or(Status::NOT_FOUND)
    }

    /// How many kernels a module has.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module_function_count(&self, module: Module) -> Result<u32, Status> {
        let module = self.modules.get(module).ok_or(Status::INVALID_HANDLE)?;
        Ok(u32::try_from(module.functions.len()).unwrap_or(u32::MAX))
    }

    /// Handles of the first `most` kernels of a module.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module_functions(&self, module: Module, most: u32) -> Result<Vec<Function>, Status> {
        let state = self.modules.get(module).ok_or(Status::INVALID_HANDLE)?;
        let count = self.module_function_count(module)?.min(most);
        (0..count).map(|index| self.function_of(&state, index)).collect()
    }
}

impl Session {
    fn load_as(
        &self,
        context: &ContextState,
        module: ModuleId,
        images: &[&[u8]],
    ) -> Result<reply::Module, LoadFailure> {
        let mut failure = LoadFailure::from(Status::OUT_OF_MEMORY);
        for size in ANSWER_SIZES {
            let blocks = self.image_blocks(images)?;
            let answer = self.block(size)?;
            let command = Command::ModuleLoad {
                context: context.id,
                module,
                images: blocks.iter().map(crate::staging::named).collect(),
                answer: crate::staging::named(&answer.reference()),
            };
            let mut body = vec![0; weft_ring::MAX_ANSWER];
            let answered = self.call_into(&command, &mut body)?;
            body.truncate(answered.len);
            if answered.status == Status::SUCCESS {
                return read_symbols(&answer, &body).map_err(LoadFailure::from);
            }
            failure = LoadFailure {
                status: answered.status,
                log: String::from_utf8_lossy(&body).into_owned(),
            };
            // Symbols that did not fit are worth a second try with more room.
            if failure.status != Status::OUT_OF_MEMORY {
                break;
            }
        }
        Err(failure)
    }
}

/// The images of a linked one, or the image itself.
pub(crate) fn unpack(image: &[u8]) -> Result<Vec<&[u8]>, Status> {
    container::unpack(image).map_err(|_| Status::INVALID_IMAGE)
}

/// The limit of a load and that of the linker before it.
pub(crate) fn least_registers(image: &[u8], registers: Option<u32>) -> Option<u32> {
    let registers = registers.filter(|registers| *registers > 0);
    container::registers(image).into_iter().chain(registers).min()
}

fn read_symbols(answer: &weft_ring::Block, body: &[u8]) -> Result<reply::Module, Status> {
    let Written { bytes } = decode_all(body).map_err(|_| Status::UNKNOWN)?;
    let length = usize::try_from(bytes).map_err(|_| Status::UNKNOWN)?;
    let span = answer.span().and_then(|span| span.part(0, length));
    let symbols = span.map_err(|_| Status::UNKNOWN)?.to_vec();
    decode_all(&symbols).map_err(|_| Status::UNKNOWN)
}

fn with_symbols(
    handle: Module,
    id: ModuleId,
    context: Context,
    symbols: reply::Module,
) -> ModuleState {
    let functions: Vec<_> = symbols.functions.into_iter().map(Arc::new).collect();
    let names = functions.iter().map(|function| function.name.clone());
    let by_name = names.zip(0_u32..).collect();
    let globals = symbols.globals.into_iter().map(|g| (g.name, (g.address, g.bytes))).collect();
    ModuleState { handle, id, context, functions, by_name, globals, handles: Mutex::default() }
}
