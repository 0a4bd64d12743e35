//! The typed client of the admin socket.

use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_ring::peer;

use super::types::{
    Answer, DoctorReport, MoveReport, NodeReport, Recording, Request, Stats, Timeline, VgpuReport,
};

/// The daemon answers within this time or the request failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that are sent before their answers are read: some 30 KiB, which a socket takes whether
/// or not the daemon reads.
const AT_ONCE: usize = 200;

/// The longest answer: a recording of the scheduling core's is the longest that there is.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// A vGPU has moved within this time, or stays where it is: see `daemon::moves`.
const MOVE_TIME: Duration = Duration::from_secs(150);

/// How a daemon's refusal begins of a request that it does not know. It is the same in all
/// versions: who asks for something new knows an older daemon by it.
pub const NOT_UNDERSTOOD: &str = "the request is not understood";

/// A connection to a daemon's admin socket.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// Why a request was not answered as asked.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No daemon listens there.
    #[error("no node daemon answers at {}", either(.paths))]
    NotRunning {
        /// The admin sockets that were tried.
        paths: Vec<PathBuf>,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there.
    #[error("the socket {path} is user {uid}'s: only nodes of your own user and of root are used")]
    Stranger {
        /// The admin socket.
        path: PathBuf,
        /// Who listens there.
        uid: u32,
    },
    /// The socket belongs to somebody else.
    #[error("no permission to use the admin socket {path}")]
    Permission {
        /// The admin socket.
        path: PathBuf,
    },
    /// The connection broke.
    #[error("the node daemon went away")]
    Io(#[from] io::Error),
    /// The daemon refused.
    #[error("{0}")]
    Refused(String),
    /// The daemon's answer is not what this client understands.
    #[error("the node daemon is of another version: {0}")]
    Unexpected(String),
}

impl AdminError {
    /// Whether the daemon does not know what it was asked: it is of a version before.
    #[must_use]
    pub fn is_not_understood(&self) -> bool {
        matches!(self, Self::Refused(why) if why.starts_with(NOT_UNDERSTOOD))
    }
}

impl Client {
    /// Connects to the admin socket at `path`, which somebody named.
    ///
    /// # Errors
    /// [`AdminError::NotRunning`], [`AdminError::Permission`], [`AdminError::Stranger`].
    pub fn connect(path: &Path) -> Result<Self, AdminError> {
        Self::open(path, true, ANSWER_TIMEOUT)
    }

    /// The same, but a daemon that takes no connection in within that time, or then does not answer
    /// within it, hangs: it fails with [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// As [`Self::connect`], and [`AdminError::Io`].
    pub fn connect_within(path: &Path, limit: Duration) -> Result<Self, AdminError> {
        Self::open(path, true, limit)
    }

    /// Connects to the admin socket at `path`, which was searched for.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_found(path: &Path) -> Result<Self, AdminError> {
        Self::open(path, false, ANSWER_TIMEOUT)
    }

    fn open(path: &Path, named: bool, limit: Duration) -> Result<Self, AdminError> {
        let stream = peer::connect_within(path, limit).map_err(|source| {
            let path = path.to_owned();
            if source.kind() == io::ErrorKind::PermissionDenied {
                AdminError::Permission { path }
            } else if source.kind() == io::ErrorKind::WouldBlock {
                // It takes nobody in: it hangs, and runs.
                AdminError::Io(source)
            } else {
                AdminError::NotRunning { paths: vec![path], source }
            }
        })?;
        if let Some(uid) = peer::stranger(&stream, named)? {
            return Err(AdminError::Stranger { path: path.to_owned(), uid });
        }
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one request and returns its answer, errors of the daemon included.
    ///
    /// # Errors
    /// [`AdminError::Io`], [`AdminError::Refused`], [`AdminError::Unexpected`].
    pub fn call(&mut self, request: &Request) -> Result<Answer, AdminError> {
        self.send(std::slice::from_ref(request))?;
        self.receive()
    }

    /// Sends requests one behind the other, and returns what each was answered, in their order:
    /// what they make comes to the node's disk together.
    ///
    /// # Errors
    /// [`AdminError::Io`], [`AdminError::Unexpected`]; then nobody knows how many were done.
    pub fn call_all(
        &mut self,
        requests: &[Request],
    ) -> Result<Vec<Result<Answer, AdminError>>, AdminError> {
        let mut answers = Vec::with_capacity(requests.len());
        for part in requests.chunks(AT_ONCE) {
            self.send(part)?;
            for _ in part {
                match self.receive() {
                    Err(AdminError::Refused(why)) => answers.push(Err(AdminError::Refused(why))),
                    answer => answers.push(Ok(answer?)),
                }
            }
        }
        Ok(answers)
    }

    /// Waits no longer than that for what is asked next.
    ///
    /// # Errors
    /// [`AdminError::Io`].
    pub fn wait_at_most(&mut self, limit: Duration) -> Result<(), AdminError> {
        Ok(self.stream.get_ref().set_read_timeout(Some(limit))?)
    }

    fn send(&mut self, requests: &[Request]) -> Result<(), AdminError> {
        let mut lines = Vec::new();
        for request in requests {
            serde_json::to_writer(&mut lines, request)
                .map_err(|error| AdminError::Unexpected(error.to_string()))?;
            lines.push(b'\n');
        }
        match self.stream.get_mut().write_all(&lines) {
            // A daemon that has no place for this connection has said so, and closed it.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }

    fn receive(&mut self) -> Result<Answer, AdminError> {
        let text = line(&mut self.stream, LINE_BYTES_MAX)?;
        match serde_json::from_str(&text) {
            Ok(Answer::Error { message }) => Err(AdminError::Refused(message)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(AdminError::Unexpected(error.to_string())),
        }
    }

    /// What the node is.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn node(&mut self) -> Result<NodeReport, AdminError> {
        let answer = self.call(&Request::Node)?;
        if let Answer::Node(report) = answer { Ok(report) } else { Err(unexpected(&answer)) }
    }

    /// All vGPUs, by name.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn list(&mut self) -> Result<Vec<VgpuReport>, AdminError> {
        let answer = self.call(&Request::List)?;
        if let Answer::Vgpus(vgpus) = answer { Ok(vgpus) } else { Err(unexpected(&answer)) }
    }

    /// Creates a vGPU for the calling user.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn create(
        &mut self,
        name: &str,
        weight: Option<u32>,
        memory_bytes: Option<u64>,
    ) -> Result<VgpuReport, AdminError> {
        let name = name.to_owned();
        self.vgpu(&Request::Create {
            name,
            weight,
            memory_bytes,
            device: None,
            owner: None,
            token: None,
            cap_ppm: None,
            sla_ns: None,
        })
    }

    /// Changes weight or memory quota of a vGPU.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set(
        &mut self,
        name: &str,
        weight: Option<u32>,
        memory_bytes: Option<u64>,
    ) -> Result<VgpuReport, AdminError> {
        let (name, cap_ppm, sla_ns) = (name.to_owned(), None, None);
        self.vgpu(&Request::Set { name, weight, memory_bytes, cap_ppm, sla_ns })
    }

    /// Changes the SLA of a vGPU, in ns; 0 for none, which makes it batch.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn set_sla(&mut self, name: &str, sla_ns: u64) -> Result<VgpuReport, AdminError> {
        let (name, sla_ns) = (name.to_owned(), Some(sla_ns));
        let (weight, memory_bytes, cap_ppm) = (None, None, None);
        self.vgpu(&Request::Set { name, weight, memory_bytes, cap_ppm, sla_ns })
    }

    /// Changes the cap of a vGPU, in millionths of the device's time; 1,000,000 for none.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_cap(&mut self, name: &str, cap_ppm: u32) -> Result<VgpuReport, AdminError> {
        let (name, cap_ppm) = (name.to_owned(), Some(cap_ppm));
        let (weight, memory_bytes, sla_ns) = (None, None, None);
        self.vgpu(&Request::Set { name, weight, memory_bytes, cap_ppm, sla_ns })
    }

    /// Changes what a user's vGPUs together get.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_tenant(&mut self, uid: u32, weight: u32) -> Result<(), AdminError> {
        self.done(&Request::SetTenant { uid, weight })
    }

    /// Changes what a process gets of its vGPU's part, until it ends.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_session(&mut self, pid: u32, weight: u32) -> Result<(), AdminError> {
        self.done(&Request::SetSession { pid, weight })
    }

    /// Removes a vGPU; `force` ends its sessions.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn remove(&mut self, name: &str, force: bool) -> Result<(), AdminError> {
        self.done(&Request::Remove { name: name.to_owned(), force })
    }

    /// Totals now.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn stats(&mut self) -> Result<Stats, AdminError> {
        let answer = self.call(&Request::Stats)?;
        if let Answer::Stats(stats) = answer { Ok(stats) } else { Err(unexpected(&answer)) }
    }

    /// Turns that end, or go on, at or after `since_ns` (ns of `CLOCK_MONOTONIC`).
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn timeline(&mut self, since_ns: u64) -> Result<Timeline, AdminError> {
        let answer = self.call(&Request::Timeline { since_ns })?;
        if let Answer::Timeline(timeline) = answer {
            Ok(timeline)
        } else {
            Err(unexpected(&answer))
        }
    }

    /// Records what the scheduling core is told and answers for some seconds.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn record(&mut self, seconds: u32) -> Result<Recording, AdminError> {
        let time = Duration::from_secs(seconds.into());
        let answer = self.call_for(&Request::Record { seconds }, time)?;
        if let Answer::Recording(recording) = answer {
            Ok(recording)
        } else {
            Err(unexpected(&answer))
        }
    }

    /// Changes the policy of a device, or of all.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_policy(
        &mut self,
        policy: &str,
        device: Option<&str>,
    ) -> Result<NodeReport, AdminError> {
        let (set, device) = (Some(policy.to_owned()), device.map(str::to_owned));
        let answer = self.call(&Request::Policy { set, device })?;
        if let Answer::Node(report) = answer { Ok(report) } else { Err(unexpected(&answer)) }
    }

    /// Moves a vGPU to another device, or to another one of a pool.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn move_vgpu(&mut self, name: &str, device: &str) -> Result<MoveReport, AdminError> {
        let (name, device) = (name.to_owned(), device.to_owned());
        let answer = self.call_for(&Request::Move { name, device }, MOVE_TIME)?;
        if let Answer::Moved(report) = answer { Ok(report) } else { Err(unexpected(&answer)) }
    }

    /// Takes a device out of service, or puts it back; `force` ends programs that cannot go to
    /// another one.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_device(
        &mut self,
        name: &str,
        in_service: bool,
        force: bool,
    ) -> Result<(), AdminError> {
        let name = name.to_owned();
        // Its vGPUs move one after the other.
        self.call_for(&Request::SetDevice { name, in_service, force }, 8 * MOVE_TIME)?;
        Ok(())
    }

    /// Sends a request that takes so long.
    fn call_for(&mut self, request: &Request, time: Duration) -> Result<Answer, AdminError> {
        self.stream.get_ref().set_read_timeout(Some(ANSWER_TIMEOUT + time))?;
        let answer = self.call(request);
        self.stream.get_ref().set_read_timeout(Some(ANSWER_TIMEOUT))?;
        answer
    }

    /// Devices, limits and what is wrong with them.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn doctor(&mut self) -> Result<DoctorReport, AdminError> {
        let answer = self.call(&Request::Doctor)?;
        if let Answer::Doctor(report) = answer { Ok(report) } else { Err(unexpected(&answer)) }
    }

    /// Prometheus text.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn metrics(&mut self) -> Result<String, AdminError> {
        let answer = self.call(&Request::Metrics)?;
        if let Answer::Metrics(text) = answer { Ok(text) } else { Err(unexpected(&answer)) }
    }

    /// Ends the daemon and its workers, whatever they are doing.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn shutdown(&mut self) -> Result<(), AdminError> {
        self.done(&Request::Shutdown { force: true })
    }

    /// Ends the daemon if no program runs on it.
    ///
    /// # Errors
    /// As [`Self::call`]; a refusal names the programs.
    pub fn shutdown_if_unused(&mut self) -> Result<(), AdminError> {
        self.done(&Request::Shutdown { force: false })
    }

    /// Waits until the daemon, which was told to stop, has ended: its process keeps this connection
    /// as long as it lives, and its locks.
    ///
    /// # Errors
    /// [`AdminError::Io`] with [`io::ErrorKind::TimedOut`] once the time is over.
    pub fn await_end(mut self, limit: Duration) -> Result<(), AdminError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.wait_at_most(left)?;
            match self.stream.read(&mut [0]) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => {
                    let is_later = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                    if !is_later.contains(&error.kind()) {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    fn vgpu(&mut self, request: &Request) -> Result<VgpuReport, AdminError> {
        let answer = self.call(request)?;
        if let Answer::Vgpu(report) = answer { Ok(report) } else { Err(unexpected(&answer)) }
    }

    fn done(&mut self, request: &Request) -> Result<(), AdminError> {
        let answer = self.call(request)?;
        if answer == Answer::Done { Ok(()) } else { Err(unexpected(&answer)) }
    }
}

/// A line, of which no more is kept than an answer may have.
fn line(from: &mut impl BufRead, most: u64) -> Result<String, AdminError> {
    let mut text = String::new();
    if from.take(most).read_line(&mut text)? == 0 {
        return Err(AdminError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    if text.ends_with('\n') {
        return Ok(text);
    }
    Err(match text.len() as u64 {
        long if long >= most => {
            AdminError::Unexpected(format!("an answer has more than {most} bytes"))
        }
        _ => AdminError::Io(io::ErrorKind::UnexpectedEof.into()),
    })
}

fn unexpected(answer: &Answer) -> AdminError {
    AdminError::Unexpected(format!("{answer:?}"))
}

fn either(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_an_end_is_not_kept() {
        let error = line(&mut BufReader::new(io::repeat(b'x')), 100).unwrap_err();
        assert!(error.to_string().contains("more than 100 bytes"), "{error}");
        assert_eq!(line(&mut &b"{}\nrest"[..], 100).unwrap(), "{}\n");
        assert!(matches!(line(&mut &b"{"[..], 100), Err(AdminError::Io(_))), "it went away");
    }
}
