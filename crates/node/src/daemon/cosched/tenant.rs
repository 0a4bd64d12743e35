//! The tenant's threads: whose they are, and what the system says about them.
//!
//! A tenant names its waiting thread by a number in memory that it writes. Before anything is done
//! to a thread, its id is looked up among the threads of the process that attached (as the socket
//! told, not the tenant); an open file under `/proc` then stands for the very thread, because the
//! system answers through it only while that thread lives. A descriptor of the process keeps its id
//! from meaning another one.
//!
//! A tenant in a virtual machine names the processor that its thread waits on, and the machine's
//! server has told which thread of QEMU runs it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use weft_device::thread_cpu_ns;
use weft_ring::peer::Process;

use crate::daemon::attach::vm::Processors;
use crate::daemon::process;

/// Threads remembered per session.
const THREADS_MAX: usize = 64;

/// Threads of a process that are looked at to find one.
const TASKS_MAX: usize = 1024;

/// Of the driver's time at most one part in so many goes to a search through the threads of one
/// tenant: every tenant waits meanwhile.
const SEARCH_PART: u32 = 200;

/// Wrong numbers before a tenant's numbers are looked up no more.
const LIES_MAX: u32 = 8;

/// Why a thread is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTheirs {
    /// No thread of the tenant's process has that id.
    #[error("no thread of the tenant has the id that it names")]
    Unknown,
    /// The tenant's process has exited.
    #[error("the tenant's process is gone")]
    Gone,
    /// It was searched for lately, and a search takes time.
    #[error("the tenant's threads were searched just now")]
    Searched,
    /// The tenant named wrong threads too often.
    #[error("the tenant has named wrong threads")]
    Liar,
}

/// The process that attached.
#[derive(Debug)]
pub(crate) struct Tenant {
    pid: u32,
    process: Process,
    /// The threads of a machine's processors, which the tenant names by number, from one on.
    processors: Option<Vec<u32>>,
    /// By the id that the tenant knows, which differs in a container.
    threads: BTreeMap<u32, Thread>,
    /// No search before this.
    search_after: Instant,
    lies: u32,
}

/// A thread of the tenant.
#[derive(Debug)]
pub(crate) struct Thread {
    /// Its id here.
    pub(crate) id: u32,
    times: File,
}

/// What the scheduler has given a thread, since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Time on a processor, in ns.
    pub(crate) ran_ns: u64,
    /// Time ready to run without a processor, in ns.
    pub(crate) waited_ns: u64,
}

impl Tenant {
    /// The process `pid`, which must be `uid`'s and, if known, have begun at `began` (in clock
    /// ticks since the system started).
    pub(crate) fn open(pid: u32, uid: u32, began: Option<u64>) -> io::Result<Self> {
        let process = Process::open(pid)?;
        let owner = fs::metadata(format!("/proc/{pid}"))?.uid();
        let same = began.is_none_or(|began| began_at(pid).is_ok_and(|at| at == began));
        // A process that attached and then changed its user is not boosted either.
        if process.has_exited() || owner != uid || !same {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (threads, search_after) = (BTreeMap::new(), Instant::now());
        Ok(Self { pid, process, processors: None, threads, search_after, lies: 0 })
    }

    /// The process of a virtual machine of user `uid`, whose processors run in these threads.
    pub(crate) fn of_machine(machine: Processors, uid: u32) -> io::Result<Self> {
        let Processors { process, began, threads } = machine;
        Ok(Self { processors: Some(threads), ..Self::open(process, uid, Some(began))? })
    }

    /// Whether it is a virtual machine.
    pub(crate) fn is_machine(&self) -> bool {
        self.processors.is_some()
    }

    /// Its process id, or the machine's.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its thread of this id, as the tenant counts, if it really is one.
    pub(crate) fn thread(&mut self, claimed: u32) -> Result<&Thread, NotTheirs> {
        if self.lies >= LIES_MAX {
            return Err(NotTheirs::Liar);
        }
        if self.process.has_exited() {
            return Err(NotTheirs::Gone);
        }
        let known = self.threads.get(&claimed).is_some_and(|thread| thread.times().is_some());
        if !known {
            self.threads.remove(&claimed);
            let thread = match self.find(claimed) {
                Ok(thread) => thread,
                Err(why) => {
                    self.lies += u32::from(why == NotTheirs::Unknown);
                    return Err(why);
                }
            };
            if self.threads.len() >= THREADS_MAX {
                self.threads.clear();
            }
            self.threads.insert(claimed, thread);
        }
        self.threads.get(&claimed).ok_or(NotTheirs::Unknown)
    }

    fn find(&mut self, claimed: u32) -> Result<Thread, NotTheirs> {
        let tasks = format!("/proc/{}/task", self.pid);
        if let Some(processors) = &self.processors {
            let place = usize::try_from(claimed).ok().and_then(|claimed| claimed.checked_sub(1));
            let id = place.and_then(|place| processors.get(place)).ok_or(NotTheirs::Unknown)?;
            return self.watch(*id);
        }
        let is_claimed = |id: u32| own_id(&tasks, id) == Some(claimed);
        let id = if is_claimed(claimed) {
            claimed
        } else {
            if Instant::now() < self.search_after {
                return Err(NotTheirs::Searched);
            }
            let before_ns = thread_cpu_ns();
            let found = threads_of(self.pid).into_iter().find(|id| is_claimed(*id));
            // Processor time: a search that others' work interrupted has cost no more.
            let took_ns = thread_cpu_ns().saturating_sub(before_ns);
            self.search_after = Instant::now() + Duration::from_nanos(took_ns) * SEARCH_PART;
            found.ok_or(NotTheirs::Unknown)?
        };
        self.watch(id)
    }

    /// The thread of that id, which must be one of the process's.
    fn watch(&self, id: u32) -> Result<Thread, NotTheirs> {
        let times = File::open(format!("/proc/{}/task/{id}/schedstat", self.pid));
        let times = times.map_err(|_| NotTheirs::Unknown)?;
        // The path named this process for as long as it has not exited.
        if self.process.has_exited() { Err(NotTheirs::Gone) } else { Ok(Thread { id, times }) }
    }
}

impl Thread {
    /// Its times; `None` when the thread is gone or the kernel keeps none.
    pub(crate) fn times(&self) -> Option<Times> {
        let mut text = [0; 96];
        let len = self.times.read_at(&mut text, 0).ok()?;
        parse_times(std::str::from_utf8(text.get(..len)?).ok()?)
    }
}

fn parse_times(text: &str) -> Option<Times> {
    let mut words = text.split_whitespace().map(str::parse);
    let (ran_ns, waited_ns) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(Times { ran_ns, waited_ns })
}

/// The id that a thread has for itself: the one of the innermost namespace.
fn own_id(tasks: &str, id: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("{tasks}/{id}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

/// When a process began, in clock ticks since the system started.
pub(crate) fn began_at(pid: u32) -> io::Result<u64> {
    Ok(process::stat(pid)?.began)
}

/// Ids of all threads of a process, here.
pub(crate) fn threads_of(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let ids = tasks.flatten().take(TASKS_MAX);
    ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (u32, u32) {
        (std::process::id(), rustix::process::getuid().as_raw())
    }

    #[test]
    fn own_threads_are_found_and_foreign_ones_refused() {
        let (pid, uid) = own();
        let mut tenant = Tenant::open(pid, uid, began_at(pid).ok()).unwrap();
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let thread = tenant.thread(me).unwrap();
        assert_eq!(thread.id, me);
        assert!(thread.times().is_some());
        // Process 1 has a thread 1, but it is not this process's.
        assert_eq!(tenant.thread(1).unwrap_err(), NotTheirs::Unknown);
        // The next searches wait, so that a liar costs the node nothing; waiting is no lie.
        let searched =
            (0..1000).filter(|_| tenant.thread(1).err() != Some(NotTheirs::Searched)).count();
        assert!(searched < 100, "{searched} searches in a row");
        while tenant.lies < LIES_MAX {
            tenant.search_after = Instant::now();
            let _refused = tenant.thread(1);
        }
        assert_eq!(tenant.thread(1).unwrap_err(), NotTheirs::Liar);
        assert_eq!(tenant.thread(me).unwrap_err(), NotTheirs::Liar, "from then on nothing");
    }

    #[test]
    fn a_guest_names_processors_of_its_machine_and_no_thread() {
        let (process, uid) = own();
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let began = began_at(process).unwrap();
        // The second is no thread of the machine's process, whatever its server said.
        let machine = Processors { process, began, threads: vec![me, 1] };
        Tenant::of_machine(Processors { began: began + 1, ..machine.clone() }, uid).unwrap_err();
        let mut tenant = Tenant::of_machine(machine, uid).unwrap();
        assert!(tenant.is_machine());
        assert_eq!(tenant.thread(1).unwrap().id, me);
        for claimed in [0, 2, 3, me, u32::MAX] {
            assert_eq!(tenant.thread(claimed).unwrap_err(), NotTheirs::Unknown, "{claimed}");
        }
    }

    #[test]
    fn a_process_of_another_user_or_time_is_not_the_tenant() {
        let (pid, uid) = own();
        Tenant::open(pid, uid + 1, None).unwrap_err();
        Tenant::open(pid, uid, Some(began_at(pid).unwrap() + 1)).unwrap_err();
    }

    #[test]
    fn a_thread_that_ended_is_noticed() {
        let (pid, uid) = own();
        let mut tenant = Tenant::open(pid, uid, None).unwrap();
        let (say, hear) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            say.send(id).unwrap();
            let _ended = stopped.recv();
        });
        let id = hear.recv().unwrap();
        tenant.thread(id).unwrap();
        drop(stop);
        other.join().unwrap();
        // The system removes it in its own time.
        let deadline = Instant::now() + Duration::from_secs(10);
        while tenant.threads[&id].times().is_some() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert_eq!(tenant.thread(id).unwrap_err(), NotTheirs::Unknown);
    }

    #[test]
    fn times_are_two_numbers() {
        let times = Times { ran_ns: 12, waited_ns: 34 };
        assert_eq!(parse_times("12 34 5\n"), Some(times));
        assert_eq!(parse_times("12"), None);
        assert_eq!(parse_times(""), None);
    }
}
