//! What a worker gives up before it looks at anything a tenant wrote.
//!
//! On the software GPU it can from then on use the memory and sockets it holds and nothing else: no
//! files, no network, no other processes, no executable memory.
//!
//! A genuine GPU's driver lives in the process and needs more: its device files, its libraries, a
//! few files of `/proc` and `/sys`, threads, executable memory. The network, other files and other
//! processes stay out of reach. What it needs, its backend says ([`Needs`]).

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;

use landlock::{
    ABI, Access, AccessFs, AccessNet, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use weft_device::{BackendConfig, Needs};

use super::privileges;

/// Descriptors a worker may hold: a dozen of its own, and those that pass through at adoption.
const FILES_MAX: u64 = 64;

/// The same with a driver, which opens its device files many times.
const DRIVER_FILES_MAX: u64 = 1024;

/// Bytes that a worker may write to a file: its record takes fewer. A driver's own memory files are
/// files too.
const FILE_BYTES_MAX: u64 = 4096;

/// Calls a worker may make with any arguments.
const ALLOWED: &[i64] = &[
    // The link and the door.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // Waiting.
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory. Frames are cleared by punching holes.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_fallocate,
    // Which frames were ever written.
    libc::SYS_lseek,
    // How large a file is that comes when the session goes to another device.
    libc::SYS_fstat,
    // Itself.
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls that a task runner makes besides: its threads come and go, and it speaks to tenants.
const RUNNER_CALLS: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_clone,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prctl,
    libc::SYS_sched_getaffinity,
    libc::SYS_membarrier,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_fstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_newfstatat,
    libc::SYS_statx,
];

/// What a worker may do with a descriptor besides using it: copy it, and ask for its flags (the
/// standard library's checks do) and seals. Signals upon input (`F_SETOWN`), notices about folders,
/// leases and locks are nobody's need.
const FCNTL_ALLOWED: &[libc::c_int] =
    &[libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_GETFL, libc::F_GET_SEALS];

/// Why the sandbox could not be put up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    /// A limit or an attribute of the process.
    #[error("restricting the process")]
    Process(#[from] rustix::io::Errno),
    /// What becomes of errors of memory.
    #[error("restoring the default action of signals")]
    Handlers(#[source] io::Error),
    /// The file system.
    #[error("restricting the file system")]
    Landlock(#[from] RulesetError),
    /// The system calls.
    #[error("restricting system calls")]
    Seccomp(#[from] seccompiler::Error),
}

/// The sandbox of a worker whose device needs this much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sandbox(Needs);

impl Sandbox {
    /// The sandbox of a worker on this device.
    pub(crate) fn of(backend: &BackendConfig) -> Self {
        Self(backend.needs())
    }

    /// The sandbox of a task runner: memory, the sockets that it is given, and threads.
    pub(crate) fn of_runner() -> Self {
        Self(Needs { calls: RUNNER_CALLS, ..Needs::default() })
    }

    /// Whether a driver lives in the process.
    pub(crate) fn has_driver(&self) -> bool {
        self.0.driver
    }

    /// Takes rights, memory and the file system away. Threads made later inherit it. Whether the
    /// kernel restricts the file system and the network (landlock).
    pub(crate) fn restrict_process(
        &self,
        user: Option<u32>,
        memory_bytes: u64,
    ) -> Result<bool, SandboxError> {
        let files_max = if self.has_driver() { DRIVER_FILES_MAX } else { FILES_MAX };
        limit_process(user, memory_bytes, files_max)?;
        if !self.has_driver() {
            limit(Resource::Fsize, FILE_BYTES_MAX)?;
        }
        let status = self.restrict_files()?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    }

    /// Leaves the process's threads the calls that the device needs; others fail with `EPERM`. One
    /// of these is what a handler of memory errors needs, so without a driver, which may have
    /// handlers of its own, such an error ends the process from here on.
    pub(crate) fn restrict_calls(&self) -> Result<(), SandboxError> {
        if !self.has_driver() {
            weft_ring::peer::end_at_memory_errors().map_err(SandboxError::Handlers)?;
        }
        let program = self.filter()?;
        seccompiler::apply_filter_all_threads(&program)?;
        Ok(())
    }

    fn restrict_files(&self) -> Result<RestrictionStatus, RulesetError> {
        let abi = ABI::V6;
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?;
        // Paths that this machine lacks are passed over.
        let reads = path_beneath_rules(&self.0.reads, AccessFs::from_read(abi));
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        let name = AccessFs::WriteFile | AccessFs::Truncate;
        ruleset = ruleset.add_rules(reads)?;
        ruleset = ruleset.add_rules(path_beneath_rules(&self.0.devices, device))?;
        ruleset = ruleset.add_rules(path_beneath_rules(self.0.writes, name))?;
        ruleset.restrict_self()
    }

    fn filter(&self) -> Result<BpfProgram, seccompiler::Error> {
        let (more, more_of_fcntl) = (self.0.calls, self.0.fcntl);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            rules.insert(call, vec![without_execution()?]);
        }
        rules.insert(libc::SYS_tgkill, vec![to_itself()?]);
        let commands = FCNTL_ALLOWED.iter().chain(more_of_fcntl);
        let commands: Result<_, _> = commands.map(|command| with_command(*command)).collect();
        rules.insert(libc::SYS_fcntl, commands?);
        rules.extend(ALLOWED.iter().chain(more).map(|call| (*call, Vec::new())));
        let arch: TargetArch = std::env::consts::ARCH.try_into()?;
        let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?;
        Ok(filter.try_into()?)
    }
}

fn limit_process(user: Option<u32>, memory_bytes: u64, files_max: u64) -> Result<(), SandboxError> {
    warm_up();
    privileges::drop_all(user)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    // The kernel may end a sleep later than asked by this much; 50 µs unless told otherwise.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, files_max)?;
    limit(Resource::Data, memory_bytes)?;
    Ok(())
}

/// Does now what the standard library does once and with files.
fn warm_up() {
    let processors = std::thread::available_parallelism();
    tracing::trace!(?processors, "warm");
    weft_ring::wait::warm_up();
    // The first look at the clock finds the kernel's page for it; without that every look traps.
    tracing::trace!(now_ns = crate::daemon::now_ns(), "warm");
}

fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let limit = Rlimit { current: Some(value), maximum: Some(value) };
    Ok(rustix::process::setrlimit(resource, limit)?)
}

/// The protection (third argument of both calls) does not include execution.
fn without_execution() -> Result<SeccompRule, seccompiler::Error> {
    let execution = SeccompCmpOp::MaskedEq(u64::from(libc::PROT_EXEC.cast_unsigned()));
    let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, execution, 0)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// A command (second argument) of `fcntl`.
fn with_command(command: libc::c_int) -> Result<SeccompRule, seccompiler::Error> {
    let equal = SeccompCmpOp::Eq;
    let command = command.cast_unsigned().into();
    let condition = SeccompCondition::new(1, SeccompCmpArgLen::Dword, equal, command)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// A signal to this process, which is how it aborts.
fn to_itself() -> Result<SeccompRule, seccompiler::Error> {
    let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let equal = SeccompCmpOp::Eq;
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, equal, own.into())?;
    Ok(SeccompRule::new(vec![condition])?)
}

impl From<io::Error> for SandboxError {
    fn from(error: io::Error) -> Self {
        Self::Process(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::PERM))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;

    use rustix::fs::FlockOperation;
    use rustix::io::{Errno, FdFlags};

    use weft_device::Backend as _;
    use weft_device::cuda::CudaBackend;

    use super::*;

    /// One that is closed, and one for a driver.
    fn sandboxes() -> [Sandbox; 2] {
        [Sandbox(Needs::default()), Sandbox(CudaBackend::default().needs())]
    }

    /// The filter works on all threads of its process for ever, so it is tried in a child of its
    /// own: the end-to-end tests do that. Here: it compiles and stays small.
    #[test]
    fn the_filters_are_valid_programs() {
        let [closed, driver] = sandboxes().map(|sandbox| sandbox.filter().unwrap());
        for program in [&closed, &driver] {
            assert!((10..1000).contains(&program.len()), "{} instructions", program.len());
        }
        assert!(closed.len() < driver.len());
    }

    /// A driver does not start if it cannot name its threads. The rules are for one thread, and go
    /// with it.
    #[test]
    fn a_driver_names_its_threads_and_writes_no_other_file() {
        let [closed, driver] = sandboxes().map(|sandbox| {
            let other = tempfile::NamedTempFile::new().unwrap();
            let tried = std::thread::spawn(move || {
                let status = sandbox.restrict_files().unwrap();
                let name = format!("/proc/self/task/{}/comm", rustix::thread::gettid());
                let write = |path: &Path| {
                    let mut options = std::fs::File::options();
                    let opened = options.write(true).create(true).truncate(true).open(path);
                    opened.and_then(|mut file| file.write_all(b"named")).is_ok()
                };
                (status.ruleset, write(Path::new(&name)), write(other.path()))
            });
            tried.join().unwrap()
        });
        if driver.0 == RulesetStatus::NotEnforced {
            eprintln!("not run: this kernel has no landlock");
            return;
        }
        assert_eq!((driver.1, driver.2), (true, false));
        assert_eq!((closed.1, closed.2), (false, false));
    }

    /// Locks stand for all commands that are not listed.
    #[test]
    fn only_listed_commands_of_fcntl_are_allowed() {
        for (sandbox, sets_flags) in sandboxes().into_iter().zip([false, true]) {
            let file = tempfile::tempfile().unwrap();
            let program = sandbox.filter().unwrap();
            // This filter is for one thread, and goes with it.
            let tried = std::thread::spawn(move || {
                let lock = FlockOperation::NonBlockingLockExclusive;
                let before = rustix::fs::fcntl_lock(&file, lock);
                seccompiler::apply_filter(&program).unwrap();
                let after = rustix::fs::fcntl_lock(&file, lock);
                let copy = file.try_clone().map(drop).map_err(|error| error.kind());
                let flags = rustix::io::fcntl_getfd(&file);
                let set = rustix::io::fcntl_setfd(&file, FdFlags::CLOEXEC);
                (before, after, copy, flags, set)
            });
            let refused = Err(Errno::PERM);
            let set = if sets_flags { Ok(()) } else { refused };
            let allowed = (Ok(()), refused, Ok(()), Ok(FdFlags::CLOEXEC), set);
            assert_eq!(tried.join().unwrap(), allowed, "{sandbox:?}");
        }
    }
}
