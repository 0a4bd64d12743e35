//! Benchmarks of programs that reach their vGPU another way: `--via tls`.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::Value;
use tempfile::TempDir;
use weft_api::lines;
use weft_node::admin::{Answer, GrantRequest, Request};

use super::document::Document;
use super::tenant::{Host, Tenant};
use super::{Context, median};
use crate::daemon::OwnDaemon;
use crate::remote;

/// Sizes of copies that are compared, in KiB.
const SIZES: [&str; 2] = ["1024", "262144"];

/// The gateway listens within this time.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// How a program reaches its vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// Through an endpoint and a gateway, over TLS on this host's loopback.
    Tls,
    /// In a virtual machine that QEMU interprets, booted from --guest.
    Vm,
}

impl Via {
    /// As a document says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Vm => "vm",
        }
    }
}

/// A node with a gateway, and an endpoint of it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(super) daemon: OwnDaemon,
    pub(super) folder: TempDir,
    endpoint: Child,
    /// What makes the way to the gateway longer.
    _late: Option<Tenant>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        // One that has ended already is reaped.
        let _ = self.endpoint.kill();
        let _ = self.endpoint.wait();
    }
}

impl Remote {
    /// On this host; with a model (TOML), on the paced device with it.
    pub(super) fn start(model: Option<&str>) -> Result<Self> {
        Self::start_through(model, |address| Ok((address, None)))
    }

    /// The same, with every byte between the two so much later.
    pub(super) fn start_late(ms: u64) -> Result<Self> {
        Self::start_through(None, |address| {
            let mut command = remote::endpoint()?;
            command.args(["delay", "--remote", &address, "--ms", &ms.to_string()]);
            // It ends with its input, which is a pipe of this process.
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let mut late = Tenant::new("delay", child);
            let line = late.line()?;
            let listen = line["listen"].as_str().context("the longer way does not listen")?;
            Ok((listen.to_owned(), Some(late)))
        })
    }

    /// With a way to the gateway's address that `way` finds.
    fn start_through(
        model: Option<&str>,
        way: impl FnOnce(String) -> Result<(String, Option<Tenant>)>,
    ) -> Result<Self> {
        let settings =
            [("scheduling.share", "vgpu"), ("remote.listen", "127.0.0.1:0"), ("remote.user", "0")];
        let daemon = OwnDaemon::start(&settings, model)?;
        let (grant, address) = grant(&daemon)?;
        let (address, late) = way(address)?;
        let folder = tempfile::Builder::new().prefix("weft-bench-").tempdir()?;
        let mut command = remote::endpoint()?;
        command.args(["connect", "--remote", &address, "--token-file", "-", "--socket"]);
        command.arg(folder.path().join("tenant.sock"));
        command.arg("--until").arg(std::process::id().to_string());
        let mut endpoint = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        endpoint.stdin.take().context("a pipe")?.write_all(grant.as_bytes())?;
        if lines::first(endpoint.stdout.take().context("a pipe")?)? != "ready" {
            bail!("the endpoint did not start");
        }
        Ok(Self { daemon, folder, endpoint, _late: late })
    }
}

fn grant(daemon: &OwnDaemon) -> Result<(String, String)> {
    let deadline = Instant::now() + LISTEN_LIMIT;
    let name = "remote".to_owned();
    let request = Request::Grant(GrantRequest {
        name,
        weight: None,
        memory_bytes: None,
        valid_s: 3600,
        uses: 1,
    });
    loop {
        let answer = daemon.sockets().connect()?.call(&request)?;
        let Answer::Grant(report) = answer else { bail!("the node gives no grants") };
        if let Some(address) = report.listen {
            return Ok((report.grant, address));
        }
        if Instant::now() > deadline {
            bail!("the gateway does not listen; see the node's log");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Requests of the transport of four system calls each.
pub(super) const TRAPS: [&str; 2] = ["--calls", "50000"];

/// What the network and the TLS library do alone, in turn with what they are beside.
#[derive(Debug, Default)]
pub(super) struct Alone {
    tcp_echo_us: Vec<f64>,
    tcp_gb_per_s: Vec<f64>,
    pub(super) tls_gb_per_s: Vec<f64>,
    tls_processors: Vec<f64>,
    tls_memory_gb_per_s: Vec<f64>,
}

impl Alone {
    /// Measures once more.
    pub(super) fn measure(&mut self) -> Result<()> {
        let found = baselines()?;
        self.tcp_echo_us.push(number(&found, "tcp_echo_us_p50")?);
        self.tcp_gb_per_s.push(number(&found, "tcp_gb_per_s")?);
        self.tls_gb_per_s.push(number(&found, "tls_gb_per_s")?);
        self.tls_processors.push(number(&found, "tls_processors")?);
        self.tls_memory_gb_per_s.push(number(&found, "tls_memory_gb_per_s")?);
        Ok(())
    }

    /// The median of the echoes.
    pub(super) fn echo_us(&self) -> f64 {
        median(&self.tcp_echo_us)
    }

    /// Puts the medians beside what a document has.
    pub(super) fn tell(&self, document: &mut Document) {
        document.baseline("tcp_echo_us_p50", self.echo_us());
        document.baseline("tcp_GBps", median(&self.tcp_gb_per_s));
        document.baseline("tls_GBps", median(&self.tls_gb_per_s));
        document.baseline("tls_processors", median(&self.tls_processors));
        document.baseline("tls_memory_GBps", median(&self.tls_memory_gb_per_s));
    }
}

fn baselines() -> Result<Value> {
    let output = Command::output(remote::endpoint()?.arg("measure"))?;
    if !output.status.success() {
        bail!("the baselines failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("the baselines printed no JSON")
}

pub(super) fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("{name} is missing"))
}

/// `bench call --via tls`: beside shared memory, a plain TCP echo, and requests of four system
/// calls each within this host.
pub(super) fn call(context: &Context, runs: usize) -> Result<Document> {
    let window = format!("{runs} runs of 50,000 synchronous calls and 64,000 launches; medians");
    let mut document = Document::new("call", "real", &window);
    let names = ["sync_us_p50", "sync_us_p99", "submit_us_p50", "submit_us_p99"];
    let remote = Host::Remote(Remote::start(None)?);
    let direct = Host::direct(false)?;
    let (mut far, mut near, mut traps) = (Vec::new(), Vec::new(), Vec::new());
    let mut plain = Alone::default();
    Host::on_node(context, false, &[], |host| {
        for _ in 0..runs {
            far.push(context.single(&remote, "call")?);
            plain.measure()?;
            near.push(context.single(host, "call")?);
            traps.push(context.trapping(&direct, &TRAPS)?);
        }
        Ok(())
    })?;
    let of = |values: &[Value], name: &str| -> Result<Vec<f64>> {
        values.iter().map(|value| number(value, name)).collect()
    };
    for name in names {
        let values = of(&far, name)?;
        document.figure(name, median(&values));
        document.figure(format!("{name}_min"), values.iter().copied().fold(f64::MAX, f64::min));
        document.figure(format!("{name}_max"), values.iter().copied().fold(0.0, f64::max));
        document.baseline(format!("shared_memory_{name}"), median(&of(&near, name)?));
    }
    let calls = of(&far, names[0])?;
    let over: Vec<f64> =
        calls.iter().zip(&plain.tcp_echo_us).map(|(call, echo)| call / echo).collect();
    document.figure("over_tcp_echo", median(&over));
    plain.tell(&mut document);
    document.baseline("trap_sync_us_p50", median(&of(&traps, "trap_sync_us_p50")?));
    Ok(document)
}

/// `bench copy --via tls`: beside what the same TLS library and TCP move alone, copies through
/// shared memory, and copies within this host whose bytes travel through a socket.
pub(super) fn copy(context: &Context, runs: usize) -> Result<Document> {
    let window = format!("{runs} runs, each the median of 7 copies per size, 4 KiB to 256 MiB");
    let mut document = Document::new("copy", "real", &window);
    let remote = Host::Remote(Remote::start(None)?);
    let direct = Host::direct(false)?;
    let (mut reports, mut near) = (Vec::new(), Vec::new());
    let (mut traps, mut plain) = (Traps::default(), Alone::default());
    Host::on_node(context, false, &[], |host| {
        for _ in 0..runs {
            reports.push(context.single(&remote, "copy")?);
            traps.measure(context, &direct)?;
            plain.measure()?;
            near.push(context.single(host, "copy")?);
        }
        Ok(())
    })?;
    for kind in ["pageable", "pinned"] {
        for (way, kib) in ["in", "out"].into_iter().flat_map(|way| SIZES.map(|kib| (way, kib))) {
            let name = format!("{kind}_{way}_GBps_{kib}K");
            let of = |reports: &[Value]| -> Result<Vec<f64>> {
                reports.iter().map(|report| number(report, &name)).collect()
            };
            let (values, shared) = (of(&reports)?, median(&of(&near)?));
            let alone = &plain.tls_gb_per_s;
            let over: Vec<f64> =
                values.iter().zip(alone).map(|(rate, alone)| rate / alone).collect();
            document.figure(format!("{kind}_{way}_over_tls_{kib}K"), median(&over));
            document.baseline(format!("shared_memory_{name}"), shared);
            document.figure(name, median(&values));
        }
        // The slower way of the largest size.
        let ways = ["in", "out"].map(|way| format!("{kind}_{way}_over_memcpy_262144K"));
        let slower = |report: &Value| -> Result<f64> {
            Ok(number(report, &ways[0])?.min(number(report, &ways[1])?))
        };
        let over: Vec<f64> = reports.iter().map(slower).collect::<Result<_>>()?;
        document.figure(format!("{kind}_over_memcpy"), median(&over));
    }
    plain.tell(&mut document);
    traps.tell(&mut document);
    Ok(document)
}

/// Copies within this host whose bytes travel through a socket, in turn with what they are beside.
#[derive(Debug, Default)]
pub(super) struct Traps([Vec<f64>; SIZES.len()]);

impl Traps {
    /// Copies each size once more.
    pub(super) fn measure(&mut self, context: &Context, direct: &Host) -> Result<()> {
        for (kib, rates) in SIZES.iter().zip(&mut self.0) {
            let report = context.trapping(direct, &["--copy", kib])?;
            rates.push(number(&report, &format!("trap_in_GBps_{kib}K"))?);
        }
        Ok(())
    }

    /// Puts the medians beside what a document has.
    pub(super) fn tell(&self, document: &mut Document) {
        for (kib, rates) in SIZES.iter().zip(&self.0) {
            document.baseline(format!("trap_in_GBps_{kib}K"), median(rates));
        }
    }
}
