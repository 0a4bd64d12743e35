//! Taking a device out of service while the node runs, and putting it back.

use std::thread;
use std::time::{Duration, Instant};

use weft_ring::Loss;

use super::driver::Order;
use super::process::WorkerProcess;
use super::registry::Vgpu;
use super::{Daemon, Tables};

/// Sessions must be over within this time.
const END_LIMIT: Duration = Duration::from_secs(10);

impl Daemon {
    /// Puts a device back into service.
    pub(crate) fn put_into_service(&self, name: &str) -> anyhow::Result<()> {
        let device = self.device_called(name)?;
        self.driver.send(Order::SetService { device, in_service: true });
        self.tables().registry.set_service(name, true);
        Ok(())
    }

    /// Takes a device out of service: no session begins there, those that run end if `force` says
    /// so, and its vGPUs move to devices of the same kind and pool where they have room.
    pub(crate) fn take_out_of_service(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let device = self.device_called(name)?;
        let deadline = Instant::now() + END_LIMIT;
        loop {
            let mut tables = self.tables();
            let here: Vec<u32> = tables.of_device(device).map(|(key, _)| key).collect();
            if !here.is_empty() && !force {
                let running = tables.in_words(tables.of_device(device).map(|(_, entry)| entry));
                anyhow::bail!(
                    "programs run on device `{name}`: {running}; `weft device down {name} --force` \
                     ends them: their calls fail, and they are told why"
                );
            }
            tables.registry.set_service(name, false);
            if here.is_empty() {
                self.driver.send(Order::SetService { device, in_service: false });
                let there = |vgpu: &&Vgpu| vgpu.device == name;
                let vgpus: Vec<Vgpu> = tables.registry.iter().filter(there).cloned().collect();
                for vgpu in vgpus {
                    self.evacuate(&mut tables, &vgpu)?;
                }
                break;
            }
            for (session, entry) in tables.sessions.iter_mut().filter(|(_, e)| e.device == device) {
                entry.ends_at_once = true;
                self.driver.send(Order::EndDrain { session: Some(*session) });
                entry.tell(Loss::DeviceWithdrawn);
                // One that is gone already has been noticed by its thread.
                let _ = entry.worker.as_ref().map(WorkerProcess::kill);
            }
            drop(tables);
            anyhow::ensure!(
                Instant::now() < deadline,
                "the sessions on device `{name}` do not end; it takes no new ones, ask again"
            );
            thread::sleep(Duration::from_millis(2));
        }
        self.keep()
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
