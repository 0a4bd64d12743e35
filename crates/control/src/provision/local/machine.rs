//! A VM of this host that is a small virtual machine: QEMU, as the VM's user, with the memory that
//! it shares with the node on this host as a device. It has no network: its cGPUs are local ones.
//!
//! Its image is a kernel and an initial file system as `examples/guest/make-image` makes them. What
//! is this VM's own is laid behind it, as a second archive: its user-data, its environment, and the
//! program that the image's init runs.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::chown;
use rustix::thread::{Gid, Uid};
use serde::{Deserialize, Serialize};

use super::guest::{Console, PAUSE, RULES_LIMIT, own_file};
use super::{Inside, Settings, VmSpec, region, replace};

/// What virtual machines of this host are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Their kernel.
    pub kernel: PathBuf,
    /// Their initial file system.
    pub initrd: PathBuf,
    /// The program of QEMU.
    pub qemu: PathBuf,
    /// QEMU's accelerators, in the order in which they are tried.
    pub accel: String,
    /// Memory of each, in MiB.
    pub memory_mib: u64,
}

/// What the program in the guest says when it runs.
pub(crate) const BOOTED: &str = "weft: the user-data begins";

/// The program that the image's init runs, as an ordinary user. It stays: the VM does.
const BOOT: &str = "/weft/boot";

/// What a machine without cGPUs boots into; named to the kernel as `rdinit`.
pub(crate) const PLAIN_INIT: &str = "/weft/plain";

/// The image's initial file system with an init that does what the image's own does, but for the
/// agent: a VM that has no GPU.
pub(crate) fn plain_initrd(path: &Path, image: &Path) -> Result<()> {
    let script = format!(
        "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin\n\
         mount -t proc none /proc\nmount -t sysfs none /sys\nmount -t devtmpfs none /dev\n\
         mount -t tmpfs none /tmp\nmount -t tmpfs none /run\n\
         for pass in 1 2 3 4; do for module in /modules/*.ko; do insmod \"$module\" 2>/dev/null; \
         done; done\nip link set lo up 2>/dev/null\necho '{BOOTED}'\n\
         while :; do sleep 3600; done\n"
    );
    let mut out = Vec::new();
    entry(&mut out, "weft", 0o040_755, &[]);
    entry(&mut out, "weft/plain", 0o100_755, script.as_bytes());
    entry(&mut out, "TRAILER!!!", 0, &[]);
    with_archive(path, image, &out)
}

fn boot_script() -> String {
    format!(
        "#!/bin/sh\n. /weft/environment\necho '{BOOTED}'\n[ ! -s /weft/user-data ] || \
         {{ sh /weft/user-data; echo \"[user-data ended with $?]\"; }}\n\
         while :; do sleep 3600; done\n"
    )
}

/// A line for a shell in which nothing but the value is one.
fn exported(name: &str, value: &str) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

fn environment(vm: &VmSpec) -> String {
    let mut text: String =
        vm.environment.iter().map(|(name, value)| exported(name, value)).collect();
    if let Some((_, names)) = vm.environment.iter().find(|(name, _)| name == "WEFT_VGPU_0") {
        text += &exported("WEFT_VGPU", names);
    }
    text
}

/// A file of an archive as kernels unpack them (`newc`): a header of hexadecimal numbers, the name
/// and the content, each of a multiple of four bytes.
fn entry(out: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    // Of 13 numbers these are told; the rest is owners, times and devices.
    let (size, name_size) = (content.len(), name.len() + 1);
    let header = format!(
        "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}\
         {name_size:08x}{:08x}",
        0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    );
    let mut pad = |bytes: &[u8]| {
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    };
    pad(&[header.as_bytes(), name.as_bytes(), b"\0"].concat());
    pad(content);
}

/// The archive of what is this VM's own.
fn archive(vm: &VmSpec) -> Vec<u8> {
    let mut out = Vec::new();
    entry(&mut out, "weft", 0o040_755, &[]);
    entry(&mut out, "weft/boot", 0o100_755, boot_script().as_bytes());
    entry(&mut out, "weft/environment", 0o100_644, environment(vm).as_bytes());
    entry(&mut out, "weft/user-data", 0o100_644, vm.user_data.as_bytes());
    entry(&mut out, "TRAILER!!!", 0, &[]);
    out
}

/// The image's initial file system and a second archive behind it, in one file.
fn with_archive(path: &Path, image: &Path, archive: &[u8]) -> Result<()> {
    let what = || format!("cannot read {}", image.display());
    let mut from = fs::File::open(image).with_context(what)?;
    let mut to = own_file(path)?;
    let copied = io::copy(&mut from, &mut to)?;
    let gap = copied.next_multiple_of(512) - copied;
    io::copy(&mut io::repeat(0).take(gap), &mut to)?;
    Ok(to.write_all(archive)?)
}

/// Runs the machine until it ends.
///
/// # Errors
/// Always: a VM that has ended is one.
pub(super) fn run(folder: &Path, vm: &VmSpec, settings: &Settings, image: &Image) -> Result<()> {
    let status = own_file(&folder.join("status"))?;
    let console = Arc::new(Console::new(own_file(&folder.join("console.log"))?));
    let ended = boot(folder, vm, settings, image, &status, &console);
    let words = match &ended {
        Ok(how) => format!("failed: the virtual machine ended with {how}"),
        Err(error) => format!("failed: {error:#}"),
    };
    say(&status, &words)?;
    bail!("{words}")
}

fn say(mut status: &fs::File, words: &str) -> io::Result<()> {
    use std::io::Seek as _;
    status.set_len(0)?;
    status.rewind()?;
    status.write_all(words.as_bytes())
}

fn boot(
    folder: &Path,
    vm: &VmSpec,
    settings: &Settings,
    image: &Image,
    status: &fs::File,
    console: &Arc<Console>,
) -> Result<std::process::ExitStatus> {
    say(status, "booting")?;
    let inside = Inside { network: "none".to_owned() };
    replace(&folder.join("port.json"), &serde_json::to_vec(&inside)?)?;
    let user = settings.user(vm)?;
    let own = folder.join("initrd");
    with_archive(&own, &image.initrd, &archive(vm))?;
    if let Some(user) = user {
        chown(&own, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
    }
    let devices = region::devices_of(folder, 0);
    let deadline = Instant::now() + RULES_LIMIT;
    while !devices.exists() {
        ensure!(Instant::now() < deadline, "no memory is shared with the VM");
        thread::sleep(PAUSE);
    }
    let mut command = Command::new(settings.guest.as_ref().context("weft-guest is missing")?);
    command.arg("boot").arg("--devices").arg(&devices);
    command.arg("--kernel").arg(&image.kernel).arg("--initrd").arg(&own);
    command.arg("--qemu").arg(&image.qemu).arg("--accel").arg(&image.accel);
    command.arg("--ram").arg(format!("{}MiB", image.memory_mib)).arg("--").arg(BOOT);
    if let Some(user) = user {
        // Groups go with it.
        command.uid(user).gid(user);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start weft-guest")?;
    console.follow(child.stderr.take().context("a pipe")?)?;
    let mut output = child.stdout.take().context("a pipe")?;
    let mut block = [0; 4096];
    let mut is_active = false;
    while let Ok(read @ 1..) = output.read(&mut block) {
        console.print(&block[..read]);
        if !is_active && console.has(BOOTED)? {
            is_active = true;
            say(status, "active")?;
        }
    }
    Ok(child.wait()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `cpio` makes of an archive is what was put into it.
    #[test]
    fn an_archive_is_one_that_others_read() {
        let mut out = Vec::new();
        entry(&mut out, "a", 0o100_644, b"12345");
        let header = "070701".len() + 13 * 8;
        assert_eq!(&out[..6], b"070701");
        assert_eq!(&out[header..header + 2], b"a\0");
        assert_eq!(&out[54..62], b"00000005");
        assert_eq!(&out[94..102], b"00000002");
        assert_eq!(&out[112..117], b"12345");
        assert_eq!(out.len(), 120);
    }

    #[test]
    fn a_value_is_nothing_but_a_value() {
        assert_eq!(exported("A", "it's $(x)"), "export A='it'\\''s $(x)'\n");
    }
}
