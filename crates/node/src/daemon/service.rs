//! Taking a device out of service while the node runs, and putting it back: by an administrator,
//! or because it fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_ring::Loss;
use weft_sched::DeviceKey;

use super::driver::Order;
use super::registry::{Outage, Vgpu};
use super::sessions::Entry;
use super::tasks::is_member;
use super::{Daemon, STACK_BYTES, Tables};

/// Sessions must be over within this time.
const END_LIMIT: Duration = Duration::from_secs(10);

/// vGPUs of one device that move at once. More would share the machine's memory bandwidth, and
/// each would be away for longer.
const MOVES_AT_ONCE: usize = 4;

impl Daemon {
    /// Puts a device back into service.
    pub(crate) fn put_into_service(self: &Arc<Self>, name: &str) -> anyhow::Result<()> {
        let device = self.device_called(name)?;
        // In one step with whoever takes it out.
        let mut tables = self.tables();
        tables.registry.set_outage(name, None);
        self.driver.send(Order::SetService { device, in_service: true });
        self.note_service(device, true);
        Ok(())
    }

    /// Puts a device back that failed, unless an administrator has taken it out meanwhile.
    pub(crate) fn recover(self: &Arc<Self>, name: &str, device: DeviceKey) {
        let mut tables = self.tables();
        if matches!(tables.registry.outage(name), Some(Outage::Failed(_))) {
            tables.registry.set_outage(name, None);
            self.driver.send(Order::SetService { device, in_service: true });
            self.note_service(device, true);
        }
    }

    /// Takes a device out of service for an administrator. Its sessions go to other devices of its
    /// pool where they can; the administrator may `force` the others to end.
    pub(crate) fn take_out_of_service(
        self: &Arc<Self>,
        name: &str,
        force: bool,
    ) -> anyhow::Result<()> {
        let device = self.device_called(name)?;
        let before = self.tables().registry.outage(name).cloned();
        // From now on nobody comes.
        self.tables().registry.set_outage(name, Some(Outage::Withdrawn));
        drop(self.await_departed(self.tables(), |entry| entry.device == device));
        let stay = self.move_away(name);
        if !stay.is_empty() && !force {
            self.tables().registry.set_outage(name, before);
            anyhow::bail!(
                "programs on device `{name}` cannot go to another one: {}; `weft device down {name} \
                 --force` ends them: their calls fail, and they are told why",
                stay.join("; ")
            );
        }
        self.withdraw(name, Outage::Withdrawn, force.then_some(Loss::DeviceWithdrawn))
    }

    /// Takes a device out of service: no session begins there, those that run end and are told
    /// `loss`, and its vGPUs move to devices of the same kind and pool where they have room.
    /// Without a `loss` it is refused while sessions run.
    pub(crate) fn withdraw(
        self: &Arc<Self>,
        name: &str,
        outage: Outage,
        loss: Option<Loss>,
    ) -> anyhow::Result<()> {
        let device = self.device_called(name)?;
        let is_here = |entry: &Entry| entry.device == device;
        let deadline = Instant::now() + END_LIMIT;
        let mut tables = self.tables();
        // What runs tasks runs them elsewhere then.
        let moves = |entry: &Entry| {
            tables.registry.by_key(entry.vgpu).is_some_and(|vgpu| is_member(&vgpu.name))
        };
        let stays = tables.sessions.values().filter(|entry| is_here(entry) && !moves(entry));
        let running = tables.in_words(stays);
        anyhow::ensure!(
            loss.is_some() || running.is_empty(),
            "programs run on device `{name}`: {running}; `weft device down {name} --force` ends \
             them: their calls fail, and they are told why"
        );
        // Whoever took it out decides when it comes back; an administrator's word is the last.
        if outage == Outage::Withdrawn || tables.registry.is_in_service(name) {
            tables.registry.set_outage(name, Some(outage));
        }
        // Before its sessions end: their tasks go to other devices.
        self.note_service(device, false);
        let loss = loss.unwrap_or(Loss::DeviceWithdrawn);
        while self.end_those(&mut tables, loss, is_here) {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the sessions on device `{name}` do not end; it takes no new ones, ask again"
            );
            tables = self.await_end(tables);
            anyhow::ensure!(
                !tables.registry.is_in_service(name),
                "device `{name}` was put back into service meanwhile"
            );
        }
        self.driver.send(Order::SetService { device, in_service: false });
        let there = |vgpu: &&Vgpu| vgpu.device == name;
        let vgpus: Vec<Vgpu> = tables.registry.iter().filter(there).cloned().collect();
        for vgpu in vgpus {
            self.evacuate(&mut tables, &vgpu)?;
        }
        drop(tables);
        self.keep()
    }

    /// Moves the vGPUs of a device that have sessions to others of its kind and pool, a few at
    /// once: one whose kernel does not end for seconds keeps no other one there. Why some stay.
    fn move_away(&self, name: &str) -> Vec<String> {
        let tables = self.tables();
        let in_use = |vgpu: &&Vgpu| {
            let of_it = |entry: &Entry| entry.vgpu == vgpu.key;
            // Tasks go elsewhere without their vGPU.
            let stays = is_member(&vgpu.name);
            vgpu.device == name && !stays && tables.sessions.values().any(of_it)
        };
        let in_use: Vec<Vgpu> = tables.registry.iter().filter(in_use).cloned().collect();
        drop(tables);
        let at_once = in_use.len().min(MOVES_AT_ONCE);
        let (rest, stay) = (Mutex::new(in_use.into_iter()), Mutex::new(Vec::new()));
        let lock = |rest: &Mutex<std::vec::IntoIter<Vgpu>>| {
            rest.lock().unwrap_or_else(PoisonError::into_inner).next()
        };
        let work = || {
            while let Some(vgpu) = lock(&rest) {
                if let Err(why) = self.move_to_refuge(&vgpu) {
                    stay.lock().unwrap_or_else(PoisonError::into_inner).push(why);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..at_once {
                let thread = std::thread::Builder::new().name("move".to_owned());
                if let Err(error) = thread.stack_size(STACK_BYTES).spawn_scoped(scope, work) {
                    tracing::warn!(%error, "fewer vGPUs move at once");
                }
            }
            work();
        });
        let mut stay = stay.into_inner().unwrap_or_else(PoisonError::into_inner);
        stay.sort_unstable();
        stay
    }

    /// Moves a vGPU to another device of the kind and pool of its own; whose programs stay, and
    /// why.
    fn move_to_refuge(&self, vgpu: &Vgpu) -> Result<(), String> {
        // Here and not for all before: those that go to a device count there.
        let refuge = self.tables().registry.refuge_of(vgpu);
        let moved = match refuge {
            Some(refuge) => self.move_vgpu(&vgpu.name, &refuge).map(drop),
            None => Err(anyhow::anyhow!(
                "no other device of its kind and pool is in service and large enough"
            )),
        };
        moved.map_err(|error| {
            let of_it = |entry: &&Entry| entry.vgpu == vgpu.key;
            let tables = self.tables();
            let who = tables.in_words(tables.sessions.values().filter(of_it));
            format!("{who} of vGPU `{}` ({error:#})", vgpu.name)
        })
    }

    /// Gives a vGPU without sessions, whose device is out of service, another one if there is one;
    /// the vGPU as it is then.
    pub(crate) fn evacuate(
        &self,
        tables: &mut Tables,
        vgpu: &Vgpu,
    ) -> anyhow::Result<Option<Vgpu>> {
        let Some(refuge) = tables.registry.refuge_of(vgpu) else { return Ok(None) };
        let counted = self.view()?.holding(vgpu.key);
        if let Some(left) = self.devices.named(&vgpu.device) {
            tables.frames(left.key).remove_vgpu(vgpu.key);
        }
        // While the tables are locked: the next session places it anew.
        self.driver.send(Order::Forget { vgpu: vgpu.key });
        let (name, from) = (&vgpu.name, &vgpu.device);
        tracing::info!(vgpu = name, from, to = refuge, "a vGPU moves from a device out of service");
        tables.registry.move_vgpu(name, refuge, counted);
        Ok(tables.registry.find(name).ok().cloned())
    }
}
