//! What a VM of this host is: `guest` holds its lock and starts `inside` in namespaces, which
//! boots.
//!
//! `inside` is the first process there, so all that it started ends with it. It ends with `guest`,
//! whose pipe it reads.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::chown;
use rustix::io::{ioctl_fionread, retry_on_intr};
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, setsid, wait};
use rustix::thread::{Gid, Uid};
use weft_api::lines;

use super::lock::Lock;
use super::{Inside, Isolation, Settings, VmSpec, machine, port, region, replace};
use crate::provision::is_shared;

/// What a console keeps: this half of it from its beginning, and of the rest what came last.
const CONSOLE_BYTES_MAX: u64 = 1 << 20;

/// Where what was left out is said.
const CONSOLE_CUT: u64 = CONSOLE_BYTES_MAX / 2;

/// What is kept of the end at least.
const CONSOLE_LAST: u64 = CONSOLE_BYTES_MAX / 4;

/// What the user-data has printed is on the console within this time, once it has ended.
const LAST_OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Rules, and memory that is shared, are there within this time. The control plane may be away in
/// between: it, and not the VM, decides how long a boot may take.
pub(super) const RULES_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// How often to look for that.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// A host that has no rules for a VM yet does not answer: it is asked again after this time, so
/// that the system's own, a second and more, does not become part of the boot.
const CONNECT_LIMIT: Duration = Duration::from_millis(100);

/// Where programs are looked for in a VM.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn known(folder: &Path) -> Result<(VmSpec, Settings)> {
    let bytes = fs::read(folder.join("spec.json")).context("the VM's folder is gone")?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// `weft-control guest`: a VM, as long as this process lives.
///
/// # Errors
/// If there is one already, or it cannot be made.
pub fn guest(folder: &Path) -> Result<()> {
    // Whoever started this may go, and its terminal too. The leader of a group cannot.
    let _ = setsid();
    let (vm, settings) = known(folder)?;
    let lock = Lock::take_for_life(&folder.join("guest.lock"), "guest")?;
    let _lock = lock.context("the VM runs already")?;
    for old in ["port.json", "status"] {
        let _ = fs::remove_file(folder.join(old));
    }
    match settings.isolation {
        Isolation::Machines => {
            let image = settings.image.as_ref().context("there is no image")?;
            machine::run(folder, &vm, &settings, image)
        }
        Isolation::Processes => {
            set_child_subreaper(Some(getpid()))?;
            inside(folder)
        }
        Isolation::Namespaces => {
            let mut child = Command::new("unshare")
                .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
                .arg(std::env::current_exe()?)
                .arg("inside")
                .arg("--folder")
                .arg(folder)
                .stdin(Stdio::piped())
                .spawn()
                .context("cannot start unshare")?;
            // The pipe lives until this process ends: waiting would close it.
            let _lifeline = child.stdin.take();
            if settings.has_ports {
                port::plug(&vm.id, &mut child)?;
            }
            let status = child.wait()?;
            bail!("the VM ended with {status}")
        }
    }
}

/// `weft-control inside`: boots, and stays.
///
/// # Errors
/// If it does not boot. The status says so too.
pub fn inside(folder: &Path) -> Result<()> {
    let (vm, settings) = known(folder)?;
    let lock = Lock::take_for_life(&folder.join("inside.lock"), "inside")?;
    let _lock = lock.context("the VM runs already")?;
    if settings.isolation == Isolation::Namespaces {
        end_with_pipe()?;
    }
    let status = own_file(&folder.join("status"))?;
    status.write_all_at(b"booting", 0)?;
    if settings.has_ports {
        port::set_up()?;
    }
    let network = fs::read_link("/proc/self/ns/net")?.to_string_lossy().into_owned();
    replace(&folder.join("port.json"), &serde_json::to_vec(&Inside { network })?)?;
    let booted = boot(folder, &vm, &settings);
    let words = match &booted {
        Ok(_) => "active".to_owned(),
        Err(error) => format!("failed: {error:#}"),
    };
    status.set_len(0)?;
    status.write_all_at(words.as_bytes(), 0)?;
    let Booted { user_data, console, _endpoints } = booted?;
    stay(user_data.as_ref(), &console)
}

/// A file of this process's user.
pub(super) fn own_file(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(true).read(true).write(true).mode(0o600).open(path)
}

/// Ends this process, and so the VM, when whoever started it has ended.
#[expect(clippy::exit, reason = "a VM whose power is cut")]
fn end_with_pipe() -> std::io::Result<()> {
    thread::Builder::new().name("lifeline".to_owned()).spawn(|| {
        // Nothing is ever written there.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    })?;
    Ok(())
}

/// What a console's file has.
#[derive(Debug, Default)]
struct Kept {
    /// How much.
    end: u64,
    /// The line that says that some was left out.
    cut: Vec<u8>,
    /// How much was left out there.
    left_out: u64,
}

/// A console: what is printed, up to a limit.
#[derive(Debug)]
pub(super) struct Console {
    file: File,
    kept: Mutex<Kept>,
    /// Held while something is taken from a pipe and printed: an empty pipe's bytes are all there.
    taking: Mutex<()>,
}

impl Console {
    /// In a file that is empty.
    pub(super) fn new(file: File) -> Self {
        Self { file, kept: Mutex::default(), taking: Mutex::new(()) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something was printed.
    pub(super) fn has(&self, words: &str) -> std::io::Result<bool> {
        let mut bytes = vec![0; usize::try_from(self.kept().end).unwrap_or(0)];
        let read = self.file.read_at(&mut bytes, 0)?;
        Ok(bytes[..read].windows(words.len()).any(|some| some == words.as_bytes()))
    }

    /// What was printed last.
    fn last_line(&self) -> std::io::Result<String> {
        let end = self.kept().end;
        let mut bytes = [0; 512];
        let from = end.saturating_sub(bytes.len() as u64);
        let read = self.file.read_at(&mut bytes, from)?;
        let text = String::from_utf8_lossy(&bytes[..read]);
        Ok(text.lines().next_back().unwrap_or_default().to_owned())
    }

    pub(super) fn print(&self, bytes: &[u8]) {
        let mut kept = self.kept();
        if kept.end + bytes.len() as u64 > CONSOLE_BYTES_MAX {
            self.cut(&mut kept);
        }
        // A full disk loses output.
        let _ = self.file.write_all_at(bytes, kept.end);
        kept.end += bytes.len() as u64;
    }

    /// Makes room: leaves out what is in the middle, and says so there.
    fn cut(&self, kept: &mut Kept) {
        let from = kept.end.saturating_sub(CONSOLE_LAST);
        let mut last = vec![0; usize::try_from(kept.end - from).unwrap_or(0)];
        let read = self.file.read_at(&mut last, from).unwrap_or(0);
        kept.left_out += from.saturating_sub(CONSOLE_CUT + kept.cut.len() as u64);
        kept.cut =
            format!("\n[{} bytes of this console were left out here]\n", kept.left_out).into();
        let both = [&kept.cut[..], &last[..read]].concat();
        let _ = self.file.write_all_at(&both, CONSOLE_CUT);
        kept.end = CONSOLE_CUT + both.len() as u64;
        let _ = self.file.set_len(kept.end);
    }

    /// Prints what comes from a pipe, for [`Self::print_after`].
    pub(super) fn follow(
        self: &Arc<Self>,
        mut from: impl Read + AsFd + Send + 'static,
    ) -> std::io::Result<OwnedFd> {
        let pipe = from.as_fd().try_clone_to_owned()?;
        let console = Arc::clone(self);
        thread::Builder::new().name("console".to_owned()).spawn(move || {
            let mut block = [0; 4096];
            loop {
                let mut polled = [PollFd::new(&from, PollFlags::IN)];
                let _ready = retry_on_intr(|| poll(&mut polled, None));
                let _taking = console.taking.lock().unwrap_or_else(PoisonError::into_inner);
                let Ok(read @ 1..) = from.read(&mut block) else { return };
                console.print(&block[..read]);
            }
        })?;
        Ok(pipe)
    }

    /// Prints behind what is in these pipes now. Somebody may go on writing into them: that is
    /// waited for a while.
    fn print_after(&self, pipes: &[OwnedFd], bytes: &[u8]) {
        let deadline = Instant::now() + LAST_OUTPUT_LIMIT;
        let is_empty = |pipe: &OwnedFd| ioctl_fionread(pipe).is_ok_and(|bytes| bytes == 0);
        loop {
            let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
            if pipes.iter().all(is_empty) || Instant::now() > deadline {
                return self.print(bytes);
            }
            drop(taking);
            thread::yield_now();
        }
    }
}

struct Booted {
    user_data: Option<UserData>,
    console: Arc<Console>,
    _endpoints: Vec<Child>,
}

/// The user-data's process, and where its output comes from.
struct UserData {
    child: Child,
    output: Vec<OwnedFd>,
}

fn boot(folder: &Path, vm: &VmSpec, settings: &Settings) -> Result<Booted> {
    let console = own_file(&folder.join("console.log"))?;
    let console = Arc::new(Console::new(console));
    let run = folder.join("run");
    let _ = fs::remove_dir_all(&run);
    fs::DirBuilder::new().mode(0o700).create(&run)?;
    if let Some(user) = settings.user(vm)? {
        chown(&run, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
        become_user(user).context("cannot become the VM's user")?;
    }
    let mut command = Command::new("sh");
    command.env_clear().envs(vm.environment.iter().map(|(name, value)| (name, value)));
    command.env("PATH", PATH).env("HOME", &run).env("LD_LIBRARY_PATH", &settings.libraries);
    let mut endpoints = Vec::new();
    for (number, (masked, grants)) in vm.gateways.iter().enumerate() {
        let socket = run.join(format!("{number}.sock"));
        endpoints.push(if is_shared(masked) {
            agent(settings, &region::folder_of(folder, number), &socket, &console)?
        } else {
            endpoint(settings, masked, grants, &socket, &console)?
        });
        if number == 0 {
            command.env("WEFT_SOCKET", &socket);
            let of_it = vm.environment.iter().find(|(name, _)| name == "WEFT_VGPU_0");
            command.envs(of_it.map(|(_, names)| ("WEFT_VGPU", names)));
        }
        command.env(format!("WEFT_SOCKET_{number}"), &socket);
    }
    let mut led = vm.gateways.iter().filter(|(masked, _)| !is_shared(masked));
    led.try_for_each(|(masked, _)| wait_for(masked))?;
    let mut user_data = None;
    if !vm.user_data.is_empty() {
        // In a file of the VM's user, for everybody sees the arguments of processes.
        own_file(&run.join("user-data"))?.write_all(vm.user_data.as_bytes())?;
        command.arg("./user-data").current_dir(&run);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run the user-data")?;
        let output = vec![
            console.follow(child.stdout.take().context("a pipe")?)?,
            console.follow(child.stderr.take().context("a pipe")?)?,
        ];
        user_data = Some(UserData { child, output });
    }
    Ok(Booted { user_data, console, _endpoints: endpoints })
}

/// Gives up every right but that of a user of its own. The threads that are there do nothing else.
fn become_user(user: u32) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Starts an endpoint of the VM's programs, and waits until it serves.
fn endpoint(
    settings: &Settings,
    masked: &str,
    grants: &[String],
    socket: &Path,
    console: &Arc<Console>,
) -> Result<Child> {
    let mut command = Command::new(&settings.endpoint);
    command.arg("connect").arg("--remote").arg(masked).args(["--token-file", "-"]);
    command.arg("--socket").arg(socket).env_clear().env("PATH", PATH);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start weft-endpoint")?;
    let mut input = child.stdin.take().context("a pipe")?;
    // One that has ended has said why.
    let _ = input.write_all(grants.join("\n").as_bytes());
    drop(input);
    if let Some(errors) = child.stderr.take() {
        console.follow(errors)?;
    }
    let said = lines::first(child.stdout.take().context("a pipe")?)?;
    ensure!(said == "ready", "the endpoint for {masked} did not start");
    Ok(child)
}

/// Starts the agent of the VM's programs that shares memory with a node, and waits until it serves.
/// Instead of a device and serial ports it has sockets of that folder.
fn agent(
    settings: &Settings,
    region: &Path,
    socket: &Path,
    console: &Arc<Console>,
) -> Result<Child> {
    let program = settings.guest.as_ref().context("weft-guest is not installed")?;
    let deadline = Instant::now() + RULES_LIMIT;
    // The last one of the sockets.
    while !region.join("region.sock").exists() {
        ensure!(Instant::now() < deadline, "no memory is shared with the VM");
        thread::sleep(PAUSE);
    }
    let mut command = Command::new(program);
    command.arg("agent").arg("--socket").arg(socket).args(["--mode", "600"]);
    for (device, name) in
        [("--region", "region.sock"), ("--control", "control.sock"), ("--marks", "marks.sock")]
    {
        command.arg(device).arg(region.join(name));
    }
    command.env_clear().env("PATH", PATH);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start weft-guest")?;
    let errors = console.follow(child.stderr.take().context("a pipe")?)?;
    // Programs that come before it has begun wait.
    while !socket.exists() {
        if child.try_wait()?.is_some() {
            console.print_after(&[errors], b"");
            let (region, why) = (region.display(), console.last_line()?);
            bail!("the agent for {region} did not start: {why}");
        }
        thread::sleep(PAUSE);
    }
    Ok(child)
}

/// The rules of a VM are made while it boots: what runs in it finds them.
fn wait_for(masked: &str) -> Result<()> {
    let deadline = Instant::now() + RULES_LIMIT;
    let address: SocketAddr = masked.parse().context("a masked address")?;
    while let Err(error) = TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
        let late = Instant::now() > deadline;
        ensure!(!late, "the VM does not reach its cGPUs at {masked}: {error}");
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Buries what ends, and says on the console how the user-data did.
fn stay(user_data: Option<&UserData>, console: &Console) -> Result<()> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let id = u32::try_from(Pid::as_raw(Some(pid))).ok();
                if let Some(ended) = user_data.filter(|one| Some(one.child.id()) == id) {
                    let how = status.exit_status().map_or_else(
                        || "was killed".to_owned(),
                        |code| format!("ended with {code}"),
                    );
                    let line = format!("[user-data {how}]\n");
                    console.print_after(&ended.output, line.as_bytes());
                }
            }
            Ok(None) => {}
            Err(error) if error == rustix::io::Errno::INTR => {}
            // Nobody is left to wait for, and nobody will be.
            Err(_) => loop {
                thread::park();
            },
        }
    }
}

/// The folder with `libcuda.so.1`: the installed one, or one made in `scratch` for a build.
///
/// # Errors
/// If there is none.
pub fn libraries(scratch: &Path) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let beside = program.parent().map(Path::to_owned).unwrap_or_default();
    let installed = beside.join("../lib/weft");
    if installed.join("libcuda.so.1").exists() {
        return Ok(installed);
    }
    let built = beside.join("libcuda.so");
    ensure!(
        built.exists(),
        "libcuda.so.1 is missing: neither {} nor {} is there; name its folder with --libraries",
        installed.display(),
        built.display()
    );
    let folder = scratch.join("lib");
    fs::create_dir_all(&folder)?;
    let place = folder.join("libcuda.so.1");
    let _ = fs::remove_file(&place);
    std::os::unix::fs::symlink(&built, &place)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_that_is_too_long_has_its_beginning_and_its_end_and_says_what_is_missing() {
        let console = Console::new(tempfile::tempfile().unwrap());
        let lines = 400_000_u64;
        for line in 0..lines {
            console.print(format!("{line:07}\n").as_bytes());
        }
        let mut text = vec![0; usize::try_from(CONSOLE_BYTES_MAX * 2).unwrap()];
        let read = console.file.read_at(&mut text, 0).unwrap();
        let text = String::from_utf8(text[..read].to_vec()).unwrap();
        assert!(read as u64 <= CONSOLE_BYTES_MAX && text.starts_with("0000000\n0000001\n"));
        assert!(text.ends_with("0399998\n0399999\n"));
        let (first, rest) = text.split_once("\n[").unwrap();
        let (left_out, rest) = rest.split_once(" bytes of this console were left out").unwrap();
        let (_, last) = rest.split_once("]\n").unwrap();
        let all = first.len() + left_out.parse::<usize>().unwrap() + last.len();
        assert_eq!(all as u64, lines * 8);
        assert!(last.len() as u64 >= CONSOLE_LAST);
        assert_eq!(console.last_line().unwrap(), "0399999");
    }
}
