//! A compute host, a GPU node and VMs, each a network namespace, for tests and measurements.
//!
//! A namespace lives as long as a process that waits for the end of a pipe of this one: nothing is
//! left when this process is killed.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weft_api::endpoint::GrantRow;
use weft_api::lines;

/// The host's interface to the node.
pub const UPLINK: &str = "gpu0";

/// The node's address.
pub const NODE: &str = "192.168.50.2";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    _lifeline: Option<ChildStdin>,
    network: File,
}

fn failed(words: String) -> io::Error {
    io::Error::other(words)
}

impl Namespace {
    /// A new one, with a loopback that is up.
    ///
    /// # Errors
    /// If the system does not permit it.
    pub fn new() -> io::Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let lifeline = holder.stdin.take();
        let said = holder.stdout.take().map(lines::first).transpose()?;
        if said.as_deref() != Some("ready") {
            let output = holder.wait_with_output()?;
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed(format!("no network namespace: {why}")));
        }
        let network = File::open(format!("/proc/{}/ns/net", holder.id()))?;
        Ok(Self { holder, _lifeline: lifeline, network })
    }

    /// Does something in it, in a thread of its own. Sockets that it makes stay of the namespace,
    /// and so do threads and programs that it starts.
    ///
    /// # Errors
    /// If it cannot be entered.
    pub fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.network.as_fd(), kind)?;
                Ok(act())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Carries out commands of `ip`, one a line.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn ip(&self, lines: &str) -> io::Result<()> {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            self.run("ip", &words)?;
        }
        Ok(())
    }

    /// Runs a program in it; what it prints.
    ///
    /// # Errors
    /// What it said.
    pub fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        let output = self.within(|| Command::new(program).args(arguments).output())??;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(failed(format!("{program} {}: {why}", arguments.join(" "))))
    }

    /// The number of the process that holds it, by which `ip` knows it.
    #[must_use]
    pub fn holder(&self) -> u32 {
        self.holder.id()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A host between a node and VMs.
#[derive(Debug)]
pub struct Lab {
    /// The compute host.
    pub host: Namespace,
    /// The GPU node.
    pub node: Namespace,
}

/// A VM, and its port.
#[derive(Debug)]
pub struct Vm {
    /// Its network.
    pub inside: Namespace,
    /// The interface on the host.
    pub tap: String,
    /// Its hardware address.
    pub mac: String,
    /// Its address.
    pub ip: String,
}

impl Lab {
    /// A host and a node.
    ///
    /// # Errors
    /// If the system does not permit it.
    pub fn new() -> io::Result<Self> {
        let (host, node) = (Namespace::new()?, Namespace::new()?);
        host.run("nft", &["list", "ruleset"])?;
        let peer = node.holder();
        host.ip(&format!("link add {UPLINK} type veth peer name eth0 netns {peer}"))?;
        host.ip(&format!("addr add 192.168.50.1/24 dev {UPLINK}\n link set {UPLINK} up"))?;
        node.ip(&format!("addr add {NODE}/24 dev eth0\n link set eth0 up"))?;
        Ok(Self { host, node })
    }

    /// A VM with an address of its tenant's network; its port is one of a bridge if one is named,
    /// which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn vm(&self, number: u8, ip: &str, bridge: Option<&str>) -> io::Result<Vm> {
        let inside = Namespace::new()?;
        let (tap, mac) = (format!("tap{number}"), format!("02:00:00:00:00:{number:02x}"));
        self.attach(&tap, &inside)?;
        if let Some(bridge) = bridge {
            // It may be there.
            let _ = self.host.ip(&format!("link add {bridge} type bridge"));
            self.host.ip(&format!("link set {bridge} up\n link set {tap} master {bridge}"))?;
        }
        // It says nothing by itself, as it would about an address of IPv6: what a host refuses was
        // sent by a test.
        inside.ip(&format!(
            "link set eth0 address {mac}
             link set eth0 addrgenmode none
             addr add {ip}/24 dev eth0
             link set eth0 up
             route add 169.254.77.0/24 dev eth0"
        ))?;
        Ok(Vm { inside, tap, mac, ip: ip.to_owned() })
    }

    /// Plugs a cable into a VM.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn attach(&self, tap: &str, inside: &Namespace) -> io::Result<()> {
        let peer = inside.holder();
        self.host.ip(&format!("link add {tap} type veth peer name eth0 netns {peer}"))?;
        self.host.ip(&format!("link set {tap} up"))
    }
}

impl Vm {
    /// Its grant of a masked address.
    #[must_use]
    pub fn row(&self, instance: &str, generation: u64, masked: &str, node: &str) -> GrantRow {
        GrantRow {
            instance: instance.to_owned(),
            host: "host".to_owned(),
            tap: self.tap.clone(),
            mac: self.mac.clone(),
            ip: self.ip.clone(),
            masked: masked.to_owned(),
            node: node.to_owned(),
            generation,
        }
    }
}
