//! The paced clock.

use super::super::{Clock, KernelModel, PacedModel, SoftDevice};
use super::{Arg, Bench, faults::kernel};
use crate::{Completion, Device, Driven, Launch, Op, Outcome, QueueId};

fn bench(ns: u64) -> Bench {
    let model = PacedModel {
        kernels: vec![KernelModel { kernel: "k".to_owned(), ns, ns_per_block: 0 }],
        ..PacedModel::default()
    };
    let mut device = SoftDevice::local(16 << 20, 1 << 40, 1 << 30, Clock::Paced(model)).unwrap();
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

#[test]
fn pieces_of_a_launch_add_up() {
    let mut bench = bench(1_000_000);
    let address = bench.upload(&[0]);
    let mut launch: Launch = bench.launch("k", 100, 1, &[Arg::U64(address)]);
    launch.max_ns = Some(250_000);
    let mut sum = 0;
    loop {
        bench.device.start(QueueId(0), Op::Launch(launch.clone())).unwrap();
        let done = completions(&mut bench.device).remove(0);
        sum += done.end_ns - done.start_ns;
        match done.outcome {
            Outcome::Done => break,
            Outcome::Partial { next_block } => {
                assert_eq!(next_block - launch.first_block, 25);
                launch.first_block = next_block;
            }
            Outcome::Fault(fault) => panic!("{fault:?}"),
        }
    }
    assert_eq!(sum, 1_000_000);
    assert_eq!(bench.words(address, 1), [100]);
}
