//! Kernels of modules, their layouts and attributes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use weft_wire::Status;
use weft_wire::id::ModuleId;
use weft_wire::reply::{self, Param};

use crate::client::Client;
use crate::handle::{self, Context, Function, Kernel, Kind, Library, Module, Stream};

/// `CUfunction_attribute` numbers.
mod attribute {
    pub(super) const MAX_THREADS: i32 = 0;
    pub(super) const SHARED_BYTES: i32 = 1;
    pub(super) const CONST_BYTES: i32 = 2;
    pub(super) const LOCAL_BYTES: i32 = 3;
    pub(super) const REGISTERS: i32 = 4;
    pub(super) const PTX_VERSION: i32 = 5;
    pub(super) const BINARY_VERSION: i32 = 6;
    pub(super) const CACHE_MODE_CA: i32 = 7;
    pub(super) const MAX_DYNAMIC_SHARED: i32 = 8;
    pub(super) const CARVEOUT: i32 = 9;
    /// Attributes of clusters from here on; a device of capability 7.5 has none.
    pub(super) const CLUSTER_FIRST: i32 = 10;
    pub(super) const END: i32 = 17;
}

/// Dynamic shared memory that a kernel may use without asking for more, in bytes.
const DYNAMIC_SHARED_DEFAULT: u32 = 48 << 10;

/// A kernel of a loaded module.
#[derive(Debug)]
pub struct FunctionState {
    pub(crate) module: Module,
    pub(crate) module_id: ModuleId,
    pub(crate) index: u32,
    pub(crate) context: Context,
    info: Arc<reply::Function>,
    max_dynamic_shared: AtomicI32,
    carveout: AtomicI32,
    cache_config: AtomicI32,
}

impl FunctionState {
    pub(crate) fn new(
        module: Module,
        module_id: ModuleId,
        index: u32,
        context: Context,
        info: Arc<reply::Function>,
    ) -> Self {
        let left = DYNAMIC_SHARED_DEFAULT.saturating_sub(info.shared_bytes);
        Self {
            module,
            module_id,
            index,
            context,
            info,
            max_dynamic_shared: AtomicI32::new(i32::try_from(left).unwrap_or(0)),
            carveout: AtomicI32::new(-1),
            cache_config: AtomicI32::new(0),
        }
    }

    /// The entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Offsets and sizes of the parameters, in order.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.info.params
    }

    /// Bytes of the whole parameter block.
    #[must_use]
    pub fn param_bytes(&self) -> u32 {
        self.info.param_bytes
    }

    /// The module that the kernel is in.
    #[must_use]
    pub fn module(&self) -> Module {
        self.module
    }

    pub(crate) fn info(&self) -> &reply::Function {
        &self.info
    }

    /// Dynamic shared memory that a launch may ask for, in bytes.
    pub(crate) fn max_dynamic_shared(&self) -> u32 {
        u32::try_from(self.max_dynamic_shared.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// A kernel of a library, independent of contexts.
#[derive(Debug)]
pub(crate) struct KernelState {
    pub(crate) library: Library,
    pub(crate) name: String,
}

impl Client {
    /// What a `CUfunction` names. A `CUkernel` passed in its place means the kernel in the current
    /// context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, or what loading a library's module answers.
    #[inline]
    pub fn function(&self, function: Function) -> Result<Arc<FunctionState>, Status> {
        if let Some(known) = self.functions.get(function) {
            return Ok(known);
        }
        if !handle::claims(function.raw(), Kind::Kernel) {
            return Err(Status::INVALID_HANDLE);
        }
        let loaded = self.kernel_function(Kernel::from_raw(function.raw()))?;
        self.functions.get(loaded).ok_or(Status::INVALID_HANDLE)
    }

    /// What is launched in a stream. A `CUkernel` means the kernel in the stream's context.
    ///
    /// # Errors
    /// As [`Client::function`].
    #[inline]
    pub fn function_in(
        &self,
        function: Function,
        stream: Stream,
    ) -> Result<Arc<FunctionState>, Status> {
        if let Some(known) = self.functions.get(function) {
            return Ok(known);
        }
        match self.streams.with(stream, |stream| stream.context) {
            Some(context) if handle::claims(function.raw(), Kind::Kernel) => {
                let context = self.context(context)?;
                let kernel = Kernel::from_raw(function.raw());
                let loaded = self.kernel_function_in(kernel, &context)?;
                self.functions.get(loaded).ok_or(Status::INVALID_HANDLE)
            }
            _ => self.function(function),
        }
    }

    /// A `CUfunction_attribute`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`.
    pub fn function_attribute(&self, function: Function, number: i32) -> Result<i32, Status> {
        let function = self.function(function)?;
        let info = function.info();
        let value = match number {
            attribute::MAX_THREADS => info.max_threads,
            attribute::SHARED_BYTES => info.shared_bytes,
            attribute::CONST_BYTES => info.const_bytes,
            attribute::LOCAL_BYTES => info.local_bytes,
            attribute::REGISTERS => info.registers,
            attribute::PTX_VERSION => info.ptx_version,
            attribute::BINARY_VERSION => {
                let welcome = &self.home(function.context)?.welcome;
                welcome.capability_major * 10 + welcome.capability_minor
            }
            attribute::CACHE_MODE_CA => 0,
            attribute::MAX_DYNAMIC_SHARED => function.max_dynamic_shared(),
            attribute::CARVEOUT => return Ok(function.carveout.load(Ordering::Relaxed)),
            attribute::CLUSTER_FIRST..attribute::END => 0,
            _ => return Err(Status::INVALID_VALUE),
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }

    /// Sets a `CUfunction_attribute`: most dynamic shared memory, or the carve-out preference.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`.
    pub fn function_set_attribute(
        &self,
        function: Function,
        number: i32,
        value: i32,
    ) -> Result<(), Status> {
        /// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
        const SHARED_OPT_IN: u32 = 97;

        let function = self.function(function)?;
        let word = match number {
            attribute::MAX_DYNAMIC_SHARED => {
                let most =
                    self.home(function.context)?.limit(SHARED_OPT_IN, DYNAMIC_SHARED_DEFAULT);
                let most = most.saturating_sub(function.info().shared_bytes);
                let wanted = u32::try_from(value).map_err(|_| Status::INVALID_VALUE)?;
                if wanted > most {
                    return Err(Status::INVALID_VALUE);
                }
                &function.max_dynamic_shared
            }
            attribute::CARVEOUT => {
                crate::context::check_range(value, -1..=100)?;
                &function.carveout
            }
            _ => return Err(Status::INVALID_VALUE),
        };
        word.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the preferred cache configuration, a mere preference.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`.
    pub fn function_set_cache_config(&self, function: Function, config: i32) -> Result<(), Status> {
        crate::context::check_range(config, 0..=3)?;
        self.function(function)?.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    /// Offset and size of a parameter.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE` beyond the last parameter.
    pub fn function_param(&self, function: Function, index: usize) -> Result<Param, Status> {
        let function = self.function(function)?;
        function.params().get(index).cloned().ok_or(Status::INVALID_VALUE)
    }
}
