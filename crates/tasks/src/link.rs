//! The way to a task runner: the node's socket, a welcome, and the runner's own.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use weft_ring::{peer, place};

use crate::accelerator::Options;
use crate::error::TaskError;
use crate::protocol::{self, Open, Opened, VERSION};

/// The daemon may have to start the runner, which attaches to every device.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// A runner takes a request within this time, or is given up.
const SEND_LIMIT: Duration = Duration::from_secs(30);

/// Why there is no way, and whether there may be one in a moment.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) error: TaskError,
    pub(crate) again: bool,
}

impl Closed {
    fn for_good(error: TaskError) -> Self {
        Self { error, again: false }
    }
}

/// Opens a socket to the runner of an accelerator.
pub(crate) fn open(options: &Options, accelerator: &str) -> Result<OwnedFd, Closed> {
    let (path, socket) = find(options)?;
    let failed =
        |error: io::Error| Closed { error: TaskError::connection(&path, &error), again: true };
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    let hello = Open {
        weft_tasks: VERSION,
        accelerator: accelerator.to_owned(),
        token: options.token.clone(),
        program: program.chars().take(64).collect(),
    };
    protocol::send(&socket, &hello, &[]).map_err(failed)?;
    let limit = Some(ANSWER_LIMIT);
    sockopt::set_socket_timeout(&socket, Timeout::Recv, limit).map_err(|e| failed(e.into()))?;
    let answer = protocol::receive::<Opened>(&socket).map_err(failed)?;
    let hung_up = || failed(io::ErrorKind::ConnectionReset.into());
    let (answer, mut descriptors) = answer.ok_or_else(hung_up)?;
    match (answer, descriptors.pop()) {
        (Opened::Refused { message, again }, _) => {
            Err(Closed { error: TaskError::Open(message), again })
        }
        (Opened::Welcome { .. }, None) => Err(hung_up()),
        (Opened::Welcome { .. }, Some(runner)) => {
            let limit = Some(SEND_LIMIT);
            let set = sockopt::set_socket_timeout(&runner, Timeout::Send, limit);
            set.map_err(|errno| failed(errno.into()))?;
            Ok(runner)
        }
    }
}

/// Connects to the first of the sockets at which somebody listens whom this user trusts.
fn find(options: &Options) -> Result<(PathBuf, OwnedFd), Closed> {
    for path in &options.sockets {
        let socket = match peer::connect_plain(path) {
            Ok(socket) => socket,
            Err(error) => {
                let error = TaskError::connection(path, &error);
                if matches!(error, TaskError::NoNode(_)) {
                    continue;
                }
                return Err(Closed::for_good(error));
            }
        };
        return match peer::stranger(&socket, options.named) {
            Ok(None) => Ok((path.clone(), socket)),
            Ok(Some(uid)) => Err(Closed::for_good(TaskError::Stranger { path: path.clone(), uid })),
            Err(error) => Err(Closed::for_good(TaskError::connection(path, &error))),
        };
    }
    Err(Closed { error: TaskError::NoNode(options.sockets.clone()), again: true })
}

/// The sockets of the environment: `WEFT_SOCKET`, else those of the directories where a node is
/// looked for.
pub(crate) fn sockets() -> (Vec<PathBuf>, bool) {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = set("WEFT_SOCKET").is_some() || set("WEFT_RUNTIME_DIR").is_some();
    let sockets = match set("WEFT_SOCKET") {
        Some(socket) => vec![socket.into()],
        None => {
            let uid = rustix::process::getuid().as_raw();
            let dirs = place::search(|name| set(name).map(PathBuf::from), uid);
            dirs.into_iter().map(|dir| dir.join(place::TENANT_SOCKET)).collect()
        }
    };
    (sockets, named)
}
