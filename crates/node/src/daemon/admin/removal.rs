//! vGPUs that go, and those that are closed before: their sessions end first.

use std::mem;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use weft_ring::Loss;

use super::{Caller, Daemon, Order, Tables, roles};
use crate::admin::VgpuReport;
use crate::daemon::tasks::ensure_whole;

/// Sessions that are ended must be over within this time.
const END_LIMIT: Duration = Duration::from_secs(10);

impl Daemon {
    /// Removes a vGPU, or an accelerator with its own. With `force` their sessions end before.
    pub(super) fn remove(
        self: &Arc<Self>,
        name: &str,
        force: bool,
        caller: Caller,
    ) -> anyhow::Result<()> {
        match self.remove_accelerator(name, force, caller)? {
            true => Ok(()),
            false => self.remove_vgpu(name, force, caller),
        }
    }

    /// Removes a vGPU of an accelerator that is gone.
    pub(crate) fn remove_member(&self, name: &str) -> anyhow::Result<()> {
        let role = roles::Role::Administrator;
        self.remove_vgpu(name, true, Caller { uid: 0, payer: 0, role })
    }

    pub(super) fn remove_vgpu(
        &self,
        name: &str,
        force: bool,
        caller: Caller,
    ) -> anyhow::Result<()> {
        let mut is_ending = false;
        let removed = self.end_and_remove(name, force, caller, &mut is_ending);
        if is_ending {
            self.tables().give_removal_up(name);
        }
        removed?;
        self.keep()
    }

    /// Closes a vGPU: its sessions end, and it gets no other until it is removed, or this daemon
    /// ends. What it has used is final, and stands in the report.
    pub(super) fn close(&self, name: &str, caller: Caller) -> anyhow::Result<VgpuReport> {
        ensure_whole(name, "remove")?;
        let mut is_ending = false;
        let closed = self.end_and_close(name, caller, &mut is_ending);
        if is_ending {
            self.tables().give_removal_up(name);
        }
        closed?;
        self.vgpu_report(name)
    }

    fn end_and_close(
        &self,
        name: &str,
        caller: Caller,
        is_ending: &mut bool,
    ) -> anyhow::Result<()> {
        let ended = self.end_sessions_of(name, true, caller, is_ending)?;
        let gone = || anyhow::anyhow!("vGPU `{name}` was removed meanwhile");
        let (mut tables, _) = ended.ok_or_else(gone)?;
        if tables.close(name) {
            tracing::info!(vgpu = name, uid = caller.uid, "closed: whoever asked removes it");
        }
        Ok(())
    }

    fn end_and_remove(
        &self,
        name: &str,
        force: bool,
        caller: Caller,
        is_ending: &mut bool,
    ) -> anyhow::Result<()> {
        let ended = self.end_sessions_of(name, force, caller, is_ending)?;
        let Some((mut tables, key)) = ended else { return Ok(()) };
        let vgpu = tables.registry.remove(name)?;
        // The name is free.
        tables.free_name(name);
        *is_ending = false;
        if let Some(device) = self.devices.named(&vgpu.device) {
            tables.frames(device.key).remove_vgpu(key);
        }
        self.tenancy.forget(key);
        // While the tables are locked: the key may be another vGPU's right after.
        self.driver.send(Order::Forget { vgpu: key });
        Ok(())
    }

    /// Waits until a vGPU has no session, which with `force` are ended; the tables with it, and
    /// its key. Nothing if somebody else removed it meanwhile. From when its sessions are ended it
    /// `is_ending` and gets no other, or a short program might come and go on what is as good as
    /// gone; until it is removed, or the caller gives its removal up.
    fn end_sessions_of(
        &self,
        name: &str,
        force: bool,
        caller: Caller,
        is_ending: &mut bool,
    ) -> anyhow::Result<Option<(MutexGuard<'_, Tables>, u32)>> {
        let mut asked = None;
        let deadline = Instant::now() + END_LIMIT;
        let mut tables = self.tables();
        if let (false, Ok(key)) = (force, tables.registry.find(name).map(|vgpu| vgpu.key)) {
            tables = self.await_departed(tables, |entry| entry.vgpu == key);
        }
        loop {
            let vgpu = match tables.registry.find(name) {
                // Somebody else removed it while its sessions ended, and the name is free.
                Err(_) if asked.is_some() => {
                    *is_ending = false;
                    return Ok(None);
                }
                found => found?,
            };
            roles::permit_removal(caller, vgpu)?;
            // Names and keys are free for others as soon as a vGPU is gone.
            let key = vgpu.key;
            anyhow::ensure!(
                *asked.get_or_insert((key, vgpu.owner)) == (key, vgpu.owner),
                "vGPU `{name}` was removed meanwhile, and another has its name; `weft ls` shows \
                 whose it is, ask again to remove that one"
            );
            let Some(first) = tables.sessions.values().find(|entry| entry.vgpu == key) else {
                return Ok(Some((tables, key)));
            };
            anyhow::ensure!(
                force,
                "vGPU `{name}` is in use by {} ({}); `--force` ends its sessions",
                first.program,
                first.whereabouts()
            );
            if !mem::replace(is_ending, true) {
                tables.begin_removal(name);
            }
            self.end_those(&mut tables, Loss::VgpuRemoved, |entry| entry.vgpu == key);
            anyhow::ensure!(
                Instant::now() < deadline,
                "the sessions of vGPU `{name}` do not end; it stays, ask again"
            );
            tables = self.await_end(tables);
        }
    }
}
