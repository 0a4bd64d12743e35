//! Libraries: modules that belong to no context, and their kernels.

use core::ffi::{c_char, c_void};

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUdevice, CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule};
use crate::args::{In, Out, Text};
use crate::function;
use crate::image::Image;
use crate::jit::Options;
use crate::memory::narrow;
use crate::module::read_file;
use crate::text::intern;

/// A library option is a hint about the image's lifetime or a table for the host: none is needed.
const LIBRARY_OPTIONS: core::ops::RangeInclusive<u32> = 0..=1;

/// `cuLibraryLoadData`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn load_data(
    client: &Client,
    library: Out<CUlibrary>,
    image: Image,
    options: In<u32>,
    values: In<*mut c_void>,
    count: u32,
    library_options: In<u32>,
    _library_values: *mut *mut c_void,
    library_count: u32,
) -> Result<(), Status> {
    check_options(&library_options, library_count)?;
    let options = Options::read(count, &options, &values)?;
    let image = image.joined()?;
    load(client, library, &image, options)
}

/// `cuLibraryLoadFromFile`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn load_file(
    client: &Client,
    library: Out<CUlibrary>,
    file: Text,
    options: In<u32>,
    values: In<*mut c_void>,
    count: u32,
    library_options: In<u32>,
    _library_values: *mut *mut c_void,
    library_count: u32,
) -> Result<(), Status> {
    check_options(&library_options, library_count)?;
    let options = Options::read(count, &options, &values)?;
    load(client, library, &read_file(&file)?, options)
}

fn check_options(options: &In<u32>, count: u32) -> Result<(), Status> {
    let options = options.slice(narrow(count.into()))?;
    let known = options.iter().all(|option| LIBRARY_OPTIONS.contains(option));
    if known { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

fn load(
    client: &Client,
    library: Out<CUlibrary>,
    image: &[u8],
    mut options: Options,
) -> Result<(), Status> {
    let library = library.required()?;
    let loaded = client.library_load_limited(image, options.registers);
    options.finish(loaded.as_ref().err().map(|failure| failure.log.as_str()));
    library.set(loaded.map_err(|failure| failure.status)?);
    Ok(())
}

/// `cuLibraryUnload`.
pub(crate) fn unload(client: &Client, library: CUlibrary) -> Result<(), Status> {
    client.library_unload(library)
}

/// `cuLibraryGetKernel`.
pub(crate) fn kernel(
    client: &Client,
    kernel: Out<CUkernel>,
    library: CUlibrary,
    name: Text,
) -> Result<(), Status> {
    let kernel = kernel.required()?;
    kernel.set(client.library_kernel(library, name.utf8()?)?);
    Ok(())
}

/// `cuLibraryGetKernelCount`.
pub(crate) fn kernel_count(
    client: &Client,
    count: Out<u32>,
    library: CUlibrary,
) -> Result<(), Status> {
    let count = count.required()?;
    count.set(client.library_kernel_count(library)?);
    Ok(())
}

/// `cuLibraryEnumerateKernels`.
pub(crate) fn kernels(
    client: &Client,
    kernels: Out<CUkernel>,
    count: u32,
    library: CUlibrary,
) -> Result<(), Status> {
    let places = kernels.slice(narrow(count.into()))?;
    places.fill(client.library_kernels(library, count)?);
    Ok(())
}

/// `cuLibraryGetModule`.
pub(crate) fn module(
    client: &Client,
    module: Out<CUmodule>,
    library: CUlibrary,
) -> Result<(), Status> {
    let module = module.required()?;
    module.set(client.library_module(library)?);
    Ok(())
}

/// `cuLibraryGetGlobal`.
pub(crate) fn global(
    client: &Client,
    address: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: Text,
) -> Result<(), Status> {
    let found = client.library_global(library, name.utf8()?)?;
    address.set_if_wanted(found.0);
    bytes.set_if_wanted(narrow(found.1));
    Ok(())
}

/// `cuKernelGetFunction`.
pub(crate) fn kernel_function(
    client: &Client,
    function: Out<CUfunction>,
    kernel: CUkernel,
) -> Result<(), Status> {
    let function = function.required()?;
    function.set(client.kernel_function(kernel)?);
    Ok(())
}

/// `cuKernelGetLibrary`.
pub(crate) fn kernel_library(
    client: &Client,
    library: Out<CUlibrary>,
    kernel: CUkernel,
) -> Result<(), Status> {
    let library = library.required()?;
    library.set(client.kernel_library(kernel)?);
    Ok(())
}

/// `cuKernelGetName`.
pub(crate) fn kernel_name(
    client: &Client,
    name: Out<*const c_char>,
    kernel: CUkernel,
) -> Result<(), Status> {
    let name = name.required()?;
    name.set(intern(&client.kernel_name(kernel)?)?);
    Ok(())
}

/// The kernel where a function is asked for: the driver takes either.
fn as_function(kernel: CUkernel) -> CUfunction {
    CUfunction::from_raw(kernel.raw())
}

/// `cuKernelGetAttribute`.
pub(crate) fn kernel_attribute(
    client: &Client,
    value: Out<i32>,
    attribute: u32,
    kernel: CUkernel,
    device: CUdevice,
) -> Result<(), Status> {
    client.device_get(device)?;
    function::attribute(client, value, attribute, as_function(kernel))
}

/// `cuKernelSetAttribute`.
pub(crate) fn set_kernel_attribute(
    client: &Client,
    attribute: u32,
    value: i32,
    kernel: CUkernel,
    device: CUdevice,
) -> Result<(), Status> {
    client.device_get(device)?;
    function::set_attribute(client, as_function(kernel), attribute, value)
}

/// `cuKernelSetCacheConfig`.
pub(crate) fn set_kernel_cache_config(
    client: &Client,
    kernel: CUkernel,
    config: u32,
    device: CUdevice,
) -> Result<(), Status> {
    client.device_get(device)?;
    function::set_cache_config(client, as_function(kernel), config)
}

/// `cuKernelGetParamInfo`.
pub(crate) fn kernel_param(
    client: &Client,
    kernel: CUkernel,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Result<(), Status> {
    function::param(client, as_function(kernel), index, offset, size)
}

/// `cuKernelGetParamCount`.
pub(crate) fn kernel_param_count(
    client: &Client,
    kernel: CUkernel,
    count: Out<usize>,
) -> Result<(), Status> {
    function::param_count(client, as_function(kernel), count)
}
