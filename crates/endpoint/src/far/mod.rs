//! Beside the node: lets endpoints in and relays their sessions to the node's workers.
//!
//! One process for all sessions, with no right but to open the node's tenant socket: whether a
//! grant is good the daemon decides. A connection is nobody's until its TLS handshake and its
//! first message are through (`pending`); it has no thread until then and is bounded in number
//! and time.

mod collector;
mod daemon;
mod door;
mod ledger;
mod pending;
mod session;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use weft_wire::handshake::RefusalCode;
use weft_wire::remote::{Grant, Open, Opened, Opening, Reception, Resume};

pub use self::daemon::Daemon;
use self::door::{Door, Refusal};
use self::ledger::{Ledger, Shadowed};
use self::pending::{Arrival, Pending, whose};
use self::session::Session;
use crate::link::{HEARTBEAT, SILENCE_MAX};
use crate::lock;
use crate::tls::{self, Channel, Identity};

/// Sessions that begin at once: each waits for a worker.
const BEGINNING_MAX: usize = 32;

/// How a gateway is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's tenant socket.
    pub socket: PathBuf,
    /// How long a session outlives its connection.
    pub grace: Duration,
    /// Sessions at once.
    pub sessions: usize,
    /// Connections at once that have not said what they want.
    pub pending: usize,
    /// How long they have for it.
    pub patience: Duration,
    /// How long who is let in is waited for.
    pub limits: Limits,
}

/// How long a gateway waits for endpoints that do not do their part.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// One that takes nothing for so long has lost its connection: an endpoint reads whatever its
    /// program does.
    pub stall: Duration,
    /// One that was told of its session's end hangs up within this time.
    pub last_words: Duration,
    /// One that was told of its session's beginning and has lost its connection without a word
    /// comes back within this time, if it has heard.
    pub unheard: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (last_words, unheard) = (Duration::from_secs(5), SILENCE_MAX);
        Self { stall: SILENCE_MAX, last_words, unheard }
    }
}

impl Limits {
    /// Sets how long sending and reading wait.
    fn settle(&self, channel: &Channel) -> Result<()> {
        channel.expect_reader(self.stall);
        Ok(channel.set_patience(HEARTBEAT)?)
    }
}

/// The gateway.
#[derive(Debug)]
pub struct Far {
    settings: Settings,
    sessions: Mutex<Sessions>,
    shadowed: Arc<Shadowed>,
}

#[derive(Debug, Default)]
struct Sessions {
    open: BTreeMap<[u8; 16], (String, Arc<Session>)>,
    /// Of each that begins the vGPU that its grant claims to be for, and who asks.
    beginning: Vec<(String, IpAddr)>,
}

impl Sessions {
    /// Lets another one of a vGPU begin, of `most` at once. As many places as a vGPU has stay free:
    /// each is somebody else's, and however many take all they can, the next one has a place.
    fn enter(&mut self, vgpu: &str, from: IpAddr, most: usize) -> Result<(), String> {
        let free = most.saturating_sub(self.open.len() + self.beginning.len());
        if free == 0 {
            return Err(format!(
                "the gateway has its {most} sessions: try again when one has ended, or have the \
                 node's operator raise remote.sessions"
            ));
        }
        let open = self.open.values().filter(|(of, _)| of == vgpu).count();
        let own = open + self.beginning.iter().filter(|(of, _)| of == vgpu).count();
        if own > 0 && own >= free {
            return Err(format!(
                "vGPU `{vgpu}` has {own} of the gateway's {most} sessions, and the {free} that are \
                 left are for others: end some of its programs, or have the node's operator raise \
                 remote.sessions"
            ));
        }
        // What a grant claims is not known to be true yet: the same by where it comes from.
        let from = whose(from);
        let of_it = self.beginning.iter().filter(|(_, other)| *other == from).count();
        let free = BEGINNING_MAX.saturating_sub(self.beginning.len());
        if free == 0 || (of_it > 0 && of_it >= free) {
            return Err("too many sessions begin at this moment; try again".into());
        }
        self.beginning.push((vgpu.to_owned(), from));
        Ok(())
    }

    /// One of a vGPU does not begin any longer.
    fn begun(&mut self, vgpu: &str, from: IpAddr) {
        let from = whose(from);
        let at = self.beginning.iter().position(|(of, other)| of == vgpu && *other == from);
        at.map(|at| self.beginning.swap_remove(at));
    }
}

impl Far {
    /// A gateway that nobody has reached yet.
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self { settings, sessions: Mutex::default(), shadowed: Arc::default() })
    }

    /// Listens; where, once it does.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind(address).map_err(|error| {
            let why = if error.kind() == ErrorKind::AddrInUse {
                "another gateway or program listens there; end it, or choose another port"
            } else {
                "choose an address of this host, or 0.0.0.0, and a port that its user may have"
            };
            let what = format!("cannot listen at {address} (remote.listen): {why}");
            anyhow::Error::new(error).context(what)
        })?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    /// Finds out whether this process's user may open the node's socket.
    ///
    /// # Errors
    /// What to do if not.
    pub fn ensure_allowed(socket: &Path) -> Result<()> {
        door::ensure_allowed(socket)
    }

    /// Lets endpoints in, for ever, and answers the daemon in between.
    ///
    /// # Errors
    /// When the system has no way to wait any more.
    pub fn serve(
        self: &Arc<Self>,
        listener: &TcpListener,
        identity: &Identity,
        mut daemon: Daemon,
    ) -> Result<()> {
        let config = identity.server_config()?;
        let Settings { pending, patience, .. } = self.settings;
        let mut pending = Pending::new(config, pending, patience);
        listener.set_nonblocking(true)?;
        loop {
            for arrival in pending.wait(listener, &mut daemon)? {
                self.receive(arrival);
            }
        }
    }

    /// Sessions that are open, or begin.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        let sessions = lock(&self.sessions);
        sessions.open.len() + sessions.beginning.len()
    }

    fn receive(self: &Arc<Self>, arrival: Arrival) {
        let Arrival { channel, opening, from } = arrival;
        match opening {
            Opening::Resume(resume) => self.resume(channel, &resume),
            Opening::Open(open) => {
                // One that lies is refused by the node, which would take what is none for a
                // program's word, and this gateway for that program.
                let claims = Grant::from_text(&open.grant).and_then(|grant| grant.claims());
                let vgpu = match claims {
                    Ok(claims) => claims.vgpu,
                    Err(none) => {
                        return refuse(
                            &channel,
                            &Refusal::of(RefusalCode::Permission, none.to_string()),
                        );
                    }
                };
                if let Err(why) = lock(&self.sessions).enter(&vgpu, from, self.settings.sessions) {
                    refuse(&channel, &Refusal::of(RefusalCode::Exhausted, why));
                    return;
                }
                let far = Arc::clone(self);
                let thread = thread::Builder::new().name("session".into()).stack_size(256 << 10);
                let name = vgpu.clone();
                let spawned = thread.spawn(move || far.begin(channel, (&open, from), name));
                if spawned.is_err() {
                    lock(&self.sessions).begun(&vgpu, from);
                }
            }
        }
    }

    /// Begins a session and relays it to its end.
    fn begin(&self, channel: Channel, (open, from): (&Open, IpAddr), vgpu: String) {
        let session = self.make(open, from, &vgpu);
        let mut sessions = lock(&self.sessions);
        sessions.begun(&vgpu, from);
        match session {
            Ok((session, opened)) => {
                // It may be resumed as soon as the endpoint knows its name.
                let id = opened.session;
                sessions.open.insert(id, (vgpu, Arc::clone(&session)));
                drop(sessions);
                let reception = Reception::Opened(Box::new(opened));
                let settled = self.settings.limits.settle(&channel);
                if settled.and_then(|()| say(&channel, &reception)).is_ok() {
                    session.run(channel);
                }
                lock(&self.sessions).open.remove(&id);
            }
            Err(refusal) => {
                drop(sessions);
                refuse(&channel, &refusal);
            }
        }
    }

    fn make(
        &self,
        open: &Open,
        from: IpAddr,
        vgpu: &str,
    ) -> Result<(Arc<Session>, Opened), Refusal> {
        let Settings { socket, grace, limits, .. } = &self.settings;
        let door = Door::open(socket, open, from)?;
        let no_room = |error: anyhow::Error| {
            Refusal::of(RefusalCode::Exhausted, format!("the gateway has no room: {error:#}"))
        };
        let (session, secret) =
            tls::random().and_then(|id| Ok((id, tls::random()?))).map_err(no_room)?;
        let opened = Opened {
            session,
            secret,
            arena_bytes: door.segment.arena_len() as u64,
            grace_ms: u32::try_from(grace.as_millis()).unwrap_or(u32::MAX),
            welcome: door.welcome.clone(),
        };
        let ledger = Ledger::new(vgpu.to_owned(), Arc::clone(&self.shadowed));
        let session = Session::new(&secret, door, open, (*grace, *limits), ledger);
        let session = session.map_err(no_room)?;
        Ok((Arc::new(session), opened))
    }

    fn resume(&self, channel: Channel, resume: &Resume) {
        let session = lock(&self.sessions).open.get(&resume.session).cloned();
        match session.filter(|(_, session)| session.knows(&resume.secret)) {
            Some((_, session)) => session.offer(channel, resume.received),
            None => {
                let why = "there is no such session: its grace time is over, or the gateway was \
                           started again";
                refuse(&channel, &Refusal::of(RefusalCode::Permission, why));
            }
        }
    }
}

/// Says why, if the endpoint listens, and hangs up.
fn refuse(channel: &Channel, refusal: &Refusal) {
    let Refusal { code, message } = refusal;
    let reception = Reception::Refused { code: *code, message: message.clone() };
    // An endpoint that is gone needs no answer.
    let _ = say(channel, &reception);
}

fn say(channel: &Channel, reception: &Reception) -> Result<()> {
    let bytes = reception.to_bytes()?;
    let mut message = u32::try_from(bytes.len())?.to_le_bytes().to_vec();
    message.extend_from_slice(&bytes);
    Ok(channel.send(&message)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_takes_all_places_leaves_some_for_the_next_one() {
        let from = IpAddr::from([10, 0, 0, 1]);
        let mut sessions = Sessions::default();
        let mut took = Vec::new();
        for vgpu in ["a", "b", "c"] {
            let entered = (0..16).take_while(|_| sessions.enter(vgpu, from, 16).is_ok());
            took.push(entered.count());
        }
        assert_eq!(took, [8, 4, 2]);
        assert!(
            sessions.enter("a", from, 16).unwrap_err().contains("`a` has 8 of the gateway's 16")
        );
        sessions.begun("a", from);
        sessions.begun("b", from);
        sessions.enter("c", from, 16).unwrap();
    }

    #[test]
    fn who_begins_many_sessions_at_once_leaves_places_to_begin_in() {
        let mut sessions = Sessions::default();
        let mut begin = |vgpu: &str, last| {
            let from = IpAddr::from([0x2001, 0xdb8, 0, last, 0, 0, 0, last]);
            (0..64)
                .take_while(|n| sessions.enter(&format!("{vgpu}{n}"), from, 1_000).is_ok())
                .count()
        };
        assert_eq!([begin("a", 1), begin("a", 2), begin("b", 3)], [16, 8, 4]);
        assert_eq!(begin("c", 1), 0, "by whichever names");
    }
}
