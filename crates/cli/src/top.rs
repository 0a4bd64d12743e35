//! `weft top`: who uses the devices, live.

mod tasks;

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use serde_json::json;
use weft_node::admin::{
    Client, DeviceReport, ProcessReport, Share, Stats, VgpuReport, VgpuState, shares,
};

use crate::args::Sockets;
use crate::memory;
use crate::output::{bar, line, percent, size};
use crate::users::Names;
use crate::vgpu::{cap, class, doing, service, state, tenant, with_shares};

/// Characters of a share's bar.
const BAR_WIDTH: usize = 24;

/// What a column shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Vgpu,
    User,
    Share,
    Entitled,
    Command,
    Memory,
    State,
    Weight,
    Cap,
    Class,
    Device,
    Bar,
}

/// Columns from left to right with their names and widths in characters; the command takes what is
/// left.
const COLUMNS: [(Column, &str, u16); 12] = [
    (Column::Vgpu, "vGPU", 14),
    (Column::User, "USER", 9),
    (Column::Device, "DEVICE", 10),
    (Column::Share, "SHARE", 6),
    (Column::Entitled, "OF", 6),
    (Column::State, "STATE", 14),
    (Column::Bar, "", 24),
    (Column::Weight, "WEIGHT", 6),
    (Column::Cap, "CAP", 11),
    (Column::Class, "CLASS", 12),
    (Column::Memory, "MEMORY", 8),
    (Column::Command, "COMMAND", 15),
];

/// The columns by what a narrow terminal shows first.
const PRIORITIES: [Column; 12] = [
    Column::Vgpu,
    Column::Share,
    Column::User,
    Column::Command,
    Column::Memory,
    Column::Entitled,
    Column::State,
    Column::Weight,
    Column::Class,
    Column::Device,
    Column::Bar,
    Column::Cap,
];

/// How looks are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// On the terminal, if it is one.
    Screen,
    /// A line per look.
    Lines,
    /// A JSON object per look.
    Json,
}

impl How {
    /// As asked for.
    pub(crate) fn choose(plain: bool, json: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        match (json, plain || dumb || !stdout().is_terminal()) {
            (true, _) => Self::Json,
            (false, true) => Self::Lines,
            (false, false) => Self::Screen,
        }
    }
}

/// `weft top`; of `once`, one look.
pub(crate) fn top(sockets: &Sockets, interval_ms: u64, how: How, once: bool) -> Result<()> {
    let mut client = sockets.connect()?;
    let interval = Duration::from_millis(interval_ms.max(50));
    match how {
        How::Screen => {
            let mut terminal = ratatui::try_init()?;
            let result = Screen::default().run(&mut terminal, &mut client, interval);
            ratatui::restore();
            result
        }
        How::Lines => {
            looks(&mut client, interval, once, |before, after| Ok(summary(before, after)))
        }
        How::Json => looks(&mut client, interval, once, |before, after| {
            let vgpus = with_shares(after, &shares(before, after))?;
            let (busy, now_ns) = (busy_ratio(before, after), after.now_ns);
            let (devices, policy) = (&after.devices, &after.policy);
            let look = json!({
                "now_ns": now_ns, "policy": policy, "busy": busy, "devices": devices,
                "vgpus": vgpus, "accelerators": after.accelerators, "pools": after.pools,
            });
            Ok(look.to_string())
        }),
    }
}

/// One line per look, until the daemon goes away or after one: for files, and terminals that draw
/// nothing.
fn looks(
    client: &mut Client,
    interval: Duration,
    once: bool,
    shown: impl Fn(&Stats, &Stats) -> Result<String>,
) -> Result<()> {
    let mut before = client.stats()?;
    loop {
        std::thread::sleep(interval);
        let after = client.stats()?;
        line(&shown(&before, &after)?);
        if once {
            return Ok(());
        }
        before = after;
    }
}

/// The shares of all busy vGPUs in one line.
pub(crate) fn summary(before: &Stats, after: &Stats) -> String {
    let busy: Vec<String> = shares(before, after)
        .iter()
        .filter(|share| share.entitled > 0.0)
        .map(|share| {
            let (vgpu, weight) = (&share.vgpu, share.weight);
            let (of_device, entitled) = (percent(share.of_device), percent(share.entitled));
            let why = match share {
                Share { asks_for_less: true, .. } => ", asks for less",
                Share { capped: true, .. } => ", capped",
                _ => "",
            };
            format!("{vgpu} w{weight} {of_device} (of {entitled}{why})")
        })
        .collect();
    let who = if busy.is_empty() { "nobody".to_owned() } else { busy.join("  ") };
    let tasks = tasks::summary(before, after);
    format!("busy {:>6}  {who}{tasks}", percent(busy_ratio(before, after)))
}

/// The part of the time between two looks in which the devices were busy, over all of them.
fn busy_ratio(before: &Stats, after: &Stats) -> f64 {
    let of_devices = after.devices.iter().map(|device| device_busy_ratio(device, before, after));
    #[expect(clippy::cast_precision_loss, reason = "a node has few devices")]
    let count = after.devices.len().max(1) as f64;
    of_devices.sum::<f64>() / count
}

/// The same of one device.
fn device_busy_ratio(device: &DeviceReport, before: &Stats, after: &Stats) -> f64 {
    let earlier = before.devices.iter().find(|other| other.name == device.name);
    let earlier_ns = earlier.map_or(0, |earlier| earlier.busy_ns);
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let (busy, wall) = (
        device.busy_ns.saturating_sub(earlier_ns) as f64,
        after.now_ns.saturating_sub(before.now_ns).max(1) as f64,
    );
    (busy / wall).min(1.0)
}

/// What the keys have chosen.
#[derive(Debug, Default)]
struct Screen {
    /// Rows that are scrolled over.
    skipped: usize,
    /// vGPUs without a process are shown, too.
    shows_all: bool,
    names: Names,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Quit,
    Scroll(isize),
    ShowAll,
}

impl Screen {
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        client: &mut Client,
        interval: Duration,
    ) -> Result<()> {
        let mut before = client.stats()?;
        let mut after = before.clone();
        loop {
            terminal.draw(|frame| self.draw(frame, &before, &after))?;
            let next = Instant::now() + interval;
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                if !event::poll(left)? {
                    continue;
                }
                match key(&event::read()?) {
                    Some(Key::Quit) => return Ok(()),
                    Some(Key::Scroll(by)) => self.skipped = self.skipped.saturating_add_signed(by),
                    Some(Key::ShowAll) => self.shows_all = !self.shows_all,
                    None => {}
                }
                terminal.draw(|frame| self.draw(frame, &before, &after))?;
            }
            before = std::mem::replace(&mut after, client.stats()?);
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>, before: &Stats, after: &Stats) {
        let of = |device: &DeviceReport| match (memory::summary(device), after.devices.len()) {
            (Some(slots), 2..) => Some(format!("{}: {slots}", device.name)),
            (slots, _) => slots,
        };
        let slots = after.devices.iter().filter_map(of);
        let lines = heading(before, after).into_iter().chain(slots).chain(tasks::heading(after));
        let heading: Vec<Line<'_>> = lines.map(|text| Line::from(text).bold()).collect();
        let [head, body, tasks, foot] = areas(frame.area(), heading.len(), tasks::height(after));
        frame.render_widget(Text::from(heading), head);
        if tasks.height > 0 {
            frame.render_widget(tasks::table(before, after, &mut self.names, tasks.width), tasks);
        }
        let columns = shown_columns(body.width.saturating_sub(2));
        let rows = rows(&shares(before, after), after, self.shows_all, &mut self.names);
        // Two lines of the frame, one of names.
        let room = usize::from(body.height.saturating_sub(3));
        self.skipped = self.skipped.min(rows.len().saturating_sub(room));
        let more = rows.len().saturating_sub(self.skipped + room);
        let shown = rows.iter().skip(self.skipped).take(room);
        let shown = shown.map(|row| {
            let cells = columns.iter().map(|(column, ..)| Cell::from(row.cell(*column)));
            Row::new(cells.collect::<Vec<_>>()).style(row.style)
        });
        let widths = columns.iter().map(|(column, _, width)| {
            if *column == Column::Command {
                Constraint::Min(*width)
            } else {
                Constraint::Length(*width)
            }
        });
        let hidden = after.vgpus.iter().filter(|vgpu| vgpu.sessions == 0).count();
        let mut block = Block::bordered().title("vGPUs");
        if more > 0 {
            block = block.title_bottom(format!(" {more} more "));
        } else if hidden > 0 && !self.shows_all {
            block = block.title_bottom(format!(" {hidden} without a process "));
        }
        let header = Row::new(columns.iter().map(|(_, name, _)| *name));
        let table =
            Table::new(shown, widths).header(header.style(Style::new().bold())).block(block);
        frame.render_widget(table, body);
        let keys = "q quits   ↑ ↓ scroll   a shows all   ┃ where the share should be";
        frame.render_widget(Line::from(keys).dim(), foot);
    }
}

/// Head, vGPUs, accelerators and foot of the screen. Neither devices nor accelerators push who uses
/// them off it.
fn areas(area: Rect, heading: usize, tasks: u16) -> [Rect; 4] {
    let third = area.height / 3;
    let head = u16::try_from(heading + 1).unwrap_or(u16::MAX).min(third).max(2);
    let (head, tasks) = (Constraint::Length(head), Constraint::Length(tasks.min(third)));
    Layout::vertical([head, Constraint::Min(3), tasks, Constraint::Length(1)]).areas(area)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a terminal has many keys that mean nothing")]
fn key(event: &Event) -> Option<Key> {
    let Event::Key(key) = event else { return None };
    if key.kind != KeyEventKind::Press {
        return None;
    }
    match key.code {
        KeyCode::Char('q' | 'c') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('a') => Some(Key::ShowAll),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Scroll(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Scroll(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(Key::Scroll(10)),
        KeyCode::PageUp => Some(Key::Scroll(-10)),
        KeyCode::Home => Some(Key::Scroll(isize::MIN)),
        KeyCode::End => Some(Key::Scroll(isize::MAX)),
        _ => None,
    }
}

/// Each device in a line: what a narrow terminal cuts off comes last.
fn heading(before: &Stats, after: &Stats) -> Vec<String> {
    let is_alone = after.devices.len() == 1;
    let one = |device: &DeviceReport| {
        let here = || after.vgpus.iter().filter(|vgpu| vgpu.device == device.name);
        let holder = here().find(|vgpu| vgpu.state == VgpuState::Running);
        let waiting = here().filter(|vgpu| vgpu.state == VgpuState::Waiting).count();
        format!(
            "{}{}busy {}  memory {} of {}  {} ({})  policy {}  holder {}  waiting {waiting}",
            if is_alone { String::new() } else { format!("{}: ", in_pool(device)) },
            if device.in_service { String::new() } else { format!("{}  ", service(device)) },
            percent(device_busy_ratio(device, before, after)),
            size(device.memory_used_bytes),
            size(device.memory_bytes),
            device.product,
            device.clock,
            device.policy,
            holder.map_or("-", |vgpu| vgpu.name.as_str()),
        )
    };
    after.devices.iter().map(one).collect()
}

/// A device with its pool, if it is of one.
fn in_pool(device: &DeviceReport) -> String {
    match &device.pool {
        Some(pool) => format!("{} in {pool}", device.name),
        None => device.name.clone(),
    }
}

/// A line of the table.
#[derive(Debug, Clone)]
struct Shown {
    cells: Vec<(Column, String)>,
    style: Style,
}

impl Shown {
    fn cell(&self, column: Column) -> String {
        let found = self.cells.iter().find(|(of, _)| *of == column);
        found.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// The lines: vGPUs by what they have of the device, those that use it before those that do not;
/// without a process only if all are wanted. Below a vGPU its processes.
fn rows(shares: &[Share], stats: &Stats, shows_all: bool, names: &mut Names) -> Vec<Shown> {
    let mut pairs: Vec<(&Share, &VgpuReport)> = shares
        .iter()
        .zip(&stats.vgpus)
        .filter(|(share, vgpu)| shows_all || vgpu.sessions > 0 || share.used_ns > 0)
        .collect();
    let activity = |share: &Share, vgpu: &VgpuReport| match (share.entitled > 0.0, vgpu.sessions) {
        (true, _) => 0,
        (false, 1..) => 1,
        (false, 0) => 2,
    };
    pairs.sort_by(|(left, first), (right, second)| {
        let by_share = right.of_device.total_cmp(&left.of_device);
        let by_activity = activity(left, first).cmp(&activity(right, second));
        by_activity.then(by_share).then_with(|| left.vgpu.cmp(&right.vgpu))
    });
    let mut rows = Vec::new();
    for (share, vgpu) in pairs {
        rows.push(row(share, vgpu, names));
        // A single process stands in its vGPU's line.
        if vgpu.processes.len() > 1 {
            rows.extend(vgpu.processes.iter().map(|process| process_row(process, names)));
        }
    }
    rows
}

fn row(share: &Share, vgpu: &VgpuReport, names: &mut Names) -> Shown {
    let (mut part, mut of) = ("-".to_owned(), "-".to_owned());
    if share.entitled > 0.0 {
        (part, of) = (percent(share.of_device), percent(share.entitled));
    }
    let doing = match share.asks_for_less {
        true => "asks for less",
        false => doing(share),
    };
    let command = match vgpu.processes.as_slice() {
        [] => String::new(),
        [process] => process.to_string(),
        several => format!("{} processes", several.len()),
    };
    let cells = vec![
        (Column::Vgpu, share.vgpu.clone()),
        (Column::User, tenant(vgpu, names)),
        (Column::Share, part),
        (Column::Entitled, of),
        (Column::State, doing.to_owned()),
        (Column::Bar, bar(share.of_device, share.entitled, BAR_WIDTH)),
        (Column::Weight, share.weight.to_string()),
        (Column::Cap, cap(vgpu)),
        (Column::Class, class(vgpu)),
        (Column::Device, vgpu.device.clone()),
        (Column::Memory, size(vgpu.memory_used_bytes)),
        (Column::Command, command),
    ];
    Shown { cells, style: style(share) }
}

fn process_row(process: &ProcessReport, names: &mut Names) -> Shown {
    let cells = vec![
        (Column::User, format!("  {}", names.of(process.uid))),
        (Column::State, state(process.state).to_owned()),
        (Column::Memory, size(process.memory_bytes)),
        (Column::Command, format!("└ {process}")),
    ];
    let is_idle = process.state == VgpuState::Idle;
    let style = if is_idle { Style::new().fg(Color::DarkGray) } else { Style::new() };
    Shown { cells, style }
}

/// The columns that fit into `width` characters, from left to right.
fn shown_columns(width: u16) -> Vec<(Column, &'static str, u16)> {
    let (mut shown, mut taken) = (Vec::new(), 0);
    for column in PRIORITIES {
        let found = COLUMNS.iter().find(|(of, ..)| *of == column);
        let wanted = found.map_or(0, |(_, _, width)| *width) + u16::from(!shown.is_empty());
        if shown.is_empty() || taken + wanted <= width {
            shown.push(column);
            taken += wanted;
        }
    }
    COLUMNS.iter().filter(|(column, ..)| shown.contains(column)).copied().collect()
}

/// Green near the share that it should have, yellow away from it, grey when idle.
fn style(share: &Share) -> Style {
    if share.entitled == 0.0 {
        Style::new().fg(Color::DarkGray)
    } else if share.asks_for_less || (share.of_device - share.entitled).abs() <= 0.05 {
        Style::new().fg(Color::Green)
    } else {
        Style::new().fg(Color::Yellow)
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use weft_node::admin::Answer;

    use super::*;

    /// A look at `busy` vGPUs that share the device and `idle` ones without a process.
    fn look(now_ns: u64, busy: u32, idle: u32) -> Stats {
        let vgpu = |name: String, sessions: u32, used_ns: u64| {
            let process = json!({
                "pid": 4242, "uid": 0, "program": "train.py", "memory_bytes": 64 << 20,
                "pinned_bytes": 0, "used_ns": used_ns, "state": "waiting",
            });
            let processes = vec![process; sessions as usize];
            json!({
                "name": name, "owner": 0, "device": "gpu0", "tenant": 0, "tenant_weight": 1, "weight": 1,
                "cap_ppm": null, "memory_bytes": 1 << 30, "memory_used_bytes": 64 << 20,
                "pinned_bytes": 0, "state": if sessions > 0 { "waiting" } else { "detached" },
                "sessions": sessions, "programs": [], "processes": processes,
                "used_ns": used_ns, "held_ns": 0, "turns": 0, "sessions_total": 1,
            })
        };
        // By name those that do nothing come first.
        let mut vgpus: Vec<_> = (0..idle).map(|n| vgpu(format!("a-idle-{n}"), 0, 0)).collect();
        let part = now_ns / u64::from(busy.max(1));
        vgpus.extend((0..busy).map(|n| vgpu(format!("z-busy-{n:02}"), 1 + n % 2, part)));
        let body = json!({
            "now_ns": now_ns, "policy": "fair", "holders": [], "waiting": busy,
            "devices": [{
                "name": "gpu0", "policy": "fair", "product": "Weft", "backend": "soft", "clock": "real", "memory_bytes": 1_u64 << 32,
                "memory_used_bytes": 0, "busy_ns": now_ns, "overruns": 0, "executions": 0,
            }],
            "vgpus": vgpus, "closure": {"charged_ns": 0, "busy_ns": 0},
        });
        let answer = json!({"answer": "stats", "body": body});
        let Answer::Stats(stats) = serde_json::from_value(answer).unwrap() else {
            panic!("the answer is of another kind");
        };
        stats
    }

    fn drawn(screen: &mut Screen, size: (u16, u16), busy: u32, idle: u32) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        let (before, after) = (look(0, busy, idle), look(1_000_000, busy, idle));
        terminal.draw(|frame| screen.draw(frame, &before, &after)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(size.0.into());
        cells.map(|row| row.iter().map(|cell| cell.symbol()).collect()).collect()
    }

    /// A look at a pool of two devices with a user-facing accelerator that was done with ten tasks
    /// more, one of them late, and `others` batch ones.
    fn tasks_look(now_ns: u64, others: usize) -> Stats {
        let accelerator = |name: String, sla_ns: u64, done: u64, in_time: u64| {
            json!({
                "name": name, "owner": 0, "pool": "vision", "weight": 1, "memory_bytes": 1 << 30,
                "sla_ns": sla_ns, "runner": 7, "connections": 1, "vgpus": [],
                "used_ns": now_ns / 2,
                "tasks": {
                    "waiting": 3, "running": 1, "done": done, "in_time": in_time, "longest_ns": 0,
                    "failed": 0, "dropped": 0, "stops": 0, "losses": 0, "resets": 0,
                },
            })
        };
        let (done, late) = if now_ns == 0 { (90, 1) } else { (100, 2) };
        let mut all = vec![accelerator("net".to_owned(), 200_000_000, done, done - late)];
        all.extend((0..others).map(|n| accelerator(format!("nightly-{n}"), 0, 5, 0)));
        let pool = json!({
            "name": "vision", "policy": "deadline", "devices": ["gpu0", "gpu1"], "user_devices": 1,
            "batch_devices": 1,
        });
        Stats {
            accelerators: serde_json::from_value(json!(all)).unwrap(),
            pools: serde_json::from_value(json!([pool])).unwrap(),
            ..look(now_ns, 1, 0)
        }
    }

    #[test]
    fn accelerators_are_on_the_screen_with_their_tasks_and_attainment() {
        let (before, after) = (tasks_look(0, 1), tasks_look(1_000_000_000, 1));
        let line = summary(&before, &after);
        assert!(line.contains("net 25.0% of vision (3 wait, 10.0/s, 90.0% in time)"), "{line}");
        for width in [80, 120] {
            let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
            let mut screen = Screen::default();
            terminal.draw(|frame| screen.draw(frame, &before, &after)).unwrap();
            let buffer = terminal.backend().buffer();
            let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
            let wanted = ["pool vision: deadline", "1 of 2", "200ms 98.0%", "10.0", "nightly-0"];
            for part in wanted {
                assert!(text.contains(part), "{width}: no {part} in\n{text}");
            }
        }
    }

    #[test]
    fn who_has_all_that_its_users_cap_leaves_it_is_capped() {
        let capped = |now_ns| {
            let mut look = look(now_ns, 2, 0);
            look.vgpus.iter_mut().for_each(|vgpu| vgpu.tenant_cap_ppm = Some(200_000));
            look.vgpus.iter_mut().for_each(|vgpu| vgpu.used_ns /= 5);
            look
        };
        let (before, after) = (capped(0), capped(1_000_000));
        assert!(summary(&before, &after).contains("(of 10.0%, capped)"));
        let mut terminal = Terminal::new(TestBackend::new(160, 24)).unwrap();
        let mut screen = Screen::default();
        terminal.draw(|frame| screen.draw(frame, &before, &after)).unwrap();
        let buffer = terminal.backend().buffer();
        let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        assert!(text.contains("20% of user") && text.contains("capped"), "{text}");
        // Its own cap stands alone where that is the lower one.
        let own = VgpuReport { cap_ppm: Some(100_000), ..after.vgpus[0].clone() };
        assert_eq!(cap(&own), "10%");
        let both = VgpuReport { cap_ppm: Some(500_000), ..after.vgpus[0].clone() };
        assert_eq!(cap(&both), "50%, 20% of user");
    }

    #[test]
    fn who_takes_less_than_is_due_to_it_asks_for_less_on_a_narrow_screen_too() {
        let look = |now_ns, parts: [u64; 2]| {
            let mut look = look(now_ns, 2, 0);
            for (vgpu, part) in look.vgpus.iter_mut().zip(parts) {
                vgpu.used_ns = now_ns * part / 100;
            }
            look
        };
        let rows = |parts| -> Vec<String> {
            let (before, after) = (look(0, parts), look(1_000_000, parts));
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            let mut screen = Screen::default();
            terminal.draw(|frame| screen.draw(frame, &before, &after)).unwrap();
            let cells = terminal.backend().buffer().content().chunks(80);
            let rows = cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
            rows.filter(|row| row.contains("z-busy-")).collect()
        };
        let [first, second] = <[String; 2]>::try_from(rows([70, 30])).unwrap();
        assert!(first.contains("z-busy-00") && !first.contains("asks for less"), "{first}");
        assert!(second.contains("asks for less") && second.contains("50.0%"), "{second}");
        let even = rows([50, 50]);
        assert!(!even.iter().any(|row| row.contains("asks for less")), "{even:?}");
    }

    /// Two busy vGPUs on two of three devices; the third has failed.
    fn devices_look(now_ns: u64) -> Stats {
        let mut look = look(now_ns, 2, 0);
        let of = |name: &str, pool: Option<&str>, busy_ns| DeviceReport {
            name: name.to_owned(),
            pool: pool.map(str::to_owned),
            busy_ns,
            ..look.devices[0].clone()
        };
        let train = DeviceReport {
            policy: "round_robin".to_owned(),
            ..of("gpu1", Some("train"), now_ns / 2)
        };
        let failure = Some("no driver".to_owned());
        let failed = DeviceReport { in_service: false, failure, ..of("gpu2", None, 0) };
        look.devices.extend([train, failed]);
        look.vgpus[1].device = "gpu1".to_owned();
        look.vgpus[1].state = VgpuState::Running;
        look
    }

    #[test]
    fn each_device_has_its_line_and_each_vgpu_its_share_of_its_own_device() {
        let (before, after) = (devices_look(0), devices_look(1_000_000));
        let mut terminal = Terminal::new(TestBackend::new(160, 24)).unwrap();
        let mut screen = Screen::default();
        terminal.draw(|frame| screen.draw(frame, &before, &after)).unwrap();
        let cells = terminal.backend().buffer().content().chunks(160);
        let rows: Vec<String> =
            cells.map(|row| row.iter().map(|cell| cell.symbol()).collect()).collect();
        for (start, parts) in [
            ("gpu0: busy", ["100.0%", "policy fair", "holder -", "waiting 1"]),
            ("gpu1 in train: busy", ["50.0%", "round_robin", "holder z-busy-01", "waiting 0"]),
            ("gpu2: failed", ["0.0%", "policy fair", "holder -", "waiting 0"]),
        ] {
            let row = rows.iter().find(|row| row.starts_with(start)).expect(start);
            assert!(parts.iter().all(|part| row.contains(part)), "{row}");
        }
        // Each is alone on its device, so that half of it is half of what it is due.
        for (vgpu, device) in [("z-busy-00", "gpu0"), ("z-busy-01", "gpu1")] {
            let row = rows.iter().find(|row| row.starts_with('│') && row.contains(vgpu));
            let row = row.expect("a line of the table");
            assert!([device, "50.0%", "100.0%"].iter().all(|part| row.contains(part)), "{row}");
        }
        assert!(summary(&before, &after).starts_with("busy  50.0%"), "over all devices");
    }

    #[test]
    fn many_accelerators_leave_the_vgpus_their_place() {
        let (before, after) = (tasks_look(0, 50), tasks_look(1_000_000_000, 50));
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut screen = Screen::default();
        terminal.draw(|frame| screen.draw(frame, &before, &after)).unwrap();
        let buffer = terminal.backend().buffer();
        let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        assert!(text.contains("z-busy-00") && text.contains("net"), "{text}");
    }

    #[test]
    fn who_uses_the_device_is_on_the_screen_with_user_and_command() {
        for width in [80, 120] {
            let lines = drawn(&mut Screen::default(), (width, 24), 4, 60);
            let text = lines.join("\n");
            for name in ["z-busy-00", "z-busy-03", "root", "train.py (4242)", "25.0%", "64MiB"] {
                assert!(text.contains(name), "{width}: no {name} in\n{text}");
            }
            assert!(!text.contains("a-idle"), "{text}");
            assert!(text.contains("60 without a process"), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_scrolled_to() {
        let mut screen = Screen::default();
        let text = drawn(&mut screen, (80, 12), 20, 0).join("\n");
        // 20 vGPUs, of which 10 have two processes, each in a line of its own.
        assert!(text.contains("34 more") && text.contains("z-busy-00"), "{text}");
        screen.skipped = usize::MAX;
        let text = drawn(&mut screen, (80, 12), 20, 0).join("\n");
        assert!(!text.contains("more") && text.contains("z-busy-19"), "{text}");
        screen.shows_all = true;
        screen.skipped = usize::MAX;
        let text = drawn(&mut screen, (80, 12), 20, 3).join("\n");
        assert!(text.contains("a-idle-2"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_no_narrower_ones() {
        let names = |width| -> Vec<&str> {
            shown_columns(width).into_iter().map(|(_, name, _)| name).collect()
        };
        assert_eq!(names(5), ["vGPU"]);
        assert_eq!(names(78), ["vGPU", "USER", "SHARE", "OF", "STATE", "MEMORY", "COMMAND"]);
        assert_eq!(names(160).len(), COLUMNS.len());
        for width in 16..200 {
            let sum: u16 = shown_columns(width).iter().map(|(_, _, width)| width + 1).sum();
            assert!(sum - 1 <= width, "{width}");
        }
    }
}
