//! What is wanted: grants by instance, parsed from the control plane's rows, and a number for each
//! port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};
use weft_api::endpoint::GrantRow;

use super::{Failure, MASKED_NETWORK, MASKED_SELF};

/// Rows at once: a host has some hundred VMs, each with some nodes.
pub const ROWS_MAX: usize = 20_000;

/// Ports at once: a zone of connection tracking is a number of 16 bits, and 0 is nobody's.
pub const PORTS_MAX: usize = 65_535;

/// The longest name of an interface.
const NAME_BYTES_MAX: usize = 15;

/// A VM's port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The interface on the host.
    pub tap: String,
    /// The VM's hardware address.
    pub mac: Mac,
    /// The VM's address.
    pub ip: Ipv4Addr,
}

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl std::fmt::Display for Mac {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// One instance's port, with what it may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The port.
    pub port: Port,
    /// Of two instances with the same port the one with the larger number has it.
    pub generation: u64,
    /// Where its masked addresses lead.
    pub leads: BTreeMap<SocketAddrV4, SocketAddrV4>,
}

/// A port with its number: what the rules are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// From 1: its mark, its zone and its routing table.
    pub number: u16,
    /// The port.
    pub port: Port,
    /// Where its masked addresses lead.
    pub leads: BTreeMap<SocketAddrV4, SocketAddrV4>,
}

/// Everything that is wanted; what is kept over restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Rows by instance.
    rows: BTreeMap<String, Vec<GrantRow>>,
    /// Numbers of ports, by instance.
    numbers: BTreeMap<String, u16>,
    /// Numbers of ports that are gone, whose connections may still be there.
    leaving: BTreeSet<u16>,
    /// Settings of the network as they were before they were changed for a port.
    #[serde(default)]
    found: BTreeMap<String, String>,
}

impl Table {
    /// The rows of an instance.
    #[must_use]
    pub fn rows(&self, instance: &str) -> &[GrantRow] {
        self.rows.get(instance).map(Vec::as_slice).unwrap_or_default()
    }

    /// Instances with rows.
    #[must_use]
    pub fn instances(&self) -> Vec<String> {
        self.rows.keys().cloned().collect()
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// This table with an instance's rows in the place of those that it had.
    ///
    /// # Errors
    /// If they make no sense, or there are too many.
    pub fn with(&self, instance: &str, rows: &[GrantRow]) -> Result<Self, Failure> {
        let malformed = |words: String| Failure::Malformed { instance: instance.to_owned(), words };
        if let Some(row) = rows.iter().find(|row| row.instance != instance) {
            return Err(malformed(format!("it is {}'s", row.instance)));
        }
        let Some(granted) = parsed(rows).map_err(malformed)? else {
            return Ok(self.without(instance));
        };
        let mut next = self.clone();
        // Another port is another number: what the old one had open is the old one's.
        let old = self.rows.get(instance).and_then(|rows| parsed(rows).ok().flatten());
        if old.is_some_and(|old| old.port != granted.port) {
            next = next.without(instance);
        }
        next.rows.insert(instance.to_owned(), rows.to_vec());
        if next.len() > ROWS_MAX {
            return Err(Failure::Full { what: "rows", limit: ROWS_MAX });
        }
        if !next.numbers.contains_key(instance) {
            let number = next.free_number();
            let number = number.ok_or(Failure::Full { what: "ports", limit: PORTS_MAX })?;
            next.numbers.insert(instance.to_owned(), number);
        }
        Ok(next)
    }

    /// This table without an instance.
    #[must_use]
    pub fn without(&self, instance: &str) -> Self {
        let mut next = self.clone();
        next.rows.remove(instance);
        next.leaving.extend(next.numbers.remove(instance));
        next
    }

    /// This table when no connection of those that left is there any longer.
    #[must_use]
    pub fn settled(&self) -> Self {
        Self { leaving: BTreeSet::new(), ..self.clone() }
    }

    /// Settings as they were before they were changed.
    #[must_use]
    pub fn found(&self) -> &BTreeMap<String, String> {
        &self.found
    }

    /// This table with other settings that were found.
    #[must_use]
    pub fn with_found(self, found: BTreeMap<String, String>) -> Self {
        Self { found, ..self }
    }

    /// Ports in force, by number. Of two instances with one interface the newer has it.
    #[must_use]
    pub fn ports(&self) -> Vec<Numbered> {
        let mut by_tap: BTreeMap<String, (u64, Numbered)> = BTreeMap::new();
        for (instance, rows) in &self.rows {
            // Rows were parsed before they were taken.
            let Ok(Some(granted)) = parsed(rows) else { continue };
            let Some(number) = self.numbers.get(instance).copied() else { continue };
            let Granted { port, generation, leads } = granted;
            let is_older = by_tap.get(&port.tap).is_some_and(|(known, _)| *known >= generation);
            if !is_older {
                let tap = port.tap.clone();
                by_tap.insert(tap, (generation, Numbered { number, port, leads }));
            }
        }
        let mut ports: Vec<Numbered> = by_tap.into_values().map(|(_, port)| port).collect();
        ports.sort_by_key(|port| port.number);
        ports
    }

    /// The number of an instance's port, if its rows are in force.
    #[must_use]
    pub fn number(&self, instance: &str) -> Option<u16> {
        let number = self.numbers.get(instance).copied()?;
        self.ports().iter().any(|port| port.number == number).then_some(number)
    }

    #[cfg(test)]
    pub(super) fn numbers_of(&self) -> BTreeMap<String, u16> {
        self.numbers.clone()
    }

    fn free_number(&self) -> Option<u16> {
        let taken: BTreeSet<u16> = self.numbers.values().chain(&self.leaving).copied().collect();
        (1..=u16::MAX).find(|number| !taken.contains(number))
    }
}

/// An instance's port; none if it has no rows.
fn parsed(rows: &[GrantRow]) -> Result<Option<Granted>, String> {
    let Some(first) = rows.first() else { return Ok(None) };
    let port = Port { tap: tap(&first.tap)?, mac: mac(&first.mac)?, ip: vm_address(&first.ip)? };
    let mut leads = BTreeMap::new();
    for row in rows {
        if (&row.tap, &row.mac, &row.ip, row.generation)
            != (&first.tap, &first.mac, &first.ip, first.generation)
        {
            return Err("an instance has one port and one generation".to_owned());
        }
        let (masked, node) = (masked(&row.masked)?, node(&row.node)?);
        if leads.insert(masked, node).is_some_and(|other| other != node) {
            return Err(format!("{masked} leads to two places"));
        }
    }
    Ok(Some(Granted { port, generation: first.generation, leads }))
}

fn tap(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain);
    if is_name && !matches!(text, "." | ".." | "lo" | "all" | "default") {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is no name of a VM's interface"))
}

fn mac(text: &str) -> Result<Mac, String> {
    let wrong = || format!("{text:?} is no hardware address of a VM");
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    // One of a group is nobody's.
    let is_one = parts.next().is_none() && bytes[0] & 1 == 0 && bytes != [0; 6];
    if is_one { Ok(Mac(bytes)) } else { Err(wrong()) }
}

/// Whether an address can be one machine's on a network.
fn is_of_one(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
}

/// Whether an address is a masked one.
pub(super) fn is_masked(ip: Ipv4Addr) -> bool {
    ip.octets()[..3] == MASKED_NETWORK.octets()[..3]
}

fn vm_address(text: &str) -> Result<Ipv4Addr, String> {
    let ip: Option<Ipv4Addr> = text.parse().ok();
    let ip = ip.filter(|ip| is_of_one(*ip) && !is_masked(*ip));
    ip.ok_or_else(|| format!("{text:?} is no IPv4 address of a VM"))
}

fn masked(text: &str) -> Result<SocketAddrV4, String> {
    let place: Option<SocketAddrV4> = text.parse().ok();
    let is_good = |place: &SocketAddrV4| {
        let ip = *place.ip();
        let is_host = ip != MASKED_NETWORK && ip.octets()[3] != 255 && ip != MASKED_SELF;
        is_masked(ip) && is_host && place.port() != 0
    };
    place.filter(is_good).ok_or_else(|| format!("{text:?} is no masked address"))
}

fn node(text: &str) -> Result<SocketAddrV4, String> {
    let place: Option<SocketAddrV4> = text.parse().ok();
    let is_good = |place: &SocketAddrV4| {
        is_of_one(*place.ip()) && !is_masked(*place.ip()) && place.port() != 0
    };
    place.filter(is_good).ok_or_else(|| {
        format!(
            "{text:?} is no gateway that VMs can be led to: it must listen at an IPv4 address and \
             not at loopback (remote.listen)"
        )
    })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
