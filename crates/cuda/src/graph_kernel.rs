//! Kernel nodes of graphs.

use weft_client::{Client, KernelWork, Launch, Work};
use weft_wire::Status;

use crate::abi::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUcontext, CUfunction, CUgraph,
    CUgraphExec, CUgraphNode, CUkernel, CUlaunchAttributeValue,
};
use crate::args::{In, Out};
use crate::launch::{attribute, slots};
use crate::memory::narrow;
use crate::params::Arguments;

impl From<CUDA_KERNEL_NODE_PARAMS_v1> for CUDA_KERNEL_NODE_PARAMS {
    fn from(old: CUDA_KERNEL_NODE_PARAMS_v1) -> Self {
        Self {
            func: old.func,
            gridDimX: old.gridDimX,
            gridDimY: old.gridDimY,
            gridDimZ: old.gridDimZ,
            blockDimX: old.blockDimX,
            blockDimY: old.blockDimY,
            blockDimZ: old.blockDimZ,
            sharedMemBytes: old.sharedMemBytes,
            kernelParams: old.kernelParams,
            extra: old.extra,
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        }
    }
}

/// What a description of a kernel node means.
pub(crate) fn work(client: &Client, params: &CUDA_KERNEL_NODE_PARAMS) -> Result<Work, Status> {
    let function =
        if params.func.is_null() { CUfunction::from_raw(params.kern.raw()) } else { params.func };
    let target = client.function(function)?;
    // SAFETY: the description's lists fit the kernel, by the C API.
    let arguments = unsafe { Arguments::nested(params.kernelParams, params.extra) };
    let mut block = vec![0; narrow(target.param_bytes().into())];
    arguments.pack(slots(&target), &mut block)?;
    Ok(Work::Kernel(KernelWork {
        function,
        target,
        launch: Launch {
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
            cooperative: false,
        },
        params: block.into(),
    }))
}

/// `cuGraphAddKernelNode`.
pub(crate) fn add_v1(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Result<(), Status> {
    let node = node.required()?;
    let work = work(client, &params.required()?.into())?;
    node.set(client.graph_add(graph, dependencies.slice(count)?, work)?);
    Ok(())
}

/// `cuGraphAddKernelNode_v2`.
pub(crate) fn add(
    client: &Client,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Result<(), Status> {
    let node = node.required()?;
    let work = work(client, &params.required()?)?;
    node.set(client.graph_add(graph, dependencies.slice(count)?, work)?);
    Ok(())
}

/// `cuGraphKernelNodeSetParams`.
pub(crate) fn set_v1(
    client: &Client,
    node: CUgraphNode,
    params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Result<(), Status> {
    client.graph_node_set(node, work(client, &params.required()?.into())?)
}

/// `cuGraphKernelNodeSetParams_v2`.
pub(crate) fn set(
    client: &Client,
    node: CUgraphNode,
    params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Result<(), Status> {
    client.graph_node_set(node, work(client, &params.required()?)?)
}

/// `cuGraphExecKernelNodeSetParams`.
pub(crate) fn set_exec_v1(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Result<(), Status> {
    client.graph_exec_set(exec, node, work(client, &params.required()?.into())?)
}

/// `cuGraphExecKernelNodeSetParams_v2`.
pub(crate) fn set_exec(
    client: &Client,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Result<(), Status> {
    client.graph_exec_set(exec, node, work(client, &params.required()?)?)
}

fn description(client: &Client, node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS, Status> {
    let Work::Kernel(kernel) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
        (kernel.launch.grid, kernel.launch.block);
    let addresses = kernel.params.addresses(slots(&kernel.target).map(|slot| slot.offset));
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: kernel.function,
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: kernel.launch.shared_bytes,
        kernelParams: addresses.as_ptr().cast(),
        extra: core::ptr::null(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

/// `cuGraphKernelNodeGetParams`.
pub(crate) fn get_v1(
    client: &Client,
    node: CUgraphNode,
    params: Out<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Result<(), Status> {
    let params = params.required()?;
    let have = description(client, node)?;
    params.set(CUDA_KERNEL_NODE_PARAMS_v1 {
        func: have.func,
        gridDimX: have.gridDimX,
        gridDimY: have.gridDimY,
        gridDimZ: have.gridDimZ,
        blockDimX: have.blockDimX,
        blockDimY: have.blockDimY,
        blockDimZ: have.blockDimZ,
        sharedMemBytes: have.sharedMemBytes,
        kernelParams: have.kernelParams,
        extra: have.extra,
    });
    Ok(())
}

/// `cuGraphKernelNodeGetParams_v2`.
pub(crate) fn get(
    client: &Client,
    node: CUgraphNode,
    params: Out<CUDA_KERNEL_NODE_PARAMS>,
) -> Result<(), Status> {
    let params = params.required()?;
    params.set(description(client, node)?);
    Ok(())
}

/// `cuGraphKernelNodeGetAttribute`: nodes have hints only, and those are not kept.
pub(crate) fn attribute(
    client: &Client,
    node: CUgraphNode,
    number: u32,
    value: Out<CUlaunchAttributeValue>,
) -> Result<(), Status> {
    let value = value.required()?;
    let Work::Kernel(kernel) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    value.set(CUlaunchAttributeValue::from_int(match number {
        attribute::COOPERATIVE => kernel.launch.cooperative.into(),
        attribute::ACCESS_POLICY_WINDOW | attribute::PRIORITY => 0,
        _ => return Err(Status::NOT_SUPPORTED),
    }));
    Ok(())
}

/// `cuGraphKernelNodeSetAttribute`.
pub(crate) fn set_attribute(
    client: &Client,
    node: CUgraphNode,
    number: u32,
    value: In<CUlaunchAttributeValue>,
) -> Result<(), Status> {
    let value = value.required()?;
    let Work::Kernel(mut kernel) = client.graph_node_work(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    match number {
        attribute::COOPERATIVE => kernel.launch.cooperative = value.int() != 0,
        attribute::ACCESS_POLICY_WINDOW | attribute::PRIORITY => return Ok(()),
        _ => return Err(Status::NOT_SUPPORTED),
    }
    client.graph_node_set(node, Work::Kernel(kernel))
}

/// `cuGraphKernelNodeCopyAttributes`.
pub(crate) fn copy_attributes(
    client: &Client,
    target: CUgraphNode,
    source: CUgraphNode,
) -> Result<(), Status> {
    let (Work::Kernel(mut kernel), Work::Kernel(source)) =
        (client.graph_node_work(target)?, client.graph_node_work(source)?)
    else {
        return Err(Status::INVALID_VALUE);
    };
    kernel.launch.cooperative = source.launch.cooperative;
    client.graph_node_set(target, Work::Kernel(kernel))
}
