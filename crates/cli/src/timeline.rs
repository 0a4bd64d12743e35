//! A journal as events of a timeline (Trace Event Format): rows of turns and waits per vGPU, who
//! held the device, wake-ups, and counters of what was charged.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use weft_sched::journal::{Outcome, Record};
use weft_sched::{Action, DeviceKey, Event, Node, SessionKey, UNLIMITED, Usage};

/// The process of all rows.
const NODE: u32 = 1;
/// The devices' rows come first, those of vGPUs after them.
const VGPU_ROWS: u32 = 1 << 16;
/// A device's busy part is shown per this time.
const BUSY_BIN_NS: u64 = 20_000_000;

/// What is going on at one place of the journal.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    names: &'a BTreeMap<u32, String>,
    sessions: BTreeMap<u32, Track>,
    /// The devices of vGPUs.
    devices: BTreeMap<u32, DeviceKey>,
    /// Device time charged, by vGPU.
    charged_ns: BTreeMap<u32, u64>,
    /// Rows that have names.
    named: BTreeSet<u32>,
    /// The session whose turn each device's row shows.
    on_device: BTreeMap<DeviceKey, u32>,
    /// The bin that is being filled, and the device time charged in it, by device.
    busy: BTreeMap<DeviceKey, (u64, u64)>,
    base_ns: u64,
    now_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Track {
    vgpu: u32,
    used_ns: u64,
    waits_since_ns: Option<u64>,
    turn: Option<OpenTurn>,
}

#[derive(Debug, Clone, Copy)]
struct OpenTurn {
    start_ns: u64,
    epoch: u64,
    budget_ns: u64,
    used_at_start_ns: u64,
}

impl<'a> Timeline<'a> {
    /// A timeline that begins with the state of `node`; `names` are of vGPUs.
    pub(crate) fn new(node: &Node, names: &'a BTreeMap<u32, String>) -> Self {
        let state = node.snapshot();
        let session = |state: &weft_sched::SessionState| {
            let (vgpu, used_ns) = (state.vgpu.0, state.used_ns);
            (state.session.0, Track { vgpu, used_ns, waits_since_ns: None, turn: None })
        };
        Self {
            names,
            sessions: state.sessions.iter().map(session).collect(),
            devices: state.vgpus.iter().map(|vgpu| (vgpu.vgpu.0, vgpu.device)).collect(),
            charged_ns: BTreeMap::new(),
            named: BTreeSet::new(),
            on_device: BTreeMap::new(),
            busy: BTreeMap::new(),
            base_ns: 0,
            now_ns: 0,
        }
    }

    /// Sets the instant that is zero on the timeline.
    pub(crate) fn set_base(&mut self, base_ns: u64) {
        self.base_ns = base_ns;
    }

    /// Takes in the next record and appends what it shows.
    pub(crate) fn take(&mut self, record: &Record, out: &mut Vec<Value>) {
        self.now_ns = self.now_ns.max(record.now_ns);
        let Outcome::Done(actions) = &record.outcome else { return };
        self.event(&record.event, out);
        for action in actions {
            self.action(action, out);
        }
    }

    /// Ends what goes on.
    pub(crate) fn finish(&mut self, out: &mut Vec<Value>) {
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end_turn(session, out);
            self.end_wait(session, out);
        }
    }

    fn event(&mut self, event: &Event, out: &mut Vec<Value>) {
        match *event {
            Event::AddSession { session, vgpu } => {
                let fresh = Track { vgpu: vgpu.0, used_ns: 0, waits_since_ns: None, turn: None };
                self.sessions.insert(session.0, fresh);
            }
            Event::RemoveSession { session } => {
                self.end_turn(session.0, out);
                self.end_wait(session.0, out);
                self.sessions.remove(&session.0);
            }
            Event::Runnable { session, .. } => {
                self.mark(session, "wakes up", out);
                let now_ns = self.now_ns;
                if let Some(state) = self.sessions.get_mut(&session.0)
                    && state.turn.is_none()
                {
                    state.waits_since_ns.get_or_insert(now_ns);
                }
            }
            Event::Idle { session } => self.end_wait(session.0, out),
            Event::Used { session, usage } => self.charge(session.0, usage, out),
            Event::Released { session, usage, .. } => {
                self.charge(session.0, usage, out);
                self.end_turn(session.0, out);
            }
            Event::Pieces { session, pieces } => self.count_pieces(session, pieces, out),
            Event::SetPolicy { device, policy } => {
                let at = self.micros(self.now_ns);
                let name = format!("policy {}", policy.name());
                out.push(json!({
                    "name": name, "ph": "i", "s": "g", "ts": at, "pid": NODE, "tid": device.0,
                }));
            }
            Event::AddVgpu { vgpu, device, .. } => {
                self.devices.insert(vgpu.0, device);
            }
            Event::MoveVgpu { vgpu, device } => {
                let of_it = self.sessions.iter().filter(|(_, state)| state.vgpu == vgpu.0);
                for session in of_it.map(|(key, _)| *key).collect::<Vec<_>>() {
                    self.end_turn(session, out);
                    self.end_wait(session, out);
                }
                self.devices.insert(vgpu.0, device);
            }
            Event::DeviceUp { .. }
            | Event::DeviceDown { .. }
            | Event::AddTenant { .. }
            | Event::RemoveTenant { .. }
            | Event::ReweightTenant { .. }
            | Event::RemoveVgpu { .. }
            | Event::Reweight { .. }
            | Event::SetCap { .. }
            | Event::SetTenantCap { .. }
            | Event::SetClass { .. }
            | Event::SetOwner { .. }
            | Event::ReweightSession { .. }
            | Event::SyncCalls { .. }
            | Event::Switched { .. }
            | Event::Paged { .. }
            | Event::Prefer { .. }
            | Event::OnCpu { .. }
            | Event::Adopt { .. }
            | Event::Timer => {}
        }
    }

    fn action(&mut self, action: &Action, out: &mut Vec<Value>) {
        match *action {
            Action::Grant { session, device, epoch, budget_ns } => {
                self.grant(session, device, (epoch, budget_ns), out);
            }
            Action::Wake { session, .. } => self.mark(session, "waiting thread woken", out),
            Action::Prepare { session, .. } => self.mark(session, "prepare", out),
            Action::Revoke { session, .. } => self.mark(session, "revoke", out),
            Action::Kill { session, .. } => self.mark(session, "kill", out),
            Action::DeviceIdle { .. } | Action::Timer { .. } | Action::CancelTimer => {}
        }
    }

    fn grant(
        &mut self,
        session: SessionKey,
        device: DeviceKey,
        (epoch, budget_ns): (u64, u64),
        out: &mut Vec<Value>,
    ) {
        let now_ns = self.now_ns;
        let Some(state) = self.sessions.get_mut(&session.0) else { return };
        if let Some(turn) = state.turn.as_mut().filter(|turn| turn.epoch == epoch) {
            turn.budget_ns = budget_ns;
            return self.mark(session, "new budget", out);
        }
        let used_at_start_ns = state.used_ns;
        state.turn = Some(OpenTurn { start_ns: now_ns, epoch, budget_ns, used_at_start_ns });
        self.end_wait(session.0, out);
        // Under a policy without a gate several hold a device: the row shows one at a time.
        self.on_device.entry(device).or_insert(session.0);
    }

    fn end_turn(&mut self, session: u32, out: &mut Vec<Value>) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let Some(turn) = state.turn.take() else { return };
        let (vgpu, used_ns) = (state.vgpu, state.used_ns - turn.used_at_start_ns);
        let mut arguments = json!({
            "session": session, "epoch": turn.epoch, "used_us": micros(used_ns),
        });
        if turn.budget_ns != UNLIMITED {
            arguments["budget_us"] = json!(micros(turn.budget_ns));
        }
        self.slice("turn", VGPU_ROWS + vgpu, turn.start_ns, &arguments, vgpu, out);
        if let Some(device) = self.device(vgpu)
            && self.on_device.get(&device) == Some(&session)
        {
            self.on_device.remove(&device);
            let name = self.name(vgpu);
            self.slice(&name, device.0, turn.start_ns, &arguments, vgpu, out);
        }
    }

    fn end_wait(&mut self, session: u32, out: &mut Vec<Value>) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let (vgpu, since_ns) = (state.vgpu, state.waits_since_ns.take());
        if let Some(since_ns) = since_ns {
            let arguments = json!({ "session": session });
            self.slice("waits", VGPU_ROWS + vgpu, since_ns, &arguments, vgpu, out);
        }
    }

    fn charge(&mut self, session: u32, usage: Usage, out: &mut Vec<Value>) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let ns = usage.used_ns.saturating_sub(state.used_ns);
        if ns == 0 {
            return;
        }
        state.used_ns = usage.used_ns;
        let vgpu = state.vgpu;
        let charged_ns = self.charged_ns.entry(vgpu).or_default();
        *charged_ns += ns;
        let (total_ns, name) = (*charged_ns, format!("charged {}", self.name(vgpu)));
        self.counter(&name, "ms", micros(total_ns) / 1e3, self.now_ns, out);
        if let Some(device) = self.device(vgpu) {
            self.count_busy(device, ns, out);
        }
    }

    fn count_busy(&mut self, device: DeviceKey, ns: u64, out: &mut Vec<Value>) {
        let bin = self.now_ns / BUSY_BIN_NS;
        let busy = self.busy.entry(device).or_default();
        if bin == busy.0 {
            busy.1 += ns;
            return;
        }
        let (done, busy_ns) = std::mem::replace(busy, (bin, ns));
        if busy_ns > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
            let percent = (100.0 * busy_ns as f64 / BUSY_BIN_NS as f64).min(100.0);
            let at_ns = (done * BUSY_BIN_NS).max(self.base_ns);
            let name = format!("device {} busy", device.0);
            self.counter(&name, "percent", percent, at_ns, out);
        }
    }

    fn counter(&self, name: &str, unit: &str, value: f64, at_ns: u64, out: &mut Vec<Value>) {
        let at = self.micros(at_ns);
        let arguments = json!({ unit: value });
        out.push(json!({ "name": name, "ph": "C", "ts": at, "pid": NODE, "args": arguments }));
    }

    fn count_pieces(&mut self, session: SessionKey, pieces: u64, out: &mut Vec<Value>) {
        let Some(vgpu) = self.sessions.get(&session.0).map(|state| state.vgpu) else { return };
        let name = format!("slices {}", self.name(vgpu));
        let (at, arguments) = (self.micros(self.now_ns), json!({ "cut off": pieces }));
        out.push(json!({ "name": name, "ph": "C", "ts": at, "pid": NODE, "args": arguments }));
        self.mark(session, "slice ends", out);
    }

    fn mark(&mut self, session: SessionKey, what: &str, out: &mut Vec<Value>) {
        let Some(vgpu) = self.sessions.get(&session.0).map(|state| state.vgpu) else { return };
        self.name_row(vgpu, out);
        let (at, row) = (self.micros(self.now_ns), VGPU_ROWS + vgpu);
        out.push(json!({
            "name": what, "ph": "i", "s": "t", "ts": at, "pid": NODE, "tid": row,
            "args": { "session": session.0 },
        }));
    }

    fn slice(
        &mut self,
        name: &str,
        row: u32,
        start_ns: u64,
        arguments: &Value,
        vgpu: u32,
        out: &mut Vec<Value>,
    ) {
        self.name_row(vgpu, out);
        let (at, took) = (self.micros(start_ns), micros(self.now_ns.saturating_sub(start_ns)));
        out.push(json!({
            "name": name, "ph": "X", "ts": at, "dur": took, "pid": NODE, "tid": row,
            "args": arguments,
        }));
    }

    /// Names the row of a vGPU, and of its device.
    fn name_row(&mut self, vgpu: u32, out: &mut Vec<Value>) {
        let metadata = |what: &str, row: u32, arguments: &Value| json!({ "name": what, "ph": "M", "ts": 0, "pid": NODE, "tid": row, "args": arguments });
        if self.named.is_empty() {
            out.push(metadata("process_name", 0, &json!({ "name": "Weft node" })));
        }
        let device = self.device(vgpu).map(|device| (device.0, format!("device {}", device.0)));
        let rows = device.into_iter().chain([(VGPU_ROWS + vgpu, self.name(vgpu))]);
        for (row, name) in rows {
            if self.named.insert(row) {
                out.push(metadata("thread_name", row, &json!({ "name": name })));
                out.push(metadata("thread_sort_index", row, &json!({ "sort_index": row })));
            }
        }
    }

    /// Where a vGPU lives; none if the journal did not say.
    fn device(&self, vgpu: u32) -> Option<DeviceKey> {
        self.devices.get(&vgpu).copied()
    }

    fn name(&self, vgpu: u32) -> String {
        self.names.get(&vgpu).cloned().unwrap_or_else(|| format!("vGPU {vgpu}"))
    }

    fn micros(&self, at_ns: u64) -> f64 {
        micros(at_ns.saturating_sub(self.base_ns))
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds with three decimals")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
