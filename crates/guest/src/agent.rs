//! The agent in the guest: a tenant socket for the guest's programs.
//!
//! One thread that waits for whoever has something to say. It parses no commands and holds no
//! session's memory; a program that attached needs it for two things, to be woken when it has slept
//! and to be told that its worker is gone.

mod patience;
pub mod state;

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::Shutdown;
use weft_ring::{Access, MemoryFile, PAGE, WaitPage, peer};
use weft_wire::guest::{CONTROL_PORT, MARKS_PORT};
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, RefusalCode};

use self::patience::{ANSWER_LIMIT, BEGIN_LIMIT, EXIT_LIMIT, HELLO_LIMIT, Waiting, first_due};
use self::state::{Action, NOT_SERVED, Service, State};
use crate::devices;
use crate::ready::Watched;

/// Connections that may wait to be accepted.
const BACKLOG: u16 = 64;

/// Who is to be heard again looks this often: a port whose host is not there says so all the time,
/// and the end of a child says nothing.
const PAUSE: Duration = Duration::from_millis(50);

/// What programs are told that have connected and said nothing.
const SILENT: &str = "nothing came within 10 s of connecting: a program says hello at once";

/// What programs are told whose region is not the server's.
const OTHER_REGION: &str = "the server on the host has another region: start this machine again";

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Where everything is; found by itself where nothing is said.
#[derive(Debug, Default)]
pub struct Settings {
    /// The tenant socket for the guest's programs.
    pub socket: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// The region's memory.
    pub region: Option<PathBuf>,
    /// The port for frames.
    pub control: Option<PathBuf>,
    /// The port for marks.
    pub marks: Option<PathBuf>,
    /// A program to run once programs are served; its end is the agent's.
    pub program: Vec<String>,
}

/// Who has something to say.
#[derive(Debug, Clone, Copy)]
enum Source {
    Port,
    PortRoom,
    Listener,
    Pending(usize),
    Session(u8),
}

/// A program with a session.
#[derive(Debug)]
struct Session {
    wait_page: WaitPage,
    /// Its program has the other end: each learns here of the other's end.
    lifeline: OwnedFd,
}

/// The agent.
#[derive(Debug)]
struct Agent {
    region: OwnedFd,
    control: OwnedFd,
    marks: OwnedFd,
    listener: OwnedFd,
    /// What it knows of programs and of the server.
    state: State<Waiting, Session>,
    host_is_there: bool,
    /// Programs that have said nothing yet, in the order in which they came.
    pending: Vec<Waiting>,
    began: Instant,
    program: Option<Child>,
}

/// Serves until the program is over, or for ever without one; the program's status.
///
/// # Errors
/// When a device is missing, or the socket cannot be made.
pub fn run(settings: &Settings) -> Result<i32> {
    let mut agent = Agent::open(settings)?;
    let mut is_started = false;
    loop {
        if agent.state.service() == Service::Begun && !is_started {
            is_started = true;
            agent.start(settings)?;
        }
        agent.step().context("waiting")?;
        let ended = agent.program.as_mut().map(Child::try_wait).transpose()?.flatten();
        if let Some(status) = ended {
            let status = status.code().unwrap_or(-1);
            agent.state.handle_exit(status);
            let ended = Instant::now();
            while !agent.state.to_host().is_empty()
                && agent.host_is_there
                && ended.elapsed() < EXIT_LIMIT
            {
                agent.step()?;
            }
            return Ok(status);
        }
    }
}

fn found(given: Option<&PathBuf>, find: impl FnOnce() -> Result<PathBuf>) -> Result<PathBuf> {
    given.cloned().map_or_else(find, Ok)
}

impl Agent {
    fn open(settings: &Settings) -> Result<Self> {
        let region = devices::open_region(&found(settings.region.as_ref(), devices::region)?)?;
        let control = found(settings.control.as_ref(), || devices::port(CONTROL_PORT))?;
        let marks = found(settings.marks.as_ref(), || devices::port(MARKS_PORT))?;
        let mut nonce = [0; 8];
        fs::File::open("/dev/urandom")
            .and_then(|mut file| io::Read::read_exact(&mut file, &mut nonce))?;
        Ok(Self {
            region,
            control: devices::open_port(&control, true)?,
            marks: devices::open_port(&marks, false)?,
            listener: listen(&settings.socket, settings.mode)?,
            state: State::new(u64::from_le_bytes(nonce)),
            host_is_there: true,
            pending: Vec::new(),
            began: Instant::now(),
            program: None,
        })
    }

    fn start(&mut self, settings: &Settings) -> Result<()> {
        let Some((program, arguments)) = settings.program.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).env("WEFT_SOCKET", &settings.socket);
        self.program = Some(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    /// Waits for somebody and does what is to be done.
    fn step(&mut self) -> io::Result<()> {
        let mut watched = Watched::new();
        if self.host_is_there {
            watched.input(Source::Port, self.control.as_fd());
            if !self.state.to_host().is_empty() {
                watched.room(Source::PortRoom, self.control.as_fd());
            }
        }
        if self.state.lets_in(self.pending.len()) {
            watched.input(Source::Listener, self.listener.as_fd());
        }
        for (place, program) in self.pending.iter().enumerate() {
            watched.input(Source::Pending(place), program.socket.as_fd());
        }
        for (mark, session) in self.state.sessions() {
            watched.end(Source::Session(mark), session.lifeline.as_fd());
        }
        let is_idle = self.host_is_there && self.program.is_none();
        let due = self.due().map(|due| due.saturating_duration_since(Instant::now()));
        let ready = watched.wait(if is_idle { due } else { Some(PAUSE) })?;
        if !self.host_is_there {
            self.host_is_there = true;
        }
        // Places change as connections are taken out: the last ones first.
        for source in ready.into_iter().rev() {
            match source {
                Source::Port => self.hear_host(),
                Source::PortRoom => self.flush(),
                Source::Listener => self.let_in(),
                Source::Pending(place) => self.hear_hello(place),
                Source::Session(mark) => self.state.handle_program_gone(mark),
            }
            self.act();
        }
        self.give_up(Instant::now());
        self.act();
        Ok(())
    }

    /// When somebody will have been silent for too long.
    fn due(&self) -> Option<Instant> {
        let silent = first_due(&self.pending, HELLO_LIMIT);
        let asked = first_due(self.state.waiting(), ANSWER_LIMIT);
        let is_awaited = self.state.service() == Service::Awaited;
        let begun = is_awaited.then_some(self.began + BEGIN_LIMIT);
        [silent, asked, begun].into_iter().flatten().min()
    }

    /// Waits no longer for whoever has been silent for too long.
    fn give_up(&mut self, now: Instant) {
        for program in self.pending.extract_if(.., |one| one.is_late(now, HELLO_LIMIT)) {
            refuse(&program.socket, SILENT);
        }
        self.state.give_up(|program| program.is_late(now, ANSWER_LIMIT));
        if self.state.service() == Service::Awaited && now >= self.began + BEGIN_LIMIT {
            tell("the host does not answer; programs are refused until it does");
            self.state.handle_silence();
        }
    }

    fn flush(&mut self) {
        if self.state.out.flush(&self.control).is_err() {
            self.host_is_there = false;
        }
    }

    fn let_in(&mut self) {
        match peer::accept(&self.listener) {
            Ok(socket) => self.pending.push(Waiting::since(Instant::now(), socket)),
            Err(error) => tell(&format!("a program was not let in: {error}")),
        }
    }

    /// Passes on what a program says, whatever it is: the daemon judges.
    fn hear_hello(&mut self, place: usize) {
        let Waiting { socket, .. } = self.pending.remove(place);
        // Otherwise it has gone, or says nothing that fits.
        if let Ok(Some(hello)) = peer::receive_bytes(&socket, HANDSHAKE_BYTES_MAX, false) {
            self.state.handle_hello(Waiting::since(Instant::now(), socket), &hello);
        }
    }

    fn hear_host(&mut self) {
        let mut came = vec![0; READ_BYTES];
        match rustix::io::read(&self.control, &mut came) {
            Ok(count @ 1..) => self.state.handle_host(&came[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => {
                self.host_is_there = false;
                self.state.handle_host_gone();
            }
        }
    }

    /// Does what has come to be done.
    fn act(&mut self) {
        while let Some(action) = self.state.poll_action() {
            match action {
                Action::Compare(name) => self.state.handle_compared(compare(&self.region, name)),
                Action::Refuse(program, why) => refuse(&program.socket, why),
                // A program that is gone needs no answer.
                Action::PassOn(program, answer) => {
                    drop(peer::send(&program.socket, &answer, &[]));
                }
                Action::Welcome(program, answer, mark) => {
                    let session = self.welcome(&program.socket, &answer);
                    let session = session
                        .inspect_err(|error| tell(&format!("a program was not served: {error}")));
                    self.state.handle_session(mark, session.ok());
                }
                Action::Tell(_, why) => tell(&format!("a program was not served: {why}")),
                Action::Wake(mark) => {
                    if let Some(session) = self.state.session(mark) {
                        session.wait_page.wake_all();
                    }
                }
                Action::End(mark) => {
                    if let Some(session) = self.state.session(mark) {
                        session.wait_page.wake_all();
                        let _ = rustix::net::shutdown(&session.lifeline, Shutdown::Write);
                    }
                }
            }
        }
    }

    /// Passes a welcome on, with what belongs to it; what the guest holds for the session.
    fn welcome(&self, program: &OwnedFd, answer: &[u8]) -> Result<Session> {
        let (wait_page, page) = WaitPage::create()?;
        let (lifeline, theirs) = peer::pair()?;
        let fds = [self.region.as_fd(), page.as_fd(), theirs.as_fd(), self.marks.as_fd()];
        peer::send(program, answer, &fds)?;
        Ok(Session { wait_page, lifeline })
    }
}

/// Whether the server's region is this machine's. A server that was started again has another one
/// than QEMU was started with: no memory would be shared.
fn compare(region: &OwnedFd, servers: [u8; 16]) -> Service {
    match name_of(region) {
        Ok(name) if name == servers => Service::Begun,
        Ok(_) => {
            tell(OTHER_REGION);
            Service::Refused(OTHER_REGION)
        }
        Err(error) => {
            tell(&format!("the region cannot be used: {error:#}"));
            Service::Refused(NOT_SERVED)
        }
    }
}

/// The name at the beginning of a region.
fn name_of(region: &OwnedFd) -> Result<[u8; 16]> {
    let memory = MemoryFile::lent(region.try_clone()?)?.part(0, PAGE as u64)?;
    let name = memory.map(Access::ReadWrite)?.span(0, 16)?.to_vec();
    name.try_into().map_err(|_| anyhow::anyhow!("a name has 16 bytes"))
}

fn listen(path: &Path, mode: u32) -> Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        _ => {}
    }
    peer::listen(path, mode, BACKLOG)
        .with_context(|| format!("cannot listen at {}", path.display()))
}

fn refuse(socket: &OwnedFd, message: &str) {
    let (code, message) = (RefusalCode::Exhausted as u16, message.to_owned());
    if let Ok(bytes) = (Answer::Refused { code, message }).to_bytes() {
        // A program that is gone needs no answer.
        let _ = peer::send(socket, &bytes, &[]);
    }
}

/// The agent's only log.
fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "weft-guest: {line}");
}
