//! Several tenants of one driver that has less memory than they: swap plans, made by the placements
//! of `weft-sched`, carried out through the driver's virtual-memory calls.

use weft_sched::VgpuKey;
use weft_sched::memory::{Demand, EVERY_ROUND, Layout, Problem, Step, Table, by_name};

use super::tests::tenant;
use super::{CHUNK_BYTES, CudaDevice};
use crate::conformance::{download, run, upload};
use crate::{Device, DeviceError, Fill, Launch, Op, Outcome, SwapError, SwapStep};

/// Memory of the driver's device, in bytes: so much is set when this process begins.
pub(super) const DRIVER_BYTES: u64 = 64 << 20;
/// Slots of the device that plans deal out, of [`CHUNK_BYTES`] each.
const REGION: usize = 24;
/// Slots of each of three tenants: one and a half times the region, and more than the driver has.
pub(super) const SLOTS: usize = 12;
const TENANTS: usize = 3;

pub(super) fn all() {
    for placement in ["scores", "exact", "scattered", "pipelined", "whole"] {
        plans_are_carried_out(placement);
    }
    the_oracle_notices();
    what_does_not_fit_is_said();
    a_fault_loses_nothing_else();
}

/// What a tenant has in a part after so many turns.
fn content(tenant: usize, part: usize, turn: usize) -> u32 {
    u32::try_from(tenant << 24 | part << 12 | turn).unwrap()
}

/// A tenant that finds all of its memory in each turn.
pub(super) struct Tenant {
    pub(super) device: CudaDevice,
    address: u64,
    turns: usize,
}

impl Tenant {
    pub(super) fn new() -> Self {
        Self::of(tenant())
    }

    pub(super) fn of(mut device: CudaDevice) -> Self {
        let address = device.alloc(SLOTS as u64 * CHUNK_BYTES).unwrap();
        Self { device, address, turns: 0 }
    }

    fn part(&self, part: usize) -> u64 {
        self.address + part as u64 * CHUNK_BYTES
    }

    /// Its turn: all of its memory is as it left it, and is written anew.
    pub(super) fn turn(&mut self, number: usize) {
        for part in 0..SLOTS {
            let at = self.part(part);
            let found = download(&mut self.device, at, usize::try_from(CHUNK_BYTES).unwrap());
            let expected = content(number, part, self.turns).to_le_bytes();
            let differs = found.chunks_exact(4).position(|word| word != expected);
            assert!(
                differs.is_none() || self.turns == 0,
                "tenant {number}, part {part}, word {differs:?}"
            );
            let fill = Fill {
                address: at,
                pitch: CHUNK_BYTES,
                width: CHUNK_BYTES / 4,
                height: 1,
                element: 4,
                value: content(number, part, self.turns + 1),
            };
            assert_eq!(run(&mut self.device, Op::Fill(fill)).outcome, Outcome::Done);
        }
        self.turns += 1;
    }

    fn resident_bytes(&mut self) -> u64 {
        let parts = self.device.swapping().unwrap().parts();
        parts.iter().map(|used| used.resident_bytes).sum()
    }
}

fn layout(placement: &str) -> Layout {
    let demand = |number: usize| Demand {
        vgpu: VgpuKey(u32::try_from(number).unwrap()),
        slots: SLOTS,
        rate: EVERY_ROUND,
    };
    let demands: Vec<Demand> = (0..TENANTS).map(demand).collect();
    let problem = Problem { region: REGION, demands: &demands, hidden: 2 };
    by_name(placement).unwrap().place(&problem).unwrap()
}

fn carry_out(tenants: &mut [Tenant], steps: &mut Vec<Step>) -> u64 {
    let mut copied = 0;
    for step in steps.drain(..) {
        let (vgpu, step) = match step {
            Step::Save { vgpu, part, .. } => (vgpu, SwapStep::Save { part: part as u64 }),
            Step::Copy { vgpu, part, .. } => (vgpu, SwapStep::Bring { part: part as u64 }),
        };
        let Some(tenant) = tenants.get_mut(usize::try_from(vgpu.0).unwrap()) else { continue };
        copied += tenant.device.swapping().unwrap().swap(&[step]).unwrap();
    }
    copied
}

fn plans_are_carried_out(placement: &str) {
    let layout = layout(placement);
    let mut table = Table::new(REGION);
    let mut steps = Vec::new();
    table.set_layout(&layout, &mut steps);
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut copied = 0;
    for round in 0..4 {
        for number in 0..TENANTS {
            table.switch_to(VgpuKey(u32::try_from(number).unwrap()), &mut steps).unwrap();
            copied += carry_out(&mut tenants, &mut steps);
            table.check().unwrap();
            if round == 0 {
                tenants.push(Tenant::new());
            }
            tenants[number].turn(number);
            assert_eq!(tenants[number].resident_bytes(), SLOTS as u64 * CHUNK_BYTES);
            let resident: u64 = tenants.iter_mut().map(Tenant::resident_bytes).sum();
            assert!(resident <= REGION as u64 * CHUNK_BYTES, "{placement}: {resident}");
        }
    }
    assert!(copied > 0, "{placement}: somebody had to give way");
    eprintln!("{placement}: {copied} bytes copied in 12 turns");
}

/// The control: a word that is changed while its part is in host memory is found.
fn the_oracle_notices() {
    let mut one = Tenant::new();
    one.turn(0);
    one.device.swapping().unwrap().swap(&[SwapStep::Save { part: 5 }]).unwrap();
    one.device.write_word(one.part(5) + CHUNK_BYTES / 2, 0xdead_beef, false).unwrap();
    let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.turn(0)));
    assert!(noticed.is_err(), "a wrong word is taken for the right one");
}

/// The driver has no room, for new memory nor for what is to come back: both are said, and nothing
/// is lost.
fn what_does_not_fit_is_said() {
    let bytes = 40_u64 << 20;
    let (mut first, mut second) = (tenant(), tenant());
    let address = first.alloc(bytes).unwrap();
    upload(&mut first, address, vec![0x5a; 40 << 20]);
    let free = second.memory_use();
    let refused = second.alloc(bytes);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(second.memory_use(), free, "what was refused is not paid for");
    let all = first.swapping().unwrap().parts();
    let saves: Vec<SwapStep> = all.iter().map(|used| SwapStep::Save { part: used.part }).collect();
    assert_eq!(first.swapping().unwrap().swap(&saves), Ok(bytes));
    let other = second.alloc(bytes).unwrap();
    upload(&mut second, other, vec![0xa5; 40 << 20]);
    // What there is room for comes, the rest stays where it is.
    let brings: Vec<SwapStep> =
        all.iter().map(|used| SwapStep::Bring { part: used.part }).collect();
    let error = first.swapping().unwrap().swap(&brings).unwrap_err();
    assert!(matches!(error.error, DeviceError::OutOfMemory { .. }), "{error:?}");
    assert!(error.step > 0, "the driver had room for some");
    let fill = Fill { address, pitch: 64, width: 64, height: 1, element: 1, value: 0 };
    let refused = first.start(crate::QueueId(1), Op::Fill(fill), None);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    assert!(download(&mut second, other, 40 << 20).iter().all(|byte| *byte == 0xa5));
    drop(second);
    assert!(download(&mut first, address, 40 << 20).iter().all(|byte| *byte == 0x5a));
}

/// A context that faulted gives nothing more: what was saved before is still there, and steps say
/// that the device is lost. Last, because Weft's own driver ends all contexts of its process.
fn a_fault_loses_nothing_else() {
    let mut device = tenant();
    let address = device.alloc(4 * CHUNK_BYTES).unwrap();
    device.write_word(address, 0x1234_5678, false).unwrap();
    let parts = device.swapping().unwrap().parts();
    let saved = SwapStep::Save { part: parts[0].part };
    device.swapping().unwrap().swap(&[saved]).unwrap();
    let text = ".version 7.0\n.target sm_75\n.address_size 64\n.entry fails() { trap; }\n";
    let loaded = device.load(&[text.as_bytes()]).unwrap();
    let launch = Launch {
        module: loaded.id,
        function: 0,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        params: Vec::new(),
        first_block: 0,
    };
    assert!(matches!(run(&mut device, Op::Launch(launch)).outcome, Outcome::Fault(_)));
    let before = device.swapping().unwrap().parts();
    let error = device.swapping().unwrap().swap(&[saved]).unwrap_err();
    assert!(matches!(error, SwapError { step: 0, error: DeviceError::Lost(_) }), "{error:?}");
    assert_eq!(device.swapping().unwrap().parts(), before, "nothing says that it moved");
    // A faulted device may not survive its own clean-up.
    std::mem::forget(device);
}
