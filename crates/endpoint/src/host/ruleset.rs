//! The nftables rules, a pure function of the ports.
//!
//! A packet's way: the port is known by interface, hardware address and address together, and
//! becomes a *mark*. A marked packet goes on only if its mark was granted that masked address; then
//! it is tracked in the port's own zone, so that VMs with one address do not meet, and led to the
//! node. An answer is marked by its connection, and the mark chooses the routing table with the
//! way to the VM. What comes from a port and is anything else is dropped, and counted.
//!
//! One text is one transaction. Tables and counters that are there stay, everything else is put in
//! the place of what was.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::network::Place;
use super::table::Numbered;
use super::{CONNECTIONS_MAX, MARK, MARK_MASK, MASKED_BITS, MASKED_NETWORK, MASKED_SELF, TABLE};

/// A port, and how it is attached to its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The port.
    pub port: Numbered,
    /// How it is attached.
    pub place: Place,
}

const CHAINS: &str = "
  chain raw { type filter hook prerouting priority -350; policy accept; }
  chain marks { type filter hook prerouting priority -150; policy accept; }
  chain answers { type route hook output priority -150; policy accept; }
  chain lead { type nat hook prerouting priority -100; policy accept; }
  chain input { type filter hook input priority 0; policy accept; }
  chain forward { type filter hook forward priority 0; policy accept; }
  chain here { type nat hook input priority 100; policy accept; }
  chain away { type nat hook postrouting priority 100; policy accept; }
  chain port {}
  chain masked {}
  chain bound {}
";

const CHAIN_NAMES: [&str; 11] = [
    "raw", "marks", "answers", "lead", "input", "forward", "here", "away", "port", "masked",
    "bound",
];

const SETS: &str = "
  counter refused {}
  counter spoofed {}
  counter bounded {}
  map port { type ifname . ether_addr . ipv4_addr : mark; }
  map zone { typeof meta mark : ct zone; }
  map grant { type mark . ipv4_addr . inet_service : ipv4_addr . inet_service; }
  set granted { type mark . ipv4_addr . inet_service; }
  set alone { type ifname; }
  set uplink { type ifname; }
  set bridges { type ifname; }
  set same { type ifname . ifname; }
  set connections { type mark; size 65535; flags dynamic; }
";

/// Maps and sets whose elements are put anew.
const FILLED: [(&str, &str); 8] = [
    ("map", "port"),
    ("map", "zone"),
    ("map", "grant"),
    ("set", "granted"),
    ("set", "alone"),
    ("set", "uplink"),
    ("set", "bridges"),
    ("set", "same"),
];

/// The text for `nft -f -`.
#[must_use]
pub fn ruleset(ports: &[Placed], uplinks: &[String]) -> String {
    let mut text = format!("table inet {TABLE} {{{SETS}{CHAINS}}}\n");
    for chain in CHAIN_NAMES {
        line(&mut text, &format!("flush chain inet {TABLE} {chain}"));
    }
    for (kind, name) in FILLED {
        line(&mut text, &format!("flush {kind} inet {TABLE} {name}"));
    }
    line(&mut text, &format!("table inet {TABLE} {{{}}}", rules()));
    let is_alone = |placed: &&Placed| placed.place == Place::Alone;
    elements(&mut text, "inet", "port", ports.iter().filter(is_alone).map(port_element));
    elements(&mut text, "inet", "alone", ports.iter().filter(is_alone).map(tap_element));
    elements(&mut text, "inet", "uplink", uplinks.iter().map(|uplink| format!("\"{uplink}\"")));
    let bridges: BTreeSet<&str> = ports.iter().filter_map(bridge_of).collect();
    let quoted = |name: &&str| format!("\"{name}\"");
    elements(&mut text, "inet", "bridges", bridges.iter().map(quoted));
    let pair = |name: &&str| format!("\"{name}\" . \"{name}\"");
    elements(&mut text, "inet", "same", bridges.iter().map(pair));
    elements(&mut text, "inet", "zone", ports.iter().map(zone_element));
    elements(&mut text, "inet", "grant", leads(ports, true));
    elements(&mut text, "inet", "granted", leads(ports, false));
    bridge(&mut text, ports);
    text
}

fn line(text: &mut String, line: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

fn elements(text: &mut String, family: &str, name: &str, elements: impl Iterator<Item = String>) {
    let elements: Vec<String> = elements.collect();
    if !elements.is_empty() {
        let all = elements.join(",\n  ");
        line(text, &format!("add element {family} {TABLE} {name} {{\n  {all}\n}}"));
    }
}

/// The mark of the port with this number.
#[must_use]
pub fn mark(number: u16) -> u32 {
    MARK | u32::from(number)
}

fn bridge_of(placed: &Placed) -> Option<&str> {
    match &placed.place {
        Place::Alone => None,
        Place::Bridge(bridge) => Some(bridge),
    }
}

fn port_element(placed: &Placed) -> String {
    let Numbered { number, port, .. } = &placed.port;
    format!("\"{}\" . {} . {} : {:#x}", port.tap, port.mac, port.ip, mark(*number))
}

fn tap_element(placed: &Placed) -> String {
    format!("\"{}\"", placed.port.port.tap)
}

fn zone_element(placed: &Placed) -> String {
    let number = placed.port.number;
    format!("{:#x} : {number}", mark(number))
}

fn leads(ports: &[Placed], with_node: bool) -> impl Iterator<Item = String> {
    ports.iter().flat_map(move |Placed { port, .. }| {
        let number = port.number;
        port.leads.iter().map(move |(masked, node)| {
            let key = format!("{:#x} . {} . {}", mark(number), masked.ip(), masked.port());
            if with_node { format!("{key} : {} . {}", node.ip(), node.port()) } else { key }
        })
    })
}

/// The rules, which no port changes.
fn rules() -> String {
    let masked = format!("{MASKED_NETWORK}/{MASKED_BITS}");
    let ours = format!("& {MARK_MASK:#x} == {MARK:#x}");
    format!(
        "
  chain raw {{
    iifname @alone goto port
    ip daddr {masked} goto masked
  }}
  chain port {{
    meta mark set 0
    meta mark set iifname . ether saddr . ip saddr map @port
    meta mark 0 counter name spoofed drop
    ip daddr {masked} goto masked
    counter name refused drop
  }}
  chain masked {{
    meta mark . ip daddr . tcp dport != @granted counter name refused drop
    meta l4proto != tcp counter name refused drop
    ct original zone set meta mark map @zone
  }}
  chain marks {{
    ct state new meta mark {ours} ct mark set meta mark
    ct direction reply ct mark {ours} meta mark set ct mark
  }}
  chain answers {{
    ct direction reply ct mark {ours} meta mark set ct mark
  }}
  chain lead {{
    ip daddr {masked} dnat ip to meta mark . ip daddr . tcp dport map @grant
  }}
  chain input {{
    meta mark {ours} goto bound
  }}
  chain forward {{
    meta mark {ours} goto bound
    iifname @uplink ct direction original drop
    iifname @bridges iifname . oifname != @same drop
  }}
  chain bound {{
    ct direction original ct state new add @connections \
         {{ meta mark ct count over {CONNECTIONS_MAX} }} counter name bounded drop
    ct status dnat return
    counter name refused drop
  }}
  chain here {{
    meta mark {ours} snat ip to {MASKED_SELF}
  }}
  chain away {{
    ct direction original meta mark {ours} masquerade
  }}
"
    )
}

/// Ports of a bridge are known where they enter it, before the bridge forgets which one it was.
fn bridge(text: &mut String, ports: &[Placed]) {
    let masked = format!("{MASKED_NETWORK}/{MASKED_BITS}");
    line(text, &format!("table bridge {TABLE} {{}}\ndelete table bridge {TABLE}"));
    let bridged: Vec<&Placed> =
        ports.iter().filter(|placed| placed.place != Place::Alone).collect();
    if bridged.is_empty() {
        return;
    }
    line(
        text,
        &format!(
            "table bridge {TABLE} {{
  map port {{ type ifname . ether_addr . ipv4_addr : mark; }}
  chain raw {{
    type filter hook prerouting priority -300; policy accept;
    arp saddr ip {masked} drop
    ip daddr {masked} goto masked
  }}
  chain masked {{
    meta mark set 0
    meta mark set iifname . ether saddr . ip saddr map @port
    meta mark 0 drop
    meta pkttype set host
  }}
  chain forward {{
    type filter hook forward priority 0; policy accept;
    ip daddr {masked} drop
    arp daddr ip {masked} drop
  }}
}}"
        ),
    );
    elements(text, "bridge", "port", bridged.into_iter().map(port_element));
}

#[cfg(test)]
#[path = "ruleset_tests.rs"]
mod tests;
