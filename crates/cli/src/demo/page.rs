//! The demo's page: who held the device when, in one self-contained HTML file.

use serde::Serialize;

use super::{Figures, Run};

const TEMPLATE: &str = include_str!("page.html");

#[derive(Debug, Serialize)]
struct PageRun<'a> {
    policy: &'a str,
    window_s: f64,
    mmr: f64,
    overhead: f64,
    dropped: u64,
    tenants: Vec<PageTenant<'a>>,
}

#[derive(Debug, Serialize)]
struct PageTenant<'a> {
    name: &'a str,
    weight: u32,
    expected: f64,
    measured: f64,
    verified: bool,
    /// Start and end of each turn and the device time used in it, in µs since the run began.
    turns: Vec<[f64; 3]>,
}

/// The page for these runs; `alone` are the tenants' throughputs without Weft.
pub(crate) fn render(runs: &[&Run], alone: &[f64]) -> String {
    let data: Vec<PageRun<'_>> = runs.iter().map(|run| page_run(run, alone)).collect();
    // `<` must not end the script element that the data stands in.
    let json = serde_json::to_string(&data).unwrap_or_default().replace('<', "\\u003c");
    TEMPLATE.replace("/*DATA*/[]", &json)
}

fn page_run<'a>(run: &'a Run, alone: &[f64]) -> PageRun<'a> {
    let figures = Figures::of(run, alone);
    let origin = run.timeline.turns.first().map_or(0, |turn| turn.start_ns);
    let end = run.timeline.turns.last().map_or(0, |turn| turn.end_ns.unwrap_or(turn.start_ns));
    #[expect(clippy::cast_precision_loss, reason = "microseconds within a minute")]
    let us = |ns: u64| ns.saturating_sub(origin) as f64 / 1e3;
    #[expect(clippy::cast_precision_loss, reason = "microseconds within a minute")]
    let used_us = |ns: u64| ns as f64 / 1e3;
    let tenants = run
        .outcomes
        .iter()
        .zip(&figures.shares)
        .map(|(tenant, (expected, measured))| PageTenant {
            name: &tenant.name,
            weight: tenant.weight,
            expected: *expected,
            measured: *measured,
            verified: tenant.verified,
            turns: run
                .timeline
                .turns
                .iter()
                .filter(|turn| turn.vgpu == tenant.name)
                .map(|turn| {
                    let turn_end = turn.end_ns.unwrap_or(end);
                    [us(turn.start_ns), us(turn_end), used_us(turn.used_ns)]
                })
                .collect(),
        })
        .collect();
    PageRun {
        policy: run.policy,
        window_s: run.window_s,
        mmr: figures.mmr,
        overhead: figures.overhead,
        dropped: run.timeline.dropped,
        tenants,
    }
}
