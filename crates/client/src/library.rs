//! Libraries: images that are loaded into each context when it first uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use weft_wire::Status;

use crate::client::{Client, lock};
use crate::context::ContextState;
use crate::function::KernelState;
use crate::handle::{Context, Function, Kernel, Library, Module};
use crate::module::{LoadFailure, ModuleState, least_registers, unpack};

/// A library.
#[derive(Debug)]
pub(crate) struct LibraryState {
    handle: Library,
    images: Vec<Vec<u8>>,
    /// Most registers of a thread.
    registers: Option<u32>,
    /// The module in each context that used the library.
    modules: Mutex<BTreeMap<Context, Module>>,
    /// Handles given out so far.
    kernels: Mutex<BTreeMap<String, Kernel>>,
    /// The primary context, once the library was used without a current one: retained until the
    /// library is unloaded.
    retained: Mutex<Option<Context>>,
}

impl Client {
    /// Loads an image as a library. It is loaded into the current context, or the primary one where
    /// there is none, so that a bad image is reported here.
    ///
    /// # Errors
    /// [`LoadFailure`].
    pub fn library_load(&self, bytes: &[u8]) -> Result<Library, LoadFailure> {
        self.library_load_limited(bytes, None)
    }

    /// The same; threads of its kernels have at most so many registers.
    ///
    /// # Errors
    /// [`LoadFailure`].
    pub fn library_load_limited(
        &self,
        bytes: &[u8],
        registers: Option<u32>,
    ) -> Result<Library, LoadFailure> {
        let registers = least_registers(bytes, registers);
        let images = unpack(bytes)?.into_iter().map(<[u8]>::to_vec).collect();
        let made = self.libraries.insert(0, |_, handle| LibraryState {
            handle,
            images,
            registers,
            modules: Mutex::default(),
            kernels: Mutex::default(),
            retained: Mutex::default(),
        });
        let (handle, library) = made.map_err(|_| Status::OUT_OF_MEMORY)?;
        let context = self.context_for(&library).map_err(LoadFailure::from);
        let loaded = context.and_then(|context| self.library_module_in(&library, &context));
        if let Err(failure) = loaded {
            self.libraries.remove(handle);
            self.release_primary_of(&library)?;
            return Err(failure);
        }
        Ok(handle)
    }

    /// The current context, or the primary one.
    fn context_for(&self, library: &LibraryState) -> Result<Arc<ContextState>, Status> {
        match self.current() {
            Err(Status::INVALID_CONTEXT) => {
                let mut retained = lock(&library.retained);
                let primary = self.primary_retain(0)?;
                // One retain is enough. A reset may have taken the earlier one along.
                if retained.replace(primary) == Some(primary) {
                    self.primary_release_of(primary)?;
                }
                self.context(primary)
            }
            other => other,
        }
    }

    fn release_primary_of(&self, library: &LibraryState) -> Result<(), Status> {
        let retained = lock(&library.retained).take();
        retained.map_or(Ok(()), |context| self.primary_release_of(context))
    }

    fn library_module_in(
        &self,
        library: &LibraryState,
        context: &ContextState,
    ) -> Result<Arc<ModuleState>, LoadFailure> {
        let mut modules = lock(&library.modules);
        if let Some(module) = modules.get(&context.handle).and_then(|m| self.modules.get(*m)) {
            return Ok(module);
        }
        let images: Vec<&[u8]> = library.images.iter().map(Vec::as_slice).collect();
        let module = self.load_images(context, &images, library.registers)?;
        modules.insert(context.handle, module.handle);
        Ok(module)
    }

    fn library(&self, library: Library) -> Result<Arc<LibraryState>, Status> {
        self.libraries.get(library).ok_or(Status::INVALID_HANDLE)
    }

    fn loaded(&self, library: Library) -> Result<Arc<ModuleState>, Status> {
        let library = self.library(library)?;
        let context = self.context_for(&library)?;
        self.library_module_in(&library, &context).map_err(|failure| failure.status)
    }

    /// Unloads a library and its modules.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library_unload(&self, library: Library) -> Result<(), Status> {
        let state = self.libraries.remove(library).ok_or(Status::INVALID_HANDLE)?;
        for kernel in lock(&state.kernels).values() {
            self.kernels.remove(*kernel);
        }
        for module in lock(&state.modules).values() {
            // A context that was destroyed took its module along.
            if self.modules.with(*module, |_| ()).is_some() {
                self.module_unload(*module)?;
            }
        }
        self.release_primary_of(&state)
    }

    /// The library's module in the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or what loading answers.
    pub fn library_module(&self, library: Library) -> Result<Module, Status> {
        Ok(self.loaded(library)?.handle)
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `NOT_FOUND`.
    pub fn library_kernel(&self, library: Library, name: &str) -> Result<Kernel, Status> {
        let module = self.loaded(library)?;
        let state = self.library(library)?;
        if !module.functions.iter().any(|function| function.name == name) {
            return Err(Status::NOT_FOUND);
        }
        self.kernel_of(&state, name)
    }

    fn kernel_of(&self, library: &LibraryState, name: &str) -> Result<Kernel, Status> {
        let mut kernels = lock(&library.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        let made = self.kernels.insert(0, |_, _: Kernel| KernelState {
            library: library.handle,
            name: name.to_owned(),
        });
        let (kernel, _) = made.map_err(|_| Status::OUT_OF_MEMORY)?;
        kernels.insert(name.to_owned(), kernel);
        Ok(kernel)
    }

    /// How many kernels a library has.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library_kernel_count(&self, library: Library) -> Result<u32, Status> {
        let module = self.loaded(library)?;
        Ok(u32::try_from(module.functions.len()).unwrap_or(u32::MAX))
    }

    /// The first `most` kernels of a library.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library_kernels(&self, library: Library, most: u32) -> Result<Vec<Kernel>, Status> {
        let module = self.loaded(library)?;
        let state = self.library(library)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let functions = module.functions.iter().take(most);
        functions.map(|function| self.kernel_of(&state, &function.name)).collect()
    }

    /// A variable's address and size in bytes, in the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `NOT_FOUND`.
    pub fn library_global(&self, library: Library, name: &str) -> Result<(u64, u64), Status> {
        let module = self.loaded(library)?;
        self.module_global(module.handle, name)
    }

    /// A kernel as a function of the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or what loading answers.
    pub fn kernel_function(&self, kernel: Kernel) -> Result<Function, Status> {
        let state = self.kernels.get(kernel).ok_or(Status::INVALID_HANDLE)?;
        let module = self.loaded(state.library)?;
        self.module_function(module.handle, &state.name)
    }

    /// A kernel as a function of that context.
    pub(crate) fn kernel_function_in(
        &self,
        kernel: Kernel,
        context: &ContextState,
    ) -> Result<Function, Status> {
        let state = self.kernels.get(kernel).ok_or(Status::INVALID_HANDLE)?;
        let library = self.library(state.library)?;
        let module = self.library_module_in(&library, context).map_err(|failure| failure.status)?;
        self.module_function(module.handle, &state.name)
    }

    /// A kernel's name.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn kernel_name(&self, kernel: Kernel) -> Result<String, Status> {
        self.kernels.with(kernel, |kernel| kernel.name.clone()).ok_or(Status::INVALID_HANDLE)
    }

    /// A kernel's library.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn kernel_library(&self, kernel: Kernel) -> Result<Library, Status> {
        self.kernels.with(kernel, |kernel| kernel.library).ok_or(Status::INVALID_HANDLE)
    }
}
