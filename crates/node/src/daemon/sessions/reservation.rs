//! What a session needs before its worker starts: a vGPU, a device, and room for both.

use weft_api::node::Elsewhere;
use weft_ring::peer;
use weft_sched::DeviceKey;
use weft_wire::handshake::{HelloBody, RefusalCode};

use super::{Entry, Refusal, is_relayed, program_name};
use crate::config::{Choice, LimitError, UserLimits};
use crate::daemon::devices::Device;
use crate::daemon::registry::{self, RegistryError, Vgpu, Wanted};
use crate::daemon::{Daemon, Tables, tenancy};

/// What a user asks for a vGPU of its own; 0 where it leaves that to the node.
pub(crate) struct Asked<'a> {
    /// Its name.
    pub(crate) name: String,
    /// The device that it is to live on; empty for wherever there is room.
    pub(crate) device: &'a str,
    /// Weight.
    pub(crate) weight: u32,
    /// Memory quota, in bytes.
    pub(crate) memory_bytes: u64,
    /// Attach token; none if empty.
    pub(crate) token: &'a str,
    /// vGPUs of the same weight that are to come along with it.
    pub(crate) siblings: usize,
}

/// A reservation in the tables, taken before the worker starts.
#[derive(Debug, Clone)]
pub(crate) struct Reservation {
    pub(super) key: u32,
    pub(super) id: u64,
    pub(super) vgpu: Vgpu,
    pub(super) device: DeviceKey,
    pub(super) payer: u32,
    /// The vGPU was created for this session.
    pub(super) is_new: bool,
}

/// The name of the vGPU that a program asks for; the user's own if it does not say.
pub(crate) fn name_asked(hello: &HelloBody, uid: u32) -> String {
    match hello.vgpu.as_str() {
        "" => registry::name_of_user(uid),
        name => name.to_owned(),
    }
}

impl Daemon {
    /// Takes a place in the tables, for as long as the session lasts. The vGPU of a program that is
    /// elsewhere was granted to somebody who is no user here.
    pub(crate) fn reserve_session(
        &self,
        hello: &HelloBody,
        tenant: &peer::Credentials,
        elsewhere: Option<Elsewhere>,
    ) -> Result<Reservation, Refusal> {
        let is_lent = elsewhere.is_some();
        let mut tables = self.tables();
        let name = name_asked(hello, tenant.uid);
        if tables.is_being_removed(&name) {
            let message = format!(
                "vGPU `{name}` is being removed, and its programs are ended; if it stays (`weft \
                 ls`), have it removed with `weft rm {name}`, or make another one"
            );
            return Err(Refusal { code: RefusalCode::Permission, message });
        }
        let payer = self.payer_of(&tables, &name, tenant, elsewhere.as_ref());
        let lent = tables.registry.find(&name).ok().filter(|_| is_lent).map(|vgpu| vgpu.key);
        self.check_room(&mut tables, tenant.uid, payer, lent)?;
        let (vgpu, is_new) = self.find_or_create(&mut tables, name, hello, tenant, payer)?;
        let vgpu = self.in_service(&mut tables, vgpu)?;
        let device = self.home_of(&vgpu)?.key;
        let key = (0..).find(|key| !tables.sessions.contains_key(key)).unwrap_or(0);
        tables.host.begin(key, payer, is_lent.then_some(vgpu.key));
        self.tenancy.settle(vgpu.key, payer);
        let limits = self.tenant_limits(tenant.uid, payer);
        let id = tables.registry.open_session(vgpu.key);
        let frames = tables.frames(device);
        frames.set_quota(vgpu.key, vgpu.memory_bytes);
        frames.set_owner(vgpu.key, payer, limits.memory_total_bytes);
        frames.add_session(key, id, vgpu.key);
        let entry = Entry {
            vgpu: vgpu.key,
            device,
            uid: tenant.uid,
            payer,
            pid: tenant.pid.unwrap_or(0),
            elsewhere,
            program: program_name(&hello.program),
            worker: None,
            segment: None,
            region: None,
            ends_at_once: false,
        };
        tables.sessions.insert(key, entry);
        // The parts of the others shrink before it has one.
        self.place_capped(&mut tables, payer);
        self.place(&mut tables, &vgpu);
        Ok(Reservation { key, id, vgpu, device, payer, is_new })
    }

    /// The vGPU on a device that is in service: its own, or another.
    fn in_service(&self, tables: &mut Tables, vgpu: Vgpu) -> Result<Vgpu, Refusal> {
        let Some(outage) = tables.registry.outage(&vgpu.device).cloned() else {
            return Ok(vgpu);
        };
        let moved = self.evacuate(tables, &vgpu).ok().flatten();
        moved.ok_or_else(|| {
            let Vgpu { name, device, .. } = vgpu;
            let why = outage.in_words(&device);
            let message = format!(
                "vGPU `{name}` lives on device `{device}`, and no other of its kind and pool has \
                 room for it; the device {why}"
            );
            Refusal { code: RefusalCode::Exhausted, message }
        })
    }

    /// The device that a vGPU lives on.
    fn home_of(&self, vgpu: &Vgpu) -> Result<&Device, Refusal> {
        self.devices.named(&vgpu.device).ok_or_else(|| {
            let Vgpu { name, device, .. } = vgpu;
            if let Some(reason) = self.devices.why_absent(device) {
                let message = format!(
                    "vGPU `{name}` lives on device `{device}`, which was not usable when the node \
                     started: {reason}; its administrator may mend that and start the node again"
                );
                return Refusal { code: RefusalCode::Exhausted, message };
            }
            let message = format!(
                "vGPU `{name}` lives on device `{device}`, which this node does not have now; \
                 configure the device again, or remove the vGPU (`weft rm {name}`)"
            );
            Refusal { code: RefusalCode::Exhausted, message }
        })
    }

    /// The user whose tenant pays for a session that a program asks for on the vGPU of that name:
    /// the tenant of the vGPU, or the one that its first session makes it of.
    fn payer_of(
        &self,
        tables: &Tables,
        name: &str,
        tenant: &peer::Credentials,
        elsewhere: Option<&Elsewhere>,
    ) -> u32 {
        let own = tables.registry.find(name).ok().filter(|vgpu| vgpu.owner == tenant.uid);
        let settled = own.and_then(|vgpu| self.tenancy.settled(vgpu.key));
        settled.unwrap_or_else(|| match is_relayed(elsewhere) {
            true => self.tenancy.of_user(tenant.uid),
            false => self.tenancy.of_process(tenant.uid, tenant.pid.unwrap_or(0)),
        })
    }

    /// Whether a user of the tenant of `payer` may have another session. A further one of the
    /// tenant must leave as many places free as the tenant has, unless it is the administrators'.
    fn check_room(
        &self,
        tables: &mut Tables,
        uid: u32,
        payer: u32,
        lent: Option<u32>,
    ) -> Result<(), Refusal> {
        let exhausted = |message| Err(Refusal { code: RefusalCode::Exhausted, message });
        let configured = self.config.limits.sessions;
        let room = configured.min(self.room.sessions);
        let of_tenant = tables.sessions.values().filter(|entry| entry.payer == payer).count();
        let who = || tenancy::in_words(payer, uid);
        let free = room.saturating_sub(tables.sessions.len());
        if free == 0 {
            let why = self.room.bound_by(configured);
            return exhausted(format!("the node has its {room} sessions ({why})"));
        }
        let limits = self.tenant_limits(uid, payer);
        let limit = limits.sessions;
        if of_tenant >= limit {
            let why = "limits.sessions_per_user, limits.users.*.sessions";
            return exhausted(format!("{} has its {limit} sessions ({why})", who()));
        }
        if of_tenant >= free && of_tenant > 0 && !self.config.is_own_user(payer) {
            return exhausted(format!(
                "{} has {of_tenant} sessions, and the {free} places that are left of {room} are \
                 for others",
                who()
            ));
        }
        let of_vgpu = |vgpu| tables.sessions.values().filter(|one| one.vgpu == vgpu).count();
        if let Some(own) = lent.map(of_vgpu).filter(|own| *own > 0 && *own >= free) {
            return exhausted(format!(
                "this vGPU has {own} sessions, and the {free} places that are left of {room} are \
                 for others"
            ));
        }
        // Before anything is created for it.
        let limit = limits.host_memory_bytes;
        let checked = tables.find_host_room(|host| host.check_room(payer, lent, limit));
        checked.or_else(|error| exhausted(error.to_string()))
    }

    /// What a user may have: what the user may whose tenant it belongs to, with all of that tenant.
    pub(crate) fn tenant_limits(&self, uid: u32, payer: u32) -> UserLimits {
        UserLimits { uid, ..self.config.limits_of(payer, self.config.is_own_user(payer)) }
    }

    /// The vGPUs that count for the tenant of `payer`.
    pub(crate) fn vgpus_of<'a>(
        &'a self,
        tables: &'a Tables,
        payer: u32,
    ) -> impl Iterator<Item = &'a Vgpu> {
        let counts = move |vgpu: &&Vgpu| self.tenancy.counts_for(payer, vgpu.key, vgpu.owner);
        tables.registry.iter().filter(counts)
    }

    fn find_or_create(
        &self,
        tables: &mut Tables,
        name: String,
        hello: &HelloBody,
        tenant: &peer::Credentials,
        payer: u32,
    ) -> Result<(Vgpu, bool), Refusal> {
        match tables.registry.admit(&name, tenant.uid, &hello.token) {
            Ok(vgpu) => return Ok((vgpu.clone(), false)),
            Err(RegistryError::Unknown(_)) => {}
            Err(error) => return Err(refusal(&error)),
        }
        let (weight, memory_bytes) = (hello.weight, hello.memory_bytes);
        let token = &hello.token;
        let asked = Asked { name, device: "", weight, memory_bytes, token, siblings: 0 };
        let wanted = self.wanted(tables, asked, tenant.uid, payer)?;
        let created = tables.registry.create(&wanted).cloned();
        created.map(|vgpu| (vgpu, true)).map_err(|error| refusal(&error))
    }

    /// The vGPU that a user of the tenant of `payer` asks for, if it may have it.
    pub(crate) fn wanted(
        &self,
        tables: &Tables,
        asked: Asked<'_>,
        owner: u32,
        payer: u32,
    ) -> Result<Wanted, Refusal> {
        let limits = self.tenant_limits(owner, payer);
        let denied = |error: LimitError| Refusal {
            code: RefusalCode::Permission,
            message: error.to_string(),
        };
        if !limits.create {
            return Err(denied(LimitError::Create(owner)));
        }
        let exhausted = |message| Err(Refusal { code: RefusalCode::Exhausted, message });
        let who = || tenancy::in_words(payer, owner);
        let of_tenant = self.vgpus_of(tables, payer).count().saturating_add(asked.siblings);
        let limit = limits.vgpus;
        if of_tenant >= limit {
            return exhausted(format!(
                "{} has its {limit} vGPUs (limits.vgpus_per_user, limits.users.*.vgpus); attach to \
                 one of them (WEFT_VGPU) or have one removed with `weft rm`",
                who()
            ));
        }
        if !self.config.is_own_user(payer) && !tables.registry.has_room_beside(of_tenant) {
            return exhausted(format!(
                "the places that are left of the node's {} vGPUs (limits.vgpus) are for users who \
                 have fewer than {}; attach to one of yours (WEFT_VGPU)",
                self.config.limits.vgpus,
                who()
            ));
        }
        let weight = match asked.weight {
            0 => self.config.defaults.weight.min(limits.weight),
            weight => weight,
        };
        let (device, memory_bytes) = self.choose_device(tables, asked.device, asked.memory_bytes);
        let memory_bytes = match asked.memory_bytes {
            0 => memory_bytes.min(limits.memory_bytes),
            bytes => bytes,
        };
        let (name, token) = (asked.name, asked.token.to_owned());
        let wanted =
            Wanted { name, owner, device, weight, memory_bytes, token, ..Wanted::default() };
        // What nobody may have is refused as that.
        tables.registry.check_wanted(&wanted).map_err(|error| refusal(&error))?;
        let others = self.vgpus_of(tables, payer);
        let others_weight: u64 = others.map(|vgpu| u64::from(vgpu.weight)).sum();
        let of_siblings = u64::from(weight).saturating_mul(asked.siblings as u64);
        let others_weight = others_weight.saturating_add(of_siblings);
        let (weight, memory_bytes) = (Some(weight), Some(memory_bytes));
        limits.check(&Choice { weight, memory_bytes, others_weight }).map_err(denied)?;
        Ok(wanted)
    }

    /// The device for a vGPU whose owner asks for that one, for one of that pool, or for none, and
    /// its quota there: what is asked for, or the node's default for 0.
    pub(crate) fn choose_device(
        &self,
        tables: &Tables,
        device: &str,
        memory_bytes: u64,
    ) -> (String, u64) {
        let default_bytes = self.config.defaults.memory.map_or(0, |memory| memory.0);
        let wanted_bytes = if memory_bytes == 0 { default_bytes } else { memory_bytes };
        let device = tables.registry.roomiest(device, wanted_bytes);
        let memory_bytes = match memory_bytes {
            // One that is not there is refused as such.
            0 => {
                self.config.default_memory_bytes(tables.registry.device_bytes(device).unwrap_or(0))
            }
            bytes => bytes,
        };
        (device.to_owned(), memory_bytes)
    }
}

/// How a tenant is told why it has no vGPU.
pub(crate) fn refusal(error: &RegistryError) -> Refusal {
    let code = match error {
        RegistryError::Owner(_) | RegistryError::Token(_) | RegistryError::Reserved { .. } => {
            RefusalCode::Permission
        }
        RegistryError::Full(_)
        | RegistryError::OutOfService(..)
        | RegistryError::NoneInService(_)
        | RegistryError::Pool(..) => RefusalCode::Exhausted,
        RegistryError::Name(_)
        | RegistryError::Device(..)
        | RegistryError::Weight(_)
        | RegistryError::Cap(_)
        | RegistryError::Move(..)
        | RegistryError::Sla(_)
        | RegistryError::Memory(..)
        | RegistryError::Exists(_)
        | RegistryError::Unknown(_) => RefusalCode::Malformed,
    };
    Refusal { code, message: error.to_string() }
}
