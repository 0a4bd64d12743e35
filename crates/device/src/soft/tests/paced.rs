//! The paced clock.

use weft_ring::SharedMemory;

use super::super::{
    Clock, FrameStore, KernelModel, MemoryConfig, PacedModel, SoftConfig, SoftDevice,
};
use super::{Arg, Bench, faults::kernel};
use crate::{
    Completion, DEVICE_PAGE_BYTES, Device, DevicePage, Driven, Launch, LocalFrames, Op, Outcome,
    QueueId,
};

fn bench(ns: u64) -> Bench {
    bench_on(ns, None)
}

/// A device whose kernel `k` takes `ns`, with a device page or without.
fn bench_on(ns: u64, page: Option<DevicePage>) -> Bench {
    let model = PacedModel {
        kernels: vec![KernelModel { kernel: "k".to_owned(), ns, ns_per_block: 0 }],
        ..PacedModel::default()
    };
    let bytes = 16 << 20;
    let memory = MemoryConfig {
        store: FrameStore::local(bytes).unwrap(),
        source: Box::new(LocalFrames::new(bytes)),
        base: 1 << 40,
        len: 1 << 30,
        window: None,
        exact_bounds: false,
    };
    let clock = Clock::Paced(model);
    let page = page.map(|page| (page, 1));
    let mut device = SoftDevice::new(SoftConfig { memory, memory_bytes: bytes, clock, page });
    let text = kernel("", "red.global.add.u32 [%rd1], 1;");
    let module = device.load(&[text.as_bytes()]).unwrap();
    Bench { device, module }
}

fn completions(device: &mut SoftDevice) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let driven = device.drive(1_000_000);
        while let Some(done) = device.poll() {
            assert!(done.end_ns <= device.now_ns(), "completed before it was due");
            all.push(done);
        }
        if driven == Driven::Idle {
            return all;
        }
    }
}

#[test]
fn operations_take_the_modelled_time_one_after_the_other() {
    let mut bench = bench(300_000);
    let address = bench.upload(&[0]);
    let launch = bench.launch("k", 4, 32, &[Arg::U64(address)]);
    assert_eq!(bench.device.estimate_ns(&Op::Launch(launch.clone())), Some(300_000));
    for _ in 0..3 {
        bench.start(launch.clone());
    }
    let done = completions(&mut bench.device);
    assert_eq!(done.len(), 3);
    for (i, d) in done.iter().enumerate() {
        assert_eq!(d.end_ns - d.start_ns, 300_000);
        assert!(i == 0 || d.start_ns >= done[i - 1].end_ns);
    }
    assert_eq!(bench.words(address, 1), [3 * 128], "kernels really execute");
}

/// Those behind it wait for as long as it really takes.
#[test]
fn what_outlasts_its_model_takes_its_own_time() {
    let mut bench = bench(10);
    let address = bench.upload(&[0]);
    bench.start(bench.launch("k", 1000, 32, &[Arg::U64(address)]));
    let done = completions(&mut bench.device).remove(0);
    // A block takes more than a nanosecond.
    assert!(done.end_ns - done.start_ns > 1000, "{done:?}");
}

#[test]
fn pieces_of_a_launch_add_up() {
    let mut bench = bench(1_000_000);
    let address = bench.upload(&[0]);
    let mut launch: Launch = bench.launch("k", 100, 1, &[Arg::U64(address)]);
    let limit = Some(250_000);
    let mut sum = 0;
    loop {
        bench.device.start(QueueId(0), Op::Launch(launch.clone()), limit).unwrap();
        let done = completions(&mut bench.device).remove(0);
        sum += done.end_ns - done.start_ns;
        match done.outcome {
            Outcome::Done => break,
            Outcome::Partial { reached } => {
                assert_eq!(reached - launch.first_block, 25);
                launch.first_block = reached;
            }
            Outcome::Fault(fault) => panic!("{fault:?}"),
        }
    }
    assert_eq!(sum, 1_000_000);
    assert_eq!(bench.words(address, 1), [100]);
}

#[test]
fn a_slow_kernel_is_an_overrun_and_one_that_began_late_is_late() {
    let page = DevicePage::open(&SharedMemory::anonymous(DEVICE_PAGE_BYTES).unwrap()).unwrap();
    let mut late = bench_on(1_000_000, Some(page.clone()));
    let address = late.upload(&[0]);
    let before = page.totals();
    late.start(late.launch("k", 1, 1, &[Arg::U64(address)]));
    // Nobody drives the device until the kernel is due.
    let due_ns = page.timeline_end_ns();
    while late.device.now_ns() <= due_ns {
        std::hint::spin_loop();
    }
    completions(&mut late.device);
    let after = page.totals();
    assert_eq!((after.late, after.overruns), (before.late + 1, before.overruns));
    // A model of one nanosecond is too short for 1,000 blocks.
    let mut slow = bench_on(1, Some(page.clone()));
    let address = slow.upload(&[0]);
    let before = page.totals();
    slow.start(slow.launch("k", 1000, 32, &[Arg::U64(address)]));
    completions(&mut slow.device);
    let after = page.totals();
    assert_eq!((after.late, after.overruns), (before.late, before.overruns + 1));
}
