//! VMs of this host: processes, in network and process namespaces of their own where the system
//! allows that. Everything is real but the hypervisor.
//!
//! A VM is a folder and processes that hold locks in it, so what is there survives this process and
//! can be asked for after a crash: `guest.lock` and `inside.lock` are the VM's, `relay.lock` is the
//! endpoint's, and `region.lock` whose memory the VM shares with nodes of this host. Whoever holds
//! a lock has its process number in it. A folder goes when all its locks are free, under these
//! locks.
//!
//! | file | written by | what |
//! |---|---|---|
//! | `spec.json` | the control plane | the VM, with its grants |
//! | `port.json` | the VM | its network namespace |
//! | `status` | the VM | `booting`, `active`, or why it failed |
//! | `console.log` | the VM | what its user-data printed |
//! | `rows.json` | the control plane | what the endpoint leads where |

pub mod guest;
mod lock;
pub mod machine;
mod port;
pub mod region;
pub mod relay;
mod watch;

use std::fs;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::lock::Lock;
use self::watch::Watch;
use super::{
    Failure, MASKED_PORT, Notice, Provisioner, SHARED_CGPUS_MAX, UNSHARED, VmSpec, VmState,
    ensure_room, link_local, shared,
};
use crate::hosts::Hosts;
use crate::rules::{Endpoint, GrantRow, Ruled};
use crate::store::Port;

/// A process that was started holds its lock after this time, or has failed.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A process that is killed has let go of its locks after this time, or is tried again.
const END_LIMIT: Duration = Duration::from_secs(1);

/// How often to look for that.
const PAUSE: Duration = Duration::from_millis(1);

/// Of a VM's console the end is shown, so much of it: a VM writes what it wants there.
const CONSOLE_BYTES: u64 = 1 << 20;

/// The longest line of what one of its processes said that is told.
const LINE_BYTES: u64 = 4 << 10;

/// How VMs are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Isolation {
    /// Network and process namespaces.
    Namespaces,
    /// Not at all: processes of this host's network.
    Processes,
    /// They are virtual machines.
    Machines,
}

/// How VMs of this host are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Their folder.
    pub folder: PathBuf,
    /// How they are kept apart.
    pub isolation: Isolation,
    /// This host's name among compute hosts.
    pub host: String,
    /// Their programs are this user and those after it, another one for each VM: what is one VM's
    /// is not another's. None for this program's own.
    pub first_user: Option<u32>,
    /// `weft-endpoint`.
    pub endpoint: PathBuf,
    /// `weft-guest`; without it VMs share no memory with nodes.
    #[serde(default)]
    pub guest: Option<PathBuf>,
    /// The folder with `libcuda.so.1`.
    pub libraries: PathBuf,
    /// What virtual machines are.
    #[serde(default)]
    pub image: Option<machine::Image>,
    /// VMs have a port on this host, and its endpoint (`weft-endpoint host`) leads them; without
    /// it each has a relay.
    #[serde(default)]
    pub has_ports: bool,
    /// The socket of that endpoint. A VM is its endpoint's to its end, whatever is said later.
    #[serde(default)]
    pub host_endpoint: Option<PathBuf>,
}

/// VMs of this host, and their endpoint.
#[derive(Debug)]
pub struct Local {
    settings: Settings,
    /// The endpoint of this host was taken out of service: VMs made from here on have relays.
    is_removed: AtomicBool,
    program: PathBuf,
    children: Mutex<Vec<Child>>,
    watch: Arc<Watch>,
}

/// What `port.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Inside {
    /// What `/proc/self/ns/net` is there.
    network: String,
}

impl Settings {
    /// The user that a VM's programs are, if it is one of their own.
    fn user(&self, vm: &VmSpec) -> Result<Option<u32>, Failure> {
        let none_left = || Failure::permanent("there are no users for VMs left");
        let user = |first: u32| first.checked_add(vm.slot).ok_or_else(none_left);
        self.first_user.map(user).transpose()
    }
}

/// Refuses a folder that users of VMs cannot get to.
fn ensure_passable(folder: &Path) -> Result<(), Failure> {
    for above in folder.ancestors() {
        let mode = match fs::metadata(above) {
            Ok(found) => found.permissions().mode(),
            Err(_) => continue,
        };
        if mode & 0o001 == 0 {
            let (above, mode) = (above.display(), mode & 0o7777);
            return Err(Failure::permanent(format!(
                "VMs have users of their own, who do not get to their folders: {above} has mode \
                 {mode:04o}. Let others pass (chmod o+x {above}), or say another --state-dir"
            )));
        }
    }
    Ok(())
}

impl Isolation {
    /// The best that works here, with what stands against a better one.
    #[must_use]
    pub fn probe() -> (Self, Option<String>) {
        let tried = Command::new("unshare")
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output();
        match tried {
            Ok(output) if output.status.success() => (Self::Namespaces, None),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                (Self::Processes, Some(why))
            }
            Err(error) => (Self::Processes, Some(format!("unshare: {error}"))),
        }
    }
}

impl Local {
    /// As set; VMs have ports if there is an endpoint of this host that leads them.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let settings = Settings { has_ports: settings.host_endpoint.is_some(), ..settings };
        let mut builder = fs::DirBuilder::new();
        // Programs of VMs must get through, not look around.
        builder.recursive(true).mode(0o711).create(&settings.folder)?;
        let program = std::env::current_exe()?;
        let (is_removed, children) = (AtomicBool::new(false), Mutex::default());
        Ok(Self { settings, is_removed, program, children, watch: Arc::default() })
    }

    fn folder(&self, id: &str) -> PathBuf {
        self.settings.folder.join(id)
    }

    /// How VMs are made from here on.
    fn current(&self) -> Settings {
        let settings = self.settings.clone();
        match self.is_removed.load(Ordering::Relaxed) {
            true => Settings { has_ports: false, host_endpoint: None, ..settings },
            false => settings,
        }
    }

    /// How a VM was made, if it is there.
    fn made(&self, id: &str) -> Result<Option<Settings>, Failure> {
        let spec = read_json::<(VmSpec, Settings)>(&self.folder(id).join("spec.json"))?;
        Ok(spec.map(|(_, settings)| settings))
    }

    /// Whether a VM has a port.
    fn has_port(&self, id: &str) -> Result<bool, Failure> {
        Ok(self.made(id)?.as_ref().unwrap_or(&self.settings).has_ports)
    }

    /// Who leads a VM that has a port: this host's endpoint, where it is said to be now or was when
    /// the VM was made.
    fn leads(&self, id: &str) -> Result<Option<Hosts>, Failure> {
        let made = self.made(id)?;
        if !made.as_ref().unwrap_or(&self.settings).has_ports {
            return Ok(None);
        }
        let known = made.and_then(|made| made.host_endpoint);
        let socket = self.settings.host_endpoint.clone().or(known);
        let here = &self.settings.host;
        let unknown = || {
            let words = format!(
                "it has a port, and where its endpoint is is not known: say it with --host-endpoint {here}=PATH"
            );
            Failure::permanent(words)
        };
        Ok(Some(Hosts::new([(here.clone(), socket.ok_or_else(unknown)?)])))
    }

    /// Starts a process that outlives this one, and waits until it holds its lock.
    fn start(&self, what: &str, folder: &Path, lock: &Path) -> Result<(), Failure> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(folder.join(format!("{what}.log")))?;
        let mut command = Command::new(&self.program);
        command.arg(what).arg("--folder").arg(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn()?;
        let deadline = Instant::now() + START_LIMIT;
        let held = loop {
            // For a moment a lock is also held by whoever looks whether it is, and by the processes
            // that those start meanwhile, until they are another program.
            if Lock::holder(lock)?.is_some_and(|holder| holder.pid == child.id()) {
                break Ok(());
            }
            if let Some(status) = child.try_wait()? {
                let last = last_line(folder, what);
                break Err(Failure::passing(format!("{what} ended with {status}: {last}")));
            }
            if Instant::now() > deadline {
                break Err(Failure::passing(format!("{what} did not start")));
            }
            thread::sleep(PAUSE);
        };
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        children.push(child);
        held
    }

    /// Ends whoever holds a lock; the lock, once it is free.
    fn end(&self, path: &Path) -> Result<Option<Lock>, Failure> {
        if let Some(holder) = Lock::holder(path)? {
            holder.kill();
        }
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        Ok(Lock::take(path, "")?)
    }

    /// Ends whoever holds a lock, and waits as long as what is killed takes.
    fn end_wholly(&self, path: &Path) -> Result<(), Failure> {
        let deadline = Instant::now() + END_LIMIT;
        while self.end(path)?.is_none() {
            if Instant::now() > deadline {
                return Err(Failure::passing("a process of the VM's is ending"));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Memory is shared with nodes while the VM boots.
    fn share(&self, vm: &VmSpec, folder: &Path) -> Result<(), Failure> {
        let lock = folder.join("region.lock");
        // What an earlier attempt shares has nobody, and the VM must not take it for its own.
        self.end_wholly(&lock)?;
        for number in 0..vm.gateways.len() {
            for gone in [
                fs::remove_dir_all(region::folder_of(folder, number)),
                fs::remove_file(region::devices_of(folder, number)),
            ] {
                match gone {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        self.start("region", folder, &lock)
    }

    /// Nothing leads a VM anywhere any longer.
    fn unlead(&self, folder: &Path) -> Result<(), Failure> {
        match fs::remove_file(folder.join("rows.json")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        self.end_wholly(&folder.join("relay.lock"))
    }

    fn folders_with(&self, file: &str) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.settings.folder)? {
            let entry = entry?;
            if entry.path().join(file).exists() {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(found)
    }

    /// Ends everything of every VM, as far as it can be ended now; what is left.
    ///
    /// # Errors
    /// The system's.
    pub fn terminate_all(&self) -> Result<usize, Failure> {
        let (mut left, mut failed) = (0, None);
        for id in self.inventory()? {
            // One whose rules stay is kept, or nobody would know of them.
            match self.withdraw(&id, None).and_then(|()| self.terminate(&id)) {
                Ok(is_gone) => left += usize::from(!is_gone),
                Err(failure) => failed = Some(failure),
            }
        }
        failed.map_or(Ok(left), Err)
    }
}

impl Provisioner for Local {
    fn check(&self) -> Result<String, Failure> {
        let Settings { folder, endpoint, libraries, isolation, first_user, guest, image, .. } =
            &self.settings;
        let needed = match image {
            None => vec![endpoint.clone(), libraries.join("libcuda.so.1")],
            Some(image) => {
                let guest = guest.clone().unwrap_or_else(|| "weft-guest".into());
                vec![guest, image.kernel.clone(), image.initrd.clone()]
            }
        };
        for needed in needed {
            if !needed.exists() {
                let words = format!("{} is missing: it is installed beside weft", needed.display());
                return Err(Failure::permanent(words));
            }
        }
        if first_user.is_some() {
            ensure_passable(folder)?;
        }
        let how = match isolation {
            Isolation::Namespaces if self.settings.has_ports => {
                "VMs are processes in namespaces of this host, each with a port that its endpoint \
                 leads"
            }
            Isolation::Namespaces => {
                "VMs are processes in network and process namespaces of this host"
            }
            Isolation::Processes => {
                "VMs are plain processes of this host: they are not kept apart from each other, \
                 only their grants keep others out"
            }
            Isolation::Machines => {
                "VMs are virtual machines of QEMU without a network: they get local cGPUs"
            }
        };
        let whose = match first_user {
            Some(_) => "each has a user of its own",
            None => {
                "they run as this process's user and can read its secrets: for trying out, not \
                 for others' programs"
            }
        };
        Ok(format!("{how}; {whose}"))
    }

    fn masked(&self, slot: u32, number: u32) -> Result<String, Failure> {
        ensure_room(number, "a VM")?;
        Ok(match self.settings.isolation {
            Isolation::Namespaces => link_local(number),
            Isolation::Machines => return Err(no_network()),
            // All VMs share one loopback: each slot has an address, each gateway a port.
            Isolation::Processes => {
                let [_, high, middle, low] = slot.to_be_bytes();
                let port = u32::from(MASKED_PORT) + number;
                format!("127.{}.{middle}.{low}:{port}", 64 + (high & 0x3f))
            }
        })
    }

    fn masked_here(&self, slot: u32, number: u32, cgpus: usize) -> Result<String, Failure> {
        // A machine has one device.
        let is_second = self.settings.isolation == Isolation::Machines && number > 0;
        if self.settings.guest.is_none() || cgpus > SHARED_CGPUS_MAX || is_second {
            return self.masked(slot, number);
        }
        ensure_room(number, "a VM")?;
        Ok(shared(number))
    }

    fn create(&self, vm: &VmSpec) -> Result<(), Failure> {
        let here = &self.settings.host;
        if let Some(host) = vm.host.as_ref().filter(|host| *host != here) {
            let words = format!("VMs are made on this host only, `{here}`, and not on `{host}`");
            return Err(Failure::permanent(words));
        }
        let folder = self.folder(&vm.id);
        let lock = folder.join("guest.lock");
        if folder.exists() && Lock::holder(&lock)?.is_some() {
            return Ok(());
        }
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o711).create(&folder)?;
        let known = serde_json::to_vec(&(vm, &self.current())).map_err(io::Error::from)?;
        replace(&folder.join("spec.json"), &known)?;
        self.watch.add(&vm.id, &folder);
        if !vm.nodes.is_empty() {
            self.share(vm, &folder)?;
        }
        self.start("guest", &folder, &lock)
    }

    fn notify(&self, changed: Notice) {
        if let Err(error) = self.watch.start(changed) {
            tracing::warn!(%error, "folders of VMs are not watched");
        }
    }

    fn endpoint_removed(&self, host: &str) {
        if host == self.settings.host {
            self.is_removed.store(true, Ordering::Relaxed);
        }
    }

    fn port(&self, id: &str) -> Result<Option<(String, Port)>, Failure> {
        let Some(inside) = read_json::<Inside>(&self.folder(id).join("port.json"))? else {
            return Ok(None);
        };
        let port = if self.has_port(id)? {
            port::of(id)
        } else {
            Port { tap: inside.network, mac: Port::RELAYED.to_owned(), ip: "127.0.0.1".to_owned() }
        };
        Ok(Some((self.settings.host.clone(), port)))
    }

    fn state(&self, id: &str) -> Result<VmState, Failure> {
        let folder = self.folder(id);
        if !folder.exists() {
            return Ok(VmState::Absent);
        }
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        if let Some(why) = status.strip_prefix("failed: ") {
            return Ok(VmState::Broken(why.trim().to_owned()));
        }
        let (guest, region) = (folder.join("guest.lock"), folder.join("region.lock"));
        Ok(match Lock::holder(&guest)? {
            None => VmState::Absent,
            // No other process can give the VM that memory.
            Some(_) if region.exists() && Lock::holder(&region)?.is_none() => {
                let said = last_line(&folder, "region");
                VmState::Broken(format!("{UNSHARED}: {said}"))
            }
            Some(_) if status == "active" => VmState::Active,
            Some(_) => VmState::Booting,
        })
    }

    fn terminate(&self, id: &str) -> Result<bool, Failure> {
        let folder = self.folder(id);
        if !folder.exists() {
            return Ok(true);
        }
        let has_port = self.has_port(id)?;
        let mut locks = Vec::new();
        // All are told to end before any is waited for.
        for name in ["guest.lock", "inside.lock", "relay.lock", "region.lock"] {
            locks.push(self.end(&folder.join(name))?);
        }
        if locks.iter().any(Option::is_none) {
            return Ok(false);
        }
        if has_port {
            port::unplug(id).map_err(|error| Failure::passing(format!("{error:#}")))?;
        }
        // Whoever was late for a lock finds another folder, or none.
        let gone = self.settings.folder.join(format!(".gone-{id}"));
        let _ = fs::remove_dir_all(&gone);
        fs::rename(&folder, &gone)?;
        fs::remove_dir_all(&gone)?;
        Ok(true)
    }

    fn inventory(&self) -> Result<Vec<String>, Failure> {
        for gone in self.folders_with("guest.lock")?.iter().filter(|id| id.starts_with('.')) {
            let _ = fs::remove_dir_all(self.folder(gone));
        }
        let mut found = self.folders_with("spec.json")?;
        found.extend(self.folders_with("guest.lock")?);
        found.sort();
        found.dedup();
        found.retain(|id| !id.starts_with('.'));
        Ok(found)
    }

    fn console(&self, id: &str) -> Result<String, Failure> {
        match end_of(&self.folder(id).join("console.log"), CONSOLE_BYTES) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Endpoint for Local {
    fn put(&self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure> {
        if let Some(hosts) = self.leads(instance)? {
            return hosts.put(instance, rows);
        }
        let folder = self.folder(instance);
        let (path, lock) = (folder.join("rows.json"), folder.join("relay.lock"));
        if rows.is_empty() {
            return self.unlead(&folder);
        }
        let bytes = serde_json::to_vec(rows).map_err(io::Error::from)?;
        if self.holds(instance, rows)? {
            return Ok(());
        }
        // It has other rows, perhaps.
        self.end_wholly(&lock)?;
        replace(&path, &bytes)?;
        self.start("relay", &folder, &lock)
    }

    fn holds(&self, instance: &str, rows: &[GrantRow]) -> Result<bool, Failure> {
        if let Some(hosts) = self.leads(instance)? {
            return hosts.holds(instance, rows);
        }
        if rows.is_empty() {
            return Ok(!self.folder(instance).join("rows.json").exists());
        }
        let holder = Lock::holder(&self.folder(instance).join("relay.lock"))?;
        Ok(holder.is_some_and(|holder| holder.what == relay::name_of(rows)))
    }

    fn withdraw(&self, instance: &str, _host: Option<&str>) -> Result<(), Failure> {
        if let Some(hosts) = self.leads(instance)? {
            hosts.withdraw(instance, None)?;
        }
        let folder = self.folder(instance);
        if !folder.exists() {
            return Ok(());
        }
        self.unlead(&folder)?;
        let region = folder.join("region.lock");
        if region.exists() { self.end_wholly(&region) } else { Ok(()) }
    }

    fn instances(&self) -> Ruled {
        let relayed = self.folders_with("rows.json");
        let here = |all: Vec<String>| all.into_iter().map(|instance| (instance, None)).collect();
        let mut found = Ruled::of(relayed.map(here));
        if let Some(socket) = &self.current().host_endpoint {
            let here = (self.settings.host.clone(), socket.clone());
            found.add(Hosts::new([here]).instances());
        }
        found
    }
}

/// Why a virtual machine does not get what is somewhere else.
fn no_network() -> Failure {
    Failure::permanent(format!(
        "virtual machines of this host have no network: they get up to {SHARED_CGPUS_MAX} local \
         cGPUs (-locality=local), all of one node"
    ))
}

/// The last that one of a VM's processes said.
fn last_line(folder: &Path, what: &str) -> String {
    let said = end_of(&folder.join(format!("{what}.log")), LINE_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next_back().unwrap_or_default().to_owned()
}

/// The last bytes of a file, no more than `most`.
fn end_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (fs::File::open(path)?, Vec::new());
    let behind = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(behind))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file that is there wholly or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    io::Write::write_all(&mut file, bytes)?;
    fs::rename(&fresh, path)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).map_err(io::Error::from)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_vm_says_the_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let said = format!("{}\nthe end", "x".repeat(8192));
        fs::write(folder.path().join("relay.log"), &said).unwrap();
        assert_eq!(last_line(folder.path(), "relay"), "the end");
        assert_eq!(end_of(&folder.path().join("relay.log"), 3).unwrap(), b"end");
        assert_eq!(last_line(folder.path(), "nothing"), "");
    }

    fn local(isolation: Isolation, folder: &Path) -> Local {
        let settings = Settings {
            folder: folder.to_owned(),
            isolation,
            host: "here".to_owned(),
            first_user: None,
            endpoint: PathBuf::new(),
            guest: None,
            libraries: PathBuf::new(),
            image: None,
            has_ports: false,
            host_endpoint: None,
        };
        Local::new(settings).unwrap()
    }

    #[test]
    fn masked_addresses_are_a_vms_own() {
        let folder = tempfile::tempdir().unwrap();
        let apart = local(Isolation::Namespaces, folder.path());
        assert_eq!(apart.masked(7, 0).unwrap(), "169.254.77.1:18515");
        assert_eq!(apart.masked(7, 249).unwrap(), "169.254.77.250:18515");
        assert!(apart.masked(7, 250).unwrap_err().is_permanent);
        let plain = local(Isolation::Processes, folder.path());
        assert_eq!(plain.masked(0x01_02_03, 4).unwrap(), "127.65.2.3:18519");
        let slots = (0..4).flat_map(|slot| [slot, slot + 256, slot + 65_536]);
        let addresses: std::collections::BTreeSet<String> =
            slots.map(|slot| plain.masked(slot, 0).unwrap()).collect();
        assert_eq!(addresses.len(), 12);
    }

    /// A process of this one that was just started has all its locks until it is another program.
    /// A VM that the endpoint led keeps it, to its end.
    #[test]
    fn an_endpoint_out_of_service_leads_no_new_vm() {
        let folder = tempfile::tempdir().unwrap();
        let mut local = local(Isolation::Namespaces, folder.path());
        local.settings.has_ports = true;
        local.settings.host_endpoint = Some("/run/endpoint.sock".into());
        local.endpoint_removed("elsewhere");
        assert!(local.current().has_ports);
        let endpoint = local.settings.host.clone();
        local.endpoint_removed(&endpoint);
        let current = local.current();
        assert!(!current.has_ports && current.host_endpoint.is_none());
        assert_eq!(local.instances(), Ruled::default(), "it is not asked");
    }

    #[test]
    fn a_lock_that_somebody_looks_at_is_no_relay() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let folder = tempfile::tempdir().unwrap();
        // In a relay's place: who holds the lock is the process that was started.
        let program = folder.path().join("relay");
        let script = "#!/bin/sh\nexec 9>>\"$3/relay.lock\"\nflock -w 20 9 || exit 1\n\
                      : >\"$3/relay.lock\"\necho \"$$ 0 $(cat \"$3/name\")\" >&9\nexec sleep 600\n";
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let local = Local { program, ..local(Isolation::Processes, &folder.path().join("vms")) };
        let rows = Vec::new();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for id in ["i1", "i2", "i3", "i4", "i5", "i6", "i7", "i8"] {
                let own = local.folder(id);
                fs::create_dir_all(&own).unwrap();
                fs::write(own.join("name"), relay::name_of(&rows)).unwrap();
                scope.spawn(|| {
                    let own = own;
                    while !over.load(Ordering::Relaxed) {
                        drop(Lock::take(&own.join("relay.lock"), "").unwrap());
                    }
                });
                while let Err(failure) = local.put(id, &rows) {
                    assert!(!failure.is_permanent, "{failure:?}");
                }
                assert!(local.holds(id, &rows).unwrap(), "{id} has no relay");
            }
            over.store(true, Ordering::Relaxed);
        });
        for child in local.children.lock().unwrap().iter_mut() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_vm_shares_memory_with_its_own_hosts_node_where_that_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let mut local = local(Isolation::Namespaces, folder.path());
        assert_eq!(local.masked_here(7, 1, 1).unwrap(), "169.254.77.2:18515");
        local.settings.guest = Some("weft-guest".into());
        assert_eq!(local.masked_here(7, 1, 32).unwrap(), "ivshmem:1");
        assert_eq!(local.masked_here(7, 1, 33).unwrap(), "169.254.77.2:18515");
        assert!(local.masked_here(7, 250, 1).unwrap_err().is_permanent);
        local.settings.isolation = Isolation::Machines;
        assert_eq!(local.masked_here(7, 0, 1).unwrap(), "ivshmem:0");
        for refused in [local.masked_here(7, 1, 1), local.masked(7, 0)] {
            assert!(refused.unwrap_err().words.contains("-locality=local"));
        }
    }

    #[test]
    fn what_was_never_made_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let local = local(Isolation::Processes, folder.path());
        assert_eq!(local.state("i1").unwrap(), VmState::Absent);
        assert!(local.terminate("i1").unwrap());
        local.withdraw("i1", None).unwrap();
        assert!(local.inventory().unwrap().is_empty());
    }
}
