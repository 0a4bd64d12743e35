//! The server of one virtual machine, on its host.
//!
//! It has the machine's region from the node daemon, as a tenant of it: to the node the guest's
//! programs are this process's. It passes on hellos and answers, wakes workers whose flags the
//! guest took back, and sends the guest marks from them. One thread that waits for whoever has
//! something to say. What the guest says is bounded and checked; the worst that it can do is to
//! have no sessions.

pub mod state;

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use weft_ring::{Access, MemoryFile, PAGE, Segment, SharedSpan, WakeFlag, bell, peer};
use weft_wire::guest::Processors;
use weft_wire::handshake::{HANDSHAKE_BYTES_MAX, PROTOCOL_VERSION, Placement};

use self::state::State;
use crate::ends::Ends;
use crate::opener::{Opened, Opener, Refused};
use crate::qemu;
use crate::qmp::{HungUp, Monitor};
use crate::ready::Watched;

/// A daemon that is gone is looked for this often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// What crossed the machine's border but for the region, and what that was for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Sessions that began.
    pub sessions: u64,
    /// Marks of the guest: each was a write to a device, which leaves the guest.
    pub marks_in: u64,
    /// Marks for the guest: each is an interrupt there.
    pub marks_out: u64,
}

/// Who has something to say.
#[derive(Debug, Clone, Copy)]
enum Source {
    End,
    Node,
    Control,
    ControlRoom,
    Marks,
    ControlListener,
    MarksListener,
    MonitorListener,
    Monitor,
    RegionListener,
    Lender,
    SessionMarks(u8),
    Lifeline(u8),
}

/// A session of a program in the guest.
#[derive(Debug)]
struct Session {
    doorbell: WakeFlag,
    /// The worker sees when this is closed, and is seen when it is gone.
    lifeline: Option<OwnedFd>,
    /// Marks of the worker. While it is open nobody else gets the place.
    marks: OwnedFd,
    /// There is nobody left who writes them.
    is_mute: bool,
}

impl Session {
    /// What the daemon sent with a welcome to that place of the region.
    fn enter(region: &MemoryFile, place: &Placement, sent: Vec<OwnedFd>) -> Result<Self> {
        let Ok([lifeline, marks]) = <[OwnedFd; 2]>::try_from(sent) else {
            bail!("the node sent other descriptors than a session's");
        };
        let memory = region.try_clone()?.part(place.segment_at, place.segment_bytes)?;
        let doorbell = Segment::open(memory.map(Access::ReadWrite)?)?.doorbell()?;
        Ok(Self { doorbell, lifeline: Some(lifeline), marks, is_mute: false })
    }
}

/// The server of a machine.
#[derive(Debug)]
pub struct Server {
    opener: Opener,
    /// What ends it.
    ends: Ends,
    /// Where the machine's serial ports connect to.
    folder: PathBuf,
    node: Option<OwnedFd>,
    lost_at: Option<Instant>,
    /// Why the daemon that took its place does not serve this machine.
    refused: Option<String>,
    /// The region's name for the daemon.
    name: [u8; 16],
    /// Where the agent looks for it, anew at every beginning: any program of an earlier guest may
    /// have written there.
    name_in_region: SharedSpan,
    region: MemoryFile,
    control_listener: UnixListener,
    marks_listener: UnixListener,
    monitor_listener: UnixListener,
    region_listener: OwnedFd,
    monitor: Option<Monitor>,
    /// What it told.
    processors: Option<Processors>,
    /// It was said that it tells nothing.
    is_monitor_bad: bool,
    control: Option<OwnedFd>,
    marks: Option<OwnedFd>,
    /// What it knows of the guest's programs.
    state: State<Session>,
}

impl Server {
    /// Has the machine's region made, and its ports' sockets.
    ///
    /// # Errors
    /// When there is no node, or it refuses.
    pub fn open(opener: Opener, ends: Ends, folder: PathBuf) -> Result<Self> {
        let Opened { node, region, name } = opener.open([0; 16])?;
        let region = MemoryFile::received(region.context("the node sent no region")?)?;
        let head = region.try_clone()?.part(0, PAGE as u64)?.map(Access::ReadWrite)?;
        let control_listener = listen(&control_socket(&folder))?;
        let marks_listener = listen(&marks_socket(&folder))?;
        let monitor_listener = listen(&monitor_socket(&folder))?;
        let region_socket = vacant(&region_socket(&folder))?;
        // For QEMU, whose arguments stay the same over many servers.
        let file = format!("/proc/{}/fd/{}", std::process::id(), region.as_fd().as_raw_fd());
        symlink(file, vacant(&region_link(&folder))?)?;
        Ok(Self {
            opener,
            ends,
            folder,
            node: Some(node),
            lost_at: None,
            refused: None,
            name_in_region: head.span(0, name.len())?,
            name,
            region,
            control_listener,
            marks_listener,
            monitor_listener,
            region_listener: peer::listen(&region_socket, 0o600, 4)?,
            monitor: None,
            processors: None,
            is_monitor_bad: false,
            control: None,
            marks: None,
            state: State::new(name),
        })
    }

    /// QEMU's arguments for the machine's devices, the same for every server with this folder. Its
    /// region is a file of this process: good as long as that lives, and for its user alone.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        qemu::devices(&region_link(&self.folder), self.region.len() as u64, &self.folder)
    }

    /// The folder of the sockets of the machine's ports.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What crossed the border so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.counts()
    }

    /// How the machine's program ended, if it has.
    #[must_use]
    pub fn exited(&self) -> Option<i32> {
        self.state.exited()
    }

    /// The signal that is to end this process, once it came.
    #[must_use]
    pub fn told_to_end(&self) -> Option<i32> {
        self.ends.told()
    }

    /// Whether the machine is connected.
    #[must_use]
    pub fn has_machine(&self) -> bool {
        self.control.is_some()
    }

    /// Waits for somebody, at most for `limit`, and does what is to be done.
    ///
    /// # Errors
    /// When the system does not let it wait.
    pub fn step(&mut self, limit: Duration) -> Result<()> {
        self.say_due();
        self.look_for_node()?;
        self.ask_node();
        let limit = if self.node.is_some() { limit } else { limit.min(LOOK_EVERY) };
        for source in self.watched().wait(Some(limit))? {
            match source {
                // Whoever has this server asks.
                Source::End => return Ok(()),
                Source::Node => self.hear_node(),
                Source::Control => self.hear_control(),
                Source::ControlRoom => self.flush(),
                Source::Marks => self.hear_marks(),
                Source::ControlListener => self.connect_control()?,
                Source::MarksListener => self.connect_marks()?,
                Source::MonitorListener => self.connect_monitor()?,
                Source::Monitor => self.hear_monitor(),
                Source::RegionListener => self.show_region()?,
                Source::Lender => bail!("who opened the region has ended"),
                Source::SessionMarks(mark) => self.hear_worker(mark),
                Source::Lifeline(mark) => self.lose_worker(mark),
            }
        }
        Ok(())
    }

    fn watched(&self) -> Watched<'_, Source> {
        let mut watched = Watched::new();
        watched.input(Source::End, self.ends.as_fd());
        watched.input(Source::ControlListener, self.control_listener.as_fd());
        watched.input(Source::MarksListener, self.marks_listener.as_fd());
        watched.input(Source::MonitorListener, self.monitor_listener.as_fd());
        watched.input(Source::RegionListener, self.region_listener.as_fd());
        if let Opener::Lent(lender) = &self.opener {
            watched.end(Source::Lender, lender.as_fd());
        }
        if let Some(monitor) = &self.monitor {
            watched.input(Source::Monitor, monitor.as_fd());
        }
        if let Some(node) = &self.node {
            watched.input(Source::Node, node.as_fd());
        }
        if let Some(control) = &self.control {
            if self.state.hears_guest() {
                watched.input(Source::Control, control.as_fd());
            }
            if !self.state.to_guest().is_empty() {
                watched.room(Source::ControlRoom, control.as_fd());
            }
        }
        if let Some(marks) = &self.marks {
            watched.input(Source::Marks, marks.as_fd());
        }
        for (mark, session) in self.state.sessions() {
            if !session.is_mute {
                watched.input(Source::SessionMarks(mark), session.marks.as_fd());
            }
            if let Some(lifeline) = &session.lifeline {
                watched.end(Source::Lifeline(mark), lifeline.as_fd());
            }
        }
        watched
    }

    /// A machine's port connects, perhaps another machine's in its place.
    fn connect_control(&mut self) -> Result<()> {
        let (socket, _) = self.control_listener.accept()?;
        socket.set_nonblocking(true)?;
        self.state.handle_machine_gone();
        self.control = Some(socket.into());
        Ok(())
    }

    fn connect_marks(&mut self) -> Result<()> {
        let (socket, _) = self.marks_listener.accept()?;
        socket.set_nonblocking(true)?;
        self.marks = Some(socket.into());
        Ok(())
    }

    fn connect_monitor(&mut self) -> Result<()> {
        let (socket, _) = self.monitor_listener.accept()?;
        socket.set_nonblocking(true)?;
        self.processors = None;
        self.monitor = Monitor::new(socket.into())
            .inspect_err(|error| tell(&format!("no monitor: {error:#}")))
            .ok();
        Ok(())
    }

    /// Gives the region to a machine without a hypervisor: whoever opens its socket has it.
    fn show_region(&mut self) -> Result<()> {
        let socket = peer::accept(&self.region_listener)?;
        // Whoever came may have gone.
        let _ = peer::send(&socket, &self.name, &[self.region.as_fd()]);
        Ok(())
    }

    fn hear_monitor(&mut self) {
        let Some(monitor) = &mut self.monitor else { return };
        match monitor.hear() {
            Ok(None) => {}
            Ok(told) => {
                self.processors = told;
                self.tell_processors();
            }
            Err(error) => {
                // Without it the machine's processors are not helped to run, and all else goes on.
                // QEMU connects again and again.
                // One that is just gone says why itself.
                let is_bad = self.processors.is_none() && !error.is::<HungUp>();
                if is_bad && !std::mem::replace(&mut self.is_monitor_bad, true) {
                    tell(&format!("QEMU's monitor told nothing: {error:#}"));
                }
                self.monitor = None;
            }
        }
    }

    /// Tells the node which threads run the machine's processors, if it is there.
    fn tell_processors(&mut self) {
        if let (Some(node), Some(processors)) = (&self.node, &self.processors)
            && let Ok(bytes) = processors.to_bytes()
        {
            // A node that is gone is told when it is there again.
            let _ = peer::send(node, &bytes, &[]);
        }
    }

    fn lose_machine(&mut self) {
        self.control = None;
        self.marks = None;
        self.state.handle_machine_gone();
    }

    /// Says the marks that are due.
    fn say_due(&mut self) {
        if self.control.is_some() {
            self.state.say_due();
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(control) = &self.control else { return };
        if self.state.out.flush(control).is_err() {
            self.lose_machine();
        }
    }

    fn hear_control(&mut self) {
        let Some(control) = &self.control else { return };
        let mut came = vec![0; READ_BYTES];
        let heard = match rustix::io::read(control, &mut came) {
            Ok(count @ 1..) => self.state.handle_guest(&came[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(_) | Err(_) => return self.lose_machine(),
        };
        if let Some(version) = heard.foreign {
            tell(&format!(
                "the guest's agent speaks protocol {version}, this is {PROTOCOL_VERSION}: install \
                 weft-guest of the node's build in the guest"
            ));
        }
        if heard.began
            && let Err(error) = self.name_in_region.write_from(&self.name)
        {
            tell(&format!("the region has no name: {error}"));
        }
        self.flush();
    }

    /// Marks of the guest say that some worker's flag was taken back; which, the flags say.
    fn hear_marks(&mut self) {
        let Some(marks) = &self.marks else { return };
        let mut came = [0; 4096];
        match bell::take_marks(marks, &mut came) {
            Ok(count @ 1..) => {
                self.state.handle_marks(count);
                for (_, session) in self.state.sessions() {
                    session.doorbell.wake_marked();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.marks = None,
        }
    }

    /// A worker has something for sleepers of the guest.
    fn hear_worker(&mut self, mark: u8) {
        let Some(session) = self.state.session_mut(mark) else { return };
        match bell::take_marks(&session.marks, &mut [0; 4096]) {
            Ok(1..) => self.state.handle_worker(mark),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => session.is_mute = true,
        }
    }

    fn lose_worker(&mut self, mark: u8) {
        if let Some(session) = self.state.session_mut(mark) {
            session.lifeline = None;
            self.state.handle_worker_gone(mark);
            self.flush();
        }
    }

    /// Asks the daemon for the next session, one at a time.
    fn ask_node(&mut self) {
        let Some(hello) = self.state.poll_hello() else { return };
        let sent = self.node.as_ref().map(|node| peer::send(node, &hello, &[]));
        if !matches!(sent, Some(Ok(()))) {
            self.lose_node();
            let why = self.refused.as_deref();
            self.state.handle_node_gone(
                why.unwrap_or("the weft node of this virtual machine's host is not running"),
            );
            self.flush();
        }
    }

    fn hear_node(&mut self) {
        let Some(node) = &self.node else { return };
        if let Ok(Some(message)) = peer::receive(node, HANDSHAKE_BYTES_MAX) {
            let region = &self.region;
            let answered = self.state.handle_answer(&message.bytes, |place| {
                Session::enter(region, place, message.descriptors)
            });
            if let Err(error) = answered {
                tell(&format!("a session did not begin: {error:#}"));
            }
        } else {
            let why = "the weft node of this virtual machine's host has ended";
            self.state.handle_node_gone(why);
            self.lose_node();
        }
        self.flush();
    }

    fn lose_node(&mut self) {
        // Who asks in a loop does not put off the next look.
        if self.node.take().is_some() {
            tell("the node is gone; its sessions go on");
            self.lost_at = Some(Instant::now());
        }
    }

    /// Looks for a daemon that took the place of the one that is gone. Whoever lent a
    /// region that is lost is told: the machine must be started again.
    fn look_for_node(&mut self) -> Result<()> {
        let is_due = self.lost_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if self.node.is_some() || !is_due {
            return Ok(());
        }
        let began = Instant::now();
        let opened = self.opener.open(self.name);
        // It may have taken long, for which nobody was served: as long as that everybody is.
        self.lost_at = Some(Instant::now() + began.elapsed());
        match opened {
            Ok(Opened { node, .. }) => {
                tell("a node is there again");
                self.node = Some(node);
                self.tell_processors();
            }
            Err(error) if error.is::<Refused>() => {
                if matches!(self.opener, Opener::Lent(_)) && self.state.sessions().next().is_none()
                {
                    return Err(error);
                }
                tell(&format!("{error}"));
                self.refused = Some(format!("on this virtual machine's host: {error}"));
                // Sessions that there are go on; the refusal will not change.
                self.lost_at = Some(Instant::now() + Duration::from_secs(3600));
            }
            Err(_) => {}
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let sockets = [control_socket, marks_socket, monitor_socket, region_socket];
        for path in sockets.into_iter().chain([region_link as fn(&Path) -> PathBuf]) {
            // The folder may be gone.
            let _ = fs::remove_file(path(&self.folder));
        }
    }
}

/// Socket of the port for frames, in a machine's folder.
#[must_use]
pub fn control_socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// Socket of the port for marks, in a machine's folder.
#[must_use]
pub fn marks_socket(folder: &Path) -> PathBuf {
    folder.join("marks.sock")
}

/// Socket of QEMU's monitor, in a machine's folder.
#[must_use]
pub fn monitor_socket(folder: &Path) -> PathBuf {
    folder.join("monitor.sock")
}

/// Socket that gives a machine without a hypervisor its region, in a machine's folder.
#[must_use]
pub fn region_socket(folder: &Path) -> PathBuf {
    folder.join("region.sock")
}

/// Where QEMU finds the region, in a machine's folder.
#[must_use]
pub fn region_link(folder: &Path) -> PathBuf {
    folder.join("region")
}

fn listen(path: &Path) -> Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another machine's server listens at {}", path.display());
    }
    let listener = peer::listen_stream(&vacant(path)?, 0o600, 4);
    listener.with_context(|| format!("cannot listen at {}", path.display()))
}

/// The same path, without what an earlier server left there.
fn vacant(path: &Path) -> Result<PathBuf> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(path.to_owned()),
    }
}

/// The server's only log.
fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "weft-guest: {line}");
}
