//! What a misbehaving kernel, a refusal and a lost device mean to everybody else.

mod common;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{
    Bench, CONTEXT, LEGACY, cut, device_side, event, fill, host_side, linear, spec, stream,
};
use weft_device::{Fault, FaultKind, Outcome};
use weft_exec::{Limits, status_of};
use weft_wire::command::Payload;
use weft_wire::id::ContextId;
use weft_wire::{Command, Status, progress};

fn fault(kind: FaultKind) -> Outcome {
    Outcome::Fault(Box::new(Fault {
        kind,
        kernel: "first".into(),
        block: [1, 0, 0],
        thread: [3, 0, 0],
        address: Some(0xdead),
        line: 12,
        detail: "st.global.u32".into(),
    }))
}

#[test]
fn a_fault_answers_all_who_wait_and_all_who_come() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false), (2, false)]);
    bench.create_event(0);
    bench.launch(stream(1), 0);
    bench.launch(stream(1), 1);
    bench.launch(stream(2), 1);
    let first = bench.session.start_next(None, false, &mut bench.out);
    assert_eq!(first, weft_exec::Started::Flying);
    bench.send(&Command::EventRecord { event: event(0), stream: stream(1), record: 1 });
    let waits = [
        Command::StreamSynchronize { stream: stream(1) },
        Command::StreamSynchronize { stream: stream(2) },
        Command::ContextSynchronize { context: CONTEXT },
        Command::EventSynchronize { event: event(0), record: 1 },
        Command::HostFunctionNext {},
    ];
    let waits = waits.map(|wait| bench.call(&wait));
    bench.end_as(fault(FaultKind::IllegalAddress));
    let status = Some(Status::ILLEGAL_ADDRESS);
    assert_eq!(waits.map(|wait| bench.status(wait)), [status; 5]);
    assert_eq!(bench.out.notices.get(&progress::NOTICE_FAULT), Some(&700));
    assert_eq!((bench.word(stream(1)), bench.word(stream(2))), (3, 1), "what was dropped counts");
    bench.launch(stream(1), 0);
    assert!(!bench.session.has_ready_work());
    assert_eq!(bench.word(stream(1)), 4);
    let alloc = Command::MemAlloc { context: CONTEXT, bytes: 64 };
    for command in [Command::Ping {}, Command::StreamQuery { stream: LEGACY }, alloc] {
        assert_eq!(Some(bench.ask(&command)), status);
    }
}

#[test]
fn a_fault_completes_the_records_that_other_sessions_wait_for() {
    let mut bench = Bench::new();
    let cell = bench.buffer;
    assert_eq!(bench.ask(&Command::SharedEventCreate { cell }), Status::SUCCESS);
    bench.launch(LEGACY, 0);
    assert_eq!(bench.ask(&Command::SharedEventRecord { cell, stream: LEGACY }), Status::SUCCESS);
    bench.start_all();
    bench.end_as(fault(FaultKind::Trap));
    let completed = bench.fake.borrow().shared.as_ref().unwrap().cell::<AtomicU64>(8).unwrap();
    assert_eq!(completed.load(Ordering::Acquire), 1);
}

#[test]
fn a_fault_ends_with_the_contexts_that_saw_it() {
    let mut bench = Bench::new();
    bench.launch(LEGACY, 0);
    bench.start_all();
    bench.end_as(fault(FaultKind::Trap));
    let fresh = ContextId { index: 1, generation: 1 };
    bench.send(&Command::ContextCreate { context: fresh });
    assert_eq!(bench.ask(&Command::Ping {}), Status::LAUNCH_FAILED);
    assert_eq!(bench.ask(&Command::ContextDestroy { context: CONTEXT }), Status::SUCCESS);
    assert_eq!(bench.ask(&Command::Ping {}), Status::SUCCESS);
    assert_eq!(bench.out.notices.get(&progress::NOTICE_FAULT), Some(&0));
    assert!(bench.fake.borrow().allocations.is_empty());
    assert!(bench.fake.borrow().modules.is_empty());
    let alloc = Command::MemAlloc { context: fresh, bytes: 64 };
    assert_eq!(bench.ask(&alloc), Status::SUCCESS);
}

#[test]
fn a_context_goes_after_its_work() {
    let mut bench = Bench::new();
    bench.create_streams(&[(1, false)]);
    bench.launch(stream(1), 0);
    bench.launch(stream(1), 1);
    bench.start_all();
    let destroy = bench.call(&Command::ContextDestroy { context: CONTEXT });
    bench.launch(stream(1), 0);
    assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_HANDLE, "the handles are gone");
    bench.end_one();
    assert_eq!(bench.status(destroy), None);
    assert_eq!(bench.fake.borrow().modules.len(), 1);
    bench.end_one();
    assert_eq!(bench.status(destroy), Some(Status::SUCCESS));
    assert!(bench.fake.borrow().modules.is_empty());
    assert!(bench.fake.borrow().allocations.is_empty());
}

#[test]
fn an_unmapped_range_is_refused_and_only_its_sender_hears_of_it() {
    let mut bench = Bench::new();
    bench.send(&Command::Fill { stream: LEGACY, fill: fill(0x10, 64) });
    bench.send(&Command::Fill { stream: LEGACY, fill: fill(bench.buffer, 64) });
    let block = bench.block(&[1; 64]);
    let release = block.release;
    let copy = bench.call(&Command::CopySync {
        stream: LEGACY,
        dst: device_side(bench.buffer + (1 << 20) - 63),
        src: host_side(Payload::Arena(block)),
        shape: linear(64),
    });
    let free = bench.call(&Command::MemFree { address: bench.buffer });
    let sync = bench.call(&Command::StreamSynchronize { stream: LEGACY });
    assert_eq!(bench.start_all(), [(0, 101)]);
    bench.run();
    assert_eq!(bench.status(copy), Some(Status::INVALID_VALUE));
    assert_eq!(bench.out.released.get(&release), Some(&1));
    assert_eq!(bench.status(free), Some(Status::SUCCESS));
    assert_eq!(bench.status(sync), Some(Status::INVALID_VALUE));
    assert_eq!(bench.out.notices.get(&progress::NOTICE_REFUSED), Some(&1));
    assert_eq!(bench.word(LEGACY), 3);
}

#[test]
fn launches_beyond_the_limits_are_refused() {
    let mut bench = Bench::new();
    let bad = [
        weft_wire::command::LaunchSpec { grid: [0, 1, 1], ..spec(0) },
        weft_wire::command::LaunchSpec { grid: [1, 65_536, 1], ..spec(0) },
        weft_wire::command::LaunchSpec { block: [1024, 1, 1], ..spec(0) },
        weft_wire::command::LaunchSpec { block: [8, 8, 65], ..spec(0) },
        weft_wire::command::LaunchSpec { block: [u32::MAX; 3], ..spec(0) },
        weft_wire::command::LaunchSpec { shared_bytes: 48 << 10, ..spec(0) },
        weft_wire::command::LaunchSpec { params: Payload::Inline(&[0; 7]), ..spec(0) },
    ];
    for launch in bad {
        bench.send(&Command::Launch { stream: LEGACY, launch });
        assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_VALUE);
    }
    bench.launch(LEGACY, 2);
    assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_HANDLE);
    assert!(bench.fake.borrow().started.is_empty());
}

#[test]
fn a_kernel_that_executes_too_long_is_ended() {
    let limits = Limits { kernel_ns: NonZeroU64::new(10_000), ..Limits::default() };
    let mut bench = Bench::with(limits);
    bench.launch(LEGACY, 0);
    assert_eq!(
        bench.session.start_next(Some(cut(1000)), false, &mut bench.out),
        weft_exec::Started::Flying
    );
    bench.fake.borrow_mut().drive_ns = 3000;
    for _ in 0..2 {
        bench.session.drive(1000, &mut bench.out);
    }
    bench.end_as(Outcome::Partial { reached: 1 });
    bench.start_all();
    for _ in 0..2 {
        bench.session.drive(1000, &mut bench.out);
    }
    assert!(bench.fake.borrow().aborted.is_empty());
    for _ in 0..4 {
        bench.session.drive(1000, &mut bench.out);
    }
    assert_eq!(bench.fake.borrow().aborted.len(), 1, "asked once");
    bench.end_as(fault(FaultKind::Timeout));
    assert_eq!(bench.ask(&Command::Ping {}), Status::LAUNCH_TIMEOUT);
}

#[test]
fn a_limit_counts_what_the_kernel_had_of_the_device() {
    let limits = Limits { kernel_ns: NonZeroU64::new(10_000), ..Limits::default() };
    let mut bench = Bench::with(limits);
    bench.launch(LEGACY, 0);
    bench.start_all();
    // Other load takes the processor nearly all the time.
    bench.fake.borrow_mut().drive_ns = 1_000_000;
    for step in 0..10 {
        bench.fake.borrow_mut().occupied_ns = Some(step * 1000);
        bench.session.drive(1000, &mut bench.out);
        assert!(bench.fake.borrow().aborted.is_empty(), "step {step}");
    }
    bench.fake.borrow_mut().occupied_ns = Some(10_000);
    bench.session.drive(1000, &mut bench.out);
    assert_eq!(bench.fake.borrow().aborted.len(), 1);
}

#[test]
fn without_a_limit_a_kernel_is_ended_only_with_its_context() {
    let mut bench = Bench::with(Limits::default());
    bench.launch(LEGACY, 0);
    bench.start_all();
    bench.fake.borrow_mut().drive_ns = 9_000_000_000;
    for _ in 0..1000 {
        bench.session.drive(1000, &mut bench.out);
    }
    assert!(bench.fake.borrow().aborted.is_empty());
    let _caller = bench.call(&Command::ContextDestroy { context: CONTEXT });
    for _ in 0..2 {
        bench.session.drive(1000, &mut bench.out);
    }
    assert_eq!(bench.fake.borrow().aborted.len(), 1, "nobody waits for ever");
}

#[test]
fn every_fault_of_a_kernel_is_sticky() {
    let kinds = [
        FaultKind::IllegalAddress,
        FaultKind::MisalignedAddress,
        FaultKind::InvalidAddressSpace,
        FaultKind::InvalidPc,
        FaultKind::IllegalInstruction,
        FaultKind::Trap,
        FaultKind::Assert,
        FaultKind::StackOverflow,
        FaultKind::Timeout,
    ];
    for kind in kinds {
        assert!(status_of(kind).is_sticky(), "{kind:?}");
    }
}
