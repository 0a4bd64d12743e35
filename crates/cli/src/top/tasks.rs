//! Pools and virtual accelerators in `weft top`.

use ratatui::layout::Constraint;
use ratatui::style::{Color, Style};
use ratatui::widgets::{Block, Row, Table};
use weft_node::admin::{AcceleratorReport, PoolReport, Stats};

use crate::accelerator::{class, in_time};
use crate::output::percent;
use crate::users::Names;

/// Columns with their widths in characters, the most important ones first: a narrow terminal cuts
/// the last ones off.
const COLUMNS: [(&str, u16); 9] = [
    ("ACCELERATOR", 14),
    ("CLASS", 12),
    ("OF POOL", 8),
    ("WAITING", 7),
    ("RUNNING", 7),
    ("DONE/s", 8),
    ("FAILED", 6),
    ("POOL", 10),
    ("USER", 9),
];

/// What an accelerator did between two looks.
struct Progress {
    /// Its part of the time of its pool's devices, 0–1.
    of_pool: f64,
    /// Tasks that were done, each second.
    done_per_s: f64,
    /// The part of them that was in time; `None` of a batch one, or if none was done.
    in_time: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "ratios for people")]
fn progress(accelerator: &AcceleratorReport, before: &Stats, after: &Stats) -> Progress {
    let earlier = before.accelerators.iter().find(|other| other.name == accelerator.name);
    let (tasks, then) = (accelerator.tasks, earlier.map_or(accelerator.tasks, |of| of.tasks));
    let used_ns = accelerator.used_ns.saturating_sub(earlier.map_or(0, |of| of.used_ns));
    let wall_ns = after.now_ns.saturating_sub(before.now_ns).max(1) as f64;
    let pool = after.pools.iter().find(|pool| pool.name == accelerator.pool);
    let devices = pool.map_or(1, |pool| pool.devices.len().max(1)) as f64;
    let done = tasks.done.saturating_sub(then.done);
    let met = tasks.in_time.saturating_sub(then.in_time);
    Progress {
        of_pool: if earlier.is_some() { used_ns as f64 / (wall_ns * devices) } else { 0.0 },
        done_per_s: done as f64 * 1e9 / wall_ns,
        in_time: (accelerator.sla_ns > 0 && done > 0).then(|| met as f64 / done as f64),
    }
}

/// A line for each pool that has accelerators.
pub(super) fn heading(after: &Stats) -> Vec<String> {
    let is_used = |pool: &&PoolReport| after.accelerators.iter().any(|of| of.pool == pool.name);
    let one = |pool: &PoolReport| {
        let PoolReport { name, policy, devices, user_devices, batch_devices } = pool;
        let count = devices.len();
        format!(
            "pool {name}: {policy}  {user_devices} of {count} devices for user-facing tasks, \
             {batch_devices} run batch"
        )
    };
    after.pools.iter().filter(is_used).map(one).collect()
}

/// Lines that the table wants.
pub(super) fn height(after: &Stats) -> u16 {
    match after.accelerators.len() {
        0 => 0,
        // Two of the frame, one of names.
        count => u16::try_from(count + 3).unwrap_or(u16::MAX),
    }
}

/// How many of the columns fit into `width` characters.
fn fitting(width: u16) -> usize {
    let ends = COLUMNS.iter().scan(0, |end: &mut u16, (_, width)| {
        // A space before the next one.
        *end += width + 1;
        Some(*end - 1)
    });
    ends.take_while(|end| *end <= width).count().max(1)
}

/// The accelerators, in a frame of `width` characters.
pub(super) fn table<'a>(before: &Stats, after: &Stats, names: &mut Names, width: u16) -> Table<'a> {
    let columns = &COLUMNS[..fitting(width.saturating_sub(2))];
    let row = |accelerator: &AcceleratorReport| {
        let (done, tasks) = (progress(accelerator, before, after), &accelerator.tasks);
        let is_idle = tasks.waiting + tasks.running == 0 && done.done_per_s == 0.0;
        let style = match done.in_time.or_else(|| in_time(accelerator)) {
            _ if is_idle => Style::new().fg(Color::DarkGray),
            Some(ratio) if ratio < 0.99 => Style::new().fg(Color::Yellow),
            Some(_) | None => Style::new().fg(Color::Green),
        };
        let cells = [
            accelerator.name.clone(),
            class(accelerator),
            percent(done.of_pool),
            tasks.waiting.to_string(),
            tasks.running.to_string(),
            format!("{:.1}", done.done_per_s),
            tasks.failed.to_string(),
            accelerator.pool.clone(),
            names.of(accelerator.owner).to_owned(),
        ];
        Row::new(cells.into_iter().take(columns.len())).style(style)
    };
    let rows: Vec<_> = after.accelerators.iter().map(row).collect();
    let header = Row::new(columns.iter().map(|(name, _)| *name)).style(Style::new().bold());
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    Table::new(rows, widths).header(header).block(Block::bordered().title("virtual accelerators"))
}

/// The accelerators that have tasks, in one line; nothing without any.
pub(super) fn summary(before: &Stats, after: &Stats) -> String {
    let is_busy = |of: &&AcceleratorReport| {
        of.tasks.waiting + of.tasks.running > 0 || progress(of, before, after).done_per_s > 0.0
    };
    let one = |accelerator: &AcceleratorReport| {
        let AcceleratorReport { name, pool, tasks, .. } = accelerator;
        let done = progress(accelerator, before, after);
        let met = done.in_time.map(|ratio| format!(", {} in time", percent(ratio)));
        let (of_pool, met) = (percent(done.of_pool), met.unwrap_or_default());
        let (waiting, per_s) = (tasks.waiting, done.done_per_s);
        format!("  {name} {of_pool} of {pool} ({waiting} wait, {per_s:.1}/s{met})")
    };
    after.accelerators.iter().filter(is_busy).map(one).collect()
}
