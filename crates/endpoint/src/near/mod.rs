//! Beside the programs: a tenant socket whose sessions are another host's.

mod gateway;
mod session;
mod taker;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use weft_ring::peer;
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, Hello, HelloBody, RefusalCode};
use weft_wire::remote::{Grant, GrantBody, Opened};

pub use self::gateway::Gateway;
use self::session::Session;
use crate::left;
use crate::tls::{self, Channel};

/// A program must say hello within this time.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// Connections that may wait to be accepted.
const BACKLOG: u16 = 64;

/// Lets programs in that may use a vGPU of another host.
#[derive(Debug)]
pub struct Near {
    /// Host and port of the gateway.
    remote: String,
    grants: Vec<(GrantBody, String)>,
    /// Bulk bytes are compressed where it pays.
    compresses: bool,
    /// Tells this endpoint from others that were given the same grant.
    key: [u8; 32],
    /// Programs that are connected.
    programs: AtomicUsize,
}

/// Why a program gets no session.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// One of [`RefusalCode`]'s numbers.
    pub code: u16,
    /// For people.
    pub message: String,
}

impl Refusal {
    fn of(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code: code as u16, message: message.into() }
    }
}

impl Near {
    /// An endpoint of the gateway at `remote` with these grants, one or more.
    ///
    /// # Errors
    /// When a text is no grant, or two are for one vGPU.
    pub fn new(remote: &str, texts: &[String]) -> Result<Self> {
        ensure!(!texts.is_empty(), "no grant was given: ask the node's operator for `weft token`");
        let mut grants: Vec<(GrantBody, String)> = Vec::new();
        for text in texts {
            let body = Grant::from_text(text)?.claims()?;
            let twice = grants.iter().any(|(other, _)| other.vgpu == body.vgpu);
            ensure!(!twice, "two grants are for vGPU `{}`: give one of them", body.vgpu);
            grants.push((body, text.trim().to_owned()));
        }
        Ok(Self {
            remote: remote.to_owned(),
            grants,
            compresses: false,
            key: tls::random()?,
            programs: AtomicUsize::new(0),
        })
    }

    /// The same, whose bulk bytes are compressed where it pays. An older gateway does not.
    #[must_use]
    pub fn compressing(self, compresses: bool) -> Self {
        Self { compresses, ..self }
    }

    /// Asks the gateway whether programs that name these vGPUs would be let in (an empty name is
    /// the first grant's vGPU).
    ///
    /// # Errors
    /// The first [`Refusal`].
    pub fn ask(&self, vgpus: &[String]) -> Result<(), Refusal> {
        vgpus.iter().try_for_each(|vgpu| match self.open(&HelloBody::question(vgpu)) {
            Err(refusal) if refusal.code != RefusalCode::OnlyAsked as u16 => Err(refusal),
            // A session that nobody asked for ends with its connection.
            Ok(_) | Err(_) => Ok(()),
        })
    }

    /// Serves programs of this process's own user at a socket, for ever; tells `ready` when they
    /// may come.
    ///
    /// # Errors
    /// When nobody can listen there.
    pub fn serve(self: &Arc<Self>, socket: &Path, ready: impl FnOnce()) -> Result<()> {
        left::remove(socket, || peer::connect_plain(socket))?;
        let listener = peer::listen(socket, 0o600, BACKLOG)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let _refused = peer::refuse_descriptors(&listener);
        ready();
        loop {
            match peer::accept(&listener) {
                Ok(program) => {
                    let near = Arc::clone(self);
                    self.programs.fetch_add(1, Ordering::AcqRel);
                    let thread = thread::Builder::new().name("attach".to_owned());
                    let spawned = thread.spawn(move || {
                        near.greet(&program);
                        near.programs.fetch_sub(1, Ordering::AcqRel);
                    });
                    if spawned.is_err() {
                        // This program is hung up on; the sessions of others go on.
                        self.programs.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                // No descriptor is left, say: the next one would fail alike.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Programs that are connected.
    #[must_use]
    pub fn programs(&self) -> usize {
        self.programs.load(Ordering::Acquire)
    }

    /// Serves one program to its end.
    fn greet(&self, program: &OwnedFd) {
        match self.attach(program) {
            Ok(session) => session.run(),
            Err(Refusal { code, message }) => {
                let answer = Answer::Refused { code, message };
                if let Ok(bytes) = answer.to_bytes() {
                    // A program that is gone needs none.
                    let _ = peer::send(program, &bytes, &[]);
                }
            }
        }
    }

    fn attach(&self, program: &OwnedFd) -> Result<Session, Refusal> {
        let hello = hear(program)?;
        let (gateway, channel, opened) = self.open(&hello)?;
        Session::begin(program, gateway, channel, opened, &hello).map_err(|error| {
            Refusal::of(RefusalCode::Exhausted, format!("the endpoint has no room: {error:#}"))
        })
    }

    fn open(&self, hello: &HelloBody) -> Result<(Gateway, Channel, Opened), Refusal> {
        let grant = self.grant_for(hello)?;
        let gateway = Gateway::new(&self.remote, grant.0.server, self.compresses);
        let (channel, opened) = gateway.open(&grant.1, self.key, hello)?;
        Ok((gateway, channel, opened))
    }

    fn grant_for(&self, hello: &HelloBody) -> Result<&(GrantBody, String), Refusal> {
        let named = self.grants.iter().find(|(body, _)| body.vgpu == hello.vgpu);
        let first = self.grants.first().filter(|_| hello.vgpu.is_empty());
        named.or(first).ok_or_else(|| {
            let names: Vec<&str> = self.grants.iter().map(|(body, _)| body.vgpu.as_str()).collect();
            let message = format!(
                "no grant of this endpoint is for vGPU `{}`, only for {}: name one of those \
                 (WEFT_VGPU), or ask for another grant",
                hello.vgpu,
                names.join(", ")
            );
            Refusal::of(RefusalCode::Permission, message)
        })
    }
}

fn hear(program: &OwnedFd) -> Result<HelloBody, Refusal> {
    let malformed = |why: String| Refusal::of(RefusalCode::Malformed, why);
    let who = peer::credentials(program).map_err(|error| malformed(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if who.uid != own && who.uid != 0 {
        let why = format!("this endpoint is user {own}'s, and serves no other");
        return Err(Refusal::of(RefusalCode::Permission, why));
    }
    let limited = set_socket_timeout(program, Timeout::Recv, Some(HELLO_LIMIT));
    limited.map_err(|error| malformed(error.to_string()))?;
    let said = peer::receive_bytes(program, HANDSHAKE_BYTES_MAX, true)
        .map_err(|error| malformed(error.to_string()))?
        .ok_or_else(|| malformed("the program hung up".into()))?;
    let hello = Hello::from_bytes(&said).map_err(|error| malformed(error.to_string()))?.body;
    // As this host shows it: a container's program knows another number of itself.
    Ok(HelloBody { pid: who.pid.unwrap_or(hello.pid), ..hello })
}
