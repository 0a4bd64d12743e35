//! Programs that are no process of the node, but of another host or of a virtual machine.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ProcessReport;

/// Where such a program is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// What kind of place that is.
    pub place: Place,
    /// The other host's address, as the node's gateway sees it; absent where something else than
    /// the gateway relays for it, and of virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The program's number there as it says itself, which nobody can check: it is for people, who
    /// compare it with what that host shows. 0 if it says none.
    pub claimed_pid: u32,
}

/// Kinds of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Another host.
    Host,
    /// A virtual machine on the node's host.
    Machine,
}

/// Which program it is, for people.
#[derive(Debug, Clone, Copy)]
pub struct Whereabouts<'a> {
    /// The process on the node.
    pub pid: u32,
    /// Where the program is, if it is no process of the node.
    pub elsewhere: Option<&'a Elsewhere>,
}

impl fmt::Display for Whereabouts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, elsewhere } = *self;
        let Some(Elsewhere { place, address, claimed_pid }) = elsewhere else {
            return write!(f, "process {pid}");
        };
        match (place, address) {
            (Place::Host, Some(address)) => write!(f, "host {address}")?,
            (Place::Host, None) => write!(f, "another host, through process {pid}")?,
            (Place::Machine, _) => write!(f, "virtual machine of process {pid}")?,
        }
        match claimed_pid {
            0 => Ok(()),
            claimed => write!(f, ", says it is process {claimed}"),
        }
    }
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, pid, elsewhere, .. } = self;
        match elsewhere {
            None => write!(f, "{program} ({pid})"),
            elsewhere => {
                let elsewhere = elsewhere.as_ref();
                write!(f, "{program} ({})", Whereabouts { pid: *pid, elsewhere })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(elsewhere: serde_json::Value) -> ProcessReport {
        let mut report = json!({
            "pid": 812, "uid": 0, "program": "train.py", "memory_bytes": 0, "pinned_bytes": 0,
            "used_ns": 0, "state": "idle",
        });
        if !elsewhere.is_null() {
            report["elsewhere"] = elsewhere;
        }
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn who_a_program_is_that_is_no_process_of_the_node_is_said_and_what_is_its_word_alone() {
        for (elsewhere, words) in [
            (json!(null), "train.py (812)"),
            (
                json!({ "place": "host", "address": "10.0.0.7", "claimed_pid": 45 }),
                "train.py (host 10.0.0.7, says it is process 45)",
            ),
            (
                json!({ "place": "host", "claimed_pid": 45 }),
                "train.py (another host, through process 812, says it is process 45)",
            ),
            (
                json!({ "place": "machine", "claimed_pid": 0 }),
                "train.py (virtual machine of process 812)",
            ),
        ] {
            let report = report(elsewhere.clone());
            assert_eq!(report.to_string(), words);
            // What is sent is what came; of a process of the node as by versions before.
            let sent = serde_json::to_value(&report).unwrap();
            assert_eq!(sent.get("elsewhere").cloned().unwrap_or_default(), elsewhere);
        }
    }
}
