//! Virtual machines: the server of one opens its region at the tenant socket, and then says hello
//! there for each program of the guest. To the daemon all of them are that server's sessions; what
//! the guest's programs do to each other in their region is the guest's own matter.
//!
//! A server that shows [`grants`] has its machine's vGPUs from them, and no others: it is whoever
//! leads a machine of a cloud (ADR 54).

mod kept;
mod processors;
mod region;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::net::sockopt::{self, Timeout};
use weft_ring::peer::{self, Credentials};
use weft_ring::{MapError, MemoryFile, SegmentError};
use weft_wire::guest::{OpenRegion, Reception};
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, HelloBody, RefusalCode};
use weft_wire::remote::{Grant, GrantBody};
use weft_wire::{DecodeError, guest};

pub(crate) use self::processors::Processors;
use self::region::Layout;
use self::region::Served;
pub(crate) use self::region::{Held, Marks, Region, Regions};
use super::grants;
use super::remote::{granted, on_vgpu};
use super::{Attachment, Client, no_hello, proceed, refuse, understand};
use crate::config::ByteSize;
use crate::daemon::cosched::{Waiters, end_boosts};
use crate::daemon::driver::Order;
use crate::daemon::registry::{RegistryError, name_of_user};
use crate::daemon::sessions::{Refusal, refusal};
use crate::daemon::{Daemon, STACK_BYTES};
use crate::link::{RegionPart, Start};

/// Hellos of a machine that are answered at once: its server waits for an answer before the next
/// one, so that only one that does not has more.
const ANSWERED_MAX: usize = 8;

/// Why a machine gets no region, or a program of it no place there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegionError {
    /// Not a size that a device can have, or too large.
    #[error(
        "a region of {} cannot be had: it must be a power of two, and {} at most (guests.region)",
        ByteSize(*.bytes),
        ByteSize(*.limit)
    )]
    Size {
        /// What was asked for.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// Not a number of sessions.
    #[error("a region has room for 1 to 64 sessions, not for {0}")]
    Places(u8),
    /// Too little for each session.
    #[error(
        "{} is too little for {places} sessions, which take {} each at least: make the region \
         larger (--region), or have fewer sessions (--sessions)",
        ByteSize(*.bytes),
        ByteSize(*.least)
    )]
    Narrow {
        /// Of the region.
        bytes: u64,
        /// Its sessions.
        places: u8,
        /// Bytes of one.
        least: u64,
    },
    /// All places are taken.
    #[error(
        "the virtual machine's region has its {0} sessions: end a program, or start the machine \
         with room for more (--sessions, --region)"
    )]
    Full(u8),
    /// One user has many.
    #[error(
        "this user has {0} virtual machines here, and the other places are for other users \
         (guests.machines)"
    )]
    Share(usize),
    /// Too many machines.
    #[error("the node serves {0} virtual machines and no more (guests.machines)")]
    Machines(usize),
    /// An earlier daemon's cannot be taken over.
    #[error(
        "the node was started again, and this virtual machine's region is lost, for {0}: start \
         the machine again"
    )]
    Lost(#[from] kept::NotKept),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// A segment could not be made.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<RegionError> for Refusal {
    fn from(error: RegionError) -> Self {
        let code = match error {
            RegionError::Size { .. } | RegionError::Places(_) | RegionError::Narrow { .. } => {
                RefusalCode::Malformed
            }
            RegionError::Full(_)
            | RegionError::Machines(_)
            | RegionError::Share(_)
            | RegionError::Lost(_)
            | RegionError::Memory(_)
            | RegionError::Segment(_)
            | RegionError::System(_) => RefusalCode::Exhausted,
        };
        Self { code, message: error.to_string() }
    }
}

/// A machine whose server is connected.
#[derive(Debug)]
struct Machine {
    /// What was asked for it.
    open: OpenRegion,
    /// Whose sessions its programs' are.
    tenant: Credentials,
    /// Its vGPUs with their grants; empty if it has the one that was asked for.
    grants: Vec<(String, (Grant, [u8; 32]))>,
}

impl Machine {
    /// What a server asks for, which may do so.
    fn understand(daemon: &Daemon, said: &[u8], server: &Credentials) -> Result<Self, Refusal> {
        let mut open = understand_open(said)?;
        let Some(shown) = grants::all_shown(&open.token) else {
            return Ok(Self { open, tenant: *server, grants: Vec::new() });
        };
        open.token.clear();
        let (mut grants, mut owners) = (Vec::new(), Vec::new());
        for shown in shown {
            let GrantBody { vgpu, owner, .. } = granted(daemon, &shown)?;
            owners.push(owner);
            grants.push((vgpu, shown));
        }
        let owner = owners.first().copied().unwrap_or(server.uid);
        if owners.iter().any(|other| *other != owner) {
            let message = "the grants of a virtual machine are for vGPUs of one user".to_owned();
            return Err(Refusal { code: RefusalCode::Permission, message });
        }
        let names: Vec<&str> = grants.iter().map(|(vgpu, _)| vgpu.as_str()).collect();
        open.vgpu = names.join(",");
        let tenant = Credentials { pid: server.pid, uid: owner, gid: owner };
        Ok(Self { open, tenant, grants })
    }

    /// What a program of the guest asks for, on one of the machine's vGPUs. A grant is looked at
    /// each time: it may have ended, or its vGPU.
    fn hello(&self, daemon: &Daemon, hello: HelloBody) -> Result<HelloBody, Refusal> {
        let OpenRegion { vgpu, weight, memory_bytes, token, .. } = self.open.clone();
        let is_meant = |name: &str| hello.vgpu.is_empty() || hello.vgpu == name;
        if let Some((_, shown)) = self.grants.iter().find(|(name, _)| is_meant(name)) {
            return Ok(on_vgpu(hello, granted(daemon, shown)?.vgpu));
        }
        if self.grants.is_empty() && is_meant(&vgpu) {
            return Ok(HelloBody { vgpu, weight, memory_bytes, token, ..hello });
        }
        let message = format!(
            "this virtual machine has vGPU `{vgpu}`, not `{}`: leave WEFT_VGPU out",
            hello.vgpu
        );
        Err(Refusal { code: RefusalCode::Permission, message })
    }
}

/// Serves the connection of a machine's server, whose first message was `said`. Does not wait for
/// anybody.
pub(super) fn greet(daemon: &Arc<Daemon>, socket: OwnedFd, server: &Credentials, said: &[u8]) {
    let opened = Machine::understand(daemon, said, server).and_then(|machine| {
        daemon.check_vgpu(&machine)?;
        let region = daemon.open_region(&machine, server)?;
        let served = Served::begin(region).ok_or_else(|| Refusal {
            code: RefusalCode::Exhausted,
            message: "another server is connected for this virtual machine's region".to_owned(),
        })?;
        // Everything that it is told is sent here, and it may not listen.
        let limited = sockopt::set_socket_timeout(
            &socket,
            Timeout::Send,
            Some(daemon.config.limits.attach()),
        );
        limited.map_err(|error| no_hello(RefusalCode::Malformed, &error.to_string()))?;
        Ok((machine, served))
    });
    let (machine, served) = match opened {
        Ok(opened) => opened,
        Err(refusal) => {
            let Refusal { code, message } = &refusal;
            daemon.note_machine(server, |uid, suppressed| {
                tracing::info!(uid, ?code, message, suppressed, "no region for a virtual machine");
            });
            let reception = Reception::Refused { code: *code as u16, message: message.clone() };
            return tell(&socket, &reception, &[]);
        }
    };
    let thread = thread::Builder::new().name("machine".to_owned()).stack_size(STACK_BYTES);
    let serving = Arc::clone(daemon);
    let spawned = thread.spawn(move || {
        let (vgpu, region_bytes) = (machine.open.vgpu.as_str(), served.0.layout.bytes);
        serving.note_machine(&machine.tenant, |uid, suppressed| {
            tracing::info!(vgpu, uid, region_bytes, suppressed, "a virtual machine is there");
        });
        serve(&serving, &socket, &machine, &served.0);
        serving.note_machine(&machine.tenant, |uid, suppressed| {
            tracing::info!(vgpu, uid, suppressed, "a virtual machine is gone");
        });
        drop(served);
        serving.forget_regions();
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for a virtual machine");
    }
}

fn tell(socket: &OwnedFd, reception: &Reception, files: &[&Region]) {
    let fds: Vec<_> = files.iter().map(|region| region.file.as_fd()).collect();
    if let Ok(bytes) = reception.to_bytes() {
        // One answer fits a socket that nothing was sent to. A server that is gone needs none.
        let _ = peer::send(socket, &bytes, &fds);
    }
}

fn understand_open(said: &[u8]) -> Result<OpenRegion, Refusal> {
    OpenRegion::from_bytes(said).map_err(|error| match error {
        DecodeError::InvalidValue(version) => Refusal {
            code: RefusalCode::Version,
            message: format!(
                "the machine's server speaks protocol {version}, and this node another: use the \
                 `weft-guest` of the node's own build"
            ),
        },
        error @ (DecodeError::Truncated
        | DecodeError::Trailing(_)
        | DecodeError::UnknownKind(_)
        | DecodeError::NotUtf8) => no_hello(RefusalCode::Malformed, &error.to_string()),
    })
}

/// Hears the hellos of a machine's programs until its server hangs up. Each is answered by a thread
/// of its own, in any order; the server waits for one answer before it says the next hello.
fn serve(daemon: &Arc<Daemon>, socket: &OwnedFd, machine: &Machine, region: &Arc<Region>) {
    let reception = Reception::Region(guest::Region {
        region: region.id,
        region_bytes: region.layout.bytes,
        sessions: region.layout.places,
    });
    tell(socket, &reception, &[region]);
    // Each program that is being answered has one.
    let answered = Arc::new(());
    // What it cannot be heard to say is its end.
    while let Ok(Some(said)) = peer::receive_bytes(socket, HANDSHAKE_BYTES_MAX, true) {
        if guest::Processors::is_one(&said) {
            learn_processors(daemon, region, &said, machine);
            continue;
        }
        let Ok(answers) = socket.try_clone() else { return };
        let hello = understand(&said).and_then(|hello| machine.hello(daemon, hello));
        let hello = hello.and_then(|hello| match Arc::strong_count(&answered) {
            0..=ANSWERED_MAX => Ok(hello),
            _ => Err(Refusal {
                code: RefusalCode::Exhausted,
                message: "too many programs of the virtual machine attach at once".to_owned(),
            }),
        });
        match hello {
            Ok(hello) => {
                let client =
                    Client::Guest { region: Arc::clone(region), _answering: Arc::clone(&answered) };
                proceed(daemon, answers, Attachment { hello, tenant: machine.tenant, client });
            }
            Err(refusal) => refuse(&answers, &machine.tenant, refusal),
        }
    }
}

/// Notes which threads run a machine's processors, for sessions that begin from now on, and when
/// they are told first for those that are there.
fn learn_processors(daemon: &Daemon, region: &Region, said: &[u8], machine: &Machine) {
    let Machine { open: OpenRegion { vgpu, .. }, tenant: server, .. } = machine;
    let Ok(told) = guest::Processors::from_bytes(said) else { return };
    match Processors::verify(told, server.uid, &region.file) {
        Ok(processors) => {
            let (process, count) = (processors.process, processors.threads.len());
            daemon.note_machine(server, |uid, suppressed| {
                let what = "a virtual machine's processors are known";
                tracing::info!(vgpu, uid, process, count, suppressed, "{what}");
            });
            // An earlier daemon and its watchdog may have died together.
            end_boosts(process, &processors.threads);
            // Once: the server may tell as often as it likes, and the driver has others to serve.
            if region.learn(processors.clone()) {
                daemon.help_sessions(region.id, server.uid, &processors);
            }
        }
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            daemon.note_machine(server, |uid, suppressed| {
                let what = "a virtual machine's processors are not helped";
                tracing::info!(vgpu, uid, error, suppressed, "{what}");
            });
        }
    }
}

impl Daemon {
    /// The user whose tenant a machine's server is.
    fn payer_of_machine(&self, server: &Credentials) -> u32 {
        self.tenancy.of_process(server.uid, server.pid.unwrap_or(0))
    }

    /// Has those sessions of a machine of user `uid` helped that nobody helps: an earlier daemon
    /// began them, or they began before its server said who runs its processors.
    fn help_sessions(&self, region: [u8; 16], uid: u32, processors: &Processors) {
        let tables = self.tables();
        for (session, entry) in &tables.sessions {
            let segment = entry.segment.as_ref().filter(|_| entry.region == Some(region));
            let Some(segment) = segment else { continue };
            match Waiters::of_machine(segment, uid, processors.clone()) {
                Ok(waiters) => {
                    let (session, waiters) = (*session, Box::new(waiters));
                    self.driver.send(Order::Help { session, waiters });
                }
                Err(error) => {
                    tracing::debug!(session, %error, "the machine's processors cannot be helped");
                }
            }
        }
    }

    /// Has a line said about a user's machines, unless there were too many; with it goes how many
    /// were kept back.
    fn note_machine(&self, server: &Credentials, say: impl FnOnce(u32, u64)) {
        if let Some(suppressed) = self.lines.line(self.payer_of_machine(server), Instant::now()) {
            say(server.uid, suppressed);
        }
    }

    /// The region that a server asks for; it is found again by its name, whichever daemon made it.
    fn open_region(&self, machine: &Machine, server: &Credentials) -> Result<Arc<Region>, Refusal> {
        self.forget_regions();
        let Machine { open, tenant, .. } = machine;
        let config = &self.config.guests;
        let (region, host) = if open.region == [0; 16] {
            let layout = Layout::new(open.region_bytes, open.sessions, config.region.0)?;
            self.regions.create(tenant.uid, layout, config.machines)?
        } else if let Some(region) = self.regions.find(open.region, tenant.uid) {
            return Ok(region);
        } else {
            // It was not too large for the daemon that made it.
            let layout = Layout::new(open.region_bytes, open.sessions, u64::MAX)?;
            let named = (open.region, tenant.uid);
            self.regions.take_over(named, layout, server, config.machines)?
        };
        self.count_region(host, region.layout.bytes, tenant)
            .map_err(|message| Refusal { code: RefusalCode::Exhausted, message })?;
        Ok(region)
    }

    /// Refuses a machine whose vGPU is there and is another user's, or is not as it is asked for:
    /// all of its programs would be refused, or find another weight than their user believes.
    fn check_vgpu(&self, machine: &Machine) -> Result<(), Refusal> {
        let Machine { open, tenant, grants } = machine;
        if !grants.is_empty() {
            return Ok(());
        }
        let name = match open.vgpu.as_str() {
            "" => name_of_user(tenant.uid),
            name => name.to_owned(),
        };
        let tables = self.tables();
        let vgpu = match tables.registry.admit(&name, tenant.uid, &open.token) {
            Ok(vgpu) => vgpu,
            Err(RegistryError::Unknown(_)) => return Ok(()),
            Err(error) => return Err(refusal(&error)),
        };
        let is_other = |asked: u64, has: u64| asked != 0 && asked != has;
        let differs = is_other(open.weight.into(), vgpu.weight.into())
            || is_other(open.memory_bytes, vgpu.memory_bytes);
        // It may have been changed since its region was made.
        if open.region != [0; 16] || !differs {
            return Ok(());
        }
        let message = format!(
            "vGPU `{name}` is there already, with weight {} and {} of memory, and stays as it is: \
             leave --weight and --memory out, or change it with `weft set {name}`",
            vgpu.weight,
            ByteSize(vgpu.memory_bytes)
        );
        Err(Refusal { code: RefusalCode::Permission, message })
    }

    /// A guest touches its region whenever it likes, so all of it counts.
    fn count_region(&self, host: u32, bytes: u64, server: &Credentials) -> Result<(), String> {
        let payer = self.payer_of_machine(server);
        let limit = self.tenant_limits(server.uid, payer).host_memory_bytes;
        let mut tables = self.tables();
        tables.host.begin(host, payer, None);
        tables.host.measure(host, 0);
        tables.host.pin(host, bytes, limit).map_err(|error| {
            tables.host.end(host);
            error.to_string()
        })
    }

    /// The place of a session that an earlier daemon began in a machine's region.
    pub(crate) fn adopt_place(
        &self,
        start: &Start,
        part: RegionPart,
        files: (MemoryFile, OwnedFd),
    ) -> Option<Held> {
        let (file, marks) = files;
        let adopted = self.regions.adopt(part, start.uid, file, marks);
        let (held, new) = adopted
            .inspect_err(|error| {
                // It goes on where it is; its machine gets no more sessions.
                tracing::warn!(session = start.session, %error, "a region is not taken over");
            })
            .ok()?;
        if let Some((host, bytes)) = new {
            let server = Credentials { pid: Some(start.pid), uid: start.uid, gid: start.uid };
            if let Err(why) = self.count_region(host, bytes, &server) {
                tracing::warn!(session = start.session, why, "a region is beyond its bounds");
            }
        }
        Some(held)
    }

    /// Forgets the regions of machines that are gone.
    pub(crate) fn forget_regions(&self) {
        let gone = self.regions.sweep();
        let mut tables = self.tables();
        for host in gone {
            tables.host.end(host);
        }
    }
}
