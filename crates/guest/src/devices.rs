//! The devices of the guest that its host is behind: the region, and two serial ports.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use weft_ring::peer;

/// Vendor and device of `ivshmem-plain`, as `sysfs` writes them.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");

/// A server whose socket is there listens within this time, or was killed.
const LISTENS_WITHIN: Duration = Duration::from_secs(2);

/// How often to look for that.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes of a region's name, which comes with a region.
const NAME_BYTES: usize = 16;

/// The region of this machine: the memory of its only `ivshmem-plain` device.
///
/// # Errors
/// When there is none, or several.
pub fn region() -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices").context("no PCI devices")? {
        let device = entry?.path();
        let says = |what: &str, wanted: &str| {
            fs::read_to_string(device.join(what)).is_ok_and(|text| text.trim() == wanted)
        };
        if says("vendor", IVSHMEM.0) && says("device", IVSHMEM.1) {
            found.push(device.join("resource2"));
        }
    }
    match found.as_slice() {
        [region] => Ok(region.clone()),
        [] => bail!("this machine has no ivshmem-plain device: docs/guests.md says how to add it"),
        _ => bail!("this machine has several ivshmem-plain devices: name one with --region"),
    }
}

/// Opens the region: the memory of a device, or what a Unix socket in its place gives. Before, the
/// device is enabled: a driver would do that, and it has none.
///
/// # Errors
/// The system's.
pub fn open_region(path: &Path) -> Result<OwnedFd> {
    let what = || format!("cannot open {}", path.display());
    if fs::metadata(path).with_context(what)?.file_type().is_socket() {
        let message = peer::receive(connect(path).with_context(what)?, NAME_BYTES)?;
        let region = message.and_then(|message| message.descriptors.into_iter().next());
        return region.with_context(|| format!("{} gives no region", path.display()));
    }
    let enable = path.with_file_name("enable");
    if fs::read_to_string(&enable).is_ok_and(|text| text.trim() == "0") {
        fs::write(&enable, "1").with_context(|| format!("cannot write {}", enable.display()))?;
    }
    let opened = OpenOptions::new().read(true).write(true).open(path);
    Ok(opened.with_context(what)?.into())
}

/// Connects to a server's socket. Between its file and its listening lies a moment.
fn connect(path: &Path) -> io::Result<OwnedFd> {
    let deadline = Instant::now() + LISTENS_WITHIN;
    loop {
        match peer::connect_plain(path) {
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// The serial port of that name.
///
/// # Errors
/// When there is none.
pub fn port(name: &str) -> Result<PathBuf> {
    let ports = "/sys/class/virtio-ports";
    let entries =
        fs::read_dir(ports).context("no virtio-serial ports: is virtio_console there?")?;
    for entry in entries {
        let port = entry?;
        let named = fs::read_to_string(port.path().join("name"));
        if named.is_ok_and(|text| text.trim() == name) {
            return Ok(Path::new("/dev").join(port.file_name()));
        }
    }
    bail!("this machine has no virtio-serial port {name}: docs/guests.md says how to add it")
}

/// Opens a port, which never blocks: a serial port, or a Unix socket in its place.
///
/// # Errors
/// The system's.
pub fn open_port(path: &Path, reads: bool) -> Result<OwnedFd> {
    let what = || format!("cannot open {}", path.display());
    if fs::metadata(path).with_context(what)?.file_type().is_socket() {
        let socket = UnixStream::connect(path).with_context(what)?;
        socket.set_nonblocking(true)?;
        return Ok(socket.into());
    }
    let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
    let opened = File::options().read(reads).write(true).custom_flags(flags).open(path);
    Ok(opened.with_context(what)?.into())
}
