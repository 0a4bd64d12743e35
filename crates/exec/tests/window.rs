//! The pinned window: nothing of it is used that was not granted and taken.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]

mod common;

use common::{Bench, CONTEXT, GRAPH, PINNED_BYTES, device_side, host_side, linear, stream};
use weft_device::PAGE;
use weft_wire::codec::encode_to_vec;
use weft_wire::command::{Comparison, GraphNode, GraphWork, Payload};
use weft_wire::{Command, Status};

const STREAM: u32 = 1;

/// How a copy of a page of the window to the device ends.
fn copied(bench: &mut Bench, page: u64) -> Status {
    let src = Payload::Pinned { address: bench.shared.pinned_base + page * PAGE, bytes: PAGE };
    let (dst, src) = (device_side(bench.buffer), host_side(src));
    bench.send(&Command::Copy { stream: stream(STREAM), dst, src, shape: linear(PAGE) });
    bench.run();
    bench.ask(&Command::ContextSynchronize { context: CONTEXT })
}

fn first_byte(bench: &Bench) -> u8 {
    let mut byte = [0];
    bench.shared.pinned.read_at(0, &mut byte).unwrap();
    byte[0]
}

fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.create_streams(&[(STREAM, false)]);
    bench
}

#[test]
fn a_page_that_nobody_took_is_refused_wherever_it_is_named() {
    let mut bench = bench();
    bench.pin(1, 2);
    assert_eq!(copied(&mut bench, 1), Status::SUCCESS);
    for page in [0, 3] {
        assert_eq!(copied(&mut bench, page), Status::INVALID_VALUE, "page {page}");
    }
    let address = bench.shared.pinned_base;
    let comparison = Comparison::Equal;
    let (stream, value, wide) = (stream(STREAM), 1, true);
    bench.send(&Command::StreamWaitValue { stream, address, value, wide, comparison });
    bench.send(&Command::StreamWriteValue { stream, address, value, wide });
    bench.run();
    assert_eq!(bench.ask(&Command::Ping {}), Status::INVALID_VALUE);
}

#[test]
fn no_more_is_taken_than_was_granted_and_no_less_granted_than_is_taken() {
    let mut bench = bench();
    bench.pin(0, 1);
    let base = bench.shared.pinned_base;
    bench.send(&Command::PinnedRange { address: base + PAGE, bytes: PAGE, used: 1 });
    assert_eq!(bench.ask(&Command::Ping {}), Status::OUT_OF_MEMORY);
    assert_eq!(copied(&mut bench, 1), Status::INVALID_VALUE);
    let map = |host| Command::HostMap { host, address: base + PAGE, bytes: PAGE };
    assert_eq!(bench.ask(&map(1 << 40)), Status::OUT_OF_MEMORY);
    assert_eq!(bench.ask(&Command::PinnedQuota { bytes: 0 }), Status::INVALID_VALUE);
    let beyond = PINNED_BYTES as u64 + 1;
    assert_eq!(bench.ask(&Command::PinnedQuota { bytes: beyond }), Status::OUT_OF_MEMORY);
}

#[test]
fn what_was_given_back_counts_until_its_users_have_ended_and_is_cleared_then() {
    let mut bench = bench();
    bench.pin(0, 2);
    bench.shared.pinned.write_at(0, &[7; 64]).unwrap();
    let base = bench.shared.pinned_base;
    let src = host_side(Payload::Pinned { address: base, bytes: PAGE });
    let (stream, dst) = (stream(STREAM), device_side(bench.buffer));
    bench.send(&Command::Copy { stream, dst, src, shape: linear(PAGE) });
    bench.send(&Command::PinnedRange { address: base, bytes: 2 * PAGE, used: 0 });
    assert_eq!(bench.session.pinned_bytes_if(0), 2 * PAGE);
    let less = bench.call(&Command::PinnedQuota { bytes: 0 });
    assert_eq!((bench.status(less), bench.session.pinned_bytes()), (None, 2 * PAGE));
    assert_eq!(first_byte(&bench), 7, "a copy that was accepted may still read it");
    bench.run();
    assert_eq!((bench.status(less), bench.session.pinned_bytes()), (Some(Status::SUCCESS), 0));
    assert_eq!(first_byte(&bench), 0);
    assert_eq!(copied(&mut bench, 0), Status::INVALID_VALUE);
    bench.pin(1, 1);
    assert_eq!(copied(&mut bench, 1), Status::SUCCESS);
}

#[test]
fn a_graph_does_not_keep_what_was_given_back() {
    let mut bench = bench();
    bench.pin(0, 1);
    let base = bench.shared.pinned_base;
    let src = host_side(Payload::Pinned { address: base, bytes: PAGE });
    let work = GraphWork::Copy { dst: device_side(bench.buffer), src, shape: linear(PAGE) };
    let nodes = encode_to_vec(&vec![GraphNode { after: vec![], work }], 4096).unwrap();
    let nodes = bench.block(&nodes);
    let made = Command::GraphInstantiate { context: CONTEXT, graph: GRAPH, nodes };
    assert_eq!(bench.ask(&made), Status::SUCCESS);
    let launched = |bench: &mut Bench| {
        bench.send(&Command::GraphLaunch { graph: GRAPH, stream: stream(STREAM) });
        bench.run();
        bench.ask(&Command::ContextSynchronize { context: CONTEXT })
    };
    assert_eq!(launched(&mut bench), Status::SUCCESS);
    bench.send(&Command::PinnedRange { address: base, bytes: PAGE, used: 0 });
    assert_eq!(launched(&mut bench), Status::INVALID_VALUE);
    assert_eq!(bench.ask(&Command::PinnedQuota { bytes: 0 }), Status::SUCCESS);
    bench.pin(0, 1);
    assert_eq!(launched(&mut bench), Status::SUCCESS, "it is the tenant's again");
}
