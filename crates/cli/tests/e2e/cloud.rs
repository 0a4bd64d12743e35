//! The local cloud: `weft-control`, `gsaas`, a node and VMs that are processes, all real.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;
use weft_node::admin::VgpuReport;

use crate::support::{
    DEADLINE, Node, eventually, finish, has_network, in_network, is_root, program, provided,
    text_of, within,
};

/// A node, a control plane, and a token of each role.
pub(crate) struct Cloud {
    /// None where the control plane has started one of its own.
    node: Option<Node>,
    folder: TempDir,
    control: Option<Child>,
    url: String,
    /// Where the control plane is to kill itself.
    crash_at: Option<&'static str>,
    /// The network namespace of the control plane and its VMs, if it is not the test's.
    network: Option<String>,
    /// What the control plane is told at every start.
    pub(crate) flags: Vec<String>,
}

/// cGPUs of the VM's own host, with whose node it shares memory.
const LOCAL: &str = "-locality=local";

fn control() -> Command {
    Command::new(provided("WEFT_TEST_BIN").join("weft-control"))
}

impl Cloud {
    fn start(flags: &[&str]) -> Self {
        let node = Node::start(&["remote.listen=127.0.0.1:0", "remote.user=0"]);
        Self::start_with(node, None, flags)
    }

    /// With this node; the control plane and its VMs are in that network namespace.
    pub(crate) fn start_with(node: Node, network: Option<String>, flags: &[&str]) -> Self {
        let mut cloud = Self::empty(Some(node), network, flags);
        std::fs::create_dir(cloud.state()).unwrap();
        for (name, role) in [("admin", "admin"), ("team", "member"), ("others", "member")] {
            let mut command = control();
            command.args(["token", name, "--role", role, "--state-dir"]).arg(cloud.state());
            if role == "member" {
                command.args(["--project", name]);
            }
            let output = finish(command);
            assert!(output.status.success(), "{}", text_of(&output));
            std::fs::write(cloud.token(name), &output.stdout).unwrap();
            let own = PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(cloud.token(name), own).unwrap();
        }
        cloud.launch();
        let admin = cloud.node().path().join("admin.sock");
        let node = format!("{{\"admin\":\"{}\",\"host\":\"local\"}}", admin.display());
        cloud.http("PUT", "/v1/nodes/n1", &node);
        let quota = "{\"quota\":{\"cgpus\":4,\"memory_mib\":4096,\"exclusive_gpus\":1,\
                     \"weight\":12,\"user_facing\":2}}";
        cloud.http("PUT", "/v1/projects/team", quota);
        cloud
    }

    fn empty(node: Option<Node>, network: Option<String>, flags: &[&str]) -> Self {
        Self {
            node,
            folder: tempfile::Builder::new().prefix("weft-cloud-").tempdir().unwrap(),
            control: None,
            url: String::new(),
            crash_at: None,
            network,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        }
    }

    /// `weft-control local` as its users start it; what it prints are its tokens' places.
    fn start_local() -> Self {
        let mut cloud = Self::empty(None, None, &[]);
        let others_pass = PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(cloud.folder.path(), others_pass).unwrap();
        let mut all = vec!["local"];
        if !is_root() || !is_passable(&provided("WEFT_TEST_BIN")) {
            all.extend(["--guest-user", "0"]);
        }
        cloud.begin(&all);
        std::fs::copy(cloud.state().join("demo.token"), cloud.token("team")).unwrap();
        cloud
    }

    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn token(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.token"))
    }

    /// Starts the control plane (again).
    pub(crate) fn launch(&mut self) {
        let flags = self.flags.clone();
        let mut all = vec!["serve"];
        if !flags.iter().any(|flag| flag == "--provisioner") {
            // The test's folder is its user's alone.
            all.extend(["--guest-user", "0"]);
        }
        all.extend(flags.iter().map(String::as_str));
        self.begin(&all);
    }

    /// The command in the control plane's network.
    fn enter(&self, command: Command) -> Command {
        match &self.network {
            Some(network) => within(network, &command),
            None => command,
        }
    }

    /// Starts the control plane anew, which kills itself at that place.
    pub(crate) fn crash(&mut self, at: Option<&'static str>) {
        if let Some(mut control) = self.control.take() {
            // It may have done so already.
            let _ = control.kill();
            control.wait().unwrap();
        }
        self.crash_at = at;
        self.launch();
    }

    fn begin(&mut self, arguments: &[&str]) {
        let (out, log) = (self.folder.path().join("out"), self.folder.path().join("log"));
        let mut command = control();
        command.args(arguments).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        command.arg(self.state());
        command.envs(self.crash_at.map(|place| ("WEFT_CONTROL_CRASH_AT", place)));
        let mut command = self.enter(command);
        command.stdin(Stdio::null());
        command.stdout(std::fs::File::create(&out).unwrap());
        command.stderr(std::fs::File::options().create(true).append(true).open(log).unwrap());
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + DEADLINE;
        self.url = loop {
            let text = std::fs::read_to_string(&out).unwrap();
            if let Some((_, url)) = text.trim_end().rsplit_once(' ') {
                break url.to_owned();
            }
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        self.control = Some(child);
    }

    /// Where it answers.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn http(&self, method: &str, path: &str, body: &str) {
        use std::io::{Read, Write};
        let address = self.url.trim_start_matches("http://");
        let token = std::fs::read_to_string(self.token("admin")).unwrap();
        let (token, length) = (token.trim(), body.len());
        let connect = || std::net::TcpStream::connect(address).unwrap();
        let mut stream = match &self.network {
            Some(network) => in_network(network, connect),
            None => connect(),
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer \
             {token}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{method} {path}: {text}");
    }

    /// `gsaas` with somebody's token.
    pub(crate) fn gsaas(&self, who: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(provided("WEFT_TEST_BIN").join("gsaas"));
        command.args(arguments).env("GSAAS_URL", &self.url);
        command.env("GSAAS_TOKEN_FILE", self.token(who)).env_remove("GSAAS_TOKEN");
        let output = finish(self.enter(command));
        (output.status.code(), text_of(&output))
    }

    /// The id of a VM that is ready and runs this script.
    fn launch_vm(&self, script: &str, arguments: &[&str]) -> String {
        self.launch_vm_of("team", script, arguments)
    }

    /// The same of somebody's project.
    pub(crate) fn launch_vm_of(&self, who: &str, script: &str, arguments: &[&str]) -> String {
        let file = self.folder.path().join("script");
        std::fs::write(&file, script).unwrap();
        let userdata = format!("-userdata={}", file.display());
        let mut all = vec!["-l", &userdata];
        all.extend_from_slice(arguments);
        let (code, text) = self.gsaas(who, &all);
        assert_eq!(code, Some(0), "{text}\n{}", self.log());
        // What is said for people while it takes long comes behind it.
        text.lines().next().unwrap().to_owned()
    }

    /// The sessions of a VM's programs.
    pub(crate) fn sessions(&self, id: &str) -> u32 {
        let vgpus = self.admin().list().unwrap();
        vgpus.iter().filter(|vgpu| vgpu.name.contains(id)).map(|vgpu| vgpu.sessions).sum()
    }

    /// The node's administrator, whoever has started it.
    pub(crate) fn admin(&self) -> weft_node::admin::Client {
        let socket = self.state().join("node/admin.sock");
        match &self.node {
            Some(node) => node.admin(),
            None => weft_node::admin::Client::connect(&socket).unwrap(),
        }
    }

    /// What a VM has printed when its script has ended.
    fn console(&self, id: &str) -> String {
        self.console_of("team", id)
    }

    /// The same of somebody's VM.
    pub(crate) fn console_of(&self, who: &str, id: &str) -> String {
        let mut console = String::new();
        eventually("the user-data to end", || {
            console = self.gsaas(who, &["-console", &format!("-id={id}")]).1;
            console.contains("[user-data ")
        });
        console
    }
}

/// Whether users of VMs can get to what lies there.
pub(crate) fn is_passable(path: &Path) -> bool {
    let mode = |folder: &Path| std::fs::metadata(folder).unwrap().permissions().mode();
    path.ancestors().all(|folder| mode(folder) & 0o001 != 0)
}

impl Cloud {
    /// Ends it, and what it has made.
    pub(crate) fn end(&mut self) {
        if let Some(mut control) = self.control.take() {
            let _ = control.kill();
            let _ = control.wait();
        }
        let mut down = control();
        down.args(["local", "--down", "--guest-user", "0", "--state-dir"]).arg(self.state());
        let _ = self.enter(down).output();
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let node = std::fs::read_to_string(self.state().join("node/node.log"));
            eprintln!("--- control plane's log ---\n{}", self.log());
            eprintln!("--- its node's log ---\n{}", node.unwrap_or_default());
        }
    }
}

/// Each of two tenants' VMs runs an unmodified program on its own cGPU, over TLS, through a masked
/// address.
#[test]
fn a_vm_runs_an_unmodified_program_on_its_cgpu() {
    let cloud = Cloud::start(&[]);
    let script = format!("set -e; {}; echo \"at $CGPU_0\"", program("vector_add").display());
    let arguments = ["-ncgpus = 2", "-poolmem=1024", "-mode=shared", "-weight=3", "-sla=5000"];
    let arguments: Vec<&str> = arguments.iter().flat_map(|one| one.split(' ')).collect();
    let id = cloud.launch_vm(&script, &arguments);
    let console = cloud.console(&id);
    assert!(console.contains("PASSED") && console.contains("ended with 0"), "{console}");
    if is_root() {
        assert!(console.contains("at 169.254.77.1:18515"), "{console}");
    }
    let vgpus = cloud.node().admin().list().unwrap();
    let own: Vec<_> = vgpus.iter().filter(|vgpu| vgpu.name.contains(&id)).collect();
    assert_eq!(own.len(), 2);
    // Quota, weight and class are the grant's.
    let granted = |vgpu: &VgpuReport| (vgpu.weight, vgpu.memory_bytes, vgpu.sla_ns);
    assert!(own.iter().all(|vgpu| granted(vgpu) == (3, 1024 << 20, 5_000_000)), "{own:?}");
    assert!(own.iter().any(|vgpu| vgpu.used_ns > 0), "its use is its own");
    let (code, text) = cloud.gsaas("others", &["-show", &format!("-id={id}")]);
    assert!(code == Some(1) && text.contains("there is no instance"), "{text}");
    let (code, text) = cloud.gsaas("team", &["-l", "-ncgpus=3", "-poolmem=1", "-mode=shared"]);
    assert!(code == Some(3) && text.contains("quota"), "{text}");
    let (code, text) = cloud.gsaas("team", &["-t", &format!("-id={id}")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(cloud.node().admin().list().unwrap().iter().all(|vgpu| !vgpu.name.contains(&id)));
}

/// One command launches several VMs that each have their own cGPU, or none where a part would fit.
#[test]
fn several_vms_are_launched_by_one_command_or_none() {
    let cloud = Cloud::start(&[]);
    let script = cloud.folder.path().join("script");
    std::fs::write(&script, program("vector_add").display().to_string()).unwrap();
    let userdata = format!("-userdata={}", script.display());
    let launch = |count: &str| {
        let (memory, mode, name) = ("-poolmem=256", "-mode=shared", "-name=job");
        cloud.gsaas("team", &["-l", "-ncgpus=1", memory, mode, name, count, &userdata])
    };
    // The quota is 4 cGPUs.
    let (code, text) = launch("-count=5");
    assert!(code == Some(3) && text.contains("would have 5 cGPUs"), "{text}");
    let list = cloud.gsaas("team", &["-list"]).1;
    assert!(!list.contains("job-"), "{list}");
    let (code, text) = launch("-count=3");
    assert_eq!(code, Some(0), "{text}\n{}", cloud.log());
    // What is said for people while it takes long comes behind them.
    let ids: Vec<&str> = text.lines().take(3).collect();
    for id in &ids {
        let console = cloud.console(id);
        assert!(console.contains("PASSED"), "{id}: {console}");
    }
    let list = cloud.gsaas("team", &["-list"]).1;
    for (id, name) in ids.iter().zip(["job-1", "job-2", "job-3"]) {
        let of_it = list.lines().find(|line| line.starts_with(id)).unwrap_or_default();
        assert!(of_it.contains(name), "{list}");
        assert_eq!(cloud.gsaas("team", &["-t", &format!("-id={id}")]).0, Some(0));
    }
}

/// The first command of docs/cloud.md: VMs have users of their own, and the node's gateway too.
#[test]
fn a_vm_of_the_local_cloud_runs_a_program_as_it_is_installed() {
    let cloud = Cloud::start_local();
    let copy = cloud.folder.path().join("vector_add");
    std::fs::copy(program("vector_add"), &copy).unwrap();
    let script = format!("set -e; {}; id -u", copy.display());
    let id = cloud.launch_vm(&script, &["-ncgpus=1", "-poolmem=512", "-mode=shared"]);
    let console = cloud.console(&id);
    assert!(console.contains("PASSED"), "{console}");
    if is_root() && is_passable(&provided("WEFT_TEST_BIN")) {
        assert!(!console.lines().any(|line| line == "0"), "it is a user of its own: {console}");
    }
    assert_eq!(cloud.gsaas("team", &["-t", &format!("-id={id}")]).0, Some(0));
}

/// In its namespace a VM reaches what it was granted and nothing else of the host.
#[test]
fn a_vm_reaches_its_masked_address_only() {
    if !has_network() {
        return;
    }
    let cloud = Cloud::start(&[]);
    let url = cloud.url.trim_start_matches("http://").replace(':', "/");
    let script = format!(
        "for to in 169.254.77.1/18515 169.254.77.2/18515 {url}; do \
         if bash -c \"exec 3<>/dev/tcp/$to\" 2> /dev/null; then echo \"open $to\"; \
         else echo \"closed $to\"; fi; done; ls /proc | grep -c '^[0-9]*$'"
    );
    let id = cloud.launch_vm(&script, &["-ncgpus=1", "-poolmem=64", "-mode=shared"]);
    let console = cloud.console(&id);
    for line in ["open 169.254.77.1/18515", "closed 169.254.77.2/18515", &format!("closed {url}")] {
        assert!(console.contains(line), "{line}: {console}");
    }
}

/// A program goes on while the control plane is killed and started again, and ends with its VM.
#[test]
fn a_program_outlives_the_control_plane_and_ends_with_its_vm() {
    outlives_the_control_plane(&[]);
}

#[test]
fn a_program_that_shares_memory_outlives_the_control_plane_and_ends_with_its_vm() {
    outlives_the_control_plane(&[LOCAL]);
}

fn outlives_the_control_plane(more: &[&str]) {
    let mut cloud = Cloud::start(&[]);
    let script = format!("exec {} 100000000", program("relay").display());
    let shared = ["-ncgpus=1", "-poolmem=512", "-mode=shared"];
    let id = cloud.launch_vm(&script, &[&shared, more].concat());
    eventually("the program's session", || cloud.sessions(&id) == 1);
    let mut control = cloud.control.take().unwrap();
    control.kill().unwrap();
    control.wait().unwrap();
    cloud.launch();
    assert_eq!(cloud.sessions(&id), 1);
    let (code, text) = cloud.gsaas("team", &["-list"]);
    assert!(code == Some(0) && text.contains("ready"), "{text}");
    let (code, text) = cloud.gsaas("team", &["-t", &format!("-id={id}")]);
    assert_eq!(code, Some(0), "{text}");
    cloud.node().wait_until_empty();
    assert_eq!(cloud.sessions(&id), 0);
}

#[test]
fn a_vm_works_also_where_namespaces_are_not_permitted() {
    let cloud = Cloud::start(&["--plain-processes"]);
    let script = program("vector_add").display().to_string();
    let id = cloud.launch_vm(&script, &["-ncgpus=1", "-poolmem=512", "-mode=shared"]);
    let console = cloud.console(&id);
    assert!(console.contains("PASSED"), "{console}");
    assert!(cloud.log().contains("not kept apart"), "it says so");
    assert_eq!(cloud.gsaas("team", &["-t", &format!("-id={id}")]).0, Some(0));
}

/// A VM whose cGPUs are its host's runs an unmodified program through memory that it shares with
/// the node: the commands of one with two cGPUs go there, and no gateway and no relay has a part.
#[test]
fn a_vm_with_local_cgpus_shares_memory_with_the_node() {
    let cloud = Cloud::start(&[]);
    let (one, devices) = (program("vector_add"), program("devices"));
    let script =
        format!("set -e; {}; echo \"at $CGPU_0 $CGPU_1\"; {} 2", one.display(), devices.display());
    let arguments = ["-ncgpus=2", "-poolmem=256", "-mode=shared", "-weight=3", LOCAL];
    let id = cloud.launch_vm(&script, &arguments);
    let console = cloud.console(&id);
    assert!(console.contains("PASSED") && console.contains("ended with 0"), "{console}");
    assert!(console.contains("at ivshmem:0 ivshmem:0"), "{console}");
    let log = cloud.node().log();
    assert!(log.contains("a virtual machine is there"), "{log}");
    let folder = cloud.state().join("vms").join(&id);
    assert!(!folder.join("rows.json").exists(), "nothing leads anywhere");
    let vgpus = cloud.admin().list().unwrap();
    let own: Vec<_> = vgpus.iter().filter(|vgpu| vgpu.name.contains(&id)).collect();
    assert!(own.iter().all(|vgpu| (vgpu.weight, vgpu.memory_bytes) == (3, 256 << 20)), "{own:?}");
    assert!(own.len() == 2 && own.iter().all(|vgpu| vgpu.used_ns > 0), "{own:?}");
    assert_eq!(cloud.gsaas("team", &["-t", &format!("-id={id}")]).0, Some(0));
    eventually("the memory to be given back", || {
        cloud.node().log().contains("a virtual machine is gone")
    });
}

/// Neither by a name that it was not granted nor through the other one's folder.
#[test]
fn a_vm_does_not_reach_what_another_one_shares_with_the_node() {
    let cloud = Cloud::start_local();
    let (relay, add) = (cloud.folder.path().join("relay"), cloud.folder.path().join("vector_add"));
    std::fs::copy(program("relay"), &relay).unwrap();
    std::fs::copy(program("vector_add"), &add).unwrap();
    let shared = ["-ncgpus=1", "-poolmem=128", "-mode=shared", LOCAL];
    let victim = cloud.launch_vm(&format!("exec {} 100000000", relay.display()), &shared);
    eventually("the program's session", || cloud.sessions(&victim) == 1);
    let there = cloud.state().join("vms").join(&victim);
    let guest = provided("WEFT_TEST_BIN").join("weft-guest");
    let (add, there, guest) = (add.display(), there.display(), guest.display());
    let script = format!(
        "{add} | grep -o PASSED
         WEFT_VGPU=cgpu-{victim}-0 {add} && echo REACHED
         WEFT_SOCKET={there}/run/0.sock {add} && echo REACHED
         for one in control marks region; do test -S {there}/region-0/$one.sock && echo SEEN; done
         {guest} agent --socket $HOME/other.sock --region {there}/region-0/region.sock \
             --control {there}/region-0/control.sock --marks {there}/region-0/marks.sock true \
             && echo REACHED
         true"
    );
    let id = cloud.launch_vm(&script, &shared);
    let console = cloud.console(&id);
    assert!(console.contains("PASSED"), "{console}");
    assert!(console.contains("this virtual machine has vGPU"), "{console}");
    if is_root() && is_passable(&provided("WEFT_TEST_BIN")) {
        assert!(!console.contains("REACHED") && !console.contains("SEEN"), "{console}");
    }
    assert_eq!(cloud.sessions(&victim), 1, "it noticed nothing");
}

/// Revoked at the node a grant ends what runs and lets nothing more begin; the VM's end does, too.
#[test]
fn a_grant_that_is_revoked_ends_what_shares_memory() {
    let cloud = Cloud::start(&["--sweep-s", "1"]);
    let (relay, add) = (program("relay"), program("vector_add"));
    let script = format!(
        "{} 100000000; echo \"status $?\"; {}; echo \"status $?\"; sleep 100000",
        relay.display(),
        add.display()
    );
    let shared = ["-ncgpus=1", "-poolmem=128", "-mode=shared", LOCAL];
    let id = cloud.launch_vm(&script, &shared);
    eventually("the program's session", || cloud.sessions(&id) == 1);
    cloud.admin().remove(&format!("cgpu-{id}-0"), true).unwrap();
    let mut console = String::new();
    eventually("both programs to end", || {
        console = cloud.gsaas("team", &["-console", &format!("-id={id}")]).1;
        console.matches("status ").count() == 2
    });
    assert!(console.contains("status 2"), "a CUDA error: {console}");
    assert!(console.contains("is not there: it was removed"), "{console}");
    // The control plane finds that the grant is gone, and gives the rest back.
    eventually("the instance to have failed", || {
        let text = cloud.gsaas("team", &["-show", &format!("-id={id}")]).1;
        text.contains("failed")
    });
}

/// Whoever shares the memory is killed: the program gets an error, and the VM is told of as lost.
#[test]
fn a_vm_whose_shared_memory_is_lost_fails_in_words() {
    let cloud = Cloud::start(&["--sweep-s", "1"]);
    let script = format!("{} 100000000; sleep 100000", program("relay").display());
    let shared = ["-ncgpus=1", "-poolmem=128", "-mode=shared", LOCAL];
    let id = cloud.launch_vm(&script, &shared);
    eventually("the program's session", || cloud.sessions(&id) == 1);
    let lock = cloud.state().join("vms").join(&id).join("region.lock");
    let holder = std::fs::read_to_string(lock).unwrap();
    let pid = holder.split(' ').next().and_then(|pid| pid.parse().ok()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let mut text = String::new();
    eventually("the instance to have failed", || {
        text = cloud.gsaas("team", &["-show", &format!("-id={id}")]).1;
        text.contains("failed")
    });
    assert!(text.contains("no memory is shared with the VM"), "{text}");
    cloud.node().wait_until_empty();
}

/// A node that is started again finds the memory by the sessions in it.
#[test]
fn a_vm_goes_on_sharing_memory_when_the_node_is_started_again() {
    let mut cloud = Cloud::start(&[]);
    let [go, runs] = ["go", "runs"].map(|name| cloud.folder.path().join(name));
    let script = format!(
        "{} 100000000 > {} &
         while [ ! -e {} ]; do sleep 0.05; done
         until {}; do sleep 0.05; done",
        program("relay").display(),
        runs.display(),
        go.display(),
        program("vector_add").display()
    );
    let shared = ["-ncgpus=1", "-poolmem=256", "-mode=shared", LOCAL];
    let id = cloud.launch_vm(&script, &shared);
    // A session that only begins would end with its daemon.
    eventually("the program to run", || {
        std::fs::read_to_string(&runs).is_ok_and(|said| said.ends_with('\n'))
    });
    assert_eq!(cloud.sessions(&id), 1);
    let node = cloud.node.as_mut().unwrap();
    node.kill();
    node.launch();
    std::fs::write(&go, "").unwrap();
    let console = cloud.console(&id);
    assert!(console.contains("PASSED"), "{console}");
    // The program's end is there before the node has seen it.
    eventually("the one that was there to go on alone", || cloud.sessions(&id) == 1);
}

/// The control plane is killed while it makes a VM that shares memory, and while it removes one:
/// the next one goes on, and nothing is left at the end.
#[test]
fn what_shares_memory_outlives_a_control_plane_that_is_killed_at_a_step() {
    let mut cloud = Cloud::start(&[]);
    let script = cloud.folder.path().join("script");
    std::fs::write(&script, program("vector_add").display().to_string()).unwrap();
    let userdata = format!("-userdata={}", script.display());
    for place in [
        "inside:sign",
        "before:create",
        "after:create",
        "after:port",
        "kept:unrule",
        "after:terminate",
    ] {
        let key = format!("-key={}", place.replace(':', "-"));
        // Whoever asks need not wait long for a control plane that only this test starts again.
        let shared = [
            "-l",
            "-ncgpus=1",
            "-poolmem=128",
            "-mode=shared",
            "-patience=2",
            LOCAL,
            &userdata,
            &key,
        ];
        cloud.crash(Some(place));
        let (code, text) = cloud.gsaas("team", &shared);
        let is_making = !["kept:unrule", "after:terminate"].contains(&place);
        assert_eq!(code != Some(0), is_making, "{place}: {text}");
        if code != Some(0) {
            // It was killed while it made it: the same request is about the same VM.
            cloud.crash(None);
            let (code, text) = cloud.gsaas("team", &shared);
            assert_eq!(code, Some(0), "{place}: {text}\n{}", cloud.log());
        }
        let (_, again) = cloud.gsaas("team", &shared);
        let id = again.lines().next().unwrap().to_owned();
        assert!(code != Some(0) || text.contains(&id), "{place}: {text}");
        let console = cloud.console(&id);
        assert!(console.contains("PASSED"), "{place}: {console}");
        let terminate = ["-t", "-patience=2", &format!("-id={id}")];
        if cloud.gsaas("team", &terminate).0 != Some(0) {
            cloud.crash(None);
            cloud.gsaas("team", &terminate);
        }
        eventually("nothing to be left", || {
            let vgpus = cloud.admin().list().unwrap();
            let folders = std::fs::read_dir(cloud.state().join("vms")).unwrap().count();
            folders == 0 && vgpus.iter().all(|vgpu| !vgpu.name.contains(&id))
        });
        let left = processes_of(&cloud.state().join("vms"));
        assert!(left.is_empty(), "{place}: {left:?}");
    }
}

/// Processes whose command line names a folder.
pub(crate) fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&folder)).collect()
}

/// A VM that is a virtual machine: what QEMU interprets runs an unmodified program on its cGPU,
/// through the device's memory.
#[test]
fn a_virtual_machine_of_the_local_cloud_runs_a_program_on_its_cgpu() {
    let image = provided("WEFT_TEST_GUEST");
    let place = |name: &str| image.join(name).display().to_string();
    let (kernel, initrd, qemu) = (place("vmlinuz"), place("initrd"), place("qemu"));
    let mut flags = vec!["--vm-kernel", &kernel, "--vm-initrd", &initrd, "--vm-accel", "tcg"];
    if Path::new(&qemu).exists() {
        flags.extend(["--vm-qemu", &qemu]);
    }
    let cloud = Cloud::start(&flags);
    let script = "set -e; vector_add; echo \"at $CGPU_0 as $(id -u)\"";
    let shared = ["-ncgpus=1", "-poolmem=256", "-mode=shared"];
    let local = [&shared[..], &["-weight=2", LOCAL]].concat();
    let id = cloud.launch_vm(script, &local);
    let console = cloud.console(&id);
    assert!(console.contains("PASSED") && console.contains("ended with 0"), "{console}");
    assert!(console.contains("at ivshmem:0 as 1000"), "{console}");
    let vgpus = cloud.admin().list().unwrap();
    let own = vgpus.iter().find(|vgpu| vgpu.name.contains(&id)).unwrap();
    assert!((own.weight, own.memory_bytes) == (2, 256 << 20) && own.used_ns > 0, "{own:?}");
    let (code, text) = cloud.gsaas("team", &[&["-l"][..], &shared].concat());
    assert!(code == Some(1) && text.contains("came to nothing"), "{text}");
    assert!(cloud.log().contains("-locality=local"), "administrators see why: {}", cloud.log());
    // Another one runs until its grant is gone.
    let id = cloud.launch_vm("relay 100000000", &local);
    eventually("the program's session", || cloud.sessions(&id) == 1);
    assert_eq!(cloud.gsaas("team", &["-t", &format!("-id={id}")]).0, Some(0));
    cloud.node().wait_until_empty();
    assert_eq!(cloud.sessions(&id), 0);
}
