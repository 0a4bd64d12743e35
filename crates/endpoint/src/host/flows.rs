//! Connections that the rules once let through: which of them must end.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;

use super::ruleset::{Placed, mark};
use super::{MARK, MARK_MASK};

/// A tracked connection of a port, as far as grants go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The port's mark.
    pub mark: u32,
    /// Where the VM connected to.
    pub masked: SocketAddrV4,
    /// Where that led.
    pub node: SocketAddrV4,
}

/// What `conntrack -L` prints, as far as it is of ours.
#[must_use]
pub fn parse(text: &str) -> BTreeSet<Flow> {
    text.lines().filter_map(flow).collect()
}

fn flow(line: &str) -> Option<Flow> {
    // The first values are of what the VM sent, the second of what answers it.
    let values = |name: &'static str| {
        line.split_ascii_whitespace()
            .filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let mark: u32 = values("mark").next()?.parse().ok()?;
    if mark & MARK_MASK != MARK {
        return None;
    }
    let masked_port = values("dport").next()?.parse().ok()?;
    let masked = SocketAddrV4::new(values("dst").next()?.parse().ok()?, masked_port);
    let node_port = values("sport").nth(1)?.parse().ok()?;
    let node = SocketAddrV4::new(values("src").nth(1)?.parse().ok()?, node_port);
    Some(Flow { mark, masked, node })
}

/// Those that no grant allows any longer.
#[must_use]
pub fn stale(there: &BTreeSet<Flow>, ports: &[Placed]) -> BTreeSet<Flow> {
    let granted: BTreeSet<Flow> = ports
        .iter()
        .flat_map(|Placed { port, .. }| {
            let mark = mark(port.number);
            port.leads.iter().map(move |(masked, node)| Flow { mark, masked: *masked, node: *node })
        })
        .collect();
    there.difference(&granted).copied().collect()
}

impl Flow {
    /// What `conntrack` takes to end it.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let Self { mark, masked, node } = self;
        let words = format!(
            "-D -m {mark} -p tcp -d {} --dport {} --reply-src {} --reply-port-src {}",
            masked.ip(),
            masked.port(),
            node.ip(),
            node.port()
        );
        words.split(' ').map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_as_conntrack_prints_it() {
        let text = "tcp      6 119 TIME_WAIT src=10.0.0.2 dst=169.254.77.1 sport=40001 \
                    dport=18515 zone-orig=2 src=192.168.50.2 dst=192.168.50.1 sport=7002 \
                    dport=40001 [ASSURED] mark=1464139778 use=1\n\
                    tcp      6 5 ESTABLISHED src=10.0.0.2 dst=10.0.0.9 sport=1 dport=2 \
                    src=10.0.0.9 dst=10.0.0.2 sport=2 dport=1 [ASSURED] mark=0 use=1\n\
                    conntrack v1.4.7 (conntrack-tools): 2 flow entries have been shown.\n";
        let flow = Flow {
            mark: 0x5745_0002,
            masked: "169.254.77.1:18515".parse().unwrap(),
            node: "192.168.50.2:7002".parse().unwrap(),
        };
        assert_eq!(parse(text), BTreeSet::from([flow]));
        assert_eq!(stale(&BTreeSet::from([flow]), &[]), BTreeSet::from([flow]));
        let arguments = "-D -m 1464139778 -p tcp -d 169.254.77.1 --dport 18515 --reply-src \
                         192.168.50.2 --reply-port-src 7002";
        assert_eq!(flow.arguments().join(" "), arguments);
    }
}
