use std::net::SocketAddrV4;

use super::super::table::{Mac, Port};
use super::*;

fn placed(number: u16, tap: &str, place: Place) -> Placed {
    let (masked, node) = ("169.254.77.1:18515", "192.168.50.2:7001");
    let leads: (SocketAddrV4, SocketAddrV4) = (masked.parse().unwrap(), node.parse().unwrap());
    let ip = Ipv4Addr::new(10, 0, 0, 2);
    let mac = Mac([2, 0, 0, 0, 0, number.to_le_bytes()[0]]);
    let port = Port { tap: tap.to_owned(), mac, ip };
    Placed { port: Numbered { number, port, leads: BTreeMap::from([leads]) }, place }
}

fn links(names: &[&str]) -> BTreeMap<String, Link> {
    let link = |name: &&str| ((*name).to_owned(), Link { index: 1, bridge: None, is_up: true });
    names.iter().map(link).collect()
}

/// What the system has when it has done as told.
fn after(commands: &[String], mut there: Observed) -> Observed {
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        let table = |text: &str| if text == "main" { 0 } else { text.parse().unwrap() };
        match words.as_slice() {
            ["link", "set", device, "up"] => {
                there.links.entry((*device).to_owned()).or_default().is_up = true;
            }
            ["rule", verb, "pref", _, "fwmark", mark, "lookup", number] => {
                let mark = u32::from_str_radix(&mark[2..], 16).unwrap();
                let rule = (mark, number.parse().unwrap());
                if *verb == "add" {
                    assert!(there.rules.insert(rule), "{command}");
                } else {
                    assert!(there.rules.remove(&rule), "{command}");
                }
            }
            ["route", verb, to, "dev", device, "table", number] => {
                let route = ((*to).to_owned(), (*device).to_owned(), table(number));
                if *verb == "replace" {
                    there.routes.retain(|known| (&known.0, known.2) != (&route.0, route.2));
                    there.routes.insert(route);
                } else {
                    assert!(there.routes.remove(&route), "{command}");
                }
            }
            ["neigh", "del", "proxy", ip, "dev", device] => {
                assert!(there.proxies.remove(&(ip.parse().unwrap(), (*device).to_owned())));
            }
            ["neigh", "replace", "proxy", ip, "dev", device] => {
                there.proxies.insert((ip.parse().unwrap(), (*device).to_owned()));
            }
            ["neigh", "replace", ip, "lladdr", mac, "dev", device, "nud", "permanent"] => {
                let one = (ip.parse().unwrap(), (*device).to_owned(), (*mac).to_owned());
                there.neighbours.insert(one);
            }
            other => panic!("{other:?}"),
        }
    }
    there
}

/// What `ip` of Debian 12 (iproute2 6.1.0) prints when it is asked [`QUERIES`] on a host with
/// another's rules, routes and neighbours.
const PRINTED: &str = include_str!("../../fixtures/ip-batch.jsonl");

#[test]
fn what_ip_prints_is_read() {
    let there = Observed::parse(PRINTED).unwrap();
    let (one, two) = (0x5745_0001, 0x5745_0002);
    assert_eq!(there.rules, BTreeSet::from([(one, one), (two, two)]));
    let route = |to: &str, device: &str, table| (to.to_owned(), device.to_owned(), table);
    let routes = [
        route("10.0.0.2", "tap1", one),
        route("10.0.0.2", "br0", two),
        route("default", "gpu0", 0),
        route("169.254.77.0/24", "lo", 0),
        route("192.168.50.0/24", "gpu0", 0),
    ];
    assert_eq!(there.routes, BTreeSet::from(routes));
    let (masked, ip) = (Ipv4Addr::new(169, 254, 77, 1), Ipv4Addr::new(10, 0, 0, 2));
    let proxies = ["tap1", "br0"].map(|device| (masked, device.to_owned()));
    assert_eq!(there.proxies, BTreeSet::from(proxies));
    let neighbours = [("tap1", 1), ("br0", 2)]
        .map(|(device, last)| (ip, device.to_owned(), format!("02:00:00:00:00:0{last}")));
    assert_eq!(there.neighbours, BTreeSet::from(neighbours));
    let bridge = Some("br0".to_owned());
    assert_eq!(there.links.len(), 8);
    assert_eq!(there.links["tap1"], Link { index: 6, bridge: None, is_up: true });
    assert_eq!(there.links["tap2"], Link { index: 8, bridge, is_up: false });
    // Nothing is left to do for what is there.
    let ports =
        [placed(1, "tap1", Place::Alone), placed(2, "tap2", Place::Bridge("br0".to_owned()))];
    assert_eq!(commands(&ports, &there), Vec::<String>::new());
}

#[test]
fn where_there_is_nothing_it_does_not_matter_how_that_is_printed() {
    let link = |text: &str| Observed::parse(text).unwrap().links["lo"].is_up;
    let lo = r#"[{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP"]}]"#;
    for nothing in ["[]\n", "[ ]\n", "[{}]\n", "[{},{}]\n", "\n", ""] {
        let text = format!("{}{lo}\n{nothing}", nothing.repeat(4));
        assert!(link(&text), "{text:?}");
        let there = Observed::parse(&text).unwrap();
        assert_eq!(Observed { links: there.links.clone(), ..Observed::default() }, there);
    }
    assert_eq!(Observed::parse("").unwrap(), Observed::default());
    // Half of it is not taken for all.
    for half in [&PRINTED[..PRINTED.len() / 2], "Usage: ip [ OPTIONS ] OBJECT"] {
        Observed::parse(half).unwrap_err();
    }
}

#[test]
fn what_was_done_is_not_done_again() {
    let ports =
        [placed(1, "tap1", Place::Alone), placed(2, "tap2", Place::Bridge("br0".to_owned()))];
    let there = Observed { links: links(&["tap1", "tap2", "br0"]), ..Observed::default() };
    let first = commands(&ports, &there);
    assert!(first.contains(
        &"neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev br0 nud permanent".to_owned()
    ));
    let there = after(&first, there);
    assert_eq!(commands(&ports, &there), Vec::<String>::new());
    // One leaves: what is its goes, and nothing else.
    let there = after(&commands(&ports[1..], &there), there);
    assert_eq!(there.rules, BTreeSet::from([(mark(2), mark(2))]));
    assert_eq!(there.proxies.len(), 1);
    assert_eq!(there.routes.len(), 2);
}

#[test]
fn others_rules_and_routes_stay() {
    let mut there = Observed { links: links(&["lo"]), ..Observed::default() };
    there.routes.insert(("192.168.50.0/24".to_owned(), "eth0".to_owned(), 0));
    let all = commands(&[], &there);
    assert_eq!(all, ["route replace 169.254.77.0/24 dev lo table main"]);
}

#[test]
fn a_port_that_is_down_is_put_up() {
    let port = [placed(1, "tap1", Place::Alone)];
    let mut there = Observed { links: links(&["tap1"]), ..Observed::default() };
    there = after(&commands(&port, &there), there);
    there.links.entry("tap1".to_owned()).or_default().is_up = false;
    assert_eq!(commands(&port, &there), ["link set tap1 up"]);
}

#[test]
fn a_port_is_placed_where_it_is_found() {
    let mut there = Observed { links: links(&["tap1", "br0"]), ..Observed::default() };
    let one = placed(1, "tap1", Place::Alone).port;
    let gone = placed(2, "tap2", Place::Alone).port;
    let (found, absent) = there.place(vec![one.clone(), gone.clone()]);
    assert_eq!((found[0].place.clone(), absent), (Place::Alone, vec![gone]));
    there.links.entry("tap1".to_owned()).or_default().bridge = Some("br0".to_owned());
    let (found, _) = there.place(vec![one]);
    assert_eq!(found[0].device(), "br0");
}

#[test]
fn a_setting_becomes_what_it_was() {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let wanted = BTreeMap::from([("a".to_owned(), "1"), ("b".to_owned(), "1")]);
    let there = map(&[("a", "0"), ("b", "1")]);
    let (writes, found) = changes(&wanted, &BTreeMap::new(), &there);
    assert_eq!((writes, &found), (map(&[("a", "1")]), &there));
    // Again, after a crash or not: what was found first is what was found.
    let now = map(&[("a", "1"), ("b", "1")]);
    assert_eq!(changes(&wanted, &found, &now), (BTreeMap::new(), there.clone()));
    let (writes, left) = changes(&BTreeMap::new(), &found, &now);
    assert_eq!((writes, left), (map(&[("a", "0")]), BTreeMap::new()));
    // The interface is gone.
    assert_eq!(changes(&BTreeMap::new(), &found, &map(&[])).0, BTreeMap::new());
}
