use super::*;

fn row(instance: &str, tap: &str, generation: u64) -> GrantRow {
    GrantRow {
        instance: instance.to_owned(),
        host: "h".to_owned(),
        tap: tap.to_owned(),
        mac: "02:00:00:00:00:01".to_owned(),
        ip: "10.0.0.2".to_owned(),
        masked: "169.254.77.1:18515".to_owned(),
        node: "192.168.50.2:7001".to_owned(),
        generation,
    }
}

fn with(table: &Table, row: &GrantRow) -> Table {
    table.with(&row.instance, std::slice::from_ref(row)).unwrap()
}

#[test]
fn a_number_is_a_ports_until_its_connections_are_gone() {
    let one = with(&Table::default(), &row("i1", "tap1", 1));
    let two = with(&one, &row("i2", "tap2", 2));
    assert_eq!((two.number("i1"), two.number("i2")), (Some(1), Some(2)));
    let left = two.without("i1");
    assert_eq!(with(&left, &row("i3", "tap3", 3)).number("i3"), Some(3));
    assert_eq!(with(&left.settled(), &row("i3", "tap3", 3)).number("i3"), Some(1));
}

#[test]
fn another_port_is_another_number() {
    let one = with(&Table::default(), &row("i1", "tap1", 1));
    assert_eq!(with(&one, &row("i1", "tap1", 1)), one);
    let mut moved = row("i1", "tap1", 1);
    moved.ip = "10.0.0.9".to_owned();
    assert_eq!(with(&one, &moved).number("i1"), Some(2));
}

#[test]
fn the_newer_instance_has_the_interface() {
    let mut table = Table::default();
    for (instance, generation) in [("old", 4), ("new", 5), ("older", 3)] {
        table = with(&table, &row(instance, "tap1", generation));
    }
    let ports = table.ports();
    assert_eq!(ports.len(), 1);
    assert_eq!(Some(ports[0].number), table.number("new"));
    assert_eq!((table.number("old"), table.number("older")), (None, None));
}

#[test]
fn no_rows_are_no_instance() {
    let one = with(&Table::default(), &row("i1", "tap1", 1));
    assert!(one.with("i1", &[]).unwrap().is_empty());
    assert!(one.without("i1").ports().is_empty());
}

#[test]
fn a_row_that_could_mean_another_is_refused() {
    let refused = |change: fn(&mut GrantRow)| {
        let mut row = row("i1", "tap1", 1);
        change(&mut row);
        let failure = Table::default().with("i1", &[row]).unwrap_err();
        assert!(failure.is_permanent(), "{failure}");
    };
    refused(|row| row.instance = "i2".to_owned());
    refused(|row| row.tap = "a\" drop; }".to_owned());
    refused(|row| row.tap = "lo".to_owned());
    refused(|row| row.tap = "sixteen-letters-".to_owned());
    refused(|row| row.tap = String::new());
    refused(|row| row.tap = "..".to_owned());
    refused(|row| row.mac = "01:00:00:00:00:01".to_owned());
    refused(|row| row.mac = "00:00:00:00:00:00".to_owned());
    refused(|row| row.mac = "02:00:00:00:00".to_owned());
    refused(|row| row.mac = "02:00:00:00:00:01:02".to_owned());
    refused(|row| row.ip = "127.0.0.1".to_owned());
    refused(|row| row.ip = "169.254.77.9".to_owned());
    refused(|row| row.ip = "fe80::1".to_owned());
    refused(|row| row.ip = "224.0.0.1".to_owned());
    refused(|row| row.masked = "10.0.0.1:18515".to_owned());
    refused(|row| row.masked = "169.254.77.254:18515".to_owned());
    refused(|row| row.masked = "169.254.77.1:0".to_owned());
    refused(|row| row.node = "127.0.0.1:7001".to_owned());
    refused(|row| row.node = "169.254.77.1:7001".to_owned());
    refused(|row| row.node = "gpu1:7001".to_owned());
}

#[test]
fn an_instance_has_one_port() {
    let (one, mut other) = (row("i1", "tap1", 1), row("i1", "tap2", 1));
    let failure = Table::default().with("i1", &[one.clone(), other.clone()]).unwrap_err();
    assert!(failure.to_string().contains("one port and one generation"), "{failure}");
    other.tap.clone_from(&one.tap);
    other.node = "192.168.50.9:1".to_owned();
    let failure = Table::default().with("i1", &[one, other]).unwrap_err();
    assert!(failure.to_string().contains("leads to two places"), "{failure}");
}

#[test]
fn a_table_is_what_it_was_after_a_restart() {
    let table = with(&Table::default(), &row("i1", "tap1", 1)).without("i1");
    let table = with(&table, &row("i2", "tap1", 2));
    let bytes = serde_json::to_vec(&table).unwrap();
    assert_eq!(serde_json::from_slice::<Table>(&bytes).unwrap(), table);
}
