//! The endpoint of one VM of this host, in the place of a compute host's: listens at the masked
//! addresses *inside* the VM's network namespace and connects from the host's. So the VM reaches
//! the gateways that it was granted and nothing else of the host's network; who ends this process
//! cuts all of its connections.

use std::fs::{self, File};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::setsid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::lock::Lock;
use super::{Inside, Isolation, Settings, VmSpec, port};
use crate::random;
use crate::rules::GrantRow;

/// Connections of a VM at once; each has two threads.
const CONNECTIONS_MAX: usize = 128;

/// A gateway takes a connection within this time.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The stack of a thread that copies bytes.
const STACK_BYTES: usize = 128 << 10;

/// A word for rows: equal for equal ones.
#[must_use]
pub fn name_of(rows: &[GrantRow]) -> String {
    // Rows of strings and numbers can be written.
    let bytes = serde_json::to_vec(rows).unwrap_or_default();
    let digest = random::digest(&bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `weft-control relay`: leads a VM's masked addresses to gateways, as long as it lives.
///
/// # Errors
/// If they cannot be had, or another one does so.
pub fn relay(folder: &Path) -> Result<()> {
    let _ = setsid();
    let rows = fs::read(folder.join("rows.json")).context("there are no rows")?;
    let rows: Vec<GrantRow> = serde_json::from_slice(&rows)?;
    let spec = fs::read(folder.join("spec.json")).context("the VM's folder is gone")?;
    let (_, settings): (VmSpec, Settings) = serde_json::from_slice(&spec)?;
    let listeners = match settings.isolation {
        Isolation::Processes => listen(&rows)?,
        Isolation::Namespaces => listen_inside(folder, &rows)?,
        Isolation::Machines => bail!("a virtual machine of this host has no network"),
    };
    // Who holds the lock serves: it is taken when everything listens.
    let lock = Lock::take_for_life(&folder.join("relay.lock"), &name_of(&rows))?;
    let _lock = lock.context("the VM has its relay already")?;
    let open = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    for (listener, node) in listeners {
        let open = Arc::clone(&open);
        let thread = thread::Builder::new().name("listener".to_owned());
        threads.push(thread.spawn(move || serve(&listener, &node, &open))?);
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn listen(rows: &[GrantRow]) -> Result<Vec<(TcpListener, String)>> {
    let one = |row: &GrantRow| {
        let listener = TcpListener::bind(&row.masked)
            .with_context(|| format!("cannot listen at {}", row.masked))?;
        Ok((listener, row.node.clone()))
    };
    rows.iter().map(one).collect()
}

/// The same, within the VM's network. A thread of its own goes there: this one stays here.
fn listen_inside(folder: &Path, rows: &[GrantRow]) -> Result<Vec<(TcpListener, String)>> {
    let there: Inside = serde_json::from_slice(&fs::read(folder.join("port.json"))?)?;
    let holder = Lock::holder(&folder.join("guest.lock"))?.context("the VM does not run")?;
    let network = network_of(holder.pid, &there.network).context("the VM's network is gone")?;
    thread::scope(|scope| {
        let bind = || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            let mut commands = vec!["link set lo up".to_owned()];
            let address = |row: &GrantRow| Some(row.masked.parse::<SocketAddr>().ok()?.ip());
            let addresses = rows.iter().filter_map(address);
            commands.extend(addresses.map(|ip| format!("address replace {ip}/32 dev lo")));
            commands.iter().try_for_each(|command| port::ip(command))?;
            listen(rows)
        };
        let bound = scope.spawn(bind).join();
        bound.map_err(|_| anyhow::anyhow!("the thread in the VM's network ended"))?
    })
}

/// The network namespace of that name among a VM's processes.
fn network_of(guest: u32, name: &str) -> Option<File> {
    let children = fs::read_to_string(format!("/proc/{guest}/task/{guest}/children")).ok()?;
    let of_one = |child: &str| {
        let path = format!("/proc/{child}/ns/net");
        let link = fs::read_link(&path).ok()?;
        (link.to_string_lossy() == name).then(|| File::open(&path).ok())?
    };
    children.split_ascii_whitespace().find_map(of_one)
}

fn serve(listener: &TcpListener, node: &str, open: &Arc<AtomicUsize>) {
    loop {
        let Ok((near, _)) = listener.accept() else {
            // Out of descriptors, for a while.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (node, open) = (node.to_owned(), Arc::clone(open));
        let thread = thread::Builder::new().name("relay".to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            // The VM sees a connection that ends.
            let _ = lead(&near, &node);
            open.fetch_sub(1, Ordering::Relaxed);
        });
        drop(spawned);
    }
}

fn lead(near: &TcpStream, node: &str) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in std::net::ToSocketAddrs::to_socket_addrs(node)? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(far) => return exchange(near, &far),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(near: &TcpStream, far: &TcpStream) -> io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (mut from_near, mut to_far) = (near.try_clone()?, far.try_clone()?);
    let thread = thread::Builder::new().name("relay-out".to_owned()).stack_size(STACK_BYTES);
    let out = thread.spawn(move || {
        let _ = io::copy(&mut from_near, &mut to_far);
        let _ = to_far.shutdown(Shutdown::Write);
    })?;
    let (mut from_far, mut to_near) = (far, near);
    let _ = io::copy(&mut from_far, &mut to_near);
    let _ = near.shutdown(Shutdown::Both);
    let _ = far.shutdown(Shutdown::Both);
    let _ = out.join();
    Ok(())
}
