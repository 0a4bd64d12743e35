//! What the rules cost, between network namespaces of this host: the same round trips and the same
//! stream over a routed path without rules, through the rules, through the rules with 10,000
//! grants, through a relay in user space, and through a translation of addresses that asks nothing.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weft_api::endpoint::GrantRow;
use weft_api::figures::{Figures, median_error};
use weft_api::stolen::Processors;

use super::agent::{Agent, Settings};
use super::lab::{Lab, NODE, UPLINK, Vm};
use super::session::{self, Cut};

/// Round trips of 64 bytes in one window.
const TRIPS: usize = 5_000;

/// Bytes of a round trip.
const TRIP_BYTES: usize = 64;

/// How long a stream is watched in one window, and how long it has run before.
const STREAM: Duration = Duration::from_millis(150);
const WARM: Duration = Duration::from_millis(30);

/// Windows; the paths take turns. Many short ones: what disturbs a stream lasts for longer than a
/// turn, and is then in all of its windows. A stream's rate differs by some percent from one to the
/// next all the same, and what is asked is whether rules take seven.
const WINDOWS: usize = 121;

/// A connection that is not let through is given up after this time.
const REFUSED_AFTER: Duration = Duration::from_millis(1_500);

const MASKED: &str = "169.254.77.1:18515";

/// Grants of a host that has many.
const MANY: usize = 10_000;

/// Grants put beside them, one after the other.
const PUTS: usize = 5;

/// A path, and what was seen on it.
struct Measured {
    lab: Lab,
    vm: Vm,
    to: String,
    seen: Seen,
}

/// Window by window.
#[derive(Clone, Default)]
struct Seen {
    /// A round trip, in µs.
    trips_us: Vec<f64>,
    /// A stream.
    gbit_s: Vec<f64>,
}

/// What changes of the rules took, in ms.
struct Changes {
    /// The first grant of a host, in force.
    put: f64,
    /// One more beside [`MANY`], kept in the file and in force.
    put_beside_many: f64,
    /// [`MANY`] at once, in force.
    put_many: f64,
    /// The end of one, with its connection.
    cut: f64,
}

/// Answers what it is sent, or swallows it after the byte `s`.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    let mut block = vec![0; 256 << 10];
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(()),
            _ if kind == *b"s" => {}
            read => stream.write_all(&block[..read])?,
        }
    }
}

fn node(lab: &Lab) -> io::Result<u16> {
    let listener = lab.node.within(|| TcpListener::bind((NODE, 0)))??;
    let port = listener.local_addr()?.port();
    thread::Builder::new().spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    })?;
    Ok(port)
}

fn plain() -> io::Result<Measured> {
    let lab = Lab::new()?;
    let vm = lab.vm(1, "10.0.0.2", None)?;
    lab.host.ip("addr add 10.0.0.1/24 dev tap1")?;
    vm.inside.ip("route add default via 10.0.0.1")?;
    lab.node.ip("route add 10.0.0.0/24 via 192.168.50.1")?;
    lab.host.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    let to = format!("{NODE}:{}", node(&lab)?);
    Ok(Measured { lab, vm, to, seen: Seen::default() })
}

fn rows_of(vm: &Vm, grants: usize, node: &str) -> Vec<GrantRow> {
    let masked =
        |number: usize| format!("169.254.77.{}:{}", 1 + number % 250, 18_515 + number / 250);
    (0..grants).map(|number| vm.row("i1", 1, &masked(number), node)).collect()
}

fn ruled(folder: &Path, grants: usize) -> Result<(Measured, f64), crate::host::Failure> {
    let lost = |source| crate::host::Failure::Io { what: "the lab".to_owned(), source };
    let lab = Lab::new().map_err(lost)?;
    let vm = lab.vm(1, "10.0.0.2", None).map_err(lost)?;
    let port = node(&lab).map_err(lost)?;
    let rows = rows_of(&vm, grants, &format!("{NODE}:{port}"));
    let state = folder.join(format!("{grants}.json"));
    let put = || {
        let mut agent = Agent::open(Settings { state, uplinks: vec![UPLINK.to_owned()] })?;
        agent.put("i1", &rows)?;
        Ok(agent.totals().last.as_secs_f64() * 1e3)
    };
    let took_ms = lab.host.within(put).map_err(lost)??;
    let to = MASKED.to_owned();
    Ok((Measured { lab, vm, to, seen: Seen::default() }, took_ms))
}

/// A host that translates addresses for one connection and asks nothing: what tracking and
/// translation cost alone.
fn translated() -> io::Result<Measured> {
    let mut path = plain()?;
    let (near, far) = ("10.0.0.1:18515", path.to.clone());
    let rules = format!(
        "add table ip bench; \
         add chain ip bench in {{ type nat hook prerouting priority -100; }}; \
         add chain ip bench out {{ type nat hook postrouting priority 100; }}; \
         add rule ip bench in ip daddr 10.0.0.1 tcp dport 18515 dnat to {far}; \
         add rule ip bench out oifname {UPLINK} masquerade"
    );
    path.lab.host.run("nft", &[&rules])?;
    path.to = near.to_owned();
    Ok(path)
}

/// A host without rules whose program carries bytes to the node.
fn relayed() -> io::Result<Measured> {
    let mut path = plain()?;
    let listener = path.lab.host.within(|| TcpListener::bind("10.0.0.1:0"))??;
    let near = listener.local_addr()?.to_string();
    let far = path.to.clone();
    let host = path.lab.host.within(|| {
        thread::Builder::new().spawn(move || {
            for stream in listener.incoming().flatten() {
                let far = far.clone();
                thread::spawn(move || relay(&stream, &far));
            }
        })
    })?;
    drop(host?);
    path.to = near;
    Ok(path)
}

fn relay(near: &TcpStream, far: &str) -> io::Result<()> {
    let far = TcpStream::connect(far)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (mut from, mut to) = (near.try_clone()?, far.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    io::copy(&mut &far, &mut &*near)?;
    Ok(())
}

/// Both ends of a path on one processor: what a packet costs, and not which core it woke.
fn on_one_processor() {
    let mut set = CpuSet::new();
    set.set(0);
    // Without it the figures spread more.
    let _ = sched_setaffinity(None, &set);
}

impl Measured {
    fn open(&self, kind: u8) -> io::Result<TcpStream> {
        let mut stream = self.vm.inside.within(|| TcpStream::connect(&self.to))??;
        stream.set_nodelay(true)?;
        stream.write_all(&[kind])?;
        Ok(stream)
    }

    fn window(&mut self) -> io::Result<()> {
        let mut stream = self.open(b'e')?;
        let mut block = [0x5a; TRIP_BYTES];
        let mut took = Vec::with_capacity(TRIPS);
        for trip in 0..TRIPS {
            block[0] = trip.to_le_bytes()[0];
            let (sent, begun) = (block, Instant::now());
            stream.write_all(&block)?;
            stream.read_exact(&mut block)?;
            took.push(begun.elapsed().as_secs_f64() * 1e6);
            if block != sent {
                return Err(io::Error::other("an answer is not what was sent"));
            }
        }
        self.seen.trips_us.push(median(&mut took));
        let stream = self.open(b's')?;
        let (block, mut begun) = (vec![0_u8; 256 << 10], Instant::now());
        while begun.elapsed() < WARM {
            (&stream).write_all(&block)?;
        }
        begun = Instant::now();
        let mut sent = 0.0;
        while begun.elapsed() < STREAM {
            // A block has a quarter of a MiB.
            (&stream).write_all(&block)?;
            sent += 2_097_152.0;
        }
        self.seen.gbit_s.push(sent / begun.elapsed().as_secs_f64() / 1e9);
        Ok(())
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures; takes about three minutes, and more where others work. With a folder of programs, also
/// what the end of a grant takes for one of them.
///
/// # Errors
/// If the system does not permit it, or an answer is wrong.
pub fn run(folder: &Path, programs: Option<&Path>) -> anyhow::Result<Figures> {
    let mut found = paths(folder)?;
    if let Some(programs) = programs {
        add_session(&mut found, folder, programs)?;
    }
    Ok(found)
}

/// Ends of a grant that are timed.
const CUTS: usize = 5;

fn add_session(found: &mut Figures, folder: &Path, programs: &Path) -> anyhow::Result<()> {
    let cuts: Vec<Cut> = (0..CUTS)
        .map(|number| session::cut(&folder.join(format!("session-{number}")), programs))
        .collect::<Result<_, _>>()?;
    let mut add = |name: &str, part: fn(&Cut) -> f64| {
        let mut values: Vec<f64> = cuts.iter().map(part).collect();
        found.figures.insert(name.to_owned(), median(&mut values));
        let longest = values.last().copied().unwrap_or(f64::NAN);
        found.figures.insert(format!("{name}_max"), longest);
    };
    add("session_withdrawn_ms", |cut| cut.withdrawn_ms);
    add("session_cut_ms", |cut| cut.session_ms);
    add("session_program_told_ms", |cut| cut.program_ms);
    found.window += &format!("; {CUTS} real sessions that a withdrawal ended");
    Ok(())
}

fn paths(folder: &Path) -> anyhow::Result<Figures> {
    let before = Processors::now();
    on_one_processor();
    let (mut one, put) = ruled(folder, 1)?;
    let (many, put_many) = ruled(folder, MANY)?;
    let put_beside_many = put_beside(folder, &many)?;
    let stranger = one.lab.vm(2, "10.0.0.3", None)?;
    let refused = stranger.inside.within(|| {
        MASKED.parse().is_ok_and(|to| TcpStream::connect_timeout(&to, REFUSED_AFTER).is_err())
    })?;
    anyhow::ensure!(refused, "a VM without a grant was let through");
    drop(stranger);
    let cut = cut(folder, &mut one)?;
    let (one, _) = ruled(&folder.join("again"), 1)?;
    let mut paths = [plain()?, one, many, relayed()?, translated()?];
    for window in 0..WINDOWS {
        for path in 0..paths.len() {
            // Each is the first one as often as another.
            let turn = (window + path) % paths.len();
            paths[turn].window()?;
        }
    }
    let changes = Changes { put, put_beside_many, put_many, cut };
    let found = document(&paths.map(|path| path.seen), &changes);
    Ok(Figures { stolen: Some(Processors::now().stolen_since(before)), ..found })
}

/// Of a path without rules, one with a grant, with many, of a relay and of a plain translation.
fn document(paths: &[Seen; 5], changes: &Changes) -> Figures {
    let both = |values: &[f64]| (spread(values), median(&mut values.to_vec()));
    let losses = paths.each_ref().map(|path| losses(path, &paths[0]));
    let trips = paths.each_ref().map(|path| both(&path.trips_us));
    let rates = paths.each_ref().map(|path| both(&path.gbit_s));
    let [plain_us, one_us, many_us, relay_us, nat_us] = trips.map(|(_, median)| median);
    let [_, one_loss, many_loss, relay_loss, nat_loss] = losses;
    let named = |figures: &[(&str, f64)]| -> BTreeMap<String, f64> {
        figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let figures = named(&[
        ("endpoint_rtt_add_us", one_us - plain_us),
        ("endpoint_rtt_add_10k_us", many_us - plain_us),
        ("endpoint_throughput_loss_pct", one_loss.middle),
        ("endpoint_throughput_loss_10k_pct", many_loss.middle),
        ("put_ms", changes.put),
        ("put_10k_ms", changes.put_beside_many),
        ("resync_10k_ms", changes.put_many),
        ("cut_ms", changes.cut),
    ]);
    let controls = named(&[
        ("plain_rtt_us", plain_us),
        ("plain_rtt_spread_us", trips[0].0),
        ("plain_gbit_s", rates[0].1),
        ("plain_gbit_s_spread", rates[0].0),
        ("nat_rtt_add_us", nat_us - plain_us),
        ("endpoint_throughput_loss_pct_error", one_loss.error),
        ("endpoint_throughput_loss_pct_lower_quartile", one_loss.lower),
        ("endpoint_throughput_loss_pct_upper_quartile", one_loss.upper),
        ("nat_throughput_loss_pct", nat_loss.middle),
        ("nat_throughput_loss_pct_lower_quartile", nat_loss.lower),
        ("nat_throughput_loss_pct_upper_quartile", nat_loss.upper),
        ("relay_rtt_add_us", relay_us - plain_us),
        ("relay_throughput_loss_pct", relay_loss.middle),
        // Nothing is measured where one was let through.
        ("ungranted_refused", 1.0),
    ]);
    let window = format!(
        "{WINDOWS} windows of {TRIPS} round trips of {TRIP_BYTES} bytes and {} ms of a stream, the \
         paths in turns, losses turn by turn, one processor; median of {PUTS} grants beside {MANY}",
        STREAM.as_millis()
    );
    Figures { controls, ..Figures::new("endpoint", "real".to_owned(), window, figures) }
}

/// What part of a stream was lost, %, over all turns.
struct Loss {
    lower: f64,
    middle: f64,
    upper: f64,
    /// The middle one's standard error.
    error: f64,
}

/// Each window of a path against the plain one's of the same turn.
fn losses(path: &Seen, plain: &Seen) -> Loss {
    let pairs = path.gbit_s.iter().zip(&plain.gbit_s);
    let mut all: Vec<f64> = pairs.map(|(rate, plain)| (1.0 - rate / plain) * 100.0).collect();
    let middle = median(&mut all);
    let at = |index: usize| all.get(index).copied().unwrap_or(f64::NAN);
    let (lower, upper) = (at(all.len() / 4), at(all.len() * 3 / 4));
    Loss { lower, middle, upper, error: median_error(lower, upper, all.len()) }
}

/// The longest less the shortest.
fn spread(values: &[f64]) -> f64 {
    let longest = values.iter().copied().fold(f64::MIN, f64::max);
    longest - values.iter().copied().fold(f64::MAX, f64::min)
}

/// How long a VM's first grant takes where the host has many, in ms: the whole ruleset is made
/// anew, and the file with all rows is written. Each is withdrawn again.
fn put_beside(folder: &Path, path: &Measured) -> anyhow::Result<f64> {
    let vm = path.lab.vm(2, "10.0.0.3", None)?;
    let rows = [vm.row("i2", 1, MASKED, &format!("{NODE}:7600"))];
    let put = || -> Result<Vec<f64>, crate::host::Failure> {
        let (state, uplinks) = (folder.join(format!("{MANY}.json")), vec![UPLINK.to_owned()]);
        let mut agent = Agent::open(Settings { state, uplinks })?;
        let mut one = || -> Result<f64, crate::host::Failure> {
            let begun = Instant::now();
            agent.put("i2", &rows)?;
            let took_ms = begun.elapsed().as_secs_f64() * 1e3;
            agent.withdraw("i2")?;
            Ok(took_ms)
        };
        (0..PUTS).map(|_| one()).collect()
    };
    Ok(median(&mut path.lab.host.within(put)??))
}

/// How long it takes to withdraw a grant whose connection is open; nothing passes afterwards.
fn cut(folder: &Path, path: &mut Measured) -> anyhow::Result<f64> {
    let mut stream = path.open(b'e')?;
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])?;
    let withdraw = || -> Result<f64, crate::host::Failure> {
        let (state, uplinks) = (folder.join("1.json"), vec![UPLINK.to_owned()]);
        let mut agent = Agent::open(Settings { state, uplinks })?;
        let begun = Instant::now();
        agent.withdraw("i1")?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    let took_ms = path.lab.host.within(withdraw)??;
    stream.set_read_timeout(Some(REFUSED_AFTER))?;
    stream.write_all(b"y")?;
    anyhow::ensure!(stream.read_exact(&mut [0]).is_err(), "an answer came after the withdrawal");
    Ok(took_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_what_is_promised_of_it() {
        let seen = |trip_us: f64, gbit_s: f64| Seen {
            trips_us: vec![trip_us, trip_us + 1.0, trip_us - 1.0],
            gbit_s: vec![gbit_s; 3],
        };
        let paths =
            [seen(14.0, 10.0), seen(17.0, 9.0), seen(18.0, 9.0), seen(30.0, 3.0), seen(16.0, 9.5)];
        let changes = Changes { put: 60.0, put_beside_many: 400.0, put_many: 300.0, cut: 70.0 };
        let found = document(&paths, &changes);
        let figure = |name: &str| found.figure(name).unwrap();
        assert!((figure("endpoint_rtt_add_us") - 3.0).abs() < 1e-9, "{found:?}");
        assert!((figure("endpoint_throughput_loss_pct") - 10.0).abs() < 1e-9, "{found:?}");
        let changes = ["put_ms", "put_10k_ms", "resync_10k_ms", "cut_ms"].map(figure);
        assert_eq!(changes, [60.0, 400.0, 300.0, 70.0]);
        assert!(found.controls["relay_rtt_add_us"] > figure("endpoint_rtt_add_us"));
        assert_eq!(found.controls["endpoint_throughput_loss_pct_error"], 0.0, "all alike");
    }

    #[test]
    fn a_loss_says_by_how_much_it_may_be_off() {
        let seen = |gbit_s: [f64; 8]| Seen { gbit_s: gbit_s.to_vec(), ..Seen::default() };
        let plain = seen([10.0; 8]);
        let noisy = losses(&seen([9.0, 9.1, 8.9, 9.2, 8.8, 9.3, 8.7, 9.0]), &plain);
        let noisier = losses(&seen([9.0, 9.2, 8.8, 9.4, 8.6, 9.6, 8.4, 9.0]), &plain);
        assert!(noisy.error > 0.0 && (noisier.error / noisy.error - 2.0).abs() < 1e-9);
    }
}
