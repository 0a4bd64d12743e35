//! `weft demo`: three unmodified programs share one software GPU by weight, then do without Weft.

mod page;
mod tenants;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weft_node::admin::{Client, Stats, Timeline, shares};

use crate::args::DemoOptions;
use crate::daemon::OwnDaemon;
use crate::output::{line, note, percent, table};
use crate::{programs, top};
use tenants::{Outcome, Plan};

/// Modelled kernel times of the demo's device.
pub(crate) const MODEL: &str = include_str!("../../models/paced.toml");
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(1000);

/// One run of the three tenants under one policy.
#[derive(Debug)]
pub(crate) struct Run {
    policy: &'static str,
    outcomes: Vec<Outcome>,
    timeline: Timeline,
    /// The node as the tenants began and as they ended.
    window: (Stats, Stats),
    window_s: f64,
}

/// `weft demo`; exit code 1 if a tenant computed something wrong.
pub(crate) fn demo(options: &DemoOptions) -> Result<ExitCode> {
    let folder = programs::example_dir(options.programs.as_deref())?;
    let plans = tenants::plans(&folder, options);
    note("weft demo: three programs, weights 1:2:3, one paced software GPU");
    for plan in &plans {
        note(&format!("  {} (weight {}): {}", plan.name, plan.weight, plan.description));
    }
    note("first, each of them alone on a device of its own, without Weft …");
    let alone = tenants::alone(&plans)?;
    let fair = share("fair", &plans, options.seconds)?;
    let unmanaged = share("unmanaged", &plans, options.seconds)?;
    for run in [&fair, &unmanaged] {
        line("");
        report(run, &alone);
    }
    let html = page::render(&[&fair, &unmanaged], &alone);
    std::fs::write(&options.page, html)
        .with_context(|| format!("cannot write {}", options.page.display()))?;
    line("");
    line(&format!("who held the device when: {}", options.page.display()));
    let verified =
        [&fair, &unmanaged].iter().all(|run| run.outcomes.iter().all(|tenant| tenant.verified));
    Ok(ExitCode::from(u8::from(!verified)))
}

fn share(policy: &'static str, plans: &[Plan], seconds: u64) -> Result<Run> {
    note(&format!("now all three at once for {seconds} s, policy `{policy}` …"));
    let setting = [("scheduling.policy", policy), ("scheduling.share", "vgpu")];
    let daemon = OwnDaemon::start(&setting, Some(MODEL))?;
    let mut client = daemon.sockets().connect()?;
    let running = tenants::start(plans, &daemon, seconds)?;
    let window = watch(&mut client, &running)?;
    let begin_ns = running.begin_ns();
    let (outcomes, window_s) = running.finish(plans)?;
    let timeline = client.timeline(begin_ns)?;
    Ok(Run { policy, outcomes, timeline, window, window_s })
}

/// Shows shares until all tenants are done; the result is the node as they began and as they ended.
fn watch(client: &mut Client, running: &tenants::Running) -> Result<(Stats, Stats)> {
    let mut first = client.stats()?;
    let (mut before, mut last) = (first.clone(), first.clone());
    let mut next = Instant::now() + PROGRESS;
    let mut begun = false;
    while !running.finished() {
        std::thread::sleep(Duration::from_millis(20));
        if !running.at_work() {
            continue;
        }
        last = client.stats()?;
        if !std::mem::replace(&mut begun, true) {
            (first, before) = (last.clone(), last.clone());
            next = Instant::now() + PROGRESS;
        } else if Instant::now() >= next {
            next += PROGRESS;
            note(&format!("  {}", top::summary(&before, &last)));
            before = last.clone();
        }
    }
    Ok((first, last))
}

fn report(run: &Run, alone: &[f64]) {
    let figures = Figures::of(run, alone);
    let used = used_shares(run);
    line(&format!("policy {} ({:.1} s window)", run.policy, run.window_s));
    let rows: Vec<_> = run
        .outcomes
        .iter()
        .zip(figures.shares.iter().zip(&used))
        .map(|(tenant, ((expected, measured), used))| {
            vec![
                tenant.name.clone(),
                tenant.weight.to_string(),
                percent(*expected),
                percent(*used),
                percent(*measured),
                if tenant.verified { "yes".to_owned() } else { "NO".to_owned() },
            ]
        })
        .collect();
    line(table(&["TENANT", "WEIGHT", "EXPECTED", "DEVICE", "WORK", "VERIFIED"], &rows).trim_end());
    line(
        "DEVICE: share of the device's time. WORK: share of the verified work, against running alone",
    );
    let held = min_max_ratio(used.iter().zip(&figures.shares).map(|(used, (due, _))| used / due));
    line(&format!(
        "MMR of the device's time {held:.3}, of the work {:.3}, over {:.1} s; aggregated overhead \
         against running alone without Weft {:.3}",
        figures.mmr, run.window_s, figures.overhead
    ));
}

/// Each tenant's share of the device's time in the window: what the node charged it.
fn used_shares(run: &Run) -> Vec<f64> {
    let (first, last) = &run.window;
    let shares = shares(first, last);
    let of = |name: &str| shares.iter().find(|share| share.vgpu == name);
    let measured = |tenant: &Outcome| of(&tenant.name).map_or(0.0, |share| share.measured);
    run.outcomes.iter().map(measured).collect()
}

/// What the table and the page say about a run.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Per tenant: expected and measured share of the work.
    pub(crate) shares: Vec<(f64, f64)>,
    /// Smallest over largest ratio of measured to ideal throughput.
    pub(crate) mmr: f64,
    /// Ideal over measured aggregated throughput.
    pub(crate) overhead: f64,
}

impl Figures {
    /// From verified work (not from the node's ledger): a tenant's normalised progress is its
    /// throughput over what it reached alone, so tenants with different work compare.
    pub(crate) fn of(run: &Run, alone: &[f64]) -> Self {
        let weights: f64 = run.outcomes.iter().map(|tenant| f64::from(tenant.weight)).sum();
        let progress: Vec<f64> = run
            .outcomes
            .iter()
            .zip(alone)
            .map(|(tenant, alone)| tenant.throughput / alone)
            .collect();
        let total: f64 = progress.iter().sum();
        let shares: Vec<(f64, f64)> = run
            .outcomes
            .iter()
            .zip(&progress)
            .map(|(tenant, progress)| (f64::from(tenant.weight) / weights, progress / total))
            .collect();
        let ratios =
            shares.iter().zip(&progress).map(|((expected, _), progress)| progress / expected);
        let mmr = min_max_ratio(ratios);
        Self { shares, mmr, overhead: 1.0 / total }
    }
}

/// Smallest over largest.
fn min_max_ratio(ratios: impl Iterator<Item = f64>) -> f64 {
    let (low, high) =
        ratios.fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
    low / high
}
