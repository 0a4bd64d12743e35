//! Attaching: one hello, one answer, then the session's own thread.
//!
//! Each way to attach is a file of this folder and ends in an [`Attachment`]; from there on all are
//! one. [`unix`]: a program of this node. [`remote`]: one of another host, with a grant
//! ([`grants`]) and through the [`gateway`]. [`vm`]: one of a virtual machine on this host.
//!
//! Until a connection has said hello it is one of the [`Pending`](super::pending::Pending) ones,
//! whatever it does: it has no thread, and nothing that it sends beside bytes is taken.

pub(crate) mod gateway;
pub(crate) mod grants;
pub(crate) mod remote;
mod unix;
pub(crate) mod vm;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::net::sockopt::{self, Timeout};
use tracing::field::display;
use weft_api::node::{Elsewhere, Place, Whereabouts};
use weft_ring::peer::{self, Credentials};
use weft_sched::DeviceKey;
use weft_tasks::protocol;
use weft_wire::guest::OpenRegion;
use weft_wire::handshake::{Answer, Attribute, HelloBody, RefusalCode, Welcome};

use self::unix::{hear, understand};
use self::vm::Region;
use super::log::{LogLimit, printable};
use super::pending::Connection;
use super::registry::Vgpu;
use super::sessions::{Refusal, Reservation, Session, TenantFiles, name_asked};
use super::{Daemon, STACK_BYTES, tasks};
use crate::link::{LINE_BYTES_MAX, RegionPart};

/// Who attaches, and what for.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// What was asked for.
    pub(crate) hello: HelloBody,
    /// Whose session it becomes.
    pub(crate) tenant: Credentials,
    /// Where its client is.
    pub(crate) client: Client,
}

/// Where a session's client is.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    /// It maps the session's memory.
    Here,
    /// On another host: somebody who maps it relays for it.
    Elsewhere {
        /// The host, as the gateway sees it.
        host: Option<IpAddr>,
    },
    /// In a virtual machine that maps a region.
    Guest {
        /// Where the session's memory lies.
        region: Arc<Region>,
        /// Held for as long as it is being answered.
        _answering: Arc<()>,
    },
}

impl Attachment {
    /// The address of its program's host, as the gateway sees it.
    fn host(&self) -> Option<IpAddr> {
        self.elsewhere()?.address
    }

    /// Where its program is, if it is no process of this node.
    pub(crate) fn elsewhere(&self) -> Option<Elsewhere> {
        let (place, address) = match self.client {
            Client::Here => return None,
            Client::Elsewhere { host } => (Place::Host, host),
            Client::Guest { .. } => (Place::Machine, None),
        };
        Some(Elsewhere { place, address, claimed_pid: self.hello.pid })
    }
}

impl Client {
    /// Whether its vGPU was granted to somebody who is no user here.
    pub(crate) fn is_granted(&self) -> bool {
        !matches!(self, Self::Here)
    }
}

/// Lines about tenants that get no session, which any tenant can cause in a loop.
static REFUSALS: LogLimit = LogLimit::per_second(10);

/// Serves a connection that has something to say: a tenant that may attach gets a thread, which
/// opens its session and then serves its worker. Does not wait for anybody.
pub(crate) fn greet(daemon: &Arc<Daemon>, connection: Connection<OwnedFd>) {
    let Connection { socket, tenant, .. } = connection;
    let said = match hear(&socket) {
        Ok(said) if protocol::is_open(&said) => {
            return tasks::greet(daemon, socket, &tenant, &said);
        }
        Ok(said) if OpenRegion::is_one(&said) => {
            return vm::greet(daemon, socket, &tenant, &said);
        }
        said => said.and_then(|said| understand(&said)),
    };
    let mut host = None;
    let attachment = said.and_then(|hello| {
        let shown = grants::shown_from(&hello.token)?;
        let Some((from, shown)) = shown else {
            return Ok(Attachment { hello, tenant, client: Client::Here });
        };
        host = from.filter(|_| remote::is_gateway(daemon, &tenant));
        remote::redeem(daemon, hello, (&tenant, host), &shown)
    });
    match attachment {
        Ok(attachment) => proceed(daemon, socket, attachment),
        Err(refusal) => refuse_from(&socket, &tenant, host, refusal),
    }
}

/// Goes on with a tenant that is known. Does not wait for anybody.
fn proceed(daemon: &Arc<Daemon>, socket: OwnedFd, attachment: Attachment) {
    let (tenant, host) = (attachment.tenant, attachment.host());
    let attachment = match not_an_accelerator(daemon, attachment) {
        Ok(attachment) => attachment,
        Err(refusal) => return refuse_from(&socket, &tenant, host, refusal),
    };
    match daemon.must_wait(&name_asked(&attachment.hello, attachment.tenant.uid)) {
        Ok(None) => admit(daemon, socket, attachment),
        Ok(Some(vgpu)) => {
            let waiting = Arc::clone(daemon);
            let thread = thread::Builder::new().name("tenant".to_owned()).stack_size(STACK_BYTES);
            let spawned = thread.spawn(move || {
                waiting.await_move(vgpu);
                admit(&waiting, socket, attachment);
            });
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread for a tenant");
            }
        }
        Err(why) => {
            let (code, message) = (RefusalCode::Exhausted, format!("{why}; try again later"));
            refuse_from(&socket, &tenant, host, Refusal { code, message });
        }
    }
}

/// Gives a tenant that may attach a thread.
fn admit(daemon: &Arc<Daemon>, socket: OwnedFd, attachment: Attachment) {
    let elsewhere = attachment.elsewhere();
    match daemon.reserve_session(&attachment.hello, &attachment.tenant, elsewhere) {
        Ok(reservation) => receive(daemon, socket, attachment, reservation),
        Err(refusal) => refuse_from(&socket, &attachment.tenant, attachment.host(), refusal),
    }
}

/// Serves the connection of an accelerator's runner, which has said hello: opens its session on the
/// vGPU of that name, and serves its worker.
pub(crate) fn serve_runner(
    daemon: &Arc<Daemon>,
    socket: OwnedFd,
    runner: &Credentials,
    vgpu: &str,
) {
    let said = hear(&socket).and_then(|said| understand(&said));
    let reserved = said.and_then(|hello| {
        if hello.vgpu != vgpu {
            return Err(no_hello(RefusalCode::Malformed, "it names another vGPU"));
        }
        let reservation = daemon.reserve_session(&hello, runner, None)?;
        Ok((Attachment { hello, tenant: *runner, client: Client::Here }, reservation))
    });
    match reserved {
        Ok((attachment, reservation)) => serve(daemon, socket, attachment, &reservation),
        Err(refusal) => refuse(&socket, runner, refusal),
    }
}

/// Refuses sessions with what only tasks go to.
fn not_an_accelerator(daemon: &Daemon, attachment: Attachment) -> Result<Attachment, Refusal> {
    let vgpu = &attachment.hello.vgpu;
    if !tasks::is_member(vgpu) && !daemon.tasks.is_accelerator(vgpu) {
        return Ok(attachment);
    }
    let message = format!(
        "`{vgpu}` is a virtual accelerator, which takes tasks and no sessions: use the library \
         weft_tasks, or attach to another vGPU"
    );
    Err(Refusal { code: RefusalCode::Permission, message })
}

/// Tells a connection that it gets no session, if it listens.
pub(crate) fn refuse(socket: &OwnedFd, tenant: &Credentials, refusal: Refusal) {
    refuse_from(socket, tenant, None, refusal);
}

/// The same for a program of that host, if it is another one's.
fn refuse_from(socket: &OwnedFd, tenant: &Credentials, host: Option<IpAddr>, refusal: Refusal) {
    // Who only asked whether it would be let in has its answer, and is nobody's trouble.
    if refusal.code != RefusalCode::OnlyAsked
        && let Some(suppressed) = REFUSALS.line(Instant::now())
    {
        let (uid, pid) = (tenant.uid, tenant.pid.filter(|_| host.is_none()));
        let host = host.map(display);
        // It may have what the tenant said in it.
        let why = printable(&refusal.message, LINE_BYTES_MAX);
        tracing::info!(
            code = ?refusal.code,
            refusal = why,
            uid,
            pid,
            host,
            suppressed,
            "tenant refused"
        );
    }
    let Refusal { code, message } = refusal;
    let answer = Answer::Refused { code: code as u16, message };
    if let Ok(bytes) = answer.to_bytes() {
        // One answer fits a socket that nothing was sent to. A tenant that is gone needs none.
        let _ = peer::send(socket, &bytes, &[]);
    }
}

/// A refusal of a connection that has not said hello.
pub(crate) fn no_hello(code: RefusalCode, why: &str) -> Refusal {
    Refusal { code, message: format!("no hello: {why}") }
}

/// Gives a tenant its thread.
fn receive(
    daemon: &Arc<Daemon>,
    socket: OwnedFd,
    attachment: Attachment,
    reservation: Reservation,
) {
    let thread = thread::Builder::new().name("tenant".to_owned()).stack_size(STACK_BYTES);
    let (serving, kept) = (Arc::clone(daemon), reservation.clone());
    let spawned = thread.spawn(move || serve(&serving, socket, attachment, &reservation));
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for a tenant");
        daemon.cancel_reservation(&kept);
    }
}

/// Opens the session of a tenant that has a reservation, and serves its worker.
fn serve(daemon: &Arc<Daemon>, socket: OwnedFd, attachment: Attachment, reservation: &Reservation) {
    let began = Instant::now();
    let (session, files, vgpu) = match daemon.open_session(&attachment, reservation) {
        Ok(opened) => opened,
        Err(refusal) => {
            return refuse_from(&socket, &attachment.tenant, attachment.host(), refusal);
        }
    };
    let sent = send_welcome(daemon, &socket, &session, &files, &vgpu);
    // It has been answered.
    drop((files, socket, attachment));
    let start = &session.start;
    let who = Whereabouts { pid: start.pid, elsewhere: start.elsewhere.as_ref() };
    match sent {
        Ok(()) => {
            if let Some(suppressed) = daemon.lines.line(session.payer, Instant::now()) {
                tracing::info!(
                    session = start.session,
                    vgpu = start.vgpu,
                    uid = start.uid,
                    pid = start.elsewhere.is_none().then_some(start.pid),
                    from = start.elsewhere.as_ref().map(|_| display(who)),
                    program = start.program,
                    attach_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
                    suppressed,
                    "session opened"
                );
            }
            if !daemon.save_registry() {
                tracing::warn!(session = start.session, "the session is not on disk");
            }
            daemon.serve_session(session);
        }
        Err(error) => {
            if let Some(suppressed) = REFUSALS.line(Instant::now()) {
                let session = start.session;
                let error = format!("{error:#}");
                tracing::info!(session, error, suppressed, "tenant left before its session began");
            }
            daemon.end_session(session);
        }
    }
}

fn send_welcome(
    daemon: &Daemon,
    socket: &OwnedFd,
    session: &Session,
    files: &TenantFiles,
    vgpu: &Vgpu,
) -> anyhow::Result<()> {
    let bytes = Answer::Welcome(welcome(daemon, session, vgpu)).to_bytes()?;
    let limit = Some(daemon.config.limits.attach());
    sockopt::set_socket_timeout(socket, Timeout::Send, limit)?;
    let fds: Vec<_> = files.0.iter().map(OwnedFd::as_fd).collect();
    Ok(peer::send(socket, &bytes, &fds)?)
}

fn welcome(daemon: &Daemon, session: &Session, vgpu: &Vgpu) -> Welcome {
    let info = &daemon.devices.get(DeviceKey(session.start.device.key)).info;
    let attributes = info
        .attributes
        .iter()
        .map(|(number, value)| Attribute { number: *number, value: *value })
        .collect();
    let mut welcome = Welcome {
        session: session.start.session,
        vgpu: vgpu.name.clone(),
        device_name: info.name.clone(),
        uuid: vgpu.uuid,
        capability_major: info.compute_capability.0,
        capability_minor: info.compute_capability.1,
        memory_bytes: vgpu.memory_bytes,
        pinned_bytes: session.start.pinned_bytes,
        managed_bytes: session.start.managed_bytes,
        attributes,
        placement: session.start.part.map(RegionPart::placement),
    };
    if welcome.placement.is_some() {
        // A machine has a device's memory for its window.
        welcome.refuse_registering();
    }
    welcome
}
