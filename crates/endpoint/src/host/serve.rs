//! The endpoint's socket, and the look that it takes around every now and then.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use weft_api::endpoint::{Answer, Asked, LINE_BYTES_MAX, Request, VERSIONS};
use weft_ring::peer;

use super::agent::{Agent, Totals};
use super::{Failure, system};
use crate::{left, lock};

/// How often to look whether somebody changed what is in force.
const REPAIR_EVERY: Duration = Duration::from_secs(2);

/// Connections to the socket at once: a control plane has one for each of its threads.
const CONNECTIONS_MAX: usize = 64;

/// A connection on which nothing is asked for so long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Connections that have not been taken yet.
const BACKLOG: u16 = 64;

/// Listens at a socket that only this user and root may use. One that an endpoint left when it was
/// killed is taken away.
///
/// # Errors
/// If somebody listens there, and the system's.
pub fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    left::remove(path, || UnixStream::connect(path))?;
    peer::listen_stream(path, 0o600, BACKLOG)
        .with_context(|| format!("cannot listen at {}", path.display()))
}

/// Answers for ever; looks around in between.
///
/// # Errors
/// If a thread cannot be started.
pub fn serve(listener: &UnixListener, agent: Agent) -> io::Result<()> {
    let agent = Arc::new(Mutex::new(agent));
    let mender = Arc::clone(&agent);
    thread::Builder::new().name("repair".into()).spawn(move || repair_always(&mender))?;
    let connections = Arc::new(());
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, for a while.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if Arc::strong_count(&connections) > CONNECTIONS_MAX || is_strange(&stream) {
            continue;
        }
        let (agent, place) = (Arc::clone(&agent), Arc::clone(&connections));
        let thread = thread::Builder::new().name("asked".into());
        let spawned = thread.spawn(move || {
            // Whoever asks has gone if it cannot be told.
            let _ = converse(&stream, &agent);
            drop(place);
        });
        drop(spawned);
    }
}

fn is_strange(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    !peer::credentials(stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own)
}

#[expect(clippy::print_stderr, reason = "the program's only log")]
fn repair_always(agent: &Mutex<Agent>) {
    let mut last = String::new();
    loop {
        let said = match lock(agent).repair() {
            Ok(false) => String::new(),
            Ok(true) => "endpoint: put the rules in force again".to_owned(),
            Err(failure) => format!("endpoint: the rules may not be in force: {failure}"),
        };
        // The same, every two seconds, would fill a disk.
        if !said.is_empty() && said != last {
            eprintln!("{said}");
        }
        last = said;
        thread::sleep(REPAIR_EVERY);
    }
}

fn converse(stream: &UnixStream, agent: &Mutex<Agent>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_LIMIT))?;
    stream.set_write_timeout(Some(IDLE_LIMIT))?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = understood(&line).map_or_else(|refused| refused, |asked| act(asked, agent));
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        writer.write_all(&bytes)?;
    }
}

fn understood(line: &str) -> Result<Request, Answer> {
    let refused = |words: String| Answer::Refused { is_permanent: true, words };
    let unread = |error: serde_json::Error| refused(format!("not understood: {error}"));
    let value: serde_json::Value = serde_json::from_str(line).map_err(unread)?;
    // The version is looked at before what another one may say differently.
    let version = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let is_opening = value.get("do").is_some_and(|asked| asked == "versions");
    let is_spoken = u32::try_from(version).is_ok_and(|version| VERSIONS.contain(version));
    if !is_opening && !is_spoken {
        return Err(refused(format!("version {version} is not spoken here, but {VERSIONS}")));
    }
    serde_json::from_value::<Asked>(value).map(|asked| asked.request).map_err(unread)
}

fn act(request: Request, agent: &Mutex<Agent>) -> Answer {
    let mut agent = lock(agent);
    let done = match request {
        Request::Versions => Ok(Answer::Versions(VERSIONS)),
        Request::Put { instance, rows } => agent.put(&instance, &rows).map(|()| Answer::Done),
        Request::Holds { instance, rows } => {
            Ok(Answer::Holds { holds: agent.holds(&instance, &rows) })
        }
        Request::Withdraw { instance } => agent.withdraw(&instance).map(|()| Answer::Done),
        Request::Instances => Ok(Answer::Instances { instances: agent.table().instances() }),
        Request::Metrics => metrics(&agent).map(|text| Answer::Metrics { text }),
    };
    done.unwrap_or_else(|failure| refusal(&failure))
}

fn refusal(failure: &Failure) -> Answer {
    let mut words = failure.to_string();
    if let Some(source) = std::error::Error::source(failure) {
        words = format!("{words}: {source}");
    }
    Answer::Refused { is_permanent: failure.is_permanent(), words }
}

fn metrics(agent: &Agent) -> Result<String, Failure> {
    let Totals { applied, repaired, failed, ended, last } = agent.totals();
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: String| {
        text += &format!(
            "# HELP weft_endpoint_{name} {help}\n# TYPE weft_endpoint_{name} {kind}\n\
             weft_endpoint_{name} {value}\n"
        );
    };
    let table = agent.table();
    metric("ports", "gauge", "Ports with rules.", table.ports().len().to_string());
    metric("rows", "gauge", "Rows in the table.", table.len().to_string());
    metric("applied_total", "counter", "Rulesets put in force.", applied.to_string());
    metric("repaired_total", "counter", "Of those, after a change from outside.", {
        repaired.to_string()
    });
    metric("failed_total", "counter", "Rulesets not put in force.", failed.to_string());
    metric("ended_total", "counter", "Grants whose connections were ended.", ended.to_string());
    let seconds = last.as_secs_f64().to_string();
    metric("apply_seconds", "gauge", "How long the last ruleset took.", seconds);
    for (name, packets) in system::counters()? {
        let (name, help) = (format!("{name}_packets_total"), "Packets dropped.");
        metric(&name, "counter", help, packets.to_string());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = include_str!("../../../api/fixtures/endpoint-1.jsonl");

    /// What control planes of the version before say is understood, and what they understand is
    /// answered: nothing else is told from what they know.
    #[test]
    fn a_control_plane_of_the_version_before_is_understood() {
        let mut count = 0;
        for line in RECORDED.lines().filter_map(|line| line.strip_prefix("> ")) {
            let request = understood(line).unwrap();
            let as_before = serde_json::to_string(&Asked { version: 1, request }).unwrap();
            assert_eq!(as_before, line);
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn versions_that_are_further_apart_are_refused_in_words() {
        for version in ["0", "3", "4294967298", "-1", "\"2\""] {
            let line = format!(r#"{{"version":{version},"do":"instances"}}"#);
            let Err(Answer::Refused { is_permanent: true, words }) = understood(&line) else {
                panic!("{version} was understood")
            };
            assert!(words.contains("versions 1 to 2"), "{words}");
            // Which versions there are may be asked in any.
            let opening = format!(r#"{{"version":{version},"do":"versions"}}"#);
            let is_number = version.parse::<u32>().is_ok();
            assert_eq!(understood(&opening).is_ok(), is_number, "{version}");
        }
    }
}
