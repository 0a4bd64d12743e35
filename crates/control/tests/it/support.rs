//! A control plane of the test's own, and nodes that are simulated at their admin sockets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_api::node::{
    Answer, Attainment, DeviceReport, GatewayReport, GrantReport, MemoryReport, NodeReport,
    Request, VgpuReport, VgpuState,
};
use weft_api::v1::{Client, NewInstance, NewQuota, Quota, Role};
use weft_control::allocate::Allocator;
use weft_control::crash::Crash;
use weft_control::engine::Engine;
use weft_control::execute::World;
use weft_control::provision::fake::Fake;
use weft_control::random;
use weft_control::service::Service;
use weft_control::store::sqlite::Sqlite;
use weft_control::store::{GpuFound, NodeRow, Store, TokenRow};

/// Longest wait for anything; only a broken system reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

const MIB: u64 = 1 << 20;

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A VM with so many shared cGPUs.
pub(crate) fn shared(cgpus: u32, memory_mib: u64) -> NewInstance {
    NewInstance {
        memory_mib: Some(memory_mib),
        mode: Some(weft_api::v1::Mode::Shared),
        ..new(cgpus)
    }
}

/// A VM with so many GPUs to itself.
pub(crate) fn new(cgpus: u32) -> NewInstance {
    NewInstance {
        name: None,
        project: None,
        cgpus,
        memory_mib: None,
        mode: None,
        locality: None,
        weight: None,
        sla_us: None,
        user_data: None,
        image: None,
        flavor: None,
        network: None,
    }
}

/// A quota that says nothing of weight and class.
pub(crate) fn quota(cgpus: u64, memory_mib: u64, exclusive_gpus: u64) -> NewQuota {
    NewQuota { cgpus, memory_mib, exclusive_gpus, weight: None, user_facing: None }
}

/// Everything in this process, and nothing real outside.
pub(crate) struct Cloud {
    pub(crate) fake: Arc<Fake>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) service: Arc<Service>,
    _folder: TempDir,
}

impl Cloud {
    /// Lets somebody in who shows this secret.
    pub(crate) fn token(&self, (name, secret): (&str, &str), role: Role, project: Option<&str>) {
        let project = project.map(str::to_owned);
        let name = name.to_owned();
        let row = TokenRow { name, project, role, created_ms: 0, expires_ms: None };
        self.store.add_token(&row, random::digest(secret.as_bytes()), None).unwrap();
    }

    /// With nodes of so many GPUs of 8,192 MiB each.
    pub(crate) fn new(nodes: &[usize]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&folder.path().join("db")).unwrap());
        let fake = Arc::new(Fake::default());
        for (number, gpus) in nodes.iter().enumerate() {
            let admin = format!("node{number}");
            let gpu = |at| GpuFound {
                device: format!("gpu{at}"),
                product: "a GPU".to_owned(),
                memory_mib: 8192,
            };
            let gpus: Vec<GpuFound> = (0..*gpus).map(gpu).collect();
            fake.add_gpus(&admin, gpus.clone());
            let node = NodeRow {
                name: admin.clone(),
                admin: admin.clone(),
                gateway: format!("{admin}.example:7600"),
                gateway_given: false,
                identity: admin.clone(),
                host: admin,
                created_ms: 0,
                gpus: 0,
            };
            store.put_node(&node, &gpus, None).unwrap();
        }
        let policy = weft_sched::placement::by_name("first_fit").unwrap();
        let world = World {
            store: Arc::clone(&store),
            allocator: Arc::new(Allocator::new(Arc::clone(&store), policy)),
            provisioner: Arc::clone(&fake) as _,
            endpoint: Arc::clone(&fake) as _,
            nodes: Arc::clone(&fake) as _,
            crash: Crash::default(),
        };
        let engine = Engine::start(world, 4).unwrap();
        let service = Arc::new(Service::new(Arc::clone(&engine)));
        Self { fake, store, engine, service, _folder: folder }
    }

    /// A project that may have everything.
    pub(crate) fn project(&self, name: &str) {
        let most = 1 << 40;
        let quota = Quota { user_facing: most, ..quota(most, most, most).into() };
        self.store.put_project(name, quota, None).unwrap();
    }
}

/// A node's admin socket, with nothing behind it but a list of vGPUs.
pub(crate) struct SimulatedNode {
    vgpus: Arc<Mutex<Vgpus>>,
    pub(crate) socket: PathBuf,
}

/// By their names.
type Vgpus = BTreeMap<String, SimulatedVgpu>;

#[derive(Clone, Copy)]
struct SimulatedVgpu {
    memory_bytes: u64,
    used_ns: u64,
}

impl SimulatedNode {
    /// With so many GPUs of 8,192 MiB each; `gateway` is what it says of its gateway.
    pub(crate) fn start(folder: &Path, gpus: usize, gateway: &str) -> Self {
        let socket = folder.join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let vgpus: Arc<Mutex<Vgpus>> = Arc::default();
        let (of_thread, gateway) = (Arc::clone(&vgpus), gateway.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (vgpus, gateway) = (Arc::clone(&of_thread), gateway.clone());
                let stream = stream.unwrap();
                thread::spawn(move || converse(stream, &vgpus, gpus, &gateway));
            }
        });
        Self { vgpus, socket }
    }

    /// The vGPUs that are there.
    pub(crate) fn names(&self) -> Vec<String> {
        self.vgpus.lock().unwrap().keys().cloned().collect()
    }
}

fn converse(stream: UnixStream, vgpus: &Mutex<Vgpus>, gpus: usize, gateway: &str) {
    let mut out = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let request: Request = serde_json::from_str(&line).unwrap();
        let answer = answer(request, &mut vgpus.lock().unwrap(), gpus, gateway);
        let mut text = serde_json::to_vec(&answer).unwrap();
        text.push(b'\n');
        if out.write_all(&text).is_err() {
            return;
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "it knows what the control plane asks")]
fn answer(request: Request, vgpus: &mut Vgpus, gpus: usize, gateway: &str) -> Answer {
    let refused = |message: String| Answer::Error { message };
    match request {
        Request::Node => Answer::Node(node_report(gpus, gateway)),
        Request::List => {
            Answer::Vgpus(vgpus.iter().map(|(name, vgpu)| report(name, *vgpu)).collect())
        }
        Request::Create { name, memory_bytes, .. } => {
            if vgpus.contains_key(&name) {
                return refused(format!("vGPU `{name}` is there already"));
            }
            let memory_bytes = memory_bytes.unwrap_or(0);
            let vgpu = SimulatedVgpu { memory_bytes, used_ns: VGPU_USED_NS };
            vgpus.insert(name.clone(), vgpu);
            Answer::Vgpu(report(&name, vgpu))
        }
        Request::Close { name } => match vgpus.get_mut(&name) {
            Some(vgpu) => {
                vgpu.used_ns = CLOSED_VGPU_USED_NS;
                Answer::Vgpu(report(&name, *vgpu))
            }
            None => refused(format!("there is no vGPU `{name}`")),
        },
        Request::GrantAhead(asked) => Answer::Grant(GrantReport {
            grant: format!("grant-of-{}", asked.name),
            vgpu: asked.name,
            weight: 0,
            memory_bytes: 0,
            uses: asked.uses,
            expires_s: 0,
            listen: Some(gateway.to_owned()),
            gateway_key: gateway_key(gateway),
        }),
        Request::Remove { name, .. } => match vgpus.remove(&name) {
            Some(_) => Answer::Done,
            None => refused(format!("there is no vGPU `{name}`")),
        },
        other => refused(format!("a simulated node does not know {other:?}")),
    }
}

fn gateway_key(gateway: &str) -> String {
    random::digest(gateway.as_bytes()).map(|byte| format!("{byte:02x}")).concat()
}

fn node_report(gpus: usize, gateway: &str) -> NodeReport {
    let device = |at| DeviceReport {
        name: format!("gpu{at}"),
        pool: None,
        in_service: true,
        failure: None,
        product: "simulated".to_owned(),
        backend: "none".to_owned(),
        clock: "real".to_owned(),
        processors: String::new(),
        policy: "fair".to_owned(),
        memory_bytes: 8192 * MIB,
        memory_used_bytes: 0,
        memory: MemoryReport::default(),
        busy_ns: 0,
        overruns: 0,
        late: 0,
        executions: 0,
    };
    NodeReport {
        version: "0".to_owned(),
        pid: std::process::id(),
        protocol: 1,
        admin: weft_api::node::VERSIONS,
        policy: "fair".to_owned(),
        policies: Vec::new(),
        tenant_socket: String::new(),
        devices: (0..gpus).map(device).collect(),
        adopted_sessions: 0,
        you_administrate: true,
        gateway: Some(GatewayReport {
            listen: Some(gateway.to_owned()),
            key: gateway_key(gateway),
        }),
    }
}

/// Device time that each vGPU of a simulated node has used while it is open.
const VGPU_USED_NS: u64 = 7;

/// And in all, when its programs have ended.
pub(crate) const CLOSED_VGPU_USED_NS: u64 = 11;

fn report(name: &str, SimulatedVgpu { memory_bytes, used_ns }: SimulatedVgpu) -> VgpuReport {
    VgpuReport {
        name: name.to_owned(),
        owner: 0,
        device: "gpu0".to_owned(),
        tenant: None,
        tenant_weight: 1,
        tenant_cap_ppm: None,
        cap_part_ppm: None,
        weight: 1,
        cap_ppm: None,
        sla_ns: 0,
        attainment: Attainment::default(),
        memory_bytes,
        memory_used_bytes: 0,
        pinned_bytes: 0,
        state: VgpuState::Detached,
        is_closing: false,
        sessions: 0,
        programs: Vec::new(),
        processes: Vec::new(),
        used_ns,
        held_ns: 0,
        turns: 0,
        sessions_total: 0,
    }
}

/// Command lines of processes in which these words are.
pub(crate) fn processes_with(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(words) {
            found.push(line);
        }
    }
    found
}

/// The real program with the local provisioner.
pub(crate) struct Program {
    pub(crate) folder: TempDir,
    pub(crate) node: SimulatedNode,
    /// Another one, for tests that make it known.
    pub(crate) other: SimulatedNode,
    pub(crate) environment: Vec<(&'static str, String)>,
    process: Option<Child>,
    pub(crate) url: String,
    token: String,
}

/// One of several processes that are the same control plane.
pub(crate) struct Replica {
    pub(crate) process: Child,
    pub(crate) url: String,
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Program {
    /// A folder with a token, a project and two nodes, of which nothing runs yet. What stands for
    /// `weft-endpoint` says that it is ready and stays.
    pub(crate) fn new() -> Self {
        Self::with(Vec::new())
    }

    /// The same, with more in its environment.
    pub(crate) fn with(environment: Vec<(&'static str, String)>) -> Self {
        let folder = tempfile::Builder::new().prefix("weft-control-").tempdir().unwrap();
        std::fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
        let endpoint = folder.path().join("endpoint");
        let script = "#!/bin/sh\ncat > /dev/null\necho ready\nexec sleep 100000\n";
        std::fs::write(&endpoint, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&endpoint, mode).unwrap();
        let node = SimulatedNode::start(folder.path(), 4, "127.0.0.1:1");
        let others = folder.path().join("other");
        std::fs::create_dir(&others).unwrap();
        let other = SimulatedNode::start(&others, 4, "127.0.0.1:2");
        let mut program = Self {
            folder,
            node,
            other,
            environment,
            process: None,
            url: String::new(),
            token: String::new(),
        };
        std::fs::create_dir(program.state()).unwrap();
        let mut command = program.command();
        command.args(["token", "test", "--role", "admin", "--state-dir"]).arg(program.state());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program.token = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        program
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn vms(&self) -> PathBuf {
        self.state().join("vms")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-control"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it; it kills itself at the place, if there is one.
    pub(crate) fn start(&mut self, crash_at: Option<&str>, flags: &[&str]) {
        let place = crash_at.map(|place| (weft_control::crash::VARIABLE, place));
        let (process, url) = self.spawn(place, flags);
        (self.process, self.url) = (Some(process), url);
    }

    /// Starts another one with the same store and folder.
    pub(crate) fn replica(&self, place: Option<(&str, &str)>, flags: &[&str]) -> Replica {
        let (process, url) = self.spawn(place, flags);
        Replica { process, url }
    }

    fn spawn(&self, place: Option<(&str, &str)>, flags: &[&str]) -> (Child, String) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        let mut command = self.command();
        command.args(["serve", "--listen", "127.0.0.1:0", "--sweep-s", "0"]);
        command.args(flags).arg("--state-dir").arg(self.state());
        // Another provisioner refuses what is of VMs of this host.
        if !flags.contains(&"--provisioner") {
            command.args(["--guest-user", "0", "--libraries"]).arg(self.folder.path());
            command.arg("--endpoint").arg(self.folder.path().join("endpoint"));
        }
        command.envs(place);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("weft-control: serving at ");
        // One that was killed at once has said nothing.
        (child, url.unwrap_or_default().to_owned())
    }

    /// The process that runs.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// The administrator's token.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// A client with the administrator's token.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url, &self.token).unwrap()
    }

    /// Waits for it to be killed.
    pub(crate) fn wait_killed(&mut self) {
        let mut process = self.process.take().unwrap();
        eventually("the control plane to be killed", || process.try_wait().unwrap().is_some());
        let status = process.wait().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(9), "{}", self.log());
    }

    /// Kills it (`SIGKILL`).
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Processes whose command line names this folder.
    pub(crate) fn processes(&self) -> Vec<String> {
        processes_with(&self.vms().display().to_string())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        // VMs outlive it: whoever is left is ended through a fresh one's eyes.
        let mut command = self.command();
        command.args(["local", "--down", "--guest-user", "0", "--state-dir"]).arg(self.state());
        command.arg("--libraries").arg(self.folder.path());
        command.arg("--endpoint").arg(self.folder.path().join("endpoint"));
        let _ = command.output();
        if thread::panicking() {
            let log = self.log();
            let _ = std::io::stderr().write_all(log.as_bytes());
        }
    }
}

pub(crate) fn all() -> weft_control::store::Part {
    weft_control::store::Part { limit: 100, after: None, project: None }
}
