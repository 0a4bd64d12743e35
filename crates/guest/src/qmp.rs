//! QEMU's monitor: which threads of it run the machine's processors.
//!
//! QEMU connects and greets; it is asked to listen to commands, and then for its processors. What
//! else it says (events, at any time) is not looked at. It is a process of the server's own user:
//! what it says is bounded, and the daemon checks the threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Result, bail};
use rustix::io::Errno;
use serde::Deserialize;
use weft_ring::peer;
use weft_wire::guest::{PROCESSORS_MAX, Processors};

use crate::outbox::Outbox;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// A longer line than this is no answer to what was asked.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What is said first; QEMU takes no other command before.
const BEGIN: &str = "{\"execute\": \"qmp_capabilities\"}\n";

/// Asks for the threads without stopping the machine.
const ASK: &str = "{\"execute\": \"query-cpus-fast\"}\n";

/// How far the conversation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Beginning,
    Asked,
    Told,
}

/// QEMU is gone, or has closed its monitor: no news of the machine's processors, and no fault.
#[derive(Debug)]
pub(crate) struct HungUp;

impl std::fmt::Display for HungUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QEMU hung up")
    }
}

impl std::error::Error for HungUp {}

/// What to do after a line.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Say(&'static str),
    /// The threads of the machine's processors, in the order of their numbers.
    Threads(Vec<u32>),
}

/// One processor, in the answer to [`ASK`].
#[derive(Debug, Deserialize)]
struct Processor {
    #[serde(rename = "cpu-index")]
    number: u32,
    #[serde(rename = "thread-id")]
    thread: u32,
}

/// A line of QEMU's, as far as it matters.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "QMP")]
    greeting: Option<serde_json::Value>,
    #[serde(rename = "return")]
    answer: Option<serde_json::Value>,
    error: Option<serde_json::Value>,
}

impl State {
    fn handle_line(&mut self, line: &[u8]) -> Result<Step> {
        let Line { greeting, answer, error } = serde_json::from_slice(line)?;
        if let Some(error) = error {
            bail!("QEMU refuses: {error}");
        }
        match (*self, greeting, answer) {
            (Self::Greeting, Some(_), _) => {
                *self = Self::Beginning;
                Ok(Step::Say(BEGIN))
            }
            (Self::Beginning, _, Some(_)) => {
                *self = Self::Asked;
                Ok(Step::Say(ASK))
            }
            (Self::Asked, _, Some(answer)) => {
                *self = Self::Told;
                Ok(Step::Threads(threads(serde_json::from_value(answer)?)?))
            }
            // An event, or what nobody asked for.
            (Self::Greeting | Self::Beginning | Self::Asked | Self::Told, _, _) => {
                Ok(Step::Nothing)
            }
        }
    }
}

/// The threads in the order of the processors' numbers, which must be all up to their count.
fn threads(mut processors: Vec<Processor>) -> Result<Vec<u32>> {
    processors.sort_by_key(|processor| processor.number);
    let in_order = processors.iter().zip(0..).all(|(processor, number)| processor.number == number);
    if processors.len() > PROCESSORS_MAX || !in_order {
        bail!("QEMU counts its processors strangely");
    }
    Ok(processors.into_iter().map(|processor| processor.thread).collect())
}

/// A monitor that QEMU has connected.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: OwnedFd,
    /// QEMU, as the system told.
    process: u32,
    state: State,
    came: Vec<u8>,
    out: Outbox,
}

impl Monitor {
    /// On a socket that does not block.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self> {
        let Some(process) = peer::credentials(&socket)?.pid else {
            bail!("nobody knows which process connected");
        };
        let (came, out) = (Vec::new(), Outbox::default());
        Ok(Self { socket, process, state: State::Greeting, came, out })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hears what is there; the processors, once, when QEMU has told them.
    pub(crate) fn hear(&mut self) -> Result<Option<Processors>> {
        let mut bytes = [0; READ_BYTES];
        match rustix::io::read(&self.socket, &mut bytes) {
            Ok(count @ 1..) => self.came.extend_from_slice(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // With something that it has not read.
            Ok(_) | Err(Errno::CONNRESET) => return Err(HungUp.into()),
            Err(errno) => return Err(errno.into()),
        }
        let mut told = None;
        while let Some(end) = self.came.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.came.drain(..=end).collect();
            match self.state.handle_line(&line)? {
                Step::Nothing => {}
                // Some bytes, into a socket that nothing else was said to.
                Step::Say(words) => self.out.push(words.as_bytes()),
                Step::Threads(threads) => {
                    told = Some(Processors { process: self.process, threads });
                }
            }
        }
        if self.came.len() > LINE_BYTES_MAX {
            bail!("QEMU says more than was asked for");
        }
        self.out.flush(&self.socket).map_err(|_| HungUp)?;
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use proptest::{collection, prelude::*};

    use super::*;

    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;
    const EVENT: &str = r#"{"event": "RTC_CHANGE", "data": {"offset": 0}, "timestamp": {}}"#;
    const CPUS: &str = r#"{"return": [{"thread-id": 22, "cpu-index": 1, "target": "x86_64"},
        {"thread-id": 11, "cpu-index": 0, "target": "x86_64"}]}"#;

    #[test]
    fn the_processors_are_asked_for_and_events_passed_over() {
        let mut state = State::Greeting;
        let mut say = |line: &str| state.handle_line(line.as_bytes()).unwrap();
        assert_eq!(say(EVENT), Step::Nothing);
        assert_eq!(say(GREETING), Step::Say(BEGIN));
        assert_eq!(say(EVENT), Step::Nothing);
        assert_eq!(say(r#"{"return": {}}"#), Step::Say(ASK));
        assert_eq!(say(EVENT), Step::Nothing);
        assert_eq!(say(CPUS), Step::Threads(vec![11, 22]));
        assert_eq!(say(CPUS), Step::Nothing, "nobody asked again");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in [
            r#"{"return": [{"thread-id": 1, "cpu-index": 1}]}"#,
            r#"{"return": [{"thread-id": -1, "cpu-index": 0}]}"#,
            r#"{"return": [{"thread-id": 1, "cpu-index": 0}, {"thread-id": 2, "cpu-index": 0}]}"#,
            r#"{"return": {}}"#,
            r#"{"error": {"class": "CommandNotFound"}}"#,
            "nonsense",
        ] {
            let mut state = State::Asked;
            assert!(state.handle_line(answer.as_bytes()).is_err(), "{answer}");
        }
    }

    /// Byte by byte, as a socket may give it.
    #[test]
    fn a_conversation_over_a_socket() {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut monitor = Monitor::new(ours.into()).unwrap();
        let mut told = None;
        for line in [GREETING, r#"{"return": {}}"#, &CPUS.replace('\n', "")] {
            for byte in line.bytes().chain(*b"\r\n") {
                qemu.write_all(&[byte]).unwrap();
                let heard = monitor.hear().unwrap();
                told = heard.or(told);
            }
        }
        let threads = vec![11, 22];
        assert_eq!(told, Some(Processors { process: std::process::id(), threads }));
        let mut said = vec![0; BEGIN.len() + ASK.len()];
        qemu.read_exact(&mut said).unwrap();
        assert_eq!(said, format!("{BEGIN}{ASK}").into_bytes());
        drop(qemu);
        assert!(monitor.hear().unwrap_err().is::<HungUp>());
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut monitor = Monitor::new(ours.into()).unwrap();
        let mut heard = 0;
        let error = loop {
            qemu.write_all(&[b' '; READ_BYTES]).unwrap();
            match monitor.hear() {
                Ok(_) => heard += READ_BYTES,
                Err(error) => break error,
            }
            assert!(heard <= LINE_BYTES_MAX, "{heard} bytes");
        };
        assert!(error.to_string().contains("more than was asked for"), "{error}");
    }

    /// Lines of a monitor, and what is none.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let known = [GREETING, EVENT, r#"{"return": {}}"#, &CPUS.replace('\n', "")];
        let known = known.map(|line| Just([line.as_bytes(), b"\r\n"].concat()));
        let [greeting, event, done, processors] = known;
        let other = collection::vec(any::<u8>(), 0..40);
        prop_oneof![4 => greeting, 2 => event, 4 => done, 4 => processors, 1 => other]
    }

    proptest! {
        /// In pieces of any size: it is asked twice at most, tells once, and only what was asked
        /// for.
        #[test]
        fn whatever_a_monitor_says_it_is_asked_and_tells_once(
            lines in collection::vec(line(), 0..40),
            piece in 1..300_usize,
        ) {
            let (ours, mut qemu) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let mut monitor = Monitor::new(ours.into()).unwrap();
            let mut told = Vec::new();
            let mut last = State::Greeting;
            for bytes in lines.concat().chunks(piece) {
                qemu.write_all(bytes).unwrap();
                let Ok(heard) = monitor.hear() else { break };
                told.extend(heard);
                prop_assert!(monitor.state as u8 >= last as u8, "it went back to {last:?}");
                last = monitor.state;
            }
            prop_assert!(told.len() <= 1 && told.iter().all(|told| told.threads == [11, 22]));
            drop(monitor);
            let mut said = String::new();
            // What it did not read, it says.
            let _ = qemu.read_to_string(&mut said);
            let whole = format!("{BEGIN}{ASK}");
            prop_assert!(whole.starts_with(&said), "{said}");
            prop_assert!(told.is_empty() || said == whole);
        }
    }
}
