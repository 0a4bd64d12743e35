//! Kernels from PTX text, executed and compared with what they should compute.

#![expect(clippy::cast_possible_truncation, reason = "small known numbers")]

mod corpus;
mod faults;
mod forms;
mod instructions;
mod kernels;
mod matrices;
mod moves;
mod paced;
mod runtime;
mod slices;
mod slots;
mod speed;
mod video;
mod warps;

use super::{Clock, SoftDevice};
use crate::{
    CopyShape, Device, Driven, Endpoint, Fault, Launch, LoadedModule, Op, Outcome, Place, QueueId,
};

/// Where the tests' device addresses begin.
const BASE: u64 = 0x7000_0000_0000;

/// A small device.
pub(super) fn device() -> SoftDevice {
    SoftDevice::local(64 << 20, BASE, 1 << 30, Clock::Real).unwrap()
}

/// Drives until nothing is in flight; the outcomes in order.
pub(super) fn finish(device: &mut SoftDevice) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    loop {
        let driven = device.drive(1_000_000);
        while let Some(done) = device.poll() {
            outcomes.push(done.outcome);
        }
        if driven == Driven::Idle {
            return outcomes;
        }
    }
}

/// A parameter of a kernel, laid out by its size.
pub(super) enum Arg {
    U32(u32),
    U64(u64),
    F32(f32),
}

fn pack(args: &[Arg]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for arg in args {
        match arg {
            Arg::U32(x) => bytes.extend(x.to_le_bytes()),
            Arg::F32(x) => bytes.extend(x.to_le_bytes()),
            Arg::U64(x) => {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend(x.to_le_bytes());
            }
        }
    }
    bytes
}

/// A device with a module.
pub(super) struct Bench {
    pub(super) device: SoftDevice,
    pub(super) module: LoadedModule,
}

impl Bench {
    pub(super) fn new(text: &str) -> Self {
        let mut device = device();
        let module = device.load(&[text.as_bytes()]).unwrap();
        Self { device, module }
    }

    pub(super) fn launch(&self, name: &str, grid: u32, block: u32, args: &[Arg]) -> Launch {
        let function = self.module.functions.iter().position(|f| f.name == name).unwrap();
        Launch {
            module: self.module.id,
            function: u32::try_from(function).unwrap(),
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared_bytes: 0,
            params: pack(args),
            first_block: 0,
        }
    }

    pub(super) fn start(&mut self, launch: Launch) {
        self.device.start(QueueId(0), Op::Launch(launch), None).unwrap();
    }

    /// Runs a kernel that must succeed.
    pub(super) fn run(&mut self, name: &str, grid: u32, block: u32, args: &[Arg]) {
        self.start(self.launch(name, grid, block, args));
        let outcomes = finish(&mut self.device);
        assert_eq!(outcomes, [Outcome::Done]);
    }

    /// Runs a launch that must succeed.
    pub(super) fn finish_ok(&mut self, launch: Launch) {
        self.start(launch);
        assert_eq!(finish(&mut self.device), [Outcome::Done]);
    }

    /// Runs a kernel that must fault.
    pub(super) fn fault(&mut self, name: &str, grid: u32, block: u32, args: &[Arg]) -> Fault {
        self.start(self.launch(name, grid, block, args));
        match finish(&mut self.device).remove(0) {
            Outcome::Fault(fault) => *fault,
            other @ (Outcome::Done | Outcome::Partial { .. }) => {
                panic!("{other:?} instead of a fault")
            }
        }
    }

    pub(super) fn alloc(&mut self, bytes: u64) -> u64 {
        self.device.alloc(bytes).unwrap()
    }

    pub(super) fn upload(&mut self, words: &[u32]) -> u64 {
        let address = self.alloc(words.len() as u64 * 4);
        let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.write(address, bytes);
        address
    }

    pub(super) fn write(&mut self, address: u64, bytes: Vec<u8>) {
        let width = bytes.len() as u64;
        let copy = Op::Copy {
            dst: Endpoint { place: Place::Device(address), pitch: width, slice: width },
            src: Endpoint { place: Place::Inline(bytes), pitch: width, slice: width },
            shape: CopyShape { width, height: 1, depth: 1 },
        };
        self.device.start(QueueId(0), copy, None).unwrap();
        assert_eq!(finish(&mut self.device), [Outcome::Done]);
    }

    pub(super) fn words(&mut self, address: u64, count: usize) -> Vec<u32> {
        (0..count as u64)
            .map(|i| self.device.read_word(address + 4 * i, false).unwrap() as u32)
            .collect()
    }

    pub(super) fn floats(&mut self, address: u64, count: usize) -> Vec<f32> {
        self.words(address, count).into_iter().map(f32::from_bits).collect()
    }
}

#[test]
fn the_device_conforms() {
    crate::conformance::all(&device);
}
