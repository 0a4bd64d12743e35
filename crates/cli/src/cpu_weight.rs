//! `weft run --cpu-weight auto`: the processor share that a vGPU's share of the device needs
//! (FairGV §5.4.2).
//!
//! A tenant needs at least as much processor time as its vGPU uses, so its processes weigh as its
//! vGPU does: its share of the device over an equal share among the vGPUs in use, in a control
//! group of their own where one may be made, else by their nice value. A guardian looks the weight
//! up once a second while the program runs. It is nobody's child, so that the run can become its
//! program as without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use rustix::event::Timespec;
use rustix::process::Pid;
use weft_api::lines;
use weft_node::admin::VgpuReport;

use crate::args::Sockets;
use crate::output;
use crate::owner::Owner;

/// Between two looks at the vGPU's weight.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// `cpu.weight` of a group that nobody weighed.
const USUAL_WEIGHT: f64 = 100.0;

/// A nice level's weight over the next one's.
const NICE_STEP: f64 = 1.25;

/// Has the processes of this process, which becomes a program on the vGPU `name` of the daemon in
/// `directory`, weighed from now on. False if that cannot be: the reason has been printed.
pub(crate) fn watch_own(directory: &Path, name: &str) -> Result<bool> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut launcher = weigh(directory, own, name)?;
    let status = launcher.stdin(Stdio::null()).stdout(Stdio::null()).status();
    Ok(status.context("cannot start the guardian of the processor share")?.success())
}

/// Starts the guardian of the process `owner` and returns when it watches. Called in a process that
/// ends now, so that the guardian is nobody's child: a program may wait for all its children.
pub(crate) fn start_guardian(directory: &Path, owner: i32, name: &str) -> Result<ExitCode> {
    let mut guardian = weigh(directory, owner, name)?;
    guardian.arg("--stay").stdin(Stdio::null()).stdout(Stdio::piped());
    // A Ctrl-C is for the program.
    guardian.process_group(0);
    let mut process = guardian.spawn().context("cannot start the guardian")?;
    let said = process.stdout.take().map(lines::first).transpose()?;
    // If it watches it has said so, else why not.
    Ok(ExitCode::from(u8::from(said.unwrap_or_default().is_empty())))
}

/// `weft weigh`
fn weigh(directory: &Path, owner: i32, name: &str) -> Result<Command> {
    let executable = std::env::current_exe().context("cannot find this executable")?;
    let mut command = Command::new(executable);
    command.arg("weigh").arg("--runtime-dir").arg(directory).arg(owner.to_string()).arg(name);
    Ok(command)
}

/// Weighs the process `owner` and its descendants as the vGPU `name`, until it ends.
pub(crate) fn guard(sockets: &Sockets, owner: i32, name: &str) -> Result<()> {
    let process = Owner::open(owner, "that was to be weighed")?;
    let mut means = Means::choose(owner.unsigned_abs())?;
    output::line("watching");
    let mut last = None;
    loop {
        follow(sockets, name, &mut means, &mut last);
        if process.ends_within(Some(&LOOK_EVERY))? {
            return Ok(());
        }
    }
}

/// Applies the vGPU's present weight if it has changed.
fn follow(sockets: &Sockets, name: &str, means: &mut Means, last: &mut Option<Seen>) {
    // A daemon that is being restarted changes no weights.
    let Ok(vgpus) = sockets.connect().and_then(|mut admin| Ok(admin.list()?)) else { return };
    let Some(seen) = relative_weight(&vgpus, name) else { return };
    if *last == Some(seen) {
        // Processes that began since have inherited it.
        return;
    }
    let said = match means.apply(seen.relative) {
        Ok(done) => format!("weft: processor share of vGPU {name}: {done}"),
        Err(error) => format!("weft: processor share stays as it is: {error:#}"),
    };
    // What other tenants' coming and going changes is not worth a line each time.
    if last.is_none_or(|last| last.weight != seen.weight) {
        output::note(&said);
    }
    *last = Some(seen);
}

/// A vGPU's weight as it was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    weight: u32,
    /// Its share of the device over an equal one.
    relative: f64,
}

/// The share of a vGPU among those in use; `None` before it is there.
fn relative_weight(vgpus: &[VgpuReport], name: &str) -> Option<Seen> {
    let own = vgpus.iter().find(|vgpu| vgpu.name == name)?;
    let in_use = vgpus.iter().filter(|vgpu| vgpu.sessions > 0 || vgpu.name == name);
    let in_use: Vec<_> = in_use.filter(|vgpu| vgpu.device == own.device).collect();
    // Tenants divide the device, their vGPUs divide the tenant's part.
    let tenants: BTreeMap<_, _> =
        in_use.iter().map(|vgpu| (vgpu.tenant, f64::from(vgpu.tenant_weight))).collect();
    let siblings = in_use.iter().filter(|vgpu| vgpu.tenant == own.tenant);
    let within = f64::from(own.weight) / siblings.map(|vgpu| f64::from(vgpu.weight)).sum::<f64>();
    let part = f64::from(own.tenant_weight) / tenants.values().sum::<f64>();
    #[expect(clippy::cast_precision_loss, reason = "at most thousands")]
    let count = in_use.len() as f64;
    Some(Seen { weight: own.weight, relative: within * part * count })
}

/// How processes are weighed.
#[derive(Debug)]
enum Means {
    /// A control group of their own.
    Group(Group),
    /// Nice values, from this one on.
    Nice { root: u32, usual: i32, why: String },
}

impl Means {
    fn choose(pid: u32) -> Result<Self> {
        let made = own_group().and_then(|own| Group::make(&own, pid));
        let why = match made {
            Ok(group) => return Ok(Self::Group(group)),
            Err(why) => format!("{why:#}"),
        };
        let usual = rustix::process::getpriority_process(None)?;
        Ok(Self::Nice { root: pid, usual, why })
    }

    fn apply(&mut self, relative: f64) -> Result<String> {
        match self {
            Self::Group(group) => group.weigh(relative),
            Self::Nice { root, usual, why } => {
                let wanted = nice_of(relative, *usual);
                let set = renice(*root, wanted).or_else(|error| {
                    // Without privilege a nice value may only rise.
                    if error.kind() == io::ErrorKind::PermissionDenied && wanted < *usual {
                        renice(*root, *usual).map(|_| *usual)
                    } else {
                        Err(error)
                    }
                })?;
                let short = if set == wanted {
                    String::new()
                } else {
                    format!(" instead of {wanted}, which takes CAP_SYS_NICE")
                };
                Ok(format!("nice {set}{short} (no control group: {why})"))
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "clamped to 1 to 10,000")]
#[expect(clippy::cast_sign_loss, reason = "clamped to 1 to 10,000")]
fn group_weight(relative: f64) -> u32 {
    (USUAL_WEIGHT * relative).round().clamp(1.0, 10_000.0) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "clamped to nice values")]
fn nice_of(relative: f64, usual: i32) -> i32 {
    let levels = -relative.ln() / NICE_STEP.ln();
    (f64::from(usual) + levels.round()).clamp(-20.0, 19.0) as i32
}

/// Sets the nice value of a process, of its descendants and of all their threads.
fn renice(root: u32, nice: i32) -> io::Result<i32> {
    let (mut left, mut seen) = (vec![root], BTreeSet::new());
    while let Some(pid) = left.pop() {
        if !seen.insert(pid) {
            continue;
        }
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            left.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
            let id = task.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(thread) = id.and_then(Pid::from_raw) else { continue };
            match rustix::process::setpriority_process(Some(thread), nice) {
                // It ended.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(nice)
}

/// A control group for the program, removed with the value.
#[derive(Debug)]
struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes one at or above the group `own`, at the next place whose children have weights, and
    /// moves the process there.
    fn make(own: &Path, pid: u32) -> Result<Self> {
        let mut refusal = anyhow::anyhow!("none above passes the cpu controller on");
        for parent in own.ancestors() {
            let Ok(passed_on) = fs::read_to_string(parent.join("cgroup.subtree_control")) else {
                break;
            };
            if !passed_on.split_whitespace().any(|controller| controller == "cpu") {
                continue;
            }
            let path = parent.join(format!("weft-{pid}"));
            let made = fs::create_dir(&path)
                .and_then(|()| fs::write(path.join("cgroup.procs"), pid.to_string()));
            match made {
                Ok(()) => return Ok(Self { path }),
                Err(error) => {
                    // Only there if the move was refused.
                    let _gone = fs::remove_dir(&path);
                    refusal = anyhow::anyhow!("{}: {error}", parent.display());
                }
            }
        }
        Err(refusal)
    }

    fn weigh(&self, relative: f64) -> Result<String> {
        let (file, weight) = (self.path.join("cpu.weight"), group_weight(relative));
        fs::write(&file, weight.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(format!("cpu.weight {weight} in {}", self.path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Descendants of the program may live on in it.
        let _in_use = fs::remove_dir(&self.path);
    }
}

/// The control group (version 2) that this process is in.
fn own_group() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (folder, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then_some(folder)
    });
    let root = mounted.context("control groups of version 2 are not mounted")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    Ok(Path::new(root).join(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_node::admin::VgpuState;

    fn vgpu(
        name: &str,
        (tenant, tenant_weight): (u32, u32),
        weight: u32,
        sessions: u32,
    ) -> VgpuReport {
        VgpuReport {
            device: "gpu0".to_owned(),
            name: name.to_owned(),
            owner: 0,
            tenant: Some(tenant),
            tenant_weight,
            tenant_cap_ppm: None,
            cap_part_ppm: None,
            weight,
            cap_ppm: None,
            sla_ns: 0,
            attainment: weft_node::admin::Attainment::default(),
            memory_bytes: 0,
            memory_used_bytes: 0,
            pinned_bytes: 0,
            state: VgpuState::Idle,
            is_closing: false,
            sessions,
            programs: Vec::new(),
            processes: Vec::new(),
            used_ns: 0,
            held_ns: 0,
            turns: 0,
            sessions_total: 0,
        }
    }

    #[test]
    fn a_share_is_relative_to_the_vgpus_in_use() {
        let one = (0, 1);
        let mut vgpus = vec![vgpu("a", one, 1, 1), vgpu("b", one, 3, 1), vgpu("c", one, 1000, 0)];
        assert_eq!(relative_weight(&vgpus, "a"), Some(Seen { weight: 1, relative: 0.5 }));
        assert_eq!(relative_weight(&vgpus, "b"), Some(Seen { weight: 3, relative: 1.5 }));
        assert_eq!(relative_weight(&vgpus, "new"), None);
        // Another tenant with three times the weight leaves a quarter to the two.
        vgpus.push(vgpu("d", (1, 3), 7, 1));
        assert_eq!(relative_weight(&vgpus, "b"), Some(Seen { weight: 3, relative: 0.5625 }));
        assert_eq!(relative_weight(&vgpus, "d"), Some(Seen { weight: 7, relative: 2.25 }));
    }

    #[test]
    fn weights_and_nice_values_stay_in_their_ranges() {
        assert_eq!([0.0, 0.5, 1.0, 1.5, 1e9].map(group_weight), [1, 50, 100, 150, 10_000]);
        assert_eq!([1.0, 1.25, 0.5, 1e-9, 1e9].map(|share| nice_of(share, 0)), [0, -1, 3, 19, -20]);
        assert_eq!(nice_of(1.0, 5), 5);
    }

    #[test]
    fn a_process_and_its_children_are_reniced() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", shell.id());
        let mut child = None;
        while child.is_none() {
            let list = fs::read_to_string(&children).unwrap();
            child = list.split_whitespace().next().and_then(|word| word.parse().ok());
            std::thread::yield_now();
        }
        let child = Pid::from_raw(child.unwrap());
        let nice = rustix::process::getpriority_process(None).unwrap().min(16) + 3;
        renice(shell.id(), nice).unwrap();
        let of_child = rustix::process::getpriority_process(child).unwrap();
        let of_shell = rustix::process::getpriority_process(Some(Pid::from_child(&shell))).unwrap();
        rustix::process::kill_process(child.unwrap(), rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert_eq!((of_shell, of_child), (nice, nice));
    }

    #[test]
    fn the_group_is_made_where_the_controller_is_passed_on() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("slice/scope");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("cgroup.subtree_control"), "memory").unwrap();
        fs::write(root.path().join("slice/cgroup.subtree_control"), "cpu memory").unwrap();
        let group = Group::make(&own, 7).unwrap();
        assert_eq!(group.path, root.path().join("slice/weft-7"));
        assert_eq!(fs::read_to_string(group.path.join("cgroup.procs")).unwrap(), "7");
        assert!(group.weigh(2.0).unwrap().contains("cpu.weight 200"));
        fs::write(root.path().join("slice/cgroup.subtree_control"), "").unwrap();
        let refusal = Group::make(&own, 8).unwrap_err().to_string();
        assert!(refusal.contains("cpu controller"), "{refusal}");
    }
}
