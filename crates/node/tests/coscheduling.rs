//! Boosts of a real daemon: how they end, whatever anybody does, and who gets none.
//!
//! The tenant is this process. Its waiting thread becomes real-time for at most a millisecond,
//! which the watchdog sees to; where that is not allowed the tests say so and pass.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is a test's report")]

mod support;

use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use weft_node::admin::CoschedulingReport;
use weft_ring::priority::{self, Class, Treatment};
use weft_ring::{
    Access, AtomicU64, Cells, ClientOptions, ClientSide, MemoryFile, Ordering, Segment, peer,
};
use weft_wire::codec::decode_all;
use weft_wire::command::{COMMAND_BYTES_MAX, FillSpec};
use weft_wire::id::{ContextId, StreamId};
use weft_wire::{Command as WireCommand, reply};

use self::support::{DEADLINE, Node, eventually, hello};

const CONTEXT: ContextId = ContextId { index: 1, generation: 1 };
const STREAM: StreamId = StreamId { index: 1, generation: 1 };

/// Where the table of waiting threads lies in a segment, a word per answer slot: what a hostile
/// tenant knows too.
const WAITING: (usize, usize) = (2048, 256);

/// A daemon that boosts, on a device whose fills take 400 µs.
const SETTINGS: [&str; 4] = [
    "device.clock=paced",
    "device.model.copy_base_ns=400000",
    "scheduling.coscheduling=boost",
    "log.level=warn",
];

fn start() -> Node {
    Node::start(&SETTINGS)
}

fn report(node: &Node) -> CoschedulingReport {
    node.admin().stats().unwrap().coscheduling
}

fn signal(node: &Node, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(&node.process);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A session of this process, whose calling thread fills memory and waits for it.
struct Tenant {
    side: ClientSide,
    waiting: Cells<AtomicU64>,
    address: u64,
    _kept: Vec<OwnedFd>,
}

impl Tenant {
    fn attach(node: &Node) -> Self {
        let mut hello = hello();
        hello.body.pid = std::process::id();
        let (_, mut kept) = node.attach(&hello);
        let segment = MemoryFile::received(kept.remove(0)).unwrap();
        let memory = segment.map(Access::ReadWrite).unwrap();
        let waiting = memory.cells(WAITING.0, WAITING.1).unwrap();
        let segment = Segment::open(memory).unwrap();
        let side = ClientSide::open(segment, ClientOptions::default(), Box::new(|| true)).unwrap();
        let mut tenant = Self { side, waiting, address: 0, _kept: kept };
        tenant.submit(&WireCommand::ContextCreate { context: CONTEXT });
        let create = WireCommand::StreamCreate {
            context: CONTEXT,
            stream: STREAM,
            blocking: false,
            priority: 0,
        };
        tenant.submit(&create);
        let alloc = WireCommand::MemAlloc { context: CONTEXT, bytes: 4096 };
        let answer = tenant.call(&alloc);
        tenant.address = decode_all::<reply::Address>(&answer).unwrap().address;
        tenant
    }

    fn submit(&self, command: &WireCommand<'_>) {
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let len = command.encode(&mut bytes).unwrap();
        self.side.submit(&bytes[..len]).unwrap();
    }

    fn call(&self, command: &WireCommand<'_>) -> Vec<u8> {
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let len = command.encode(&mut bytes).unwrap();
        let mut body = [0; 64];
        let answer = self.side.call(&bytes[..len], &mut body).unwrap();
        assert_eq!(answer.status, 0);
        body[..answer.len].to_vec()
    }

    /// A piece of work.
    fn fill(&self) {
        let fill = FillSpec {
            address: self.address,
            pitch: 64,
            width: 64,
            height: 1,
            element: 1,
            value: 7,
        };
        self.submit(&WireCommand::Fill { stream: STREAM, fill });
    }

    /// A piece of work and the wait for it.
    fn work(&self) {
        self.fill();
        self.call(&WireCommand::StreamSynchronize { stream: STREAM });
    }

    /// Works until this thread comes back boosted.
    fn work_until_boosted(&self) {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            self.work();
            if is_boosted() {
                return;
            }
        }
        panic!("no boost");
    }
}

fn is_boosted() -> bool {
    matches!(Treatment::of(0).unwrap().class, Class::Realtime(_))
}

/// Whether threads may be boosted here at all.
fn can_boost() -> bool {
    let can = priority::make_realtime(0, 1).is_ok();
    if can {
        priority::make_normal(0, false).unwrap();
        // On a busy machine the node's worker would come so late that its tenant made too few calls
        // to count as interactive: this process and what it starts go first.
        rustix::process::setpriority_process(None, -19).unwrap();
    } else {
        eprintln!("not run: no real-time priority on this machine");
    }
    can
}

#[test]
fn a_boost_ends_with_the_next_command_and_leaves_no_trace() {
    if !can_boost() {
        return;
    }
    let node = start();
    let tenant = Tenant::attach(&node);
    for _ in 0..3 {
        tenant.work_until_boosted();
        tenant.fill();
        assert!(!is_boosted(), "the command ended the boost");
    }
    eventually("the daemon to clear up", || {
        tenant.work();
        let after = Treatment::of(0).unwrap();
        after.class == Class::Normal && !after.resets_on_fork
    });
    // One that came too late for its result is ended at once and does not count.
    eventually("three boosts in the report", || {
        tenant.work();
        report(&node).boosts >= 3
    });
    assert_eq!(report(&node).means, "boost");
}

#[test]
fn a_lone_tenant_is_boosted_on_and_on() {
    if !can_boost() {
        return;
    }
    let node = start();
    let tenant = Tenant::attach(&node);
    // More than a turn's bound, in a turn that nobody ends.
    eventually("the bound on a turn to be renewed", || {
        tenant.work_until_boosted();
        report(&node).boosted_ns > 3_000_000
    });
}

#[test]
fn the_watchdog_ends_a_boost_at_its_limit_while_the_daemon_stands_still() {
    if !can_boost() {
        return;
    }
    let node = start();
    let tenant = Tenant::attach(&node);
    // The daemon may have ended a boost itself just before it stood still: then once more.
    for _ in 0..20 {
        tenant.work_until_boosted();
        signal(&node, rustix::process::Signal::STOP);
        // The thread keeps its boost: it sends nothing and sleeps.
        eventually("the end of the boost", || !is_boosted());
        signal(&node, rustix::process::Signal::CONT);
        if report(&node).ended_by_watchdog > 0 {
            return;
        }
    }
    panic!("the watchdog ended no boost: {:?}", report(&node));
}

#[test]
fn a_killed_daemon_leaves_no_thread_boosted() {
    if !can_boost() {
        return;
    }
    let mut node = start();
    let tenant = Tenant::attach(&node);
    tenant.work_until_boosted();
    let watchdog = report(&node).watchdog.unwrap();
    let watchdog = peer::Process::open(watchdog).unwrap();
    tenant.work_until_boosted();
    node.kill();
    eventually("the end of the boost", || !is_boosted());
    assert!(watchdog.wait_exit(DEADLINE), "the watchdog ends with its daemon");
    // A new daemon adopts the session and boosts again.
    node.restart(&SETTINGS);
    tenant.work_until_boosted();
    eventually("the end of the boost", || !is_boosted());
}

#[test]
fn both_killed_the_next_daemon_ends_the_boost() {
    if !can_boost() {
        return;
    }
    let mut node = start();
    let tenant = Tenant::attach(&node);
    tenant.work_until_boosted();
    let watchdog = peer::Process::open(report(&node).watchdog.unwrap()).unwrap();
    // As if daemon and watchdog had died at once, in the middle of a boost.
    watchdog.kill().unwrap();
    node.kill();
    // This thread only sleeps until the boost is over.
    priority::make_realtime(0, 1).unwrap();
    node.launch(&SETTINGS);
    eventually("the end of the boost", || !is_boosted());
    node.wait_until_ready();
    tenant.work();
}

#[test]
fn children_of_a_boosted_thread_are_ordinary() {
    if !can_boost() {
        return;
    }
    let node = start();
    let tenant = Tenant::attach(&node);
    for _ in 0..5 {
        tenant.work_until_boosted();
        let output = Command::new("cat").arg("/proc/self/stat").output().unwrap();
        let stat = String::from_utf8(output.stdout).unwrap();
        // The 41st field of all, the 39th after the name, is the policy.
        let policy = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38).unwrap();
        assert_eq!(policy, "0", "{stat}");
    }
}

#[test]
fn a_thread_of_somebody_else_is_refused() {
    if !can_boost() {
        return;
    }
    let node = start();
    let tenant = Tenant::attach(&node);
    let mut victim = Command::new("sleep").arg("600").spawn().unwrap();
    let victim_id = victim.id();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Every thread that waits is said to be the victim.
            while !stop.load(Ordering::Relaxed) {
                for word in tenant.waiting.iter() {
                    let was = word.load(Ordering::Relaxed);
                    let lie = was & !u64::from(u32::MAX) | u64::from(victim_id);
                    if was != 0 && was != lie {
                        let (ok, no) = (Ordering::SeqCst, Ordering::Relaxed);
                        let _ = word.compare_exchange(was, lie, ok, no);
                    }
                }
                assert_eq!(Treatment::of(victim_id).unwrap().class, Class::Normal);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        let deadline = Instant::now() + DEADLINE;
        // A few lies, and none is listened to any more.
        while report(&node).refused < 9 && Instant::now() < deadline {
            tenant.work();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let before = report(&node);
    for _ in 0..50 {
        tenant.work();
    }
    let after = report(&node);
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(before.refused >= 9, "{before:?}");
    assert_eq!(after.boosts, before.boosts, "a liar is not boosted any more");
}
