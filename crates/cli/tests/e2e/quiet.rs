//! The common path makes no system calls, on either side.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Conversation, Node, eventually, program};

/// A tracer of one process, writing one line per system call with its time.
struct Tracer {
    process: Child,
    log: std::path::PathBuf,
}

impl Tracer {
    fn attach(pid: u32, folder: &Path) -> Self {
        let log = folder.join(format!("trace.{pid}"));
        let process = Command::new("strace")
            .args(["-f", "-ttt", "-o"])
            .arg(&log)
            .arg("-p")
            .arg(pid.to_string())
            .stderr(Stdio::null())
            .spawn()
            .expect("strace, which `cargo xtask setup` installs");
        let status = format!("/proc/{pid}/status");
        eventually("strace to attach", || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            text.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        });
        Self { process, log }
    }

    /// (seconds, call) of every line.
    fn calls(mut self) -> Vec<(f64, String)> {
        let pid = rustix::process::Pid::from_raw(self.process.id().cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        self.process.wait().unwrap();
        let text = std::fs::read_to_string(&self.log).unwrap();
        text.lines()
            .filter_map(|line| {
                let mut words = line.splitn(3, char::is_whitespace).skip(1);
                let time = words.next()?.parse().ok()?;
                Some((time, words.next()?.trim().to_owned()))
            })
            .collect()
    }
}

#[test]
fn ten_thousand_launches_and_synchronous_calls_trap_never() {
    let node = Node::start(&[]);
    let mut client = Conversation::start(node.run(&[], &program("hostile"), &["quiet"]));
    assert_eq!(client.line(), "ready");
    let workers = node.workers();
    assert_eq!(workers.len(), 1);
    let scratch = tempfile::tempdir().unwrap();
    let ours = Tracer::attach(client.child.id(), scratch.path());
    let theirs = Tracer::attach(workers[0], scratch.path());
    client.say("go");
    assert!(client.wait().success());
    let ours = ours.calls();
    let marks: Vec<usize> = ours
        .iter()
        .enumerate()
        .filter(|(_, (_, call))| call.starts_with("getppid("))
        .map(|(index, _)| index)
        .collect();
    assert_eq!(marks.len(), 2, "{ours:?}");
    let (begin, end) = (ours[marks[0]].0, ours[marks[1]].0);
    let within = &ours[marks[0] + 1..marks[1]];
    let beyond: Vec<_> =
        theirs.calls().into_iter().filter(|(at, _)| (begin..end).contains(at)).collect();
    // A shared machine may deschedule one side for longer than the other spins; then a wait blocks.
    // 10,000 launches and 11,250 synchronous calls that each trapped would be tens of thousands.
    let allowed = 40;
    assert!(
        within.len() <= allowed,
        "client: {} calls, such as {:?}",
        within.len(),
        within.first()
    );
    assert!(
        beyond.len() <= allowed,
        "worker: {} calls, such as {:?}",
        beyond.len(),
        beyond.first()
    );
}
