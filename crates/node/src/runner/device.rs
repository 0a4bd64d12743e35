//! A device of the pool, as the runner has it: a session with its vGPU there, and a thread that
//! runs one task at a time.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use weft_client::{Client, Config, Context, attach};
use weft_tasks::protocol::Event;
use weft_wire::Status;

use super::execute::{Broken, Ended, execute};
use super::messages::{Outcome, Place, Report, Run};
use super::module::LoadedModules;
use super::task::Task;
use super::validate::Limits;
use super::{Runner, lock};

/// The daemon starts a worker within this time.
const ATTACH_LIMIT: Duration = Duration::from_secs(40);

/// A task that lost its session so often is no longer begun anew: it may be the reason.
const LOSSES_MAX: u32 = 3;

/// After an attempt to attach that failed the next one waits this long: it would fail alike.
const ATTACH_PAUSE: Duration = Duration::from_millis(50);

/// What a device's thread does next.
#[derive(Debug)]
pub(super) enum Job {
    /// Attaches, if it is not attached.
    Attach,
    /// Runs a task, whole if its kernel takes no longer than that.
    Run { run: Run, whole_ns_max: u64 },
}

/// A session on a device.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) client: Arc<Client>,
    pub(super) context: Context,
    pub(super) modules: LoadedModules,
    pub(super) limits: Limits,
    /// Memory for a task's buffers: address, bytes.
    pub(super) region: Mutex<(u64, u64)>,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) place: Place,
    pub(super) jobs: Sender<Job>,
    /// Sockets on which to attach, from the daemon.
    pub(super) sockets: Sender<OwnedFd>,
    pub(super) attached: Mutex<Option<Arc<Attached>>>,
}

impl Device {
    /// Its session, if it has one that works.
    pub(super) fn session(&self) -> Option<Arc<Attached>> {
        lock(&self.attached).clone().filter(|attached| attached.client.loss().is_none())
    }
}

/// Serves a device until the runner ends.
pub(super) fn serve(
    runner: &Arc<Runner>,
    index: usize,
    jobs: &Receiver<Job>,
    sockets: &Receiver<OwnedFd>,
) {
    let device = &runner.devices[index];
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Attach => {
                if let Err(why) = attach(runner, device, sockets) {
                    tracing::debug!(device = device.place.name, why, "not attached");
                }
            }
            Job::Run { run, whole_ns_max } => {
                run_task(runner, device, sockets, run, whole_ns_max);
            }
        }
        runner.note_attached(device.session().map(|attached| attached.limits));
    }
}

/// The device's session, a new one if need be.
fn attach(
    runner: &Runner,
    device: &Device,
    sockets: &Receiver<OwnedFd>,
) -> Result<Arc<Attached>, String> {
    if let Some(attached) = device.session() {
        return Ok(attached);
    }
    *lock(&device.attached) = None;
    while sockets.try_recv().is_ok() {}
    runner.report(&Report::Wanted { device: device.place.key });
    let socket = sockets.recv_timeout(ATTACH_LIMIT);
    let socket = socket.map_err(|_| "the daemon gave no socket to attach on".to_owned())?;
    let config = Config::default();
    let established = attach::connect_over(&socket, &config, &device.place.vgpu);
    let established = established.map_err(|error| error.to_string())?;
    let client = Client::over(&config, established, None);
    let in_words = |status: Status| status.description().to_string_lossy().into_owned();
    let context = client.primary_retain(0).map_err(in_words)?;
    client.context_set_current(context).map_err(in_words)?;
    let limits = Limits::of(&client).map_err(in_words)?;
    let (modules, region) = (LoadedModules::default(), Mutex::default());
    let attached = Arc::new(Attached { client, context, modules, limits, region });
    *lock(&device.attached) = Some(Arc::clone(&attached));
    Ok(attached)
}

fn run_task(
    runner: &Runner,
    device: &Device,
    sockets: &Receiver<OwnedFd>,
    run: Run,
    whole_ns_max: u64,
) {
    let task = lock(&runner.tasks).get(run.task).filter(|task| !task.state().over);
    let Some(task) = task else {
        // It ended at the moment at which the pool began it anew.
        runner.report(&Report::Finished { run, outcome: Outcome::Done });
        return;
    };
    {
        let mut state = task.state();
        // A later run may have been ordered before this thread got here.
        if state.run != Some(run) {
            return;
        }
        state.runs += 1;
    }
    if task.state().unwanted {
        return drop_task(runner, &task, run);
    }
    let ended = attach(runner, device, sockets)
        .map_err(Broken::Session)
        .and_then(|attached| execute(runner, &attached, &task, (run, whole_ns_max)));
    match ended {
        Ok(Ended::Done { output, used_ns }) => {
            commit(runner, device, &task, run, &output, used_ns);
        }
        Ok(Ended::Stopped { .. }) if task.state().unwanted => {
            drop_task(runner, &task, run);
        }
        Ok(Ended::Stopped { progress, used_ns }) => {
            let mut state = task.state();
            if state.run == Some(run) {
                state.progress = Some(progress);
                state.stop_at_ns = None;
                state.used_ns += used_ns;
                drop(state);
                runner.report(&Report::Stopped { run });
            }
        }
        Err(Broken::Session(why)) => lose(runner, device, &task, run, &why, 1),
        // However often: the task is not the reason.
        Err(Broken::Withdrawn(why)) => lose(runner, device, &task, run, &why, 0),
        Err(Broken::Task { status, poisoned, log }) => {
            if poisoned {
                // A context with a fault does nothing any more.
                *lock(&device.attached) = None;
            }
            let message = in_words(&task, device, status, &log);
            fail(runner, &task, run, status.code(), message);
        }
    }
}

/// Hands over what the task computed, if the run still counts.
fn commit(runner: &Runner, device: &Device, task: &Task, run: Run, output: &[u8], used_ns: u64) {
    let mut state = task.state();
    if state.run != Some(run) || state.over {
        return;
    }
    state.over = true;
    state.used_ns += used_ns;
    if let Err(error) = super::execute::hand_over(task, output) {
        tracing::error!(task = task.id, %error, "a task's outputs could not be written");
    }
    let (used_by_it_ns, runs) = (state.used_ns, state.runs);
    drop(state);
    lock(&runner.tasks).remove(task.number);
    runner.report(&Report::Finished { run, outcome: Outcome::Done });
    task.outbox.say(Event::Done {
        task: task.id,
        used_ns: used_by_it_ns,
        latency_ns: u64::try_from(task.submitted.elapsed().as_nanos()).unwrap_or(u64::MAX),
        device: device.place.name.clone(),
        runs,
    });
}

fn fail(runner: &Runner, task: &Task, run: Run, status: i32, message: String) {
    if end_unfinished(runner, task, run, Outcome::Failed) {
        task.outbox.say(Event::Failed { task: task.id, status, message });
    }
}

/// Ends a task that nobody waits for. Left to the pool it would be begun again, and stop at once.
fn drop_task(runner: &Runner, task: &Task, run: Run) {
    end_unfinished(runner, task, run, Outcome::Dropped);
}

/// Ends a task without outputs; whether the run still counted.
fn end_unfinished(runner: &Runner, task: &Task, run: Run, outcome: Outcome) -> bool {
    {
        let mut state = task.state();
        if state.run != Some(run) || state.over {
            return false;
        }
        state.over = true;
    }
    lock(&runner.tasks).remove(task.number);
    runner.report(&Report::Finished { run, outcome });
    true
}

/// The session broke under the task, which begins anew elsewhere; `counts` is what that adds to the
/// losses that a task may have.
fn lose(runner: &Runner, device: &Device, task: &Task, run: Run, why: &str, counts: u32) {
    *lock(&device.attached) = None;
    let losses = {
        let mut state = task.state();
        if state.run != Some(run) {
            return;
        }
        state.progress = None;
        state.losses += counts;
        state.losses
    };
    tracing::info!(device = device.place.name, task = task.id, losses, why, "a session was lost");
    if losses > LOSSES_MAX {
        let message = format!(
            "the task lost its session {losses} times, at last on device `{}`: {why}; the node's \
             log says more",
            device.place.name
        );
        return fail(runner, task, run, Status::DEVICE_UNAVAILABLE.code(), message);
    }
    thread::sleep(ATTACH_PAUSE);
    runner.report(&Report::Lost { run });
}

fn in_words(task: &Task, device: &Device, status: Status, log: &str) -> String {
    let (name, text) = (status.name().to_string_lossy(), status.description().to_string_lossy());
    let (kernel, device) = (&task.kernel, &device.place.name);
    let log = if log.is_empty() { String::new() } else { format!(": {log}") };
    format!("kernel `{kernel}` failed on device `{device}`: {name} ({text}){log}")
}
