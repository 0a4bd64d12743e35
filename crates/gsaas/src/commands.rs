//! What the commands do.

use std::collections::BTreeSet;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::Serialize;
use weft_api::v1::{
    Attachment, Client, ClientError, Gpu, Instance, InstanceState, Kind, NewBatch, Variable,
    new_key,
};

use crate::arguments::{Arguments, Command};
use crate::{note, out, show};

/// Who does not answer is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Progress is told after this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// And then looked for so often, at least.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How the control plane says why a VM ends whose endpoint was removed.
const REMOVED: &str = "was taken out of service";

/// Carries out a command.
///
/// # Errors
/// Why it was not done.
pub(crate) fn run(client: &Client, arguments: &Arguments) -> Result<ExitCode> {
    let is_json = arguments.json;
    match &arguments.command {
        Command::Launch(new) => {
            let begun = launch(arguments, |key| client.create_instance(Some(key), new))?;
            let instance =
                if arguments.no_wait { begun } else { ready(client, begun, arguments.patience)? };
            if is_json {
                print(&instance)?;
            } else {
                out(&instance.id)?;
            }
        }
        Command::LaunchBatch(new) => launch_batch(client, arguments, new)?,
        Command::Terminate(id) => {
            let mut instance = client.delete_instance(id)?;
            if !arguments.no_wait {
                instance = gone(client, instance, arguments.patience)?;
            }
            if is_json {
                print(&instance)?;
            }
        }
        Command::List => match client.instances()? {
            instances if is_json => print(&instances)?,
            instances => out(&show::instances(&instances))?,
        },
        Command::Show(id) => {
            let instance = client.instance(id)?;
            let (cgpus, operation) =
                (client.instance_cgpus(id)?, client.operation(&instance.operation)?);
            if is_json {
                print(&serde_json::json!({
                    "instance": instance, "cgpus": cgpus, "operation": operation
                }))?;
            } else {
                out(&show::instance(&instance, &cgpus, &operation))?;
            }
        }
        Command::Console(id) => {
            let is_safe = arguments.raw || !std::io::stdout().is_terminal();
            let text = client.console(id)?;
            out(&if is_safe { text.trim_end().to_owned() } else { show::plain(text.trim_end()) })?;
        }
        Command::Attach(id, folder) => attach(&client.attachment(id)?, folder)?,
        Command::Quota(project) => match client.project(project)? {
            project if is_json => print(&project)?,
            project => out(&show::quota(&project))?,
        },
        Command::Gpus
        | Command::Drain(..)
        | Command::DrainNode(..)
        | Command::Endpoints
        | Command::DrainEndpoint(..)
        | Command::RemoveEndpoint(_)
        | Command::RemoveGpu(_) => administrate(client, &arguments.command, is_json)?,
        Command::Completion(_) | Command::Help | Command::Version => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// What administrators ask for.
fn administrate(client: &Client, command: &Command, is_json: bool) -> Result<()> {
    match command {
        Command::Gpus => match client.gpus()? {
            gpus if is_json => print(&gpus)?,
            gpus => out(&show::gpus(&gpus))?,
        },
        Command::Drain(gpu, in_service) => {
            let gpu = client.set_gpu(*gpu, *in_service)?;
            if is_json {
                print(&gpu)?;
            } else if gpu.cgpus > 0 && !in_service {
                let are = if gpu.cgpus == 1 { "cGPU is" } else { "cGPUs are" };
                note(&format!("gsaas: {} {are} still on it", gpu.cgpus));
            }
        }
        Command::DrainNode(node, in_service) => {
            let gpus = set_node(client, node, *in_service)?;
            if is_json {
                print(&gpus)?;
            } else if let cgpus @ 1.. = gpus.iter().map(|gpu| gpu.cgpus).sum::<u32>()
                && !in_service
            {
                let are = if cgpus == 1 { "cGPU is" } else { "cGPUs are" };
                note(&format!("gsaas: {cgpus} {are} still on its GPUs"));
            }
        }
        Command::Endpoints => match client.endpoints()? {
            endpoints if is_json => print(&endpoints)?,
            endpoints => out(&show::endpoints(&endpoints))?,
        },
        Command::DrainEndpoint(host, in_service) => {
            let endpoint = client.set_endpoint(host, *in_service)?;
            if is_json {
                print(&endpoint)?;
            } else if endpoint.instances > 0 && !in_service {
                note(&format!("gsaas: {} still led by it", vms(endpoint.instances)));
            }
        }
        Command::RemoveGpu(gpu) => client.delete_gpu(*gpu)?,
        Command::RemoveEndpoint(host) => {
            let ended = remove_endpoint(client, host)?;
            if !ended.is_empty() {
                note(&format!("gsaas: VMs that it led and that end now: {}", ended.join(", ")));
            }
        }
        Command::Launch(_)
        | Command::LaunchBatch(_)
        | Command::Terminate(_)
        | Command::List
        | Command::Show(_)
        | Command::Console(_)
        | Command::Attach(..)
        | Command::Quota(_)
        | Command::Completion(_)
        | Command::Help
        | Command::Version => {}
    }
    Ok(())
}

/// Takes all GPUs of a node out of service, or puts them back, one after the other: asked again, it
/// goes on where it stopped. What the node has lost comes back by itself.
fn set_node(client: &Client, node: &str, in_service: bool) -> Result<Vec<Gpu>> {
    let mut gpus = client.gpus()?;
    gpus.retain(|gpu| gpu.node == node);
    ensure!(!gpus.is_empty(), "there is no GPU of a node {node}: gsaas -gpus lists them");
    for gpu in gpus.iter_mut().filter(|gpu| !in_service || gpu.lost_ms.is_none()) {
        let changed = client.set_gpu(gpu.id, in_service);
        *gpu = changed.with_context(|| format!("GPU {} stays as it is", gpu.id))?;
    }
    Ok(gpus)
}

/// Asks for a launch, with a key: so it can be asked again when an answer was lost.
fn launch<T>(arguments: &Arguments, ask: impl FnOnce(&str) -> Result<T, ClientError>) -> Result<T> {
    let key = arguments.key.clone().map_or_else(new_key, Ok)?;
    ask(&key).map_err(|error| {
        let is_unknown = matches!(error, ClientError::Unanswered { .. });
        let error = anyhow::Error::from(error);
        if !is_unknown {
            return error;
        }
        error.context(format!(
            "it is not known whether the launch was accepted: the same command with -key={key} \
             launches nothing twice, and gsaas -list shows what may be there"
        ))
    })
}

/// Launches VMs of which each is one of its own once all were accepted: what becomes of one is told
/// whatever becomes of another.
fn launch_batch(client: &Client, arguments: &Arguments, new: &NewBatch) -> Result<()> {
    let begun = launch(arguments, |key| client.create_batch(Some(key), new));
    let begun = begun.map_err(|error| {
        let is_unknown = error.downcast_ref().is_some_and(knows_no_batches);
        let words = "this control plane is of an older version, and launches one VM at a time: \
                     leave -count out";
        if is_unknown { error.context(words) } else { error }
    })?;
    let (made, mut failed) = match arguments.no_wait {
        true => (begun.instances, Vec::new()),
        false => all_ready(client, begun.instances, arguments.patience),
    };
    let ids: Vec<&str> = made.iter().map(|one| one.id.as_str()).collect();
    if arguments.json {
        print(&made)?;
    } else if !ids.is_empty() {
        out(&ids.join("\n"))?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    let mut words = vec![format!("{} of {} VMs are ready", made.len(), new.count)];
    // What was not answered says with which code this ends, or else what was refused.
    let is_lost = |error: &anyhow::Error| error.downcast_ref().is_some_and(is_unknown);
    let at = failed.iter().position(is_lost);
    let at = at.or_else(|| failed.iter().position(|error| error.is::<ClientError>()));
    let lost = at.map(|at| failed.remove(at));
    words.extend(failed.iter().map(|error| format!("{error:#}")));
    let words = words.join("; ");
    Err(match lost {
        Some(error) => error.context(words),
        None => anyhow!(words),
    })
}

/// Whether nobody says now what has become of a VM.
fn is_unknown(error: &ClientError) -> bool {
    let away = [Kind::StoreAway, Kind::NotLeader, Kind::Busy];
    match error {
        ClientError::Unreachable { .. } | ClientError::Unanswered { .. } => true,
        ClientError::Refused(problem) => away.contains(&problem.kind),
        ClientError::Strange { .. }
        | ClientError::Address(_)
        | ClientError::Token
        | ClientError::Key(_)
        | ClientError::Authorities(_) => false,
    }
}

/// Whether what refused has never heard of batches.
fn knows_no_batches(error: &ClientError) -> bool {
    let is_path = |words: &str| words.contains("no path /v1/batches");
    matches!(error, ClientError::Refused(problem)
        if problem.kind == Kind::NotFound && is_path(&problem.detail))
}

/// Waits for each: those that are ready, and why the others are not. Once nobody answers the rest
/// is not waited for.
fn all_ready(
    client: &Client,
    begun: Vec<Instance>,
    patience: Duration,
) -> (Vec<Instance>, Vec<anyhow::Error>) {
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    let mut begun = begun.into_iter();
    while let Some(instance) = begun.next() {
        match ready(client, instance, patience) {
            Ok(instance) => made.push(instance),
            Err(error) => {
                let is_silent = error.downcast_ref().is_some_and(is_unknown);
                failed.push(error);
                let left: Vec<String> =
                    if is_silent { begun.by_ref().map(|one| one.id).collect() } else { Vec::new() };
                if !left.is_empty() {
                    failed.push(anyhow!("not waited for: {}", left.join(", ")));
                }
            }
        }
    }
    (made, failed)
}

/// So many VMs "are".
fn vms(count: u32) -> String {
    if count == 1 { "1 VM is".to_owned() } else { format!("{count} VMs are") }
}

/// Takes an endpoint out of service; the VMs that end with it.
fn remove_endpoint(client: &Client, host: &str) -> Result<Vec<String>, ClientError> {
    let failed = |vms: Vec<Instance>| -> BTreeSet<String> {
        let is_it = |vm: &Instance| vm.failure.as_ref().is_some_and(|why| why.contains(REMOVED));
        vms.into_iter().filter(is_it).map(|vm| vm.id).collect()
    };
    let before = failed(client.instances()?);
    client.delete_endpoint(host)?;
    let now = failed(client.instances()?);
    Ok(now.difference(&before).cloned().collect())
}

/// Files for `weft-endpoint connect` (an address, and a line for each grant), and one with the
/// environment.
fn attach(attachment: &Attachment, folder: &Path) -> Result<()> {
    for (number, gateway) in attachment.gateways.iter().enumerate() {
        let text = format!("{}\n{}\n", gateway.address, gateway.grants.join("\n"));
        write_secret(&folder.join(format!("gateway-{number}")), &text)?;
    }
    let line = |variable: &Variable| format!("{}={}\n", variable.name, variable.value);
    let environment: String = attachment.environment.iter().map(line).collect();
    write_secret(&folder.join("environment"), &environment)
}

/// A file of this user's that is there wholly or not at all.
fn write_secret(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    let mut options = fs::File::options();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(&fresh);
    let mut file = file.with_context(|| format!("cannot write {}", fresh.display()))?;
    file.write_all(text.as_bytes())?;
    Ok(fs::rename(&fresh, path)?)
}

fn print(value: &impl Serialize) -> Result<()> {
    Ok(out(&serde_json::to_string(value)?)?)
}

/// Waits for what becomes of a VM, and says so.
struct Wait {
    since: Instant,
    is_told: bool,
    patience: Duration,
}

impl Wait {
    fn new(patience: Duration) -> Self {
        Self { since: Instant::now(), is_told: false, patience }
    }

    /// What has become of a VM that was accepted, or what it still is after a while. A control
    /// plane that does not answer for a while goes on with it when it does.
    fn look(&mut self, client: &Client, id: &str, what: &str) -> Result<Instance, ClientError> {
        let waited = self.since.elapsed();
        if waited > PATIENCE && !self.is_told {
            note(&format!("gsaas: {id} is {what} …"));
            self.is_told = true;
        }
        let limit = if self.is_told { LOOK_AGAIN } else { PATIENCE.saturating_sub(waited) };
        let deadline = Instant::now() + self.patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match client.clone().patient(left).instance_within(id, limit) {
                Err(ClientError::Unreachable { .. } | ClientError::Unanswered { .. })
                    if Instant::now() < deadline =>
                {
                    thread::sleep(ASK_AGAIN);
                }
                answered => return answered,
            }
        }
    }
}

fn ready(client: &Client, mut instance: Instance, patience: Duration) -> Result<Instance> {
    let mut wait = Wait::new(patience);
    loop {
        match instance.state {
            InstanceState::Ready => return Ok(instance),
            InstanceState::Building => {}
            InstanceState::Terminating | InstanceState::Failed | InstanceState::Terminated => {
                let why = instance.failure.unwrap_or_else(|| "it was terminated".to_owned());
                bail!("{} came to nothing: {why}", instance.id)
            }
        }
        let id = instance.id;
        instance = wait.look(client, &id, "being made").with_context(|| {
            format!("VM {id} was accepted; gsaas -show -id={id} says what has become of it")
        })?;
    }
}

fn gone(client: &Client, mut instance: Instance, patience: Duration) -> Result<Instance> {
    let mut wait = Wait::new(patience);
    while instance.state == InstanceState::Terminating {
        instance = match wait.look(client, &instance.id, "being removed") {
            Ok(instance) => instance,
            Err(ClientError::Refused(problem)) if problem.kind == Kind::NotFound => {
                return Ok(Instance { state: InstanceState::Terminated, ..instance });
            }
            Err(error) => {
                let id = instance.id;
                return Err(anyhow::Error::from(error).context(format!(
                    "VM {id} is being removed; gsaas -show -id={id} says how far that is"
                )));
            }
        };
    }
    Ok(instance)
}
