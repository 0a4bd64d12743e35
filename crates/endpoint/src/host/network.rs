//! What of the system's network belongs to the rules: for each port a routing table with the way to
//! the VM, a rule by mark that chooses it, the VM's hardware address, and masked addresses that are
//! answered for on its interface. Pure: what is there is compared with what must be, and the
//! difference is commands for `ip -batch -`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde_json::{Deserializer, Value};

use super::ruleset::{Placed, mark};
use super::table::{Numbered, is_masked};
use super::{MARK, MARK_MASK, MASKED_BITS, MASKED_NETWORK};

/// Our rules' place among the others: before the main table's.
const PREFERENCE: u32 = 7745;

/// What `ip -4 -j -batch -` is asked for [`Observed::parse`].
pub const QUERIES: &str = "rule show
route show table all
neigh show proxy
neigh show nud permanent
link show
";

/// How a port is attached to its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The interface stands alone.
    Alone,
    /// It is one of this bridge's.
    Bridge(String),
}

impl Placed {
    /// The interface on which the host meets the VM.
    #[must_use]
    pub fn device(&self) -> &str {
        match &self.place {
            Place::Alone => &self.port.port.tap,
            Place::Bridge(bridge) => bridge,
        }
    }
}

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Interfaces, with their bridges.
    pub links: BTreeMap<String, Link>,
    /// Marks with their tables, of rules at our preference.
    pub rules: BTreeSet<(u32, u32)>,
    /// Destinations with their interfaces and tables; table 0 is the main one.
    pub routes: BTreeSet<(String, String, u32)>,
    /// Addresses that are answered for, with their interfaces.
    pub proxies: BTreeSet<(Ipv4Addr, String)>,
    /// Hardware addresses that do not age, by address and interface.
    pub neighbours: BTreeSet<(Ipv4Addr, String, String)>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number: another one after it was made anew.
    pub index: u32,
    /// The bridge that it is one of.
    pub bridge: Option<String>,
    /// It is up.
    pub is_up: bool,
}

impl Observed {
    /// What `ip` prints when it is asked [`QUERIES`]: a list for each, and perhaps none where there
    /// is nothing. So what something is, is told by what it alone has.
    ///
    /// # Errors
    /// If it is no JSON.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let mut found = Self::default();
        for list in Deserializer::from_str(text).into_iter::<Value>() {
            for thing in list?.as_array().into_iter().flatten() {
                found.add(thing);
            }
        }
        Ok(found)
    }

    fn add(&mut self, thing: &Value) {
        let has = |name| thing.get(name).is_some();
        if has("ifname") {
            self.links.extend(link(thing));
        } else if has("priority") {
            self.rules.extend(rule(thing));
        } else if has("proxy") {
            self.proxies.extend(address(thing).filter(|(ip, _)| is_masked(*ip)));
        } else if has("state") {
            self.neighbours.extend(neighbour(thing));
        } else {
            self.routes.extend(route(thing));
        }
    }

    /// Ports whose interfaces are there, and the names of those that are not.
    #[must_use]
    pub fn place(&self, ports: Vec<Numbered>) -> (Vec<Placed>, Vec<Numbered>) {
        let (mut placed, mut absent) = (Vec::new(), Vec::new());
        for port in ports {
            match self.links.get(&port.port.tap) {
                None => absent.push(port),
                Some(Link { bridge: None, .. }) => {
                    placed.push(Placed { port, place: Place::Alone });
                }
                Some(Link { bridge: Some(bridge), .. }) => {
                    placed.push(Placed { port, place: Place::Bridge(bridge.clone()) });
                }
            }
        }
        (placed, absent)
    }
}

fn link(thing: &Value) -> Option<(String, Link)> {
    let flags = thing.get("flags").and_then(Value::as_array);
    let is_up = flags.is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
    let index = thing.get("ifindex").and_then(Value::as_u64).unwrap_or(0);
    let index = u32::try_from(index).unwrap_or(0);
    Some((word(thing, "ifname")?, Link { index, bridge: word(thing, "master"), is_up }))
}

fn rule(thing: &Value) -> Option<(u32, u32)> {
    let mark = number(&word(thing, "fwmark")?).filter(|mark| mark & MARK_MASK == MARK)?;
    Some((mark, number(&word(thing, "table")?)?))
}

fn route(thing: &Value) -> Option<(String, String, u32)> {
    let table = match word(thing, "table") {
        None => 0,
        Some(table) => number(&table).filter(|table| table & MARK_MASK == MARK)?,
    };
    Some((word(thing, "dst")?, word(thing, "dev")?, table))
}

fn neighbour(thing: &Value) -> Option<(Ipv4Addr, String, String)> {
    let (ip, device) = address(thing)?;
    Some((ip, device, word(thing, "lladdr")?))
}

fn address(thing: &Value) -> Option<(Ipv4Addr, String)> {
    Some((word(thing, "dst")?.parse().ok()?, word(thing, "dev")?))
}

fn word(thing: &Value, name: &str) -> Option<String> {
    thing.get(name)?.as_str().map(str::to_owned)
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The masked network itself: a way must be there for its addresses to be answered for. Nothing
/// takes it, for the rules lead every packet elsewhere or drop it.
fn masked_route() -> (String, String, u32) {
    (format!("{MASKED_NETWORK}/{MASKED_BITS}"), "lo".to_owned(), 0)
}

/// Commands that make what is there what must be; none if it is.
#[must_use]
pub fn commands(ports: &[Placed], there: &Observed) -> Vec<String> {
    let mut commands = Vec::new();
    let (mut rules, mut routes) = (BTreeSet::new(), BTreeSet::from([masked_route()]));
    let (mut proxies, mut neighbours) = (BTreeSet::new(), BTreeSet::new());
    for placed in ports {
        let Numbered { number, port, leads } = &placed.port;
        let (mark, device) = (mark(*number), placed.device().to_owned());
        if !there.links.get(&device).is_some_and(|link| link.is_up) {
            commands.push(format!("link set {device} up"));
        }
        rules.insert((mark, mark));
        routes.insert((port.ip.to_string(), device.clone(), mark));
        neighbours.insert((port.ip, device.clone(), port.mac.to_string()));
        proxies.extend(leads.keys().map(|masked| (*masked.ip(), device.clone())));
    }
    for (mark, table) in there.rules.difference(&rules) {
        commands.push(format!("rule del pref {PREFERENCE} fwmark {mark:#x} lookup {table}"));
    }
    for (to, device, table) in there.routes.difference(&routes) {
        if table & MARK_MASK == MARK {
            commands.push(format!("route del {to} dev {device} table {table}"));
        }
    }
    for (address, device) in there.proxies.difference(&proxies) {
        commands.push(format!("neigh del proxy {address} dev {device}"));
    }
    for (to, device, table) in routes.difference(&there.routes) {
        let table = if *table == 0 { "main".to_owned() } else { table.to_string() };
        commands.push(format!("route replace {to} dev {device} table {table}"));
    }
    for (mark, table) in rules.difference(&there.rules) {
        commands.push(format!("rule add pref {PREFERENCE} fwmark {mark:#x} lookup {table}"));
    }
    for (address, device, mac) in neighbours.difference(&there.neighbours) {
        commands.push(format!("neigh replace {address} lladdr {mac} dev {device} nud permanent"));
    }
    for (address, device) in proxies.difference(&there.proxies) {
        commands.push(format!("neigh replace proxy {address} dev {device}"));
    }
    commands
}

/// Files of `/proc/sys/net` with what must be in them.
#[must_use]
pub fn settings(ports: &[Placed], uplinks: &[String]) -> BTreeMap<String, &'static str> {
    let mut settings = BTreeMap::new();
    for placed in ports {
        let device = placed.device();
        let mut set = |name: &str, value| settings.insert(format!("ipv4/{name}"), value);
        // Packets from it may go on, whatever the host does with others.
        set(&format!("conf/{device}/forwarding"), "1");
        // Its address is another tenant's, too, or the host's own.
        set(&format!("conf/{device}/rp_filter"), "0");
        set(&format!("conf/{device}/accept_local"), "1");
        set(&format!("conf/{device}/src_valid_mark"), "1");
        set(&format!("conf/{device}/send_redirects"), "0");
        // Answer for masked addresses at once.
        set(&format!("neigh/{device}/proxy_delay"), "0");
    }
    for uplink in uplinks {
        settings.insert(format!("ipv4/conf/{uplink}/forwarding"), "1");
    }
    settings
}

/// Settings to write, and what each was before it was written first: what is no longer wanted
/// becomes what it was.
#[must_use]
pub fn changes(
    wanted: &BTreeMap<String, &'static str>,
    found: &BTreeMap<String, String>,
    there: &BTreeMap<String, String>,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let back = found.iter().filter(|(name, _)| !wanted.contains_key(*name));
    let back = back.map(|(name, old)| (name, old.as_str()));
    let all = wanted.iter().map(|(name, value)| (name, *value)).chain(back);
    let differs =
        |(name, value): &(&String, &str)| there.get(*name).is_some_and(|there| there != value);
    let writes = all.filter(differs).map(|(name, value)| (name.clone(), value.to_owned()));
    let before = |name: &String| found.get(name).or_else(|| there.get(name)).cloned();
    let kept = wanted.keys().filter_map(|name| Some((name.clone(), before(name)?)));
    (writes.collect(), kept.collect())
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
