//! The local cloud: `weft-control`, `gsaas`, a node and VMs that are processes, all real.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::support::{DEADLINE, Node, eventually, finish, is_root, program, provided, text_of};

/// A node, a control plane, and a token of each role.
struct Cloud {
    /// None where the control plane has started one of its own.
    node: Option<Node>,
    folder: TempDir,
    control: Option<Child>,
    url: String,
}

fn control() -> Command {
    Command::new(provided("WEFT_TEST_BIN").join("weft-control"))
}

impl Cloud {
    fn start(flags: &[&str]) -> Self {
        let node = Node::start(&["remote.listen=127.0.0.1:0", "remote.user=0"]);
        let folder = tempfile::Builder::new().prefix("weft-cloud-").tempdir().unwrap();
        let mut cloud = Self { node: Some(node), folder, control: None, url: String::new() };
        for (name, role) in [("admin", "admin"), ("team", "member"), ("others", "member")] {
            let mut command = control();
            command.args(["token", name, "--role", role, "--state-dir"]).arg(cloud.state());
            if role == "member" {
                command.args(["--project", name]);
            }
            let output = finish(command);
            assert!(output.status.success(), "{}", text_of(&output));
            std::fs::write(cloud.token(name), &output.stdout).unwrap();
        }
        cloud.launch(flags);
        let admin = cloud.node().path().join("admin.sock");
        cloud.http("PUT", "/v1/nodes/n1", &format!("{{\"admin\":\"{}\"}}", admin.display()));
        let quota = "{\"quota\":{\"cgpus\":4,\"memory_mib\":4096,\"exclusive_gpus\":1}}";
        cloud.http("PUT", "/v1/projects/team", quota);
        cloud
    }

    /// `weft-control local` as its users start it; what it prints are its tokens' places.
    fn start_local() -> Self {
        let folder = tempfile::Builder::new().prefix("weft-cloud-").tempdir().unwrap();
        let mut cloud = Self { node: None, folder, control: None, url: String::new() };
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

    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn token(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.token"))
    }

    /// Starts the control plane (again).
    fn launch(&mut self, flags: &[&str]) {
        // The test's folder is its user's alone.
        let mut all = vec!["serve", "--guest-user", "0"];
        all.extend(flags);
        self.begin(&all);
    }

    fn begin(&mut self, arguments: &[&str]) {
        let (out, log) = (self.folder.path().join("out"), self.folder.path().join("log"));
        let mut command = control();
        command.args(arguments).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        command.arg(self.state()).stdin(Stdio::null());
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

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn http(&self, method: &str, path: &str, body: &str) {
        use std::io::{Read, Write};
        let address = self.url.trim_start_matches("http://");
        let token = std::fs::read_to_string(self.token("admin")).unwrap();
        let (token, length) = (token.trim(), body.len());
        let mut stream = std::net::TcpStream::connect(address).unwrap();
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
    fn gsaas(&self, who: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(provided("WEFT_TEST_BIN").join("gsaas"));
        command.args(arguments).env("GSAAS_URL", &self.url);
        command.env("GSAAS_TOKEN_FILE", self.token(who)).env_remove("GSAAS_TOKEN");
        let output = finish(command);
        (output.status.code(), text_of(&output))
    }

    /// The id of a VM that is ready and runs this script.
    fn launch_vm(&self, script: &str, arguments: &[&str]) -> String {
        let file = self.folder.path().join("script");
        std::fs::write(&file, script).unwrap();
        let userdata = format!("-userdata={}", file.display());
        let mut all = vec!["-l", &userdata];
        all.extend_from_slice(arguments);
        let (code, text) = self.gsaas("team", &all);
        assert_eq!(code, Some(0), "{text}\n{}", self.log());
        text.lines().next_back().unwrap().to_owned()
    }

    /// What a VM has printed when its script has ended.
    fn console(&self, id: &str) -> String {
        let mut console = String::new();
        eventually("the user-data to end", || {
            console = self.gsaas("team", &["-console", &format!("-id={id}")]).1;
            console.contains("[user-data ")
        });
        console
    }
}

/// Whether users of VMs can get to what lies there.
fn is_passable(path: &Path) -> bool {
    let mode = |folder: &Path| std::fs::metadata(folder).unwrap().permissions().mode();
    path.ancestors().all(|folder| mode(folder) & 0o001 != 0)
}

impl Drop for Cloud {
    fn drop(&mut self) {
        if let Some(mut control) = self.control.take() {
            let _ = control.kill();
            let _ = control.wait();
        }
        let mut down = control();
        down.args(["local", "--down", "--guest-user", "0", "--state-dir"]).arg(self.state());
        let _ = down.output();
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
    let arguments = ["-ncgpus = 2", "-poolmem=1024", "-mode=shared", "-weight=3"];
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
    assert!(own.iter().all(|vgpu| (vgpu.weight, vgpu.memory_bytes) == (3, 1024 << 20)));
    assert!(own.iter().any(|vgpu| vgpu.used_ns > 0), "its use is its own");
    let (code, text) = cloud.gsaas("others", &["-show", &format!("-id={id}")]);
    assert!(code == Some(1) && text.contains("there is no instance"), "{text}");
    let (code, text) = cloud.gsaas("team", &["-l", "-ncgpus=3", "-poolmem=1", "-mode=shared"]);
    assert!(code == Some(3) && text.contains("quota"), "{text}");
    let (code, text) = cloud.gsaas("team", &["-t", &format!("-id={id}")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(cloud.node().admin().list().unwrap().iter().all(|vgpu| !vgpu.name.contains(&id)));
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
    if !is_root() {
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
    let mut cloud = Cloud::start(&[]);
    let script = format!("exec {} 100000000", program("relay").display());
    let id = cloud.launch_vm(&script, &["-ncgpus=1", "-poolmem=512", "-mode=shared"]);
    let sessions = |cloud: &Cloud| {
        let vgpus = cloud.node().admin().list().unwrap();
        vgpus.iter().filter(|vgpu| vgpu.name.contains(&id)).map(|vgpu| vgpu.sessions).sum::<u32>()
    };
    eventually("the program's session", || sessions(&cloud) == 1);
    let mut control = cloud.control.take().unwrap();
    control.kill().unwrap();
    control.wait().unwrap();
    cloud.launch(&[]);
    assert_eq!(sessions(&cloud), 1);
    let (code, text) = cloud.gsaas("team", &["-list"]);
    assert!(code == Some(0) && text.contains("ready"), "{text}");
    let (code, text) = cloud.gsaas("team", &["-t", &format!("-id={id}")]);
    assert_eq!(code, Some(0), "{text}");
    cloud.node().wait_until_empty();
    assert_eq!(sessions(&cloud), 0);
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
