//! VMs, endpoints and nodes in memory, for tests and benchmarks of the control plane alone. They
//! fail when they are told to. VMs may be kept in a folder: then they outlive the process, as real
//! ones do, and replicas that share the folder have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Failure, Provisioner, VmSpec, VmState};
use crate::nodes::{Keep, NodeFacts, NodeSeen, Nodes, VgpuSpec};
use crate::rules::{Endpoint, GrantRow, Ruled};
use crate::store::{GpuFound, Port};

/// All that a cloud has outside the control plane.
#[derive(Debug, Default)]
pub struct Fake {
    inner: Mutex<Inner>,
    /// A file for each VM, with its host in it.
    folder: Option<PathBuf>,
}

/// Where VMs are that nobody sent elsewhere.
const HOST: &str = "fake";

#[derive(Debug, Default)]
struct Inner {
    vms: BTreeMap<String, VmSpec>,
    rules: BTreeMap<String, Vec<GrantRow>>,
    vgpus: BTreeMap<String, BTreeSet<String>>,
    gpus: BTreeMap<String, Vec<GpuFound>>,
    gateways: BTreeMap<String, String>,
    failures: BTreeMap<&'static str, (u32, Failure)>,
    hangs: BTreeSet<&'static str>,
}

impl Fake {
    /// With VMs that are kept in that folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn at(folder: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { inner: Mutex::default(), folder: Some(folder) })
    }

    /// The host of a VM that is there.
    fn host_of(&self, inner: &Inner, id: &str) -> io::Result<Option<String>> {
        let Some(folder) = &self.folder else {
            let vm = inner.vms.get(id);
            return Ok(vm.map(|vm| vm.host.clone().unwrap_or_else(|| HOST.to_owned())));
        };
        match fs::read_to_string(folder.join(id)) {
            Ok(host) => Ok(Some(host)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `times` calls of `what` fail so.
    pub fn fail(&self, what: &'static str, times: u32, failure: Failure) {
        self.lock().failures.insert(what, (times, failure));
    }

    /// Calls of `what` are not answered from here on, or are again.
    pub fn hang(&self, what: &'static str, hangs: bool) {
        let mut inner = self.lock();
        if hangs {
            inner.hangs.insert(what)
        } else {
            inner.hangs.remove(what)
        };
    }

    /// A node at `admin` with these GPUs.
    pub fn add_gpus(&self, admin: &str, gpus: Vec<GpuFound>) {
        self.lock().gpus.insert(admin.to_owned(), gpus);
    }

    /// The node at `admin` starts again, and its gateway listens elsewhere, or nowhere if that is
    /// empty.
    pub fn move_gateway(&self, admin: &str, gateway: &str) {
        self.lock().gateways.insert(admin.to_owned(), gateway.to_owned());
    }

    /// A VM ends of itself.
    pub fn lose(&self, vm: &str) {
        self.lock().vms.remove(vm);
    }

    /// What there is of anything: VMs, rules and vGPUs.
    #[must_use]
    pub fn remains(&self) -> Vec<String> {
        let inner = self.lock();
        let vgpus = inner.vgpus.values().flatten();
        inner.vms.keys().chain(inner.rules.keys()).chain(vgpus).cloned().collect()
    }

    /// What was asked of a VM.
    #[must_use]
    pub fn vm(&self, id: &str) -> Option<VmSpec> {
        self.lock().vms.get(id).cloned()
    }

    /// The rows in force for a VM.
    #[must_use]
    pub fn rules(&self, id: &str) -> Vec<GrantRow> {
        self.lock().rules.get(id).cloned().unwrap_or_default()
    }

    fn act<T>(&self, what: &'static str, act: impl FnOnce(&mut Inner) -> T) -> Result<T, Failure> {
        while self.lock().hangs.contains(what) {
            std::thread::yield_now();
        }
        let mut inner = self.lock();
        if let Some((times, failure)) = inner.failures.get_mut(what)
            && *times > 0
        {
            *times -= 1;
            return Err(failure.clone());
        }
        Ok(act(&mut inner))
    }
}

impl Provisioner for Fake {
    fn check(&self) -> Result<String, Failure> {
        Ok(match &self.folder {
            None => "VMs in memory only".to_owned(),
            Some(folder) => format!("VMs are only said to be there, in {}", folder.display()),
        })
    }

    fn masked(&self, _slot: u32, number: u32) -> Result<String, Failure> {
        Ok(format!("169.254.77.{}:18515", number + 1))
    }

    fn create(&self, vm: &VmSpec) -> Result<(), Failure> {
        self.act("create", |inner| {
            inner.vms.entry(vm.id.clone()).or_insert_with(|| vm.clone());
            let Some(folder) = &self.folder else { return Ok(()) };
            Ok(fs::write(folder.join(&vm.id), vm.host.as_deref().unwrap_or(HOST))?)
        })?
    }

    fn port(&self, id: &str) -> Result<Option<(String, Port)>, Failure> {
        let port = Port {
            tap: format!("tap-{id}"),
            mac: "02:00:00:00:00:01".to_owned(),
            ip: "10.0.0.2".to_owned(),
        };
        let host = self.act("port", |inner| self.host_of(inner, id))??;
        Ok(host.map(|host| (host, port)))
    }

    fn state(&self, id: &str) -> Result<VmState, Failure> {
        let host = self.act("state", |inner| self.host_of(inner, id))??;
        Ok(if host.is_some() { VmState::Active } else { VmState::Absent })
    }

    fn terminate(&self, id: &str) -> Result<bool, Failure> {
        self.act("terminate", |inner| {
            inner.vms.remove(id);
            let Some(folder) = &self.folder else { return Ok(true) };
            match fs::remove_file(folder.join(id)) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
                _ => Ok(true),
            }
        })?
    }

    fn inventory(&self) -> Result<Vec<String>, Failure> {
        self.act("inventory", |inner| {
            let Some(folder) = &self.folder else { return Ok(inner.vms.keys().cloned().collect()) };
            let name = |entry: io::Result<fs::DirEntry>| {
                Ok(entry?.file_name().to_string_lossy().into_owned())
            };
            fs::read_dir(folder)?.map(name).collect()
        })?
    }

    fn console(&self, _id: &str) -> Result<String, Failure> {
        self.act("console", |_| String::new())
    }
}

impl Endpoint for Fake {
    fn put(&self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure> {
        self.act("put", |inner| {
            inner.rules.insert(instance.to_owned(), rows.to_vec());
        })
    }

    fn holds(&self, instance: &str, rows: &[GrantRow]) -> Result<bool, Failure> {
        self.act("holds", |inner| inner.rules.get(instance).is_some_and(|found| found == rows))
    }

    fn withdraw(&self, instance: &str, _host: Option<&str>) -> Result<(), Failure> {
        self.act("withdraw", |inner| {
            inner.rules.remove(instance);
        })
    }

    fn instances(&self) -> Ruled {
        let of = |(instance, rows): (&String, &Vec<GrantRow>)| {
            (instance.clone(), rows.first().map(|row| row.host.clone()))
        };
        Ruled::of(self.act("instances", |inner| inner.rules.iter().map(of).collect()))
    }
}

fn gateway_of(admin: &str) -> String {
    format!("{admin}.example:7600")
}

impl Nodes for Fake {
    fn look(&self, admin: &str) -> Result<NodeFacts, Failure> {
        let gpus = self.act("look", |inner| inner.gpus.get(admin).cloned())?;
        let gpus = gpus.ok_or_else(|| Failure::passing(format!("no node at {admin}")))?;
        let gateway = gateway_of(admin);
        Ok(NodeFacts { gpus, gateway, identity: admin.to_owned() })
    }

    fn sign(&self, _admin: &str, vgpus: &[VgpuSpec]) -> Result<Vec<String>, Failure> {
        let grant = |vgpu: &VgpuSpec| format!("grant-of-{}", vgpu.name);
        self.act("sign", |_| vgpus.iter().map(grant).collect())
    }

    fn make(
        &self,
        admin: &str,
        vgpus: &[VgpuSpec],
        inside: &(dyn Fn() + Sync),
    ) -> Result<(), Failure> {
        self.act("make", |inner| {
            let there = inner.vgpus.entry(admin.to_owned()).or_default();
            for vgpu in vgpus {
                there.insert(vgpu.name.clone());
                inside();
            }
        })
    }

    fn revoke(
        &self,
        admin: &str,
        vgpus: &[String],
        keep: Keep<'_>,
        inside: &(dyn Fn() + Sync),
    ) -> Result<usize, Failure> {
        let used: Vec<(String, u64)> = self.act("used", |inner| {
            let there = inner.vgpus.get(admin).into_iter().flatten();
            there.filter(|vgpu| vgpus.contains(vgpu)).map(|vgpu| (vgpu.clone(), 1)).collect()
        })?;
        keep(&used)?;
        self.act("revoke", |inner| {
            let there = inner.vgpus.entry(admin.to_owned()).or_default();
            vgpus.iter().filter(|vgpu| there.remove(*vgpu)).inspect(|_| inside()).count()
        })
    }

    fn vgpus(&self, admin: &str) -> Result<Vec<String>, Failure> {
        self.act("vgpus", |inner| inner.vgpus.get(admin).into_iter().flatten().cloned().collect())
    }

    fn tenant_socket(&self, admin: &str) -> Result<PathBuf, Failure> {
        self.act("tenant_socket", |_| format!("{admin}.sock").into())
    }

    fn seen(&self, admin: &str) -> Result<NodeSeen, Failure> {
        self.act("seen", |inner| {
            let gpus = inner.gpus.get(admin).cloned().unwrap_or_default();
            let gateway = inner.gateways.get(admin).cloned();
            let gateway = gateway.unwrap_or_else(|| gateway_of(admin));
            NodeSeen { gpus, gateway: Some(gateway).filter(|gateway| !gateway.is_empty()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Machine;

    #[test]
    fn vms_that_are_kept_outlive_the_process() {
        let scratch = tempfile::tempdir().unwrap();
        let open = || Fake::at(scratch.path().join("vms")).unwrap();
        let vm = VmSpec {
            id: "i1".to_owned(),
            name: "i1".to_owned(),
            project: "p".to_owned(),
            slot: 1,
            cgpus: 1,
            host: Some("h".to_owned()),
            environment: Vec::new(),
            gateways: Vec::new(),
            nodes: BTreeMap::new(),
            user_data: String::new(),
            machine: Machine::default(),
        };
        let (standby, leader) = (open(), open());
        leader.create(&vm).unwrap();
        drop(leader);
        for other in [standby, open()] {
            assert_eq!(other.state("i1").unwrap(), VmState::Active);
            assert_eq!(other.inventory().unwrap(), ["i1"]);
            assert_eq!(other.port("i1").unwrap().unwrap().0, "h");
        }
        let last = open();
        assert!(last.terminate("i1").unwrap() && last.terminate("i1").unwrap());
        assert_eq!(last.state("i1").unwrap(), VmState::Absent);
        assert!(open().inventory().unwrap().is_empty());
    }
}
