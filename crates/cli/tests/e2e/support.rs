//! A daemon of the test's own, and programs on it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_node::admin::Client;

/// Longest wait for anything; only a broken system reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A setting of the test run that `cargo xtask test` provides.
pub(crate) fn provided(name: &str) -> PathBuf {
    std::env::var_os(name)
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("{name} is not set; run the tests with `cargo xtask test`"))
}

/// Path of a compiled C program.
pub(crate) fn program(name: &str) -> PathBuf {
    provided("WEFT_TEST_PROGRAMS").join(name)
}

/// Weft's shim, which with `WEFT_ATTACH=direct` is a complete `libcuda` in one process.
pub(crate) fn driver() -> PathBuf {
    provided("WEFT_TEST_BIN").join("libcuda.so")
}

/// The Python interpreter with tinygrad and NumPy.
pub(crate) fn python() -> PathBuf {
    provided("WEFT_TEST_PYTHON")
}

/// The program over cudarc.
pub(crate) fn cudarc() -> PathBuf {
    provided("WEFT_TEST_CUDARC")
}

/// The folder with NVIDIA's headers and the run-time compiler.
pub(crate) fn toolkit() -> PathBuf {
    provided("WEFT_TEST_TOOLKIT")
}

/// The `weft` command under test.
pub(crate) fn weft() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    for variable in ["WEFT_SOCKET", "WEFT_RUNTIME_DIR", "WEFT_VGPU", "WEFT_ATTACH", "WEFT_DEVICE"] {
        command.env_remove(variable);
    }
    command
}

/// Whether this test can have network namespaces with rules of their own. That it has not run is
/// said, and `WEFT_TEST_NETWORK` or `CI=true` makes it a failure ([`can_run`]).
#[track_caller]
pub(crate) fn has_network() -> bool {
    let mut trial = Command::new("unshare");
    trial.args(["--net", "nft", "list", "ruleset"]);
    let can = trial.output().is_ok_and(|output| output.status.success());
    let is_required = std::env::var_os("WEFT_TEST_NETWORK").is_some();
    assert!(can || !is_required, "WEFT_TEST_NETWORK is set, and there is no network namespace");
    can_run(can, "no network namespace with rules of its own can be made here")
}

/// The same for mount namespaces, which root makes.
#[track_caller]
pub(crate) fn has_mounts() -> bool {
    let mut trial = Command::new("unshare");
    trial.args(["--mount", "mount", "-t", "tmpfs", "tmpfs", "/run"]);
    is_root() && can_run(finish(trial).status.success(), "no mount namespaces can be made here")
}

/// Does something in a network namespace, which is a file; sockets that it makes stay of it.
pub(crate) fn in_network<T: Send>(network: &str, act: impl FnOnce() -> T + Send) -> T {
    use std::os::fd::AsFd;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let network = std::fs::File::open(network).unwrap();
    let inside = || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

/// Whether tests may be several users; says so if not ([`can_run`]).
#[track_caller]
pub(crate) fn is_root() -> bool {
    can_run(rustix::process::geteuid().is_root(), "only root can be several users, or mount disks")
}

/// Whether a test has what it takes; says what it lacks if not. Where `CI=true` it must have it: a
/// test that checks nothing there would go unseen.
#[track_caller]
pub(crate) fn can_run(has_all: bool, lack: &str) -> bool {
    if !has_all {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "CI=true, but {lack}");
        eprintln!("not run: {lack}");
    }
    has_all
}

/// A command, as another user in these groups besides its own.
pub(crate) fn as_user(user: u32, groups: &[u32], command: &Command) -> Command {
    let mut switched = Command::new("setpriv");
    switched.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    match groups.as_slice() {
        [] => switched.arg("--clear-groups"),
        groups => switched.arg(format!("--groups={}", groups.join(","))),
    };
    // What is the tests' user's own is not this one's.
    switched.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME").env("HOME", "/nonexistent");
    switched.arg(command.get_program()).args(command.get_args());
    switched
}

/// A command, in a network namespace that has a name, or is a file of `/proc`.
pub(crate) fn within(namespace: &str, command: &Command) -> Command {
    let mut entered = if namespace.starts_with('/') {
        let mut entered = Command::new("nsenter");
        entered.arg(format!("--net={namespace}"));
        entered
    } else {
        let mut entered = Command::new("ip");
        entered.args(["netns", "exec", namespace]);
        entered
    };
    entered.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => entered.env(name, value),
            None => entered.env_remove(name),
        };
    }
    entered
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon in a directory of its own, ended with the value.
pub(crate) struct Node {
    process: Option<Child>,
    settings: Vec<String>,
    environment: Vec<(&'static str, String)>,
    directory: TempDir,
    /// The network namespace that it runs in, if not this one.
    namespace: Option<String>,
}

impl Node {
    /// Starts one with `key=value` settings, on the software device unless `WEFT_TEST_DEVICE` names
    /// another (`cargo xtask gpu`).
    pub(crate) fn start(settings: &[&str]) -> Self {
        let device = std::env::var("WEFT_TEST_DEVICE").ok().map(|name| format!("device={name}"));
        let mut all: Vec<&str> = device.iter().map(String::as_str).collect();
        if device.is_some() {
            all.push("device.trust_tenants=true");
        }
        all.extend_from_slice(settings);
        Self::start_in(&all, Vec::new())
    }

    /// The same in a network namespace.
    pub(crate) fn start_within(namespace: &str, settings: &[&str]) -> Self {
        Self::begin(settings, Vec::new(), Some(namespace.to_owned()))
    }

    fn start_in(settings: &[&str], environment: Vec<(&'static str, String)>) -> Self {
        Self::begin(settings, environment, None)
    }

    fn begin(
        settings: &[&str],
        environment: Vec<(&'static str, String)>,
        namespace: Option<String>,
    ) -> Self {
        let directory = tempfile::Builder::new().prefix("weft-test-").tempdir().unwrap();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut node = Self { process: None, settings, environment, directory, namespace };
        node.launch();
        node
    }

    /// A node with `device.kind = "cuda"`. Its workers load Weft's own shim as if it were NVIDIA's
    /// driver, and that executes on a paced software device within the worker: each worker has one
    /// of its own, so that only the gate makes them take turns.
    pub(crate) fn on_driver(settings: &[&str]) -> Self {
        Self::on_library(&driver(), settings)
    }

    /// The same with the shim at this path.
    pub(crate) fn on_library(library: &Path, settings: &[&str]) -> Self {
        // The sandbox lets a worker read its driver's folder.
        let model = library.with_file_name("e2e-paced.toml");
        let library = format!("device.library={}", library.display());
        // Workers of another user might not reach the build's folder.
        let mut all =
            vec!["device=cuda", library.as_str(), "scheduling.share=vgpu", "worker.user=0"];
        all.extend_from_slice(settings);
        std::fs::copy(root().join("crates/cli/models/paced.toml"), &model).unwrap();
        let device = format!("soft:paced:{}", model.display());
        Self::start_in(&all, vec![("WEFT_ATTACH", "direct".to_owned()), ("WEFT_DEVICE", device)])
    }

    /// A node with two devices: `gpu0` is a paced software device, `gpu1` a driver's as in
    /// [`Self::on_driver`], with the shim at this path.
    pub(crate) fn beside_library(library: &Path) -> Self {
        let model = library.with_file_name("e2e-paced.toml");
        std::fs::copy(root().join("crates/cli/models/paced.toml"), &model).unwrap();
        let paced = format!("soft:paced:{}", model.display());
        let devices = format!("device={paced},cuda");
        let library = format!("device.1.library={}", library.display());
        let settings =
            [devices.as_str(), library.as_str(), "scheduling.share=vgpu", "worker.user=0"];
        let environment = vec![("WEFT_ATTACH", "direct".to_owned()), ("WEFT_DEVICE", paced)];
        Self::start_in(&settings, environment)
    }

    /// A node with a device of each kind: `gpu0` is a software device on the real clock, `gpu1` a
    /// paced one, `gpu2` a driver's as in [`Self::on_driver`].
    pub(crate) fn mixed() -> Self {
        let library = driver();
        let model = library.with_file_name("e2e-mixed.toml");
        std::fs::copy(root().join("crates/cli/models/paced.toml"), &model).unwrap();
        let paced = format!("soft:paced:{}", model.display());
        let devices = format!("device=soft:real,{paced},cuda");
        let library = format!("device.2.library={}", library.display());
        let settings =
            [devices.as_str(), library.as_str(), "scheduling.share=vgpu", "worker.user=0"];
        Self::start_in(
            &settings,
            vec![("WEFT_ATTACH", "direct".to_owned()), ("WEFT_DEVICE", paced)],
        )
    }

    /// A node on the paced device with the demo's model.
    pub(crate) fn paced(settings: &[&str]) -> Self {
        let model = root().join("crates/cli/models/paced.toml");
        let device = format!("device=soft:paced:{}", model.display());
        let mut all = vec![device.as_str(), "scheduling.share=vgpu"];
        all.extend_from_slice(settings);
        Self::start_in(&all, Vec::new())
    }

    /// Takes other settings for the next start.
    pub(crate) fn configure(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
    }

    /// Starts the daemon (again) in the same directory.
    pub(crate) fn launch(&mut self) {
        let mut command = self.command();
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path().join("node.log"))
            .unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.process = Some(child);
        let deadline = Instant::now() + DEADLINE;
        while self.client().and_then(|mut client| client.node().ok()).is_none() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the daemon did not start ({ended:?}):\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts the next daemon without waiting for the end of the one before.
    pub(crate) fn launch_at_once(&mut self) {
        let before = self.process.take();
        self.launch();
        if let Some(mut before) = before {
            before.wait().unwrap();
        }
    }

    /// The command that starts a daemon here.
    pub(crate) fn command(&self) -> Command {
        let mut command = weft();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.arg("node").arg("--runtime-dir").arg(self.path());
        command.arg("--set").arg(format!("state_dir={}", self.path().join("state").display()));
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        match &self.namespace {
            Some(namespace) => within(namespace, &command),
            None => command,
        }
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("node.log")).unwrap_or_default()
    }

    /// A connection to its admin socket, if it listens.
    pub(crate) fn client(&self) -> Option<Client> {
        Client::connect(&self.path().join("admin.sock")).ok()
    }

    /// A connection to its admin socket.
    pub(crate) fn admin(&self) -> Client {
        self.client().unwrap_or_else(|| panic!("no daemon answers:\n{}", self.log()))
    }

    /// Waits until the daemon has ended, having been told to.
    pub(crate) fn wait_until_ended(&mut self) {
        let process = self.process.as_mut().unwrap();
        eventually("the daemon to end", || process.try_wait().unwrap().is_some());
    }

    /// Kills the daemon (`SIGKILL`), not its workers.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// `weft run` on this node.
    pub(crate) fn run(&self, flags: &[&str], program: &Path, arguments: &[&str]) -> Command {
        let mut command = weft();
        command.arg("--runtime-dir").arg(self.path()).arg("run").args(flags).arg("--");
        command.arg(program).args(arguments);
        command
    }

    /// A worker's process for each session, by the daemon's children.
    pub(crate) fn workers(&self) -> Vec<u32> {
        self.children("weft", "worker")
    }

    /// The gateway's process, if there is one.
    pub(crate) fn gateway(&self) -> Option<u32> {
        self.children("weft-endpoint", "serve").first().copied()
    }

    /// The daemon's process and those that it has started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let daemon = self.process.as_ref().map(Child::id).unwrap();
        let threads = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
        let lists = threads.flatten().map(|thread| {
            std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
        });
        let text = lists.collect::<Vec<_>>().join(" ");
        let children = text.split_whitespace().map(|pid| pid.parse().unwrap());
        children.chain([daemon]).collect()
    }

    fn children(&self, program: &str, argument: &str) -> Vec<u32> {
        let daemon = self.process.as_ref().map(Child::id);
        let all = processes_with(program, argument).into_iter();
        all.filter(|(_, parent)| Some(*parent) == daemon).map(|(pid, _)| pid).collect()
    }

    /// Waits until no session is left.
    pub(crate) fn wait_until_empty(&self) {
        eventually("all sessions to end", || {
            self.admin().list().unwrap().iter().all(|vgpu| vgpu.sessions == 0)
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let stopped = self.client().is_some_and(|mut client| client.shutdown().is_ok());
            if !stopped {
                let _ = process.kill();
            }
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- daemon's log ---\n{}", self.log());
        }
    }
}

/// Processes of a program under test with this argument: (pid, parent).
fn processes_with(program: &str, argument: &str) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let is_it = words.next().is_some_and(|word| word.ends_with(program.as_bytes()));
        if is_it && words.next() == Some(argument.as_bytes()) {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            found.push((pid, parent.and_then(|text| text.trim().parse().ok()).unwrap_or(0)));
        }
    }
    found
}

/// Runs a command to its end, within the deadline.
pub(crate) fn finish(command: Command) -> Output {
    finish_within(DEADLINE, command)
}

/// The same of what takes longer.
pub(crate) fn finish_within(deadline: Duration, mut command: Command) -> Output {
    let shown = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{shown}: {error}"));
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(deadline) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            panic!("{shown} did not end");
        }
    }
}

/// Runs a command that must succeed; returns what it printed.
pub(crate) fn success(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = finish(command);
    let text = text_of(&output);
    assert!(output.status.success(), "{shown}: {}\n{text}", output.status);
    text
}

/// Both streams of a finished program.
pub(crate) fn text_of(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// A program that talks: its lines come one by one.
pub(crate) struct Conversation {
    pub(crate) child: Child,
    lines: Receiver<String>,
    input: Option<ChildStdin>,
}

impl Conversation {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let input = child.stdin.take();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, input }
    }

    /// The next line.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("the program to print a line")
    }

    /// The next line of a program that may have ended instead.
    pub(crate) fn line_if_any(&self) -> Option<String> {
        self.lines.recv_timeout(DEADLINE).ok()
    }

    /// Sends a line to a program that may have ended, and waits for what it says then.
    pub(crate) fn answer_if_any(&mut self, text: &str) -> Option<String> {
        // Who has ended does not read.
        let _ = writeln!(self.input.as_mut().unwrap(), "{text}");
        self.line_if_any()
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, text: &str) {
        writeln!(self.input.as_mut().unwrap(), "{text}").unwrap();
    }

    /// Kills it (`SIGKILL`).
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.input = None;
        let mut status = None;
        eventually("the program to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The nice value of a process's first thread.
pub(crate) fn nice_of(pid: u32) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in parentheses, which may hold anything: state and 15 more.
    text.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()
}
