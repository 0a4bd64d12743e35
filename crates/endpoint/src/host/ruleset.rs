//! The nftables rules, a pure function of the ports.
//!
//! A packet's way: interface, hardware address and address together are the port, and with the
//! masked address a grant of it. All of this is looked up as one key, which gives the *zone* that
//! the packet is tracked in: the port's own, so that VMs with one address do not meet. What is not
//! there is looked at again, to say what was wrong with it. Frames of a bridge are marked where
//! they enter it, and here only their grant is looked up.
//!
//! What a connection is asked once, its first packet is asked, in chains of translation: they give
//! it the port's *mark*, count it, and lead it to the node. Its other packets pass by its mark, and
//! an answer's chooses the routing table with the way to the VM. What comes from a port and is
//! anything else is dropped, and counted.
//!
//! One text is one transaction. Tables and counters that are there stay, everything else is put in
//! the place of what was.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

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

/// Families with a table of ours. Ports of bridges have one more, and ports that stand alone.
pub const FAMILIES: [&str; 3] = ["inet", "bridge", "arp"];

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
  chain led {}
";

const CHAIN_NAMES: [&str; 11] = [
    "raw", "marks", "answers", "lead", "input", "forward", "here", "away", "port", "masked", "led",
];

const SETS: &str = "
  counter refused {}
  counter spoofed {}
  counter bounded {}
  map way { typeof iifname . ether saddr . ip saddr . ip daddr . tcp dport : ct zone; }
  map granted { typeof meta mark . ip daddr . tcp dport : ct zone; }
  set port { type ifname . ether_addr . ipv4_addr; }
  map marked { typeof ct original zone : ct mark; }
  map grant { typeof ct original zone . ip daddr . tcp dport : ip daddr . tcp dport; }
  set alone { type ifname; }
  set uplink { type ifname; }
  set bridges { type ifname; }
  set same { type ifname . ifname; }
  set connections { type mark; size 65535; flags dynamic; }
";

/// Maps and sets whose elements are put anew.
const FILLED: [(&str, &str); 9] = [
    ("map", "way"),
    ("map", "granted"),
    ("set", "port"),
    ("map", "marked"),
    ("map", "grant"),
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
    let alone = || ports.iter().filter(is_alone);
    elements(&mut text, "inet", "way", alone().flat_map(ways));
    elements(&mut text, "inet", "port", alone().map(port_key));
    elements(&mut text, "inet", "alone", alone().map(tap_element));
    elements(&mut text, "inet", "uplink", uplinks.iter().map(|uplink| format!("\"{uplink}\"")));
    let bridges: BTreeSet<&str> = ports.iter().filter_map(bridge_of).collect();
    let quoted = |name: &&str| format!("\"{name}\"");
    elements(&mut text, "inet", "bridges", bridges.iter().map(quoted));
    let pair = |name: &&str| format!("\"{name}\" . \"{name}\"");
    elements(&mut text, "inet", "same", bridges.iter().map(pair));
    elements(&mut text, "inet", "marked", ports.iter().map(marked_element));
    elements(&mut text, "inet", "grant", ports.iter().flat_map(leads));
    let bridged = ports.iter().filter(|placed| !is_alone(placed));
    elements(&mut text, "inet", "granted", bridged.flat_map(granted));
    bridge(&mut text, ports);
    arp(&mut text, ports);
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

fn port_key(placed: &Placed) -> String {
    let port = &placed.port.port;
    format!("\"{}\" . {} . {}", port.tap, port.mac, port.ip)
}

fn port_element(placed: &Placed) -> String {
    format!("{} : {:#x}", port_key(placed), mark(placed.port.number))
}

fn ways(placed: &Placed) -> impl Iterator<Item = String> {
    let (key, number) = (port_key(placed), placed.port.number);
    let masked = placed.port.leads.keys();
    masked.map(move |masked| format!("{key} . {} . {} : {number}", masked.ip(), masked.port()))
}

fn tap_element(placed: &Placed) -> String {
    format!("\"{}\"", placed.port.port.tap)
}

fn marked_element(placed: &Placed) -> String {
    let number = placed.port.number;
    format!("{number} : {:#x}", mark(number))
}

fn granted(placed: &Placed) -> impl Iterator<Item = String> {
    let number = placed.port.number;
    let masked = placed.port.leads.keys();
    masked.map(move |masked| {
        format!("{:#x} . {} . {} : {number}", mark(number), masked.ip(), masked.port())
    })
}

fn leads(placed: &Placed) -> impl Iterator<Item = String> {
    let number = placed.port.number;
    placed.port.leads.iter().map(move |(masked, node)| {
        let key = format!("{number} . {} . {}", masked.ip(), masked.port());
        format!("{key} : {} . {}", node.ip(), node.port())
    })
}

/// The rules, which no port changes. A masked address is written with its network's mask: four
/// bytes of a packet are read faster than three, which a length of 24 would be.
fn rules() -> String {
    let mask = Ipv4Addr::from_bits(u32::MAX << (32 - MASKED_BITS));
    let masked = format!("ip daddr & {mask} == {MASKED_NETWORK}");
    let ours = format!("ct mark & {MARK_MASK:#x} == {MARK:#x}");
    format!(
        "
  chain raw {{
    {masked} ct original zone set \
         iifname . ether saddr . ip saddr . ip daddr . tcp dport map @way accept
    {masked} goto masked
    iifname @alone goto port
  }}
  chain port {{
    iifname . ether saddr . ip saddr != @port counter name spoofed drop
    counter name refused drop
  }}
  chain masked {{
    iifname @alone goto port
    ct original zone set meta mark . ip daddr . tcp dport map @granted meta mark set 0 accept
    counter name refused drop
  }}
  chain marks {{
    ct direction reply {ours} meta mark set ct mark
  }}
  chain answers {{
    ct direction reply {ours} meta mark set ct mark
  }}
  chain lead {{
    {masked} goto led
  }}
  chain led {{
    ct mark set ct original zone map @marked
    add @connections {{ ct mark ct count over {CONNECTIONS_MAX} }} counter name bounded drop
    dnat ip to ct original zone . ip daddr . tcp dport map @grant
    counter name refused drop
  }}
  chain input {{
    {masked} counter name refused drop
  }}
  chain forward {{
    {ours} ct status & (expected | dnat) == dnat accept
    {ours} counter name refused drop
    {masked} counter name refused drop
    iifname @uplink ct direction original drop
    iifname @bridges iifname . oifname != @same drop
  }}
  chain here {{
    {ours} snat ip to {MASKED_SELF}
  }}
  chain away {{
    ct direction original {ours} masquerade
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

/// What a port asks for hardware addresses, of masked addresses only and as itself: the host would
/// tell of any address that it has, and remember whoever asks, which the host's table of neighbours
/// has no room for.
fn arp(text: &mut String, ports: &[Placed]) {
    line(text, &format!("table arp {TABLE} {{}}\ndelete table arp {TABLE}"));
    let is_alone = |placed: &&Placed| placed.place == Place::Alone;
    let alone = || ports.iter().filter(is_alone);
    if alone().next().is_none() {
        return;
    }
    let mask = Ipv4Addr::from_bits(u32::MAX << (32 - MASKED_BITS));
    line(
        text,
        &format!(
            "table arp {TABLE} {{
  set port {{ type ifname . ether_addr . ipv4_addr; }}
  set alone {{ type ifname; }}
  chain input {{
    type filter hook input priority 0; policy accept;
    iifname @alone goto port
  }}
  chain port {{
    arp daddr ip & {mask} != {MASKED_NETWORK} drop
    iifname . arp saddr ether . arp saddr ip @port accept
    drop
  }}
}}"
        ),
    );
    elements(text, "arp", "port", alone().map(port_key));
    elements(text, "arp", "alone", alone().map(tap_element));
}

/// Our tables of those that `nft list` printed, in an order that does not depend on when each was
/// made; and how many lines there are of others'.
#[must_use]
pub fn ours(listed: &str) -> (String, usize) {
    let (mut tables, mut others): (Vec<String>, usize) = (Vec::new(), 0);
    let mut is_ours = false;
    for printed in listed.lines() {
        if let Some(name) = printed.strip_prefix("table ") {
            is_ours = FAMILIES.iter().any(|family| {
                let name = name.strip_prefix(family).and_then(|name| name.strip_prefix(' '));
                name.and_then(|name| name.split(' ').next()) == Some(TABLE)
            });
            tables.extend(is_ours.then(String::new));
        }
        match tables.last_mut().filter(|_| is_ours) {
            Some(table) => line(table, printed),
            None => others += 1,
        }
        // Remarks may stand between tables.
        is_ours &= printed != "}";
    }
    tables.sort_unstable();
    (tables.concat(), others)
}

#[cfg(test)]
#[path = "ruleset_tests.rs"]
mod tests;
