//! Starting the programs that benchmarks measure.

use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;
use weft_device::{DevicePage, DeviceTotals};
use weft_node::admin::{DeviceReport, Stats};

use super::Context;
use super::via::Remote;
use super::void::{RUNS_MAX, Voided, until_it_counts};
use crate::daemon::OwnDaemon;
use crate::demo::MODEL;
use crate::output::note;
use crate::programs;

/// Time for all programs of a run to attach before they begin together.
pub(super) const LEAD: Duration = Duration::from_millis(1500);

/// The same on a genuine GPU, whose driver makes one context after the other, 0.2 to 0.5 s each.
const GENUINE_LEAD: Duration = Duration::from_secs(3);

/// The longest line of a program.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Where a program runs.
#[derive(Debug)]
pub(crate) enum Host {
    /// In the program's own process, without daemon and gate: the native baseline.
    Direct {
        scratch: TempDir,
        /// `soft`, or `soft:paced:FILE`.
        device: String,
        /// Where a paced device keeps its totals.
        page: Option<DirectPage>,
    },
    /// On a genuine GPU's own driver: the native baseline of a node on it.
    Driver { scratch: TempDir },
    /// On a daemon of this run.
    Node(OwnDaemon),
    /// On a daemon of this run, through an endpoint.
    Remote(Remote),
}

impl Host {
    /// The native baseline on the paced device, or on the real clock: of the software device, or of
    /// a GPU if `WEFT_DEVICE` names one.
    pub(crate) fn direct(paced: bool) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("weft-bench-").tempdir()?;
        if !paced && is_genuine() {
            return Ok(Self::Driver { scratch });
        }
        if !paced {
            return Ok(Self::Direct { scratch, device: "soft".to_owned(), page: None });
        }
        let model = scratch.path().join("model.toml");
        std::fs::write(&model, MODEL)?;
        let device = format!("soft:paced:{}", model.display());
        let page = Some(DirectPage::create(scratch.path())?);
        Ok(Self::Direct { scratch, device, page })
    }

    /// Does something on this native baseline alone. It counts only if its paced device kept to its
    /// model, as on a daemon: a baseline that is late flatters what stands beside it.
    pub(crate) fn judged<T>(
        &self,
        context: &Context,
        mut run: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let ran = until_it_counts(context, RUNS_MAX, || {
            let before = self.executions()?;
            let result = run()?;
            Ok((result, self.executions()?.since(before)))
        });
        ran.map(|(result, _)| result)
    }

    /// Does something on this native baseline and on what `start` starts, and judges both.
    pub(crate) fn beside<T>(
        &self,
        context: &Context,
        start: impl Fn() -> Result<Self>,
        mut run: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        let ran = until_it_counts(context, RUNS_MAX, || {
            let host = start()?;
            let before = (host.executions()?, self.executions()?);
            let result = run(&host)?;
            let native = self.executions()?.since(before.1);
            Ok((result, host.executions()?.since(before.0).worse(native)))
        });
        ran.map(|(result, _)| result)
    }

    /// Does something on a daemon with these settings. What happened on a paced device counts only
    /// if the device kept to its model ([`Kept`]); else it is done again, on another daemon, a few
    /// times at most.
    pub(crate) fn on_node<T>(
        context: &Context,
        paced: bool,
        settings: &[(&str, &str)],
        run: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        Self::again(context, || Self::node(paced, settings), run)
    }

    /// The same on daemons that `start` starts.
    pub(crate) fn again<T>(
        context: &Context,
        start: impl Fn() -> Result<Self>,
        run: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        Self::up_to(context, RUNS_MAX, start, run)
    }

    /// The same, so many times at most.
    pub(crate) fn up_to<T>(
        context: &Context,
        runs_max: usize,
        start: impl Fn() -> Result<Self>,
        mut run: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        let ran = until_it_counts(context, runs_max, || {
            let host = start()?;
            let before = host.executions()?;
            let result = run(&host)?;
            Ok((result, host.executions()?.since(before)))
        });
        ran.map(|(result, _)| result)
    }

    /// The same after something that is not judged, since no figure is of it: what happens there
    /// happens for the first time, such as the first use of a session's memory. Also how the
    /// device kept to its model from then on.
    pub(crate) fn prepared<P, T>(
        context: &Context,
        start: impl Fn() -> Result<Self>,
        mut prepare: impl FnMut(&Self) -> Result<P>,
        mut run: impl FnMut(&Self, P) -> Result<T>,
    ) -> Result<(T, Kept)> {
        until_it_counts(context, RUNS_MAX, || {
            let host = start()?;
            let prepared = prepare(&host)?;
            let before = host.executions()?;
            let result = run(&host, prepared)?;
            Ok((result, host.executions()?.since(before)))
        })
    }

    /// A daemon with these settings, for [`Self::again`].
    pub(crate) fn node(paced: bool, settings: &[(&str, &str)]) -> Result<Self> {
        Self::node_with(paced.then_some(MODEL), settings)
    }

    /// A daemon with these settings; with a model (TOML), on the paced device with it.
    pub(crate) fn node_with(model: Option<&str>, settings: &[(&str, &str)]) -> Result<Self> {
        let mut all = vec![("scheduling.share", "vgpu")];
        all.extend_from_slice(settings);
        Ok(Self::Node(OwnDaemon::start(&all, model)?))
    }

    /// How the paced device of this daemon has kept to its model so far.
    pub(crate) fn kept(&self) -> Result<Kept> {
        Ok(self.executions()?.since(Executions::default()))
    }

    fn executions(&self) -> Result<Executions> {
        match self {
            Self::Direct { page, .. } => {
                Ok(page.as_ref().map_or_else(Executions::default, DirectPage::executions))
            }
            // A genuine GPU keeps to no model.
            Self::Driver { .. } => Ok(Executions::default()),
            Self::Node(_) | Self::Remote(_) => {
                Ok(Executions::of(&self.daemon()?.sockets().connect()?.stats()?))
            }
        }
    }

    /// The daemon, if this is one.
    pub(crate) fn daemon(&self) -> Result<&OwnDaemon> {
        match self {
            Self::Node(daemon) | Self::Remote(Remote { daemon, .. }) => Ok(daemon),
            Self::Direct { .. } | Self::Driver { .. } => bail!("a direct host has no daemon"),
        }
    }

    fn scratch(&self) -> &Path {
        match self {
            Self::Direct { scratch, .. } | Self::Driver { scratch } => scratch.path(),
            Self::Node(daemon) => daemon.path(),
            Self::Remote(remote) => remote.folder.path(),
        }
    }

    /// Starts a program as the tenant `name`.
    pub(crate) fn start(&self, name: &str, weight: u32, command: Command) -> Result<Tenant> {
        self.start_with_input(name, weight, command, Stdio::null())
    }

    /// The same with this input.
    pub(crate) fn start_with_input(
        &self,
        name: &str,
        weight: u32,
        mut command: Command,
        input: Stdio,
    ) -> Result<Tenant> {
        if !matches!(self, Self::Driver { .. }) {
            programs::use_shim(&mut command, &programs::library_dir(self.scratch())?);
            for variable in ["WEFT_ATTACH", "WEFT_DEVICE", "WEFT_TOKEN", "WEFT_MEMORY"] {
                command.env_remove(variable);
            }
        }
        match self {
            Self::Driver { scratch } => programs::use_driver(&mut command, scratch.path())?,
            Self::Direct { device, page, .. } => {
                command.env("WEFT_ATTACH", "direct").env("WEFT_DEVICE", device);
                if let Some(page) = page {
                    command.env("WEFT_DIRECT_PAGE", &page.file);
                }
            }
            Self::Remote(remote) => {
                command.env("WEFT_SOCKET", remote.folder.path().join("tenant.sock"));
                command.env_remove("WEFT_VGPU");
            }
            Self::Node(daemon) => {
                command.env("WEFT_SOCKET", daemon.tenant_socket());
                command.env("WEFT_VGPU", name).env("WEFT_WEIGHT", weight.to_string());
            }
        }
        let shown = format!("{:?}", command.get_program());
        let child = command
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {shown}"))?;
        Ok(Tenant::new(name, child))
    }
}

/// What the paced devices within programs' processes keep their totals on.
#[derive(Debug)]
pub(crate) struct DirectPage {
    file: PathBuf,
    page: DevicePage,
}

impl DirectPage {
    fn create(folder: &Path) -> Result<Self> {
        let file = folder.join("page");
        let page = DevicePage::create(&file);
        let page = page.with_context(|| format!("cannot make {}", file.display()))?;
        Ok(Self { file, page })
    }

    fn executions(&self) -> Executions {
        let DeviceTotals { executions, overruns, late, .. } = self.page.totals();
        Executions { all: executions, overruns, late, unmanaged: false, paced: true }
    }
}

/// What paced devices have executed so far.
#[derive(Debug, Clone, Copy, Default)]
struct Executions {
    all: u64,
    overruns: u64,
    late: u64,
    unmanaged: bool,
    /// There is such a device.
    paced: bool,
}

impl Executions {
    fn of(stats: &Stats) -> Self {
        let paced = || stats.devices.iter().filter(|device| device.clock == "paced");
        let sum = |of: fn(&DeviceReport) -> u64| paced().map(of).sum();
        Self {
            all: sum(|device| device.executions),
            overruns: sum(|device| device.overruns),
            late: sum(|device| device.late),
            unmanaged: stats.policy == "unmanaged",
            paced: paced().next().is_some(),
        }
    }

    fn since(self, before: Self) -> Kept {
        let all = self.all.saturating_sub(before.all);
        #[expect(clippy::cast_precision_loss, reason = "a part of the executions")]
        let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / all.max(1) as f64;
        let (overruns, late) = (part(self.overruns, before.overruns), part(self.late, before.late));
        Kept { overruns, late, unmanaged: self.unmanaged, paced: self.paced }
    }
}

/// How a paced device kept to its model: a machine that is too busy for it measures itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Part of the executions that took longer than the model says.
    pub(crate) overruns: f64,
    /// Part of the executions that began so late that they could not end in time.
    pub(crate) late: f64,
    /// Nobody manages the device: tenants' workers wait for each other, so being late is usual.
    pub(super) unmanaged: bool,
    /// There is a paced device; else nothing is to be kept to.
    pub(super) paced: bool,
}

impl Kept {
    /// More overruns void a run (design, paced clock).
    const OVERRUNS_MAX: f64 = 0.001;
    /// More late executions void it too. Every one is a gap that shows in the throughput and in
    /// nobody's charge; an idle machine with two processors has up to 0.8 % (kernels of 21 µs).
    const LATE_MAX: f64 = 0.02;

    /// Whether what was measured counts; a quick run does, and says so. What counts is remembered
    /// for the document.
    pub(super) fn judge(self, context: &Context) -> Result<(), Voided> {
        match self.check() {
            Err(why) if context.quick => note(&format!("quick run: {why}")),
            checked => checked?,
        }
        if self.paced {
            // Being late is not judged where nobody manages the device.
            let late = if self.unmanaged { 0.0 } else { self.late };
            context.keep(Self { late, ..self });
        }
        Ok(())
    }

    /// The worse of two runs in either respect.
    pub(super) fn worse(self, other: Self) -> Self {
        let (overruns, late) = (self.overruns.max(other.overruns), self.late.max(other.late));
        Self { overruns, late, paced: self.paced || other.paced, ..self }
    }

    /// Whether it kept to it well enough.
    pub(super) fn check(self) -> Result<(), Voided> {
        for (what, part, most) in [
            ("overran", self.overruns, Self::OVERRUNS_MAX),
            ("began late", self.late, Self::LATE_MAX),
        ] {
            let counts = what == "overran" || !self.unmanaged;
            if counts && part > most {
                let (part, most) = (100.0 * part, 100.0 * most);
                return Err(Voided { what, part, most });
            }
        }
        Ok(())
    }
}

/// Whether `WEFT_DEVICE` makes the benchmark's daemons execute on a genuine GPU.
fn is_genuine() -> bool {
    std::env::var("WEFT_DEVICE").is_ok_and(|device| device.starts_with("cuda"))
}

/// The name of the GPU that `WEFT_DEVICE` names, if it names one.
///
/// # Errors
/// When it is not there: another device's figures are not what was asked for.
pub(super) fn genuine() -> Result<Option<String>> {
    if !is_genuine() {
        return Ok(None);
    }
    let named = std::env::var("WEFT_DEVICE")?;
    let hint =
        "`weft doctor` lists what there is; without WEFT_DEVICE the software GPU is measured";
    let found = weft_device::cuda::devices(None);
    let found = found.with_context(|| format!("WEFT_DEVICE={named} is not to be had; {hint}"))?;
    let number = named.strip_prefix("cuda:").unwrap_or("0");
    let gpu = found.into_iter().find(|gpu| gpu.ordinal.to_string() == number);
    let gpu = gpu.with_context(|| format!("there is no GPU {named}; {hint}"))?;
    Ok(Some(gpu.info.name))
}

/// A program at work, which is killed if nobody waits for its end.
#[derive(Debug)]
pub(crate) struct Tenant {
    name: String,
    /// Until its end is waited for.
    child: Option<Child>,
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended is reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Tenant {
    /// A program whose standard output is a pipe.
    pub(super) fn new(name: &str, child: Child) -> Self {
        Self { name: name.to_owned(), child: Some(child) }
    }

    fn child(&mut self) -> Result<&mut Child> {
        self.child.as_mut().with_context(|| format!("tenant {} was waited for", self.name))
    }

    /// Its process.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Ends it as `kill -9` does, and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result<()> {
        let name = self.name.clone();
        let child = self.child()?;
        child.kill().with_context(|| format!("cannot kill tenant {name}"))?;
        child.wait().with_context(|| format!("cannot wait for tenant {name}"))?;
        Ok(())
    }

    /// Its exit, if it has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child()?.try_wait()?.is_some())
    }

    /// The next JSON line of a program among whose lines there are others, as on a console.
    pub(crate) fn json_line(&mut self) -> Result<Value> {
        loop {
            let line = self.bytes()?;
            if line.is_empty() {
                bail!("tenant {} ended without a word", self.name);
            }
            if let Ok(value) = serde_json::from_slice(&line) {
                return Ok(value);
            }
        }
    }

    /// Its next JSON line.
    pub(crate) fn line(&mut self) -> Result<Value> {
        let line = self.bytes()?;
        serde_json::from_slice(&line).with_context(|| format!("tenant {} said no JSON", self.name))
    }

    /// Writes a line to its standard input, which is a pipe, and closes that.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let mut input = self.child()?.stdin.take().context("a tenant has no input")?;
        writeln!(input, "{line}").with_context(|| format!("tenant {} does not read", self.name))
    }

    /// Its next line, with its end; nothing at the end of all. One that is too long comes in
    /// pieces.
    fn bytes(&mut self) -> Result<Vec<u8>> {
        let output = self.child()?.stdout.as_mut().context("a tenant's output is not read")?;
        let mut line = Vec::new();
        let mut byte = [0];
        // Byte by byte: what comes after the line is for `finish`.
        let goes_on = |line: &[u8]| line.last() != Some(&b'\n') && line.len() < LINE_BYTES_MAX;
        while goes_on(&line) && output.read(&mut byte)? == 1 {
            line.push(byte[0]);
        }
        Ok(line)
    }

    /// All JSON lines that it printed; an error if it failed or did not verify its result.
    pub(crate) fn finish(mut self) -> Result<Vec<Value>> {
        let child = self.child.take().context("a tenant was waited for already")?;
        let output = child.wait_with_output().context("cannot wait for a tenant")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let verified = lines.last().is_some_and(|line| line["verified"] == Value::Bool(true));
        if !output.status.success() || !verified {
            bail!("tenant {} failed ({}) or computed something wrong", self.name, output.status);
        }
        Ok(lines)
    }
}

impl Tenant {
    /// The same as [`Tenant::finish`] for a program that says its verdict in words.
    pub(crate) fn passes(mut self) -> Result<()> {
        let child = self.child.take().context("a tenant was waited for already")?;
        let output = child.wait_with_output().context("cannot wait for a tenant")?;
        let passed = String::from_utf8_lossy(&output.stdout).contains("PASSED");
        if !output.status.success() || !passed {
            bail!("tenant {} failed ({}) or computed something wrong", self.name, output.status);
        }
        Ok(())
    }

    /// The same as [`Tenant::finish`] for a program that has to end within a time.
    ///
    /// # Errors
    /// The same, and when it did not end.
    pub(crate) fn finish_within(mut self, limit: Duration) -> Result<Vec<Value>> {
        let deadline = Instant::now() + limit;
        while !self.has_ended()? {
            if Instant::now() > deadline {
                bail!("tenant {} did not end within {limit:?}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.finish()
    }
}

/// What `share` reports at its end.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ShareReport {
    /// Launches that completed within the time.
    pub(crate) completed: u64,
    /// All launches.
    pub(crate) launches: u64,
    /// The time.
    pub(crate) seconds: f64,
    /// Until the last launch had completed.
    pub(crate) drained_seconds: f64,
    /// Completed launches per window.
    #[serde(skip)]
    pub(crate) windows: Vec<u64>,
}

impl ShareReport {
    /// From the lines that `share` printed.
    pub(crate) fn parse(lines: Vec<Value>) -> Result<Self> {
        let windows = lines.iter().filter_map(|line| line["window"].as_u64()).collect();
        let last = lines.into_iter().last().context("share printed nothing")?;
        Ok(Self { windows, ..serde_json::from_value(last)? })
    }
}

impl Context {
    /// A program of the benchmark folder.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.path(name));
        self.pace.tell(&mut command);
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Runs one program alone and returns its last JSON line.
    pub(crate) fn single(&self, host: &Host, name: &str) -> Result<Value> {
        self.single_with(host, name, &[])
    }

    /// The same with arguments.
    pub(crate) fn single_with(&self, host: &Host, name: &str, arguments: &[&str]) -> Result<Value> {
        let mut command = self.program(name);
        command.args(arguments);
        let lines = host.start(name, 1, command)?.finish()?;
        lines.into_iter().last().context("the program printed nothing")
    }

    /// The transport of four system calls a request, with a device in its process; what it prints.
    pub(crate) fn trapping(&self, direct: &Host, arguments: &[&str]) -> Result<Value> {
        self.single_with(direct, "trap", arguments)
    }

    /// Runs `share` with arguments alone.
    pub(crate) fn share(&self, host: &Host, arguments: &[&str]) -> Result<ShareReport> {
        let mut command = self.program("share");
        command.args(arguments);
        ShareReport::parse(host.start("alone", 1, command)?.finish()?)
    }
}

/// The moment at which programs started from now on should begin, as `share --start` takes it.
pub(crate) fn common_start() -> String {
    start_after(if is_genuine() { GENUINE_LEAD } else { LEAD })
}

/// The moment at which programs begin that have attached already.
pub(crate) fn start_after(lead: Duration) -> String {
    let now = clock_gettime(ClockId::Monotonic);
    #[expect(clippy::cast_precision_loss, reason = "microseconds matter, not more")]
    let seconds = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9 + lead.as_secs_f64();
    format!("{seconds:.6}")
}

/// Modelled nanoseconds of the kernel `step_{us}us`.
pub(crate) fn kernel(us: u64) -> String {
    format!("step_{us}us")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_busy_machine_voids_a_run() {
        let kept = Kept { overruns: 0.001, late: 0.02, unmanaged: false, paced: true };
        kept.check().unwrap();
        let message = Kept { overruns: 0.0011, ..kept }.check().unwrap_err().to_string();
        assert!(message.contains("overran") && message.contains("0.1 %"), "{message}");
        let late = Kept { late: 0.021, ..kept };
        assert!(late.check().unwrap_err().to_string().contains("began late"));
        Kept { unmanaged: true, ..late }.check().unwrap();
    }

    #[test]
    fn a_native_baseline_is_judged_if_its_device_is_paced() {
        let context = Context::new(PathBuf::new(), false);
        let folder = || tempfile::tempdir().unwrap();
        let driver = Host::Driver { scratch: folder() };
        assert_eq!(driver.judged(&context, || Ok(7)).unwrap(), 7);
        let scratch = folder();
        let page = DirectPage::create(scratch.path()).unwrap();
        let file = File::options().write(true).open(&page.file).unwrap();
        let direct = Host::Direct { device: "soft:paced".to_owned(), page: Some(page), scratch };
        // As a device counts that has executed so many, of which so many began late.
        let count = |executions: u64, late: u64| {
            let words = [0, 0, executions, 0, late].map(u64::to_ne_bytes).concat();
            file.write_all_at(&words, 0).unwrap();
        };
        let runs = Cell::new(0);
        let run = || {
            runs.set(runs.get() + 1);
            let (executions, late) = if runs.get() == 1 { (1_000, 30) } else { (2_000, 40) };
            count(executions, late);
            Ok(runs.get())
        };
        assert_eq!(direct.judged(&context, run).unwrap(), 2, "the first one was late");
        assert_eq!(context.repeated.lock().unwrap().len(), 1);
        runs.set(0);
        count(0, 0);
        let start = || Ok(Host::Driver { scratch: folder() });
        assert_eq!(direct.beside(&context, start, |_| run()).unwrap(), 2, "nor what it is beside");
    }

    #[test]
    fn what_counts_is_remembered_and_what_is_void_is_not() {
        let late = Kept { overruns: 0.0, late: 0.5, unmanaged: false, paced: true };
        let kept_of = |quick: bool, kept: Kept| {
            let context = Context::new(PathBuf::new(), quick);
            let counts = kept.judge(&context).is_ok();
            let worst = *context.kept.lock().unwrap();
            (counts, worst.map(|worst| worst.late))
        };
        assert_eq!(kept_of(false, late), (false, None));
        assert_eq!(kept_of(true, late), (true, Some(0.5)));
        assert_eq!(kept_of(false, Kept { unmanaged: true, ..late }), (true, Some(0.0)));
        assert_eq!(kept_of(false, Kept { late: 0.0, paced: false, ..late }), (true, None));
    }
}
