//! The memory that a VM shares with nodes of this host: for each of them a `weft-guest lend`, which
//! opens a region with the VM's grants and starts its server as the VM's user. Who ends this
//! process ends them, and with them the sessions of the VM's programs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::fs::chown;
use rustix::process::{WaitOptions, setsid, wait};
use rustix::thread::{Gid, Uid};

use super::guest::known;
use super::lock::Lock;
use super::{Settings, VmSpec, replace};

/// Sessions at once of each cGPU, and at the most of a node's: programs times the cGPUs that each
/// uses.
const SESSIONS_OF_CGPU: usize = 4;
const SESSIONS_MAX: usize = 32;

/// Shared memory of a session: half of it is for what is on its way, half for pinned memory.
const SESSION_MIB: usize = 32;

/// A lender says no more than this until it is ready: a few of QEMU's arguments.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// The folder of the sockets of what a VM shares with the node at this address.
pub(super) fn folder_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("region-{number}"))
}

/// File with the arguments that give QEMU what a VM shares with the node at this address: one a
/// line, there as soon as the memory is.
pub(super) fn devices_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("devices-{number}"))
}

/// Sessions and bytes of the region for so many cGPUs: bytes are a power of two, as a device has.
fn size_for(cgpus: usize) -> (usize, usize) {
    let sessions = (cgpus * SESSIONS_OF_CGPU).next_power_of_two().min(SESSIONS_MAX);
    (sessions, (sessions * SESSION_MIB) << 20)
}

/// `weft-control region`: shares memory between a VM and nodes of this host, as long as it lives.
///
/// # Errors
/// If a node refuses, or another process does so.
pub fn region(folder: &Path) -> Result<()> {
    let _ = setsid();
    let (vm, settings) = known(folder)?;
    let lock = Lock::take_for_life(&folder.join("region.lock"), "region")?;
    let _lock = lock.context("the VM shares memory already")?;
    let mut lenders = Vec::new();
    for (number, (masked, grants)) in vm.gateways.iter().enumerate() {
        if let Some(node) = vm.nodes.get(masked) {
            let (lender, devices) = lend(&settings, &vm, node, &folder_of(folder, number), grants)?;
            lenders.push(lender);
            let path = devices_of(folder, number);
            replace(&path, devices.as_bytes())?;
            if let Some(user) = settings.user(&vm)? {
                chown(&path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
            }
        }
    }
    match wait(WaitOptions::empty())? {
        Some((_, status)) => bail!("a lender of memory ended: {status:?}"),
        None => bail!("there is nobody to lend memory"),
    }
}

/// A process that ends when its input does.
type Lender = (Child, ChildStdin);

/// Starts one; with it, QEMU's arguments for what it lends.
fn lend(
    settings: &Settings,
    vm: &VmSpec,
    node: &Path,
    folder: &Path,
    grants: &[String],
) -> Result<(Lender, String)> {
    let program = settings.guest.as_ref().context("weft-guest is not installed")?;
    let (sessions, bytes) = size_for(grants.len());
    let mut command = Command::new(program);
    command.arg("lend").arg("--node").arg(node).arg("--folder").arg(folder);
    command.arg("--sessions").arg(sessions.to_string());
    command.arg("--region").arg(format!("{}MiB", bytes >> 20));
    if let Some(user) = settings.user(vm)? {
        command.arg("--user").arg(user.to_string());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start weft-guest")?;
    let mut input = child.stdin.take().context("a pipe")?;
    // One that has ended has said why.
    let _ = writeln!(input, "{}\n", grants.join("\n"));
    let mut devices = String::new();
    let said = child.stdout.take().context("a pipe")?.take(SAID_BYTES_MAX);
    for line in BufReader::new(said).lines() {
        match line?.as_str() {
            "ready" => return Ok(((child, input), devices)),
            argument => devices.extend([argument, "\n"]),
        }
    }
    // It has said why. One that says too much ends with its pipe.
    let status = child.wait()?;
    bail!("the node shares no memory with the VM: weft-guest ended with {status}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_has_room_for_its_cgpus_and_is_no_larger_than_nodes_allow() {
        assert_eq!(size_for(1), (4, 128 << 20));
        assert_eq!(size_for(3), (16, 512 << 20));
        assert_eq!(size_for(32), (32, 1 << 30));
    }
}
