//! Contexts: the primary one, the thread's stack, settings.

use weft_client::Client;
use weft_wire::Status;

use crate::abi::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam};
use crate::args::{In, Out};
use crate::function::number;
use crate::output;

/// `cuDevicePrimaryCtxRetain`.
pub(crate) fn primary_retain(
    client: &Client,
    context: Out<CUcontext>,
    device: CUdevice,
) -> Result<(), Status> {
    let context = context.required()?;
    context.set(client.primary_retain(device)?);
    Ok(())
}

/// `cuDevicePrimaryCtxRelease`.
pub(crate) fn primary_release(client: &Client, device: CUdevice) -> Result<(), Status> {
    client.primary_release(device)
}

/// `cuDevicePrimaryCtxReset`.
pub(crate) fn primary_reset(client: &Client, device: CUdevice) -> Result<(), Status> {
    client.primary_reset(device)
}

/// `cuDevicePrimaryCtxSetFlags`.
pub(crate) fn primary_set_flags(
    client: &Client,
    device: CUdevice,
    flags: u32,
) -> Result<(), Status> {
    client.primary_set_flags(device, flags)
}

/// `cuDevicePrimaryCtxGetState`.
pub(crate) fn primary_state(
    client: &Client,
    device: CUdevice,
    flags: Out<u32>,
    active: Out<i32>,
) -> Result<(), Status> {
    let (flags, active) = (flags.required()?, active.required()?);
    let state = client.primary_state(device)?;
    flags.set(state.0);
    active.set(i32::from(state.1));
    Ok(())
}

/// `cuCtxCreate_v2`.
pub(crate) fn create(
    client: &Client,
    context: Out<CUcontext>,
    flags: u32,
    device: CUdevice,
) -> Result<(), Status> {
    let context = context.required()?;
    context.set(client.context_create(flags, device)?);
    Ok(())
}

/// `cuCtxCreate_v3`: like version 2; a share of the processors cannot be asked for.
pub(crate) fn create_with_affinity(
    client: &Client,
    context: Out<CUcontext>,
    params: In<CUexecAffinityParam>,
    count: i32,
    flags: u32,
    device: CUdevice,
) -> Result<(), Status> {
    if count != 0 {
        let known = !params.is_null() && count > 0;
        return Err(if known { Status::UNSUPPORTED_EXEC_AFFINITY } else { Status::INVALID_VALUE });
    }
    create(client, context, flags, device)
}

/// `cuCtxCreate_v4`: like version 2; neither affinity nor sharing with graphics can be asked for.
pub(crate) fn create_with_params(
    client: &Client,
    context: Out<CUcontext>,
    params: In<CUctxCreateParams>,
    flags: u32,
    device: CUdevice,
) -> Result<(), Status> {
    if let Some(params) = params.optional() {
        if params.numExecAffinityParams != 0 {
            return Err(Status::UNSUPPORTED_EXEC_AFFINITY);
        }
        if !params.cigParams.is_null() {
            return Err(Status::NOT_SUPPORTED);
        }
    }
    create(client, context, flags, device)
}

/// `cuCtxDestroy`.
pub(crate) fn destroy(client: &Client, context: CUcontext) -> Result<(), Status> {
    client.context_destroy(context)
}

/// `cuCtxPushCurrent`.
pub(crate) fn push(client: &Client, context: CUcontext) -> Result<(), Status> {
    client.context_push(context)
}

/// `cuCtxPopCurrent`.
pub(crate) fn pop(client: &Client, context: Out<CUcontext>) -> Result<(), Status> {
    context.set_if_wanted(client.context_pop()?);
    Ok(())
}

/// `cuCtxSetCurrent`.
pub(crate) fn set_current(client: &Client, context: CUcontext) -> Result<(), Status> {
    client.context_set_current(context)
}

/// `cuCtxGetCurrent`.
pub(crate) fn current(client: &Client, context: Out<CUcontext>) -> Result<(), Status> {
    context.required()?.set(client.context_get_current());
    Ok(())
}

/// `cuCtxGetDevice`.
pub(crate) fn device(client: &Client, device: Out<CUdevice>) -> Result<(), Status> {
    device_of(client, device, CUcontext::NULL)
}

/// `cuCtxGetDevice_v2`.
pub(crate) fn device_of(
    client: &Client,
    device: Out<CUdevice>,
    context: CUcontext,
) -> Result<(), Status> {
    let device = device.required()?;
    device.set(client.context_device(context)?);
    Ok(())
}

/// `cuCtxGetFlags`.
pub(crate) fn flags(client: &Client, flags: Out<u32>) -> Result<(), Status> {
    let flags = flags.required()?;
    flags.set(client.context_flags()?);
    Ok(())
}

/// `cuCtxSetFlags`.
pub(crate) fn set_flags(client: &Client, flags: u32) -> Result<(), Status> {
    client.context_set_flags(flags)
}

/// `cuCtxGetId`.
pub(crate) fn id(client: &Client, context: CUcontext, id: Out<u64>) -> Result<(), Status> {
    let id = id.required()?;
    id.set(client.context_id(context)?);
    Ok(())
}

/// `cuCtxGetApiVersion`.
pub(crate) fn api_version(
    client: &Client,
    context: CUcontext,
    version: Out<u32>,
) -> Result<(), Status> {
    let version = version.required()?;
    version.set(client.context_api_version(context)?);
    Ok(())
}

/// `cuCtxSynchronize`.
pub(crate) fn synchronize(client: &Client) -> Result<(), Status> {
    output::after(client, client.context_synchronize(CUcontext::NULL))
}

/// `cuCtxSynchronize_v2`.
pub(crate) fn synchronize_with(client: &Client, context: CUcontext) -> Result<(), Status> {
    output::after(client, client.context_synchronize(context))
}

/// `cuCtxGetLimit`.
pub(crate) fn limit(client: &Client, value: Out<usize>, limit: u32) -> Result<(), Status> {
    let value = value.required()?;
    let limit = client.context_limit(number(limit)?)?;
    value.set(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(())
}

/// `cuCtxSetLimit`.
pub(crate) fn set_limit(client: &Client, limit: u32, value: usize) -> Result<(), Status> {
    client.context_set_limit(number(limit)?, value as u64)
}

/// `cuCtxGetCacheConfig`.
pub(crate) fn cache_config(client: &Client, config: Out<u32>) -> Result<(), Status> {
    let config = config.required()?;
    config.set(client.context_cache_config()?.cast_unsigned());
    Ok(())
}

/// `cuCtxSetCacheConfig`.
pub(crate) fn set_cache_config(client: &Client, config: u32) -> Result<(), Status> {
    client.context_set_cache_config(number(config)?)
}

/// `cuCtxGetSharedMemConfig`.
pub(crate) fn shared_config(client: &Client, config: Out<u32>) -> Result<(), Status> {
    let config = config.required()?;
    config.set(client.context_shared_config()?.cast_unsigned());
    Ok(())
}

/// `cuCtxSetSharedMemConfig`.
pub(crate) fn set_shared_config(client: &Client, config: u32) -> Result<(), Status> {
    client.context_set_shared_config(number(config)?)
}

/// `cuCtxGetStreamPriorityRange`.
pub(crate) fn stream_priorities(
    client: &Client,
    least: Out<i32>,
    greatest: Out<i32>,
) -> Result<(), Status> {
    let range = client.context_stream_priorities()?;
    least.set_if_wanted(range.0);
    greatest.set_if_wanted(range.1);
    Ok(())
}

/// `cuCtxResetPersistingL2Cache`: there is no such cache to reset.
pub(crate) fn reset_persisting_cache(client: &Client) -> Result<(), Status> {
    client.context_flags().map(drop)
}

/// `cuCtxEnablePeerAccess` and `cuCtxDisablePeerAccess`: no two devices are peers.
pub(crate) fn enable_peer(client: &Client, peer: CUcontext, flags: u32) -> Result<(), Status> {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    client.context_device(peer)?;
    Err(Status::PEER_ACCESS_UNSUPPORTED)
}

/// `cuCtxDisablePeerAccess`.
pub(crate) fn disable_peer(client: &Client, peer: CUcontext) -> Result<(), Status> {
    client.context_device(peer)?;
    Err(Status::PEER_ACCESS_NOT_ENABLED)
}
