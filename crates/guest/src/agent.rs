//! The agent in the guest: a tenant socket for the guest's programs.
//!
//! One thread that waits for whoever has something to say. It parses no commands and holds no
//! session's memory; a program that attached needs it for two things, to be woken when it has slept
//! and to be told that its worker is gone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::Shutdown;
use weft_ring::{Access, MemoryFile, PAGE, WaitPage, peer};
use weft_wire::guest::{
    AnswerFrame, Begin, Begun, CONTROL_PORT, FrameReader, GuestFrame, HelloFrame, HostFrame,
    MARKS_PORT, filler,
};
use weft_wire::handshake::{Answer, HANDSHAKE_BYTES_MAX, PROTOCOL_VERSION, RefusalCode};

use crate::devices;
use crate::outbox::Outbox;
use crate::ready::Watched;

/// Programs that have not said hello, or whose hello was not answered, at once.
const PENDING_MAX: usize = 64;

/// Connections that may wait to be accepted.
const BACKLOG: u16 = 64;

/// Who is to be heard again looks this often: a port whose host is not there says so all the time,
/// and the end of a child says nothing.
const PAUSE: Duration = Duration::from_millis(50);

/// What programs are told that the server does not serve.
const NOT_SERVED: &str = "the host of this virtual machine does not serve it at the moment";
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
    reader: FrameReader,
    out: Outbox,
    /// Names the agent's beginning to the server.
    nonce: u64,
    service: Service,
    host_is_there: bool,
    /// Programs that have said nothing yet.
    pending: Vec<OwnedFd>,
    /// Programs whose hello was not answered yet.
    asked: BTreeMap<u32, OwnedFd>,
    requests: u32,
    sessions: BTreeMap<u8, Session>,
    program: Option<Child>,
}

/// What the server does for this machine's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// It has not answered yet, and programs wait.
    Awaited,
    Begun,
    /// It does not until it has begun again; why programs are refused.
    Refused(&'static str),
}

/// Serves until the program is over, or for ever without one; the program's status.
///
/// # Errors
/// When a device is missing, or the socket cannot be made.
pub fn run(settings: &Settings) -> Result<i32> {
    let mut agent = Agent::open(settings)?;
    agent.begin()?;
    let mut is_started = false;
    loop {
        if agent.service == Service::Begun && !is_started {
            is_started = true;
            agent.start(settings)?;
        }
        agent.step().context("waiting")?;
        let ended = agent.program.as_mut().map(Child::try_wait).transpose()?.flatten();
        if let Some(status) = ended {
            let status = status.code().unwrap_or(-1);
            agent.say(&GuestFrame::Exited(status));
            while !agent.out.is_empty() && agent.host_is_there {
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
            reader: FrameReader::default(),
            out: Outbox::default(),
            nonce: u64::from_le_bytes(nonce),
            service: Service::Awaited,
            host_is_there: true,
            pending: Vec::new(),
            asked: BTreeMap::new(),
            requests: 0,
            sessions: BTreeMap::new(),
            program: None,
        })
    }

    /// Has the server forget whoever was here before.
    fn begin(&mut self) -> Result<()> {
        self.out.push(&filler());
        self.say(&GuestFrame::Begin(Begin { nonce: self.nonce, version: PROTOCOL_VERSION }));
        Ok(())
    }

    fn start(&mut self, settings: &Settings) -> Result<()> {
        let Some((program, arguments)) = settings.program.split_first() else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(arguments).env("WEFT_SOCKET", &settings.socket);
        self.program = Some(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    fn say(&mut self, frame: &GuestFrame<'_>) {
        // A hello is no longer than a frame.
        if let Ok(bytes) = frame.to_bytes() {
            self.out.push(&bytes);
        }
    }

    /// Waits for somebody and does what is to be done.
    fn step(&mut self) -> io::Result<()> {
        let mut watched = Watched::new();
        if self.host_is_there {
            watched.input(Source::Port, self.control.as_fd());
            if !self.out.is_empty() {
                watched.room(Source::PortRoom, self.control.as_fd());
            }
        }
        if self.service != Service::Awaited && self.pending.len() + self.asked.len() < PENDING_MAX {
            watched.input(Source::Listener, self.listener.as_fd());
        }
        for (place, socket) in self.pending.iter().enumerate() {
            watched.input(Source::Pending(place), socket.as_fd());
        }
        for (mark, session) in &self.sessions {
            watched.end(Source::Session(*mark), session.lifeline.as_fd());
        }
        let is_idle = self.host_is_there && self.program.is_none();
        let ready = watched.wait((!is_idle).then_some(PAUSE))?;
        if !self.host_is_there {
            self.host_is_there = true;
        }
        // Places change as connections are taken out: the last ones first.
        for source in ready.into_iter().rev() {
            match source {
                Source::Port => self.hear_host()?,
                Source::PortRoom => self.flush(),
                Source::Listener => self.let_in(),
                Source::Pending(place) => self.hear_hello(place),
                Source::Session(mark) => self.close(mark),
            }
        }
        Ok(())
    }

    fn flush(&mut self) {
        if self.out.flush(&self.control).is_err() {
            self.host_is_there = false;
        }
    }

    fn let_in(&mut self) {
        match peer::accept(&self.listener) {
            Ok(socket) => self.pending.push(socket),
            Err(error) => tell(&format!("a program was not let in: {error}")),
        }
    }

    /// Passes on what a program says, whatever it is: the daemon judges.
    fn hear_hello(&mut self, place: usize) {
        let socket = self.pending.remove(place);
        // Otherwise it has gone, or says nothing that fits.
        if let Ok(Some(hello)) = peer::receive_bytes(&socket, HANDSHAKE_BYTES_MAX, false) {
            if let Service::Refused(why) = self.service {
                return refuse(&socket, why);
            }
            self.requests = self.requests.wrapping_add(1);
            let request = self.requests;
            self.say(&GuestFrame::Hello(HelloFrame { request, hello: &hello }));
            self.asked.insert(request, socket);
        }
    }

    /// The program of a session is gone.
    fn close(&mut self, mark: u8) {
        if self.sessions.remove(&mark).is_some() {
            self.say(&GuestFrame::Close(mark));
        }
    }

    fn hear_host(&mut self) -> io::Result<()> {
        let mut came = vec![0; READ_BYTES];
        match rustix::io::read(&self.control, &mut came) {
            Ok(0) => self.lose_host(),
            Ok(count) => {
                let mut reader = std::mem::take(&mut self.reader);
                reader.push(&came[..count]);
                while let Some((kind, body)) = reader.poll_frame() {
                    // What an earlier stream left is no frame.
                    if let Ok(frame) = HostFrame::from_parts(kind, body) {
                        self.apply(frame)?;
                    }
                }
                self.reader = reader;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.lose_host(),
        }
        Ok(())
    }

    /// The server is not there: its sessions are over, and when it comes back it is told anew.
    fn lose_host(&mut self) {
        self.host_is_there = false;
        if self.service == Service::Begun {
            self.service = Service::Refused(NOT_SERVED);
            self.forget_all();
            self.out = Outbox::default();
            self.out.push(&filler());
            self.say(&GuestFrame::Begin(Begin { nonce: self.nonce, version: PROTOCOL_VERSION }));
        }
    }

    /// Sessions are over for their programs, and who waits for one gets none.
    fn forget_all(&mut self) {
        self.sessions.clear();
        for (_, socket) in std::mem::take(&mut self.asked) {
            refuse(&socket, NOT_SERVED);
        }
    }

    fn apply(&mut self, frame: HostFrame<'_>) -> io::Result<()> {
        match frame {
            HostFrame::Begun(begun) => self.begun(&begun),
            // Before it has begun these are an earlier agent's.
            _ if self.service != Service::Begun => {}
            HostFrame::Answer(AnswerFrame { request, answer }) => {
                if let Some(socket) = self.asked.remove(&request)
                    && let Err(error) = self.answer(&socket, answer)
                {
                    tell(&format!("a program was not served: {error}"));
                }
            }
            HostFrame::Over(mark) => {
                if let Some(session) = self.sessions.get(&mark) {
                    session.wait_page.wake_all();
                    // Its program sees that; when it has gone, too, the place is free.
                    let _ = rustix::net::shutdown(&session.lifeline, Shutdown::Write);
                }
            }
            HostFrame::Mark(mark) => {
                if let Some(session) = self.sessions.get(&mark) {
                    session.wait_page.wake_all();
                }
            }
        }
        Ok(())
    }

    /// The server has begun. One that was started again has another region than the one that QEMU
    /// was started with: no memory would be shared.
    fn begun(&mut self, begun: &Begun) {
        if begun.nonce != self.nonce {
            return;
        }
        self.forget_all();
        self.service = match name_of(&self.region) {
            Ok(name) if name == begun.region => Service::Begun,
            Ok(_) => {
                tell(OTHER_REGION);
                Service::Refused(OTHER_REGION)
            }
            Err(error) => {
                tell(&format!("the region cannot be used: {error:#}"));
                Service::Refused(NOT_SERVED)
            }
        };
    }

    /// Passes an answer on, with what belongs to a welcome.
    fn answer(&mut self, socket: &OwnedFd, answer: &[u8]) -> Result<()> {
        let placement = match Answer::from_bytes(answer)? {
            Answer::Welcome(welcome) => welcome.placement.context("a welcome without a place")?,
            Answer::Refused { .. } => return Ok(peer::send(socket, answer, &[])?),
        };
        let (wait_page, page) = WaitPage::create()?;
        let (lifeline, theirs) = peer::pair()?;
        let session = Session { wait_page, lifeline };
        let fds = [self.region.as_fd(), page.as_fd(), theirs.as_fd(), self.marks.as_fd()];
        let sent = peer::send(socket, answer, &fds);
        // If it was not sent the program is gone, and this end says so.
        self.sessions.insert(placement.mark, session);
        Ok(sent?)
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
