//! Opens a machine's region for a server that is another user: whoever leads machines of a cloud
//! may get to the node, and the server, which hears what the guest says, may not. All that the
//! server has of the node is a connection on which the region was opened with the machine's grants.

use std::fs::{DirBuilder, File};
use std::io::{BufRead as _, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::fs::{Gid, Uid, chown};
use weft_ring::peer;
use weft_wire::remote::{Grant, to_hex};

use crate::opener::{Wanted, lend};
use crate::ready::Watched;

/// Bytes by which one bearer of grants is told from another.
const KEY_BYTES: usize = 32;

/// Bytes of all grants together: a machine has some dozens.
const GRANTS_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a region's name.
const NAME_BYTES: usize = 16;

/// A process that ends with this value.
#[derive(Debug)]
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        // One that has ended is reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who has something to say.
#[derive(Debug, Clone, Copy)]
enum Source {
    Owner,
    Server,
}

/// The grants on standard input, one a line until an empty one: the vGPUs that they name, and how
/// this bearer shows them.
///
/// # Errors
/// The system's, that there are none, or that one is no grant: the node would take it for an attach
/// token of some other vGPU's.
pub fn grants() -> Result<(String, String)> {
    let mut key = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    let (mut vgpus, mut shown) = (Vec::new(), Vec::new());
    for line in std::io::stdin().lock().take(GRANTS_BYTES_MAX).lines() {
        match line?.trim() {
            "" => break,
            text => {
                vgpus.push(Grant::from_text(text)?.claims()?.vgpu);
                shown.push(format!("{text}.{}", to_hex(&key)));
            }
        }
    }
    anyhow::ensure!(!shown.is_empty(), "no grants came on standard input");
    Ok((vgpus.join(","), shown.join(" ")))
}

/// Opens a region, starts its server in `folder` as that user, and opens it again for it whenever
/// the node was started again. Ends with standard input, and with the server: its status.
///
/// # Errors
/// When the node refuses the region, or the server cannot be started.
pub fn run(wanted: &Wanted, folder: &Path, user: Option<u32>) -> Result<i32> {
    let first = wanted.open([0; NAME_BYTES])?;
    let name = first.name;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    if let Some(user) = user {
        chown(folder, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
    }
    let (server, theirs) = peer::pair()?;
    let mut child = start(folder, user, theirs)?;
    // A node that is started again finds the region's file at who opens it.
    let _kept = first.region.as_ref().map(OwnedFd::try_clone).transpose()?;
    let mut first = Some(first);
    loop {
        let owner = std::io::stdin();
        let mut watched = Watched::new();
        watched.end(Source::Owner, owner.as_fd());
        watched.input(Source::Server, server.as_fd());
        for source in watched.wait(None)? {
            match source {
                Source::Owner => return Ok(0),
                Source::Server => match peer::receive_bytes(&server, NAME_BYTES, true)? {
                    None => return Ok(child.0.wait()?.code().unwrap_or(-1)),
                    // Whatever region it names: a machine has one.
                    Some(_) => lend(&server, first.take().map_or_else(|| wanted.open(name), Ok))?,
                },
            }
        }
    }
}

fn start(folder: &Path, user: Option<u32>, socket: OwnedFd) -> Result<Kept> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("lent").arg("--folder").arg(folder).env_clear().current_dir("/");
    command.stdin(Stdio::from(socket));
    if let Some(user) = user {
        // Groups go with it.
        command.uid(user).gid(user);
    }
    Ok(Kept(command.spawn().context("cannot start the machine's server")?))
}
