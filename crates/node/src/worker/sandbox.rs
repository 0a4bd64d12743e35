//! What a worker gives up before it looks at anything a tenant wrote.
//!
//! From then on it can use the memory and sockets it holds and nothing else: no files, no network,
//! no other processes, no executable memory.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;

use landlock::{
    ABI, Access, AccessFs, AccessNet, RestrictionStatus, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::privileges;

/// Descriptors a worker may hold: a dozen of its own, and those that pass through at adoption.
const FILES_MAX: u64 = 64;

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
    libc::SYS_fcntl,
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
    // Itself.
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getrandom,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// How far the sandbox went on this system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sandbox {
    /// Whether the kernel restricts the file system and the network as well (landlock).
    pub(crate) landlock: bool,
}

/// Why the sandbox could not be put up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    /// A limit or an attribute of the process.
    #[error("restricting the process")]
    Process(#[from] rustix::io::Errno),
    /// The file system.
    #[error("restricting the file system")]
    Landlock(#[from] RulesetError),
    /// The system calls.
    #[error("restricting system calls")]
    Seccomp(#[from] seccompiler::Error),
}

/// Takes rights, memory and the file system away. Threads made later inherit it.
pub(crate) fn restrict_process(
    user: Option<u32>,
    memory_bytes: u64,
) -> Result<Sandbox, SandboxError> {
    warm_up();
    privileges::drop_all(user)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    // The kernel may end a sleep later than asked by this much; 50 µs unless told otherwise.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, FILES_MAX)?;
    limit(Resource::Data, memory_bytes)?;
    let status = restrict_files()?;
    Ok(Sandbox { landlock: status.ruleset != RulesetStatus::NotEnforced })
}

/// Leaves the process's threads the calls of [`ALLOWED`]; others fail with `EPERM`.
pub(crate) fn restrict_calls() -> Result<(), SandboxError> {
    let program = filter()?;
    seccompiler::apply_filter_all_threads(&program)?;
    Ok(())
}

/// Does now what the standard library does once and with files.
fn warm_up() {
    let processors = std::thread::available_parallelism();
    tracing::trace!(?processors, "warm");
    // The first wait asks for the number of processors.
    let spun = weft_ring::wait::spin(std::time::Duration::from_nanos(1), || Some(()));
    debug_assert!(spun.is_some(), "ready at once");
    // The first look at the clock finds the kernel's page for it; without that every look traps.
    tracing::trace!(now_ns = crate::daemon::now_ns(), "warm");
}

fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let limit = Rlimit { current: Some(value), maximum: Some(value) };
    Ok(rustix::process::setrlimit(resource, limit)?)
}

fn restrict_files() -> Result<RestrictionStatus, RulesetError> {
    let abi = ABI::V6;
    Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()
}

fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![without_execution()?]);
    }
    rules.insert(libc::SYS_tgkill, vec![to_itself()?]);
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?;
    Ok(filter.try_into()?)
}

/// The protection (third argument of both calls) does not include execution.
fn without_execution() -> Result<SeccompRule, seccompiler::Error> {
    let execution = SeccompCmpOp::MaskedEq(u64::from(libc::PROT_EXEC.cast_unsigned()));
    let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, execution, 0)?;
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
    use super::*;

    /// The filter works on all threads of its process for ever, so it is tried in a child of its
    /// own: the end-to-end tests do that. Here: it compiles and stays small.
    #[test]
    fn the_filter_is_a_valid_program() {
        let program = filter().unwrap();
        assert!((10..1000).contains(&program.len()), "{} instructions", program.len());
    }
}
