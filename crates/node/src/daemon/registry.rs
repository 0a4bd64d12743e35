//! The vGPUs of a node: what they may have, whose they are, and what they used. Kept in a file.

mod holding;
mod homes;
pub(crate) mod token;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::persist::Document;
use crate::config::{ByteSize, NAME_RULE, PPM, SlaSetting, WEIGHTS, is_vgpu_name};

/// The file's format. Raise it when a record's meaning changes; new optional fields need no new
/// one.
const FORMAT: u32 = 1;

/// The file of changes may be so long, in bytes, however short the whole one is.
const LINES_BYTES_MIN: usize = 256 << 10;

/// What an administrator gave of a vGPU to its owner, who may have less and no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    /// Highest weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<u32>,
    /// Largest memory quota, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    /// Highest cap, in millionths of the device's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cap_ppm: Option<u32>,
}

impl Granted {
    /// Whether no administrator has decided anything.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

pub(crate) use self::holding::Holding;
use self::homes::Homes;
pub(crate) use self::homes::{Home, Moving, Outage};

/// One vGPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vgpu {
    /// Unique on the node.
    pub(crate) name: String,
    /// Dense key of the scheduling core and the ledger.
    pub(crate) key: u32,
    /// User who may attach.
    pub(crate) owner: u32,
    /// The device that it lives on.
    #[serde(default)]
    pub(crate) device: String,
    /// It was put there by the device's name, and stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pinned: bool,
    /// Share of the device.
    pub(crate) weight: u32,
    /// Memory quota.
    pub(crate) memory_bytes: u64,
    /// Identity that tenants see.
    pub(crate) uuid: [u8; 16],
    /// SHA-256 of the attach token, if one is needed.
    #[serde(default)]
    pub(crate) token: Option<[u8; 32]>,
    /// What grants of it are signed with, and none of a later one of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seal: Option<[u8; 16]>,
    /// Device time of ended sessions.
    #[serde(default)]
    pub(crate) used_ns: u64,
    /// Sessions over its life.
    #[serde(default)]
    pub(crate) sessions_total: u64,
    /// The most it may use even of an idle device, in millionths of the device's time.
    #[serde(default)]
    pub(crate) cap_ppm: Option<u32>,
    /// The SLA of a user-facing vGPU in ns; 0 of a batch one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) sla_ns: u64,
    /// Sessions whose use is not in `used_ns` yet.
    #[serde(default)]
    pub(crate) open_sessions: Vec<u64>,
    /// What an administrator gave its owner.
    #[serde(default, skip_serializing_if = "Granted::is_empty")]
    pub(crate) granted: Granted,
    /// It is on its way from a device to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moving: Option<Moving>,
    /// What it held under scheduling cores that are gone.
    #[serde(default)]
    pub(crate) held_before: Holding,
    /// What the present scheduling core had counted when this was saved.
    #[serde(default)]
    pub(crate) held_now: Holding,
}

/// A user who owns vGPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    /// The user.
    pub(crate) uid: u32,
    /// Dense key of the scheduling core's tenant, from 1.
    pub(crate) key: u32,
    /// Share of the device, if it was set by hand.
    #[serde(default)]
    pub(crate) weight: Option<u32>,
}

/// What a vGPU that does not exist yet should be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Name.
    pub(crate) name: String,
    /// Owner.
    pub(crate) owner: u32,
    /// The device that it is to live on.
    pub(crate) device: String,
    /// It was asked for by the device's name.
    pub(crate) pinned: bool,
    /// Weight.
    pub(crate) weight: u32,
    /// Memory quota.
    pub(crate) memory_bytes: u64,
    /// Attach token; none if empty.
    pub(crate) token: String,
    /// The most it may use, in millionths of the device's time; no limit if absent.
    pub(crate) cap_ppm: Option<u32>,
    /// The SLA of a user-facing vGPU in ns; 0 of a batch one.
    pub(crate) sla_ns: u64,
}

/// What of a vGPU is to change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Change {
    /// Another weight.
    pub(crate) weight: Option<u32>,
    /// Another memory quota.
    pub(crate) memory_bytes: Option<u64>,
    /// Another cap; [`PPM`] is none.
    pub(crate) cap_ppm: Option<u32>,
    /// Another SLA in ns; 0 makes it batch.
    pub(crate) sla_ns: Option<u64>,
}

/// Why the registry refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    /// The name cannot be one.
    #[error("`{0}` is no vGPU name: {NAME_RULE}")]
    Name(String),
    /// The weight is out of range.
    #[error("weight {0} is out of range; 1 to 10000")]
    Weight(u32),
    /// The quota is out of range.
    #[error(
        "a memory quota of {} is out of range; 4KiB to the device's {}",
        ByteSize(*.0),
        ByteSize(*.1)
    )]
    Memory(u64, u64),
    /// There is no device of that name.
    #[error("there is no device `{0}` on this node; it has {1}")]
    Device(String, String),
    /// None of the devices takes vGPUs now.
    #[error("no device of this node is in service; `weft device up` puts one of {0} back")]
    NoneInService(String),
    /// It is a pool, of which no device takes vGPUs now, or where a device is asked for.
    #[error("`{0}` is a pool: name one of its devices, {1}, if they are in service")]
    Pool(String, String),
    /// It cannot be moved there.
    #[error("vGPU `{0}` cannot be moved: {1}")]
    Move(String, String),
    /// The device takes no vGPUs now.
    #[error("device `{0}` {why}; choose another", why = .1.in_words(.0))]
    OutOfService(String, Outage),
    /// The cap is out of range.
    #[error("a cap of {}% is out of range; 0.0001% to 100%", f64::from(*.0) / 1e4)]
    Cap(u32),
    /// The SLA is out of range.
    #[error("an SLA of {:?} is out of range; 100us to 60min, 0 for none", Duration::from_nanos(*.0))]
    Sla(u64),
    /// There is one of that name.
    #[error("vGPU `{0}` exists already")]
    Exists(String),
    /// There is none of that name.
    #[error("there is no vGPU `{0}`; `weft ls` lists them")]
    Unknown(String),
    /// It is somebody else's.
    #[error("vGPU `{0}` belongs to another user")]
    Owner(String),
    /// The attach token is wrong or missing.
    #[error("vGPU `{0}` needs its attach token (WEFT_TOKEN)")]
    Token(String),
    /// No more fit.
    #[error("the node has its {0} vGPUs (limits.vgpus); remove one with `weft rm`")]
    Full(usize),
    /// The name says that it is somebody else's.
    #[error("`{name}` is the name of user {uid}'s own vGPU; choose another name")]
    Reserved {
        /// The name.
        name: String,
        /// Whose it is.
        uid: u32,
    },
}

/// All vGPUs of a node.
#[derive(Debug)]
pub(crate) struct Registry {
    path: PathBuf,
    by_name: BTreeMap<String, Vgpu>,
    users: BTreeMap<u32, User>,
    /// Number of the next session: none is used twice.
    next_session: u64,
    /// Number of the scheduling core that counts turns.
    core: u64,
    limit: usize,
    /// The node's devices.
    devices: Homes,
    /// Numbers the whole files: lines of another's number say nothing about this one.
    generation: u64,
    /// What changed since the last save.
    changed: Changes,
    /// Bytes of lines since the last whole file, and bytes of that.
    lines_bytes: usize,
    whole_bytes: usize,
}

/// What changed since the last save.
#[derive(Debug, Default)]
struct Changes {
    /// vGPUs, also removed ones, by name.
    vgpus: BTreeSet<String>,
    /// Users.
    users: BTreeSet<u32>,
    /// So much, or so uncertain, that only the whole file tells it.
    all: bool,
}

/// A line of the file that says what changed since the whole one. A vGPU's sessions and what they
/// used stand in one line, so that booking a session and closing it is one write.
#[derive(Serialize, Deserialize)]
struct Line {
    generation: u64,
    next_session: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vgpu: Option<Vgpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<User>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    removed: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    #[serde(default)]
    generation: u64,
    #[serde(default)]
    next_session: u64,
    #[serde(default)]
    core: u64,
    #[serde(default)]
    users: Vec<User>,
    vgpus: Vec<Vgpu>,
}

impl Registry {
    /// Opens the registry kept in `dir`, of a node with these devices.
    /// vGPUs of a time when there was one device get one of them.
    ///
    /// # Errors
    /// When the file is there and cannot be read or understood.
    pub(crate) fn open(dir: &Path, limit: usize, devices: Vec<Home>) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join("vgpus.json");
        let contents = match std::fs::read(&path) {
            Ok(bytes) => parse(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (users, vgpus) = (Vec::new(), Vec::new());
                let generation = 0;
                Contents { format: FORMAT, generation, next_session: 1, core: 0, users, vgpus }
            }
            Err(error) => return Err(error),
        };
        let (next_session, generation) = (contents.next_session.max(1), contents.generation);
        let (by_name, renamed) = by_name(contents.vgpus);
        let users = contents.users.into_iter().map(|user| (user.uid, user)).collect();
        let core = contents.core;
        let mut registry = Self {
            path,
            by_name,
            users,
            next_session,
            core,
            limit,
            devices: Homes::new(devices),
            generation,
            changed: Changes { all: renamed, ..Changes::default() },
            lines_bytes: 0,
            whole_bytes: 0,
        };
        registry.read_lines()?;
        registry.settle_all();
        Ok(registry)
    }

    /// Adds what the lines say that were written after the whole file. One that was not written to
    /// its end says nothing.
    fn read_lines(&mut self) -> io::Result<()> {
        let bytes = match std::fs::read(self.lines_path()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        // The first save tidies up: nothing is added after a line that was cut.
        self.changed.all = true;
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        for line in lines.map_while(|line| serde_json::from_slice::<Line>(line).ok()) {
            if line.generation != self.generation {
                continue;
            }
            self.next_session = self.next_session.max(line.next_session);
            if let Some(vgpu) = line.vgpu {
                self.by_name.insert(vgpu.name.clone(), vgpu);
            }
            if let Some(user) = line.user {
                self.users.insert(user.uid, user);
            }
            if let Some(name) = line.removed {
                self.by_name.remove(&name);
            }
        }
        Ok(())
    }

    /// Gives vGPUs that live nowhere a device.
    fn settle_all(&mut self) {
        let homeless = |vgpu: &&Vgpu| vgpu.device.is_empty();
        let names: Vec<String> =
            self.iter().filter(homeless).map(|vgpu| vgpu.name.clone()).collect();
        for name in names {
            let Some(memory_bytes) = self.by_name.get(&name).map(|vgpu| vgpu.memory_bytes) else {
                continue;
            };
            let device = self.roomiest("", memory_bytes).to_owned();
            if let Some(vgpu) = self.by_name.get_mut(&name) {
                vgpu.device = device;
                self.changed.vgpus.insert(name);
            }
        }
    }

    /// The file of what changed since the whole one.
    fn lines_path(&self) -> PathBuf {
        self.path.with_extension("log")
    }

    /// Whether a tenant that has `of_tenant` vGPUs may have another one by its own doing. Its first
    /// one needs a free place; a further one must leave as many places free as the tenant has then,
    /// so that no tenant fills the node.
    pub(crate) fn has_room_beside(&self, of_tenant: usize) -> bool {
        let free = self.limit.saturating_sub(self.by_name.len());
        free > 0 && (of_tenant == 0 || of_tenant < free)
    }

    /// The user whose tenant has this key in the scheduling core.
    pub(crate) fn user_of_key(&self, key: u32) -> Option<u32> {
        self.users.values().find(|user| user.key == key).map(|user| user.uid)
    }

    /// All vGPUs, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vgpu> {
        self.by_name.values()
    }

    /// The vGPU of that name.
    pub(crate) fn find(&self, name: &str) -> Result<&Vgpu, RegistryError> {
        self.by_name.get(name).ok_or_else(|| RegistryError::Unknown(name.to_owned()))
    }

    /// The vGPU of that key.
    pub(crate) fn by_key(&self, key: u32) -> Option<&Vgpu> {
        self.by_name.values().find(|vgpu| vgpu.key == key)
    }

    /// Creates a vGPU.
    pub(crate) fn create(&mut self, wanted: &Wanted) -> Result<&Vgpu, RegistryError> {
        if !is_vgpu_name(&wanted.name) && !super::tasks::is_member(&wanted.name) {
            return Err(RegistryError::Name(wanted.name.clone()));
        }
        if let Some(uid) = reserved_for(&wanted.name).filter(|uid| *uid != wanted.owner) {
            return Err(RegistryError::Reserved { name: wanted.name.clone(), uid });
        }
        if self.by_name.contains_key(&wanted.name) {
            return Err(RegistryError::Exists(wanted.name.clone()));
        }
        if self.by_name.len() >= self.limit {
            return Err(RegistryError::Full(self.limit));
        }
        self.check_wanted(wanted)?;
        let vgpu = Vgpu {
            name: wanted.name.clone(),
            key: self.unused_key(),
            owner: wanted.owner,
            device: wanted.device.clone(),
            pinned: wanted.pinned,
            weight: wanted.weight,
            memory_bytes: wanted.memory_bytes,
            uuid: uuid_of(&wanted.name),
            token: token::kept(&wanted.token),
            seal: None,
            used_ns: 0,
            sessions_total: 0,
            cap_ppm: wanted.cap_ppm.filter(|ppm| *ppm < PPM),
            sla_ns: wanted.sla_ns,
            open_sessions: Vec::new(),
            granted: Granted::default(),
            moving: None,
            held_before: Holding::default(),
            held_now: Holding::default(),
        };
        self.changed.vgpus.insert(wanted.name.clone());
        Ok(self.by_name.entry(wanted.name.clone()).or_insert(vgpu))
    }

    /// Whether [`set`](Self::set) would do that.
    pub(crate) fn check_change(&self, name: &str, change: &Change) -> Result<(), RegistryError> {
        let vgpu = self.find(name)?;
        let device_bytes = match change.memory_bytes {
            Some(_) => self.device_bytes(&vgpu.device)?,
            None => u64::MAX,
        };
        check(change, device_bytes)
    }

    /// Changes weight, quota, cap and class.
    pub(crate) fn set(&mut self, name: &str, change: &Change) -> Result<&Vgpu, RegistryError> {
        self.check_change(name, change)?;
        self.changed.vgpus.insert(name.to_owned());
        let Some(vgpu) = self.by_name.get_mut(name) else {
            return Err(RegistryError::Unknown(name.to_owned()));
        };
        vgpu.weight = change.weight.unwrap_or(vgpu.weight);
        vgpu.memory_bytes = change.memory_bytes.unwrap_or(vgpu.memory_bytes);
        if let Some(ppm) = change.cap_ppm {
            vgpu.cap_ppm = (ppm < PPM).then_some(ppm);
        }
        vgpu.sla_ns = change.sla_ns.unwrap_or(vgpu.sla_ns);
        Ok(vgpu)
    }

    /// Notes what an administrator gave a vGPU's owner.
    pub(crate) fn grant(&mut self, name: &str, change: &Change) {
        let Some(vgpu) = self.by_name.get_mut(name) else { return };
        let granted = &mut vgpu.granted;
        granted.weight = change.weight.or(granted.weight);
        granted.memory_bytes = change.memory_bytes.or(granted.memory_bytes);
        granted.cap_ppm = match change.cap_ppm {
            Some(PPM) => None,
            Some(ppm) => Some(ppm),
            None => granted.cap_ppm,
        };
        self.changed.vgpus.insert(name.to_owned());
    }

    /// Notes what the present scheduling core has counted of each vGPU.
    pub(crate) fn note_holdings(&mut self, counted: impl Fn(u32) -> Holding) {
        for vgpu in self.by_name.values_mut() {
            let now = vgpu.held_now.later(counted(vgpu.key));
            if now != vgpu.held_now {
                vgpu.held_now = now;
                self.changed.vgpus.insert(vgpu.name.clone());
            }
        }
    }

    /// The scheduling core of a new daemon has counted `counted` of each vGPU, which is nothing
    /// unless it goes on from the earlier one; `before` is what the earlier one had counted when it
    /// was last saved, if it was that of the core numbered [`Self::core`]. Answers the new core's
    /// number.
    pub(crate) fn begin_core(
        &mut self,
        before: impl Fn(u32) -> Holding,
        counted: impl Fn(u32) -> Holding,
    ) -> u64 {
        for vgpu in self.by_name.values_mut() {
            let (last, now) = (vgpu.held_now.later(before(vgpu.key)), counted(vgpu.key));
            vgpu.held_before = vgpu.held_before.plus(last.minus(now));
            vgpu.held_now = now;
        }
        self.core += 1;
        // Only the whole file tells it.
        self.changed.all = true;
        self.core
    }

    /// Number of the scheduling core that counts now: each daemon's has another.
    pub(crate) fn core(&self) -> u64 {
        self.core
    }

    /// A user who owns vGPUs, or will.
    pub(crate) fn user(&mut self, uid: u32) -> User {
        let unused = || (1..).find(|key| self.users.values().all(|user| user.key != *key));
        if let Some(user) = self.users.get(&uid) {
            return *user;
        }
        let user = User { uid, key: unused().unwrap_or(u32::MAX), weight: None };
        self.changed.users.insert(uid);
        self.users.insert(uid, user);
        user
    }

    /// A user's weight, if it was set by hand.
    pub(crate) fn user_weight(&self, uid: u32) -> Option<u32> {
        self.users.get(&uid).and_then(|user| user.weight)
    }

    /// Sets a user's weight by hand.
    pub(crate) fn set_user_weight(&mut self, uid: u32, weight: u32) -> Result<(), RegistryError> {
        check(&Change { weight: Some(weight), ..Change::default() }, u64::MAX)?;
        let user = User { weight: Some(weight), ..self.user(uid) };
        self.changed.users.insert(uid);
        self.users.insert(uid, user);
        Ok(())
    }

    /// Removes a vGPU.
    pub(crate) fn remove(&mut self, name: &str) -> Result<Vgpu, RegistryError> {
        let removed = self.by_name.remove(name);
        if removed.is_some() {
            self.changed.vgpus.insert(name.to_owned());
        }
        removed.ok_or_else(|| RegistryError::Unknown(name.to_owned()))
    }

    /// Whether a user with that token may attach.
    pub(crate) fn admit(&self, name: &str, user: u32, token: &str) -> Result<&Vgpu, RegistryError> {
        let vgpu = self.find(name)?;
        if vgpu.owner != user {
            return Err(RegistryError::Owner(name.to_owned()));
        }
        match token::opens(vgpu.token.as_ref(), token) {
            true => Ok(vgpu),
            false => Err(RegistryError::Token(name.to_owned())),
        }
    }

    /// A session of a vGPU begins; its number.
    pub(crate) fn open_session(&mut self, key: u32) -> u64 {
        let session = self.next_session;
        self.note_session(key, session);
        session
    }

    /// A session of a vGPU goes on.
    pub(crate) fn note_session(&mut self, key: u32, session: u64) {
        self.next_session = self.next_session.max(session.saturating_add(1));
        let Some(vgpu) = self.by_name.values_mut().find(|vgpu| vgpu.key == key) else { return };
        if !vgpu.open_sessions.contains(&session) {
            vgpu.open_sessions.push(session);
            vgpu.sessions_total += 1;
            self.changed.vgpus.insert(vgpu.name.clone());
        }
    }

    /// A session ended after using `used_ns` of device time. Counted once, however often it is
    /// said.
    pub(crate) fn close_session(&mut self, key: u32, session: u64, used_ns: u64) {
        let Some(vgpu) = self.by_name.values_mut().find(|vgpu| vgpu.key == key) else { return };
        let Some(place) = vgpu.open_sessions.iter().position(|open| *open == session) else {
            return;
        };
        vgpu.open_sessions.swap_remove(place);
        vgpu.used_ns = vgpu.used_ns.saturating_add(used_ns);
        self.changed.vgpus.insert(vgpu.name.clone());
    }

    /// Sessions that were not closed: vGPU's key, session.
    pub(crate) fn open_sessions(&self) -> Vec<(u32, u64)> {
        let of = |vgpu: &Vgpu| -> Vec<(u32, u64)> {
            vgpu.open_sessions.iter().map(|session| (vgpu.key, *session)).collect()
        };
        self.by_name.values().flat_map(of).collect()
    }

    /// What is to be written, if anything changed since this was last asked: what changed, or
    /// everything when that would make the file of changes longer than it is worth.
    pub(crate) fn unsaved(&mut self) -> io::Result<Option<Document>> {
        let changed = std::mem::take(&mut self.changed);
        if !changed.all && changed.vgpus.is_empty() && changed.users.is_empty() {
            return Ok(None);
        }
        let is_worth_it = self.lines_bytes < LINES_BYTES_MIN.max(2 * self.whole_bytes);
        let document = if !changed.all && is_worth_it && self.whole_bytes > 0 {
            self.lines(&changed)
        } else {
            self.whole()
        };
        if document.is_err() {
            self.mark_unsaved();
        }
        document.map(Some)
    }

    fn whole(&mut self) -> io::Result<Document> {
        self.generation += 1;
        let vgpus = self.by_name.values().cloned().collect();
        let users = self.users.values().copied().collect();
        let (generation, next_session, core) = (self.generation, self.next_session, self.core);
        let contents = Contents { format: FORMAT, generation, next_session, core, users, vgpus };
        let bytes = serde_json::to_vec_pretty(&contents)?;
        (self.lines_bytes, self.whole_bytes) = (0, bytes.len());
        Ok(Document::Whole { path: self.path.clone(), bytes, obsolete: self.lines_path() })
    }

    fn lines(&mut self, changed: &Changes) -> io::Result<Document> {
        let mut bytes = Vec::new();
        let line = || Line {
            generation: self.generation,
            next_session: self.next_session,
            vgpu: None,
            user: None,
            removed: None,
        };
        let users =
            changed.users.iter().map(|uid| Line { user: self.users.get(uid).copied(), ..line() });
        let vgpus = changed.vgpus.iter().map(|name| match self.by_name.get(name) {
            Some(vgpu) => Line { vgpu: Some(vgpu.clone()), ..line() },
            None => Line { removed: Some(name.clone()), ..line() },
        });
        for line in users.chain(vgpus) {
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
        }
        self.lines_bytes += bytes.len();
        Ok(Document::Lines { path: self.lines_path(), bytes })
    }

    /// The last document was not written after all, or not to its end.
    pub(crate) fn mark_unsaved(&mut self) {
        self.changed.all = true;
    }

    /// Whether anybody could have that.
    pub(crate) fn check_wanted(&self, wanted: &Wanted) -> Result<(), RegistryError> {
        let change = Change {
            weight: Some(wanted.weight),
            memory_bytes: Some(wanted.memory_bytes),
            cap_ppm: wanted.cap_ppm,
            sla_ns: Some(wanted.sla_ns),
        };
        let device_bytes = self.device_bytes(&wanted.device)?;
        if let Some(outage) = self.outage(&wanted.device) {
            return Err(RegistryError::OutOfService(wanted.device.clone(), outage.clone()));
        }
        check(&change, device_bytes)
    }

    fn unused_key(&self) -> u32 {
        let mut keys: Vec<u32> = self.by_name.values().map(|vgpu| vgpu.key).collect();
        keys.sort_unstable();
        (0..)
            .zip(&keys)
            .find(|(want, key)| want != *key)
            .map_or_else(|| u32::try_from(keys.len()).unwrap_or(u32::MAX), |(want, _)| want)
    }
}

/// Writes `bytes` to a file beside `path`, forces it to disk and renames it over `path`: a crash
/// leaves the old file or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    // Attach tokens are in it, if only their digests.
    let mut options = File::options();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

fn parse(path: &Path, bytes: &[u8]) -> io::Result<Contents> {
    let broken = |what: String| {
        let text = format!("{}: {what}; move the file away to start afresh", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    let document: Contents = serde_json::from_slice(bytes).map_err(|e| broken(e.to_string()))?;
    if document.format != FORMAT {
        return Err(broken(format!("format {} is not {FORMAT}", document.format)));
    }
    Ok(document)
}

/// The name of a user's own vGPU, which a program gets that asks for none.
pub(crate) fn name_of_user(uid: u32) -> String {
    format!("user-{uid}")
}

/// Whether a vGPU on a device with so much memory may have that.
fn check(change: &Change, device_bytes: u64) -> Result<(), RegistryError> {
    if let Some(weight) = change.weight.filter(|weight| !WEIGHTS.contains(weight)) {
        return Err(RegistryError::Weight(weight));
    }
    if let Some(ppm) = change.cap_ppm.filter(|ppm| !(1..=PPM).contains(ppm)) {
        return Err(RegistryError::Cap(ppm));
    }
    if let Some(sla_ns) = change.sla_ns.filter(|ns| !SlaSetting(*ns).is_valid()) {
        return Err(RegistryError::Sla(sla_ns));
    }
    match change.memory_bytes.filter(|bytes| !(4096..=device_bytes).contains(bytes)) {
        Some(bytes) => Err(RegistryError::Memory(bytes, device_bytes)),
        None => Ok(()),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The user whose own vGPU has that name.
fn reserved_for(name: &str) -> Option<u32> {
    let uid = name.strip_prefix("user-")?.parse().ok()?;
    (name_of_user(uid) == name).then_some(uid)
}

/// The vGPUs by name, and whether any was renamed: a file may hold a vGPU with the name of another
/// user's own.
fn by_name(vgpus: Vec<Vgpu>) -> (BTreeMap<String, Vgpu>, bool) {
    let taken: Vec<String> = vgpus.iter().map(|vgpu| vgpu.name.clone()).collect();
    let mut renamed = false;
    let place = |mut vgpu: Vgpu| {
        if reserved_for(&vgpu.name).is_some_and(|uid| uid != vgpu.owner) {
            let (name, owner) = (vgpu.name.clone(), vgpu.owner);
            let unused = |number: &u32| format!("{name}.{owner}.{number}");
            let number = (1..).find(|number| !taken.contains(&unused(number))).unwrap_or(0);
            vgpu.name = unused(&number);
            tracing::warn!(name, owner, now = vgpu.name, "a vGPU had another user's name");
            renamed = true;
        }
        (vgpu.name.clone(), vgpu)
    };
    let by_name = vgpus.into_iter().map(place).collect();
    (by_name, renamed)
}

/// The name's digest, marked as a UUID of version 8 (vendor's own).
fn uuid_of(name: &str) -> [u8; 16] {
    let digest = token::digest(&format!("weft vGPU {name}"));
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests;
