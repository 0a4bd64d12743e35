//! The common path makes no system calls, on either side.

use std::path::Path;
use std::process::{Child, Command};

use crate::support::{Conversation, Node, eventually, program};

/// A tracer of one process, writing one line per system call with its time.
struct Tracer {
    process: Child,
    log: std::path::PathBuf,
}

impl Tracer {
    fn attach(pid: u32, folder: &Path) -> Self {
        let log = folder.join(format!("trace.{pid}"));
        // Into standard error it writes line by line, into a file of its own when that pleases it.
        let process = Command::new("strace")
            .args(["-f", "-ttt", "-p"])
            .arg(pid.to_string())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .expect("strace, which `cargo xtask setup` installs");
        Self { process, log }
    }

    /// Whether a call was written. The kernel names a tracer before that tracer stops its tracee
    /// for the first time, so only a written call proves that the next one will be.
    fn sees(&self) -> bool {
        !self.calls().is_empty()
    }

    /// (seconds, call) of every line so far; a line begins with `[pid N] ` when there are threads.
    fn calls(&self) -> Vec<(f64, String)> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines()
            .filter_map(|line| {
                let line = line.split_once("] ").map_or(line, |(_, rest)| rest);
                let (time, call) = line.split_once(' ')?;
                Some((time.parse().ok()?, call.trim().to_owned()))
            })
            .collect()
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Marks of a stretch: one before each part of it, one at its end.
const MARKS: usize = 51;
/// What the program does in the second half of the way between two marks. A mark is a call, too: on
/// a slow machine the tracer stops the program there for longer than the other side spins, and what
/// wakes that again is in the first half.
const LAUNCHES: usize = 100 * 2;

/// What a side calls when the machine took its processor away: it waits or wakes, looks whether the
/// other side still lives, and the software device looks how long a kernel that outlasted a spell
/// really ran.
const INTERRUPTED: [&str; 3] = ["futex(", "ppoll(", "clock_gettime(CLOCK_THREAD_CPUTIME_ID"];

/// The calls of both sides in the second half of each part of the client's last stretch.
fn last_stretch(client: &Tracer, worker: &Tracer) -> Vec<Vec<String>> {
    let ours = client.calls();
    let is_mark = |(_, call): &&(f64, String)| call.starts_with("getppid(");
    let marks: Vec<f64> = ours.iter().filter(is_mark).map(|(at, _)| *at).collect();
    let marks = &marks[marks.len().checked_sub(MARKS).expect("a mark before each part")..];
    let mut all = ours.clone();
    all.retain(|call| !is_mark(&call));
    all.extend(worker.calls());
    let within = |from: f64, to: f64| all.iter().filter(move |(at, _)| (from..to).contains(at));
    marks
        .windows(2)
        .map(|ends| f64::midpoint(ends[0], ends[1])..ends[1])
        .map(|half| within(half.start, half.end).map(|(_, call)| call.clone()).collect())
        .collect()
}

#[test]
fn ten_thousand_launches_and_synchronous_calls_trap_never() {
    // Both sides spin, which others on a busy machine may not let them: where that is allowed, this
    // process and what it starts go first.
    let _ = rustix::process::setpriority_process(None, -19);
    let node = Node::start(&[]);
    let mut client = Conversation::start(node.run(&[], &program("hostile"), &["quiet"]));
    assert_eq!(client.line(), "ready");
    let workers = node.workers();
    assert_eq!(workers.len(), 1);
    let scratch = tempfile::tempdir().unwrap();
    let ours = Tracer::attach(client.child.id(), scratch.path());
    let theirs = Tracer::attach(workers[0], scratch.path());
    eventually("strace to see both sides", || {
        client.say("ping");
        assert_eq!(client.line(), "done");
        ours.sees() && theirs.sees()
    });
    // A machine takes a processor away now and then, for longer than the other side spins; then a
    // wait blocks that need not have. That is the only reason for a call. Half a part of a stretch
    // has 200 launches and 300 synchronous calls: one that belongs to the path would be in each of
    // them.
    let mut launches = 0;
    eventually("ten thousand launches in parts without a system call", || {
        client.say("go");
        assert_eq!(client.line(), "done");
        let parts = last_stretch(&ours, &theirs);
        for call in parts.iter().flatten() {
            assert!(INTERRUPTED.iter().any(|start| call.starts_with(start)), "{call}");
        }
        let quiet = parts.iter().filter(|calls| calls.is_empty()).count();
        eprintln!("{quiet} of {} parts without a call", parts.len());
        // On an idle machine nearly all are.
        if 5 * quiet > parts.len() {
            launches += quiet * LAUNCHES;
        }
        launches >= 10_000
    });
}
