//! Kernels: attributes, parameters, names.

use core::ffi::c_char;

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUfunction, CUmodule};
use crate::args::Out;
use crate::memory::narrow;
use crate::text::intern;

/// `CU_FUNCTION_LOADING_STATE_LOADED`.
const LOADED: u32 = 1;

/// `cuFuncGetAttribute`.
pub(crate) fn attribute(
    client: &Client,
    value: Out<i32>,
    attribute: u32,
    function: CUfunction,
) -> Result<(), Status> {
    let value = value.required()?;
    value.set(client.function_attribute(function, number(attribute)?)?);
    Ok(())
}

/// `cuFuncSetAttribute`.
pub(crate) fn set_attribute(
    client: &Client,
    function: CUfunction,
    attribute: u32,
    value: i32,
) -> Result<(), Status> {
    client.function_set_attribute(function, number(attribute)?, value)
}

/// `cuFuncSetCacheConfig`.
pub(crate) fn set_cache_config(
    client: &Client,
    function: CUfunction,
    config: u32,
) -> Result<(), Status> {
    client.function_set_cache_config(function, number(config)?)
}

/// `cuFuncSetSharedMemConfig`: a preference that means nothing since shared memory has one form.
pub(crate) fn set_shared_config(
    client: &Client,
    function: CUfunction,
    config: u32,
) -> Result<(), Status> {
    client.function(function)?;
    if config <= 2 { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// `cuFuncGetModule`.
pub(crate) fn module(
    client: &Client,
    module: Out<CUmodule>,
    function: CUfunction,
) -> Result<(), Status> {
    let module = module.required()?;
    module.set(client.function(function)?.module());
    Ok(())
}

/// `cuFuncGetName`.
pub(crate) fn name(
    client: &Client,
    name: Out<*const c_char>,
    function: CUfunction,
) -> Result<(), Status> {
    let name = name.required()?;
    name.set(intern(client.function(function)?.name())?);
    Ok(())
}

/// `cuFuncGetParamInfo`.
pub(crate) fn param(
    client: &Client,
    function: CUfunction,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Result<(), Status> {
    let offset = offset.required()?;
    let param = client.function_param(function, index)?;
    offset.set(narrow(param.offset.into()));
    size.set_if_wanted(narrow(param.size.into()));
    Ok(())
}

/// `cuFuncGetParamCount`.
pub(crate) fn param_count(
    client: &Client,
    function: CUfunction,
    count: Out<usize>,
) -> Result<(), Status> {
    let count = count.required()?;
    count.set(client.function(function)?.params().len());
    Ok(())
}

/// `cuFuncIsLoaded`: a function that has a handle is loaded.
pub(crate) fn is_loaded(
    client: &Client,
    state: Out<u32>,
    function: CUfunction,
) -> Result<(), Status> {
    let state = state.required()?;
    client.function(function)?;
    state.set(LOADED);
    Ok(())
}

/// `cuFuncLoad`.
pub(crate) fn load(client: &Client, function: CUfunction) -> Result<(), Status> {
    client.function(function).map(drop)
}

/// Enumerations fit into a positive `int`.
pub(crate) fn number(value: u32) -> Result<i32, Status> {
    i32::try_from(value).map_err(|_| Status::INVALID_VALUE)
}
