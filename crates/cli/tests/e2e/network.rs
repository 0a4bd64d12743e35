//! Remote programs over networks that lose, delay, cut and lie: two network namespaces that are the
//! test's own, and proxies where a namespace cannot do it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Resource;
use weft_endpoint::delay;
use weft_endpoint::host::agent::{Agent, Settings};
use weft_endpoint::host::lab::{Lab, NODE, Namespace, UPLINK};
use weft_endpoint::host::system::counters;

use crate::remote::{Proxy, grant, node, random, run};
use crate::support::{
    Conversation, Node, eventually, has_network, program, provided, success, weft, within,
};

/// Nobody is told anything after this time; only a broken system reaches it.
const SILENCE: Option<Duration> = Some(Duration::from_secs(60));

/// The node's address, in a network that only the two namespaces have.
const ADDRESS: &str = "10.77.0.1";

/// A host with a node and a host with programs, and a cable between them.
struct Network {
    node: String,
    programs: String,
}

impl Network {
    fn new(name: &str) -> Self {
        let [node, programs] =
            ["node", "far"].map(|end| format!("weft-{name}-{end}-{}", std::process::id()));
        let network = Self { node, programs };
        let (node, programs) = (&network.node, &network.programs);
        ip(&["netns", "add", node]);
        ip(&["netns", "add", programs]);
        let add = ["-n", node, "link", "add", "cable", "type", "veth", "peer", "name", "cable"];
        ip(&[&add[..], &["netns", programs]].concat());
        for (namespace, address) in [(node, ADDRESS), (programs, "10.77.0.2")] {
            ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", "cable"]);
            ip(&["-n", namespace, "link", "set", "cable", "up"]);
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        network
    }

    /// What happens to whatever arrives at the node from now on.
    fn rule(&self, rule: &str) {
        let table = format!(
            "table inet weft\ndelete table inet weft\ntable inet weft {{\n  chain arriving {{\n    \
             type filter hook input priority 0;\n    {rule}\n  }}\n}}\n"
        );
        nft(&self.node, &table);
    }

    /// Pulls the cable at the node's end: nobody is told anything.
    fn pull(&self) {
        ip(&["-n", &self.node, "link", "set", "cable", "down"]);
    }

    fn put_back(&self) {
        ip(&["-n", &self.node, "link", "set", "cable", "up"]);
        // That nobody answered on the cable before is forgotten: who connects in the same moment as
        // an old question fails would be told of no route.
        ip(&["-n", &self.programs, "neigh", "flush", "dev", "cable"]);
    }

    /// Connections over the cable that the programs' end takes for good.
    fn connections(&self) -> usize {
        established(&self.programs, 2, ADDRESS).len()
    }

    /// Bytes that have come and gone at the programs' end.
    fn carried(&self) -> u64 {
        let bytes = |way: &str| {
            let mut read = Command::new("cat");
            read.arg(format!("/sys/class/net/cable/statistics/{way}_bytes"));
            success(within(&self.programs, &read)).trim().parse::<u64>().unwrap()
        };
        bytes("rx") + bytes("tx")
    }

    /// How often the programs' end has sent again, in vain so far.
    fn repeats(&self) -> u64 {
        let lines = established(&self.programs, 2, ADDRESS);
        lines.iter().map(|words| u64::from_str_radix(&words[6], 16).unwrap()).sum()
    }

    /// Bytes that the node's kernel has yet to bring from this address of its own.
    fn unsent(&self, address: &str) -> u64 {
        let bytes = |words: &Vec<String>| {
            let (unsent, _) = words[4].split_once(':').unwrap();
            u64::from_str_radix(unsent, 16).unwrap()
        };
        established(&self.node, 1, address).iter().map(bytes).sum()
    }

    /// Packets that the rule met.
    fn met(&self) -> u64 {
        let mut list = Command::new("ip");
        let text = success({
            list.args(["netns", "exec", &self.node, "nft", "list", "table", "inet", "weft"]);
            list
        });
        let count = text.split_once("counter packets ").map(|(_, rest)| rest);
        count.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
    }
}

/// Established connections of a namespace with this address in that column: each one's line of
/// `/proc/net/tcp`, in words.
fn established(namespace: &str, column: usize, address: &str) -> Vec<Vec<String>> {
    let mut list = Command::new("cat");
    list.arg("/proc/net/tcp");
    let text = success(within(namespace, &list));
    // An address is written as the machine has it.
    let number = u32::from_ne_bytes(address.parse::<Ipv4Addr>().unwrap().octets());
    let start = format!("{number:08X}:");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let is_one = |words: &Vec<String>| words[column].starts_with(&start) && words[3] == "01";
    text.lines().skip(1).map(words).filter(is_one).collect()
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.node, &self.programs] {
            // What is left of a test that failed.
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

fn ip(words: &[&str]) {
    let mut command = Command::new("ip");
    command.args(words);
    success(command);
}

fn nft(namespace: &str, table: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, table).unwrap();
    let mut command = Command::new("nft");
    command.arg("-f").arg(file.path());
    success(within(namespace, &command));
}

/// A node in its namespace, with a grant for it and where its gateway listens.
fn node_within(network: &Network, settings: &[&str]) -> (Node, String, String) {
    let listen = format!("remote.listen={ADDRESS}:0");
    let all = [&[listen.as_str(), "remote.user=0"], settings].concat();
    let node = Node::start_within(&network.node, &all);
    let (token, address) = grant(&node, &["far", "--uses", "100"]);
    (node, token, address)
}

/// A program of the other namespace that has begun.
fn begin_at(network: &Network, address: &str, token: &str, rounds: &str) -> Conversation {
    let command = run(address, token, &program("relay"), &[rounds]);
    let run = Conversation::start(within(&network.programs, &command));
    assert_eq!(run.line(), "ready");
    run
}

/// Both.
fn begin(network: &Network, rounds: &str) -> (Node, Conversation) {
    let (node, token, address) = node_within(network, &[]);
    let run = begin_at(network, &address, &token, rounds);
    (node, run)
}

fn end(node: &Node, mut run: Conversation) {
    assert_eq!(run.line(), "relay: PASSED");
    assert!(run.wait().success());
    node.wait_until_empty();
}

#[test]
fn a_network_that_loses_packets_delays_programs_and_no_more() {
    if !has_network() {
        return;
    }
    let network = Network::new("loss");
    network.rule("meta l4proto tcp numgen random mod 100 < 2 counter drop");
    let (node, run) = begin(&network, "20");
    end(&node, run);
    assert!(network.met() > 0, "nothing was lost");
}

/// Every byte is 20 ms on its way in each direction, and of the packets three in a hundred are lost
/// on the cable, either way: what a round has computed is right, and each launch has run once.
#[test]
fn a_network_that_delays_and_loses_changes_no_result() {
    if !has_network() {
        return;
    }
    let network = Network::new("slow");
    network.rule("meta l4proto tcp numgen random mod 100 < 3 counter drop");
    let (node, token, address) = node_within(&network, &[]);
    let mut delay = Command::new(provided("WEFT_TEST_BIN").join("weft-endpoint"));
    delay.args(["delay", "--remote", &address, "--ms", "20"]);
    let delay = Conversation::start(within(&network.programs, &delay));
    let said: serde_json::Value = serde_json::from_str(&delay.line()).unwrap();
    let late = said["listen"].as_str().unwrap();
    let began = Instant::now();
    let run = begin_at(&network, late, &token, "12");
    end(&node, run);
    // A round waits for the device more than three times, and twice the delay each time.
    let least = Duration::from_millis(2 * 20 * 3 * 12);
    assert!(began.elapsed() > least, "nothing was delayed: {:?}", began.elapsed());
    assert!(network.met() > 0, "nothing was lost");
}

/// The cable is pulled and put back: before anybody has noticed, and after both ends have given the
/// connection up. Within the grace time the program goes on where it was.
#[test]
fn a_cable_that_is_put_back_in_time_costs_time_only() {
    if !has_network() {
        return;
    }
    let network = Network::new("back");
    // Whoever is late on a busy machine is still in time.
    let (node, token, address) = node_within(&network, &["remote.grace_ms=100000"]);
    let mut run = begin_at(&network, &address, &token, "400");
    let mut is_over = || run.child.try_wait().unwrap().is_some();
    for _ in 0..3 {
        network.pull();
        eventually("something to be sent again", || network.repeats() > 0);
        assert!(!is_over(), "it ended without a network");
        network.put_back();
        eventually("what was lost to have come", || network.repeats() == 0);
    }
    network.pull();
    eventually("the endpoint to give the connection up", || network.connections() == 0);
    assert!(!is_over(), "it ended without a network");
    network.put_back();
    eventually("another connection", || network.connections() > 0 || is_over());
    end(&node, run);
}

/// The cable stays out for longer than the grace time: neither end hears of the other, the program
/// gets a CUDA error, the node's session ends, and with the cable the next program runs.
#[test]
fn a_cable_that_stays_out_is_an_error_and_no_hang() {
    if !has_network() {
        return;
    }
    let network = Network::new("out");
    let (node, token, address) = node_within(&network, &["remote.grace_ms=1000"]);
    let mut run = begin_at(&network, &address, &token, "1000000");
    network.pull();
    assert_eq!(run.wait().code(), Some(2), "a CUDA error");
    node.wait_until_empty();
    network.put_back();
    end(&node, begin_at(&network, &address, &token, "2"));
}

/// Connections that are reset, and a network that is silent for a while: in the one case both ends
/// hear of it, in the other neither does.
#[test]
fn resets_and_silence_of_a_real_network_are_survived() {
    if !has_network() {
        return;
    }
    let network = Network::new("cut");
    let (node, mut run) = begin(&network, "600");
    let mut times = [0, 0];
    let mut is_over = || run.child.try_wait().unwrap().is_some();
    for number in 0..20 {
        let is_silence = number % 5 == 4;
        let what = if is_silence { "drop" } else { "reject with tcp reset" };
        network.rule(&format!("meta l4proto tcp counter {what}"));
        // What is lost in silence is sent again, and lost again.
        let least = if is_silence { 3 } else { 1 };
        eventually("packets to be lost", || network.met() >= least || is_over());
        times[usize::from(is_silence)] += u64::from(network.met() >= least);
        network.rule("meta l4proto tcp counter accept");
        // The session goes on before it is cut again.
        eventually("packets to pass", || network.met() > 20 || is_over());
    }
    let [resets, silences] = times;
    assert!(resets >= 8 && silences >= 2, "{resets} resets, {silences} silences: too few");
    end(&node, run);
}

/// Small numbers take little of a network where that is asked for, and others what they are.
#[test]
fn what_shrinks_is_sent_compressed_where_that_is_asked_for() {
    /// What the program copies in a round to the device and back.
    const BYTES: u64 = 64 << 20;

    if !has_network() {
        return;
    }
    let network = Network::new("lz4");
    let (node, token, address) = node_within(&network, &[]);
    let copies = |flags: &[&str], below: &str| {
        let before = network.carried();
        let mut command = weft();
        command.env("WEFT_TOKEN", &token).args(["run", "--remote", &address]).args(flags);
        command.arg("--").arg(program("bulk")).args(["1", below]);
        let text = success(within(&network.programs, &command));
        assert!(text.contains("bulk: PASSED"), "{text}");
        network.carried() - before
    };
    let shrunk = copies(&["--compress"], "2");
    assert!(shrunk < BYTES / 2, "{shrunk}");
    // The controls: nobody asked, and what does not shrink.
    for (flags, below) in [(&[][..], "2"), (&["--compress"], "0")] {
        let carried = copies(flags, below);
        assert!((BYTES..BYTES / 4 * 5).contains(&carried), "{carried}");
    }
    node.wait_until_empty();
}

/// Launches do not wait for the network: what thousands of them take longer than a few is no round
/// trip for every twentieth.
#[test]
fn a_slow_network_is_waited_for_once_and_not_for_every_launch() {
    let node = node(&[]);
    let (token, gateway) = grant(&node, &["far", "--uses", "2"]);
    let address = delay::to(gateway, Duration::from_millis(25)).unwrap().to_string();
    let launch = |count: u32| {
        let began = Instant::now();
        let arguments = ["step_21us", "0", "--count", &count.to_string()];
        let text = success(run(&address, &token, &program("share"), &arguments));
        assert!(text.contains("\"verified\": true"), "{text}");
        began.elapsed()
    };
    let (few, many) = (launch(48), launch(4000));
    let round_trips = Duration::from_millis(50) * 3952;
    assert!(many < few + round_trips / 20, "{few:?}, {many:?}");
    node.wait_until_empty();
}

/// Passes connections on to a gateway; counts the records of TLS with content in them that
/// endpoints send. Each is one write at least.
fn counting(gateway: String) -> (String, Arc<AtomicU64>) {
    let records = Arc::new(AtomicU64::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let counted = Arc::clone(&records);
    thread::spawn(move || {
        for endpoint in listener.incoming() {
            let (near, far) = (endpoint.unwrap(), TcpStream::connect(&gateway).unwrap());
            let (mut from, mut back) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            back.set_nodelay(true).unwrap();
            thread::spawn(move || std::io::copy(&mut from, &mut back));
            let counted = Arc::clone(&counted);
            thread::spawn(move || count(near, far, &counted));
        }
    });
    (address, records)
}

fn count(mut from: TcpStream, mut to: TcpStream, records: &AtomicU64) {
    const CONTENT: u8 = 23;
    const HEAD: usize = 5;
    to.set_nodelay(true).unwrap();
    let mut record = vec![0; HEAD];
    while from.read_exact(&mut record).is_ok() {
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(HEAD + length, 0);
        if from.read_exact(&mut record[HEAD..]).and_then(|()| to.write_all(&record)).is_err() {
            return;
        }
        records.fetch_add(u64::from(record[0] == CONTENT), Ordering::Relaxed);
        record.truncate(HEAD);
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Launches that nobody waits for share records, and with them writes and packets. Launches each of
/// which is waited for cannot: as many records as launches are seen then.
#[test]
fn launches_that_nobody_waits_for_share_what_is_sent() {
    let node = node(&[]);
    let (token, gateway) = grant(&node, &["far", "--uses", "100"]);
    let sent = |count: u64, more: &[&str]| {
        let (address, records) = counting(gateway.clone());
        let count = count.to_string();
        let arguments = [&["step_21us", "0", "--count", count.as_str()], more].concat();
        let text = success(run(&address, &token, &program("share"), &arguments));
        assert!(text.contains("\"verified\": true"), "{text}");
        records.load(Ordering::Relaxed)
    };
    let waited_for = sent(500, &["--sync"]);
    assert!(waited_for >= 500, "{waited_for} records for 500 launches: not all are counted");
    let launches = 4000;
    let records = sent(launches, &[]);
    eprintln!("{records} records for {launches} launches, {waited_for} for 500 with waits");
    assert!(4 * records < launches, "{records} records for {launches} launches");
}

/// A connection that is open and takes nothing any more is lost, and another one is made.
#[test]
fn a_peer_that_falls_silent_is_left() {
    let node = node(&[]);
    let (token, gateway) = grant(&node, &["far"]);
    let stalls = Arc::new(Mutex::new(Vec::new()));
    let (held, first) = (Arc::clone(&stalls), Arc::new(OnceLock::new()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (number, endpoint) in listener.incoming().enumerate() {
            let (near, far) = (endpoint.unwrap(), TcpStream::connect(&gateway).unwrap());
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (held, first) = (Arc::clone(&held), Arc::clone(&first));
                let is_first = move || *first.get_or_init(|| number) == number;
                thread::spawn(move || pass_some(from, to, is_first, &held));
            }
        }
    });
    let text = success(run(&address, &token, &program("relay"), &["10"]));
    assert!(text.contains("PASSED"), "{text}");
    assert!(!stalls.lock().unwrap().is_empty(), "nobody fell silent");
    node.wait_until_empty();
}

/// Passes bytes on; of the first connection that has as many no more than a few, and then it stays
/// open, held.
fn pass_some(
    mut from: TcpStream,
    mut to: TcpStream,
    is_first: impl Fn() -> bool,
    held: &Mutex<Vec<TcpStream>>,
) {
    let (mut bytes, mut passed) = ([0; 16 << 10], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        passed += count;
        if passed > 200_000 && is_first() {
            held.lock().unwrap().extend([from, to]);
            return;
        }
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// A peer to which a network brings 50 kB a second has a session that is slow: the gateway waits to
/// send, for the kernel keeps little for it. Nobody else's session waits with it.
#[test]
fn a_slow_peer_holds_nobody_up_but_itself() {
    const SLOW: &str = "10.77.0.9";
    if !has_network() {
        return;
    }
    let network = Network::new("hold");
    ip(&["-n", &network.node, "address", "add", &format!("{SLOW}/24"), "dev", "cable"]);
    let mut keep_little = Command::new("sysctl");
    keep_little.args(["-w", "net.ipv4.tcp_wmem=4096 16384 65536"]);
    success(within(&network.node, &keep_little));
    let table = format!(
        "table inet slow {{\n  chain arriving {{\n    type filter hook input priority 0;\n    \
         ip saddr {SLOW} limit rate over 50 kbytes/second burst 128 kbytes drop\n  }}\n}}\n"
    );
    nft(&network.programs, &table);
    let node = Node::start_within(&network.node, &["remote.listen=0.0.0.0:0", "remote.user=0"]);
    let (token, listen) = grant(&node, &["far", "--uses", "100"]);
    let (_, port) = listen.rsplit_once(':').unwrap();
    let at = |host: &str, name: &str, rounds: &str| {
        let command = run(&format!("{host}:{port}"), &token, &program(name), &[rounds]);
        within(&network.programs, &command)
    };
    let mut held = Conversation::start(at(SLOW, "bulk", "1"));
    assert_eq!(held.line(), "ready");
    eventually("the gateway to wait for its peer", || network.unsent(SLOW) > 32 << 10);
    // If each of its waits was one for the slow one, too, it would take minutes.
    let text = success(at(ADDRESS, "relay", "400"));
    assert!(text.contains("PASSED"), "{text}");
    assert!(held.child.try_wait().unwrap().is_none(), "it was not slow");
    nft(&network.programs, "delete table inet slow\n");
    assert_eq!(held.line(), "bulk: PASSED");
    assert!(held.wait().success());
    node.wait_until_empty();
}

/// Somebody who recorded a whole session and says it again gets nothing: the gateway's part of each
/// handshake is another one.
#[test]
fn a_session_that_is_said_again_is_not_begun_again() {
    let node = node(&[]);
    let (token, gateway) = grant(&node, &["far", "--uses", "100"]);
    let said = Arc::new(Mutex::new(Vec::new()));
    let (recorded, to) = (Arc::clone(&said), gateway.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for endpoint in listener.incoming() {
            let (near, far) = (endpoint.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut from, mut back) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut back));
            let (mut near, mut far, recorded) = (near, far, Arc::clone(&recorded));
            thread::spawn(move || {
                let mut bytes = [0; 16 << 10];
                while let Ok(count @ 1..) = near.read(&mut bytes) {
                    recorded.lock().unwrap().extend_from_slice(&bytes[..count]);
                    if far.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
                let _ = far.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    let text = success(run(&address, &token, &program("vector_add"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    node.wait_until_empty();
    let begun = || node.log().matches("session opened").count();
    let (before, said) = (begun(), said.lock().unwrap().clone());
    assert!(said.len() > 1000 && before > 0, "{} bytes, {before} sessions", said.len());
    for _ in 0..20 {
        let mut again = TcpStream::connect(&gateway).unwrap();
        again.set_read_timeout(SILENCE).unwrap();
        // It may be cut off before it has said everything.
        let _ = again.write_all(&said);
        assert!(matches!(again.read_to_end(&mut Vec::new()), Ok(_) | Err(_)));
    }
    let text = success(run(&gateway, &token, &program("vector_add"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    assert_eq!(begun(), before + 1, "the program's, and nobody else's");
}

/// The beginning of a TLS 1.3 handshake that never goes on.
fn beginning() -> Vec<u8> {
    let mut bytes = vec![22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    bytes.extend((0..32).map(|at| random(7, at).to_le_bytes()[0]));
    bytes
}

/// A thousand connections, some silent, some in the middle of a handshake, some that say a byte now
/// and then: none has a place for longer than the patience, and programs are let in meanwhile.
#[test]
fn a_thousand_connections_keep_nobody_out() {
    // They are this process's too.
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let node = node(&["remote.pending=256", "remote.patience_ms=2000"]);
    let (token, gateway) = grant(&node, &["far", "--uses", "100"]);
    let mut crowd: Vec<TcpStream> = Vec::new();
    for number in 0..1000 {
        let mut one = TcpStream::connect(&gateway).unwrap();
        if number % 2 == 0 {
            // One that was cut off already was one too many.
            let _ = one.write_all(&beginning()[..1 + number % 40]);
        }
        crowd.push(one);
    }
    let text = success(run(&gateway, &token, &program("vector_add"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    let slow: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&gateway).unwrap()).collect();
    let dribbling = thread::spawn(move || slow.into_iter().map(dribble).max());
    for mut one in crowd {
        one.set_read_timeout(SILENCE).unwrap();
        let mut told = Vec::new();
        match one.read_to_end(&mut told) {
            Ok(_) => assert!(told.len() < 100, "it was told {} bytes", told.len()),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    assert!(dribbling.join().unwrap() < Some(beginning().len()), "it was heard out");
    let text = success(run(&gateway, &token, &program("relay"), &["2"]));
    assert!(text.contains("PASSED"), "{text}");
    node.wait_until_empty();
}

/// Says a byte every 200 ms until it is cut off; how many it could say.
fn dribble(mut one: TcpStream) -> usize {
    one.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for (said, byte) in beginning().into_iter().enumerate() {
        let is_cut = one.write_all(&[byte]).is_err()
            || match one.read(&mut [0]) {
                Ok(_) => true,
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
        if is_cut {
            return said;
        }
    }
    usize::MAX
}

/// Each connection is cut after a few frames in both directions: whatever was on its way either way
/// comes again, and nothing twice.
#[test]
fn a_program_survives_connections_that_hardly_begin() {
    let node = node(&[]);
    let (token, gateway) = grant(&node, &["far"]);
    let proxy =
        Proxy::new(gateway, |number| if number < 30 { 3_000 + number * 997 } else { u64::MAX });
    let text = success(run(&proxy.address, &token, &program("relay"), &["6"]));
    assert!(text.contains("PASSED"), "{text}");
    node.wait_until_empty();
}

/// A VM's program is at work over TLS through a compute host's rules when its grant is withdrawn:
/// what it sends is dropped, the node's session ends when the vGPU is taken away, and the program,
/// which nobody can tell anything any more, gets an error when its time to resume is over.
#[test]
fn a_withdrawn_grant_ends_a_real_session_behind_a_hosts_rules() {
    const MASKED: &str = "169.254.77.1:18515";
    if !has_network() {
        return;
    }
    let (lab, folder) = (Lab::new().unwrap(), tempfile::tempdir().unwrap());
    let vm = lab.vm(1, "10.0.0.2", None).unwrap();
    let place = |namespace: &Namespace| format!("/proc/{}/ns/net", namespace.holder());
    let listen = format!("remote.listen={NODE}:0");
    let settings = [&listen, "remote.user=0", "remote.grace_ms=1000"];
    let node = Node::start_within(&place(&lab.node), &settings);
    let (token, gateway) = grant(&node, &["vm"]);
    let open = || {
        let (state, uplinks) = (folder.path().join("state"), vec![UPLINK.to_owned()]);
        Agent::open(Settings { state, uplinks }).unwrap()
    };
    let rows = [vm.row("i1", 1, MASKED, &gateway)];
    lab.host.within(|| open().put("i1", &rows).unwrap()).unwrap();
    let command = run(MASKED, &token, &program("relay"), &["100000000"]);
    let mut run = Conversation::start(within(&place(&vm.inside), &command));
    assert_eq!(run.line(), "ready");
    let refused = || {
        let counters = lab.host.within(counters).unwrap().unwrap();
        counters.into_iter().find(|(name, _)| name == "refused").unwrap().1
    };
    assert_eq!(refused(), 0, "what was granted goes through");
    lab.host.within(|| open().withdraw("i1").unwrap()).unwrap();
    eventually("what the program says to be dropped", || refused() > 0);
    node.admin().remove("vm", true).unwrap();
    node.wait_until_empty();
    assert_eq!(run.wait().code(), Some(2), "a CUDA error");
}
