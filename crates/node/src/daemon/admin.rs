//! The admin socket's server: one thread per connection, one line per request.

mod burst;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use weft_ring::peer::{self, Credentials};
use weft_sched::{DeviceKey, Weight, policy};
use weft_wire::handshake::PROTOCOL_VERSION;

use self::burst::Begun;
use super::admin_connections::AdminConnections;
use super::devices::frames::Frames;
use super::devices::{Absent, Device};
use super::driver::{Order, View};
use super::log::LogLimit;
use super::registry::{Change, Outage, Vgpu, Wanted};
use super::roles::{self, Caller};
use super::sessions::{Asked, Entry};
use super::tasks::is_member;
use super::{Daemon, STACK_BYTES, Tables};
use crate::admin::{
    Answer, Closure, DeviceReport, NOT_UNDERSTOOD, NodeReport, ProcessReport, Request, Stats,
    Timeline, TurnReport, VgpuReport, VgpuState,
};
use crate::config::{Choice, ShareConfig};

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Requests that a client has sent one behind the other are seen to be that up to so many bytes: a
/// hundred vGPUs and their grants.
const BURST_BYTES: usize = 32 << 10;

/// Of those so many are begun before the first is answered.
const BURST_MAX: usize = 256;

/// A silent connection is closed after this time.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

/// A silent connection of a user who does not administrate is closed after this time: there are few
/// places.
const USERS_SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// Lines about connections there is no room for.
static CROWDS: LogLimit = LogLimit::per_second(10);

impl Daemon {
    /// Serves a connection of a process to the admin socket in a thread of its own, if there is
    /// room.
    pub(crate) fn serve_administrator(self: &Arc<Self>, socket: OwnedFd, peer: &Credentials) {
        let caller = match self.caller(&socket, peer) {
            Ok(caller) => caller,
            Err(error) => {
                tracing::debug!(%error, "nobody knows who connected to the admin socket");
                return;
            }
        };
        if let Err(why) = self.admin_connections().enter(caller) {
            if let Some(suppressed) = CROWDS.line(Instant::now()) {
                tracing::warn!(uid = caller.uid, why, suppressed, "too many connections");
            }
            // The socket's buffer is empty, so this does not wait.
            let _ = say(&mut UnixStream::from(socket), &[refused(why)]);
            return;
        }
        let daemon = Arc::clone(self);
        let thread = thread::Builder::new().name("admin".to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            if let Err(error) = converse(&daemon, UnixStream::from(socket), caller) {
                tracing::debug!(%error, "admin connection ended");
            }
            daemon.admin_connections().leave(caller);
        });
        if let Err(error) = spawned {
            self.admin_connections().leave(caller);
            tracing::error!(%error, "no thread for a connection");
        }
    }

    /// Who connected.
    fn caller(&self, socket: impl AsFd, peer: &Credentials) -> io::Result<Caller> {
        let groups = match self.admin_group {
            Some(_) => peer::groups(socket.as_fd())?,
            None => Vec::new(),
        };
        let own = rustix::process::geteuid().as_raw();
        let payer = self.tenancy.of_process(peer.uid, peer.pid.unwrap_or(0));
        Ok(Caller::new(peer.uid, payer, &groups, own, self.admin_group))
    }

    fn admin_connections(&self) -> MutexGuard<'_, AdminConnections> {
        self.admin_connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn converse(daemon: &Arc<Daemon>, stream: UnixStream, caller: Caller) -> io::Result<()> {
    let limit = if caller.administrates() { SILENCE_LIMIT } else { USERS_SILENCE_LIMIT };
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut reader = BufReader::with_capacity(BURST_BYTES, stream);
    let mut recordings = Recordings::default();
    let mut burst = Vec::new();
    loop {
        if burst.len() >= BURST_MAX || !reader.buffer().contains(&b'\n') {
            say(reader.get_mut(), &daemon.finish_requests(mem::take(&mut burst)))?;
        }
        let mut line = Vec::new();
        (&mut reader).take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        // Not with the lock.
        let wait = daemon.admin_connections().wait(caller, Instant::now());
        thread::sleep(wait);
        let request = serde_json::from_slice::<Request>(&line);
        let request = match request {
            Ok(request @ (Request::Create { .. } | Request::Grant(_) | Request::GrantAhead(_))) => {
                burst.push(daemon.begin_request(request, caller));
                continue;
            }
            request => request,
        };
        // What came before is done before.
        say(reader.get_mut(), &daemon.finish_requests(mem::take(&mut burst)))?;
        let ends = matches!(request, Ok(Request::Shutdown { .. }));
        let answer = match request {
            Ok(request) => daemon.answer_admin(request, caller),
            Err(error) => refused(format!("{NOT_UNDERSTOOD}: {error}")),
        };
        if let Answer::Recording(recording) = &answer {
            recordings.0.push(recording.path.clone());
        }
        let written = say(reader.get_mut(), std::slice::from_ref(&answer));
        if ends && answer == Answer::Done {
            // Whoever asked has the answer before this process is gone.
            daemon.stop();
        }
        written?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
    }
}

/// Files that a connection asked for; they go with it.
#[derive(Default)]
struct Recordings(Vec<String>);

impl Drop for Recordings {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::debug!(path, %error, "recording was gone");
            }
        }
    }
}

fn say(stream: &mut UnixStream, answers: &[Answer]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for answer in answers {
        serde_json::to_writer(&mut bytes, answer)?;
        bytes.push(b'\n');
    }
    stream.write_all(&bytes)
}

fn done((): ()) -> Answer {
    Answer::Done
}

fn refused(message: String) -> Answer {
    Answer::Error { message }
}

impl Daemon {
    pub(super) fn answer_admin(self: &Arc<Self>, request: Request, caller: Caller) -> Answer {
        let begun = self.begin_request(request, caller);
        let nothing = || refused("nothing was begun".to_owned());
        self.finish_requests(vec![begun]).pop().unwrap_or_else(nothing)
    }

    fn act(self: &Arc<Self>, request: Request, caller: Caller) -> anyhow::Result<Begun> {
        roles::permit(caller, &request)?;
        Ok(Begun::Answered(Box::new(match request {
            Request::Node => Answer::Node(self.node_report(caller)?),
            Request::List => Answer::Vgpus(self.stats()?.vgpus),
            Request::Create {
                name,
                device,
                weight,
                memory_bytes,
                owner,
                token,
                cap_ppm,
                sla_ns,
            } => {
                let token = token.unwrap_or_default();
                let asked = Wanted {
                    name: name.clone(),
                    owner: owner.unwrap_or(caller.uid),
                    device: device.unwrap_or_default(),
                    weight: weight.unwrap_or(0),
                    memory_bytes: memory_bytes.unwrap_or(0),
                    token,
                    cap_ppm,
                    sla_ns: sla_ns.unwrap_or(0),
                    ..Wanted::default()
                };
                let chosen = Change { weight, memory_bytes, cap_ppm, sla_ns };
                self.make_vgpu(asked, &chosen, caller)?;
                return Ok(Begun::Made(name));
            }
            Request::CreateAccelerator(asked) => done(self.create_accelerator(asked, caller)?),
            Request::Set { name, weight, memory_bytes, cap_ppm, sla_ns } => {
                self.set(&name, &Change { weight, memory_bytes, cap_ppm, sla_ns }, caller)?
            }
            Request::SetTenant { uid, weight } => done(self.set_tenant(uid, weight)?),
            Request::SetSession { pid, weight } => {
                done(self.set_session(pid, Weight::new(weight)?, caller)?)
            }
            Request::Grant(asked) => Answer::Grant(self.make_grant(asked, caller)?),
            Request::GrantAhead(asked) => Answer::Grant(self.grant_ahead(asked, caller)?),
            Request::Remove { name, force } => done(self.remove(&name, force, caller)?),
            Request::Close { name } => Answer::Vgpu(self.close(&name, caller)?),
            Request::Stats => Answer::Stats(self.stats()?),
            Request::Timeline { since_ns } => Answer::Timeline(self.timeline(since_ns, caller)?),
            Request::Record { seconds } => Answer::Recording(self.record(seconds, caller.uid)?),
            Request::Policy { set, device } => {
                let device = device.map(|name| self.device_called(&name)).transpose()?;
                if let Some(name) = set {
                    let policy = policy::for_node(&name)?;
                    self.driver.send(Order::SetPolicy { device, policy });
                }
                Answer::Node(self.node_report(caller)?)
            }
            Request::Move { name, device } => Answer::Moved(self.move_by_hand(&name, &device)?),
            Request::SetDevice { name, in_service, force } => {
                done(self.set_device(&name, in_service, force)?)
            }
            Request::Doctor => Answer::Doctor(self.doctor()?),
            Request::Metrics => Answer::Metrics(crate::metrics::text(&self.stats()?)),
            Request::Shutdown { force } => {
                if !force {
                    self.ensure_unused()?;
                }
                Answer::Done
            }
        })))
    }

    fn set_device(
        self: &Arc<Self>,
        name: &str,
        in_service: bool,
        force: bool,
    ) -> anyhow::Result<()> {
        if in_service { self.put_into_service(name) } else { self.take_out_of_service(name, force) }
    }

    pub(crate) fn device_called(&self, name: &str) -> anyhow::Result<DeviceKey> {
        if let Some(reason) = self.devices.why_absent(name) {
            anyhow::bail!(
                "device `{name}` was not usable when the node started: {reason}; mend that, and \
                 start `weft node` again (its programs live on)"
            );
        }
        self.tables().registry.device_bytes(name)?;
        let device = self.devices.named(name).context("the device is not open")?;
        Ok(device.key)
    }

    /// Saves what was changed.
    pub(crate) fn keep(&self) -> anyhow::Result<()> {
        let saving = self.begin_saving();
        self.saved(&saving).map_err(|why| {
            anyhow::anyhow!(
                "it is so until the daemon ends, but could not be saved: {why}; make room there, \
                 and the next change saves this one too"
            )
        })
    }

    /// Creates a vGPU, with the node's defaults for what is 0. A user may have what it might create
    /// by attaching; what an administrator chose of somebody else's is a bound for its owner.
    pub(crate) fn create_vgpu(
        &self,
        asked: Wanted,
        chosen: &Change,
        caller: Caller,
    ) -> anyhow::Result<()> {
        self.make_vgpu(asked, chosen, caller)?;
        self.keep()
    }

    /// Creates a vGPU that nobody has saved yet.
    fn make_vgpu(&self, asked: Wanted, chosen: &Change, caller: Caller) -> anyhow::Result<()> {
        let name = &asked.name;
        anyhow::ensure!(
            !self.tasks.is_accelerator(name) && !is_member(name),
            "`{name}` is a virtual accelerator's name; choose another one"
        );
        {
            let mut tables = self.tables();
            let pinned = tables.registry.is_device(&asked.device);
            let wanted = if caller.administrates() {
                let (device, memory_bytes) =
                    self.choose_device(&tables, &asked.device, asked.memory_bytes);
                let weight = match asked.weight {
                    0 => self.config.defaults.weight,
                    weight => weight,
                };
                Wanted { device, weight, memory_bytes, ..asked }
            } else {
                let Wanted { name, device, weight, memory_bytes, token, cap_ppm, .. } = asked;
                let asked = Asked {
                    name,
                    device: &device,
                    weight,
                    memory_bytes,
                    token: &token,
                    siblings: 0,
                };
                // Until somebody uses it, it is its owner's.
                let payer = self.tenancy.of_user(caller.uid);
                Wanted { cap_ppm, ..self.wanted(&tables, asked, caller.uid, payer)? }
            };
            let wanted = Wanted { pinned, ..wanted };
            tables.registry.create(&wanted)?;
            if wanted.owner != caller.uid {
                let weight = Some(wanted.weight);
                tables.registry.grant(&wanted.name, &Change { weight, ..*chosen });
            }
        }
        Ok(())
    }

    fn set(
        self: &Arc<Self>,
        name: &str,
        change: &Change,
        caller: Caller,
    ) -> anyhow::Result<Answer> {
        if self.set_accelerator(name, change, caller)? {
            return Ok(Answer::Done);
        }
        self.set_vgpus(&[name.to_owned()], change, caller)?;
        Ok(Answer::Vgpu(self.vgpu_report(name)?))
    }

    /// Whether the configuration lets an owner choose that for all of those vGPUs, where no
    /// administrator has decided.
    fn check_choice(
        &self,
        tables: &Tables,
        names: &[String],
        change: &Change,
    ) -> anyhow::Result<()> {
        for name in names {
            let vgpu = tables.registry.find(name)?;
            let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
            let others = self.vgpus_of(tables, payer).filter(|other| other.key != vgpu.key);
            let weight = |other: &Vgpu| match change.weight {
                Some(weight) if names.contains(&other.name) => u64::from(weight),
                Some(_) | None => u64::from(other.weight),
            };
            let choice = Choice {
                weight: change.weight.filter(|_| vgpu.granted.weight.is_none()),
                memory_bytes: change.memory_bytes.filter(|_| vgpu.granted.memory_bytes.is_none()),
                others_weight: others.map(weight).sum(),
            };
            self.tenant_limits(vgpu.owner, payer).check(&choice)?;
        }
        Ok(())
    }

    /// Changes all of those vGPUs, or none.
    pub(crate) fn set_vgpus(
        &self,
        names: &[String],
        change: &Change,
        caller: Caller,
    ) -> anyhow::Result<()> {
        {
            let mut tables = self.tables();
            for name in names {
                roles::permit_change(caller, tables.registry.find(name)?, change)?;
                tables.registry.check_change(name, change)?;
            }
            if !caller.administrates() {
                self.check_choice(&tables, names, change)?;
            }
            for name in names {
                let vgpu = tables.registry.set(name, change)?.clone();
                if vgpu.owner != caller.uid {
                    tables.registry.grant(name, change);
                }
                self.note_change(&mut tables, &vgpu);
            }
        }
        self.keep()
    }

    /// Tells those that it concerns what a vGPU is owed now.
    fn note_change(&self, tables: &mut Tables, vgpu: &Vgpu) {
        if let Some(device) = self.devices.named(&vgpu.device) {
            tables.frames(device.key).set_quota(vgpu.key, vgpu.memory_bytes);
        }
        // Its first session says which tenant it is of, and places it.
        if let Some(payer) = self.tenancy.settled(vgpu.key) {
            self.place_capped(tables, payer);
            self.place(tables, vgpu);
        }
    }

    fn set_tenant(self: &Arc<Self>, uid: u32, weight: u32) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.config.scheduling.share == ShareConfig::User,
            "users have no parts of their own on this node: scheduling.share is `vgpu`"
        );
        let key = {
            let mut tables = self.tables();
            tables.registry.set_user_weight(uid, weight)?;
            // One vGPU of the tenant tells the driver of it.
            let is_of = |vgpu: &&Vgpu| {
                let is_there = self.devices.named(&vgpu.device).is_some();
                is_there && self.tenancy.settled(vgpu.key) == Some(uid)
            };
            let vgpu = tables.registry.iter().find(is_of).cloned();
            if let Some(vgpu) = vgpu {
                self.place(&mut tables, &vgpu);
            }
            tables.registry.user(uid).key
        };
        self.note_user_weight(key, weight);
        self.keep()?;
        Ok(())
    }

    fn set_session(&self, pid: u32, weight: Weight, caller: Caller) -> anyhow::Result<()> {
        let tables = self.tables();
        let sessions: Vec<(&u32, &Entry)> =
            tables.sessions.iter().filter(|(_, entry)| entry.is_of_process(pid)).collect();
        anyhow::ensure!(!sessions.is_empty(), "process {pid} has no session on this node");
        for (_, entry) in &sessions {
            roles::permit_weighing(caller, pid, entry.uid)?;
        }
        for (session, _) in sessions {
            self.driver.send(Order::WeighSession { session: *session, weight });
        }
        Ok(())
    }

    /// Refuses while programs run on the node, and names them.
    fn ensure_unused(&self) -> anyhow::Result<()> {
        let tables = self.await_departed(self.tables(), |_| true);
        if tables.sessions.is_empty() {
            return Ok(());
        }
        anyhow::bail!(
            "programs run on this node: {}; `weft stop --force` ends them: their calls fail, and \
             they are told that the node was stopped",
            tables.in_words(tables.sessions.values())
        )
    }

    fn vgpu_report(&self, name: &str) -> anyhow::Result<VgpuReport> {
        let vgpus = self.stats()?.vgpus;
        let found = vgpus.into_iter().find(|vgpu| vgpu.name == name);
        found.ok_or_else(|| anyhow::anyhow!("vGPU `{name}` was removed meanwhile"))
    }

    pub(crate) fn view(&self) -> anyhow::Result<View> {
        self.driver.ask(Order::View).ok_or_else(|| anyhow::anyhow!("the daemon is ending"))
    }

    fn node_report(&self, caller: Caller) -> anyhow::Result<NodeReport> {
        let view = self.view()?;
        let tables = self.tables();
        Ok(NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            protocol: PROTOCOL_VERSION,
            admin: weft_api::node::VERSIONS,
            policy: policies(&view),
            policies: crate::policy_names().into_iter().map(str::to_owned).collect(),
            tenant_socket: self.config.tenant_socket().display().to_string(),
            devices: self.device_reports(&tables, &view),
            adopted_sessions: tables.adopted,
            you_administrate: caller.administrates(),
            gateway: self.remote.gateway.report(),
        })
    }

    /// The devices as administrators see them.
    fn device_reports(&self, tables: &Tables, view: &View) -> Vec<DeviceReport> {
        let report = |device: &Device| {
            let policy = view.policies.get(&device.key).map_or("", |policy| policy.name());
            let used_bytes = tables.memory(device.key).used_bytes_total();
            let outage = tables.registry.outage(&device.name);
            let failure = match outage {
                Some(Outage::Failed(reason)) => Some(reason.clone()),
                Some(Outage::Withdrawn) | None => None,
            };
            let in_service = outage.is_none();
            let name_of = |key| tables.registry.by_key(key).map(|vgpu| vgpu.name.clone());
            let memory = tables.memory(device.key).report(name_of);
            DeviceReport { in_service, failure, ..device.report(policy, used_bytes, memory) }
        };
        let absent = self.devices.absent().iter().map(Absent::report);
        self.devices.iter().map(report).chain(absent).collect()
    }

    /// The memory that a vGPU is in; none for one whose device is gone.
    fn memory_of<'a>(&self, tables: &'a Tables, vgpu: &Vgpu) -> Option<&'a Frames> {
        self.devices.named(&vgpu.device).map(|device| tables.memory(device.key))
    }

    /// Totals and queue state now.
    pub(crate) fn stats(&self) -> anyhow::Result<Stats> {
        // The tables first: between their lock and the view no session's use is moved.
        let tables = self.tables();
        let view = self.view()?;
        let mut of_vgpu: BTreeMap<u32, Vec<(u32, &Entry)>> = BTreeMap::new();
        for (key, entry) in &tables.sessions {
            of_vgpu.entry(entry.vgpu).or_default().push((*key, entry));
        }
        let devices = self.device_reports(&tables, &view);
        let by_user = self.config.scheduling.share == ShareConfig::User;
        let vgpus: Vec<VgpuReport> = tables
            .registry
            .iter()
            .map(|vgpu| {
                let sessions = of_vgpu.remove(&vgpu.key).unwrap_or_default();
                let payer = self.tenancy.payer(vgpu.key, vgpu.owner);
                VgpuReport {
                    tenant: by_user.then_some(payer),
                    tenant_weight: tables
                        .registry
                        .user_weight(payer)
                        .filter(|_| by_user)
                        .unwrap_or_else(|| self.config.scheduling.user_weight(payer)),
                    tenant_cap_ppm: self.user_cap(payer).filter(|_| by_user),
                    cap_part_ppm: self.cap_part_ppm(&tables, vgpu),
                    is_closing: tables.is_being_removed(&vgpu.name),
                    ..report(vgpu, &sessions, &view, self.memory_of(&tables, vgpu))
                }
            })
            .collect();
        let charged_ns = view.charged_ns;
        let holders = vgpus.iter().filter(|vgpu| vgpu.state == VgpuState::Running);
        let busy_ns = devices.iter().map(|device| device.busy_ns).sum();
        let waiting = vgpus.iter().filter(|vgpu| vgpu.state == VgpuState::Waiting).count();
        Ok(Stats {
            now_ns: view.now_ns,
            policy: policies(&view),
            holders: holders.map(|vgpu| vgpu.name.clone()).collect(),
            waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
            closure: Closure { charged_ns, busy_ns },
            lost_records: view.lost_records,
            accelerators: self.accelerator_reports(&vgpus),
            pools: self.pool_reports(),
            devices,
            vgpus,
            coscheduling: view.coscheduling,
            gateway: self.remote.gateway.health(),
        })
    }

    /// Turns since an instant; of a user who does not administrate, those of its own vGPUs.
    fn timeline(&self, since_ns: u64, caller: Caller) -> anyhow::Result<Timeline> {
        let (spans, dropped) = {
            // One at a time, so that news come in their order.
            let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
            let news = self.driver.ask(Order::Turns);
            archive.since(news.ok_or_else(|| anyhow::anyhow!("the daemon is ending"))?, since_ns)
        };
        let tables = self.tables();
        let turns = spans.into_iter().filter_map(|span| {
            let vgpu = tables.registry.by_key(span.vgpu);
            let is_shown =
                caller.administrates() || vgpu.is_some_and(|vgpu| vgpu.owner == caller.uid);
            let name = || format!("removed-{}", span.vgpu);
            is_shown.then(|| TurnReport {
                device: self
                    .devices
                    .find(DeviceKey(span.device))
                    .map_or_else(String::new, |device| device.name.clone()),
                vgpu: vgpu.map_or_else(name, |vgpu| vgpu.name.clone()),
                start_ns: span.start_ns,
                end_ns: span.end_ns,
                used_ns: span.used_ns,
            })
        });
        Ok(Timeline { turns: turns.collect(), dropped })
    }
}

/// The policies in force, each once.
fn policies(view: &View) -> String {
    let names: BTreeSet<&str> = view.policies.values().map(|policy| policy.name()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn report(
    vgpu: &Vgpu,
    sessions: &[(u32, &Entry)],
    view: &View,
    memory: Option<&Frames>,
) -> VgpuReport {
    let process = |(key, entry): &(u32, &Entry)| {
        let session = view.sessions.get(key);
        ProcessReport {
            pid: entry.pid,
            elsewhere: entry.elsewhere.clone(),
            uid: entry.uid,
            program: entry.program.clone(),
            memory_bytes: memory.map_or(0, |memory| memory.session_bytes(*key)),
            pinned_bytes: memory.map_or(0, |memory| memory.pinned_bytes(*key)),
            used_ns: session.map_or(0, |session| session.used_ns),
            state: match session {
                Some(session) if session.runnable && session.holds => VgpuState::Running,
                Some(session) if session.runnable => VgpuState::Waiting,
                Some(_) | None => VgpuState::Idle,
            },
        }
    };
    let processes: Vec<ProcessReport> = sessions.iter().map(process).collect();
    let is_any = |state| processes.iter().any(|process| process.state == state);
    let state = [VgpuState::Running, VgpuState::Waiting, VgpuState::Idle];
    let state = state.into_iter().find(|state| is_any(*state)).unwrap_or(VgpuState::Detached);
    let live_ns: u64 = processes.iter().map(|process| process.used_ns).sum();
    let held = vgpu.held_before.plus(view.holding(vgpu.key));
    VgpuReport {
        name: vgpu.name.clone(),
        owner: vgpu.owner,
        device: vgpu.device.clone(),
        tenant: None,
        tenant_weight: 1,
        tenant_cap_ppm: None,
        cap_part_ppm: None,
        weight: vgpu.weight,
        cap_ppm: vgpu.cap_ppm,
        sla_ns: vgpu.sla_ns,
        attainment: view.attainment.get(&vgpu.key).copied().unwrap_or_default(),
        memory_bytes: vgpu.memory_bytes,
        memory_used_bytes: memory.map_or(0, |memory| memory.used_bytes(vgpu.key)),
        pinned_bytes: processes.iter().map(|process| process.pinned_bytes).sum(),
        state,
        is_closing: false,
        sessions: u32::try_from(sessions.len()).unwrap_or(u32::MAX),
        programs: processes.iter().map(ToString::to_string).collect(),
        processes,
        used_ns: vgpu.used_ns.saturating_add(live_ns),
        held_ns: held.held_ns,
        turns: held.turns,
        sessions_total: vgpu.sessions_total,
    }
}

#[cfg(test)]
mod tests;
