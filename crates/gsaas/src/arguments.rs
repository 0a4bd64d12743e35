//! The command line: `-name=value`, also with spaces around the sign as the paper prints it, and
//! with two dashes.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap_complete::Shell;
use weft_api::v1::{
    BATCH_MAX, CGPUS_MAX, DEFAULT_ADDRESS, Locality, Mode, NewBatch, NewInstance, SLA_US,
    USER_DATA_BYTES_MAX, WEIGHTS, check_key, check_name, read_token, token_warning,
};

use crate::completion::completion;
use crate::note;

/// A lease of replicas is 10 s long, and whoever takes it over has begun within as many.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked for, and of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The control plane.
    pub(crate) url: String,
    /// Certificates of who may vouch for it.
    pub(crate) authorities: Option<PathBuf>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    /// Answer in JSON.
    pub(crate) json: bool,
    /// Do not wait until it is done.
    pub(crate) no_wait: bool,
    /// Print what a guest printed as it is, to a terminal too.
    pub(crate) raw: bool,
    /// For how long to ask again when no answer comes.
    pub(crate) patience: Duration,
    /// The key of a creation that may be repeated.
    pub(crate) key: Option<String>,
    /// What to do.
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Launch a VM.
    Launch(NewInstance),
    /// Launch several equal VMs, or none.
    LaunchBatch(NewBatch),
    /// Terminate a VM.
    Terminate(String),
    /// List VMs.
    List,
    /// Show a VM, its cGPUs and what it went through.
    Show(String),
    /// Print a VM's console.
    Console(String),
    /// Write what a job must know into a folder.
    Attach(String, PathBuf),
    /// Show a project's quota and what it has.
    Quota(String),
    /// List GPUs.
    Gpus,
    /// Take a GPU out of service, or put it back.
    Drain(u32, bool),
    /// The same of all GPUs of a node.
    DrainNode(String, bool),
    /// List endpoints.
    Endpoints,
    /// Drain an endpoint, or put it back into service.
    DrainEndpoint(String, bool),
    /// Take an endpoint out of service.
    RemoveEndpoint(String),
    /// Forget a GPU that its node does not have any longer.
    RemoveGpu(u32),
    /// Print a completion script.
    Completion(Shell),
    /// Print the options.
    Help,
    /// Print the version.
    Version,
}

/// An option: its name, what stands behind it, which command it is for, and what it does.
pub(crate) struct Entry(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

/// Commands come first. What has no word for its value is a flag.
pub(crate) const OPTIONS: &[Entry] = &[
    Entry("l", "", "", "launch a VM with cGPUs"),
    Entry("t", "", "", "terminate the VM -id"),
    Entry("list", "", "", "list VMs"),
    Entry("show", "", "", "show the VM -id, its cGPUs and what it went through"),
    Entry("console", "", "", "print what the VM -id printed"),
    Entry("attach", "", "", "write what the job -id must know into -folder: gateways, environment"),
    Entry("quota", "", "", "show the quota of -project and what it has"),
    Entry("gpus", "", "", "list GPUs (administrators)"),
    Entry("endpoints", "", "", "list endpoints of compute hosts (administrators)"),
    Entry(
        "drain",
        "",
        "",
        "put nothing new on the GPU -gpu or those of -node, or lead nothing new by -endpoint \
         (administrators)",
    ),
    Entry("undrain", "", "", "put -gpu, -node or -endpoint back into service (administrators)"),
    Entry(
        "remove",
        "",
        "",
        "take -endpoint out of service; if it was drained, VMs on its host end; or forget the lost \
         GPU -gpu (administrators)",
    ),
    Entry(
        "completion",
        "SHELL",
        "",
        "print a completion script: bash, zsh, fish, elvish, powershell",
    ),
    Entry("help", "", "", "print this"),
    Entry("version", "", "", "print the version"),
    Entry("ncgpus", "N", "l", "how many cGPUs the VM has"),
    Entry(
        "count",
        "N",
        "l",
        "launch so many equal VMs, 1 to 64, NAME-1 and so on: all of them, or none if there is no \
         room or quota for all",
    ),
    Entry("poolmem", "MB", "l", "memory of each cGPU in MiB; must be there with -mode=shared"),
    Entry(
        "mode",
        "exclusive|shared",
        "l",
        "whether the GPUs are the VM's own; exclusive by default",
    ),
    Entry(
        "locality",
        "local|Xlocal",
        "l",
        "GPUs on the VM's host; Xlocal: and all its own; any host by default",
    ),
    Entry("weight", "W", "l", "weight of shared cGPUs against others on their GPUs, 1 to 10000"),
    Entry("sla", "US", "l", "make the cGPUs user-facing, with this SLA in microseconds"),
    Entry("name", "NAME", "l", "name of the VM"),
    Entry("userdata", "FILE", "l", "shell script that runs in the VM when it has booted"),
    Entry(
        "image",
        "ID",
        "l",
        "the VM's image, the project's own or a public one (OpenStack); else the control plane's",
    ),
    Entry("flavor", "NAME", "l", "its flavor, a public one (OpenStack); else the control plane's"),
    Entry(
        "network",
        "ID",
        "l",
        "its network, the project's own or one shared with it (OpenStack); else the control plane's",
    ),
    Entry("key", "KEY", "l", "the same request with the same key is carried out once"),
    Entry("project", "NAME", "l quota", "the project; administrators choose"),
    Entry(
        "folder",
        "FOLDER",
        "attach",
        "where; the files are secrets, and nobody else may read them",
    ),
    Entry("id", "VM", "t show console attach", "which VM"),
    Entry("gpu", "N", "drain undrain remove", "which GPU"),
    Entry("node", "NAME", "drain undrain", "all GPUs of which node"),
    Entry("endpoint", "HOST", "drain undrain remove", "of which compute host"),
    Entry("nowait", "", "l t", "do not wait until it is done"),
    Entry("raw", "", "console", "print it to a terminal as it is; else commands to it are shown"),
    Entry("json", "", "*", "print JSON"),
    Entry(
        "url",
        "URL",
        "*",
        "the control plane, or its replicas with commas between; else GSAAS_URL, else this host",
    ),
    Entry(
        "patience",
        "SECONDS",
        "*",
        "how long to ask again when an answer is lost or no replica leads; 30 by default",
    ),
    Entry(
        "ca",
        "FILE",
        "*",
        "certificates of who may vouch for it (https); else GSAAS_CA, or the system's",
    ),
    Entry("tokenfile", "FILE", "*", "file with the token; else GSAAS_TOKEN_FILE, or GSAAS_TOKEN"),
];

/// The options as text.
pub(crate) fn help() -> String {
    let mut text = "gsaas: VMs with cGPUs\n\n  gsaas -l -ncgpus=N [-poolmem=MB] \
                    [-mode=exclusive|shared] [-locality=local|Xlocal]\n  gsaas -t -id=VM\n"
        .to_owned();
    for Entry(name, value, of, what) in OPTIONS {
        let sign = if value.is_empty() { "" } else { "=" };
        let option = format!("-{name}{sign}{value}");
        let of = match *of {
            "" => String::new(),
            "*" => String::new(),
            of => format!(" (-{})", of.replace(' ', ", -")),
        };
        // A string takes everything.
        let _ = write!(text, "\n  {option:<28}{what}{of}");
    }
    text.push_str(
        "\n\nExit codes: 0 done, 1 not done, 2 wrong options, 3 no room or no quota, 4 nobody \
         answers.",
    );
    text
}

impl Command {
    /// What needs no control plane.
    pub(crate) fn said_here(&self) -> Option<String> {
        match self {
            Self::Help => Some(help()),
            Self::Version => Some(concat!("gsaas ", env!("CARGO_PKG_VERSION")).to_owned()),
            Self::Completion(shell) => Some(completion(*shell)),
            Self::Launch(_)
            | Self::LaunchBatch(_)
            | Self::Terminate(_)
            | Self::List
            | Self::Show(_)
            | Self::Console(_)
            | Self::Attach(..)
            | Self::Quota(_)
            | Self::Gpus
            | Self::Drain(..)
            | Self::DrainNode(..)
            | Self::Endpoints
            | Self::DrainEndpoint(..)
            | Self::RemoveEndpoint(_)
            | Self::RemoveGpu(_) => None,
        }
    }
}

/// Options that were given, in order.
struct Given(Vec<(&'static Entry, String)>);

impl Arguments {
    /// Reads the command line and the environment.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn read(arguments: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let text = |argument: OsString| {
            let shown = |argument: OsString| format!("{} is no text", argument.display());
            argument.into_string().map_err(shown)
        };
        let words: Vec<String> = arguments.map(text).collect::<Result<_, _>>()?;
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut given = Given::parse(&words)?;
        let command = given.command()?;
        let url = given.take("url").or_else(|| variable("GSAAS_URL"));
        let url = url.unwrap_or_else(|| format!("http://{DEFAULT_ADDRESS}"));
        // A variable may be set for others; who says it here relies on it.
        if given.take("ca").is_some() && !url.trim_start().starts_with("https://") {
            return Err(format!("-ca means nothing to {url}: say -url=https://HOST:PORT"));
        }
        let arguments = Self {
            url,
            authorities: given.take("ca").or_else(|| variable("GSAAS_CA")).map(PathBuf::from),
            token: variable("GSAAS_TOKEN"),
            token_file: given
                .take("tokenfile")
                .or_else(|| variable("GSAAS_TOKEN_FILE"))
                .map(PathBuf::from),
            json: given.take("json").is_some(),
            no_wait: given.take("nowait").is_some(),
            raw: given.take("raw").is_some(),
            patience: match given.take("patience") {
                Some(seconds) => Duration::from_secs(number(&seconds, "patience")?.into()),
                None => PATIENCE,
            },
            key: given.key()?,
            command: given.complete(command)?,
        };
        given.check_used(command)?;
        Ok(arguments)
    }

    /// The token.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn token(&self) -> Result<String> {
        if let Some(path) = &self.token_file {
            if let Some(words) = token_warning(path) {
                note(&format!("gsaas: {words}"));
            }
            return Ok(read_token(path)?);
        }
        Ok(self.token.clone().ok_or(NoToken)?)
    }
}

/// Nobody said who asks.
#[derive(Debug, thiserror::Error)]
#[error(
    "there is no token: `weft-control token` prints one on the control plane's host; put it into a \
     file that only you can read, and name that with -tokenfile or GSAAS_TOKEN_FILE"
)]
pub(crate) struct NoToken;

impl Given {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut given: Vec<(&'static Entry, String)> = Vec::new();
        let mut at = 0;
        while let Some(word) = words.get(at) {
            at += 1;
            let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                return Err(format!("`{word}` is no option: options begin with a dash"));
            };
            let (name, mut value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let entry = OPTIONS.iter().find(|entry| entry.0 == name);
            let entry = entry.ok_or_else(|| format!("there is no option -{name}{}", near(name)))?;
            // As printed in the paper: `-ncgpus = 2`. As shells complete it: `-ncgpus 2`.
            if value.is_none()
                && let Some(rest) = words.get(at).and_then(|word| word.strip_prefix('='))
            {
                at += 1;
                value = Some(rest.to_owned());
            } else if value.is_none() && !entry.1.is_empty() {
                value = Some(String::new());
            }
            if value.as_deref() == Some("") {
                value = words.get(at).filter(|word| !word.starts_with('-')).cloned();
                at += usize::from(value.is_some());
            }
            let value = match (entry.1, value) {
                ("", None) => String::new(),
                ("", Some(_)) => return Err(format!("-{name} takes no value")),
                (shown, None) => return Err(format!("-{name} needs a value: -{name}={shown}")),
                (shown, Some(value)) if value.is_empty() => {
                    return Err(format!("-{name} needs a value: -{name}={shown}"));
                }
                (_, Some(value)) => value,
            };
            if given.iter().any(|(known, _)| known.0 == name) {
                return Err(format!("-{name} is there twice"));
            }
            given.push((entry, value));
        }
        Ok(Self(given))
    }

    /// The one command.
    fn command(&self) -> Result<&'static str, String> {
        let commands: Vec<&str> =
            self.0.iter().filter(|(entry, _)| entry.2.is_empty()).map(|(e, _)| e.0).collect();
        match commands.as_slice() {
            [command] => Ok(OPTIONS.iter().find(|e| e.0 == *command).map_or("help", |e| e.0)),
            [] => Err("what is to be done? say -l, -t, -list, -show, -quota …".to_owned()),
            [first, second, ..] => Err(format!("-{first} and -{second} exclude each other")),
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(entry, _)| entry.0 == name);
        found.map(|(_, value)| value.clone())
    }

    /// Every option is one of the command's.
    fn check_used(&self, command: &str) -> Result<(), String> {
        let is_its = |of: &str| of.is_empty() || of == "*" || of.split(' ').any(|of| of == command);
        match self.0.iter().find(|(entry, _)| !is_its(entry.2)) {
            Some((entry, _)) => Err(format!("-{} means nothing to -{command}", entry.0)),
            None => Ok(()),
        }
    }

    fn required(&mut self, name: &str, command: &str) -> Result<String, String> {
        self.take(name).ok_or_else(|| format!("-{command} needs -{name}"))
    }

    fn complete(&mut self, command: &str) -> Result<Command, String> {
        Ok(match command {
            "l" => {
                let instance = self.launch()?;
                match self.take("count") {
                    Some(count) => Command::LaunchBatch(batch(&count, instance)?),
                    None => Command::Launch(instance),
                }
            }
            "t" => Command::Terminate(self.id(command)?),
            "list" => Command::List,
            "show" => Command::Show(self.id(command)?),
            "console" => Command::Console(self.id(command)?),
            "attach" => {
                let folder = PathBuf::from(self.required("folder", command)?);
                Command::Attach(self.id(command)?, folder)
            }
            "quota" => {
                let project = self.required("project", command)?;
                check_name(&project).map_err(|error| format!("-project: {error}"))?;
                Command::Quota(project)
            }
            "gpus" => Command::Gpus,
            "endpoints" => Command::Endpoints,
            "drain" => self.drain(command, false)?,
            "undrain" => self.drain(command, true)?,
            "remove" => match self.take("gpu") {
                Some(gpu) if self.take("endpoint").is_none() => {
                    Command::RemoveGpu(number(&gpu, "gpu")?)
                }
                Some(_) => return Err("-gpu and -endpoint exclude each other".to_owned()),
                None if self.take("endpoint").is_none() => {
                    return Err("-remove needs -gpu or -endpoint".to_owned());
                }
                None => Command::RemoveEndpoint(self.endpoint(command)?),
            },
            "completion" => {
                let shell = self.take("completion").unwrap_or_default();
                let unknown = |_| {
                    format!("-completion={shell}: it is one of bash, zsh, fish, elvish, powershell")
                };
                Command::Completion(shell.parse().map_err(unknown)?)
            }
            "version" => Command::Version,
            _ => Command::Help,
        })
    }

    fn id(&mut self, command: &str) -> Result<String, String> {
        let id = self.required("id", command)?;
        check_name(&id).map_err(|error| format!("-id: {error}"))?;
        Ok(id)
    }

    fn key(&mut self) -> Result<Option<String>, String> {
        let key = self.take("key");
        key.as_deref().map_or(Ok(()), check_key).map_err(|error| format!("-key: {error}"))?;
        Ok(key)
    }

    /// The host of an endpoint.
    fn endpoint(&mut self, command: &str) -> Result<String, String> {
        let host = self.required("endpoint", command)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if host.bytes().all(is_plain) && !host.is_empty() {
            return Ok(host);
        }
        Err(format!("-endpoint={host} is no name of a host: gsaas -endpoints lists them"))
    }

    fn drain(&mut self, command: &str, in_service: bool) -> Result<Command, String> {
        match (self.take("gpu"), self.take("node"), self.take("endpoint")) {
            (Some(gpu), None, None) => Ok(Command::Drain(number(&gpu, "gpu")?, in_service)),
            (None, Some(node), None) => {
                check_name(&node).map_err(|error| format!("-node: {error}"))?;
                Ok(Command::DrainNode(node, in_service))
            }
            (None, None, Some(_)) => {
                Ok(Command::DrainEndpoint(self.endpoint(command)?, in_service))
            }
            (None, None, None) => Err(format!("-{command} needs -gpu, -node or -endpoint")),
            _ => Err("-gpu, -node and -endpoint exclude each other".to_owned()),
        }
    }

    fn launch(&mut self) -> Result<NewInstance, String> {
        let cgpus = number(&self.required("ncgpus", "l")?, "ncgpus")?;
        if cgpus == 0 {
            return Err("-ncgpus=0: a VM without cGPUs is none of this command's".to_owned());
        }
        if cgpus > CGPUS_MAX {
            return Err(format!("-ncgpus={cgpus}: a VM has 1 to {CGPUS_MAX} cGPUs"));
        }
        let optional =
            |value: Option<String>, name| value.map(|value| number(&value, name)).transpose();
        let memory_mib = optional(self.take("poolmem"), "poolmem")?;
        let mode = match self.take("mode").as_deref() {
            None => None,
            Some("exclusive") => Some(Mode::Exclusive),
            Some("shared") => Some(Mode::Shared),
            Some(other) => {
                return Err(format!("-mode={other}: it is one of exclusive, shared"));
            }
        };
        let (locality, mode) = match (self.take("locality").as_deref(), mode) {
            (None, mode) => (None, mode),
            (Some("local"), mode) => (Some(Locality::Local), mode),
            (Some("Xlocal"), Some(Mode::Shared)) => {
                let words = "-locality=Xlocal is exclusive: leave -mode=shared out, or say \
                             -locality=local";
                return Err(words.to_owned());
            }
            (Some("Xlocal"), _) => (Some(Locality::Local), Some(Mode::Exclusive)),
            (Some(other), _) => {
                return Err(format!("-locality={other}: it is one of local, Xlocal"));
            }
        };
        if mode == Some(Mode::Shared) && memory_mib.is_none() {
            return Err("-mode=shared needs -poolmem=MB: the memory of each cGPU".to_owned());
        }
        if memory_mib == Some(0) {
            return Err("-poolmem=0: a cGPU without memory is of no use".to_owned());
        }
        let name = self.take("name");
        for (option, name) in [("name", &name), ("project", &self.take("project"))] {
            if let Some(name) = name {
                check_name(name).map_err(|error| format!("-{option}: {error}"))?;
            }
        }
        let weight = optional(self.take("weight"), "weight")?;
        weight.map_or(Ok(()), |weight| check_weight(weight, mode))?;
        let sla_us = optional(self.take("sla"), "sla")?.map(u64::from);
        if sla_us == Some(0) {
            return Err(
                "-sla=0: nothing is done within no time; without -sla there is none".to_owned()
            );
        }
        if let Some(sla_us) = sla_us.filter(|sla_us| !SLA_US.contains(sla_us)) {
            let (least, most) = (SLA_US.start(), SLA_US.end());
            return Err(format!("-sla={sla_us}: an SLA is {least} to {most} microseconds"));
        }
        let user_data = self.take("userdata").map(|path| user_data(&path));
        Ok(NewInstance {
            name,
            project: self.take("project"),
            cgpus,
            memory_mib: memory_mib.map(u64::from),
            mode,
            locality,
            weight,
            sla_us,
            user_data: user_data.transpose()?,
            image: self.take("image"),
            flavor: self.take("flavor"),
            network: self.take("network"),
        })
    }
}

/// So many VMs like this one, if there may be.
fn batch(count: &str, instance: NewInstance) -> Result<NewBatch, String> {
    let count = number_within(count, "count", 1..=BATCH_MAX)?;
    let cgpus = instance.cgpus;
    if u64::from(count) * u64::from(cgpus) > u64::from(CGPUS_MAX) {
        return Err(format!(
            "-count={count} with -ncgpus={cgpus}: VMs that are launched as one have up to \
             {CGPUS_MAX} cGPUs in all"
        ));
    }
    // The longest of their names.
    if let Some(name) = &instance.name {
        check_name(&format!("{name}-{count}")).map_err(|error| format!("-name: {error}"))?;
    }
    Ok(NewBatch { count, instance })
}

fn check_weight(weight: u32, mode: Option<Mode>) -> Result<(), String> {
    let (least, most) = (WEIGHTS.start(), WEIGHTS.end());
    if !WEIGHTS.contains(&weight) {
        return Err(format!("-weight={weight}: weights are {least} to {most}"));
    }
    if mode != Some(Mode::Shared) {
        let words = "-weight is of shared cGPUs, and these have their GPUs alone: say \
                     -mode=shared, or leave it out";
        return Err(words.to_owned());
    }
    Ok(())
}

/// A script, of which no more is read than a VM may be given.
fn user_data(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let most = USER_DATA_BYTES_MAX as u64;
    let read = fs::File::open(path).and_then(|file| file.take(most + 1).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read {path}: {error}"))?;
    if text.len() > USER_DATA_BYTES_MAX {
        return Err(format!("-userdata={path}: a script has up to {USER_DATA_BYTES_MAX} bytes"));
    }
    Ok(text)
}

fn number(text: &str, name: &str) -> Result<u32, String> {
    number_within(text, name, 0..=u32::MAX)
}

fn number_within(text: &str, name: &str, bounds: RangeInclusive<u32>) -> Result<u32, String> {
    let (least, most) = (bounds.start(), bounds.end());
    let wrong = || format!("-{name}={text}: it is a whole number, {least} to {most}");
    text.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(wrong)
}

/// An option that begins alike, for whoever mistyped one.
fn near(name: &str) -> String {
    let common = |other: &str| name.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let best = OPTIONS.iter().max_by_key(|entry| common(entry.0));
    match best {
        Some(entry) if common(entry.0) >= 3 => format!("; is it -{}?", entry.0),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, String> {
        Arguments::read(line.split_ascii_whitespace().map(OsString::from)).map(|all| all.command)
    }

    fn launch(line: &str) -> (u32, Option<u64>, Option<Mode>, Option<Locality>) {
        let Command::Launch(new) = read(line).unwrap() else { panic!("{line} launches nothing") };
        (new.cgpus, new.memory_mib, new.mode, new.locality)
    }

    /// The paper's examples, as it prints them and as they are meant.
    #[test]
    fn the_papers_commands_are_understood_word_for_word() {
        let (shared, local) = (Some(Mode::Shared), Some(Locality::Local));
        for (spaced, plain, meant) in [
            ("-l -ncgpus = 2", "-l -ncgpus=2", (2, None, None, None)),
            (
                "-l -ncgpus = 2 -poolmem = 2048 -mode = shared",
                "-l -ncgpus=2 -poolmem=2048 -mode=shared",
                (2, Some(2048), shared, None),
            ),
            (
                "-l -ncgpus = 8 -poolmem = 4096 -mode = shared -locality = local",
                "-l -ncgpus=8 -poolmem=4096 -mode=shared -locality=local",
                (8, Some(4096), shared, local),
            ),
            (
                "-l -ncgpus = 2 -locality = Xlocal",
                "--l --ncgpus=2 --locality= Xlocal",
                (2, None, Some(Mode::Exclusive), local),
            ),
        ] {
            assert_eq!(launch(spaced), meant);
            assert_eq!(launch(plain), meant);
        }
        assert_eq!(read("-t -id=i12").unwrap(), Command::Terminate("i12".into()));
        assert_eq!(read("-t -id = i12").unwrap(), Command::Terminate("i12".into()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, words) in [
            ("", "-list"),
            ("-l", "-l needs -ncgpus"),
            ("-l -ncgpus", "-ncgpus=N"),
            ("-l -ncgpus=", "-ncgpus=N"),
            ("-l -ncgpus=-1", "whole number"),
            ("-l -ncgpus=two", "whole number"),
            ("-l -ncgpus=0", "without cGPUs"),
            ("-l -ncgpus=1 -ncgpus=2", "twice"),
            ("-l -ncgpus=1 -mode=mixed", "exclusive, shared"),
            ("-l -ncgpus=1 -mode=shared", "-poolmem=MB"),
            ("-l -ncgpus=1 -poolmem=0", "without memory"),
            ("-l -ncgpus=1 -locality=far", "local, Xlocal"),
            ("-l -ncgpus=1 -locality=xlocal", "local, Xlocal"),
            ("-l -ncgpus=1 -poolmem=1 -mode=shared -locality=Xlocal", "exclusive"),
            ("-l -t -id=a", "exclude each other"),
            ("-t", "-t needs -id"),
            ("-t -id=../x", "is no name"),
            ("-attach -id=a", "-attach needs -folder"),
            ("-attach -folder=a", "-attach needs -id"),
            ("-t -id=a -ncgpus=2", "means nothing to -t"),
            ("-list now", "begin with a dash"),
            ("-list=3", "takes no value"),
            ("-l -ncgpu=2", "is it -ncgpus?"),
            ("-drain -gpu=x", "whole number"),
            ("-drain", "needs -gpu, -node or -endpoint"),
            ("-drain -node=a/b", "-node: "),
            ("-drain -node=a -gpu=1", "exclude each other"),
            ("-remove -endpoint=a -node=b", "means nothing to -remove"),
            ("-l -ncgpus=1 -network", "-network=ID"),
            ("-undrain -gpu=1 -endpoint=a", "exclude each other"),
            ("-remove", "-remove needs -gpu or -endpoint"),
            ("-remove -endpoint=a/b", "is no name of a host"),
            ("-list -patience=x", "whole number"),
            ("-list -raw", "means nothing to -list"),
            ("-completion=tcsh", "powershell"),
            ("-l -ncgpus=1 -userdata=/nowhere/at/all", "cannot read"),
            ("-l -ncgpus =", "-ncgpus=N"),
            ("-l -ncgpus -mode=shared", "-ncgpus=N"),
            ("-l -ncgpus=4097", "1 to 4096"),
            ("-l -ncgpus=1 -poolmem=1 -mode=shared -weight=0", "1 to 10000"),
            ("-l -ncgpus=1 -poolmem=1 -mode=shared -weight=10001", "1 to 10000"),
            ("-l -ncgpus=1 -weight=5", "say -mode=shared"),
            ("-l -ncgpus=1 -locality=Xlocal -weight=5", "say -mode=shared"),
            ("-l -ncgpus=1 -sla=0", "without -sla"),
            ("-l -ncgpus=1 -sla=99", "an SLA is 100 to"),
            ("-l -ncgpus=1 -key=\u{43a}\u{43b}\u{44e}\u{447}", "-key: an idempotency key"),
            ("-list -ca=/nonexistent -url=http://a", "-ca means nothing to http://a"),
            ("-list -ca=/nonexistent -url=a", "https://HOST:PORT"),
            ("-l -ncgpus=1 -count=0", "whole number, 1 to 64"),
            ("-l -ncgpus=1 -count=65", "whole number, 1 to 64"),
            ("-l -ncgpus=1 -count=two", "whole number, 1 to 64"),
            ("-l -ncgpus=1 -count", "-count=N"),
            ("-l -ncgpus=65 -count=64", "up to 4096 cGPUs in all"),
            ("-l -count=2", "-l needs -ncgpus"),
            ("-list -count=2", "means nothing to -list"),
            ("-l -ncgpus=1 -count=2 -id=a", "means nothing to -l"),
            (
                "-l -ncgpus=1 -count=2 -name=a2345678901234567890123456789012345678901234567",
                "-name: `a2345678901234567890123456789012345678901234567-",
            ),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(words), "`{line}` says: {error}");
        }
    }

    #[test]
    fn several_vms_are_asked_for_as_one_vm_is_and_how_many() {
        let of = |line: &str| read(line).unwrap();
        let Command::Launch(instance) = of("-l -ncgpus=2 -name=a -locality=local") else {
            panic!("one VM is no batch")
        };
        for (line, count) in [
            ("-l -ncgpus=2 -name=a -locality=local -count=64", 64),
            ("-l -count = 1 -ncgpus = 2 -name = a -locality = local", 1),
        ] {
            let expected = NewBatch { count, instance: instance.clone() };
            assert_eq!(of(line), Command::LaunchBatch(expected), "{line}");
        }
    }

    /// Shells complete a name and a value as two words.
    #[test]
    fn a_value_may_be_a_word_of_its_own() {
        for line in [
            "-l -ncgpus 2 -poolmem 1 -mode shared",
            "--l --ncgpus=2 --poolmem=1 --mode shared",
            "-l -ncgpus =2 -poolmem =1 -mode =shared",
            "-l -ncgpus= 2 -poolmem= 1 -mode= shared",
        ] {
            assert_eq!(launch(line), (2, Some(1), Some(Mode::Shared), None), "{line}");
        }
    }

    #[test]
    fn every_option_is_in_the_help_and_in_the_completion() {
        let (help, script) = (help(), completion(Shell::Bash));
        for Entry(name, ..) in OPTIONS {
            assert!(help.contains(&format!("-{name}")), "{name}");
            assert!(script.contains(&format!("-{name} --{name}")), "{name}");
        }
    }
}
