//! Jobs of Slurm in the place of VMs. Slurm makes and ends them; its prolog asks for cGPUs and
//! fetches what the job must know, its epilog gives them back. What is left when an epilog never
//! ran, because its node is gone, is found by asking Slurm for the job.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Delivery, Failure, Provisioner, VmSpec, VmState, ensure_room};
use crate::rules::{Endpoint, GrantRow, Ruled};
use crate::store::Port;

/// How instances of jobs are called: this, the job's number, and the node's name.
const PREFIX: &str = "slurm-";

/// Words of a job that Slurm does not know any longer.
const FORGOTTEN: &str = "Invalid job id";

/// Jobs of Slurm.
#[derive(Debug)]
pub struct Slurm {
    /// A file for each instance, with its name.
    folder: PathBuf,
    /// `squeue`.
    squeue: PathBuf,
}

/// A job on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job<'a> {
    number: u32,
    node: &'a str,
}

impl<'a> Job<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (number, node) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some(Self { number: number.parse().ok()?, node }).filter(|job| !job.node.is_empty())
    }
}

impl Slurm {
    /// What is known of instances is in that folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(folder: PathBuf, squeue: PathBuf) -> std::io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { folder, squeue })
    }

    fn name(&self, id: &str) -> Result<Option<String>, Failure> {
        match fs::read_to_string(self.folder.join(id)) {
            Ok(name) => Ok(Some(name)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What Slurm prints.
    fn ask(&self, arguments: &[String]) -> Result<String, Failure> {
        let mut command = Command::new(&self.squeue);
        command.args(arguments).stdin(Stdio::null()).env("SLURM_TIME_FORMAT", "standard");
        let output = command.output().map_err(|error| {
            Failure::passing(format!("cannot run {}: {error}", self.squeue.display()))
        })?;
        let told = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || told.contains(FORGOTTEN) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let squeue = self.squeue.display();
        let told = match told.trim() {
            "" => "it said nothing: is it Slurm's `squeue`?",
            told => told,
        };
        Err(Failure::passing(format!("{squeue} ended with {}: {told}", output.status)))
    }
}

/// Whether a job with this state uses its nodes.
fn is_alive(state: &str) -> bool {
    let over = [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PENDING",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ];
    !over.contains(&state)
}

impl Provisioner for Slurm {
    fn check(&self) -> Result<String, Failure> {
        let version = self.ask(&["--version".to_owned()])?;
        Ok(format!("cGPUs are those of jobs of {}", version.trim()))
    }

    /// A job is on its node's own network and nothing is masked: gateways are only numbered.
    fn masked(&self, _slot: u32, number: u32) -> Result<String, Failure> {
        ensure_room(number, "a job")?;
        Ok(format!("gateway-{number}"))
    }

    fn create(&self, vm: &VmSpec) -> Result<(), Failure> {
        if Job::parse(&vm.name).is_none() {
            return Err(Failure::permanent(format!(
                "`{}` is no job: an instance is called {PREFIX}JOB-NODE here, and is asked for by \
                 Slurm's prolog",
                vm.name
            )));
        }
        let fresh = self.folder.join(format!(".{}", vm.id));
        fs::write(&fresh, &vm.name)?;
        Ok(fs::rename(&fresh, self.folder.join(&vm.id))?)
    }

    fn port(&self, id: &str) -> Result<Option<(String, Port)>, Failure> {
        let Some(name) = self.name(id)? else { return Ok(None) };
        let host = Job::parse(&name).map(|job| job.node.to_owned()).unwrap_or_default();
        let none = String::new;
        Ok(Some((host, Port { tap: none(), mac: none(), ip: none() })))
    }

    fn state(&self, id: &str) -> Result<VmState, Failure> {
        let Some(name) = self.name(id)? else { return Ok(VmState::Absent) };
        let Some(job) = Job::parse(&name) else { return Ok(VmState::Absent) };
        let states = self.ask(&[
            "--noheader".to_owned(),
            "--states=all".to_owned(),
            "--format=%T".to_owned(),
            format!("--jobs={}", job.number),
            format!("--nodelist={}", job.node),
        ])?;
        let lives = states.lines().map(str::trim).any(|state| !state.is_empty() && is_alive(state));
        Ok(if lives { VmState::Active } else { VmState::Absent })
    }

    fn terminate(&self, id: &str) -> Result<bool, Failure> {
        match fs::remove_file(self.folder.join(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(true),
        }
    }

    fn ends(&self) -> bool {
        false
    }

    fn inventory(&self) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            found.push(entry?.file_name().to_string_lossy().into_owned());
        }
        found.retain(|id| !id.starts_with('.'));
        Ok(found)
    }

    fn console(&self, _id: &str) -> Result<String, Failure> {
        Err(Failure::permanent("Slurm has the output of its jobs"))
    }

    fn delivery(&self) -> Delivery {
        Delivery::Fetched
    }
}

/// Jobs connect to gateways themselves: there is nothing to lead anywhere.
impl Endpoint for Slurm {
    fn put(&self, _instance: &str, _rows: &[GrantRow]) -> Result<(), Failure> {
        Ok(())
    }

    fn holds(&self, _instance: &str, _rows: &[GrantRow]) -> Result<bool, Failure> {
        Ok(true)
    }

    fn withdraw(&self, _instance: &str, _host: Option<&str>) -> Result<(), Failure> {
        Ok(())
    }

    fn cut(&self, _instance: &str, _host: Option<&str>) -> bool {
        false
    }

    fn instances(&self) -> Ruled {
        Ruled::default()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::store::Machine;

    fn vm(id: &str, name: &str) -> VmSpec {
        VmSpec {
            id: id.to_owned(),
            name: name.to_owned(),
            project: "p".to_owned(),
            slot: 0,
            cgpus: 1,
            host: None,
            environment: Vec::new(),
            gateways: Vec::new(),
            nodes: std::collections::BTreeMap::new(),
            user_data: String::new(),
            machine: Machine::default(),
        }
    }

    /// With a `squeue` that knows what is in a file, and refuses without one.
    fn slurm(folder: &std::path::Path) -> Slurm {
        let squeue = folder.join("squeue");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *--jobs=9*) echo 'slurm_load_jobs error: Invalid job id \
             specified' >&2; exit 1;; esac\nexec cat {}/said\n",
            folder.display()
        );
        fs::write(&squeue, script).unwrap();
        fs::set_permissions(&squeue, fs::Permissions::from_mode(0o755)).unwrap();
        Slurm::new(folder.join("jobs"), squeue).unwrap()
    }

    #[test]
    fn an_instance_lives_as_long_as_its_job_is_on_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let slurm = slurm(folder.path());
        slurm.create(&vm("i7", "slurm-7-gpu-node-1")).unwrap();
        slurm.create(&vm("i7", "slurm-7-gpu-node-1")).unwrap();
        slurm.create(&vm("i9", "slurm-9-n")).unwrap();
        let failure = slurm.state("i7").unwrap_err();
        assert!(!failure.is_permanent, "a Slurm that does not answer has lost no job: {failure}");
        for (said, expected) in [
            ("RUNNING\n", VmState::Active),
            ("COMPLETING\n", VmState::Active),
            ("CONFIGURING\n", VmState::Active),
            ("COMPLETED\n", VmState::Absent),
            ("NODE_FAIL\n", VmState::Absent),
            ("PENDING\n", VmState::Absent),
            ("", VmState::Absent),
        ] {
            fs::write(folder.path().join("said"), said).unwrap();
            assert_eq!(slurm.state("i7").unwrap(), expected, "{said}");
        }
        assert_eq!(slurm.state("i9").unwrap(), VmState::Absent, "one that Slurm forgot");
        assert_eq!(slurm.state("other").unwrap(), VmState::Absent);
        let mut known = slurm.inventory().unwrap();
        known.sort();
        assert_eq!(known, ["i7", "i9"]);
        let (host, _) = slurm.port("i7").unwrap().unwrap();
        assert_eq!(host, "gpu-node-1");
        assert!(slurm.terminate("i7").unwrap() && slurm.terminate("i7").unwrap());
        assert_eq!(slurm.inventory().unwrap(), ["i9"]);
    }

    #[test]
    fn only_jobs_are_instances() {
        let folder = tempfile::tempdir().unwrap();
        let slurm = slurm(folder.path());
        for name in ["vm", "slurm-", "slurm-x-n", "slurm-7", "slurm-7-"] {
            let failure = slurm.create(&vm("i", name)).unwrap_err();
            assert!(failure.is_permanent && failure.words.contains("no job"), "{name}: {failure}");
        }
        assert!(slurm.inventory().unwrap().is_empty());
    }
}
