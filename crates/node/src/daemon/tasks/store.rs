//! The virtual accelerators of a node, kept in a file beside the vGPUs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weft_sched::{Class, Weight};

use crate::daemon::registry::replace;

/// The file's format.
const FORMAT: u32 = 1;

/// A virtual accelerator. Its vGPUs, one on each device of the pool, are the registry's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Unique on the node, among vGPUs too.
    pub(crate) name: String,
    /// Dense key in its pool.
    pub(crate) key: u32,
    /// Who may submit.
    pub(crate) owner: u32,
    /// Its pool.
    pub(crate) pool: String,
    /// Share within its class.
    pub(crate) weight: u32,
    /// Memory quota on each device, in bytes.
    pub(crate) memory_bytes: u64,
    /// The SLA of a user-facing one in ns; 0 of a batch one.
    pub(crate) sla_ns: u64,
    /// SHA-256 of the token that programs show, if one is needed.
    #[serde(default)]
    pub(crate) token: Option<[u8; 32]>,
    /// An administrator made it for its owner, or set it, who may have less and no more.
    #[serde(default)]
    pub(crate) is_granted: bool,
}

impl Record {
    /// What it is owed.
    pub(super) fn class(&self) -> Class {
        match self.sla_ns {
            0 => Class::Batch,
            sla_ns => Class::UserFacing { sla_ns },
        }
    }

    /// Its share within its class.
    pub(super) fn weight(&self) -> Weight {
        Weight::new(self.weight).unwrap_or_default()
    }
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    accelerators: Vec<Record>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    by_name: BTreeMap<String, Record>,
}

impl Store {
    /// Those that are kept in `dir`.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join("accelerators.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path, by_name: BTreeMap::new() });
            }
            Err(error) => return Err(error),
        };
        let broken = |what: String| {
            let text = format!("{}: {what}; move the file away to start afresh", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let contents: Contents =
            serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        if contents.format != FORMAT {
            return Err(broken(format!("format {} is not {FORMAT}", contents.format)));
        }
        let all = contents.accelerators.into_iter();
        let by_name = all.map(|record| (record.name.clone(), record)).collect();
        Ok(Self { path, by_name })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.by_name.values()
    }

    pub(super) fn find(&self, name: &str) -> Option<&Record> {
        self.by_name.get(name)
    }

    pub(super) fn by_key(&self, key: u32) -> Option<&Record> {
        self.by_name.values().find(|record| record.key == key)
    }

    /// A key that none has.
    pub(super) fn unused_key(&self) -> u32 {
        (0..).find(|key| self.by_key(*key).is_none()).unwrap_or(u32::MAX)
    }

    /// Adds one, or replaces the one of its name, and saves.
    pub(super) fn add(&mut self, record: Record) -> io::Result<()> {
        self.by_name.insert(record.name.clone(), record);
        self.save()
    }

    /// Removes one, and saves.
    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.by_name.remove(name);
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let accelerators = self.by_name.values().cloned().collect();
        replace(&self.path, &serde_json::to_vec_pretty(&Contents { format: FORMAT, accelerators })?)
    }
}
