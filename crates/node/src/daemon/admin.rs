//! The admin socket's server: one thread per connection, one line per request.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use weft_ring::peer;
use weft_sched::{Weight, policy};
use weft_wire::handshake::PROTOCOL_VERSION;

use super::Daemon;
use super::driver::{Order, View};
use super::registry::{Change, Vgpu, Wanted};
use super::sessions::Entry;
use crate::admin::{
    Answer, Closure, NodeReport, Request, Stats, Timeline, Turn, VgpuReport, VgpuState,
};
use crate::config::ShareConfig;

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// A silent connection is closed after this time.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

/// Removed sessions must be over within this time.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// Serves one connection.
pub(crate) fn serve(daemon: &Arc<Daemon>, socket: OwnedFd) {
    if let Err(error) = converse(daemon, UnixStream::from(socket)) {
        tracing::debug!(%error, "admin connection ended");
    }
}

fn converse(daemon: &Arc<Daemon>, stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_LIMIT))?;
    stream.set_write_timeout(Some(SILENCE_LIMIT))?;
    let caller = peer::credentials(&stream)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        (&mut reader).take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let request = serde_json::from_slice::<Request>(&line);
        let ends = matches!(request, Ok(Request::Shutdown));
        let answer = match request {
            Ok(request) => daemon.answer_admin(request, caller.uid),
            Err(error) => refused(format!("the request is not understood: {error}")),
        };
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        let written = reader.get_mut().write_all(&bytes);
        if ends {
            // Whoever asked has the answer before this process is gone.
            daemon.stop();
        }
        written?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
    }
}

fn refused(message: String) -> Answer {
    Answer::Error { message }
}

impl Daemon {
    fn answer_admin(&self, request: Request, caller: u32) -> Answer {
        match self.act(request, caller) {
            Ok(answer) => answer,
            Err(error) => refused(format!("{error:#}")),
        }
    }

    fn act(&self, request: Request, caller: u32) -> anyhow::Result<Answer> {
        Ok(match request {
            Request::Node => Answer::Node(self.node_report()?),
            Request::List => Answer::Vgpus(self.stats()?.vgpus),
            Request::Create { name, weight, memory_bytes, owner, token, cap_ppm } => {
                let wanted = Wanted {
                    name,
                    owner: owner.unwrap_or(caller),
                    weight: weight.unwrap_or(self.config.defaults.weight),
                    memory_bytes: memory_bytes
                        .unwrap_or_else(|| self.config.default_memory_bytes()),
                    token: token.unwrap_or_default(),
                    cap_ppm,
                };
                let name = self.core().registry.create(&wanted)?.name.clone();
                self.keep()?;
                Answer::Vgpu(self.vgpu_report(&name)?)
            }
            Request::Set { name, weight, memory_bytes, cap_ppm } => {
                self.set_vgpu(&name, &Change { weight, memory_bytes, cap_ppm })?;
                Answer::Vgpu(self.vgpu_report(&name)?)
            }
            Request::SetTenant { uid, weight } => {
                self.set_tenant(uid, weight)?;
                Answer::Done
            }
            Request::SetSession { pid, weight } => {
                self.set_session(pid, Weight::new(weight)?)?;
                Answer::Done
            }
            Request::Remove { name, force } => {
                self.remove_vgpu(&name, force)?;
                Answer::Done
            }
            Request::Stats => Answer::Stats(self.stats()?),
            Request::Timeline { since_ns } => Answer::Timeline(self.timeline(since_ns)?),
            Request::Record { seconds } => Answer::Recording(self.record(seconds)?),
            Request::Policy { set } => {
                if let Some(name) = set {
                    self.driver.send(Order::SetPolicy(policy::for_node(&name)?));
                }
                Answer::Node(self.node_report()?)
            }
            Request::Doctor => Answer::Doctor(self.doctor()?),
            Request::Metrics => Answer::Metrics(crate::metrics::text(&self.stats()?)),
            Request::Shutdown => Answer::Done,
        })
    }

    /// Saves what was changed.
    fn keep(&self) -> anyhow::Result<()> {
        let saving = self.begin_saving();
        self.saved(&saving).map_err(|why| {
            anyhow::anyhow!(
                "it is so until the daemon ends, but could not be saved: {why}; make room there, \
                 and the next change saves this one too"
            )
        })
    }

    fn set_vgpu(&self, name: &str, change: &Change) -> anyhow::Result<()> {
        {
            let mut core = self.core();
            let vgpu = core.registry.set(name, change)?.clone();
            core.frames.set_quota(vgpu.key, vgpu.memory_bytes);
            self.place(&mut core, &vgpu);
        }
        self.keep()?;
        Ok(())
    }

    fn set_tenant(&self, uid: u32, weight: u32) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.config.scheduling.share == ShareConfig::User,
            "users have no parts of their own on this node: scheduling.share is `vgpu`"
        );
        {
            let mut core = self.core();
            core.registry.set_user_weight(uid, weight)?;
            // One vGPU of the user tells the driver of the tenant.
            let vgpu = core.registry.iter().find(|vgpu| vgpu.owner == uid).cloned();
            if let Some(vgpu) = vgpu {
                self.place(&mut core, &vgpu);
            }
        }
        self.keep()?;
        Ok(())
    }

    fn set_session(&self, pid: u32, weight: Weight) -> anyhow::Result<()> {
        let core = self.core();
        let sessions: Vec<u32> = core
            .sessions
            .iter()
            .filter(|(_, entry)| entry.pid == pid)
            .map(|(key, _)| *key)
            .collect();
        anyhow::ensure!(!sessions.is_empty(), "process {pid} has no session on this node");
        for session in sessions {
            self.driver.send(Order::WeighSession { session, weight });
        }
        Ok(())
    }

    fn remove_vgpu(&self, name: &str, force: bool) -> anyhow::Result<()> {
        let key = self.core().registry.find(name)?.key;
        let deadline = std::time::Instant::now() + REMOVE_LIMIT;
        loop {
            let mut core = self.core();
            let mut of_vgpu = core.sessions.values_mut().filter(|entry| entry.vgpu == key);
            let Some(first) = of_vgpu.next() else {
                core.registry.remove(name)?;
                core.frames.remove_vgpu(key);
                // While the tables are locked: the key may be another vGPU's right after.
                self.driver.send(Order::Forget { vgpu: key });
                break;
            };
            anyhow::ensure!(
                force,
                "vGPU `{name}` is in use by {} (process {}); `--force` ends its sessions",
                first.program,
                first.pid
            );
            for worker in std::iter::once(first).chain(of_vgpu).filter_map(|e| e.worker.as_ref()) {
                // One that is gone already has been noticed by its thread.
                let _ = worker.kill();
            }
            drop(core);
            anyhow::ensure!(std::time::Instant::now() < deadline, "its sessions do not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.keep()
    }

    fn vgpu_report(&self, name: &str) -> anyhow::Result<VgpuReport> {
        let vgpus = self.stats()?.vgpus;
        let found = vgpus.into_iter().find(|vgpu| vgpu.name == name);
        found.ok_or_else(|| anyhow::anyhow!("vGPU `{name}` was removed meanwhile"))
    }

    fn view(&self) -> anyhow::Result<View> {
        self.driver.ask(Order::View).ok_or_else(|| anyhow::anyhow!("the daemon is ending"))
    }

    fn node_report(&self) -> anyhow::Result<NodeReport> {
        let view = self.view()?;
        let core = self.core();
        Ok(NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            protocol: PROTOCOL_VERSION,
            policy: view.policy.name().to_owned(),
            policies: crate::policy_names().into_iter().map(str::to_owned).collect(),
            tenant_socket: self.config.tenant_socket().display().to_string(),
            device: self.memory.report(&self.config, core.frames.ledger().used_bytes_total()),
            adopted_sessions: core.adopted,
        })
    }

    /// Totals and queue state now.
    pub(crate) fn stats(&self) -> anyhow::Result<Stats> {
        // The tables first: between their lock and the view no session's use is moved.
        let core = self.core();
        let view = self.view()?;
        let mut of_vgpu: BTreeMap<u32, Vec<(u32, &Entry)>> = BTreeMap::new();
        for (key, entry) in &core.sessions {
            of_vgpu.entry(entry.vgpu).or_default().push((*key, entry));
        }
        let device = self.memory.report(&self.config, core.frames.ledger().used_bytes_total());
        let by_user = self.config.scheduling.share == ShareConfig::User;
        let vgpus: Vec<VgpuReport> = core
            .registry
            .iter()
            .map(|vgpu| {
                let sessions = of_vgpu.remove(&vgpu.key).unwrap_or_default();
                let ledger = core.frames.ledger();
                let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
                VgpuReport {
                    memory_used_bytes: ledger.used_bytes(vgpu.key),
                    pinned_bytes: sessions
                        .iter()
                        .map(|(session, _)| ledger.pinned_bytes(*session))
                        .sum(),
                    tenant: by_user.then_some(payer),
                    tenant_weight: core
                        .registry
                        .user_weight(payer)
                        .filter(|_| by_user)
                        .unwrap_or_else(|| self.config.scheduling.user_weight(payer)),
                    ..report(vgpu, &sessions, &view)
                }
            })
            .collect();
        let charged_ns = view.charged_ns;
        let holder = vgpus.iter().find(|vgpu| vgpu.state == VgpuState::Running);
        let waiting = vgpus.iter().filter(|vgpu| vgpu.state == VgpuState::Waiting).count();
        Ok(Stats {
            now_ns: view.now_ns,
            policy: view.policy.name().to_owned(),
            holder: holder.map(|vgpu| vgpu.name.clone()),
            waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
            closure: Closure { charged_ns, busy_ns: device.busy_ns },
            lost_records: view.lost_records,
            device,
            vgpus,
            coscheduling: view.coscheduling,
        })
    }

    fn timeline(&self, since_ns: u64) -> anyhow::Result<Timeline> {
        let (spans, dropped) = self
            .driver
            .ask(|answer| Order::Timeline { since_ns, answer })
            .ok_or_else(|| anyhow::anyhow!("the daemon is ending"))?;
        let core = self.core();
        let turns = spans.into_iter().map(|span| Turn {
            vgpu: core
                .registry
                .by_key(span.vgpu)
                .map_or_else(|| format!("removed-{}", span.vgpu), |vgpu| vgpu.name.clone()),
            start_ns: span.start_ns,
            end_ns: span.end_ns,
            used_ns: span.used_ns,
        });
        Ok(Timeline { turns: turns.collect(), dropped })
    }
}

fn report(vgpu: &Vgpu, sessions: &[(u32, &Entry)], view: &View) -> VgpuReport {
    let views: Vec<_> = sessions.iter().filter_map(|(key, _)| view.sessions.get(key)).collect();
    let state = if views.iter().any(|session| session.holds && session.runnable) {
        VgpuState::Running
    } else if views.iter().any(|session| session.runnable) {
        VgpuState::Waiting
    } else if sessions.is_empty() {
        VgpuState::Detached
    } else {
        VgpuState::Idle
    };
    let live_ns: u64 = views.iter().map(|session| session.used_ns).sum();
    let (held_ns, turns) = view.vgpus.get(&vgpu.key).copied().unwrap_or_default();
    let program = |(_, entry): &(u32, &Entry)| format!("{} ({})", entry.program, entry.pid);
    VgpuReport {
        name: vgpu.name.clone(),
        owner: vgpu.owner,
        tenant: None,
        tenant_weight: 1,
        weight: vgpu.weight,
        cap_ppm: vgpu.cap_ppm,
        memory_bytes: vgpu.memory_bytes,
        memory_used_bytes: 0,
        pinned_bytes: 0,
        state,
        sessions: u32::try_from(sessions.len()).unwrap_or(u32::MAX),
        programs: sessions.iter().map(program).collect(),
        used_ns: vgpu.used_ns.saturating_add(live_ns),
        held_ns,
        turns,
        sessions_total: vgpu.sessions_total,
    }
}
