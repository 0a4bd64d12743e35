//! Modules: loading images, finding kernels and variables.

use core::ffi::c_void;

use weft_client::{Client, LoadFailure};
use weft_wire::Status;

use crate::abi::{CUdeviceptr, CUfunction, CUmodule};
use crate::args::{In, Out, Text};
use crate::image::Image;
use crate::jit::Options;
use crate::memory::narrow;

/// `CU_MODULE_LAZY_LOADING`: kernels are translated when they are first launched.
const LAZY_LOADING: u32 = 2;

/// `cuModuleLoad`.
pub(crate) fn load(client: &Client, module: Out<CUmodule>, file: Text) -> Result<(), Status> {
    let module = module.required()?;
    let image = read_file(&file)?;
    module.set(client.module_load(&image).map_err(|failure| failure.status)?);
    Ok(())
}

/// An image file's content.
pub(crate) fn read_file(file: &Text) -> Result<Vec<u8>, Status> {
    let mut image = std::fs::read(file.utf8()?).map_err(|_| Status::FILE_NOT_FOUND)?;
    // Text may be stored with its terminating zero.
    if image.last() == Some(&0) && !image.starts_with(b"\x7fELF") && image.is_ascii() {
        image.pop();
    }
    Ok(image)
}

/// `cuModuleLoadData`, `cuModuleLoadFatBinary`.
pub(crate) fn load_data(
    client: &Client,
    module: Out<CUmodule>,
    image: Image,
) -> Result<(), Status> {
    let module = module.required()?;
    module.set(load_image(client, &image, None).map_err(|failure| failure.status)?);
    Ok(())
}

/// `cuModuleLoadDataEx`.
pub(crate) fn load_data_ex(
    client: &Client,
    module: Out<CUmodule>,
    image: Image,
    count: u32,
    options: In<u32>,
    values: In<*mut c_void>,
) -> Result<(), Status> {
    let module = module.required()?;
    let mut options = Options::read(count, &options, &values)?;
    let loaded = load_image(client, &image, options.registers);
    options.finish(loaded.as_ref().err().map(|failure| failure.log.as_str()));
    module.set(loaded.map_err(|failure| failure.status)?);
    Ok(())
}

fn load_image(
    client: &Client,
    image: &Image,
    registers: Option<u32>,
) -> Result<CUmodule, LoadFailure> {
    client.module_load_limited(&image.joined()?, registers)
}

/// `cuModuleUnload`.
pub(crate) fn unload(client: &Client, module: CUmodule) -> Result<(), Status> {
    client.module_unload(module)
}

/// `cuModuleGetFunction`.
pub(crate) fn function(
    client: &Client,
    function: Out<CUfunction>,
    module: CUmodule,
    name: Text,
) -> Result<(), Status> {
    let function = function.required()?;
    function.set(client.module_function(module, name.utf8()?)?);
    Ok(())
}

/// `cuModuleGetFunctionCount`.
pub(crate) fn function_count(
    client: &Client,
    count: Out<u32>,
    module: CUmodule,
) -> Result<(), Status> {
    let count = count.required()?;
    count.set(client.module_function_count(module)?);
    Ok(())
}

/// `cuModuleEnumerateFunctions`.
pub(crate) fn functions(
    client: &Client,
    functions: Out<CUfunction>,
    count: u32,
    module: CUmodule,
) -> Result<(), Status> {
    let places = functions.slice(narrow(count.into()))?;
    places.fill(client.module_functions(module, count)?);
    Ok(())
}

/// `cuModuleGetGlobal`.
pub(crate) fn global(
    client: &Client,
    address: Out<CUdeviceptr>,
    bytes: Out<usize>,
    module: CUmodule,
    name: Text,
) -> Result<(), Status> {
    let found = client.module_global(module, name.utf8()?)?;
    address.set_if_wanted(found.0);
    bytes.set_if_wanted(narrow(found.1));
    Ok(())
}

/// `cuModuleGetLoadingMode`.
pub(crate) fn loading_mode(_client: &Client, mode: Out<u32>) -> Result<(), Status> {
    mode.required()?.set(LAZY_LOADING);
    Ok(())
}
