//! What a hostile local user tries on a real daemon, beside somebody who works.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is a test's report")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use weft_ring::{
    Access, AtomicU64, ClientOptions, ClientSide, MemoryFile, Ordering, Segment, peer,
};
use weft_wire::codec::{Field, decode_all};
use weft_wire::command::{Block, Endpoint, FillSpec, LaunchSpec, Payload, Place, Shape};
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, RefusalCode};
use weft_wire::id::{ContextId, ModuleId, StreamId};
use weft_wire::{Command as WireCommand, Status, reply};

use self::support::{DEADLINE, Node, as_user, eventually, hello};

/// A user who is not this test's.
const OTHER_USER: u32 = 64_001;

/// A holder that was stopped is killed so long after it was granted the device, if anybody waits: a
/// quantum and 250 ms (`docs/architecture.md`).
const STOPPED_GRACE: Duration = Duration::from_millis(256);

/// A program of `tests/programs`, which `cargo xtask test` compiles, that attacks something.
struct Attack {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Attack {
    fn start(name: &str, arguments: &[PathBuf]) -> Self {
        let programs = std::env::var_os("WEFT_TEST_PROGRAMS");
        let programs = PathBuf::from(programs.expect("run the tests with `cargo xtask test`"));
        let mut command = Command::new(programs.join(name));
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Threads of the daemon that serve tenants.
fn tenant_threads(node: &Node) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.process.id())).unwrap();
    let names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.flatten().filter(|name| name.trim() == "tenant").count()
}

#[test]
fn a_file_that_is_never_closed_holds_nobody() {
    let mut node = Node::start(&["limits.attach_ms=500"]);
    let mount = tempfile::tempdir().unwrap();
    let sockets = [node.path("tenant.sock"), node.path("admin.sock")];
    let arguments: Vec<PathBuf> = std::iter::once(mount.path().to_owned()).chain(sockets).collect();
    let mut attack = Attack::start("fuse_file", &arguments);
    let outcome = attack.line();
    if outcome.starts_with("skipped") {
        let can =
            std::path::Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
        assert!(!can, "this machine has FUSE: {outcome}");
        eprintln!("no file system of a user's own here: {outcome}");
        return;
    }
    eprintln!("descriptors beside a hello: {outcome}; beside a request: {}", attack.line());
    drop(node.attach(&hello()));
    eventually("the session to end", || node.sessions() == 0);
    eventually("no thread to serve the attacker", || tenant_threads(&node) == 0);
    // A daemon that closes the file in one of its threads cannot even be killed.
    node.process.kill().unwrap();
    eventually("the killed daemon to be gone", || node.process.try_wait().unwrap().is_some());
    node.restart(&[]);
    drop(node.attach(&hello()));
}

#[test]
fn a_lock_that_a_killed_daemon_cannot_let_go_of_is_nobodys() {
    let directory = tempfile::tempdir().unwrap();
    let mut held = Attack::start("held_lock", &[directory.path().join("node.lock")]);
    assert_eq!(held.line(), "held");
    let node = Node::start_in(directory, &[]);
    drop(node.attach(&hello()));
}

#[test]
fn silent_connections_cost_others_nothing() {
    let node = Node::start(&["limits.attach_ms=20000"]);
    let silent: Vec<_> = (0..600).map(|_| peer::connect(&node.path("tenant.sock"))).collect();
    let silent: Vec<_> = silent.into_iter().filter_map(Result::ok).collect();
    let refused = silent.iter().filter(|socket| peer::has_hung_up(socket)).count();
    eprintln!("{} connections, {refused} refused so far", silent.len());
    // The bound is on those who say nothing: it holds for this test's own user as for any other.
    let (last, began) = (silent.last().unwrap(), Instant::now());
    let message = peer::receive(last, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
    let Answer::Refused { code, message } = Answer::from_bytes(&message.bytes).unwrap() else {
        panic!("a connection that said nothing was welcomed");
    };
    assert_eq!(code, RefusalCode::Exhausted as u16, "{message}");
    assert!(began.elapsed() < DEADLINE);
    assert_eq!(tenant_threads(&node), 0, "a thread serves somebody who has said nothing");
    // Another user is served meanwhile.
    if has_other_users() {
        node.open_to_others();
        as_user(OTHER_USER, || drop(node.attach(&hello())));
        let still = silent.iter().filter(|socket| !peer::has_hung_up(socket)).count();
        assert!(still > 0, "nobody was silent any more");
    }
    // Those who were let in and now speak are served, and so are others when they are gone.
    drop(silent);
    eventually("an attach to go through", || {
        let socket = peer::connect(&node.path("tenant.sock")).unwrap();
        peer::send(&socket, &hello().to_bytes().unwrap(), &[]).unwrap();
        let message = peer::receive(&socket, HANDSHAKE_BYTES_MAX).unwrap().unwrap();
        matches!(Answer::from_bytes(&message.bytes).unwrap(), Answer::Welcome(_))
    });
}

const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };
const TRAP: &str = ".version 7.5\n.target sm_75\n.address_size 64\n\
                    .visible .entry trap() { trap; }\n\
                    .visible .entry spin() { $again: bra $again; }\n";

/// A session without the shim, on a vGPU of its own.
struct Tenant {
    side: ClientSide,
    kept: Vec<OwnedFd>,
}

impl Tenant {
    fn attach(node: &Node, vgpu: &str) -> Self {
        let mut hello = hello();
        hello.body.vgpu = vgpu.to_owned();
        Self::of(node, &hello)
    }

    fn of(node: &Node, hello: &Hello) -> Self {
        Self::over(node.attach(hello).1)
    }

    /// The session of these descriptors.
    fn over(mut kept: Vec<OwnedFd>) -> Self {
        let segment = MemoryFile::received(kept.remove(0)).unwrap();
        let segment = Segment::open(segment.map(Access::ReadWrite).unwrap()).unwrap();
        let side = ClientSide::open(segment, ClientOptions::default(), Box::new(|| true)).unwrap();
        Self { side, kept }
    }

    fn submit(&self, command: &WireCommand<'_>) {
        self.side.submit(&encoded(command)).unwrap();
    }

    fn call(&self, command: &WireCommand<'_>) -> Status {
        let answer = self.side.call(&encoded(command), &mut [0; 4096]).unwrap();
        Status::from_peer(answer.status)
    }

    /// What a command that succeeds is answered.
    fn ask<T: for<'a> Field<'a>>(&self, command: &WireCommand<'_>) -> T {
        let mut body = [0; 64];
        let answer = self.side.call(&encoded(command), &mut body).unwrap();
        assert_eq!(Status::from_peer(answer.status), Status::SUCCESS, "{command:?}");
        decode_all(&body[..answer.len]).unwrap()
    }

    /// A context with the kernels above, of which there has been none of this number.
    fn load(&self, number: u32) -> (ContextId, ModuleId) {
        assert_eq!(self.try_load(number, TRAP), Status::SUCCESS);
        let module = ModuleId { index: 0, generation: number };
        (ContextId { generation: number, ..CONTEXT }, module)
    }

    fn try_load(&self, number: u32, text: &str) -> Status {
        let context = ContextId { generation: number, ..CONTEXT };
        let module = ModuleId { index: 0, generation: number };
        self.submit(&WireCommand::ContextCreate { context });
        let arena = self.side.arena();
        let (image, answer) =
            (arena.try_alloc(text.len()).unwrap(), arena.try_alloc(1 << 16).unwrap());
        image.span().unwrap().write_from(text.as_bytes()).unwrap();
        let named = |block: &weft_ring::Block, bytes: usize| {
            let reference = block.reference();
            Block { offset: reference.offset, bytes: bytes as u64, release: reference.block }
        };
        let images = vec![named(&image, text.len())];
        let answer_block = named(&answer, 1 << 16);
        let load = WireCommand::ModuleLoad { context, module, images, answer: answer_block };
        let status = self.call(&load);
        let _named = (image.hand_over(), answer.hand_over());
        status
    }

    fn launch(&self, module: ModuleId, function: u32) {
        let launch = LaunchSpec {
            module,
            function,
            grid: [1, 1, 1],
            block: [1, 1, 1],
            shared_bytes: 0,
            params: Payload::Inline(&[]),
        };
        self.submit(&WireCommand::Launch { stream: StreamId::LEGACY, launch });
    }

    /// A command that fills memory of its own with a number, after it was done once, and where.
    fn filled(&self, value: u32) -> (WireCommand<'static>, u64) {
        self.submit(&WireCommand::ContextCreate { context: CONTEXT });
        let allocate = WireCommand::MemAlloc { context: CONTEXT, bytes: FILLED };
        let reply::Address { address } = self.ask(&allocate);
        let fill = FillSpec { address, pitch: 0, width: FILLED / 4, height: 1, element: 4, value };
        let fill = WireCommand::Fill { stream: StreamId::LEGACY, fill };
        self.submit(&fill);
        (fill, address)
    }

    /// Words of its memory, copied into the window and read there.
    fn read(&self, address: u64, bytes: u64) -> Vec<u32> {
        let side = |place| Endpoint { place, pitch: 0, slice: 0 };
        let dst = side(Place::Host(Payload::Pinned { address: WINDOW, bytes: MIB }));
        assert_eq!(self.call(&WireCommand::PinnedQuota { bytes: MIB }), Status::SUCCESS);
        self.submit(&WireCommand::PinnedRange { address: WINDOW, bytes: MIB, used: 1 });
        let window = std::fs::File::from(self.kept[0].try_clone().unwrap());
        let mut words = Vec::new();
        for offset in (0..bytes / MIB).map(|number| number * MIB) {
            let (dst, src) = (dst.clone(), side(Place::Device(address + offset)));
            let shape = Shape { width: MIB, height: 1, depth: 1 };
            self.submit(&WireCommand::Copy { stream: StreamId::LEGACY, dst, src, shape });
            assert_eq!(self.wait(), Status::SUCCESS);
            let mut found = [0; 1 << 20];
            window.read_exact_at(&mut found, 0).unwrap();
            let word = |word: &[u8]| u32::from_le_bytes(word.try_into().unwrap());
            words.extend(found.chunks_exact(4).map(word));
        }
        self.submit(&WireCommand::PinnedRange { address: WINDOW, bytes: MIB, used: 0 });
        assert_eq!(self.call(&WireCommand::PinnedQuota { bytes: 0 }), Status::SUCCESS);
        words
    }

    fn wait(&self) -> Status {
        self.call(&WireCommand::StreamSynchronize { stream: StreamId::LEGACY })
    }
}

fn encoded(command: &WireCommand<'_>) -> Vec<u8> {
    let mut bytes = vec![0; weft_ring::MAX_COMMAND];
    let len = command.encode(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn kernels_that_fault_without_end_do_not_fill_the_log() {
    let node = Node::start(&[]);
    let tenant = Tenant::attach(&node, "faulty");
    let began = Instant::now();
    let was_held_back = |log: &str| {
        let counts = log.split("suppressed=").skip(1);
        counts.into_iter().any(|count| !count.starts_with('0'))
    };
    for round in 1.. {
        if was_held_back(&node.log()) {
            break;
        }
        assert!(began.elapsed() < DEADLINE, "every fault has its line");
        let (context, module) = tenant.load(round);
        tenant.launch(module, 0);
        assert_ne!(tenant.wait(), Status::SUCCESS);
        assert_eq!(tenant.call(&WireCommand::ContextDestroy { context }), Status::SUCCESS);
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    drop(tenant);
    eventually("the session to end", || node.sessions() == 0);
    let log = node.log();
    let faults = log.lines().filter(|line| line.contains("kernel fault")).count();
    assert!((1..=20 * seconds).contains(&faults), "{faults} lines in {seconds} s");
    assert!(log.contains("trap"), "{log}");
}

#[test]
fn host_memory_of_a_users_sessions_is_bounded_together() {
    let own = rustix::process::getuid().as_raw();
    let bound = format!("limits.users.{own}.host_memory=300MiB");
    let node = Node::start(&[&bound, "limits.pinned=200MiB"]);
    let pin = |tenant: &Tenant, bytes| tenant.call(&WireCommand::PinnedQuota { bytes });
    let attach = |name: &str| {
        let mut hello = hello();
        hello.body.vgpu = name.to_owned();
        hello.body.pinned_bytes = 200 << 20;
        Tenant::of(&node, &hello)
    };
    let (first, second) = (attach("first"), attach("second"));
    assert_eq!(pin(&first, 180 << 20), Status::SUCCESS);
    assert_eq!(pin(&second, 180 << 20), Status::OUT_OF_MEMORY, "the sum is past the bound");
    assert_eq!(pin(&second, 100 << 20), Status::SUCCESS);
    // A module's code is host memory, too, and so is another worker.
    assert_eq!(second.try_load(1, &"// \n".repeat(1 << 18)), Status::OUT_OF_MEMORY);
    assert_eq!(pin(&second, 118 << 20), Status::SUCCESS);
    let mut hello = hello();
    hello.body.vgpu = "third".to_owned();
    let (code, message) = node.refused(&hello.to_bytes().unwrap());
    assert_eq!(code, RefusalCode::Exhausted as u16, "{message}");
    assert!(message.contains("host_memory"), "{message}");
    // What is given back is there again.
    assert_eq!(pin(&first, 0), Status::SUCCESS);
    let destroy = WireCommand::ContextDestroy { context: CONTEXT };
    assert_eq!(second.call(&destroy), Status::SUCCESS);
    assert_eq!(second.try_load(2, TRAP), Status::SUCCESS);
    drop(attach("third"));
}

/// Whether tests may be several users. That a test has not run is said, and with `CI=true` it must.
#[track_caller]
fn has_other_users() -> bool {
    let can = rustix::process::geteuid().is_root();
    if !can {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "CI=true, but only root has other users");
        eprintln!("not run: only root has other users");
    }
    can
}

/// What one user may have is one thing, and what the node has is another.
#[test]
fn host_memory_of_all_users_is_bounded_together() {
    if !has_other_users() {
        return;
    }
    let node = Node::start(&[
        "limits.host_memory=400MiB",
        "limits.users.default.host_memory=300MiB",
        "limits.pinned=300MiB",
    ]);
    node.open_to_others();
    let attach = |uid| {
        let mut hello = hello();
        hello.body.pinned_bytes = 250 << 20;
        as_user(uid, || node.attach(&hello))
    };
    let pin = |tenant: &Tenant, bytes| tenant.call(&WireCommand::PinnedQuota { bytes });
    let first = Tenant::over(attach(OTHER_USER).1);
    let second = Tenant::over(attach(OTHER_USER + 1).1);
    assert_eq!(pin(&first, 240 << 20), Status::SUCCESS);
    assert_eq!(pin(&second, 240 << 20), Status::OUT_OF_MEMORY, "the node has no more");
    assert_eq!(pin(&second, 60 << 20), Status::SUCCESS);
    assert_eq!(pin(&first, 0), Status::SUCCESS);
    assert_eq!(pin(&second, 240 << 20), Status::SUCCESS);
}

/// Bytes of a tenant's memory that is filled.
const FILLED: u64 = 4 << 20;
/// Where a tenant's pinned window is.
const WINDOW: u64 = 0x2000_0000_0000;
const MIB: u64 = 1 << 20;
const LOADS: &str = ".version 7.5\n.target sm_75\n.address_size 64\n\
                     .visible .entry load(.param .u64 p) { .reg .u64 a; .reg .u32 x;\n\
                     ld.param.u64 a, [p]; ld.global.u32 x, [a]; }\n";

impl Tenant {
    /// Bytes that its window takes of the machine, whoever touched them.
    fn window_bytes(&self) -> u64 {
        rustix::fs::fstat(&self.kept[0]).unwrap().st_blocks.cast_unsigned() * 512
    }

    /// Copies a MiB of the window into memory of its own; how it ends.
    fn copy_window(&self, buffer: u64, offset: u64) -> Status {
        let side = |place| Endpoint { place, pitch: 0, slice: 0 };
        let src = Place::Host(Payload::Pinned { address: WINDOW + offset, bytes: MIB });
        let (dst, src) = (side(Place::Device(buffer)), side(src));
        let shape = Shape { width: MIB, height: 1, depth: 1 };
        let stream = StreamId::LEGACY;
        self.submit(&WireCommand::Copy { stream, dst, src, shape });
        self.call(&WireCommand::ContextSynchronize { context: CONTEXT })
    }
}

/// A page of the window that the worker touches first is the node's to pay.
#[test]
fn no_more_of_the_window_is_touched_than_was_granted() {
    let node = Node::start(&["limits.pinned=64MiB"]);
    let mut hello = hello();
    (hello.body.pinned_bytes, hello.body.memory_bytes) = (72 * MIB, 8 * MIB);
    let tenant = Tenant::of(&node, &hello);
    assert_eq!(tenant.try_load(1, LOADS), Status::SUCCESS);
    let allocate = WireCommand::MemAlloc { context: CONTEXT, bytes: MIB };
    let reply::Address { address: buffer } = tenant.ask(&allocate);
    let quota = |bytes| tenant.call(&WireCommand::PinnedQuota { bytes });
    let range = |offset, used| {
        let address = WINDOW + offset;
        tenant.submit(&WireCommand::PinnedRange { address, bytes: MIB, used });
    };
    // What nobody took is not there for copies, words, nor what lies behind for managed memory.
    for offset in (0..64).chain([65, 70]).map(|page| page * MIB) {
        assert_eq!(tenant.copy_window(buffer, offset), Status::INVALID_VALUE, "{offset}");
    }
    // One piece after the other is taken, used and given back, within one grant.
    assert_eq!(quota(MIB), Status::SUCCESS);
    for offset in (0..64).map(|page| page * MIB) {
        range(offset, 1);
        let is_there = tenant.copy_window(buffer, offset) == Status::SUCCESS;
        assert_eq!(is_there, offset == 0, "given back but not cleared, it counts: {offset}");
        range(offset, 0);
    }
    assert!(tenant.window_bytes() <= MIB, "{}", tenant.window_bytes());
    let _told = tenant.call(&WireCommand::Ping {});
    assert_eq!((quota(0), tenant.window_bytes()), (Status::SUCCESS, 0));
    for offset in (0..64).map(|page| page * MIB) {
        assert_eq!(quota(MIB), Status::SUCCESS);
        range(offset, 1);
        assert_eq!(tenant.copy_window(buffer, offset), Status::SUCCESS);
        range(offset, 0);
        assert_eq!(quota(0), Status::SUCCESS);
        assert_eq!(tenant.window_bytes(), 0, "{offset}");
    }
    // Managed memory that was freed is nobody's, and cleared.
    let (address, bytes) = (WINDOW + 64 * MIB, 2 * MIB);
    assert_eq!(tenant.call(&WireCommand::ManagedAlloc { address, bytes }), Status::SUCCESS);
    assert_eq!(tenant.copy_window(buffer, 65 * MIB), Status::SUCCESS);
    assert!(tenant.window_bytes() > 0);
    assert_eq!(tenant.call(&WireCommand::ManagedFree { address }), Status::SUCCESS);
    assert_eq!(
        (tenant.window_bytes(), tenant.copy_window(buffer, 65 * MIB)),
        (0, Status::INVALID_VALUE)
    );
    // Nor for kernels.
    let launch = LaunchSpec {
        module: ModuleId { index: 0, generation: 1 },
        function: 0,
        grid: [1, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
        params: Payload::Inline(&(WINDOW + 5 * MIB).to_le_bytes()),
    };
    tenant.submit(&WireCommand::Launch { stream: StreamId::LEGACY, launch });
    let ended = tenant.call(&WireCommand::ContextSynchronize { context: CONTEXT });
    assert_eq!((ended, tenant.window_bytes()), (Status::ILLEGAL_ADDRESS, 0));
}

#[test]
fn a_worker_has_nothing_to_fill_a_disk_or_forge_a_log_with() {
    // Whoever starts the daemon may have files that programs inherit.
    let inherited = tempfile::tempfile().unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let node = Node::start(&[]);
    let _tenant = Tenant::attach(&node, "any");
    let worker = node.workers()[0];
    let links = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().flatten();
    let links = links.map(|entry| std::fs::read_link(entry.path()).unwrap());
    let mut records = 0;
    for link in links {
        let name = link.to_str().unwrap();
        let harmless = ["socket:", "pipe:", "/memfd:", "anon_inode:", "/dev/null"];
        if name.ends_with(".used") {
            records += 1;
            continue;
        }
        assert!(harmless.iter().any(|prefix| name.starts_with(prefix)), "it has {name}");
    }
    assert_eq!(records, 1, "the record of its last counter");
    let error = std::fs::read_link(format!("/proc/{worker}/fd/2")).unwrap();
    assert_eq!(error, PathBuf::from("/dev/null"), "the daemon's log");
    let limits = std::fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max file size")).unwrap();
    let bytes: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(bytes <= 4096, "{line}");
}

#[test]
fn a_stopped_worker_holds_nobody_up_for_long() {
    let node = Node::start(&["scheduling.share=vgpu", "limits.kernel_ms=600000"]);
    let bad = Tenant::attach(&node, "bad");
    let workers = node.workers();
    let (_, module) = bad.load(1);
    bad.launch(module, 1);
    eventually("the endless kernel to run", || node.admin().stats().unwrap().holders == ["bad"]);
    let stopped = rustix::process::Pid::from_raw(workers[0].cast_signed()).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let good = Tenant::attach(&node, "good");
    let (_, module) = good.load(1);
    let began = Instant::now();
    good.launch(module, 0);
    // Without help it waits for ten minutes, which is what a kernel may take here.
    assert_ne!(good.wait(), Status::SUCCESS, "its own kernel traps");
    let graces = began.elapsed().div_duration_f64(STOPPED_GRACE);
    assert!(graces < 8.0, "it waited for {graces} times what a stopped holder is left");
    assert!(node.log().contains("it was stopped while it held the device"), "{}", node.log());
}

/// What the shim never sends: the worker checks all of it, and its vGPU's books are right after.
#[test]
fn addresses_and_memory_apart_are_checked_at_the_border() {
    const BYTES: u64 = 4 << 20;
    let node = Node::start(&["device.memory=64MiB"]);
    let tenant = Tenant::attach(&node, "any");
    tenant.submit(&WireCommand::ContextCreate { context: CONTEXT });
    for (bytes, alignment) in [(0, 4096), (1, 4096), (4096, 0), (4096, 12288), (u64::MAX, 4096)] {
        let reserve = WireCommand::MemReserve { bytes, alignment };
        assert_eq!(tenant.call(&reserve), Status::INVALID_VALUE, "{reserve:?}");
    }
    let (whole, wide) = (!4095, 1 << 63);
    let much = [
        WireCommand::MemReserve { bytes: whole, alignment: 4096 },
        WireCommand::MemReserve { bytes: 4096, alignment: wide },
        WireCommand::MemCreate { bytes: whole },
        WireCommand::MemCreate { bytes: 65 << 20 },
    ];
    for command in much {
        assert_eq!(tenant.call(&command), Status::OUT_OF_MEMORY, "{command:?}");
    }
    let reserve = WireCommand::MemReserve { bytes: 2 * BYTES, alignment: 2 << 20 };
    let reply::Address { address } = tenant.ask(&reserve);
    let reply::Physical { memory } = tenant.ask(&WireCommand::MemCreate { bytes: BYTES });
    let fill = FillSpec { address, pitch: 0, width: 1, height: 1, element: 4, value: 7 };
    let fill = WireCommand::Fill { stream: StreamId::LEGACY, fill };
    tenant.submit(&fill);
    assert_eq!(tenant.wait(), Status::INVALID_VALUE, "nothing is mapped there");
    let map = |address: u64, memory: u64| WireCommand::MemMap { address, memory };
    for command in [
        map(address + 1, memory),
        map(address + 2 * BYTES, memory),
        map(address + BYTES + 4096, memory),
        map(whole, memory),
        map(address, memory + 1),
        WireCommand::MemUnmap { address },
        WireCommand::MemFree { address },
        WireCommand::MemRelease { memory: memory + 1 },
        WireCommand::MemUnreserve { address: address + BYTES },
    ] {
        assert_eq!(tenant.call(&command), Status::INVALID_VALUE, "{command:?}");
    }
    assert_eq!(tenant.call(&map(address, memory)), Status::SUCCESS);
    tenant.submit(&fill);
    assert_eq!(tenant.wait(), Status::SUCCESS);
    for command in [
        map(address, memory),
        map(address + 4096, memory),
        WireCommand::MemFree { address },
        WireCommand::MemUnreserve { address },
    ] {
        assert_eq!(tenant.call(&command), Status::INVALID_VALUE, "{command:?}");
    }
    let used = || node.admin().list().unwrap()[0].memory_used_bytes;
    assert_eq!(tenant.call(&WireCommand::MemRelease { memory }), Status::SUCCESS);
    assert_eq!(tenant.call(&map(address + BYTES, memory)), Status::INVALID_VALUE, "released");
    assert_eq!(used(), BYTES, "it is mapped");
    assert_eq!(tenant.call(&WireCommand::MemUnmap { address }), Status::SUCCESS);
    assert_eq!(used(), 0);
    assert_eq!(tenant.call(&WireCommand::MemUnreserve { address }), Status::SUCCESS);
    // What is left at its end goes back with everything else.
    let _: reply::Physical = tenant.ask(&WireCommand::MemCreate { bytes: BYTES });
    assert_eq!(used(), BYTES);
    drop(tenant);
    eventually("the session to end", || node.sessions() == 0);
    eventually("its memory to be free", || {
        node.admin().stats().unwrap().devices[0].memory_used_bytes == 0
    });
}

#[test]
fn a_page_that_cannot_be_read_ends_its_own_session_and_nobody_waits() {
    let disk = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = format!("device.swap_dir={}", disk.path().display());
    let node = Node::start(&[&dir, "scheduling.share=vgpu", "limits.kernel_ms=600000"]);
    let victim = Tenant::attach(&node, "victim");
    let (fill, _) = victim.filled(7);
    assert_eq!(victim.wait(), Status::SUCCESS);
    let files = node.open_files_below(disk.path());
    assert_eq!(files.len(), 1, "the victim's memory");
    let good = Tenant::attach(&node, "good");
    let (other, memory) = good.filled(9);
    assert_eq!(good.wait(), Status::SUCCESS);
    let is_intact = || {
        let words = good.read(memory, FILLED);
        words.len() as u64 == FILLED / 4 && words.iter().all(|word| *word == 9)
    };
    assert!(is_intact());
    // A disk that lost the file's bytes: to whoever touches them an error like one of its reading.
    std::fs::File::options().write(true).open(&files[0]).unwrap().set_len(0).unwrap();
    victim.submit(&fill);
    // Without help it holds the device for ten minutes, which is what a kernel may take here.
    eventually("the victim's session to end", || node.sessions() == 1);
    let synchronize = encoded(&WireCommand::StreamSynchronize { stream: StreamId::LEGACY });
    assert!(victim.side.call(&synchronize, &mut [0; 64]).is_err(), "its program is told");
    assert!(is_intact(), "who has another file finds all of it");
    good.submit(&other);
    assert_eq!((good.wait(), is_intact()), (Status::SUCCESS, true));
    let log = node.log();
    let line = log.lines().find(|line| line.contains("worker died")).unwrap_or_default();
    assert!(line.contains("victim") && line.contains("device.swap_dir"), "{log}");
}

/// Pages that workers of different tenants can write: the device's, and the node's.
#[test]
fn a_page_full_of_lies_stops_nobody() {
    for (clock, page, word) in [
        // Everybody is about to come to the turnstile, for ever.
        ("device.clock=real", "weft-device", 1),
        ("device.clock=paced", "weft-device", u64::MAX),
        // Marks that there is news of a session: all are wiped, or all are set.
        ("device.clock=real", "weft-node", 0),
        ("device.clock=real", "weft-node", u64::MAX),
    ] {
        let node = Node::start(&[clock, "scheduling.share=vgpu"]);
        let tenant = Tenant::attach(&node, "good");
        // What a worker that was taken over could do: it has the page mapped. The daemon's own
        // descriptor stands for that.
        let folder = format!("/proc/{}/fd", node.process.id());
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        let name = format!("/memfd:{page} (deleted)");
        let mut pages = entries
            .map(|entry| entry.path())
            .filter(|path| std::fs::read_link(path).is_ok_and(|to| to.starts_with(&name)));
        let file = std::fs::File::options().read(true).write(true).open(pages.next().unwrap());
        let memory = MemoryFile::received(file.unwrap().into()).unwrap();
        let memory = memory.map(Access::ReadWrite).unwrap();
        let words = memory.cells::<AtomicU64>(0, memory.len() / 8).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let liar = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for (place, lie) in words.iter().take(40).enumerate() {
                    // How many ever came to the turnstile.
                    let lies = if place == 8 { word | u64::from(u32::MAX) } else { word };
                    lie.store(if page == "weft-device" { lies } else { word }, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let began = Instant::now();
        let mut rounds = 1..;
        let mut works = || {
            let (context, module) = tenant.load(rounds.next().unwrap());
            tenant.launch(module, 0);
            assert_ne!(tenant.wait(), Status::SUCCESS);
            assert_eq!(tenant.call(&WireCommand::ContextDestroy { context }), Status::SUCCESS);
        };
        (0..3).for_each(|_| works());
        // Nor anybody who comes now.
        let later = Tenant::attach(&node, "later");
        assert_eq!(later.try_load(1, LOADS), Status::SUCCESS);
        let noticed = match (page, word) {
            ("weft-device", _) => "the page of the device is not believed",
            (_, 0) => "news that are not marked",
            // What is marked and has no news costs a look.
            _ => "",
        };
        eventually("the lies to be noticed", || {
            works();
            node.log().contains(noticed)
        });
        stop.store(true, Ordering::Relaxed);
        liar.join().unwrap();
        assert!(began.elapsed() < DEADLINE, "{clock}, {page}, {word:#x}");
    }
}
