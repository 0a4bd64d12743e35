//! The port of a VM whose host's endpoint leads it (`weft-endpoint host`): a pair of interfaces,
//! one on the host, the other one, `eth0`, in the VM's network namespace. The pair ends with that
//! namespace at the latest, so no crash leaves it behind.

use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::random;
use crate::store::Port;

/// The address of every VM: tenants choose their own, and an endpoint tells VMs apart by their
/// ports.
const ADDRESS: &str = "100.64.0.2";

/// Where the masked addresses are; a VM's image has this way.
const MASKED_NETWORK: &str = "169.254.77.0/24";

/// The pair is there within this time, or something is wrong.
const LIMIT: Duration = Duration::from_secs(20);

/// How often to look for that.
const PAUSE: Duration = Duration::from_millis(1);

/// A VM asks the host again for a hardware address after this time, in ms, instead of a second:
/// it boots before it has rules, and until then nobody answers.
const ASK_AGAIN_MS: &str = "50";

/// The port of the VM with this id. The names are as long as the system allows, and hardware
/// addresses are of those that everybody may give.
pub(super) fn of(id: &str) -> Port {
    let [a, b, c, d, e, f, ..] = random::digest(id.as_bytes());
    Port {
        tap: format!("tap{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{:x}", f >> 4),
        mac: format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}"),
        ip: ADDRESS.to_owned(),
    }
}

/// Plugs the pair in, on the host; `vm` is a process that will be in the VM's network namespace.
///
/// # Errors
/// If it ends before that, or what `ip` says.
pub(super) fn plug(id: &str, vm: &mut Child) -> Result<()> {
    let Port { tap, mac, .. } = of(id);
    let own = fs::read_link("/proc/self/ns/net")?;
    let theirs = format!("/proc/{}/ns/net", vm.id());
    let deadline = Instant::now() + LIMIT;
    while fs::read_link(&theirs).is_ok_and(|network| network == own) {
        if let Some(status) = vm.try_wait()? {
            bail!("the VM ended with {status}");
        }
        ensure!(Instant::now() < deadline, "the VM has no network of its own");
        thread::sleep(PAUSE);
    }
    let peer = vm.id();
    let pair = format!("link add {tap} type veth peer name eth0 address {mac} netns {peer}");
    while let Err(error) = ip(&pair) {
        // The namespace of a VM that was killed goes some time after its last process.
        ensure!(exists(&tap) && Instant::now() < deadline, error);
        let _ = ip(&format!("link del {tap}"));
        thread::sleep(PAUSE);
    }
    // A host says nothing of itself there.
    ip(&format!("link set {tap} addrgenmode none"))?;
    ip(&format!("link set {tap} up"))
}

/// Takes the pair away, if it is there. It would go with the VM's namespace, which lives on for
/// minutes while a connection that was open waits for an answer to its end.
///
/// # Errors
/// What `ip` says.
pub(super) fn unplug(id: &str) -> Result<()> {
    let Port { tap, .. } = of(id);
    let gone = ip(&format!("link del {tap}"));
    // The namespace may have gone just now.
    if gone.is_err() && exists(&tap) { gone } else { Ok(()) }
}

/// The VM's own end, which is awaited.
///
/// # Errors
/// What `ip` says.
pub(super) fn set_up() -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while let Err(error) = ip("link set eth0 addrgenmode none") {
        ensure!(Instant::now() < deadline, error);
        thread::sleep(PAUSE);
    }
    fs::write("/proc/sys/net/ipv4/neigh/eth0/retrans_time_ms", ASK_AGAIN_MS)
        .context("cannot set how often the host is asked for its address")?;
    ip("link set lo up")?;
    ip(&format!("addr add {ADDRESS}/32 dev eth0"))?;
    ip("link set eth0 up")?;
    ip(&format!("route add {MASKED_NETWORK} dev eth0"))
}

/// What `/sys` shows may be another network's.
fn exists(interface: &str) -> bool {
    ip(&format!("link show {interface}")).is_ok()
}

/// Carries out a command of `ip`.
pub(super) fn ip(command: &str) -> Result<()> {
    let done = Command::new("ip").args(command.split(' ')).output().context("cannot start ip")?;
    let why = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "ip {command}: {}", why.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_its_vms_own_and_named_as_the_system_allows() {
        let [one, other] = ["i1", "i2"].map(of);
        assert!(one.tap != other.tap && one.mac != other.mac);
        assert_eq!(one, of("i1"), "a restart finds it again");
        assert!(one.tap.len() <= 15 && one.mac.starts_with("02:"));
        assert_eq!(one.mac.split(':').count(), 6);
    }
}
