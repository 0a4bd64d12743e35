//! What every backend must do, whatever device is behind it.
//!
//! Each function is one behaviour and panics when a device lacks it; a backend's tests call
//! [`all`] with a way to make a fresh device of at least 64 MiB. The kernels are PTX, so a CUDA
//! device runs the same bodies.

mod copies;
mod kernels;
mod launches;
mod memory;
mod swapping;

use crate::{
    Completion, CopyShape, Device, Driven, Endpoint, Launch, LoadedModule, Op, OpId, Outcome,
    Place, QueueId,
};

/// Runs every behaviour on a device of its own.
pub(crate) fn all<D: Device>(make: &dyn Fn() -> D) {
    for (name, behaviour) in behaviours::<D>() {
        let mut device = make();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            behaviour(&mut device);
        }));
        if let Err(cause) = caught {
            // A faulted device may not survive its own clean-up.
            std::mem::forget(device);
            let text = cause
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| cause.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            panic!("behaviour `{name}`: {text}");
        }
    }
}

/// What a behaviour is called, and what shows it.
pub(crate) type Behaviour<D> = (&'static str, fn(&mut D));

/// Every behaviour: for a backend whose devices share their process's fate.
pub(crate) fn behaviours<D: Device>() -> Vec<Behaviour<D>> {
    let mut all: Vec<Behaviour<D>> = Vec::new();
    all.extend(memory::behaviours::<D>());
    all.extend(copies::behaviours::<D>());
    all.extend(launches::behaviours::<D>());
    all.extend(swapping::behaviours::<D>());
    all
}

/// Drives until the operation has completed.
fn wait<D: Device>(device: &mut D, op: OpId) -> Completion {
    loop {
        let driven = device.drive(1_000_000);
        while let Some(done) = device.poll() {
            if done.op == op {
                return done;
            }
        }
        assert_ne!(driven, Driven::Idle, "an operation in flight never completed");
    }
}

pub(crate) fn run<D: Device>(device: &mut D, op: Op) -> Completion {
    run_for(device, op, None)
}

/// The same, to be stopped after `max_ns`.
fn run_for<D: Device>(device: &mut D, op: Op, max_ns: Option<u64>) -> Completion {
    let op = device.start(QueueId(1), op, max_ns).unwrap();
    wait(device, op)
}

fn done<D: Device>(device: &mut D, op: Op) {
    assert_eq!(run(device, op).outcome, Outcome::Done);
}

fn row(place: Place, width: u64) -> Endpoint {
    Endpoint { place, pitch: width, slice: width }
}

pub(crate) fn upload<D: Device>(device: &mut D, address: u64, bytes: Vec<u8>) {
    let width = bytes.len() as u64;
    let (dst, src) = (row(Place::Device(address), width), row(Place::Inline(bytes), width));
    done(device, Op::Copy { dst, src, shape: CopyShape { width, height: 1, depth: 1 } });
}

pub(crate) fn download<D: Device>(device: &mut D, address: u64, bytes: usize) -> Vec<u8> {
    let memory = weft_ring::SharedMemory::anonymous(bytes).unwrap();
    let width = bytes as u64;
    let span = memory.span(0, bytes).unwrap();
    let (dst, src) = (row(Place::Host(span.clone()), width), row(Place::Device(address), width));
    done(device, Op::Copy { dst, src, shape: CopyShape { width, height: 1, depth: 1 } });
    span.to_vec()
}

fn words<D: Device>(device: &mut D, address: u64, count: usize) -> Vec<u32> {
    let bytes = download(device, address, count * 4);
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

fn launch(module: &LoadedModule, name: &str, grid: u32, block: u32, params: &[u64]) -> Launch {
    let function = module.functions.iter().position(|f| f.name == name).unwrap();
    Launch {
        module: module.id,
        function: u32::try_from(function).unwrap(),
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
        params: params.iter().flat_map(|p| p.to_le_bytes()).collect(),
        first_block: 0,
    }
}

/// A device with the suite's kernels.
fn load<D: Device>(device: &mut D) -> LoadedModule {
    device.load(&[kernels::TEXT.as_bytes()]).unwrap()
}
