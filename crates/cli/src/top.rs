//! `weft top`: who uses the device, live.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use weft_node::admin::{Client, Share, Stats, shares};

use crate::args::Sockets;
use crate::output::{bar, line, percent, size};
use crate::vgpu::{cap, state, tenant};

/// Characters of a share's bar.
const BAR_WIDTH: usize = 32;

/// Columns with their widths in characters; the last takes what is left.
const COLUMNS: [(&str, u16); 10] = [
    ("vGPU", 16),
    ("TENANT", 10),
    ("WEIGHT", 6),
    ("CAP", 6),
    ("STATE", 8),
    ("SHARE", 7),
    ("EXPECTED", 8),
    ("", 32),
    ("MEMORY", 19),
    ("PROGRAMS", 10),
];

/// The columns by what a narrow terminal shows first.
const PRIORITIES: [usize; 10] = [0, 5, 2, 6, 4, 8, 7, 3, 1, 9];

/// `weft top`
pub(crate) fn top(sockets: &Sockets, interval_ms: u64, plain: bool) -> Result<()> {
    let mut client = sockets.connect()?;
    let interval = Duration::from_millis(interval_ms.max(50));
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if plain || dumb || !stdout().is_terminal() {
        return lines(&mut client, interval);
    }
    let mut terminal = ratatui::try_init()?;
    let result = screen(&mut terminal, &mut client, interval);
    ratatui::restore();
    result
}

/// One line per look, until the daemon goes away: for files, and terminals that draw nothing.
fn lines(client: &mut Client, interval: Duration) -> Result<()> {
    let mut before = client.stats()?;
    loop {
        std::thread::sleep(interval);
        let after = client.stats()?;
        line(&summary(&before, &after));
        before = after;
    }
}

/// The shares of all busy vGPUs in one line.
pub(crate) fn summary(before: &Stats, after: &Stats) -> String {
    let busy: Vec<String> = shares(before, after)
        .iter()
        .filter(|share| share.expected > 0.0)
        .map(|share| {
            format!(
                "{} w{} {} (of {})",
                share.vgpu,
                share.weight,
                percent(share.measured),
                percent(share.expected)
            )
        })
        .collect();
    let busy = if busy.is_empty() { "nobody".to_owned() } else { busy.join("  ") };
    format!("busy {}  {busy}", percent(busy_ratio(before, after)))
}

/// Part of the time between two looks in which the device worked.
fn busy_ratio(before: &Stats, after: &Stats) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let (busy, wall) = (
        after.device.busy_ns.saturating_sub(before.device.busy_ns) as f64,
        after.now_ns.saturating_sub(before.now_ns).max(1) as f64,
    );
    (busy / wall).min(1.0)
}

fn screen(terminal: &mut DefaultTerminal, client: &mut Client, interval: Duration) -> Result<()> {
    let mut before = client.stats()?;
    let mut after = before.clone();
    loop {
        terminal.draw(|frame| draw(frame, &before, &after))?;
        let next = Instant::now() + interval;
        while let Some(left) = next.checked_duration_since(Instant::now()) {
            if event::poll(left)? && quits(&event::read()?) {
                return Ok(());
            }
        }
        before = std::mem::replace(&mut after, client.stats()?);
    }
}

fn quits(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    key.kind == KeyEventKind::Press && matches!(key.code, KeyCode::Char('q' | 'c') | KeyCode::Esc)
}

fn draw(frame: &mut Frame<'_>, before: &Stats, after: &Stats) {
    let areas =
        Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(1)]);
    let [head, body, foot] = areas.areas(frame.area());
    let device = &after.device;
    frame.render_widget(
        Line::from(format!(
            "{} ({})  policy {}  busy {}  memory {} of {}  holder {}  waiting {}",
            device.name,
            device.clock,
            after.policy,
            percent(busy_ratio(before, after)),
            size(device.memory_used_bytes),
            size(device.memory_bytes),
            after.holder.as_deref().unwrap_or("-"),
            after.waiting,
        ))
        .bold(),
        head,
    );
    let parts = shares(before, after);
    let shown = shown_columns(body.width.saturating_sub(2));
    let rows = parts.iter().zip(&after.vgpus).map(|(share, vgpu)| {
        let mut cells = [
            Cell::from(share.vgpu.clone()),
            Cell::from(tenant(vgpu)),
            Cell::from(share.weight.to_string()),
            Cell::from(cap(vgpu)),
            Cell::from(state(share.state)),
            Cell::from(percent(share.measured)),
            Cell::from(percent(share.expected)),
            Cell::from(bar(share.measured, share.expected, BAR_WIDTH)).style(colour(share)),
            Cell::from(format!("{} / {}", size(vgpu.memory_used_bytes), size(vgpu.memory_bytes))),
            Cell::from(vgpu.programs.join(", ")),
        ];
        Row::new(shown.iter().map(|column| std::mem::take(&mut cells[*column])).collect::<Vec<_>>())
    });
    let header = Row::new(shown.iter().map(|column| COLUMNS[*column].0));
    let widths = shown.iter().map(|column| match COLUMNS[*column] {
        ("PROGRAMS", width) => Constraint::Min(width),
        (_, width) => Constraint::Length(width),
    });
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().bold()))
        .block(Block::bordered().title("vGPUs"));
    frame.render_widget(table, body);
    frame.render_widget(Line::from("┃ where the share should be    q quits").dim(), foot);
}

/// The columns that fit into `width` characters, from left to right.
fn shown_columns(width: u16) -> Vec<usize> {
    let (mut shown, mut taken) = (Vec::new(), 0);
    for column in PRIORITIES {
        let wanted = COLUMNS[column].1 + u16::from(!shown.is_empty());
        if shown.is_empty() || taken + wanted <= width {
            shown.push(column);
            taken += wanted;
        }
    }
    shown.sort_unstable();
    shown
}

/// Green near the expected share, yellow away from it, grey when idle.
fn colour(share: &Share) -> Style {
    if share.expected == 0.0 {
        Style::new().fg(Color::DarkGray)
    } else if (share.measured - share.expected).abs() <= 0.05 * share.expected {
        Style::new().fg(Color::Green)
    } else {
        Style::new().fg(Color::Yellow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_no_narrower_ones() {
        let names = |width| -> Vec<&str> {
            shown_columns(width).into_iter().map(|column| COLUMNS[column].0).collect()
        };
        assert_eq!(names(5), ["vGPU"]);
        let usual = ["vGPU", "WEIGHT", "CAP", "STATE", "SHARE", "EXPECTED", "MEMORY"];
        assert_eq!(names(78), usual);
        assert_eq!(names(131).len(), COLUMNS.len());
        for width in 16..200 {
            let shown = shown_columns(width);
            let sum: u16 = shown.iter().map(|column| COLUMNS[*column].1 + 1).sum();
            assert!(sum - 1 <= width, "{width}: {shown:?}");
        }
    }
}
