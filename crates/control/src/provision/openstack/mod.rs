//! VMs of an OpenStack cloud.
//!
//! An instance is a Nova server in its own project, found by tags and known by a *seal* among its
//! metadata: a keyed digest of the instance's and the project's ids. People may put any tag and any
//! metadata on servers of theirs, but not make a seal.
//!
//! Nova has no idempotency keys: whoever asks again after an answer was lost may get two servers.
//! So servers are looked for before one is asked for, the oldest one is the instance's, and
//! whatever looks at it removes the others.

mod survey;
mod user_data;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use weft_api::files;

use self::survey::Survey;
use super::{Failure, Provisioner, VmSpec, VmState, ensure_room, link_local};
use crate::openstack::neutron::NetworkPort;
use crate::openstack::nova::{Flavor, NewServer, Server};
use crate::openstack::{ApiError, Cloud};
use crate::random;
use crate::store::{Machine, Port};
use crate::words::counted;

/// How often Nova is asked what comes of itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Bytes of user-data that Nova takes, in base64.
const USER_DATA_MAX: usize = 65_535;

/// Bytes of the key of seals.
const KEY_BYTES: usize = 32;

/// The tag of all servers of control planes.
const TAG: &str = "weft";

/// What a server says of itself: its instance, and the seal.
const INSTANCE: &str = "weft_instance";
const SEAL: &str = "weft_seal";

/// And the network that was asked for, if one was. Whoever writes another one there chooses among
/// the ports of its own server.
const NETWORK: &str = "weft_network";

/// What servers are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Id of the image, which has `weft-endpoint` and `libcuda.so.1`.
    pub image: String,
    /// Name of the flavor. Local cGPUs need one more for each number of them: `NAME.cgpuN`.
    pub flavor: String,
    /// Id of the network, which tenants may use.
    pub network: String,
    /// The folder with `libcuda.so.1` in the image.
    pub libraries: PathBuf,
    /// How often Nova is asked what comes of itself.
    pub look_again: Duration,
}

impl Settings {
    /// Of that image, flavor and network.
    #[must_use]
    pub fn new(image: String, flavor: String, network: String, libraries: PathBuf) -> Self {
        Self { image, flavor, network, libraries, look_again: LOOK_AGAIN }
    }
}

/// Seals servers.
#[derive(Clone)]
pub struct Key([u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The key in a file, which is made if it is not there. Without it nobody knows the servers
    /// that were made with it.
    ///
    /// # Errors
    /// The system's.
    pub fn at(path: &Path) -> std::io::Result<Self> {
        let damaged = || std::io::Error::other(format!("{} is no key", path.display()));
        match files::read(path, KEY_BYTES) {
            Ok(bytes) => return Ok(Self(bytes.try_into().map_err(|_| damaged())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let fresh = path.with_extension("new");
        let mut key = [0; KEY_BYTES];
        fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut key))?;
        let mut options = fs::File::options();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(&key)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        Ok(Self(key))
    }

    /// The seal of an instance in a project.
    fn seal(&self, instance: &str, project: &str) -> String {
        // A key of any length will do.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(instance.as_bytes());
        mac.update(&[0]);
        mac.update(project.as_bytes());
        random::hex_of(&mac.finalize().into_bytes())
    }
}

/// VMs of an OpenStack cloud.
#[derive(Debug)]
pub struct OpenStack {
    cloud: Cloud,
    settings: Settings,
    key: Key,
    /// Servers by the instance, and ports by the server, of whoever waits for them.
    servers: Survey<Vec<Server>>,
    ports: Survey<Vec<NetworkPort>>,
}

impl OpenStack {
    /// Servers like that.
    #[must_use]
    pub fn new(cloud: Cloud, settings: Settings, key: Key) -> Self {
        let fresh = settings.look_again / 2;
        let (servers, ports) = (Survey::new(fresh), Survey::new(fresh));
        Self { cloud, settings, key, servers, ports }
    }

    /// Whose a server is, if it is one of this control plane's.
    fn owner<'a>(&self, server: &'a Server) -> Option<&'a str> {
        let instance = server.metadata.get(INSTANCE)?;
        let seal = server.metadata.get(SEAL)?;
        let is_ours = *seal == self.key.seal(instance, &server.tenant_id);
        is_ours.then_some(instance)
    }

    /// All servers of an instance, the oldest first.
    fn all(&self, id: &str) -> Result<Vec<Server>, ApiError> {
        let found = self.of_instances(&[id.to_owned()])?.remove(id);
        Ok(found.unwrap_or_default())
    }

    /// The same of several instances.
    fn of_instances(&self, ids: &[String]) -> Result<BTreeMap<String, Vec<Server>>, ApiError> {
        let tags: Vec<String> = ids.iter().map(|id| tag(id)).collect();
        let mut found: BTreeMap<String, Vec<Server>> = BTreeMap::new();
        for server in self.cloud.servers(&tags)? {
            if let Some(id) = self.owner(&server).map(str::to_owned) {
                found.entry(id).or_default().push(server);
            }
        }
        for servers in found.values_mut() {
            servers.sort_by(|a, b| (&a.created, &a.id).cmp(&(&b.created, &b.id)));
        }
        Ok(found)
    }

    /// The ports of servers.
    fn of_servers(&self, ids: &[String]) -> Result<BTreeMap<String, Vec<NetworkPort>>, Failure> {
        let mut found: BTreeMap<String, Vec<NetworkPort>> = BTreeMap::new();
        for port in self.cloud.ports(ids)? {
            found.entry(port.device_id.clone()).or_default().push(port);
        }
        Ok(found)
    }

    /// The server of an instance that is not there yet, or was a moment ago.
    fn awaited_server(&self, id: &str) -> Result<Option<Server>, Failure> {
        let found = self.servers.of(id, |ids| Ok(self.of_instances(ids)?))?;
        Ok(self.first(id, found.unwrap_or_default())?)
    }

    /// How far a server is; of one in error, why.
    fn state_in_words(&self, server: &Server) -> Result<VmState, ApiError> {
        let state = state_of(server);
        if !matches!(state, VmState::Broken(_)) {
            return Ok(state);
        }
        let why = self.cloud.fault(&server.id)?;
        let why = why.unwrap_or_else(|| "the server is in error".to_owned());
        Ok(VmState::Broken(format!("Nova: {why}")))
    }

    /// The server of an instance.
    fn server(&self, id: &str) -> Result<Option<Server>, ApiError> {
        self.first(id, self.all(id)?)
    }

    /// The first of an instance's servers. Others that were asked for by mistake are removed.
    fn first(&self, id: &str, found: Vec<Server>) -> Result<Option<Server>, ApiError> {
        let mut found = found.into_iter();
        let first = found.next();
        for other in found.filter(|other| !is_going(other)) {
            tracing::warn!(instance = id, server = other.id, "a second server is removed");
            self.cloud.delete_server(&other.id)?;
        }
        Ok(first)
    }

    /// What a VM of a project is made of: what was asked for, if the project may have that, and
    /// what the settings name otherwise. The control plane may use much that a project may not, so
    /// it is asked here and not left to what Nova refuses.
    fn parts(
        &self,
        project: &str,
        machine: &Machine,
        local: Option<u32>,
    ) -> Result<Parts, Failure> {
        let own = &self.settings;
        let image = match &machine.image {
            Some(asked) if *asked != own.image => {
                self.ensure_image(asked, project)?;
                asked.clone()
            }
            _ => own.image.clone(),
        };
        let network = match &machine.network {
            Some(asked) if *asked != own.network => {
                let lent = self.cloud.lends_network(asked, project);
                if !lent.map_err(|error| without_role(project, error))? {
                    let words = format!("Neutron has no network {asked} that {project} may use");
                    return Err(Failure::permanent(words));
                }
                asked.clone()
            }
            _ => own.network.clone(),
        };
        let flavor = self.flavor(machine, local)?;
        Ok(Parts { image, flavor, network })
    }

    /// The id of the flavor. One that was asked for is public. Those with cGPUs are chosen by the
    /// number of local ones and by nothing else, or Placement would count what nobody reserved.
    fn flavor(&self, machine: &Machine, local: Option<u32>) -> Result<String, Failure> {
        let all = self.cloud.flavors()?;
        let name = machine.flavor.as_ref().unwrap_or(&self.settings.flavor);
        let is_own = *name == self.settings.flavor;
        if !is_own && has_cgpus(name) {
            let words = format!("the flavor `{name}` is of local cGPUs: ask for those");
            return Err(Failure::permanent(words));
        }
        if !is_own && !flavor_of(&all, name)?.is_public {
            return Err(no_flavor(name));
        }
        let name = local.map_or_else(|| name.clone(), |cgpus| format!("{name}.cgpu{cgpus}"));
        Ok(flavor_of(&all, &name)?.id.clone())
    }

    /// Refuses an image that a project may not use, or nobody yet; and any where this control plane
    /// administrates. Nova fetches the volumes, snapshots and other images that an image names, in
    /// the name of who asks for the server, and who has an image may have it name others' at any
    /// moment: only without an administrator's rights are those refused.
    fn ensure_image(&self, id: &str, project: &str) -> Result<(), Failure> {
        match self.cloud.image(id)?.filter(|image| image.is_for(project)) {
            Some(image) if image.status == "active" => {}
            Some(image) => {
                let words = format!("the image {id} is {}, not active", image.status);
                return Err(Failure::permanent(words));
            }
            None => {
                let words = format!("Glance has no image {id} that {project} may use");
                return Err(Failure::permanent(words));
            }
        }
        let administrates = self.cloud.administrates(project);
        if administrates.map_err(|error| without_role(project, error))? {
            return Err(Failure::permanent(format!(
                "images may be chosen where the control plane's user has the role member, and in \
                 project {project} it is an administrator"
            )));
        }
        Ok(())
    }

    /// What Nova is to give the VM.
    fn user_data(&self, vm: &VmSpec) -> Result<String, Failure> {
        let user_data = STANDARD.encode(user_data::script(vm, &self.settings.libraries));
        if user_data.len() > USER_DATA_MAX {
            return Err(Failure::permanent(format!(
                "the user-data ({} bytes) has {} bytes in base64 with the grants of {} and what \
                 starts them, and OpenStack takes {USER_DATA_MAX}",
                vm.user_data.len(),
                user_data.len(),
                counted(vm.cgpus, "cGPU")
            )));
        }
        Ok(user_data)
    }

    fn ask_for(&self, vm: &VmSpec) -> Result<(), Failure> {
        let user_data = self.user_data(vm)?;
        let local = vm.host.is_some().then_some(vm.cgpus);
        let Parts { image, flavor, network } = self.parts(&vm.project, &vm.machine, local)?;
        let tags = [TAG.to_owned(), tag(&vm.id)];
        let seal = self.key.seal(&vm.id, &vm.project);
        let mut metadata = vec![(INSTANCE, vm.id.clone()), (SEAL, seal)];
        metadata.extend(vm.machine.network.iter().map(|_| (NETWORK, network.clone())));
        let server = NewServer {
            name: &vm.name,
            image: &image,
            flavor: &flavor,
            network: &network,
            host: vm.host.as_deref(),
            tags: &tags,
            metadata,
            user_data,
        };
        let asked = self.cloud.create_server(&vm.project, &server);
        asked.map_err(|error| without_role(&vm.project, error))
    }
}

/// What a server is made of, as Nova wants it: ids.
struct Parts {
    image: String,
    flavor: String,
    network: String,
}

/// Whether a flavor is one of those by which Nova counts local cGPUs.
fn has_cgpus(name: &str) -> bool {
    let number = name.rsplit_once(".cgpu").map(|(_, number)| number);
    number.is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()))
}

fn flavor_of<'a>(flavors: &'a [Flavor], name: &str) -> Result<&'a Flavor, Failure> {
    flavors.iter().find(|flavor| flavor.name == name).ok_or_else(|| no_flavor(name))
}

/// Nor is one that a project may not choose told from one that is not there.
fn no_flavor(name: &str) -> Failure {
    Failure::permanent(format!("Nova has no flavor `{name}`"))
}

/// Why a project's token was refused.
fn without_role(project: &str, error: ApiError) -> Failure {
    if let ApiError::Refused { status: 401, words, .. } = &error {
        let words = format!("the control plane's user has no role in project {project}: {words}");
        return Failure::permanent(words);
    }
    error.into()
}

fn tag(id: &str) -> String {
    format!("{TAG}-{id}")
}

fn is_going(server: &Server) -> bool {
    server.task.as_deref() == Some("deleting") || is_gone(server)
}

fn is_gone(server: &Server) -> bool {
    ["DELETED", "SOFT_DELETED"].contains(&server.status.as_str())
}

fn state_of(server: &Server) -> VmState {
    if is_going(server) {
        return VmState::Absent;
    }
    match server.status.as_str() {
        "ACTIVE" => VmState::Active,
        "ERROR" => VmState::Broken(String::new()),
        // It is built, or its owner has stopped, paused or resized it.
        _ => VmState::Booting,
    }
}

impl Provisioner for OpenStack {
    fn check(&self) -> Result<String, Failure> {
        let Settings { image, network, flavor, .. } = &self.settings;
        match self.cloud.image(image)? {
            Some(found) if found.status == "active" => {}
            Some(found) => {
                let words = format!("the image {image} is {}, not active", found.status);
                return Err(Failure::permanent(words));
            }
            None => return Err(Failure::permanent(format!("Glance has no image {image}"))),
        }
        if !self.cloud.has_network(network)? {
            return Err(Failure::permanent(format!("Neutron has no network {network}")));
        }
        flavor_of(&self.cloud.flavors()?, flavor)?;
        let servers = self.inventory()?.len();
        Ok(format!("VMs are OpenStack's, {servers} now, each in its own project"))
    }

    fn masked(&self, _slot: u32, number: u32) -> Result<String, Failure> {
        ensure_room(number, "a VM")?;
        Ok(link_local(number))
    }

    fn offers(&self, project: &str, machine: &Machine, local: Option<u32>) -> Result<(), Failure> {
        // The control plane's own was looked at when it began.
        if machine.is_default() { Ok(()) } else { self.parts(project, machine, local).map(drop) }
    }

    fn fits(&self, vm: &VmSpec) -> Result<(), Failure> {
        self.user_data(vm).map(drop)
    }

    fn create(&self, vm: &VmSpec) -> Result<(), Failure> {
        match self.server(&vm.id)? {
            Some(_) => Ok(()),
            None => {
                let asked = self.ask_for(vm);
                self.servers.forget(&vm.id);
                asked
            }
        }
    }

    fn port(&self, id: &str) -> Result<Option<(String, Port)>, Failure> {
        let Some(server) = self.awaited_server(id)? else { return Ok(None) };
        let ports = self.ports.of(&server.id, |servers| self.of_servers(servers))?;
        let network = server.metadata.get(NETWORK).unwrap_or(&self.settings.network);
        let port = ports.unwrap_or_default().into_iter().find(|port| {
            // Anybody may say of a port that it is a server's, and not of one of its project.
            port.tenant_id == server.tenant_id
                && port.network_id == *network
                && port.status == "ACTIVE"
                && !port.host.is_empty()
        });
        let Some(port) = port else { return Ok(None) };
        let is_v4 = |ip: &&str| ip.parse::<std::net::Ipv4Addr>().is_ok();
        let ip = port.fixed_ips.iter().map(|fixed| fixed.ip_address.as_str()).find(is_v4);
        let none = || Failure::permanent("the server's port has no IPv4 address");
        let ip = ip.ok_or_else(none)?.to_owned();
        // What Nova's and Neutron's agents on the host call it.
        let tap = format!("tap{}", port.id.get(..11).unwrap_or(&port.id));
        Ok(Some((port.host, Port { tap, mac: port.mac_address, ip })))
    }

    fn state(&self, id: &str) -> Result<VmState, Failure> {
        match self.server(id)? {
            Some(server) => Ok(self.state_in_words(&server)?),
            None => Ok(VmState::Absent),
        }
    }

    fn awaited(&self, id: &str) -> Result<VmState, Failure> {
        match self.awaited_server(id)? {
            Some(server) => Ok(self.state_in_words(&server)?),
            // A long list may end early; that a server is gone is said by one about it alone.
            None => self.state(id),
        }
    }

    fn terminate(&self, id: &str) -> Result<bool, Failure> {
        let found = self.servers.of(id, |ids| Ok(self.of_instances(ids)?))?.unwrap_or_default();
        for server in found.iter().filter(|server| !is_going(server)) {
            self.cloud.delete_server(&server.id)?;
            self.servers.forget(id);
        }
        // What was seen for others may be from before this one's was made.
        Ok(found.iter().all(is_gone) && self.all(id)?.iter().all(is_gone))
    }

    fn inventory(&self) -> Result<Vec<String>, Failure> {
        let found = self.cloud.servers(&[TAG.to_owned()])?;
        let there = found.iter().filter(|server| !is_going(server));
        let mut ids: Vec<String> =
            there.filter_map(|server| self.owner(server).map(str::to_owned)).collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    fn console(&self, id: &str) -> Result<String, Failure> {
        match self.server(id)? {
            Some(server) => Ok(self.cloud.console(&server.id)?),
            None => Ok(String::new()),
        }
    }

    fn look_again(&self) -> Duration {
        self.settings.look_again
    }

    fn offer(&self, host: &str, cgpus: u32) -> Result<(), Failure> {
        Ok(self.cloud.publish(host, cgpus)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_of_one_instance_in_one_project_by_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seal.key");
        let key = Key::at(&path).unwrap();
        let seal = key.seal("i1", "p1");
        assert_eq!(seal.len(), 64);
        assert_eq!(Key::at(&path).unwrap().seal("i1", "p1"), seal, "the file keeps it");
        let other = Key::at(&folder.path().join("other.key")).unwrap();
        for different in [key.seal("i2", "p1"), key.seal("i1", "p2"), other.seal("i1", "p1")] {
            assert_ne!(different, seal);
        }
        fs::write(&path, "short").unwrap();
        assert!(Key::at(&path).unwrap_err().to_string().contains("is no key"));
    }
}
