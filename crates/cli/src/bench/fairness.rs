//! `bench fairness`: verified work of saturating tenants against their weights. On a genuine GPU
//! beside what its own driver gives to the same programs.

use std::process::Command;

use anyhow::{Result, bail};

use super::document::Document;
use super::tenant::{Host, Kept, ShareReport, common_start, kernel};
use super::via::Remote;
use super::{Context, least, median, min_max_ratio, most};

/// A set of tenants: name, weights, kernel sizes in µs.
pub(super) type Set<'a> = (&'static str, &'static [u32], &'a [u64]);

/// Size of the long kernel, whose work is counted in blocks of [`BLOCK_US`].
pub(super) const LONG_US: u64 = 1_900_000;
const BLOCK_US: u64 = 100;

const SETS: [Set<'static>; 5] = [
    ("3_equal", &[1, 2, 3], &[285, 285, 285]),
    ("3_mixed", &[1, 2, 3], &[21, 391, 1605]),
    ("6_equal", &[1, 2, 2, 3, 3, 4], &[285, 285, 285, 285, 285, 285]),
    ("6_mixed", &[1, 2, 2, 3, 3, 4], &[21, 1605, 102, 803, 51, 391]),
    LONG,
];
/// One of six tenants launches kernels that are 300 quanta long.
const LONG: Set<'static> = ("6_long", &[1, 2, 2, 3, 3, 4], &[285, 285, 285, LONG_US, 285, 285]);

/// The quantum on a genuine GPU: that of the paced device, so that a window has as many turns.
const GPU_QUANTUM: (&str, &str) = ("scheduling.quantum_us", "6000");

/// Window of the unsliced control: much shorter than the time between two of its long kernels.
const UNSLICED_WINDOW_S: u64 = 2;

/// Windows after the first, which is thrown away as a warm-up.
const WINDOWS: u64 = 5;

pub(crate) fn run(context: &Context) -> Result<Document> {
    let window_s = if context.quick { 2 } else { 10 };
    let text = format!("{WINDOWS} windows of {window_s} s per set, after one of warm-up");
    context.check_only(SETS.iter().map(|set| set.0))?;
    let sets: Vec<Set<'_>> = SETS.into_iter().filter(|set| context.wants(set.0)).collect();
    let mut document = Document::new("fairness", context.pace.mode(), &text);
    document.figure("window_s", if context.quick { 2.0 } else { 10.0 });
    let alone = Alone::measure(context, &sets, window_s)?;
    alone.document(&mut document);
    let mut rows = Vec::new();
    for set in &sets {
        let result = share(context, &[], *set, window_s, WINDOWS);
        let result = document.held(result, names_of(set.0))?;
        if let Some(result) = &result {
            report(&mut document, set.0, result);
            alone.report(&mut document, *set, result);
        }
        rows.push(result);
    }
    let of = |figure: fn(&Shared) -> f64| -> Vec<Option<f64>> {
        rows.iter().map(|row| row.as_ref().map(figure)).collect()
    };
    document.figure_of("mmr_min", &of(|row| median(&row.mmr)), least);
    document.figure_of("mmr_window_min", &of(Shared::worst), least);
    document.figure_of("overhead_max", &of(|row| row.overhead), most);
    // What is special about long kernels shows on the paced device.
    let has_long = context.wants(LONG.0) && context.pace.is_modelled();
    // Reported, not a goal: a round of six tenants is shorter, and switches are dearer.
    let short = [("scheduling.quantum_us", "1000")];
    if has_long {
        let (name, result) = ("6_long_1ms", share(context, &short, LONG, window_s, WINDOWS));
        if let Some(result) = document.held(result, names_of(name))? {
            report(&mut document, name, &result);
        }
    }
    controls(context, &mut document, &sets, window_s)?;
    if has_long {
        unsliced(context, &mut document)?;
    }
    Ok(document)
}

/// Nobody decides who has the device.
fn controls(
    context: &Context,
    document: &mut Document,
    sets: &[Set<'_>],
    window_s: u64,
) -> Result<()> {
    let mut rows = Vec::new();
    for &set in sets {
        let unmanaged = [("scheduling.policy", "unmanaged")];
        let name = format!("mmr_unmanaged_{}", set.0);
        let shared = share(context, &unmanaged, set, window_s, 1);
        let mmr = document.held(shared, [name.clone()])?.map(|shared| median(&shared.mmr));
        if let Some(mmr) = mmr {
            document.control(name, mmr);
        }
        rows.push(mmr);
        if !context.pace.is_modelled() {
            let native = contend(context, &Host::direct(false)?, set, window_s, 1)?;
            document.control(format!("mmr_driver_{}", set.0), median(&native.mmr));
        }
    }
    document.figure_of("mmr_control", &rows, most);
    Ok(())
}

/// Nobody cuts the long kernel.
fn unsliced(context: &Context, document: &mut Document) -> Result<()> {
    for (name, quantum) in [("mmr_unsliced_6_long", "6000"), ("mmr_unsliced_6_long_1ms", "1000")] {
        let unsliced = [("scheduling.slicing", "never"), ("scheduling.quantum_us", quantum)];
        // One such kernel comes every 9.5 s: windows of 10 s hold one each and hide what happens.
        let shared = share(context, &unsliced, LONG, UNSLICED_WINDOW_S, 1);
        if let Some(shared) = document.held(shared, [name.to_owned()])? {
            document.control(name, median(&shared.mmr));
        }
    }
    Ok(())
}

/// What [`report`] tells of a set.
fn names_of(set: &str) -> [String; 6] {
    [
        format!("mmr_{set}"),
        format!("mmr_{set}_min"),
        format!("overhead_{set}"),
        format!("closure_{set}"),
        format!("overrun_share_{set}"),
        format!("late_share_{set}"),
    ]
}

fn report(document: &mut Document, set: &str, result: &Shared) {
    document.figure(format!("mmr_{set}"), median(&result.mmr));
    document.figure(format!("mmr_{set}_min"), result.worst());
    document.figure(format!("overhead_{set}"), result.overhead);
    if let Some(Books { closure, kept }) = &result.books {
        document.figure(format!("closure_{set}"), *closure);
        document.figure(format!("overrun_share_{set}"), kept.overruns);
        document.figure(format!("late_share_{set}"), kept.late);
    }
}

pub(super) struct Shared {
    /// Work done by each tenant in each window over its weight's part of the window.
    normalised: Vec<Vec<f64>>,
    /// One per window.
    pub(super) mmr: Vec<f64>,
    /// Window over modelled time of the work done in it: 1 is a device that is never idle.
    pub(super) overhead: f64,
    /// What a node says of it.
    books: Option<Books>,
}

struct Books {
    /// |charges − busy| / busy over the whole run.
    closure: f64,
    /// How the device kept to its model.
    kept: Kept,
}

impl Shared {
    /// The MMR of the worst window.
    fn worst(&self) -> f64 {
        least(&self.mmr)
    }
}

/// What tenants do that have a node of this GPU to themselves. There a kernel takes the device
/// longer than its work says, the more the shorter it is, and tenants pay for what they take: so
/// shares are also told by what each would do alone.
struct Alone {
    /// Kernel size in µs, and the work done by its tenant over wall time.
    rates: Vec<(u64, f64)>,
}

impl Alone {
    /// Nothing on a paced device, where kernels take what their names say.
    fn measure(context: &Context, sets: &[Set<'_>], window_s: u64) -> Result<Self> {
        let mut rates: Vec<(u64, f64)> = Vec::new();
        if context.pace.is_modelled() {
            return Ok(Self { rates });
        }
        for us in sets.iter().flat_map(|set| set.2) {
            if rates.iter().all(|known| known.0 != *us) {
                let set: Set<'_> = ("alone", &[1], std::slice::from_ref(us));
                rates.push((*us, 1.0 / share(context, &[], set, window_s, 1)?.overhead));
            }
        }
        Ok(Self { rates })
    }

    fn document(&self, document: &mut Document) {
        for (us, rate) in &self.rates {
            document.baseline(format!("alone_{us}us"), *rate);
        }
    }

    fn report(&self, document: &mut Document, set: Set<'_>, result: &Shared) {
        let rate_of =
            |us: &u64| self.rates.iter().find(|known| known.0 == *us).map(|known| known.1);
        let Some(rates) = set.2.iter().map(rate_of).collect::<Option<Vec<f64>>>() else { return };
        let mmr_of = |done: &Vec<f64>| {
            let of_alone: Vec<f64> =
                done.iter().zip(&rates).map(|(done, rate)| done / rate).collect();
            min_max_ratio(&of_alone)
        };
        let mmr: Vec<f64> = result.normalised.iter().map(mmr_of).collect();
        document.figure(format!("mmr_of_alone_{}", set.0), median(&mmr));
        document.figure(format!("mmr_of_alone_{}_min", set.0), least(&mmr));
    }
}

/// Runs a set on a daemon with these settings and measures `windows` windows.
fn share(
    context: &Context,
    settings: &[(&str, &str)],
    set: Set<'_>,
    window_s: u64,
    windows: u64,
) -> Result<Shared> {
    let paced = context.pace.is_modelled();
    let mut all: Vec<(&str, &str)> = (!paced).then_some(GPU_QUANTUM).into_iter().collect();
    all.extend_from_slice(settings);
    Host::on_node(context, paced, &all, |host| contend(context, host, set, window_s, windows))
}

/// Lets the tenants of a set contend on a host, whatever else is attached to it.
pub(super) fn contend(
    context: &Context,
    host: &Host,
    set: Set<'_>,
    window_s: u64,
    windows: u64,
) -> Result<Shared> {
    let (_, weights, sizes_us) = set;
    let start = common_start();
    let mut tenants = Vec::new();
    for (index, (&weight, &us)) in weights.iter().zip(sizes_us).enumerate() {
        // A little longer than all windows, so that nobody stops within the last.
        let seconds = (windows + 1) * window_s + 1;
        let mut command = program(context, us, seconds);
        command.arg("--start").arg(&start).arg("--window").arg(window_s.to_string());
        tenants.push(host.start(&format!("t{index}"), weight, command)?);
    }
    let mut reports = Vec::new();
    for tenant in tenants {
        reports.push(ShareReport::parse(tenant.finish()?)?);
    }
    let (mut all, mut mmr, mut overheads) = (Vec::new(), Vec::new(), Vec::new());
    for window in 1..=windows {
        let index = usize::try_from(window)?;
        let mut work_s = Vec::new();
        for (report, &us) in reports.iter().zip(sizes_us) {
            let Some(&launches) = report.windows.get(index) else {
                bail!("a tenant ended before window {window}");
            };
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a window")]
            let (launches, us_of_one) = (launches as f64, us as f64);
            let is_long = us == LONG_US;
            let unit_us = if is_long { context.pace.block_us(BLOCK_US) } else { us_of_one };
            work_s.push(launches * unit_us / 1e6);
        }
        let total_weight: u32 = weights.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
        let window_s = window_s as f64;
        let normalised: Vec<f64> = work_s
            .iter()
            .zip(weights)
            .map(|(work, &weight)| work / (window_s * f64::from(weight) / f64::from(total_weight)))
            .collect();
        mmr.push(min_max_ratio(&normalised));
        all.push(normalised);
        overheads.push(window_s / work_s.iter().sum::<f64>());
    }
    let books = match host {
        Host::Driver { .. } | Host::Direct { .. } => None,
        Host::Node(daemon) | Host::Remote(Remote { daemon, .. }) => {
            let closure = daemon.sockets().connect()?.stats()?.closure.error();
            Some(Books { closure, kept: host.kept()? })
        }
    };
    Ok(Shared { normalised: all, mmr, overhead: median(&overheads), books })
}

/// The program of a tenant with kernels of `us`.
fn program(context: &Context, us: u64, seconds: u64) -> Command {
    let mut command = context.program(if us == LONG_US { "long" } else { "share" });
    if us == LONG_US {
        command.arg(seconds.to_string()).arg("--blocks");
        command.arg(context.pace.blocks(LONG_US / BLOCK_US).to_string());
    } else {
        command.arg(kernel(us)).arg(seconds.to_string());
    }
    command
}
