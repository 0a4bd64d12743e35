//! `kill -9` of a process within a step of a swap plan, between any two calls of the driver.
//!
//! Several processes share one driver's memory here: Weft's own shim on a node, where they are
//! sessions of one vGPU whose quota is the driver's memory. The victim stops within its step and is
//! killed there. What it had comes back, and the survivor finds all of its own memory.

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::backing::{Access, Backing};
use super::driver::{Address, Code};
use super::swap_tests::{SLOTS, Tenant};
use crate::{Device, DeviceError, SwapError, SwapStep};

const TEST: &str = "cuda::kill_tests::who_is_killed_within_a_step_takes_nothing_from_others";
/// Names what a process of this test is.
const ROLE: &str = "WEFT_TEST_ROLE";
const SURVIVOR: &str = "survivor";
/// What lines of a process of this test begin with, among what its test harness prints.
const SAYS: &str = "tenant: ";
/// Two tenants have 24 MiB each: both have room while one of them has half of its own saved.
const DRIVER_MEMORY: &str = "40MiB";
/// Longest wait for anything; only a broken system reaches it.
const DEADLINE: Duration = Duration::from_secs(60);
/// The part that the victim's step is about.
const PART: u64 = 3;

/// Where the victim is killed.
#[derive(Clone, Copy)]
struct Point {
    name: &'static str,
    /// Whether its step is to save the part, not to bring it.
    saves: bool,
    /// Has it stop there.
    hook: fn(&mut Tenant),
}

const POINTS: [Point; 6] = [
    Point {
        name: "saved and still mapped",
        saves: true,
        hook: |one| {
            COPY_OUT.get_or_init(|| one.device.driver.copy_out);
            one.device.driver.copy_out = stop_after_copying_out;
        },
    },
    Point {
        name: "unmapped and not released",
        saves: true,
        hook: |one| calls(one).release = stop_at_release,
    },
    Point {
        name: "created and not mapped",
        saves: false,
        hook: |one| calls(one).map = stop_at_map,
    },
    Point {
        name: "mapped and not accessible",
        saves: false,
        hook: |one| calls(one).access = stop_at_access,
    },
    Point {
        name: "accessible and not written",
        saves: false,
        hook: |one| one.device.driver.copy_in = stop_at_copying_in,
    },
    Point {
        name: "half written",
        saves: false,
        hook: |one| {
            COPY_IN.get_or_init(|| one.device.driver.copy_in);
            one.device.driver.copy_in = stop_in_copying_in;
        },
    },
];

type CopyOut = unsafe extern "C" fn(*mut c_void, Address, usize) -> Code;
type CopyIn = unsafe extern "C" fn(Address, *const c_void, usize) -> Code;

/// What stood in the driver's place before.
static COPY_OUT: OnceLock<CopyOut> = OnceLock::new();
static COPY_IN: OnceLock<CopyIn> = OnceLock::new();

fn calls(one: &mut Tenant) -> &mut super::driver::VirtualMemory {
    match &mut one.device.backing {
        Backing::Range(range, _) => &mut range.calls,
        Backing::Driver => panic!("Weft's own driver moves memory"),
    }
}

/// Waits here for its end.
fn stop() -> ! {
    say("stopped");
    loop {
        std::thread::park();
    }
}

unsafe extern "C" fn stop_after_copying_out(to: *mut c_void, from: Address, bytes: usize) -> Code {
    let real = COPY_OUT.get().expect("set before");
    // SAFETY: the caller's arguments, for the function that they are for.
    let code = unsafe { real(to, from, bytes) };
    assert_eq!(code, 0, "the part is saved");
    stop()
}

unsafe extern "C" fn stop_at_release(_: u64) -> Code {
    stop()
}

unsafe extern "C" fn stop_at_map(_: Address, _: usize, _: usize, _: u64, _: u64) -> Code {
    stop()
}

unsafe extern "C" fn stop_at_access(_: Address, _: usize, _: *const Access, _: usize) -> Code {
    stop()
}

unsafe extern "C" fn stop_at_copying_in(_: Address, _: *const c_void, _: usize) -> Code {
    stop()
}

unsafe extern "C" fn stop_in_copying_in(to: Address, from: *const c_void, bytes: usize) -> Code {
    let real = COPY_IN.get().expect("set before");
    // SAFETY: half of what the caller gave, for the function that it is for.
    let code = unsafe { real(to, from, bytes / 2) };
    assert_eq!(code, 0, "half of the part is written");
    stop()
}

/// Tells the test that started this process.
fn say(text: &str) {
    println!("{SAYS}{text}");
    let _ = std::io::stdout().flush();
}

fn bring_all(one: &mut Tenant) -> Result<u64, SwapError> {
    let steps: Vec<SwapStep> = (0..SLOTS as u64).map(|part| SwapStep::Bring { part }).collect();
    one.device.swapping().unwrap().swap(&steps)
}

fn is_full(result: &Result<u64, SwapError>) -> bool {
    matches!(result, Err(SwapError { error: DeviceError::OutOfMemory { .. }, .. }))
}

/// Does what it is told, and finds its memory.
fn survive() {
    let mut one = Tenant::new();
    one.turn(0);
    say("ready");
    for line in stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "save" => {
                let half = 0..SLOTS as u64 / 2;
                let steps: Vec<SwapStep> = half.map(|part| SwapStep::Save { part }).collect();
                one.device.swapping().unwrap().swap(&steps).unwrap();
                say("saved");
            }
            "crowd" => {
                assert!(is_full(&bring_all(&mut one)), "the victim still has its memory");
                say("crowded");
            }
            "turn" => {
                let deadline = Instant::now() + DEADLINE;
                let mut brought = bring_all(&mut one);
                while is_full(&brought) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                    brought = bring_all(&mut one);
                }
                brought.unwrap();
                one.turn(0);
                say("intact");
            }
            _ => return,
        }
    }
}

fn die_at(point: &str) {
    let Point { saves, hook, .. } = POINTS.into_iter().find(|own| own.name == point).unwrap();
    let mut one = Tenant::new();
    one.turn(1);
    let (save, bring) = (SwapStep::Save { part: PART }, SwapStep::Bring { part: PART });
    if !saves {
        one.device.swapping().unwrap().swap(&[save]).unwrap();
    }
    hook(&mut one);
    let ended = one.device.swapping().unwrap().swap(&[if saves { save } else { bring }]);
    panic!("the step ended: {ended:?}");
}

/// A node of the test's own.
struct Node {
    weft: PathBuf,
    directory: tempfile::TempDir,
    process: Child,
}

impl Node {
    fn start(weft: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("weft-test-").tempdir().unwrap();
        let mut command = command(weft, directory.path());
        let state = format!("state_dir={}", directory.path().join("state").display());
        command.args(["node", "--set", &state, "--set", "device=soft:real"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let node = Self { weft: weft.to_owned(), directory, process };
        let deadline = Instant::now() + DEADLINE;
        while !node.succeeds(&["ls"]) {
            assert!(Instant::now() < deadline, "the node did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        node
    }

    fn command(&self) -> Command {
        command(&self.weft, self.directory.path())
    }

    fn succeeds(&self, arguments: &[&str]) -> bool {
        let mut command = self.command();
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// This test in another process, as a session of the one vGPU that they share.
    fn tenant(&self, role: &str) -> Talk {
        let mut command = self.command();
        command.args(["run", "--name", "gpu", "--memory", DRIVER_MEMORY, "--"]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", TEST, "--nocapture"]);
        Talk::start(command.env(ROLE, role))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.succeeds(&["stop", "--force"]) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

fn command(weft: &Path, directory: &Path) -> Command {
    let mut command = Command::new(weft);
    for variable in ["WEFT_SOCKET", "WEFT_RUNTIME_DIR", "WEFT_VGPU", "WEFT_ATTACH", "WEFT_DEVICE"] {
        command.env_remove(variable);
    }
    command.arg("--runtime-dir").arg(directory);
    command
}

/// A process of this test, and what it says.
struct Talk {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Talk {
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The harness does not end its own line before the test's first one.
            for line in lines {
                let said = line.split_once(SAYS).map(|(_, said)| said.to_owned());
                if said.is_some_and(|said| sender.send(said).is_err()) {
                    return;
                }
            }
        });
        Self { process, input, lines }
    }

    #[track_caller]
    fn hears(&self, expected: &str) {
        let said = self.lines.recv_timeout(DEADLINE);
        assert_eq!(said.as_deref(), Ok(expected));
    }

    #[track_caller]
    fn told(&mut self, what: &str, expected: &str) {
        writeln!(self.input, "{what}").unwrap();
        self.hears(expected);
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn who_is_killed_within_a_step_takes_nothing_from_others() {
    let Some(built) = std::env::var_os("WEFT_TEST_BIN").map(PathBuf::from) else {
        eprintln!("not run: WEFT_TEST_BIN names no build; `cargo xtask test` does");
        return;
    };
    match std::env::var(ROLE) {
        Ok(role) if role == SURVIVOR => return survive(),
        Ok(point) => return die_at(&point),
        Err(_) => {}
    }
    let node = Node::start(&built.join("weft"));
    for Point { name: point, .. } in POINTS {
        eprintln!("{point}");
        let mut survivor = node.tenant(SURVIVOR);
        survivor.hears("ready");
        survivor.told("save", "saved");
        let mut victim = node.tenant(point);
        victim.hears("stopped");
        survivor.told("crowd", "crowded");
        victim.process.kill().unwrap();
        victim.process.wait().unwrap();
        survivor.told("turn", "intact");
        survivor.told("save", "saved");
        survivor.told("turn", "intact");
        writeln!(survivor.input, "end").unwrap();
        assert!(survivor.process.wait().unwrap().success(), "{point}");
    }
}
