#![forbid(unsafe_code)]
//! `weft-endpoint`: both ends of vGPUs of another host. `weft run --remote`, `weft remote` and the
//! node daemon start it.

use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use weft_api::endpoint::{Answer, Client, Request};
use weft_api::lines;
use weft_endpoint::far::{Daemon, Far, Limits, Settings};
use weft_endpoint::host;
use weft_endpoint::host::agent::{Agent, Settings as HostSettings};
use weft_endpoint::measure::{Figures, Tls};
use weft_endpoint::near::Near;
use weft_endpoint::sandbox;
use weft_endpoint::tls::Identity;
use weft_ring::peer::Process;
use weft_wire::remote::{ALIVE, to_hex};

/// How often whoever is about to end looks whether it may.
const PAUSE: Duration = Duration::from_millis(20);

/// How often a gateway looks whether that of an earlier daemon has ended.
const TURN_PAUSE: Duration = Duration::from_millis(100);

/// Folders of `host` that it makes.
const SOCKET_FOLDER: &str = "/run/weft";
const STATE_FOLDER: &str = "/var/lib/weft";

/// Where `host` answers.
const HOST_SOCKET: &str = "/run/weft/endpoint.sock";

/// A gateway takes a connection within this time, or is not there yet.
const REACH_LIMIT: Duration = Duration::from_secs(2);

/// The longest file with grants: one for each of 4,096 cGPUs fits many times.
const GRANTS_BYTES_MAX: u64 = 8 << 20;

/// How often to look for one that is not there yet.
const REACH_PAUSE: Duration = Duration::from_millis(200);

/// Relays vGPUs of another host over TLS.
#[derive(Debug, Parser)]
#[command(name = "weft-endpoint", version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Serve this user's programs with vGPUs of another host.
    Connect(ConnectOptions),
    /// The same in the background, for as long as a process lives.
    Launch {
        #[command(flatten)]
        options: ConnectOptions,
        /// The process.
        #[arg(long)]
        owner: u32,
    },
    /// Let endpoints in; started by the node daemon.
    Serve(ServeOptions),
    /// Lead VMs of this compute host to the GPU nodes that they were granted; for weft-control.
    Host(HostOptions),
    /// Print what `host` counts, as Prometheus text.
    Metrics {
        /// Its socket.
        #[arg(long, default_value = HOST_SOCKET)]
        socket: PathBuf,
    },
    /// Measure what leading them costs, between network namespaces of this host.
    BenchHost {
        /// Time also how a real session ends: folder with the compiled program `relay`, of
        /// tests/programs.
        #[arg(long, value_name = "FOLDER")]
        programs: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what the network and the TLS library do alone here, as JSON; for benchmarks.
    #[command(hide = true)]
    Measure {
        /// TCP alone, with fewer bytes: where processors are interpreted.
        #[arg(long)]
        plain: bool,
    },
    /// Pass a gateway's connections on late, until standard input ends; says where as JSON; for
    /// benchmarks.
    #[command(hide = true)]
    Delay {
        /// The gateway.
        #[arg(long, value_name = "HOST:PORT")]
        remote: String,
        /// How much later in each direction, in ms.
        #[arg(long)]
        ms: u64,
    },
}

#[derive(Debug, Args)]
struct ConnectOptions {
    /// Gateway of the other host.
    #[arg(long, value_name = "HOST:PORT")]
    remote: String,
    /// File with the grants that `weft token` printed, one a line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Socket for the programs (WEFT_SOCKET).
    #[arg(long)]
    socket: PathBuf,
    /// End with this process, and remove the socket.
    #[arg(long)]
    until: Option<u32>,
    /// Fail, and say why, if a program that names this vGPU would not be let in now; an empty name
    /// is the first grant's. May be repeated.
    #[arg(long, value_name = "VGPU")]
    ask: Vec<String>,
    /// Compress what is copied, where it shrinks: for networks that are slower than the processors.
    /// How much that is shows in the lengths of what is sent.
    #[arg(long)]
    compress: bool,
    /// Be ready only when the gateway takes connections, however long that takes: in a VM, whose
    /// host leads there only later.
    #[arg(long)]
    await_remote: bool,
}

#[derive(Debug, Args)]
struct ServeOptions {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// The node's tenant socket.
    #[arg(long)]
    socket: PathBuf,
    /// File of the gateway's key; made if it is not there.
    #[arg(long)]
    key: PathBuf,
    /// How long a session outlives its connection, in ms.
    #[arg(long)]
    grace_ms: u32,
    /// Sessions at once.
    #[arg(long)]
    sessions: usize,
    /// Connections at once that have not said what they want.
    #[arg(long)]
    pending: usize,
    /// How long they have for it, in ms.
    #[arg(long)]
    patience_ms: u32,
    /// User and group to become.
    #[arg(long)]
    user: Option<u32>,
}

#[derive(Debug, Args)]
struct HostOptions {
    /// Socket for the control plane; only this user and root may use it.
    #[arg(long, default_value = HOST_SOCKET)]
    socket: PathBuf,
    /// File of the rows, which outlive this process.
    #[arg(long, default_value = "/var/lib/weft/endpoint.json")]
    state: PathBuf,
    /// Interface to the GPU nodes over which nothing else is forwarded; may be repeated.
    #[arg(long, value_name = "INTERFACE", value_parser = interface)]
    uplink: Vec<String>,
}

/// Linux allows more, but no name of an interface has it.
fn interface(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    let is_one = (1..=15).contains(&text.len()) && text.chars().all(is_plain);
    let rule = || format!("`{text}` is no interface: its name has 1 to 15 letters, digits, -_.:@");
    is_one.then(|| text.to_owned()).ok_or_else(rule)
}

fn main() -> ExitCode {
    let done = match Arguments::parse().what {
        What::Connect(options) => connect(&options),
        What::Launch { options, owner } => match launch(&options, owner) {
            Ok(true) => Ok(()),
            // The endpoint has said why.
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        What::Serve(options) => serve(&options),
        What::Host(options) => host(options),
        What::Metrics { socket } => metrics(&socket),
        What::BenchHost { programs, json } => bench_host(programs.as_deref(), json),
        What::Measure { plain } => measure(plain),
        What::Delay { remote, ms } => delay(remote, Duration::from_millis(ms)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "the program's only log")]
fn tell(line: &str) {
    eprintln!("{line}");
}

/// One line to whoever started this program.
fn answer(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn connect(options: &ConnectOptions) -> Result<()> {
    let text = read_grants(&options.token_file)?;
    let grants: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let near = Near::new(&options.remote, &grants)?;
    let near = Arc::new(near.compressing(options.compress));
    near.ask(&options.ask)?;
    if let Some(owner) = options.until {
        end_with(owner, options.socket.clone(), Arc::clone(&near))?;
    }
    if options.await_remote {
        await_remote(&options.remote);
    }
    near.serve(&options.socket, || {
        // Whoever waits for it has gone if it cannot be told.
        let _ = answer("ready");
    })
}

/// The text of a file with grants, or of standard input.
fn read_grants(path: &Path) -> Result<String> {
    let mut text = String::new();
    let mut read = |from: &mut dyn Read| from.take(GRANTS_BYTES_MAX + 1).read_to_string(&mut text);
    let read = match path == Path::new("-") {
        true => read(&mut std::io::stdin()),
        false => fs::File::open(path).and_then(|mut file| read(&mut file)),
    };
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > GRANTS_BYTES_MAX {
        let most = GRANTS_BYTES_MAX >> 20;
        bail!("--token-file {}: files with grants have up to {most} MiB", path.display());
    }
    Ok(text)
}

/// Returns when a connection is taken there.
fn await_remote(remote: &str) {
    let reach = |address: SocketAddr| TcpStream::connect_timeout(&address, REACH_LIMIT).is_ok();
    let is_there = || remote.to_socket_addrs().is_ok_and(|mut all| all.any(reach));
    while !is_there() {
        std::thread::sleep(REACH_PAUSE);
    }
}

/// Ends this process when another one has, and the programs that it started.
#[expect(clippy::exit, reason = "its programs are over, and so is what their threads do")]
fn end_with(owner: u32, socket: PathBuf, near: Arc<Near>) -> Result<()> {
    let owner = Process::open(owner).context("the process to end with is gone")?;
    std::thread::Builder::new().name("owner".into()).spawn(move || {
        while !owner.wait_exit(Duration::from_secs(3600)) {}
        // The folder may be gone already.
        let _ = fs::remove_file(&socket);
        if let Some(folder) = socket.parent() {
            let _ = fs::remove_dir(folder);
        }
        while near.programs() > 0 {
            std::thread::sleep(PAUSE);
        }
        std::process::exit(0);
    })?;
    Ok(())
}

/// Starts an endpoint that is not this process's caller's child, and waits until it serves; whether
/// it does.
fn launch(options: &ConnectOptions, owner: u32) -> Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("connect").arg("--remote").arg(&options.remote);
    command.arg("--token-file").arg(&options.token_file).arg("--socket").arg(&options.socket);
    command.arg("--until").arg(owner.to_string());
    command.args(options.ask.iter().map(|vgpu| format!("--ask={vgpu}")));
    command.args(options.compress.then_some("--compress"));
    // Signals of the caller's terminal are not for it.
    command.process_group(0);
    command.stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start an endpoint")?;
    if lines::first(child.stdout.take().context("a pipe")?)? == "ready" {
        return Ok(true);
    }
    let status = child.wait()?;
    if status.code().is_none() {
        bail!("the endpoint was ended before it served ({status})");
    }
    Ok(false)
}

fn host(options: HostOptions) -> Result<()> {
    for path in [&options.socket, &options.state] {
        ensure_folder(path)?;
    }
    // One that is plugged in later is not known by another name then.
    let there = host::system::observe().map(|there| there.links).unwrap_or_default();
    let absent = |uplink: &&String| !there.is_empty() && !there.contains_key(*uplink);
    for uplink in options.uplink.iter().filter(absent) {
        tell(&format!("endpoint: --uplink: there is no interface {uplink} on this host"));
    }
    // One process has a host's rules.
    let _network = lock_network()?;
    let _state = host::lock::lock(&options.state.with_extension("lock"))
        .with_context(|| format!("another endpoint has {}", options.state.display()))?;
    let mut agent = Agent::open(HostSettings { state: options.state, uplinks: options.uplink })?;
    // What was in force before goes on whether everything can be put in force or not.
    if let Err(failure) = agent.repair() {
        tell(&format!("endpoint: the rules may not be in force: {failure}"));
    }
    let listener = host::serve::listen(&options.socket)?;
    answer("ready")?;
    Ok(host::serve::serve(&listener, agent)?)
}

fn metrics(socket: &Path) -> Result<()> {
    let said = Client::connect(socket)?.call(Request::Metrics)?;
    let Answer::Metrics { text } = said else {
        bail!("the endpoint's answer is not understood: {said:?}")
    };
    answer(text.trim_end())
}

/// Makes the folders that `host` has by default, and refuses others that are not there: they may be
/// misspelt.
fn ensure_folder(path: &Path) -> Result<()> {
    let folder = path.parent().context("a path in a folder")?;
    if [SOCKET_FOLDER, STATE_FOLDER].iter().any(|own| folder == Path::new(own)) {
        return fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()));
    }
    ensure!(
        folder.is_dir() || folder == Path::new(""),
        "there is no folder {} for {}: make it, or name another one",
        folder.display(),
        path.display()
    );
    Ok(())
}

/// Held for as long as this process has the rules of its network namespace, whose table has one
/// name: a second one with a state of its own would take away what the first one put there.
fn lock_network() -> Result<fs::File> {
    let folder = Path::new(SOCKET_FOLDER);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let network = fs::metadata("/proc/self/ns/net")?.ino();
    host::lock::of_network(folder, network)
        .context("another `weft-endpoint host` has the rules of this host")
}

fn bench_host(programs: Option<&Path>, json: bool) -> Result<()> {
    // Not after a minute of windows.
    if let Some(relay) = programs.map(|folder| folder.join("relay")).filter(|path| !path.is_file())
    {
        bail!("--programs: {} is missing: compile tests/programs there", relay.display());
    }
    let folder = std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()));
    fs::create_dir_all(folder.join("again"))?;
    let found = host::bench::run(&folder, programs);
    // A folder that stays does not void the figures.
    let _ = fs::remove_dir_all(&folder);
    answer(&found?.text(json)?)
}

fn measure(plain: bool) -> Result<()> {
    let Figures { echo_us_p50, tcp_gb_per_s, tls } = weft_endpoint::measure::run(plain)?;
    let tls = tls.map_or_else(String::new, |Tls { gb_per_s, processors, memory_gb_per_s }| {
        format!(
            ", \"tls_gb_per_s\": {gb_per_s}, \"tls_processors\": {processors}, \
             \"tls_memory_gb_per_s\": {memory_gb_per_s}"
        )
    });
    answer(&format!(
        "{{\"tcp_echo_us_p50\": {echo_us_p50}, \"tcp_gb_per_s\": {tcp_gb_per_s}{tls}}}"
    ))
}

fn delay(remote: String, by: Duration) -> Result<()> {
    let address = weft_endpoint::delay::to(remote, by).context("cannot listen")?;
    answer(&format!("{{\"listen\": \"{address}\"}}"))?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn serve(options: &ServeOptions) -> Result<()> {
    let identity = Identity::at(&options.key)?;
    answer(&format!("key {}", to_hex(&identity.digest())))?;
    let (lives, ended) = channel();
    let asks = std::io::stdin().as_fd().try_clone_to_owned()?;
    let answers = std::io::stdout().as_fd().try_clone_to_owned()?;
    let mut daemon = Daemon::new(asks, answers, lives);
    answer(ALIVE)?;
    // The gateway of an earlier daemon serves on as long as it has sessions.
    let lock = fs::File::open(&options.key)?;
    while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if error != Errno::WOULDBLOCK {
            return Err(error.into());
        }
        if !daemon.answer_within(TURN_PAUSE)? {
            return Ok(());
        }
    }
    let (listener, address) = Far::listen(options.listen)?;
    if let Some(user) = options.user {
        become_user(user).context("cannot give up root's rights")?;
    }
    // The daemon listens before it starts its gateway.
    Far::ensure_allowed(&options.socket)?;
    if !sandbox::restrict().context("cannot restrict the gateway")? {
        tell("this kernel does not restrict the gateway's files and connections (landlock)");
    }
    answer(&format!("listening {address}"))?;
    let far = Far::new(Settings {
        socket: options.socket.clone(),
        grace: Duration::from_millis(options.grace_ms.into()),
        sessions: options.sessions,
        pending: options.pending,
        patience: Duration::from_millis(options.patience_ms.into()),
        limits: Limits::default(),
    });
    end_without_node(&far, ended)?;
    far.serve(&listener, &identity, daemon)
}

/// Gives up every right but that of a user of its own. The process has one thread yet.
fn become_user(user: u32) -> Result<()> {
    use rustix::thread::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Ends this process when the daemon has ended and no session is open: a daemon that starts again
/// finds the sessions that it left, and then starts a gateway that waits for this one's end.
#[expect(clippy::exit, reason = "nothing is left to be done")]
fn end_without_node(far: &Arc<Far>, ended: Receiver<()>) -> Result<()> {
    let far = Arc::clone(far);
    std::thread::Builder::new().name("node".into()).spawn(move || {
        // Nothing is ever sent: the other end goes with the daemon.
        let _ = ended.recv();
        while far.open_sessions() > 0 {
            std::thread::sleep(PAUSE);
        }
        std::process::exit(0);
    })?;
    Ok(())
}
