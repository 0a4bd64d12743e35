//! A compute host's endpoint against hostile neighbours, in network namespaces: the kernel's own
//! rules, routes and connections. Only root may have them; elsewhere nothing is run, and that is
//! said.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weft_api::endpoint::{Answer, Asked, Client, GrantRow, Request, VERSION};
use weft_api::lines;
use weft_endpoint::host::agent::{Agent, Settings};
use weft_endpoint::host::lab::{Lab, NODE, Namespace, UPLINK, Vm};
use weft_endpoint::host::{Failure, serve};

const MASKED: &str = "169.254.77.1:18515";

/// What gets through does so within this time.
const LIMIT: Duration = Duration::from_secs(20);

/// What is dropped is taken for that after this time: three times the first wait of a connection.
const DROPPED: Duration = Duration::from_millis(3_500);

/// A host, and the endpoint's file.
struct Host {
    lab: Lab,
    folder: TempDir,
}

impl Host {
    /// None where the system does not permit it, which is then said; `WEFT_TEST_NETWORK=require`
    /// makes that a failure.
    #[expect(clippy::print_stderr, reason = "what was not tested is said")]
    fn new() -> Option<Self> {
        match Lab::new() {
            Ok(lab) => Some(Self { lab, folder: tempfile::tempdir().unwrap() }),
            Err(error) => {
                let is_required = std::env::var_os("WEFT_TEST_NETWORK").is_some();
                assert!(!is_required, "the network tests must run here: {error}");
                eprintln!("not run: {error}");
                None
            }
        }
    }

    fn settings(&self) -> Settings {
        Settings { state: self.folder.path().join("state"), uplinks: vec![UPLINK.to_owned()] }
    }

    /// Does something with an endpoint that has just been started on the host.
    fn endpoint<T: Send>(&self, act: impl FnOnce(&mut Agent) -> T + Send) -> T {
        self.lab.host.within(|| act(&mut Agent::open(self.settings()).unwrap())).unwrap()
    }

    fn put(&self, rows: &[GrantRow]) {
        self.endpoint(|agent| agent.put(&rows[0].instance, rows)).unwrap();
    }

    fn dropped(&self, counter: &str) -> u64 {
        let counters = self.lab.host.within(weft_endpoint::host::system::counters).unwrap();
        counters.unwrap().into_iter().find(|(name, _)| name == counter).unwrap().1
    }
}

/// A gateway that answers each line with its name and who asks; the address.
fn gateway(on: &Namespace, address: &str, name: &'static str) -> SocketAddr {
    let listener = on.within(|| TcpListener::bind(address)).unwrap().unwrap();
    let place = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream, name));
        }
    });
    place
}

fn echo(mut stream: TcpStream, name: &str) {
    let peer = stream.peer_addr().unwrap();
    let mut block = [0; 64];
    while let Ok(read @ 1..) = stream.read(&mut block) {
        let said = String::from_utf8_lossy(&block[..read]).into_owned();
        let answer = format!("{name} {} {said}", peer.ip());
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// What a gateway answers.
fn ask(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(DROPPED))?;
    stream.write_all(b"hello")?;
    let mut block = [0; 128];
    let read = stream.read(&mut block)?;
    Ok(String::from_utf8_lossy(&block[..read]).into_owned())
}

fn reach(vm: &Vm, to: &str, limit: Duration) -> std::io::Result<TcpStream> {
    let to: SocketAddr = to.parse().unwrap();
    vm.inside.within(|| TcpStream::connect_timeout(&to, limit)).unwrap()
}

fn open(vm: &Vm, to: &str) -> TcpStream {
    reach(vm, to, LIMIT).unwrap_or_else(|error| panic!("{} does not reach {to}: {error}", vm.tap))
}

fn refused(vm: &Vm, to: &str) {
    assert!(reach(vm, to, DROPPED).is_err(), "{} reaches {to}", vm.tap);
}

#[test]
fn vms_with_one_address_reach_their_own_nodes_and_nothing_else() {
    let Some(host) = Host::new() else { return };
    let (a, b) = (host.lab.vm(1, "10.0.0.2", None), host.lab.vm(2, "10.0.0.2", None));
    let (a, b, c) = (a.unwrap(), b.unwrap(), host.lab.vm(3, "10.0.0.3", None).unwrap());
    host.lab.node.ip("addr add 192.168.50.3/24 dev eth0").unwrap();
    let first = gateway(&host.lab.node, "192.168.50.2:0", "first").to_string();
    let second = gateway(&host.lab.node, "192.168.50.3:0", "second").to_string();
    host.put(&[a.row("a", 1, MASKED, &first)]);
    host.put(&[b.row("b", 2, MASKED, &second)]);
    // From the same port, too: only the zone tells the two connections apart.
    for vm in [&a, &b] {
        let range = "net.ipv4.ip_local_port_range=40000 40000";
        vm.inside.run("sysctl", &["-qw", range]).unwrap();
    }
    let (mut to_first, mut to_second) = (open(&a, MASKED), open(&b, MASKED));
    for _ in 0..3 {
        assert_eq!(ask(&mut to_first).unwrap(), "first 192.168.50.1 hello");
        assert_eq!(ask(&mut to_second).unwrap(), "second 192.168.50.1 hello");
    }
    // Nobody else's address, no other port, no real address, no host, no other kind of packet.
    refused(&c, MASKED);
    for to in ["169.254.77.2:18515", "169.254.77.1:22", "169.254.77.254:18515", &first] {
        refused(&a, to);
    }
    let before = host.dropped("refused");
    let datagram = a.inside.within(|| {
        let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
        socket.send_to(b"hello", MASKED).unwrap()
    });
    assert_eq!(datagram.unwrap(), 5);
    let deadline = Instant::now() + LIMIT;
    while host.dropped("refused") == before {
        assert!(Instant::now() < deadline, "the datagram was not dropped");
    }
    assert_eq!(ask(&mut to_first).unwrap(), "first 192.168.50.1 hello");
}

#[test]
fn a_spoofed_address_gets_nowhere() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let b = host.lab.vm(2, "10.0.0.3", None).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    host.put(&[a.row("a", 1, MASKED, &node)]);
    host.put(&[b.row("b", 2, "169.254.77.2:18515", &node)]);
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
    let before = host.dropped("spoofed");
    // Whoever is somebody else is not told of the host's hardware address, and knows it already.
    let shown = host.lab.host.run("ip", &["-br", "link", "show", &b.tap]).unwrap();
    let mac = shown.split_whitespace().nth(2).unwrap();
    let knows = format!("neigh replace 169.254.77.1 lladdr {mac} dev eth0 nud permanent");
    // B says that it is A: its address; its hardware address; both.
    b.inside.ip("addr flush dev eth0\n addr add 10.0.0.2/24 dev eth0").unwrap();
    b.inside.ip("route add 169.254.77.0/24 dev eth0").unwrap();
    b.inside.ip(&knows).unwrap();
    refused(&b, MASKED);
    b.inside.ip("link set eth0 address 02:00:00:00:00:01").unwrap();
    refused(&b, MASKED);
    b.inside.ip("addr flush dev eth0\n addr add 10.0.0.3/24 dev eth0").unwrap();
    b.inside.ip("route add 169.254.77.0/24 dev eth0").unwrap();
    refused(&b, "169.254.77.2:18515");
    // It says by ARP that it is A, and that it is A's masked address.
    b.inside.ip("addr add 10.0.0.2/32 dev eth0\n addr add 169.254.77.1/32 dev eth0").unwrap();
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
    assert!(host.dropped("spoofed") > before);
    // As itself again it gets through.
    b.inside
        .ip("addr flush dev eth0
             link set eth0 address 02:00:00:00:00:02
             addr add 10.0.0.3/24 dev eth0
             route add 169.254.77.0/24 dev eth0")
        .unwrap();
    assert_eq!(ask(&mut open(&b, "169.254.77.2:18515")).unwrap(), "node 192.168.50.1 hello");
}

/// The host tells a VM of no hardware address but those of its masked addresses, and takes no note
/// of whoever a VM says that it is: its table of neighbours is all tenants'.
#[test]
fn a_vm_asks_for_masked_addresses_only_and_as_itself() {
    let Some(host) = Host::new() else { return };
    let vm = host.lab.vm(1, "10.0.0.2", None).unwrap();
    host.put(&[vm.row("i1", 1, "169.254.77.1:18515", &format!("{NODE}:7001"))]);
    vm.inside.ip("route add 192.168.50.0/24 dev eth0").unwrap();
    // What is sent to an address is held until its hardware address is known.
    let ask = |from: &str, whom: &str| {
        let sent =
            vm.inside.within(|| UdpSocket::bind((from, 0)).unwrap().send_to(b"x", (whom, 9)));
        sent.unwrap().unwrap();
    };
    let knows = |namespace: &Namespace, device: &str, address: &str| {
        let shown = namespace.run("ip", &["neigh", "show", address, "dev", device]).unwrap();
        shown.contains("lladdr")
    };
    ask("10.0.0.2", "169.254.77.1");
    let wait_for_masked = || {
        let deadline = Instant::now() + LIMIT;
        while !knows(&vm.inside, "eth0", "169.254.77.1") {
            assert!(Instant::now() < deadline, "nobody answers for the masked address");
            thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for_masked();
    // Answers would have come by then: each is asked for before the next one that is answered.
    ask("10.0.0.2", "192.168.50.1");
    vm.inside.ip("addr add 10.99.0.1/32 dev eth0").unwrap();
    ask("10.99.0.1", "169.254.77.2");
    vm.inside.ip("neigh del 169.254.77.1 dev eth0").unwrap();
    ask("10.0.0.2", "169.254.77.1");
    wait_for_masked();
    assert!(!knows(&vm.inside, "eth0", "192.168.50.1"), "of the host's own network");
    assert!(!knows(&host.lab.host, &vm.tap, "10.99.0.1"), "of a VM that is another one");
    // What somebody takes away is put back.
    let repaired = host.endpoint(|agent| {
        let mut repairs = vec![agent.repair().unwrap(), agent.repair().unwrap()];
        host.lab.host.run("nft", &["delete", "table", "arp", "weft"]).unwrap();
        repairs.push(agent.repair().unwrap());
        repairs
    });
    assert_eq!(repaired, [true, false, true]);
    host.lab.host.run("nft", &["list", "table", "arp", "weft"]).unwrap();
}

#[test]
fn a_neighbour_on_the_bridge_is_not_taken_for_the_tenant() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", Some("br0")).unwrap();
    let thief = host.lab.vm(2, "10.0.0.3", Some("br0")).unwrap();
    let other = host.lab.vm(3, "10.0.0.2", Some("br1")).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    host.put(&[a.row("a", 1, MASKED, &node)]);
    host.put(&[other.row("o", 2, MASKED, &node)]);
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
    assert_eq!(ask(&mut open(&other, MASKED)).unwrap(), "node 192.168.50.1 hello");
    refused(&thief, MASKED);
    // The thief takes the masked address on the tenants' network, and answers there.
    thief.inside.ip("addr add 169.254.77.1/32 dev eth0").unwrap();
    let stolen = gateway(&thief.inside, "169.254.77.1:18515", "thief");
    assert_eq!(stolen.port(), 18_515);
    let _ = thief.inside.run("ip", &["neigh", "flush", "all"]);
    a.inside.ip("neigh flush all").unwrap();
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
    // It takes the tenant's address, and then its hardware address, too.
    thief.inside.ip("addr flush dev eth0\n addr add 10.0.0.2/24 dev eth0").unwrap();
    thief.inside.ip("route add 169.254.77.0/24 dev eth0").unwrap();
    refused(&thief, MASKED);
    thief.inside.ip("link set eth0 address 02:00:00:00:00:01").unwrap();
    refused(&thief, MASKED);
}

#[test]
fn withdrawing_cuts_what_is_open() {
    let Some(host) = Host::new() else { return };
    let (a, b) = (host.lab.vm(1, "10.0.0.2", None), host.lab.vm(2, "10.0.0.2", None));
    let (a, b) = (a.unwrap(), b.unwrap());
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    let other = "169.254.77.2:18515";
    host.put(&[a.row("a", 1, MASKED, &node), a.row("a", 1, other, &node)]);
    host.put(&[b.row("b", 2, MASKED, &node)]);
    let (mut one, mut two) = (open(&a, MASKED), open(&a, other));
    let mut others = open(&b, MASKED);
    for stream in [&mut one, &mut two, &mut others] {
        assert_eq!(ask(stream).unwrap(), "node 192.168.50.1 hello");
    }
    // One of an instance's two grants.
    host.put(&[a.row("a", 1, other, &node)]);
    assert!(ask(&mut one).is_err(), "a connection outlived its grant");
    assert_eq!(ask(&mut two).unwrap(), "node 192.168.50.1 hello");
    host.endpoint(|agent| agent.withdraw("a")).unwrap();
    assert!(ask(&mut two).is_err(), "a connection outlived its instance");
    assert_eq!(ask(&mut others).unwrap(), "node 192.168.50.1 hello");
    refused(&a, MASKED);
    let flows = host.lab.host.within(weft_endpoint::host::system::flows).unwrap().unwrap();
    assert_eq!(flows.len(), 1, "{flows:?}");
}

#[test]
fn a_look_up_stops_what_tracking_would_let_through() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    let nft = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        host.lab.host.run("nft", &words).unwrap()
    };
    host.put(&[a.row("a", 1, MASKED, &node)]);
    let mut stream = open(&a, MASKED);
    assert_eq!(ask(&mut stream).unwrap(), "node 192.168.50.1 hello");
    // The look-up alone is gone: the connection is still tracked, marked and translated.
    nft("flush map inet weft way");
    let before = host.dropped("refused");
    assert!(ask(&mut stream).is_err(), "a connection outlived its look-up");
    assert!(host.dropped("refused") > before);
    let flows = || host.lab.host.within(weft_endpoint::host::system::flows).unwrap().unwrap();
    assert_eq!(flows().len(), 1);
    // One that was tracked and not led goes nowhere, and is in nobody's way afterwards.
    host.endpoint(|agent| agent.repair()).unwrap();
    nft("flush chain inet weft lead");
    let before = host.dropped("refused");
    refused(&a, MASKED);
    assert!(host.dropped("refused") > before);
    host.endpoint(|agent| agent.repair()).unwrap();
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
}

#[test]
fn connections_live_through_a_restart_and_other_rows() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let b = host.lab.vm(2, "10.0.0.2", None).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    host.put(&[a.row("a", 1, MASKED, &node)]);
    let mut stream = open(&a, MASKED);
    assert_eq!(ask(&mut stream).unwrap(), "node 192.168.50.1 hello");
    // Each of these is an endpoint of its own, which reads what the one before kept.
    host.put(&[b.row("b", 2, MASKED, &node)]);
    host.endpoint(|agent| {
        assert!(!agent.holds("a", &[a.row("a", 1, MASKED, &node)]), "nothing was looked at yet");
        assert!(agent.repair().unwrap());
        assert!(agent.holds("a", &[a.row("a", 1, MASKED, &node)]));
        assert!(!agent.repair().unwrap(), "nothing had changed");
        agent.withdraw("b").unwrap();
    });
    assert_eq!(ask(&mut stream).unwrap(), "node 192.168.50.1 hello");
}

#[test]
fn what_somebody_changed_is_put_right() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    let row = a.row("a", 1, MASKED, &node);
    host.endpoint(|agent| {
        agent.put("a", std::slice::from_ref(&row)).unwrap();
        let mut changed = |how: &str, change: &dyn Fn()| {
            change();
            assert!(agent.repair().unwrap(), "{how}");
            assert!(!agent.repair().unwrap(), "{how}: twice");
            assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello", "{how}");
        };
        let host = &host.lab.host;
        changed("a firewall is loaded", &|| drop(host.run("nft", &["flush", "ruleset"]).unwrap()));
        changed("a chain is emptied", &|| {
            drop(host.run("nft", &["flush", "chain", "inet", "weft", "raw"]).unwrap());
        });
        changed("the interface goes down", &|| host.ip("link set tap1 down").unwrap());
        changed("the rule goes", &|| host.ip("rule del pref 7745").unwrap());
        changed("the VM is plugged in anew", &|| {
            host.ip("link del tap1").unwrap();
            host_lab(&a, host);
        });
    });
}

/// Ours are then read by another command: what it prints is not taken for a change.
#[test]
fn others_rules_are_in_nobodys_way_however_many_they_are() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    let rules: String = (1..400).map(|port| format!("tcp dport {port} counter\n")).collect();
    let file = host.folder.path().join("others");
    fs::write(&file, format!("table ip others {{\nchain a {{\n{rules}}}\n}}\n")).unwrap();
    let row = a.row("a", 1, MASKED, &node);
    host.endpoint(|agent| {
        agent.put("a", std::slice::from_ref(&row)).unwrap();
        host.lab.host.run("nft", &["-f", file.to_str().unwrap()]).unwrap();
        for look in 0..3 {
            assert!(!agent.repair().unwrap(), "look {look}");
        }
        host.lab.host.run("nft", &["delete", "table", "arp", "weft"]).unwrap();
        assert!(agent.repair().unwrap() && !agent.repair().unwrap());
        host.lab.host.run("nft", &["flush", "chain", "inet", "weft", "raw"]).unwrap();
        assert!(agent.repair().unwrap() && !agent.repair().unwrap());
    });
}

fn host_lab(a: &Vm, host: &Namespace) {
    let peer = a.inside.holder();
    host.ip(&format!("link add tap1 type veth peer name eth0 netns {peer}")).unwrap();
    host.ip("link set tap1 up").unwrap();
    a.inside
        .ip(&format!(
            "link set eth0 address {}
             addr add {}/24 dev eth0
             link set eth0 up
             route add 169.254.77.0/24 dev eth0",
            a.mac, a.ip
        ))
        .unwrap();
}

#[test]
fn a_node_on_the_same_host_is_reached_too() {
    let Some(host) = Host::new() else { return };
    let (a, b) = (host.lab.vm(1, "10.0.0.2", None), host.lab.vm(2, "10.0.0.2", None));
    let (a, b) = (a.unwrap(), b.unwrap());
    let here = gateway(&host.lab.host, "192.168.50.1:0", "here").to_string();
    host.put(&[a.row("a", 1, MASKED, &here)]);
    host.put(&[b.row("b", 2, MASKED, &here)]);
    let (mut one, mut two) = (open(&a, MASKED), open(&b, MASKED));
    for _ in 0..3 {
        assert_eq!(ask(&mut one).unwrap(), "here 169.254.77.254 hello");
        assert_eq!(ask(&mut two).unwrap(), "here 169.254.77.254 hello");
    }
    refused(&a, &here);
    host.endpoint(|agent| agent.withdraw("a")).unwrap();
    assert!(ask(&mut one).is_err(), "a connection outlived its grant");
    assert_eq!(ask(&mut two).unwrap(), "here 169.254.77.254 hello");
}

#[test]
fn one_port_cannot_take_all_connections() {
    let Some(host) = Host::new() else { return };
    let (a, b) = (host.lab.vm(1, "10.0.0.2", None), host.lab.vm(2, "10.0.0.2", None));
    let (a, b) = (a.unwrap(), b.unwrap());
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    host.put(&[a.row("a", 1, MASKED, &node)]);
    host.put(&[b.row("b", 2, MASKED, &node)]);
    let limit = usize::try_from(weft_endpoint::host::CONNECTIONS_MAX).unwrap();
    let open_ones: Vec<TcpStream> = (0..limit).map(|_| open(&a, MASKED)).collect();
    refused(&a, MASKED);
    assert!(host.dropped("bounded") > 0);
    assert_eq!(ask(&mut open(&b, MASKED)).unwrap(), "node 192.168.50.1 hello");
    drop(open_ones);
}

#[test]
fn a_port_that_is_not_there_is_waited_for() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    let row = GrantRow { tap: "tap9".to_owned(), ..a.row("a", 1, MASKED, &node) };
    let failure = host.endpoint(|agent| agent.put("a", &[row])).unwrap_err();
    assert!(matches!(failure, Failure::NoPort(_)) && !failure.is_permanent(), "{failure}");
    let newer = a.row("b", 2, MASKED, &node);
    host.put(std::slice::from_ref(&newer));
    let older = a.row("c", 1, MASKED, &node);
    let failure = host.endpoint(|agent| agent.put("c", &[older])).unwrap_err();
    assert!(matches!(failure, Failure::Superseded(_)) && failure.is_permanent(), "{failure}");
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
}

#[test]
fn a_grant_opens_no_other_way_into_the_hosts_network() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let b = host.lab.vm(2, "10.0.0.3", Some("br0")).unwrap();
    let node = gateway(&host.lab.node, "192.168.50.2:0", "node").to_string();
    let forwards = |device| host.forwards(device);
    // Both know the way to the host, and the node knows one back.
    host.lab.host.ip("addr add 10.0.0.1/24 dev br0\n addr add 10.0.0.1/24 dev tap1").unwrap();
    host.lab.node.ip("route add 10.0.0.0/24 via 192.168.50.1").unwrap();
    for vm in [&a, &b] {
        vm.inside.ip("route add default via 10.0.0.1").unwrap();
    }
    host.put(&[a.row("a", 1, MASKED, &node)]);
    host.put(&[b.row("b", 2, MASKED, &node)]);
    assert_eq!((forwards("tap1"), forwards("br0")), ("1".to_owned(), "1".to_owned()));
    for vm in [&a, &b] {
        refused(vm, &node);
        assert_eq!(ask(&mut open(vm, MASKED)).unwrap(), "node 192.168.50.1 hello");
    }
    host.endpoint(|agent| agent.withdraw("a")).unwrap();
    host.endpoint(|agent| agent.withdraw("b")).unwrap();
    assert_eq!((forwards("tap1"), forwards("br0")), ("0".to_owned(), "0".to_owned()));
    for vm in [&a, &b] {
        refused(vm, &node);
    }
}

/// An endpoint in a process of its own, which notes what it starts.
struct Program {
    child: Child,
    client: Client,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    /// Its `nft` fails as long as there is a file `broken`.
    fn start(&self) -> Program {
        let folder = self.folder.path();
        let (programs, socket) = (folder.join("programs"), folder.join("socket"));
        fs::create_dir_all(&programs).unwrap();
        for name in ["nft", "ip", "conntrack"] {
            let at = folder.display();
            let text = format!(
                "#!/bin/sh\n[ {name} = nft ] && [ -e {at}/broken ] && exit 1\n\
                 echo \"{name} $*\" >> {at}/started\nPATH=${{PATH#*:}}\nexec {name} \"$@\"\n"
            );
            fs::write(programs.join(name), text).unwrap();
            fs::set_permissions(programs.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-endpoint"));
        command.args(["host", "--uplink", UPLINK, "--socket"]).arg(&socket);
        command.arg("--state").arg(self.settings().state).env("PATH", path).stdout(Stdio::piped());
        let mut child = self.lab.host.within(|| command.spawn()).unwrap().unwrap();
        assert_eq!(lines::first(child.stdout.take().unwrap()).unwrap(), "ready");
        Program { child, client: client(&socket) }
    }

    /// What it started since it looked whether they are there, one a line.
    fn started(&self) -> String {
        let all = fs::read_to_string(self.folder.path().join("started")).unwrap();
        all.rsplit_once("conntrack --version\n").unwrap().1.to_owned()
    }

    fn forwards(&self, device: &str) -> String {
        let name = format!("net.ipv4.conf.{device}.forwarding");
        self.lab.host.run("sysctl", &["-n", &name]).unwrap().trim().to_owned()
    }
}

/// They are most of what a VM waits for when it is granted something.
#[test]
fn a_change_starts_five_programs_and_a_look_two() {
    const LOOK: &str = "ip -4 -j -batch -\nnft -s -t list ruleset\n";
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let mut program = host.start();
    let mut rows = Vec::new();
    for last in 1..=4 {
        rows.push(a.row("a", 1, &format!("169.254.77.{last}:18515"), "192.168.50.2:7001"));
        let put = Request::Put { instance: "a".into(), rows: rows.clone() };
        assert_eq!(program.client.call(put).unwrap(), Answer::Done);
    }
    let ours = format!("{}/{}", weft_endpoint::host::MARK, weft_endpoint::host::MARK_MASK);
    let change = format!(
        "ip -4 -j -batch -\nnft -f -\nip -4 -batch -\nconntrack -L -f ipv4 -p tcp -m {ours}\n\
         nft -s -t list ruleset\n"
    );
    let deadline = Instant::now() + LIMIT;
    loop {
        let started = host.started();
        let told = started.replace(&change, "change ").replace(LOOK, "look ");
        // One may go on.
        let told = told.strip_suffix("ip -4 -j -batch -\n").unwrap_or(&told);
        let words: Vec<&str> = told.split_terminator(' ').collect();
        let count = |what| words.iter().filter(|word| **word == what).count();
        let looks = count("look");
        // The start is one, too.
        assert_eq!((count("change"), words.len()), (5, 5 + looks), "{started}");
        if looks > 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{started}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_setting_that_could_not_be_put_back_is_so_at_the_next_start() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let mut program = host.start();
    let rows = vec![a.row("a", 1, MASKED, "192.168.50.2:7001")];
    let put = Request::Put { instance: "a".into(), rows };
    assert_eq!(program.client.call(put).unwrap(), Answer::Done);
    assert_eq!(host.forwards(&a.tap), "1");
    let broken = host.folder.path().join("broken");
    fs::write(&broken, "").unwrap();
    let withdraw = Request::Withdraw { instance: "a".into() };
    let refused = program.client.call(withdraw).unwrap_err();
    assert!(refused.to_string().contains("nft"), "{refused}");
    drop(program);
    fs::remove_file(&broken).unwrap();
    assert_eq!(host.forwards(&a.tap), "1");
    let mut program = host.start();
    assert_eq!(host.forwards(&a.tap), "0");
    let none = Answer::Instances { instances: Vec::new() };
    assert_eq!(program.client.call(Request::Instances).unwrap(), none);
}

fn client(path: &Path) -> Client {
    let deadline = Instant::now() + LIMIT;
    loop {
        match Client::connect(path) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn the_socket_takes_rows_and_says_what_it_refuses() {
    let Some(host) = Host::new() else { return };
    let a = host.lab.vm(1, "10.0.0.2", None).unwrap();
    let node = gateway(&host.lab.node, &format!("{NODE}:0"), "node").to_string();
    let path = host.folder.path().join("socket");
    let (settings, at) = (host.settings(), path.clone());
    let started = host.lab.host.within(|| {
        let agent = Agent::open(settings).unwrap();
        let listener = serve::listen(&at).unwrap();
        // It serves until the test's process ends.
        thread::Builder::new().spawn(move || serve::serve(&listener, agent))
    });
    drop(started.unwrap().unwrap());
    let mut client = client(&path);
    let rows = vec![a.row("a", 1, MASKED, &node)];
    let put = |rows: &[GrantRow]| Request::Put { instance: "a".into(), rows: rows.to_vec() };
    assert_eq!(client.call(put(&rows)).unwrap(), Answer::Done);
    let holds = Request::Holds { instance: "a".into(), rows: rows.clone() };
    assert_eq!(client.call(holds).unwrap(), Answer::Holds { holds: true });
    let all = Answer::Instances { instances: vec!["a".to_owned()] };
    assert_eq!(client.call(Request::Instances).unwrap(), all);
    assert_eq!(ask(&mut open(&a, MASKED)).unwrap(), "node 192.168.50.1 hello");
    let loopback = a.row("a", 1, MASKED, "127.0.0.1:7001");
    let refused = client.call(put(&[loopback])).unwrap_err();
    assert!(refused.to_string().contains("not at loopback"), "{refused}");
    let Answer::Metrics { text } = client.call(Request::Metrics).unwrap() else { panic!() };
    assert!(text.contains("\nweft_endpoint_ports 1\n"), "{text}");
    assert!(text.contains("\nweft_endpoint_spoofed_packets_total 0\n"), "{text}");
    // And for whoever scrapes it.
    let metrics = |socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-endpoint"));
        let output = command.args(["metrics", "--socket"]).arg(socket).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = metrics(&path);
    assert!(code == Some(0) && said.contains("\nweft_endpoint_ports 1\n"), "{code:?}: {said}");
    let (code, said) = metrics(&path.with_extension("none"));
    assert!(code == Some(1) && said.contains("no endpoint answers at"), "{code:?}: {said}");
    let withdraw = Request::Withdraw { instance: "a".into() };
    assert_eq!(client.call(withdraw).unwrap(), Answer::Done);
    // Another version's words are not guessed at; those of the one before are understood.
    let mut raw = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let asked = |version, request| serde_json::to_string(&Asked { version, request }).unwrap();
    let lines = [
        asked(VERSION + 1, Request::Instances),
        "{\"version\":1}".to_owned(),
        asked(VERSION - 1, put(&rows)),
        asked(VERSION - 1, Request::Instances),
        asked(VERSION - 1, Request::Withdraw { instance: "a".into() }),
        String::new(),
    ];
    raw.write_all(lines.join("\n").as_bytes()).unwrap();
    let mut text = String::new();
    raw.shutdown(std::net::Shutdown::Write).unwrap();
    raw.read_to_string(&mut text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("version 3 is not spoken here, but versions 1 to 2"), "{text}");
    assert!(lines[1].contains("not understood"), "{text}");
    let done = r#"{"answer":"done"}"#;
    assert_eq!(lines[2..], [done, r#"{"answer":"instances","instances":["a"]}"#, done]);
}
