//! Where vGPUs live: the node's devices, which of them are in service, and who goes where.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Holding, Registry, RegistryError, Vgpu};
use crate::config::ByteSize;
use crate::daemon::tasks::is_member;

/// A device as a place for vGPUs.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    /// Its name.
    pub(crate) name: String,
    /// What kind of device it is.
    pub(crate) kind: &'static str,
    /// Its memory.
    pub(crate) memory_bytes: u64,
    /// The pool that it is in.
    pub(crate) pool: Option<String>,
}

impl Home {
    /// Whether it is meant by the name of a device or of a pool, or by none.
    fn is_meant(&self, name: &str) -> bool {
        name.is_empty() || self.name == name || self.pool.as_deref() == Some(name)
    }
}

/// Why a device takes no vGPUs and sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outage {
    /// An administrator said so.
    Withdrawn,
    /// It fails, in words.
    Failed(String),
}

impl Outage {
    /// What is the matter with a device of that name, and what ends it.
    pub(crate) fn in_words(&self, device: &str) -> String {
        match self {
            Self::Withdrawn => {
                format!(
                    "is out of service; an administrator puts it back by `weft device up {device}`"
                )
            }
            Self::Failed(reason) => {
                format!("failed ({reason}) and is out of service until it works again")
            }
        }
    }
}

impl Vgpu {
    /// Whether its sessions may be on that device.
    pub(crate) fn lives_on(&self, device: &str) -> bool {
        let is_end = |moving: &Moving| moving.from == device || moving.to == device;
        self.device == device || self.moving.as_ref().is_some_and(is_end)
    }
}

/// A vGPU's way from a device to another. It lives on the one or the other meanwhile, with sessions
/// on both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moving {
    /// Where it came from.
    pub(crate) from: String,
    /// Where it goes.
    pub(crate) to: String,
}

/// The node's devices.
#[derive(Debug)]
pub(super) struct Homes {
    all: Vec<Home>,
    out_of_service: BTreeMap<String, Outage>,
}

impl Homes {
    pub(super) fn new(all: Vec<Home>) -> Self {
        Self { all, out_of_service: BTreeMap::new() }
    }

    fn in_service(&self) -> impl Iterator<Item = &Home> {
        self.all.iter().filter(|home| !self.out_of_service.contains_key(&home.name))
    }

    fn find(&self, name: &str) -> Option<&Home> {
        self.all.iter().find(|home| home.name == name)
    }
}

impl Registry {
    /// Where a new vGPU of that quota goes, which is to be on the device or in the pool of that
    /// name, or anywhere if it is empty: of the devices in service that have so much memory to the
    /// one whose vGPUs have the least weight together; if none has, to the largest. A name that
    /// nothing in service has is given back.
    pub(crate) fn roomiest<'a>(&'a self, wanted: &'a str, memory_bytes: u64) -> &'a str {
        let meant = || self.devices.in_service().filter(|home| home.is_meant(wanted));
        let large = meant().filter(|home| home.memory_bytes >= memory_bytes);
        let largest = || meant().max_by_key(|home| home.memory_bytes);
        self.lightest(large).or_else(largest).map_or(wanted, |home| home.name.as_str())
    }

    /// Where a vGPU goes whose device is out of service: to another one of the same kind and pool
    /// that has so much memory. That of a virtual accelerator stays: there is one on each device.
    pub(crate) fn refuge_of(&self, vgpu: &Vgpu) -> Option<String> {
        if is_member(&vgpu.name) {
            return None;
        }
        let own = self.devices.find(&vgpu.device)?;
        let fits = |home: &&Home| {
            home.name != own.name
                && (home.kind, &home.pool) == (own.kind, &own.pool)
                && home.memory_bytes >= vgpu.memory_bytes
        };
        let refuge = self.lightest(self.devices.in_service().filter(fits));
        refuge.map(|home| home.name.clone())
    }

    /// The device that a vGPU is to be moved to by that name, a device's or a pool's.
    ///
    /// # Errors
    /// There is none, it is out of service or too small, or the vGPU lives there.
    pub(crate) fn place_for(&self, vgpu: &Vgpu, wanted: &str) -> Result<String, RegistryError> {
        let refused = |why: String| Err(RegistryError::Move(vgpu.name.clone(), why));
        let fits = |home: &&Home| {
            home.is_meant(wanted)
                && home.name != vgpu.device
                && home.memory_bytes >= vgpu.memory_bytes
        };
        if let Some(home) = self.lightest(self.devices.in_service().filter(fits)) {
            return Ok(home.name.clone());
        }
        let is_pool = self.devices.all.iter().any(|home| home.pool.as_deref() == Some(wanted));
        if !is_pool {
            let bytes = self.device_bytes(wanted)?;
            if let Some(outage) = self.outage(wanted) {
                return Err(RegistryError::OutOfService(wanted.to_owned(), outage.clone()));
            }
            if wanted != vgpu.device {
                let (quota, bytes) = (ByteSize(vgpu.memory_bytes), ByteSize(bytes));
                return refused(format!(
                    "device `{wanted}` has {bytes} of memory, and its quota is {quota}; lower that \
                     first (`weft set --memory`) or name another device"
                ));
            }
            return refused(format!("it lives on device `{wanted}` already"));
        }
        refused(format!("no other device of pool `{wanted}` is in service and large enough"))
    }

    /// A vGPU is about to be moved.
    pub(crate) fn begin_move(&mut self, name: &str, to: &str) {
        self.change_vgpu(name, |vgpu| {
            vgpu.moving = Some(Moving { from: vgpu.device.clone(), to: to.to_owned() });
        });
    }

    /// It lives where it goes.
    pub(crate) fn turn_move(&mut self, name: &str) {
        self.change_vgpu(name, |vgpu| {
            if let Some(moving) = &vgpu.moving {
                vgpu.device.clone_from(&moving.to);
            }
        });
    }

    /// It is not on its way any more.
    pub(crate) fn end_move(&mut self, name: &str) {
        self.change_vgpu(name, |vgpu| vgpu.moving = None);
    }

    /// Decides the moves of an earlier daemon: who has a session where it went lives there.
    pub(crate) fn settle_moves(&mut self, has_session: impl Fn(u32, &str) -> bool) {
        let moving = self.by_name.values().filter(|vgpu| vgpu.moving.is_some());
        let names: Vec<String> = moving.map(|vgpu| vgpu.name.clone()).collect();
        for name in names {
            self.change_vgpu(&name, |vgpu| {
                let Some(Moving { from, to }) = vgpu.moving.clone() else { return };
                let has_gone = has_session(vgpu.key, &to);
                if !(has_gone && has_session(vgpu.key, &from)) {
                    vgpu.moving = None;
                }
                vgpu.device = if has_gone { to } else { from };
            });
        }
    }

    fn change_vgpu(&mut self, name: &str, change: impl FnOnce(&mut Vgpu)) {
        if let Some(vgpu) = self.by_name.get_mut(name) {
            change(vgpu);
            self.changed.vgpus.insert(name.to_owned());
        }
    }

    /// The home whose vGPUs have the least weight together.
    fn lightest<'a>(&self, homes: impl Iterator<Item = &'a Home>) -> Option<&'a Home> {
        homes.min_by_key(|home| {
            let lives = |vgpu: &&Vgpu| match &vgpu.moving {
                Some(moving) => moving.to == home.name,
                None => vgpu.device == home.name,
            };
            let there = self.iter().filter(lives);
            there.map(|vgpu| u64::from(vgpu.weight)).sum::<u64>()
        })
    }

    /// The memory of the device of that name, in bytes.
    pub(crate) fn device_bytes(&self, device: &str) -> Result<u64, RegistryError> {
        self.devices.find(device).map(|home| home.memory_bytes).ok_or_else(|| {
            let all = &self.devices.all;
            let names = all.iter().map(|home| home.name.as_str());
            let meant = all.iter().filter(|home| home.is_meant(device));
            let meant: Vec<&str> = meant.map(|home| home.name.as_str()).collect();
            match (device, meant.as_slice()) {
                (_, []) => {}
                ("", _) => return RegistryError::NoneInService(meant.join(", ")),
                (pool, _) => return RegistryError::Pool(pool.to_owned(), meant.join(", ")),
            }
            let pools: BTreeSet<&str> =
                all.iter().filter_map(|home| home.pool.as_deref()).collect();
            let names: Vec<&str> = names.chain(pools).collect();
            RegistryError::Device(device.to_owned(), names.join(", "))
        })
    }

    /// Whether a device, and no pool, has that name.
    pub(crate) fn is_device(&self, name: &str) -> bool {
        self.devices.find(name).is_some()
    }

    /// A vGPU stays where it is, or may be moved to another device of its pool.
    pub(crate) fn pin(&mut self, name: &str, pinned: bool) {
        self.change_vgpu(name, |vgpu| vgpu.pinned = pinned);
    }

    /// Whether the device takes vGPUs and sessions.
    pub(crate) fn is_in_service(&self, device: &str) -> bool {
        self.outage(device).is_none()
    }

    /// Why the device takes no vGPUs and sessions, if it does not.
    pub(crate) fn outage(&self, device: &str) -> Option<&Outage> {
        self.devices.out_of_service.get(device)
    }

    /// Takes a device out of service, or puts it back. A restarted daemon has all in service.
    pub(crate) fn set_outage(&mut self, device: &str, outage: Option<Outage>) {
        let out = &mut self.devices.out_of_service;
        let _before = match outage {
            None => out.remove(device),
            Some(outage) => out.insert(device.to_owned(), outage),
        };
    }

    /// Gives a vGPU without sessions another device. What the scheduling core `counted` for it so
    /// far is kept, because there the vGPU begins anew.
    pub(crate) fn move_vgpu(&mut self, name: &str, device: String, counted: Holding) {
        let Some(vgpu) = self.by_name.get_mut(name) else { return };
        vgpu.held_before = vgpu.held_before.plus(counted);
        vgpu.held_now = Holding::default();
        vgpu.device = device;
        self.changed.vgpus.insert(name.to_owned());
    }
}
