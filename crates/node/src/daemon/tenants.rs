//! The tenant socket: one hello, one answer, then the session's own thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::net::sockopt::{self, Timeout};
use weft_ring::peer;
use weft_wire::handshake::{
    Answer, Attribute, HANDSHAKE_BYTES_MAX, HandshakeError, Hello, RefusalCode, Welcome,
};

use super::Daemon;
use super::log::LogLimit;
use super::registry::Vgpu;
use super::sessions::{Refusal, Session, TenantFiles};

/// Lines about tenants that get no session, which any tenant can cause in a loop.
static REFUSALS: LogLimit = LogLimit::per_second(10);

/// Serves one connection: attaches the tenant and then serves its worker.
pub(crate) fn serve(daemon: &Arc<Daemon>, socket: OwnedFd) {
    let began = Instant::now();
    let (answer, opened) = match attach(daemon, &socket) {
        Ok((welcome, files, session)) => (Answer::Welcome(welcome), Some((files, session))),
        Err(refusal) => {
            if let Some(suppressed) = REFUSALS.line(Instant::now()) {
                tracing::info!(code = ?refusal.code, %refusal, suppressed, "tenant refused");
            }
            let Refusal { code, message } = refusal;
            (Answer::Refused { code: code as u16, message }, None)
        }
    };
    let Ok(bytes) = answer.to_bytes() else {
        tracing::error!("the answer to a tenant does not fit a packet");
        return;
    };
    let Some((files, session)) = opened else {
        // A tenant that does not wait for its refusal needs none.
        let _ = peer::send(&socket, &bytes, &[]);
        return;
    };
    let fds = [files.segment.as_fd(), files.pinned.as_fd(), files.lifeline.as_fd()];
    let sent = peer::send(&socket, &bytes, &fds);
    drop((files, socket));
    let start = &session.start;
    match sent {
        Ok(()) => {
            tracing::info!(
                session = start.session,
                vgpu = start.vgpu,
                uid = start.uid,
                pid = start.pid,
                program = start.program,
                attach_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
                "session opened"
            );
            if !daemon.save_registry() {
                tracing::warn!(session = start.session, "the session is not on disk");
            }
            daemon.serve_session(session);
        }
        Err(error) => {
            if let Some(suppressed) = REFUSALS.line(Instant::now()) {
                let session = start.session;
                tracing::info!(session, %error, suppressed, "tenant left before its session began");
            }
            daemon.end_session(session);
        }
    }
}

fn attach(daemon: &Daemon, socket: &OwnedFd) -> Result<(Welcome, TenantFiles, Session), Refusal> {
    let malformed = |message: String| Refusal { code: RefusalCode::Malformed, message };
    let limit = Some(daemon.config.limits.attach());
    let timeouts = sockopt::set_socket_timeout(socket, Timeout::Recv, limit)
        .and_then(|()| sockopt::set_socket_timeout(socket, Timeout::Send, limit));
    timeouts.map_err(|error| malformed(error.to_string()))?;
    let tenant = peer::credentials(socket).map_err(|error| malformed(error.to_string()))?;
    let message = peer::receive(socket, HANDSHAKE_BYTES_MAX)
        .map_err(|error| malformed(format!("no hello: {error}")))?
        .ok_or_else(|| malformed("no hello: the tenant hung up".to_owned()))?;
    let hello = Hello::from_bytes(&message.bytes).map_err(|error| {
        let code = match error {
            HandshakeError::Version(_) => RefusalCode::Version,
            HandshakeError::NotWeft | HandshakeError::Malformed(_) => RefusalCode::Malformed,
        };
        Refusal { code, message: error.to_string() }
    })?;
    let (session, files, vgpu) = daemon.open_session(&hello.body, &tenant)?;
    let welcome = welcome(daemon, &session, &vgpu);
    Ok((welcome, files, session))
}

fn welcome(daemon: &Daemon, session: &Session, vgpu: &Vgpu) -> Welcome {
    let info = daemon.memory.device_info();
    let attributes = info
        .attributes
        .iter()
        .map(|(number, value)| Attribute { number: *number, value: *value })
        .collect();
    Welcome {
        session: session.start.session,
        vgpu: vgpu.name.clone(),
        device_name: info.name.clone(),
        uuid: vgpu.uuid,
        capability_major: info.compute_capability.0,
        capability_minor: info.compute_capability.1,
        memory_bytes: vgpu.memory_bytes,
        pinned_bytes: session.start.pinned_bytes,
        attributes,
    }
}
