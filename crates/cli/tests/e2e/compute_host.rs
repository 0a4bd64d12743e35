//! A compute host, whole: control plane, `weft-endpoint host` with its rules in nftables, VMs with
//! ports that it leads, and a GPU node on another host. Only the hypervisor is none.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weft_endpoint::host::lab::{Lab, NODE, UPLINK};

use crate::cloud::{Cloud, processes_of};
use crate::remote::grant;
use crate::support::{Node, eventually, finish, has_network, program, provided, text_of, within};

const ONE: [&str; 3] = ["-ncgpus=1", "-poolmem=256", "-mode=shared"];

struct ComputeHost {
    /// Before what it has: its VMs end with the control plane.
    cloud: Cloud,
    endpoint: Child,
    folder: tempfile::TempDir,
    lab: Lab,
}

impl ComputeHost {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let network = |holder: u32| format!("/proc/{holder}/ns/net");
        let (host, node) = (network(lab.host.holder()), network(lab.node.holder()));
        let listen = format!("remote.listen={NODE}:0");
        let node = Node::start_within(&node, &[&listen, "remote.user=0"]);
        let folder = tempfile::Builder::new().prefix("weft-host-").tempdir().unwrap();
        let endpoint = endpoint(&folder.path().join("host"), &host);
        let leads = format!("local={}", folder.path().join("host.sock").display());
        let flags = ["--sweep-s", "1", "--host-endpoint", &leads];
        let cloud = Cloud::start_with(node, Some(host), &flags);
        let quota = "{\"quota\":{\"cgpus\":4,\"memory_mib\":4096,\"exclusive_gpus\":1}}";
        cloud.http("PUT", "/v1/projects/others", quota);
        Self { cloud, endpoint, folder, lab }
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("host")
    }

    /// Kills the host's endpoint and starts it again.
    fn restart_endpoint(&mut self) {
        self.kill_endpoint();
        self.start_endpoint();
    }

    fn kill_endpoint(&mut self) {
        self.endpoint.kill().unwrap();
        self.endpoint.wait().unwrap();
    }

    fn start_endpoint(&mut self) {
        let host = format!("/proc/{}/ns/net", self.lab.host.holder());
        self.endpoint = endpoint(&self.place(), &host);
    }

    /// One with a state of its own would take this one's rules away.
    fn refuses_a_second_endpoint(&self) {
        let mut command = Command::new(provided("WEFT_TEST_BIN").join("weft-endpoint"));
        let place = self.folder.path().join("second");
        command.args(["host", "--socket"]).arg(place.with_extension("sock"));
        command.arg("--state").arg(place.with_extension("json"));
        let network = format!("/proc/{}/ns/net", self.lab.host.holder());
        let output = finish(within(&network, &command));
        assert!(text_of(&output).contains("another `weft-endpoint host`"), "{}", text_of(&output));
        assert_eq!(output.status.code(), Some(1));
    }

    /// What leads somewhere: elements of the map of grants, and ports that are there.
    fn led(&self) -> (usize, usize) {
        let map = self.lab.host.run("nft", &["list", "map", "inet", "weft", "grant"]).unwrap();
        let links = self.lab.host.run("ip", &["-o", "link", "show", "type", "veth"]).unwrap();
        (map.matches(" . 169.254.77.").count(), links.matches(": tap").count())
    }
}

impl Drop for ComputeHost {
    fn drop(&mut self) {
        // The control plane ends its VMs with the endpoint's help.
        self.cloud.end();
        let _ = self.endpoint.kill();
        let _ = self.endpoint.wait();
    }
}

fn endpoint(place: &std::path::Path, host: &str) -> Child {
    let mut command = Command::new(provided("WEFT_TEST_BIN").join("weft-endpoint"));
    command.args(["host", "--uplink", UPLINK, "--socket"]).arg(place.with_extension("sock"));
    command.arg("--state").arg(place.with_extension("json"));
    let mut command = within(host, &command);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Two tenants' VMs with one address and one masked address run unmodified programs, each on its
/// own cGPU, and reach nothing else: neither the node past the rules, nor the control plane.
#[test]
fn tenants_with_one_address_reach_their_own_cgpus_through_the_hosts_rules() {
    if !has_network() {
        return;
    }
    let host = ComputeHost::new();
    let cloud = &host.cloud;
    let gateway = grant(cloud.node(), &["spare"]).1.replace(':', "/");
    let url = cloud.url().trim_start_matches("http://").replace(':', "/");
    let closed = format!("169.254.77.2/18515 169.254.77.1/18516 {gateway} {NODE}/22 {url}");
    let script = format!(
        "set -e; {}; echo \"at $CGPU_0\"; ip -o -4 addr show dev eth0
         for to in 169.254.77.1/18515 {closed}; do
         if timeout 1 bash -c \"exec 3<>/dev/tcp/$to\" 2> /dev/null; then echo \"open $to\"
         else echo \"closed $to\"; fi; done",
        program("vector_add").display()
    );
    let vms = ["team", "others"].map(|who| (who, cloud.launch_vm_of(who, &script, &ONE)));
    for (who, id) in &vms {
        let console = cloud.console_of(who, id);
        assert!(console.contains("PASSED") && console.contains("ended with 0"), "{console}");
        assert!(console.contains("at 169.254.77.1:18515"), "{console}");
        assert!(console.contains("inet 100.64.0.2/32"), "{console}");
        assert!(console.contains("open 169.254.77.1/18515"), "{console}");
        for to in closed.split(' ') {
            assert!(console.contains(&format!("closed {to}")), "{to}: {console}");
        }
        let vgpus = cloud.admin().list().unwrap();
        let own = vgpus.iter().find(|vgpu| vgpu.name.contains(id)).unwrap();
        assert!(own.used_ns > 0, "its use is its own: {own:?}");
    }
    assert_eq!(host.led(), (2, 2));
    assert!(processes_of(&cloud.state()).iter().all(|line| !line.contains(" relay ")));
    for (who, id) in &vms {
        assert_eq!(cloud.gsaas(who, &["-t", &format!("-id={id}")]).0, Some(0));
    }
    eventually("nothing to be led", || host.led() == (0, 0));
}

/// A program goes on while endpoint and control plane are killed and started again. When the VM is
/// removed it ends, and another tenant's does not.
#[test]
fn a_led_program_outlives_endpoint_and_control_plane_and_ends_with_its_vm() {
    if !has_network() {
        return;
    }
    let mut host = ComputeHost::new();
    let script = format!("exec {} 100000000", program("relay").display());
    let [one, other] = ["team", "others"].map(|who| host.cloud.launch_vm_of(who, &script, &ONE));
    let sessions = |host: &ComputeHost| [&one, &other].map(|id| host.cloud.sessions(id));
    eventually("both programs' sessions", || sessions(&host) == [1, 1]);
    host.refuses_a_second_endpoint();
    host.restart_endpoint();
    host.cloud.crash(None);
    assert_eq!((sessions(&host), host.led()), ([1, 1], (2, 2)));
    assert_eq!(host.cloud.gsaas("team", &["-t", &format!("-id={one}")]).0, Some(0));
    eventually("one program's end", || sessions(&host) == [0, 1] && host.led() == (1, 1));
    // A VM that dies by itself is found by the sweep, and its rules with it.
    let lock = host.cloud.state().join("vms").join(&other).join("guest.lock");
    let holder = std::fs::read_to_string(lock).unwrap();
    let pid = holder.split(' ').next().and_then(|pid| pid.parse().ok()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("the other one's end", || sessions(&host) == [0, 0] && host.led() == (0, 0));
}

/// Whoever gives a VM back ends what its program does on the GPU, soon. The goal is a second
/// (`weft bench control` measures it); here processors may be taken away for as long, and the best
/// of three counts.
#[test]
fn a_program_whose_vm_is_given_back_has_no_session_soon_after() {
    const SOON: Duration = Duration::from_secs(5);
    if !has_network() {
        return;
    }
    let host = ComputeHost::new();
    let script = format!("exec {} 100000000", program("relay").display());
    let mut took = Vec::new();
    for _ in 0..3 {
        let id = host.cloud.launch_vm_of("team", &script, &ONE);
        eventually("the program's session", || host.cloud.sessions(&id) == 1);
        let begun = Instant::now();
        assert_eq!(host.cloud.gsaas("team", &["-t", "-nowait", &format!("-id={id}")]).0, Some(0));
        eventually("the session's end", || host.cloud.sessions(&id) == 0);
        let one = begun.elapsed();
        if one < SOON {
            return;
        }
        took.push(one);
    }
    panic!("three times: {took:?}");
}

/// An endpoint that is away keeps nobody computing: the node ends the session, and quota is free
/// again. A launch waits for it longer than six attempts take.
#[test]
fn an_endpoint_that_is_away_ends_no_launch_and_keeps_no_program() {
    if !has_network() {
        return;
    }
    let mut host = ComputeHost::new();
    let script = format!("exec {} 100000000", program("relay").display());
    let id = host.cloud.launch_vm_of("team", &script, &ONE);
    eventually("the program's session", || host.cloud.sessions(&id) == 1);
    host.kill_endpoint();
    assert_eq!(host.cloud.gsaas("team", &["-t", "-nowait", &format!("-id={id}")]).0, Some(0));
    eventually("the session's end", || host.cloud.sessions(&id) == 0);
    let show = format!("-id={id}");
    eventually("the quota to be given back", || {
        let (_, text) = host.cloud.gsaas("admin", &["-show", &show]);
        text.contains("ending: ") && text.contains("quota is given back")
    });
    assert_eq!(host.led(), (1, 1), "nobody could withdraw the rules");
    let file = host.folder.path().join("script");
    std::fs::write(&file, script).unwrap();
    let userdata = format!("-userdata={}", file.display());
    let launch = [&["-l", "-nowait", &userdata][..], &ONE].concat();
    let (code, text) = host.cloud.gsaas("team", &launch);
    assert_eq!(code, Some(0), "{text}");
    let next = text.lines().next().unwrap().to_owned();
    let waits = |line: &str| line.contains(&next) && line.contains("attempts=7");
    eventually("a seventh attempt", || host.cloud.log().lines().any(waits));
    host.start_endpoint();
    eventually("the program's session", || host.cloud.sessions(&next) == 1);
    eventually("the first one's end", || host.led() == (1, 1));
}

/// A start that does not name the endpoint knows it all the same, until an administrator has taken
/// it out of service with what it led.
#[test]
fn an_endpoint_that_no_start_names_is_taken_out_of_service() {
    if !has_network() {
        return;
    }
    let mut host = ComputeHost::new();
    let id = host.cloud.launch_vm_of("team", "exec sleep 100000", &ONE);
    host.cloud.flags.clear();
    host.cloud.crash(None);
    let gsaas = |arguments: &[&str]| host.cloud.gsaas("admin", arguments);
    let (_, listed) = gsaas(&["-endpoints"]);
    assert!(listed.contains("in service") && listed.contains("answers"), "{listed}");
    let remove = ["-remove", "-endpoint=local"];
    let (code, text) = gsaas(&remove);
    assert!(
        code == Some(1) && text.contains("in use") && text.contains("drain the endpoint"),
        "{text}"
    );
    assert_eq!(
        gsaas(&["-drain", "-endpoint=local"]),
        (Some(0), "gsaas: 1 VM is still led by it\n".to_owned())
    );
    let (code, text) = host.cloud.gsaas("team", &[&["-l"][..], &ONE].concat());
    assert!(code == Some(3) && text.contains("no compute host takes new VMs now"), "{text}");
    let ends = format!("gsaas: VMs that it led and that end now: {id}\n");
    assert_eq!(gsaas(&remove), (Some(0), ends));
    assert_eq!(gsaas(&["-endpoints"]).1.lines().count(), 1);
    eventually("nothing to be led", || host.led() == (0, 0));
    let (_, text) = gsaas(&["-show", &format!("-id={id}")]);
    assert!(text.contains("the endpoint of host local was taken out of service"), "{text}");
    // New VMs have relays, also before the control plane is started again.
    host.cloud.launch_vm_of("team", "exec sleep 100000", &ONE);
    assert_eq!(host.led(), (0, 0));
}

/// What `serve` has led is not led any longer when the cloud of a folder is taken down.
#[test]
fn a_cloud_that_is_taken_down_leads_nobody() {
    if !has_network() {
        return;
    }
    let mut host = ComputeHost::new();
    host.cloud.launch_vm_of("team", "exec sleep 100000", &ONE);
    assert_eq!(host.led(), (1, 1));
    host.cloud.end();
    assert_eq!(host.led(), (0, 0), "{}", host.cloud.log());
}

/// The control plane is killed at every step that has to do with ports and rules: the next one goes
/// on, and nothing is left at the end.
#[test]
fn what_is_led_outlives_a_control_plane_that_is_killed_at_a_step() {
    if !has_network() {
        return;
    }
    let mut host = ComputeHost::new();
    let script = host.folder.path().join("script");
    std::fs::write(&script, program("vector_add").display().to_string()).unwrap();
    let userdata = format!("-userdata={}", script.display());
    for place in [
        "after:create",
        "kept:port",
        "before:rules",
        "after:rules",
        "before:unrule",
        "after:unrule",
        "after:terminate",
    ] {
        let key = format!("-key={}", place.replace(':', "-"));
        let launch = [&["-l", "-patience=2", &userdata, &key][..], &ONE].concat();
        host.cloud.crash(Some(place));
        if host.cloud.gsaas("team", &launch).0 != Some(0) {
            // The same request is about the same VM.
            host.cloud.crash(None);
        }
        let (code, text) = host.cloud.gsaas("team", &launch);
        assert_eq!(code, Some(0), "{place}: {text}\n{}", host.cloud.log());
        let id = text.lines().next().unwrap().to_owned();
        let console = host.cloud.console_of("team", &id);
        assert!(console.contains("PASSED"), "{place}: {console}");
        assert_eq!(host.led(), (1, 1), "{place}");
        let terminate = ["-t", "-patience=2", &format!("-id={id}")];
        if host.cloud.gsaas("team", &terminate).0 != Some(0) {
            host.cloud.crash(None);
            host.cloud.gsaas("team", &terminate);
        }
        let vms = host.cloud.state().join("vms");
        eventually("nothing to be left", || {
            let vgpus = host.cloud.admin().list().unwrap();
            let folders = std::fs::read_dir(&vms).unwrap().count();
            let is_gone = vgpus.iter().all(|vgpu| !vgpu.name.contains(&id));
            folders == 0 && is_gone && host.led() == (0, 0)
        });
        assert!(processes_of(&vms).is_empty(), "{place}");
    }
}
