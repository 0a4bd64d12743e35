//! `bench memory`: programs with two and four times the device's memory, beside other ways to have
//! so many; and what translation costs the engine.
//!
//! Each tenant has a vGPU with so much memory that all together have 2 or 4 times the device's. It
//! works on a part of it: all parts fit on the device together (`fits`), or nobody's memory stays
//! (`exceeds`). The program counts its work, and checks all of its memory at the end.

mod clients;
mod efficiency;

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use weft_node::admin::MemoryReport;

use super::document::Document;
use super::tenant::{Host, Tenant, start_after};
use super::{Context, median};

/// Memory of the device, in MiB, and a slot of it.
const DEVICE_MIB: u64 = 256;
const SLOT_MIB: u64 = 16;
const TENANTS: u64 = 4;
/// Memory for each byte of the device.
const TIMES: [u64; 2] = [4, 2];
/// What an entry of a switch is said to take.
const COSTS: [Cost; 3] = [
    Cost { name: "memcpy", entry_ns: 0 },
    // The paper's hardware: 52 to 91 ns.
    Cost { name: "modelled", entry_ns: 71 },
    // A page of 4 KiB out and one in, at 16 GB/s: what a discrete GPU that swaps contents has.
    Cost { name: "contents", entry_ns: 512 },
];
/// Who says which part is in which slot: Weft's own way first, and last the one that writes slots
/// ahead of switches, which only a device can that copies beside its kernels: as the paper's does.
const WAYS: [&str; 5] = ["exact", "whole", "scores", "demand", "pipelined"];
/// At either end of the windows, in seconds: everybody is at work between.
const SURE: f64 = 0.03;
/// What is measured beside the loads, and `turns`, which are two of a load's rows.
const PARTS: [&str; 3] = ["engine", "efficiency", "turns"];
/// Until tenants begin that have their memory, and have read when.
const TOLD: Duration = Duration::from_millis(100);
/// Runs of the engine's kernels on either side, side by side.
const ENGINE_RUNS: usize = 9;
const ENGINE_RUNS_QUICK: usize = 3;

/// How long turns are.
#[derive(Clone, Copy)]
enum Turns {
    /// The usual quantum, whatever switches take.
    Quantum,
    /// The longest quantum that a node takes, for a swap like nvshare's, which has turns of 30 s.
    Second,
    /// As long as switches make them.
    AsNeeded,
}

impl Turns {
    const fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Quantum => &[("scheduling.slack_us", "0")],
            Self::Second => &[("scheduling.slack_us", "0"), ("scheduling.quantum_us", "1000000")],
            Self::AsNeeded => &[],
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Quantum => "turns of a quantum",
            Self::Second => "turns of 1 s",
            Self::AsNeeded => "turns as needed",
        }
    }
}

/// Long turns that are compared, whole-vGPU swap first.
const LONG_WAYS: [(&str, Turns); 3] =
    [("whole", Turns::Second), ("exact", Turns::Second), ("exact", Turns::AsNeeded)];

#[derive(Clone, Copy)]
struct Cost {
    name: &'static str,
    entry_ns: u64,
}

impl Cost {
    /// Whether slots written ahead are beside the other ways.
    fn writes_ahead(self) -> bool {
        self.name == "modelled"
    }

    /// The ways that are compared at this cost.
    fn ways(self) -> &'static [&'static str] {
        if self.writes_ahead() { &WAYS } else { &WAYS[..4] }
    }
}

/// What tenants have and do.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    times: u64,
    /// Memory that each works on, in MiB.
    working_mib: u64,
}

/// How long is looked, after everybody has been at work for some windows; and how often all ways
/// are compared, each time in another order.
#[derive(Clone, Copy)]
struct Windows {
    rounds: usize,
    before: u32,
    count: u32,
    seconds: f64,
}

/// Memory of a tenant and what it works on, in MiB.
#[derive(Clone, Copy)]
struct Size {
    mib: u64,
    working_mib: u64,
}

impl Size {
    /// It works on everything that it has.
    const fn all_worked_on(mib: u64) -> Self {
        Self { mib, working_mib: mib }
    }
}

/// Work of all tenants together: blocks per second in each window.
struct Seen {
    rates: Vec<f64>,
    counts: Counts,
    passed: Passed,
}

impl Seen {
    /// That of all windows together: where a turn takes a tenth of a window, how many of them fall
    /// into one makes the difference between its neighbours.
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    fn rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }
}

/// What a device did in a time in which everybody was at work, all in ns but for the entries.
#[derive(Clone, Copy)]
struct Passed {
    wall: f64,
    copying: f64,
    entries: f64,
    busy: f64,
}

impl Passed {
    /// From now until so long after it.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of seconds")]
    fn look(host: &Host, span: Duration) -> Result<Self> {
        let mut client = host.daemon()?.sockets().connect()?;
        let mut seen = || -> Result<_> {
            let device = client.stats()?.devices.into_iter().next();
            let device = device.context("a node has a device")?;
            let memory = device.memory;
            Ok((Instant::now(), [memory.copying_ns, memory.copied_entries, device.busy_ns]))
        };
        let (from, before) = seen()?;
        std::thread::sleep(span);
        let (to, after) = seen()?;
        let of = |index: usize| (after[index] - before[index]) as f64;
        let wall = to.duration_since(from).as_nanos() as f64;
        Ok(Self { wall, copying: of(0), entries: of(1), busy: of(2) })
    }

    /// The part of the time in which nothing was exchanged. What an entry is said to take has what
    /// it takes in it.
    #[expect(clippy::cast_precision_loss, reason = "some thousand ns")]
    fn efficiency(self, entry_ns: u64) -> f64 {
        1.0 - self.copying.max(self.entries * entry_ns as f64) / self.wall
    }

    /// The part of it that kernels had.
    fn busy(self) -> f64 {
        self.busy / self.wall
    }

    /// What kernels had of the time in which the device had something to do: a host that is too
    /// slow for its device is not in it.
    fn work_of_occupied(self, entry_ns: u64) -> f64 {
        let exchanging = 1.0 - self.efficiency(entry_ns);
        self.busy() / (self.busy() + exchanging).max(f64::MIN_POSITIVE)
    }
}

/// What switches and faults of a device did, and the turns of its vGPUs.
#[derive(Clone, Copy)]
struct Counts {
    turns: u64,
    switches: u64,
    copied_slots: u64,
    copied_entries: u64,
    faults: u64,
    replaced_parts: u64,
    ahead_slots: u64,
}

impl Counts {
    fn of(host: &Host) -> Result<Self> {
        let stats = host.daemon()?.sockets().connect()?.stats()?;
        let turns = stats.vgpus.iter().map(|vgpu| vgpu.turns).sum();
        let device = stats.devices.into_iter().next().context("a node has a device")?;
        let MemoryReport { switches, copied_slots, copied_entries, faults, .. } = device.memory;
        let MemoryReport { replaced_parts, ahead_slots, .. } = device.memory;
        Ok(Self {
            turns,
            switches,
            copied_slots,
            copied_entries,
            faults,
            replaced_parts,
            ahead_slots,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            turns: self.turns - before.turns,
            switches: self.switches - before.switches,
            copied_slots: self.copied_slots - before.copied_slots,
            copied_entries: self.copied_entries - before.copied_entries,
            faults: self.faults - before.faults,
            replaced_parts: self.replaced_parts - before.replaced_parts,
            ahead_slots: self.ahead_slots - before.ahead_slots,
        }
    }
}

impl Windows {
    /// How many of some seconds each are looked at where turns are long.
    const fn long(self) -> u32 {
        if self.count > 4 { 2 } else { 1 }
    }

    /// What passes before the first that counts, in seconds.
    fn before(self) -> f64 {
        f64::from(self.before) * self.seconds
    }
}

impl Load {
    /// Memory of each tenant, in MiB.
    fn tenant_mib(self) -> u64 {
        self.times * DEVICE_MIB / TENANTS
    }

    fn size(self) -> Size {
        Size { mib: self.tenant_mib(), working_mib: self.working_mib }
    }

    /// The part of it that is worked on: what all can have on the device at once, or everything.
    fn of(times: u64) -> [Self; 2] {
        let all = times * DEVICE_MIB / TENANTS;
        [
            // A part more than its blocks' is touched: they do not begin where a slot does.
            Self { name: "fits", times, working_mib: DEVICE_MIB / TENANTS - SLOT_MIB },
            Self { name: "exceeds", times, working_mib: all },
        ]
    }
}

pub(crate) fn run(context: &Context) -> Result<Document> {
    let windows = match context.quick {
        true => Windows { rounds: 2, before: 2, count: 2, seconds: 0.25 },
        false => Windows { rounds: 3, before: 3, count: 8, seconds: 0.3 },
    };
    let text = format!(
        "{TENANTS} tenants on a device of {DEVICE_MIB} MiB; {} rounds of all ways in turn; \
         {} windows of {} s together in each, after {} of them; ratios: medians of those within a round; \
         long turns: {} of 4 s; engine: {} runs; efficiency: {}; clients: {}",
        windows.rounds,
        windows.count,
        windows.seconds,
        windows.before,
        windows.long(),
        engine_runs(context),
        efficiency::in_words(context),
        clients::in_words(context),
    );
    let mut document = Document::new("memory", "real", &text);
    let times = TIMES.map(|times| times.to_string());
    context.check_only(times.iter().map(String::as_str).chain(PARTS).chain(clients::PARTS))?;
    if context.wants("engine") {
        engine(context, &mut document)?;
    }
    if context.wants("efficiency") {
        efficiency::run(context, &mut document)?;
    }
    if TIMES.into_iter().any(|times| clients::is_wanted(context, times)) {
        clients::run(context, &mut document)?;
    }
    let mut least = f64::MAX;
    for times in TIMES.into_iter().filter(|times| context.wants(&times.to_string())) {
        for load in Load::of(times) {
            // The costs beside each other where most is swapped, the paper's where less is.
            let costs = if times == 4 { &COSTS[..] } else { &COSTS[1..2] };
            for cost in costs {
                let over = compare(context, load, *cost, windows, &mut document)?;
                if times == 4 {
                    least = least.min(over);
                }
            }
            alone(context, load, windows, &mut document)?;
        }
        refused(context, times, &mut document)?;
    }
    if context.only.iter().any(|only| only == "turns") {
        for load in Load::of(4) {
            long_turns(context, load, windows, &mut document)?;
        }
    }
    if least < f64::MAX {
        document.figure("oversub4_over_swap_min", least);
    }
    document.control("spoiled_memory_noticed", spoiled(context)?);
    // A program that found anything else in its memory ended all of this.
    document.figure("verified", 1.0);
    Ok(document)
}

/// One load under each way; Weft's throughput over that of whole-vGPU swap.
fn compare(
    context: &Context,
    load: Load,
    cost: Cost,
    windows: Windows,
    document: &mut Document,
) -> Result<f64> {
    let label = format!("{}x_{}_{}", load.times, load.name, cost.name);
    let ways = cost.ways();
    // Of each way, by round.
    let mut rates = WAYS.map(|_| Vec::new());
    let mut left = WAYS.map(|_| Vec::new());
    for step in 0..windows.rounds * ways.len() {
        // Another way is first in each round.
        let index = (step + step / ways.len()) % ways.len();
        let way = (ways[index], cost.entry_ns, Turns::Quantum);
        let run = contend(context, load, way, windows)?;
        document.row(row(&label, ways[index], &run));
        rates[index].push(run.rate());
        left[index].push(run.passed.efficiency(cost.entry_ns));
    }
    for (way, left) in ways.iter().zip(&left) {
        document.figure(format!("{way}_efficiency_real_{label}"), median(left));
    }
    let [own, whole, scores, demand, ahead] = &rates;
    document.figure(format!("blocks_per_s_{label}"), median(own));
    for (way, rates) in ways.iter().zip(&rates).skip(1) {
        document.baseline(format!("blocks_per_s_{label}_{way}"), median(rates));
    }
    let over_swap = beside(document, &format!("over_swap_{label}"), own, whole);
    beside(document, &format!("over_scores_{label}"), own, scores);
    beside(document, &format!("over_demand_{label}"), own, demand);
    if cost.writes_ahead() {
        beside(document, &format!("ahead_over_own_{label}"), ahead, own);
        beside(document, &format!("ahead_over_swap_{label}"), ahead, whole);
    }
    if cost.name == "contents" {
        let swap = long_turns(context, load, windows, document)?;
        document.figure(format!("over_swap_of_1s_{label}"), median(own) / swap);
    }
    Ok(over_swap)
}

/// Turns of 1 s, where a page's contents are swapped, beside turns that are as long as switches
/// make them, up to a second: what a node has that lends memory. The throughput of whole-vGPU
/// swap in turns of 1 s.
fn long_turns(
    context: &Context,
    load: Load,
    windows: Windows,
    document: &mut Document,
) -> Result<f64> {
    let cost = COSTS[2];
    let label = format!("{}x_{}_{}", load.times, load.name, cost.name);
    let windows = Windows { before: 1, count: windows.long(), seconds: 4.0, ..windows };
    let mut rates = LONG_WAYS.map(|_| Vec::new());
    for step in 0..windows.rounds * LONG_WAYS.len() {
        let index = (step + step / LONG_WAYS.len()) % LONG_WAYS.len();
        let (way, turns) = LONG_WAYS[index];
        let seen = contend(context, load, (way, cost.entry_ns, turns), windows)?;
        document.row(row(&label, &format!("{way}, {}", turns.in_words()), &seen));
        rates[index].push(seen.rate());
    }
    let [swap, of_1s, as_needed] = &rates;
    document.baseline(format!("blocks_per_s_{label}_whole_of_1s"), median(swap));
    beside(document, &format!("of_1s_over_swap_of_1s_{label}"), of_1s, swap);
    beside(document, &format!("as_needed_over_swap_of_1s_{label}"), as_needed, swap);
    Ok(median(swap))
}

/// What one side is of the other, side by side: the machine is not the same from one round to the
/// next. The median, with the least and the most beside it.
fn beside(document: &mut Document, name: &str, one: &[f64], other: &[f64]) -> f64 {
    let ratios = one.iter().zip(other).map(|(one, other)| one / other.max(f64::MIN_POSITIVE));
    let ratios: Vec<f64> = ratios.collect();
    let ratio = median(&ratios);
    document.figure(name, ratio);
    document.figure(format!("{name}_least"), ratios.iter().copied().fold(f64::MAX, f64::min));
    document.figure(format!("{name}_most"), ratios.iter().copied().fold(0.0, f64::max));
    ratio
}

/// Counts are of the windows, what was before them and the reading back at the end.
fn row(load: &str, way: &str, seen: &Seen) -> Value {
    let Passed { wall, copying, busy, .. } = seen.passed;
    let Counts { turns, switches, copied_slots, copied_entries, .. } = seen.counts;
    let Counts { faults, replaced_parts, ahead_slots, .. } = seen.counts;
    json!({
        "load": load, "way": way, "blocks_per_s": seen.rates, "turns": turns, "switches": switches,
        "copied_slots": copied_slots, "copied_entries": copied_entries, "faults": faults,
        "replaced_parts": replaced_parts, "ahead_slots": ahead_slots,
        "copying": copying / wall, "busy": busy / wall,
    })
}

/// Settings of a device that lends so many times its memory to tenants of so many MiB.
fn settings(load: Load, (way, entry_ns, turns): Way<'_>) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("device.memory", mebibytes(DEVICE_MIB)),
        ("device.slot", mebibytes(SLOT_MIB)),
        ("device.oversubscribe", load.times.to_string()),
        ("device.placement", way.to_owned()),
        ("device.switch_entry_ns", entry_ns.to_string()),
        ("defaults.memory", mebibytes(load.tenant_mib())),
    ];
    all.extend(turns.settings().iter().map(|(name, value)| (*name, (*value).to_owned())));
    all
}

fn mebibytes(count: u64) -> String {
    format!("{count}MiB")
}

/// Placement, cost of an entry, how long turns are.
type Way<'a> = (&'a str, u64, Turns);

fn start(
    context: &Context,
    host: &Host,
    name: &str,
    size: Size,
    windows: Windows,
) -> Result<Tenant> {
    let mut command = context.program("working");
    let seconds = f64::from(windows.before + windows.count) * windows.seconds;
    // What else a program has on the device fits into a MiB.
    let blocks = size.mib - 1;
    command.arg(blocks.to_string()).arg(size.working_mib.min(blocks).to_string());
    command.arg(format!("{seconds}")).args(["--start", "-"]);
    command.args(["--window", &windows.seconds.to_string()]);
    host.start_with_input(name, 1, command, Stdio::piped())
}

/// All tenants at once.
fn contend(context: &Context, load: Load, way: Way<'_>, windows: Windows) -> Result<Seen> {
    let sizes = vec![load.size(); usize::try_from(TENANTS)?];
    together(context, &sizes, &settings(load, way), windows)
}

/// Tenants of these sizes at once.
fn together(
    context: &Context,
    sizes: &[Size],
    settings: &[(&'static str, String)],
    windows: Windows,
) -> Result<Seen> {
    let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (*k, v.as_str())).collect();
    Host::on_node(context, false, &settings, |host| {
        let started = sizes
            .iter()
            .enumerate()
            .map(|(key, size)| start(context, host, &format!("tenant{key}"), *size, windows));
        let mut started = started.collect::<Result<Vec<Tenant>>>()?;
        // However long it took them to have their memory, all work in the same windows.
        started.iter_mut().try_for_each(|tenant| tenant.line().map(drop))?;
        let before = Counts::of(host)?;
        let begin = start_after(TOLD);
        started.iter_mut().try_for_each(|tenant| tenant.tell(&begin))?;
        std::thread::sleep(TOLD + Duration::from_secs_f64(windows.before() + SURE));
        let seconds = f64::from(windows.count) * windows.seconds;
        let passed = Passed::look(host, Duration::from_secs_f64(seconds - 2.0 * SURE))?;
        let mut rates = vec![0.0; windows.count as usize];
        for tenant in started {
            let lines = tenant.finish()?;
            let counts = lines.iter().filter_map(|line| line["window"].as_f64());
            let counts = counts.skip(windows.before as usize);
            rates.iter_mut().zip(counts).for_each(|(rate, count)| *rate += count / windows.seconds);
        }
        ensure!(rates.iter().sum::<f64>() > 0.0, "{} tenants did no work", sizes.len());
        Ok(Seen { rates, counts: Counts::of(host)?.since(before), passed })
    })
}

/// The static partition: as many tenants as the device has memory for, and the others wait.
fn alone(context: &Context, load: Load, windows: Windows, document: &mut Document) -> Result<()> {
    let tenants = DEVICE_MIB / load.tenant_mib();
    let settings = [
        ("device.memory", DEVICE_MIB),
        ("device.slot", SLOT_MIB),
        ("defaults.memory", load.tenant_mib()),
    ]
    .map(|(name, count)| (name, mebibytes(count)));
    let sizes = vec![load.size(); usize::try_from(tenants)?];
    let seen = together(context, &sizes, &settings, windows)?;
    let label = format!("blocks_per_s_{}x_{}_static_{tenants}_at_once", load.times, load.name);
    document.baseline(label, seen.rate());
    Ok(())
}

/// Programs that a static partition in equal parts refuses: the negative control of lending more.
fn refused(context: &Context, times: u64, document: &mut Document) -> Result<()> {
    let load = Load::of(times)[0];
    let [memory, quota] = [DEVICE_MIB, DEVICE_MIB / TENANTS].map(mebibytes);
    let settings = [("device.memory", memory.as_str()), ("defaults.memory", quota.as_str())];
    let windows = Windows { rounds: 1, before: 0, count: 1, seconds: 0.1 };
    let refused = Host::on_node(context, false, &settings, |host| {
        let mut refused = 0.0;
        for key in 0..TENANTS {
            let tenant = start(context, host, &format!("tenant{key}"), load.size(), windows)?;
            refused += f64::from(u8::from(tenant.finish().is_err()));
        }
        Ok(refused)
    })?;
    ensure!(refused > 0.0, "{times} times the memory fits: nothing was oversubscribed");
    #[expect(clippy::cast_precision_loss, reason = "four")]
    document.control(format!("refused_{times}x_static"), refused / TENANTS as f64);
    Ok(())
}

/// Whether a program notices a word of its memory that is not what it was.
fn spoiled(context: &Context) -> Result<f64> {
    let host = Host::node(false, &[("device.memory", "64MiB")])?;
    let mut command = context.program("working");
    command.args(["8", "4", "0.1", "--spoil"]).stderr(Stdio::null());
    let noticed = host.start("spoiled", 1, command)?.finish().is_err();
    ensure!(noticed, "a program did not notice that its memory is not what it was");
    Ok(1.0)
}

const fn engine_runs(context: &Context) -> usize {
    if context.quick { ENGINE_RUNS_QUICK } else { ENGINE_RUNS }
}

/// The engine's kernels through the tables of a node, beside a process without any.
fn engine(context: &Context, document: &mut Document) -> Result<()> {
    let (flat, node) = (Host::direct(false)?, Host::node(false, &[])?);
    let mut reports = Vec::new();
    for run in 0..engine_runs(context) {
        let of = |host: &Host| context.single(host, "engine");
        // Neither is always the one that comes after the other.
        reports.push(if run % 2 == 0 {
            [of(&node)?, of(&flat)?]
        } else {
            let flat = of(&flat)?;
            [of(&node)?, flat]
        });
    }
    let mut most = 0.0_f64;
    for name in ["saxpy_ms", "matmul_naive_ms", "matmul_tiled_ms", "reduction_ms"] {
        let of = |side: usize| -> Vec<f64> {
            reports.iter().filter_map(|report| report[side][name].as_f64()).collect()
        };
        let (translated, flat) = (of(0), of(1));
        document.baseline(format!("flat_{name}"), median(&flat));
        let over = beside(document, &format!("engine_over_flat_{name}"), &translated, &flat);
        most = most.max(over);
    }
    document.figure("engine_over_flat", most);
    Ok(())
}
