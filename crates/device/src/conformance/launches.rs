//! Modules and kernels.

use super::{Behaviour, done, launch, load, run, run_for, upload, wait, words};
use crate::{Device, DeviceError, Driven, FaultKind, LoadError, Op, Outcome, QueueId};

pub(super) fn behaviours<D: Device>() -> Vec<Behaviour<D>> {
    vec![
        ("a module tells its symbols", a_module_tells_its_symbols),
        ("broken images are refused", broken_images_are_refused),
        ("every thread runs", every_thread_runs),
        ("queues keep their order", queues_keep_their_order),
        ("ends may be told together", ends_may_be_told_together),
        ("a fault ends what is open", a_fault_ends_what_is_open),
        ("globals live as long as the module", globals_live_as_long_as_the_module),
        ("dynamic shared memory", dynamic_shared_memory),
        ("blocks run in ranges", blocks_run_in_ranges),
        ("too large a block is refused", too_large_a_block_is_refused),
        ("a wild store faults", a_wild_store_faults),
        ("a trap faults", a_trap_faults),
        ("an endless kernel can be aborted", an_endless_kernel_can_be_aborted),
    ]
}

fn a_module_tells_its_symbols<D: Device>(device: &mut D) {
    let module = load(device);
    let iota = module.functions.iter().find(|f| f.name == "iota").unwrap();
    assert_eq!(iota.param_bytes, 16);
    let params: Vec<_> = iota.params.iter().map(|p| (p.offset, p.size)).collect();
    assert_eq!(params, [(0, 8), (8, 8)]);
    assert!(iota.max_threads >= 32);
    let fixed = module.globals.iter().find(|g| g.name == "fixed").unwrap();
    assert_eq!(fixed.bytes, 8);
    assert_eq!(words(device, fixed.address, 2), [11, 22]);
}

fn broken_images_are_refused<D: Device>(device: &mut D) {
    for image in [&b""[..], b"\x7fELF garbage", b"hello", b".version 6.4\n.target sm_75\nfoo"] {
        let refused = device.load(&[image]).unwrap_err();
        assert!(!matches!(refused, LoadError::Device(_)), "{refused:?}");
    }
    load(device);
}

fn every_thread_runs<D: Device>(device: &mut D) {
    let module = load(device);
    for (grid, block) in [(1, 1), (3, 33), (100, 128)] {
        let n = (grid * block) as usize;
        let out = device.alloc(n as u64 * 4).unwrap();
        done(device, Op::Launch(launch(&module, "iota", grid, block, &[out, 5])));
        let expected: Vec<u32> = (0..grid * block).map(|i| i + 5).collect();
        assert_eq!(words(device, out, n), expected);
    }
}

fn queues_keep_their_order<D: Device>(device: &mut D) {
    let module = load(device);
    let out = device.alloc(4096).unwrap();
    let first = launch(&module, "iota", 8, 32, &[out, 1000]);
    let second = launch(&module, "iota", 4, 32, &[out, 0]);
    let a = device.start(QueueId(3), Op::Launch(first), None).unwrap();
    let b = device.start(QueueId(3), Op::Launch(second), None).unwrap();
    let done = wait(device, b);
    assert!(done.end_ns >= done.start_ns);
    assert_ne!(a, b);
    let got = words(device, out, 256);
    assert_eq!((got[0], got[127], got[128]), (0, 127, 1128));
}

/// Operations that end unnoticed on one queue, then one on another, then one behind which nothing
/// comes: all end, in order, and what they took adds up to no more than passed.
fn ends_may_be_told_together<D: Device>(device: &mut D) {
    let module = load(device);
    let out = device.alloc(4096).unwrap();
    let iota = |base: u64| Op::Launch(launch(&module, "iota", 4, 32, &[out, base]));
    let began_ns = device.now_ns();
    let mut started = Vec::new();
    for base in 0..5 {
        started.push(device.start_open(QueueId(3), iota(base)).unwrap());
    }
    started.push(device.start(QueueId(3), iota(5), None).unwrap());
    started.push(device.start_open(QueueId(3), iota(6)).unwrap());
    started.push(device.start_open(QueueId(4), iota(7)).unwrap());
    started.push(device.start(QueueId(4), iota(8), Some(1_000_000)).unwrap());
    started.push(device.start_open(QueueId(4), iota(9)).unwrap());
    let (mut ended, mut took_ns, mut last_ns) = (Vec::new(), 0, 0);
    while ended.len() < started.len() {
        let driven = device.drive(1_000_000);
        while let Some(done) = device.poll() {
            assert_eq!(done.outcome, Outcome::Done);
            assert!(done.start_ns >= last_ns && done.end_ns >= done.start_ns, "{done:?}");
            last_ns = done.end_ns;
            took_ns += done.end_ns - done.start_ns;
            ended.push(done.op);
        }
        assert!(driven != Driven::Idle || ended.len() == started.len(), "{ended:?} of {started:?}");
    }
    assert_eq!(ended, started);
    // The device's clock and the host's agree to some microseconds.
    let passed_ns = device.now_ns() - began_ns;
    assert!(took_ns > 0 && took_ns <= passed_ns + 200_000, "{took_ns} ns in {passed_ns} ns");
    assert_eq!(words(device, out, 2), [9, 10]);
}

fn a_fault_ends_what_is_open<D: Device>(device: &mut D) {
    let module = load(device);
    let op = || Op::Launch(launch(&module, "traps", 1, 1, &[]));
    let first = device.start_open(QueueId(3), op()).unwrap();
    let _ = device.start_open(QueueId(3), op());
    let ended = wait(device, first);
    assert!(matches!(ended.outcome, Outcome::Fault(_)), "{ended:?}");
}

fn globals_live_as_long_as_the_module<D: Device>(device: &mut D) {
    let module = load(device);
    let out = device.alloc(4).unwrap();
    for expected in [23, 24] {
        done(device, Op::Launch(launch(&module, "state", 1, 1, &[out])));
        assert_eq!(words(device, out, 1), [expected]);
    }
    let counter = module.globals.iter().find(|g| g.name == "counter").unwrap().address;
    upload(device, counter, 99u32.to_le_bytes().to_vec());
    done(device, Op::Launch(launch(&module, "state", 1, 1, &[out])));
    assert_eq!(words(device, out, 1), [122]);
    device.unload(module.id);
}

fn dynamic_shared_memory<D: Device>(device: &mut D) {
    let module = load(device);
    let out = device.alloc(4096).unwrap();
    let mut reverse = launch(&module, "reverse", 1, 96, &[out]);
    reverse.shared_bytes = 96 * 4;
    done(device, Op::Launch(reverse));
    let expected: Vec<u32> = (0..96).rev().collect();
    assert_eq!(words(device, out, 96), expected);
}

/// More than any GPU executes at a time.
const RANGE_BLOCKS: u32 = 20_000;

fn blocks_run_in_ranges<D: Device>(device: &mut D) {
    if !device.info().capabilities.slice_blocks {
        return;
    }
    let module = load(device);
    let out = device.alloc(4).unwrap();
    let mut piece = launch(&module, "count", RANGE_BLOCKS, 64, &[out]);
    let mut pieces = 0;
    loop {
        pieces += 1;
        match run_for(device, Op::Launch(piece.clone()), Some(1)).outcome {
            Outcome::Done => break,
            Outcome::Partial { reached } => {
                assert!(reached > piece.first_block && reached < RANGE_BLOCKS.into());
                piece.first_block = reached;
            }
            Outcome::Fault(fault) => panic!("{fault:?}"),
        }
    }
    assert!(pieces > 1, "a limit of 1 ns stops early");
    assert_eq!(words(device, out, 1), [64 * RANGE_BLOCKS]);
}

fn too_large_a_block_is_refused<D: Device>(device: &mut D) {
    let module = load(device);
    let refused =
        device.start(QueueId(0), Op::Launch(launch(&module, "traps", 1, 2048, &[])), None);
    assert!(matches!(refused, Err(DeviceError::LaunchResources(_))), "{refused:?}");
}

fn fault_of<D: Device>(device: &mut D, op: Op) -> crate::Fault {
    match run(device, op).outcome {
        Outcome::Fault(fault) => *fault,
        other @ (Outcome::Done | Outcome::Partial { .. }) => {
            panic!("{other:?} instead of a fault")
        }
    }
}

fn a_wild_store_faults<D: Device>(device: &mut D) {
    let module = load(device);
    let fault = fault_of(device, Op::Launch(launch(&module, "store", 1, 1, &[8])));
    assert_eq!(fault.kind, FaultKind::IllegalAddress);
}

fn a_trap_faults<D: Device>(device: &mut D) {
    let module = load(device);
    let fault = fault_of(device, Op::Launch(launch(&module, "traps", 1, 1, &[])));
    assert!(matches!(fault.kind, FaultKind::Trap | FaultKind::IllegalInstruction), "{fault:?}");
}

fn an_endless_kernel_can_be_aborted<D: Device>(device: &mut D) {
    if !device.info().capabilities.cancel {
        return;
    }
    let module = load(device);
    let endless = launch(&module, "endless", 1, 32, &[]);
    let op = device.start(QueueId(0), Op::Launch(endless), None).unwrap();
    for _ in 0..3 {
        device.drive(100_000);
        assert_eq!(device.poll(), None);
    }
    device.abort(op);
    let done = wait(device, op);
    let Outcome::Fault(fault) = done.outcome else { panic!("{:?}", done.outcome) };
    assert_eq!(fault.kind, FaultKind::Timeout);
}
