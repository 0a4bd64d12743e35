//! vGPUs of another host: grants on that host, and endpoints on this one.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weft_api::files;
use weft_node::admin::{Answer, GrantRequest, Request};

use crate::args::{RemoteOptions, RunOptions, Sockets, TokenOptions};
use crate::{daemon, output, programs, run};

/// The program that relays.
const ENDPOINT: &str = "weft-endpoint";

/// What an endpoint of `weft run` has in its folder.
const TENANT_SOCKET: &str = "tenant.sock";

/// An endpoint has started after this time, or never will.
const YOUNG: Duration = Duration::from_secs(60);

/// `weft token`
pub(crate) fn token(sockets: &Sockets, options: &TokenOptions) -> Result<()> {
    let request = Request::Grant(GrantRequest {
        name: options.name.clone(),
        weight: options.settings.weight,
        memory_bytes: options.settings.memory.map(|size| size.0),
        valid_s: options.valid.as_secs(),
        uses: options.uses,
    });
    let answer = sockets.connect()?.call(&request)?;
    let Answer::Grant(report) = answer else {
        bail!("the node's answer is not understood: update the node");
    };
    if options.json {
        output::line(&serde_json::to_string(&report)?);
        return Ok(());
    }
    output::line(&report.grant);
    let listen = report.listen.as_deref().unwrap_or("(not listening yet; see the node's log)");
    output::note(&format!(
        "weft: for vGPU {}, weight {}, {}, {} endpoint(s), for {} s; the gateway is at {listen}\n\
         weft: whoever has this word has the vGPU; give it over a way that nobody else reads",
        report.vgpu,
        report.weight,
        output::size(report.memory_bytes),
        report.uses,
        options.valid.as_secs(),
    ));
    Ok(())
}

/// `weft remote`: becomes an endpoint.
pub(crate) fn serve(options: &RemoteOptions) -> Result<()> {
    warn_of_readers(&options.token_file);
    let mut command = endpoint()?;
    command.arg("connect").arg("--remote").arg(&options.remote);
    command.arg("--token-file").arg(&options.token_file).arg("--socket").arg(&options.socket);
    command.args(options.compress.then_some(COMPRESS));
    Err(command.exec()).context("cannot start the endpoint")
}

/// Says so if others can read a file with grants.
fn warn_of_readers(path: &Path) {
    if let Some(words) = files::warning(path, "whoever has a grant has its vGPU") {
        output::note(&format!("weft: {words}"));
    }
}

/// What has an endpoint compress.
const COMPRESS: &str = "--compress";

/// The endpoint's program.
pub(crate) fn endpoint() -> Result<Command> {
    let program = programs::executable_dir()?.join(ENDPOINT);
    if !program.exists() {
        bail!("{} is missing: it is installed beside `weft`", program.display());
    }
    Ok(Command::new(program))
}

/// `weft run --remote`: the endpoint ends with this process, which becomes the program.
pub(crate) fn run(remote: &str, sockets: &Sockets, options: &RunOptions) -> Result<ExitCode> {
    if options.settings.weight.is_some() || options.settings.memory.is_some() {
        bail!("what the vGPU may have is in the grant: leave --weight and --memory out");
    }
    if sockets.is_flag() {
        bail!(
            "--runtime-dir names a node of this host, and --remote another host's gateway: leave one \
             of them out"
        );
    }
    let is_set = |token: &String| std::env::var("WEFT_TOKEN").as_ref() == Ok(token);
    if options.token_file.is_some() && options.token.as_ref().is_some_and(|token| !is_set(token)) {
        bail!("--token and --token-file both name a grant: leave one of them out");
    }
    let grants = match (&options.token_file, &options.token) {
        (Some(path), _) => {
            warn_of_readers(path);
            std::fs::read_to_string(path).with_context(|| {
                format!(
                    "cannot read {}, which --token-file names for the grant that `weft token` \
                     printed on {remote}",
                    path.display()
                )
            })?
        }
        (None, Some(token)) => token.clone(),
        (None, None) => bail!(
            "--remote needs the grant that `weft token` printed on that host: put it into a file \
             that only you can read, and name it with --token-file"
        ),
    };
    sweep(&std::env::temp_dir());
    let directory = daemon::own_directory()?;
    let socket = directory.path().join(TENANT_SOCKET);
    if !launch(remote, &grants, &socket, options)? {
        return Ok(ExitCode::FAILURE);
    }
    // The endpoint removes it.
    let directory = directory.keep();
    output::note(&format!("weft: on the vGPU of {remote}"));
    let mut command = run::program(options, &programs::own_dir())?;
    command.env("WEFT_SOCKET", directory.join(TENANT_SOCKET)).env_remove("WEFT_TOKEN");
    Ok(run::become_program(command))
}

/// What the program will name: `--name`, else what it finds in its environment; an empty name is
/// the first grant's vGPU.
fn vgpus_of(options: &RunOptions) -> Vec<String> {
    if !options.names.is_empty() {
        return options.names.clone();
    }
    let named = std::env::var("WEFT_VGPU").unwrap_or_default();
    named.split(',').map(|name| name.trim().to_owned()).collect()
}

/// Removes what endpoints left that were killed: folders of this user with nothing in them but a
/// socket where nobody listens.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let own = rustix::process::geteuid().as_raw();
    for folder in entries.flatten().map(|entry| entry.path()) {
        let is_named = folder
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(daemon::DIRECTORY_PREFIX));
        let is_own = std::fs::symlink_metadata(&folder)
            .is_ok_and(|found| found.is_dir() && found.uid() == own);
        if is_named && is_own && is_left(&folder) {
            // Whoever else sweeps may be first; a folder that is not empty by now stays.
            let _ = std::fs::remove_file(folder.join(TENANT_SOCKET));
            let _ = std::fs::remove_dir(&folder);
        }
    }
}

/// Whether nobody will listen in this folder any more. One without a socket may be a start that has
/// not come so far.
fn is_left(folder: &Path) -> bool {
    // A socket is bound a moment before somebody listens there.
    let age = std::fs::metadata(folder).and_then(|found| found.modified());
    let age = age.ok().and_then(|changed| changed.elapsed().ok());
    if age.is_none_or(|age| age < YOUNG) {
        return false;
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names == [TENANT_SOCKET] && is_deaf(&folder.join(TENANT_SOCKET)) == Ok(true)
}

/// Whether nobody listens at a socket.
fn is_deaf(path: &Path) -> rustix::io::Result<bool> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Starts an endpoint for this process; whether it serves. It has said itself why not.
fn launch(remote: &str, grants: &str, socket: &Path, options: &RunOptions) -> Result<bool> {
    let mut command = endpoint()?;
    command.arg("launch").arg("--remote").arg(remote).arg("--token-file").arg("-");
    command.arg("--socket").arg(socket).arg("--owner").arg(std::process::id().to_string());
    command.args(vgpus_of(options).iter().map(|vgpu| format!("--ask={vgpu}")));
    command.args(options.compress.then_some(COMPRESS));
    let mut child = command.stdin(Stdio::piped()).spawn().context("cannot start the endpoint")?;
    let mut input = child.stdin.take().context("a pipe")?;
    // One that has ended has said why.
    let _ = input.write_all(grants.as_bytes());
    drop(input);
    Ok(child.wait()?.success())
}

/// Where a gateway is, as people write it: a name or an address, and a port.
pub(crate) fn address(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is not HOST:PORT, such as gpu7.example:7700 or [::1]:7700");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let is_bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    let has_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if host.is_empty() || is_bare_v6 || !has_port { Err(wrong()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_have_a_host_and_a_port() {
        for right in ["gpu7:7700", "127.0.0.1:1", "[::1]:7700"] {
            assert_eq!(address(right).as_deref(), Ok(right));
        }
        for wrong in ["", "gpu7", ":7700", "gpu7:", "gpu7:0", "gpu7:99999", "::1:7700", "a:b"] {
            assert!(address(wrong).unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn only_folders_of_dead_endpoints_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let names = ["weft-run-dead", "weft-run-lives", "weft-run-node", "weft-run-new", "other"];
        let [dead, lives, node, new, other] = names.map(folder);
        let listen =
            |folder: &Path| weft_ring::peer::listen(&folder.join(TENANT_SOCKET), 0o600, 4).unwrap();
        drop((listen(&dead), listen(&node), listen(&other)));
        let _listener = listen(&lives);
        std::fs::write(node.join("node.log"), "a daemon's").unwrap();
        sweep(parent.path());
        assert!(dead.exists(), "it may be about to listen");
        let long_ago = std::time::SystemTime::now() - 2 * YOUNG;
        for folder in [&dead, &lives, &node, &new, &other] {
            std::fs::File::open(folder).unwrap().set_modified(long_ago).unwrap();
        }
        sweep(parent.path());
        assert!(!dead.exists());
        for stays in [lives, node, new, other] {
            assert!(stays.exists(), "{}", stays.display());
        }
    }
}
