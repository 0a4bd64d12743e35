//! Processes as `/proc` shows them, by their numbers.
//!
//! A number is another process's as soon as its own is reaped, which the system does with workers
//! of an earlier daemon. So what is read by number counts only if the descriptor says afterwards
//! that the process has lived until then.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Pid;
use weft_ring::peer::Process;

use super::precedence::{Doing, Precedence, Ranks};
use crate::config::Processors;

/// A worker's process, by descriptor and by number, for all who may have to kill it.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    process: Process,
    /// For what is read, and for the log.
    pub(crate) pid: u32,
    precedence: Precedence,
    /// Nothing more becomes known of it.
    is_over: AtomicBool,
}

impl WorkerProcess {
    /// A process and its number.
    pub(crate) fn new(process: Process, pid: u32) -> Self {
        Self { process, pid, precedence: Precedence::default(), is_over: AtomicBool::new(false) }
    }

    /// One that has its priority by what it does, if this daemon may give it.
    pub(crate) fn ranked(self, ranks: Option<Ranks>) -> Self {
        let worker = Self { precedence: Precedence::new(ranks), ..self };
        worker.does(|_| {});
        worker
    }

    /// It does something else, by which its first thread has another priority.
    pub(crate) fn does(&self, change: impl FnOnce(&mut Doing)) {
        let set = |nice| {
            let set = self.set_nice(nice);
            if let Err(error) = &set {
                tracing::debug!(pid = self.pid, nice, %error, "a worker keeps its priority");
            }
            set.is_ok()
        };
        self.precedence.change(change, || self.had_ns(), set);
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Waits at most `limit` for its exit; whether it has exited.
    pub(crate) fn wait_exit(&self, limit: Duration) -> bool {
        self.process.wait_exit(limit)
    }

    /// What it takes of the machine's memory; nothing when it is gone.
    pub(crate) fn resident(&self) -> Resident {
        self.read(resident).unwrap_or_default()
    }

    /// How long its first thread, which executes, has waited for a processor so far, in ns; nothing
    /// where the system does not say or when it is gone.
    pub(crate) fn waited_ns(&self) -> Option<u64> {
        self.read(waited_ns).flatten()
    }

    /// What it has had of the processors so far outside of turns, in ns: as of its end, if it is
    /// gone.
    pub(crate) fn outside_ns(&self) -> u64 {
        self.precedence.outside_ns(self.had_ns())
    }

    /// Whether its tenant is beyond what goes at once outside of turns.
    pub(crate) fn is_beyond(&self) -> bool {
        self.precedence.is_beyond()
    }

    /// Whether it has ended and its end was noted.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// It has ended. What it had until then is known if it is this daemon's child and nobody has
    /// waited for it yet.
    pub(crate) fn note_end(&self, is_unreaped: bool) {
        let had_ns = || had_ns(self.pid).filter(|_| is_unreaped);
        let end = |doing: &mut Doing| {
            *doing = Doing { outside: doing.outside, used_ns: doing.used_ns, ..Doing::default() };
        };
        self.precedence.change(end, had_ns, |_| false);
        self.precedence.outside_ns(had_ns());
        self.is_over.store(true, Ordering::Release);
    }

    /// What it has had of the processors so far, in ns; nothing when it is gone.
    fn had_ns(&self) -> Option<u64> {
        self.read(had_ns).flatten()
    }

    /// Whether it was stopped by a signal or by a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        self.read(|pid| stat(pid).ok()).flatten().is_some_and(|stat| stat.is_stopped())
    }

    /// Whether it is there and was not stopped.
    pub(crate) fn is_running(&self) -> bool {
        let stat = self.read(|pid| stat(pid).ok()).flatten();
        stat.is_some_and(|stat| !stat.is_stopped() && !stat.is_dead())
    }

    /// Has its first thread run on these processors alone.
    pub(crate) fn keep_on(&self, processors: &Processors) -> io::Result<()> {
        processors.keep(self.first_thread()?)
    }

    /// Gives its first thread another priority.
    fn set_nice(&self, nice: i32) -> io::Result<()> {
        Ok(rustix::process::setpriority_process(self.first_thread()?, nice)?)
    }

    /// Its first thread, which executes, while it is there.
    fn first_thread(&self) -> io::Result<Option<Pid>> {
        let thread = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if thread.is_none() || self.process.has_exited() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(thread)
    }

    /// What `read` says of its number, if that was its own meanwhile.
    fn read<T>(&self, read: impl FnOnce(u32) -> T) -> Option<T> {
        let answer = read(self.pid);
        (!self.process.has_exited()).then_some(answer)
    }
}

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    state: char,
    /// When the process began, in clock ticks since the system started: with its number, it is
    /// unmistakable.
    pub(crate) began: u64,
}

impl Stat {
    /// Whether a signal or a debugger has stopped it.
    fn is_stopped(self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Whether its first thread has ended.
    pub(crate) fn is_dead(self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field, the name, may hold anything, but ends with the last parenthesis; the
        // third is the state, the 22nd when it began.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Self { state, began: fields.nth(18)?.parse().ok()? })
    }
}

/// What the system says of the process that has this number now.
pub(crate) fn stat(pid: u32) -> io::Result<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Stat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the process with this number has ended. One whose number is not known here (0) counts as
/// running.
pub(crate) fn is_gone(pid: u32) -> bool {
    pid != 0
        && match stat(pid) {
            Ok(stat) => stat.is_dead(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
}

/// What a process takes of the machine's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// All of it, in bytes.
    pub(crate) all_bytes: u64,
    /// What of it others may have mapped as well: files and shared memory, in bytes.
    pub(crate) shared_bytes: u64,
}

impl Resident {
    /// What of it is the process's own, in bytes.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.all_bytes.saturating_sub(self.shared_bytes)
    }
}

fn resident(pid: u32) -> Resident {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let page = rustix::param::page_size() as u64;
    let bytes = |field| -> u64 {
        let pages = statm.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0).saturating_mul(page)
    };
    Resident { all_bytes: bytes(1), shared_bytes: bytes(2) }
}

/// All threads of a worker; the first one executes and the others wait.
fn had_ns(pid: u32) -> Option<u64> {
    let pid = i32::try_from(pid).ok()?;
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(pid)).ok()?;
    u64::try_from(Duration::from(clock.now().ok()?).as_nanos()).ok()
}

fn waited_ns(pid: u32) -> Option<u64> {
    // Time on a processor, time in wait for one, and how often it had one.
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    fn own() -> u32 {
        std::process::id()
    }

    #[test]
    fn a_process_takes_memory_and_one_that_is_gone_takes_none() {
        let living = WorkerProcess::new(Process::open(own()).unwrap(), own());
        let Resident { all_bytes, shared_bytes } = living.resident();
        assert!(shared_bytes > 0 && all_bytes > shared_bytes + 100_000);
        let mut child = Command::new("true").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        child.wait().unwrap();
        // As if the system had given this process the number of the worker that is gone.
        let gone = WorkerProcess::new(process, own());
        assert_eq!(gone.resident(), Resident::default());
        assert!(!gone.is_stopped());
        assert!(!gone.is_running());
        gone.set_nice(19).unwrap_err();
    }

    /// Two threads on one processor: one waits while the other runs.
    #[test]
    fn a_process_waits_for_a_processor_that_another_one_has() {
        let spin = |processor: &str| {
            let mut command = Command::new("taskset");
            command.args(["-c", processor, "sh", "-c", "while :; do :; done"]).spawn().unwrap()
        };
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let processor = (0..1024).find(|processor| allowed.is_set(*processor)).unwrap();
        let mut children = [spin(&processor.to_string()), spin(&processor.to_string())];
        let process = Process::open(children[0].id()).unwrap();
        let process = WorkerProcess::new(process, children[0].id());
        let deadline = Instant::now() + Duration::from_secs(30);
        let before_ns = process.waited_ns().unwrap();
        while process.waited_ns().unwrap() < before_ns + 50_000_000 {
            assert!(Instant::now() < deadline, "it does not wait");
            std::thread::yield_now();
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(process.waited_ns(), None, "it is gone");
    }

    #[test]
    fn a_process_is_gone_as_soon_as_it_is_nothing_but_a_status() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_gone(child.id()));
        child.kill().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(process.wait_exit(Duration::from_secs(10)));
        assert!(is_gone(child.id()), "not reaped yet");
        child.wait().unwrap();
        assert!(is_gone(child.id()));
        assert!(!is_gone(0), "a number that is not known");
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_sleeps() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = WorkerProcess::new(Process::open(child.id()).unwrap(), child.id());
        assert!(!process.is_stopped());
        assert!(process.is_running());
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !process.is_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
        assert!(!process.is_running());
        process.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_a_worker_had_is_known_when_it_has_ended() {
        let mut child = Command::new("sh");
        child.args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]);
        let mut child = child.spawn().unwrap();
        let worker = WorkerProcess::new(Process::open(child.id()).unwrap(), child.id());
        assert!(worker.wait_exit(Duration::from_secs(60)));
        assert_eq!(worker.outside_ns(), 0, "its number may be another's");
        assert!(!worker.is_over());
        worker.note_end(true);
        let had_ns = worker.outside_ns();
        assert!(had_ns > 1_000_000, "{had_ns}");
        child.wait().unwrap();
        assert!(worker.is_over());
        assert_eq!(worker.outside_ns(), had_ns);
    }

    #[test]
    fn a_name_may_hold_anything() {
        let fields: Vec<String> = (4..=30).map(|field| field.to_string()).collect();
        let stat = Stat::parse(&format!("7 (a) Z (b)) S {}", fields.join(" "))).unwrap();
        assert_eq!(stat, Stat { state: 'S', began: 22 });
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        assert!(!super::stat(own()).unwrap().is_dead());
    }
}
