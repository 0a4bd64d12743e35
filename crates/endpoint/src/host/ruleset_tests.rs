use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use weft_api::endpoint::GrantRow;

use super::super::network::Link;
use super::super::network::Observed;
use super::super::table::Table;
use super::*;

fn row(instance: &str, tap: &str, last: u8, masked: u8, node: u8) -> GrantRow {
    GrantRow {
        instance: instance.to_owned(),
        host: "h".to_owned(),
        tap: tap.to_owned(),
        mac: format!("02:00:00:00:00:{last:02x}"),
        ip: "10.0.0.2".to_owned(),
        masked: format!("169.254.77.{masked}:18515"),
        node: format!("192.168.50.{node}:7001"),
        generation: u64::from(last),
    }
}

fn observed(bridge: Option<&str>) -> Observed {
    let link = Link { index: 1, bridge: bridge.map(str::to_owned), is_up: true };
    let taps = (0..8).map(|number| (format!("tap{number}"), link.clone()));
    Observed { links: taps.collect(), ..Observed::default() }
}

fn text(table: &Table, bridge: Option<&str>, uplinks: &[String]) -> String {
    ruleset(&observed(bridge).place(table.ports()).0, uplinks)
}

/// What the repository has; rewritten where `WEFT_GOLDEN=write` is set.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("WEFT_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
}

fn two_tenants() -> Table {
    let one = [row("i1", "tap1", 1, 1, 2), row("i1", "tap1", 1, 2, 3)];
    let table = Table::default().with("i1", &one).unwrap();
    table.with("i2", &[row("i2", "tap2", 2, 1, 2)]).unwrap()
}

#[test]
fn rulesets_are_the_golden_ones() {
    golden("empty.nft", &text(&Table::default(), None, &[]));
    golden("two_tenants.nft", &text(&two_tenants(), None, &["gpu0".to_owned()]));
    golden("bridge.nft", &text(&two_tenants(), Some("br0"), &[]));
}

/// Elements of a map or set of the rules.
fn elements_of(text: &str, name: &str) -> BTreeSet<String> {
    let begin = format!("add element inet weft {name} {{\n");
    let Some((_, rest)) = text.split_once(&begin) else { return BTreeSet::new() };
    let (all, _) = rest.split_once("\n}").unwrap();
    all.split(",\n").map(|element| element.trim().to_owned()).collect()
}

/// What `nft -s -t list ruleset` of Debian 12 (1.0.6) prints, but for most of our table.
const LISTED: &str = "\
table ip other {
	chain a {
		type filter hook input priority filter; policy accept;
		tcp dport { 22, 80 } counter accept comment \"table inet weft\"
	}
}
table inet weft {
	counter refused {
	}

	set alone {
		type ifname
	}
}
# Warning: table ip filter is managed by iptables-nft, do not touch!
table ip filter {
}
table arp weft {
}
table inet weftish {
}
table ip weft {
}
";

#[test]
fn our_tables_are_told_from_others() {
    let (found, others) = ours(LISTED);
    let (begin, end) = (LISTED.find("table inet weft {"), LISTED.find("# Warning"));
    let inet = &LISTED[begin.unwrap()..end.unwrap()];
    assert_eq!(found, format!("table arp weft {{\n}}\n{inet}"));
    assert_eq!(others, 13);
    // By themselves they are the same, whichever was made first.
    assert_eq!(ours(&format!("{inet}table arp weft {{\n}}\n")), (found, 0));
    assert_eq!(ours(""), (String::new(), 0));
    assert_eq!(ours("table inet weft {\n}\n").0, "table inet weft {\n}\n");
}

#[derive(Debug, Clone)]
enum Act {
    Put { instance: u8, tap: u8, masked: Vec<u8>, node: u8 },
    Withdraw { instance: u8 },
    Settle,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let put = (0..6_u8, 0..8_u8, proptest::collection::vec(1..4_u8, 1..4), 2..5_u8);
    let put =
        put.prop_map(|(instance, tap, masked, node)| Act::Put { instance, tap, masked, node });
    let withdraw = (0..6_u8).prop_map(|instance| Act::Withdraw { instance });
    proptest::collection::vec(prop_oneof![3 => put, 2 => withdraw, 1 => Just(Act::Settle)], 0..40)
}

fn act(table: &Table, act: &Act) -> Table {
    match act {
        Act::Put { instance, tap, masked, node } => {
            let name = format!("i{instance}");
            let one = |masked: &u8| GrantRow {
                mac: format!("02:00:00:00:00:{tap:02x}"),
                ..row(&name, &format!("tap{tap}"), *instance, *masked, *node)
            };
            let rows: Vec<GrantRow> = masked.iter().map(one).collect();
            table.with(&name, &rows).unwrap()
        }
        Act::Withdraw { instance } => table.without(&format!("i{instance}")),
        Act::Settle => table.settled(),
    }
}

proptest! {
    #[test]
    fn rules_say_what_the_rows_say_and_nothing_else(acts in acts()) {
        let table = acts.iter().fold(Table::default(), |table, one| act(&table, one));
        let ports = table.ports();
        let text = text(&table, None, &[]);
        // What is granted, worked out from the rows alone: of an interface, the newest instance's.
        let mut newest: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for instance in table.instances() {
            let first = &table.rows(&instance)[0];
            let known = newest.entry(first.tap.clone()).or_default();
            if known.1.is_empty() || first.generation > known.0 {
                *known = (first.generation, instance.clone());
            }
        }
        let (mut grants, mut ways) = (BTreeSet::new(), BTreeSet::new());
        let mut granted = BTreeSet::new();
        for (_, instance) in newest.values() {
            let number = table.number(instance).unwrap();
            for row in table.rows(instance) {
                let (masked, node) = (row.masked.replace(':', " . "), row.node.replace(':', " . "));
                grants.insert(format!("{number} . {masked} : {node}"));
                let GrantRow { tap, mac, ip, .. } = &row;
                ways.insert(format!("\"{tap}\" . {mac} . {ip} . {masked} : {number}"));
                granted.insert(format!("{:#x} . {masked} : {number}", mark(number)));
            }
        }
        prop_assert_eq!(elements_of(&text, "grant"), grants);
        prop_assert_eq!(elements_of(&text, "way"), ways);
        prop_assert_eq!(elements_of(&text, "granted"), BTreeSet::new());
        let bridged = self::text(&table, Some("br0"), &[]);
        prop_assert_eq!(elements_of(&bridged, "granted"), granted);
        prop_assert_eq!(elements_of(&bridged, "way"), BTreeSet::new());
        prop_assert_eq!(elements_of(&text, "alone").len(), newest.len());
        prop_assert_eq!(elements_of(&text, "port").len(), newest.len());
        // No two ports share a mark, and none has a mark whose connections may be there.
        let numbers: BTreeSet<u16> = ports.iter().map(|port| port.number).collect();
        prop_assert_eq!(numbers.len(), ports.len());
        // The order in which things came does not matter, but for the numbers.
        let bytes = serde_json::to_vec(&table).unwrap();
        let again: Table = serde_json::from_slice(&bytes).unwrap();
        prop_assert_eq!(ruleset(&observed(None).place(again.ports()).0, &[]), text);
    }

    #[test]
    fn a_withdrawn_port_leaves_its_number_until_it_is_settled(acts in acts()) {
        let mut table = Table::default();
        let mut left = BTreeSet::new();
        for one in &acts {
            let before = table.numbers_of();
            table = act(&table, one);
            let after = table.numbers_of();
            if let Act::Settle = one {
                left.clear();
            }
            for (instance, number) in &before {
                if after.get(instance) != Some(number) {
                    left.insert(*number);
                }
            }
            prop_assert!(after.values().all(|number| !left.contains(number)));
        }
    }
}
