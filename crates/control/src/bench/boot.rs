//! What 75 cGPUs add to the boot of a VM. QEMU boots a real kernel for each VM, on its interpreter,
//! and a real node makes the vGPUs and their grants; the VM's only part in it is to start a first
//! program.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use weft_api::lines;
use weft_api::node::Client;

use super::{Outside, Plane, median};
use crate::clock;
use crate::nodes::{NodeFacts, Nodes as _, Sockets};
use crate::plan::Step;
use crate::provision::fake::Fake;
use crate::provision::local::machine;
use crate::provision::{Failure, Notice, Provisioner, VmSpec, VmState};
use crate::store::{NodeRow, Port};

/// Boots of each kind; they take turns.
pub(super) const BOOTS: usize = 7;

/// Memory of each cGPU, in MiB; the paper's.
pub(super) const CGPU_MIB: u64 = 100;

/// A machine has booted after this time, or has failed.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// A node has started after this time, or has failed.
const START_LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(5);

/// What is looked at of a console's line.
const LINE_BYTES_MAX: usize = 4096;

/// The interpreter works everywhere, and boots slowest: what is beside the boot weighs least.
const ACCEL: &str = "tcg";

/// Software GPUs of the node.
const DEVICES: &str = "soft,soft";

/// What the control plane adds, beside the boot itself.
#[derive(Default)]
pub(super) struct Boots {
    /// From the request until the VM is ready, in ms.
    pub(super) ready_ms: Vec<f64>,
    /// Of that, what QEMU took from its start until the guest's first program, in ms.
    pub(super) deploy_ms: Vec<f64>,
    /// Of what lies outside, what comes before QEMU is started, and what after the program, in ms.
    pub(super) before_ms: Vec<f64>,
    pub(super) after_ms: Vec<f64>,
    /// Of the former, the node's signing of the grants, in ms.
    pub(super) sign_ms: Vec<f64>,
    /// The same of a VM that nobody but QEMU had a part in, in ms: a VM with no cGPU.
    pub(super) plain_ms: Vec<f64>,
}

impl Boots {
    /// What lies outside the VM's own part, over that part, in percent: boot by boot, so that one
    /// that took longer than another counts for nothing.
    pub(super) fn overhead_pct(&self) -> f64 {
        let each = self.ready_ms.iter().zip(&self.deploy_ms);
        median(each.map(|(ready, deploy)| (ready / deploy - 1.0) * 100.0).collect())
    }
}

/// Refuses a folder without what a machine boots, and an installation without what starts it.
pub(super) fn ensure_image(guest: &Path) -> Result<()> {
    for name in ["vmlinuz", "initrd"] {
        let path = guest.join(name);
        ensure!(
            path.is_file(),
            "--guest: {} is missing: name a folder that examples/guest/make-image made",
            path.display()
        );
    }
    ["weft", "weft-guest"].into_iter().try_for_each(|name| beside(name).map(drop))
}

/// Which processors VMs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processors {
    /// The last one, which nothing else has: a compute host is another machine than the control
    /// plane, which this one's scheduler would have wait for QEMU.
    TheirOwn,
    /// The control plane's.
    Shared,
}

/// What this thread may run on, and the last of it.
fn processors() -> Result<(CpuSet, Option<usize>)> {
    let all = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|processor| all.is_set(*processor));
    Ok((all, last.filter(|_| all.count() > 1)))
}

/// Keeps this thread, and what it starts, on such processors until this is dropped.
struct Kept(CpuSet);

impl Kept {
    fn on(processors: &CpuSet) -> std::io::Result<Self> {
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, processors)?;
        Ok(Self(before))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // They were this thread's before.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Measures; `guest` is a folder as `examples/guest/make-image` makes it.
pub(super) fn run(guest: &Path, cgpus: u32, whose: Processors) -> Result<Boots> {
    let (all, last) = processors()?;
    let own = last.filter(|_| whose == Processors::TheirOwn).map(|last| {
        let (mut own, mut others) = (CpuSet::new(), all);
        own.set(last);
        others.unset(last);
        (own, others)
    });
    // Threads and processes that are started from here on stay there, too.
    let _kept = own.map(|(_, others)| Kept::on(&others)).transpose()?;
    let folder = tempfile::tempdir()?;
    let machines = Machines::new(guest, folder.path(), own.map_or(all, |(own, _)| own))?;
    let machines = Arc::new(machines);
    let node = Node::start(&folder.path().join("node"))?;
    let facts = node.facts()?;
    let fake = Arc::new(Fake::default());
    let outside = Outside {
        provisioner: Arc::clone(&machines) as _,
        endpoint: fake,
        nodes: Arc::new(Sockets),
    };
    let plane = Plane::with(outside, &[(node.row(&facts), facts.gpus)])?;
    let mut boots = Boots::default();
    for boot in 0..=BOOTS {
        let plain_ms = machines.boot_plain()?;
        let (ready_ms, id) = plane.make(cgpus, CGPU_MIB)?;
        let ready = Instant::now();
        let (begun, deploy_ms) = machines.deployed(&id).context("a VM that is ready has booted")?;
        let after_ms = ready.duration_since(begun).as_secs_f64() * 1e3 - deploy_ms;
        let sign_ms = plane.took_ms(&id, Step::Sign)?;
        plane.remove(&id)?;
        // The first ones fill caches.
        if boot > 0 {
            boots.plain_ms.push(plain_ms);
            boots.ready_ms.push(ready_ms);
            boots.deploy_ms.push(deploy_ms);
            boots.before_ms.push(ready_ms - deploy_ms - after_ms);
            boots.after_ms.push(after_ms);
            boots.sign_ms.push(sign_ms);
        }
    }
    Ok(boots)
}

/// A node of this benchmark's own.
struct Node {
    child: Child,
    admin: PathBuf,
}

impl Node {
    fn start(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let log = fs::File::create(folder.join("node.log"))?;
        let mut command = Command::new(beside("weft")?);
        command.arg("node").arg("--runtime-dir").arg(folder).args(["--device", DEVICES]);
        command.arg("--set").arg(format!("state_dir={}", folder.join("state").display()));
        command.args(["--set", "remote.listen=127.0.0.1:0", "--set", "remote.user=0"]);
        let foreign = std::env::vars_os().map(|(name, _)| name);
        for name in foreign.filter(|name| name.as_encoded_bytes().starts_with(b"WEFT_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("cannot start a node")?;
        Ok(Self { child, admin: folder.join("admin.sock") })
    }

    /// What it is, once it answers.
    fn facts(&self) -> Result<NodeFacts> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match Sockets.look(&self.admin.display().to_string()) {
                Ok(facts) => return Ok(facts),
                Err(failure) => {
                    ensure!(Instant::now() < deadline, "the node did not start: {failure}");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn row(&self, facts: &NodeFacts) -> NodeRow {
        NodeRow {
            name: "n1".to_owned(),
            admin: self.admin.display().to_string(),
            gateway: facts.gateway.clone(),
            gateway_given: false,
            host: "h1".to_owned(),
            created_ms: clock::now_ms(),
            gpus: 0,
            identity: facts.identity.clone(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its workers end with it only if it is told to.
        let told = Client::connect(&self.admin).map(|mut node| node.shutdown());
        if !matches!(told, Ok(Ok(_))) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A program that is installed beside this one.
fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    ensure!(program.exists(), "{} is missing: it is beside this program", program.display());
    Ok(program)
}

/// A virtual machine, and how long QEMU took until its first program ran.
#[derive(Debug)]
struct Machine {
    child: Child,
    begun: Instant,
    booted_ms: Arc<OnceLock<f64>>,
    console: Option<JoinHandle<()>>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // QEMU ends with its parent, and its console with it: what it gives back to the system is
        // no part of what comes next.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(console) = self.console.take() {
            let _ = console.join();
        }
    }
}

/// VMs that QEMU boots: all of a provisioner that `Fake` has not.
#[derive(Debug)]
struct Machines {
    starter: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
    qemu: PathBuf,
    processors: CpuSet,
    changed: OnceLock<Notice>,
    there: Mutex<BTreeMap<String, Machine>>,
}

impl Machines {
    fn new(guest: &Path, folder: &Path, processors: CpuSet) -> Result<Self> {
        let initrd = folder.join("initrd");
        machine::plain_initrd(&initrd, &guest.join("initrd"))?;
        let unpacked = guest.join("qemu");
        let qemu = if unpacked.exists() { unpacked } else { "qemu-system-x86_64".into() };
        let (kernel, changed) = (guest.join("vmlinuz"), OnceLock::new());
        let (starter, there) = (beside("weft-guest")?, Mutex::default());
        Ok(Self { starter, kernel, initrd, qemu, processors, changed, there })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Machine>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one, and has `changed` told when it has booted.
    fn start(&self, changed: impl Fn() + Send + 'static) -> std::io::Result<Machine> {
        let mut command = Command::new(&self.starter);
        command.args(["boot", "--devices", "/dev/null", "--accel", ACCEL, "--append"]);
        command.arg(format!("rdinit={}", machine::PLAIN_INIT));
        command.arg("--kernel").arg(&self.kernel).arg("--initrd").arg(&self.initrd);
        command.arg("--qemu").arg(&self.qemu);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (begun, booted_ms) = (Instant::now(), Arc::new(OnceLock::new()));
        let mut child = {
            let _kept = Kept::on(&self.processors)?;
            command.spawn()?
        };
        let (output, booted) = (child.stdout.take(), Arc::clone(&booted_ms));
        let console = thread::Builder::new().name("console".to_owned()).spawn(move || {
            let Some(output) = output else { return };
            for line in lines::all(BufReader::new(output), LINE_BYTES_MAX).map_while(Result::ok) {
                if String::from_utf8_lossy(&line).contains(machine::BOOTED) {
                    let _ = booted.set(begun.elapsed().as_secs_f64() * 1e3);
                    changed();
                }
            }
        })?;
        Ok(Machine { child, begun, booted_ms, console: Some(console) })
    }

    /// What a boot takes of which no control plane knows, in ms.
    fn boot_plain(&self) -> Result<f64> {
        let mut machine = self.start(|| {})?;
        let deadline = Instant::now() + BOOT_LIMIT;
        loop {
            if let Some(ms) = machine.booted_ms.get() {
                return Ok(*ms);
            }
            let ended = machine.child.try_wait()?;
            ensure!(ended.is_none(), "QEMU ended before its machine had booted");
            ensure!(Instant::now() < deadline, "a machine has not booted after {BOOT_LIMIT:?}");
            thread::sleep(PAUSE);
        }
    }

    /// When QEMU was started for a VM, and what it took until the guest's first program, in ms.
    fn deployed(&self, id: &str) -> Option<(Instant, f64)> {
        let there = self.lock();
        let machine = there.get(id)?;
        Some((machine.begun, machine.booted_ms.get().copied()?))
    }
}

impl Provisioner for Machines {
    fn check(&self) -> Result<String, Failure> {
        Ok("VMs are QEMU's".to_owned())
    }

    fn masked(&self, _slot: u32, number: u32) -> Result<String, Failure> {
        Ok(format!("169.254.77.{}:18515", number + 1))
    }

    fn create(&self, vm: &VmSpec) -> Result<(), Failure> {
        let mut there = self.lock();
        if !there.contains_key(&vm.id) {
            let (id, notice) = (vm.id.clone(), self.changed.get().cloned());
            let changed = move || notice.iter().for_each(|notice| notice.tell(&id));
            there.insert(vm.id.clone(), self.start(changed)?);
        }
        Ok(())
    }

    fn port(&self, id: &str) -> Result<Option<(String, Port)>, Failure> {
        let (mac, ip) = ("02:00:00:00:00:01".to_owned(), "10.0.0.2".to_owned());
        let port = || ("h1".to_owned(), Port { tap: format!("tap-{id}"), mac, ip });
        Ok(self.lock().contains_key(id).then(port))
    }

    fn state(&self, id: &str) -> Result<VmState, Failure> {
        let mut there = self.lock();
        let Some(machine) = there.get_mut(id) else { return Ok(VmState::Absent) };
        Ok(match (machine.booted_ms.get(), machine.child.try_wait()?) {
            (_, Some(status)) => VmState::Broken(format!("QEMU ended with {status}")),
            (Some(_), None) => VmState::Active,
            (None, None) => VmState::Booting,
        })
    }

    fn notify(&self, changed: Notice) {
        let _ = self.changed.set(changed);
    }

    fn terminate(&self, id: &str) -> Result<bool, Failure> {
        self.lock().remove(id);
        Ok(true)
    }

    fn inventory(&self) -> Result<Vec<String>, Failure> {
        Ok(self.lock().keys().cloned().collect())
    }

    fn console(&self, _id: &str) -> Result<String, Failure> {
        Ok(String::new())
    }
}
