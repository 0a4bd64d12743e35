//! Modules: the driver compiles, our parser lists the symbols.
//!
//! The driver API can look symbols up but not list them (before CUDA 12.4 not even kernels), and a
//! tenant's client wants the whole list once. So the PTX is parsed here as on the software device.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use weft_ptx::image::ImageError;
use weft_ptx::ir::{Function, ParamPlace, Space};
use weft_ptx::slice::{PieceKernel, rewrite};

use super::c_string;
use super::driver::{Code, Driver, Handle, JIT_ERROR_LOG, JIT_INPUT_PTX, OUT_OF_MEMORY, SUCCESS};
use crate::{
    DeviceError, FrameRun, FunctionInfo, GlobalInfo, LoadError, LoadedModule, ModuleId, ParamInfo,
};

/// Bytes of the driver's error log.
const LOG_BYTES: usize = 8192;
/// `CUDA_ERROR_INVALID_PTX`, `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`, `CUDA_ERROR_NO_BINARY_FOR_GPU`
const INVALID_PTX: Code = 218;
const NEWER_PTX: Code = 222;
const NO_BINARY: Code = 209;
/// `CUfunction_attribute` numbers.
const MAX_THREADS_PER_BLOCK: c_int = 0;
const SHARED_SIZE_BYTES: c_int = 1;
const CONST_SIZE_BYTES: c_int = 2;
const LOCAL_SIZE_BYTES: c_int = 3;
const NUM_REGS: c_int = 4;

/// What kernels print with, in PTX.
const PRINT: &[u8] = b"vprintf";

/// A module that does nothing, for the oldest architecture that present compilers accept.
const EMPTY: &[u8] = b".version 6.3\n.target sm_75\n.address_size 64\n.entry weft() { ret; }\n\0";

/// Has the driver load its compiler, while the process may still open files.
pub(super) fn warm_up(driver: &Driver) {
    match load_image(driver, EMPTY) {
        // SAFETY: loaded just above.
        Ok(module) => drop(unsafe { (driver.module_unload)(module) }),
        Err(error) => tracing::debug!(%error, "the driver's compiler did not warm up"),
    }
}

/// A module in the driver.
#[derive(Debug)]
pub(super) struct Module {
    handle: Handle,
    functions: Vec<Handle>,
    /// What runs a range of a function's thread blocks, where that is possible.
    pieces: Vec<Option<(Handle, PieceKernel)>>,
    names: Vec<String>,
    globals: Vec<GlobalInfo>,
    /// What was paid for its variables.
    pub(super) frames: Vec<FrameRun>,
    prints: bool,
}

impl Module {
    /// Loads the texts, linked together if there are several.
    pub(super) fn load(
        driver: &Driver,
        id: ModuleId,
        symbols: Symbols,
    ) -> Result<(Self, LoadedModule), LoadError> {
        // Always text, also out of a fat binary: the driver's loader would take machine code that
        // the tenant made, of which nobody knows the parameters.
        let (handle, mut copies) = match symbols.texts.as_slice() {
            [text] => load_text(driver, text)?,
            several => (link(driver, several)?, BTreeMap::new()),
        };
        let mut module = Self {
            handle,
            functions: Vec::new(),
            pieces: Vec::new(),
            names: Vec::new(),
            globals: Vec::new(),
            frames: Vec::new(),
            prints: symbols.prints,
        };
        let mut functions = Vec::new();
        for (name, mut info) in symbols.kernels {
            if let Some(function) = module.function(driver, &name) {
                info.registers = attribute(driver, function, NUM_REGS);
                info.shared_bytes = attribute(driver, function, SHARED_SIZE_BYTES);
                info.const_bytes = attribute(driver, function, CONST_SIZE_BYTES);
                info.local_bytes = attribute(driver, function, LOCAL_SIZE_BYTES);
                info.max_threads = attribute(driver, function, MAX_THREADS_PER_BLOCK);
                let copy = copies.remove(&name);
                let piece = copy.and_then(|copy| {
                    module.function(driver, &copy.name).map(|handle| (handle, copy))
                });
                module.functions.push(function);
                module.pieces.push(piece);
                module.names.push(name);
                functions.push(info);
            }
        }
        module.globals =
            symbols.globals.iter().filter_map(|name| module.global(driver, name)).collect();
        let loaded = LoadedModule { id, functions, globals: module.globals.clone() };
        Ok((module, loaded))
    }

    /// Unloads it. The result is what was paid for it, as an error if the driver keeps the memory.
    pub(super) fn unload(self, driver: &Driver) -> Result<Vec<FrameRun>, Vec<FrameRun>> {
        // SAFETY: the handle came from `cuModuleLoadDataEx`; `self` is consumed, so it is used
        // once.
        let code = unsafe { (driver.module_unload)(self.handle) };
        if code == SUCCESS { Ok(self.frames) } else { Err(self.frames) }
    }

    /// Whether its kernels may print.
    pub(super) fn prints(&self) -> bool {
        self.prints
    }

    /// The kernel with this index in the list that `load` returned.
    pub(super) fn kernel(&self, index: u32) -> Option<Handle> {
        self.functions.get(usize::try_from(index).ok()?).copied()
    }

    /// What runs pieces of it.
    pub(super) fn piece(&self, index: u32) -> Option<&(Handle, PieceKernel)> {
        self.pieces.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// Its name.
    pub(super) fn kernel_name(&self, index: u32) -> Option<&str> {
        self.names.get(usize::try_from(index).ok()?).map(String::as_str)
    }

    /// Whether a range lies inside one of the module's variables.
    pub(super) fn contains(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        self.globals
            .iter()
            .any(|global| global.address <= address && end <= global.address + global.bytes)
    }

    fn function(&self, driver: &Driver, name: &str) -> Option<Handle> {
        let name = c_string(name)?;
        let mut function: Handle = std::ptr::null_mut();
        // SAFETY: a loaded module, a NUL-terminated name and a valid place for a handle.
        let code =
            unsafe { (driver.module_function)(&raw mut function, self.handle, name.as_ptr()) };
        (code == SUCCESS).then_some(function)
    }

    fn global(&self, driver: &Driver, name: &str) -> Option<GlobalInfo> {
        let text = c_string(name)?;
        let (mut address, mut bytes) = (0, 0_usize);
        // SAFETY: a loaded module, a NUL-terminated name and valid places for both results.
        let code = unsafe {
            (driver.module_global)(&raw mut address, &raw mut bytes, self.handle, text.as_ptr())
        };
        (code == SUCCESS).then(|| GlobalInfo {
            name: name.to_owned(),
            address,
            bytes: bytes as u64,
        })
    }
}

/// The images' PTX and the names in it. A name in several texts is listed once.
#[derive(Debug, Clone, Default)]
pub(super) struct Symbols {
    texts: Vec<Vec<u8>>,
    kernels: BTreeMap<String, FunctionInfo>,
    globals: Vec<String>,
    /// What the variables take of the device's memory.
    pub(super) global_bytes: u64,
    prints: bool,
}

impl Symbols {
    /// Of images for a device of this architecture.
    pub(super) fn of(arch: u32, images: &[&[u8]]) -> Result<Self, LoadError> {
        let mut symbols = Self::default();
        for image in images {
            let image = weft_ptx::image::read_for(arch, image).map_err(|error| match error {
                ImageError::NoPtx => LoadError::NoBinary(error.to_string()),
                ImageError::Unknown | ImageError::Damaged(_) | ImageError::TooLarge => {
                    LoadError::InvalidImage(error.to_string())
                }
            })?;
            for text in image.texts {
                // The driver knows instructions that Weft's own engine does not.
                let module = weft_ptx::declarations(&text)
                    .map_err(|error| LoadError::InvalidPtx(error.to_string()))?;
                let version = module.version.0 * 10 + module.version.1;
                for (_, kernel) in module.kernels() {
                    symbols.kernels.insert(kernel.name.clone(), describe(kernel, version));
                }
                for variable in &module.variables {
                    symbols.globals.push(variable.name.clone());
                    if variable.space != Space::Shared {
                        let bytes = &mut symbols.global_bytes;
                        *bytes = bytes.saturating_add(variable.size_bytes);
                    }
                }
                symbols.prints |= text.windows(PRINT.len()).any(|word| word == PRINT);
                symbols.texts.push(text);
            }
        }
        symbols.globals.sort();
        symbols.globals.dedup();
        Ok(symbols)
    }
}

fn describe(kernel: &Function, ptx_version: u32) -> FunctionInfo {
    let params = kernel
        .params
        .iter()
        .filter_map(|param| match param.place {
            ParamPlace::Offset(offset) => Some(ParamInfo { offset, size: param.size_bytes }),
            ParamPlace::Register(_) => None,
        })
        .collect();
    FunctionInfo {
        name: kernel.name.clone(),
        params,
        param_bytes: kernel.param_bytes,
        shared_bytes: 0,
        local_bytes: 0,
        const_bytes: 0,
        registers: 0,
        max_threads: 0,
        required_block: kernel.bounds.required_threads,
        ptx_version,
    }
}

fn attribute(driver: &Driver, function: Handle, number: c_int) -> u32 {
    let mut value = 0;
    // SAFETY: a function of a loaded module and a valid place for an int.
    let code = unsafe { (driver.function_attribute)(&raw mut value, number, function) };
    if code == SUCCESS { value.unsigned_abs() } else { 0 }
}

/// PTX text must end with a NUL; another image does not mind one more byte.
fn terminated(image: &[u8]) -> Vec<u8> {
    let mut bytes = image.to_vec();
    bytes.push(0);
    bytes
}

fn load_image(driver: &Driver, image: &[u8]) -> Result<Handle, LoadError> {
    let mut log = Log::new();
    let mut module: Handle = std::ptr::null_mut();
    // SAFETY: `image` ends with a NUL; the option arrays have the two entries that are announced
    // and point to a buffer of the announced size; `module` is a valid place.
    let code = unsafe {
        (driver.module_load)(
            &raw mut module,
            image.as_ptr().cast(),
            2,
            log.options.as_mut_ptr(),
            log.values.as_mut_ptr(),
        )
    };
    if code == SUCCESS { Ok(module) } else { Err(log.error(driver, code)) }
}

fn link(driver: &Driver, texts: &[Vec<u8>]) -> Result<Handle, LoadError> {
    let mut log = Log::new();
    let mut state: Handle = std::ptr::null_mut();
    // SAFETY: the option arrays have two entries and point to a buffer that lives until the link
    // is destroyed below; `state` is a valid place.
    let code = unsafe {
        (driver.link_create)(2, log.options.as_mut_ptr(), log.values.as_mut_ptr(), &raw mut state)
    };
    if code != SUCCESS {
        return Err(log.error(driver, code));
    }
    let result = link_texts(driver, state, texts);
    let loaded = match result {
        // The cubin belongs to the link state, so it is loaded before that is destroyed.
        Ok(cubin) => load_linked(driver, cubin),
        Err(code) => Err(log.error(driver, code)),
    };
    // SAFETY: `state` was created above and is destroyed once.
    let _ = unsafe { (driver.link_destroy)(state) };
    loaded
}

/// Loads a text with kernels that run pieces of its own, by the name of each; without them if the
/// driver does not take those.
fn load_text(
    driver: &Driver,
    text: &[u8],
) -> Result<(Handle, BTreeMap<String, PieceKernel>), LoadError> {
    if let Ok(sliced) = rewrite(text)
        && sliced.kernels.values().any(Result::is_ok)
        && let Ok(handle) = load_image(driver, &terminated(&sliced.text))
    {
        let copies = sliced.kernels.into_iter().filter_map(|(name, copy)| Some((name, copy.ok()?)));
        return Ok((handle, copies.collect()));
    }
    Ok((load_image(driver, &terminated(text))?, BTreeMap::new()))
}

fn link_texts(driver: &Driver, state: Handle, texts: &[Vec<u8>]) -> Result<*mut c_void, Code> {
    for text in texts {
        let bytes = terminated(text);
        // SAFETY: the driver reads `bytes.len()` bytes during the call; no options, no name.
        let code = unsafe {
            (driver.link_add)(
                state,
                JIT_INPUT_PTX,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                c"image".as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        if code != SUCCESS {
            return Err(code);
        }
    }
    let (mut cubin, mut bytes) = (std::ptr::null_mut(), 0_usize);
    // SAFETY: valid places for both results.
    let code = unsafe { (driver.link_complete)(state, &raw mut cubin, &raw mut bytes) };
    if code == SUCCESS { Ok(cubin) } else { Err(code) }
}

fn load_linked(driver: &Driver, cubin: *const c_void) -> Result<Handle, LoadError> {
    let mut module: Handle = std::ptr::null_mut();
    // SAFETY: `cubin` is the linker's output, alive until the link state is destroyed; no options.
    let code = unsafe {
        (driver.module_load)(&raw mut module, cubin, 0, std::ptr::null_mut(), std::ptr::null_mut())
    };
    if code == SUCCESS {
        return Ok(module);
    }
    Err(LoadError::InvalidImage(driver.name_of(code)))
}

/// The driver's error log and the options that ask for it.
struct Log {
    buffer: Vec<u8>,
    options: [c_int; 2],
    values: [*mut c_void; 2],
}

impl Log {
    fn new() -> Self {
        let mut buffer = vec![0; LOG_BYTES];
        let values =
            [buffer.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
        Self { buffer, options: JIT_ERROR_LOG, values }
    }

    fn error(&self, driver: &Driver, code: Code) -> LoadError {
        let end = self.buffer.iter().position(|byte| *byte == 0).unwrap_or(self.buffer.len());
        let text = String::from_utf8_lossy(&self.buffer[..end]);
        let message = format!("{}: {}", driver.name_of(code), text.trim());
        match code {
            INVALID_PTX => LoadError::InvalidPtx(message),
            NEWER_PTX => LoadError::NewerPtx(message),
            NO_BINARY => LoadError::NoBinary(message),
            OUT_OF_MEMORY => LoadError::Device(DeviceError::OutOfMemory { requested: 0 }),
            _ => LoadError::InvalidImage(message),
        }
    }
}
