//! What the gateway gives up before it lets anybody in.
//!
//! From then on it can use its listener, reach Unix sockets (the node's tenant socket), and use the
//! memory that it is sent: no files, no connections elsewhere, no programs, no other processes, no
//! executable memory.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Calls with any arguments.
const ALLOWED: &[i64] = &[
    // Sockets and pipes that it has.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_socketpair,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // Makes sockets not block, copies descriptors.
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_lseek,
    // Waiting.
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_fallocate,
    // Threads, which come and go with sessions.
    libc::SYS_clone3,
    libc::SYS_clone,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prctl,
    libc::SYS_membarrier,
    libc::SYS_sched_getaffinity,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Itself.
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
];

/// Restricts this process for good; whether the kernel restricts files and network (landlock).
///
/// # Errors
/// When the kernel has no system-call filters.
pub fn restrict() -> Result<bool> {
    // The standard library asks for it once, and with files.
    let _processors = std::thread::available_parallelism();
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    let abi = ABI::V6;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    let program = filter().context("making the filter of system calls")?;
    seccompiler::apply_filter_all_threads(&program).context("filtering system calls")?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        // The protection is the third argument of both.
        let execution = SeccompCmpOp::MaskedEq(u64::from(libc::PROT_EXEC.cast_unsigned()));
        rules.insert(call, vec![rule(2, execution, 0)?]);
    }
    let family = u64::from(libc::AF_UNIX.cast_unsigned());
    rules.insert(libc::SYS_socket, vec![rule(0, SeccompCmpOp::Eq, family)?]);
    // A panic ends the process by a signal to itself.
    let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    rules.insert(libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Eq, own.into())?]);
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()?)
}

fn rule(
    argument: u8,
    compare: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::Error> {
    let width = SeccompCmpArgLen::Dword;
    Ok(SeccompRule::new(vec![SeccompCondition::new(argument, width, compare, value)?])?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The filter goes with the thread that it is applied to.
    #[test]
    fn sockets_to_the_node_are_allowed_and_files_programs_and_connections_are_not() {
        let program = filter().unwrap();
        assert!((10..1000).contains(&program.len()), "{} instructions", program.len());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tried = std::thread::spawn(move || {
            let before = std::fs::read("/proc/self/stat").is_ok();
            seccompiler::apply_filter(&program).unwrap();
            let pair = UnixStream::pair().and_then(|(mut one, _other)| one.write_all(b"x"));
            let thread = std::thread::Builder::new().spawn(|| 7).map(|thread| thread.join().ok());
            let file = std::fs::read("/proc/self/stat").map_err(|error| error.kind());
            let connected = TcpStream::connect(address).map(drop).map_err(|error| error.kind());
            let program = std::process::Command::new("/bin/true").status().map(drop);
            let program = program.map_err(|error| error.kind());
            (before, pair.is_ok(), thread.ok().flatten(), file, connected, program)
        });
        let refused = std::io::ErrorKind::PermissionDenied;
        let expected = (true, true, Some(7), Err(refused), Err(refused), Err(refused));
        assert_eq!(tried.join().unwrap(), expected);
    }
}
