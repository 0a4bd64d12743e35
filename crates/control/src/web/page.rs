//! The page, as text. Everything that comes from outside goes through [`escape`].

use std::fmt::Write as _;

use weft_api::v1::{AuditEntry, Cgpu, Gpu, Instance, Mode, Project, UsageRecord};

use crate::service::Overview;
use crate::words::counted;

/// A text that is shown as it is.
#[must_use]
pub(super) fn escape(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            other => shown.push(other),
        }
    }
    shown
}

/// A table with a heading for each column; `n` before one is a column of numbers.
fn table(text: &mut String, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let is_number = |column: &&str| column.starts_with("n ");
    // A string takes everything, here and below.
    let _ = write!(text, "<div class=wide><table><thead><tr>");
    for column in columns {
        let class = if is_number(column) { " class=n" } else { "" };
        let _ = write!(text, "<th{class}>{}</th>", escape(column.trim_start_matches("n ")));
    }
    text.push_str("</tr></thead><tbody>");
    let mut is_empty = true;
    for row in rows {
        is_empty = false;
        text.push_str("<tr>");
        for (column, cell) in columns.iter().zip(row) {
            let class = if is_number(column) { " class=n" } else { "" };
            let _ = write!(text, "<td{class}>{cell}</td>");
        }
        text.push_str("</tr>");
    }
    if is_empty {
        let _ = write!(text, "<tr><td class=quiet colspan={}>none</td></tr>", columns.len());
    }
    text.push_str("</tbody></table></div>\n");
}

fn heading(text: &mut String, title: &str, more: &str) {
    let _ = writeln!(text, "<h2>{} <small>{}</small></h2>", escape(title), escape(more));
}

/// A time as people of one zone write it; the page says which.
fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// The date of a day since 1970-01-01 (days from civil, after Howard Hinnant).
fn date(days: u64) -> (u64, u64, u64) {
    // Eras of 400 years have 146,097 days; years begin in March, so that leap days are last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
    }
}

/// A value of a type with names in JSON, by its name.
fn named(value: &impl serde::Serialize) -> String {
    let name = serde_json::to_value(value).ok();
    escape(name.as_ref().and_then(serde_json::Value::as_str).unwrap_or("?"))
}

fn gpus(text: &mut String, gpus: &[Gpu], cgpus: &[Cgpu]) {
    let (held, memory) = gpus
        .iter()
        .fold((0, 0), |(held, memory), gpu| (held + gpu.held_mib, memory + gpu.memory_mib));
    heading(text, "GPUs", &format!("{} with {held} of {memory} MiB given out", gpus.len()));
    let row = |gpu: &Gpu| {
        let shares = cgpus.iter().filter(|cgpu| cgpu.gpu == Some(gpu.id)).map(|cgpu| {
            let what = match cgpu.mode {
                Mode::Exclusive => "alone".to_owned(),
                Mode::Shared => format!("{} MiB, weight {}", cgpu.memory_mib, cgpu.weight),
            };
            let (project, instance) = (escape(&cgpu.project), escape(&cgpu.instance));
            format!("<span class=share>{project} <b>{instance}</b> {what}</span>")
        });
        let (memory, held) = (gpu.memory_mib, gpu.held_mib);
        let state = match gpu.in_service {
            _ if gpu.lost_ms.is_some() => "lost",
            true if gpu.unheard_ms.is_some() => "node does not answer",
            true => "in service",
            false => "drained",
        };
        vec![
            gpu.id.to_string(),
            format!("{} {}", escape(&gpu.node), escape(&gpu.device)),
            escape(&gpu.product),
            format!("<meter max={memory} value={held}>{held}</meter> {held} / {memory} MiB"),
            state.to_owned(),
            shares.collect(),
        ]
    };
    let columns = ["n GPU", "Node", "Product", "Memory given out", "State", "Who shares it"];
    table(text, &columns, gpus.iter().map(row));
}

fn grants(text: &mut String, cgpus: &[Cgpu]) {
    heading(text, "Grants", &counted(cgpus.len(), "cGPU"));
    let row = |cgpu: &Cgpu| {
        vec![
            escape(&cgpu.id),
            escape(&cgpu.project),
            mode(cgpu.mode),
            cgpu.memory_mib.to_string(),
            cgpu.weight.to_string(),
            escape(cgpu.masked.as_deref().unwrap_or("")),
            named(&cgpu.state),
            time(cgpu.created_ms),
        ]
    };
    let columns =
        ["cGPU", "Project", "Mode", "n MiB", "n Weight", "Masked address", "State", "Since"];
    table(text, &columns, cgpus.iter().map(row));
}

fn queue(text: &mut String, queue: &[Instance], length: usize) {
    heading(text, "Queue", &format!("{} being made or removed", counted(length, "instance")));
    let row = |instance: &Instance| {
        vec![
            escape(&instance.id),
            escape(&instance.name),
            escape(&instance.project),
            named(&instance.state),
            instance.cgpus.to_string(),
            time(instance.created_ms),
            escape(instance.failure.as_deref().unwrap_or("")),
        ]
    };
    let columns = ["Instance", "Name", "Project", "State", "n cGPUs", "Since", "Why"];
    table(text, &columns, queue.iter().map(row));
}

fn projects(text: &mut String, projects: &[Project]) {
    heading(text, "Projects", "what they have, of what they may have");
    let row = |project: &Project| {
        let (used, quota) = (&project.used, &project.quota);
        vec![
            escape(&project.name),
            format!("{} / {}", used.cgpus, quota.cgpus),
            format!("{} / {}", used.memory_mib, quota.memory_mib),
            format!("{} / {}", used.exclusive_gpus, quota.exclusive_gpus),
            format!("{} / {}", used.weight, quota.weight),
            format!("{} / {}", used.user_facing, quota.user_facing),
        ]
    };
    let columns =
        ["Project", "n cGPUs", "n MiB", "n GPUs of its own", "n Weight", "n User-facing cGPUs"];
    table(text, &columns, projects.iter().map(row));
}

fn usage(text: &mut String, usage: &[UsageRecord]) {
    heading(text, "Usage", "the newest records");
    let row = |record: &UsageRecord| {
        // Seconds with three digits; integers, so that nothing is rounded twice.
        let used = record.used_ns.map(|ns| ns / 1_000_000);
        let used = used.map(|ms| format!("{}.{:03}", ms / 1000, ms % 1000));
        vec![
            escape(&record.cgpu),
            escape(&record.project),
            mode(record.mode),
            record.memory_mib.to_string(),
            time(record.from_ms),
            record.to_ms.map(time).unwrap_or_default(),
            used.unwrap_or_default(),
        ]
    };
    let columns = ["cGPU", "Project", "Mode", "n MiB", "From", "To", "n Device time, s"];
    table(text, &columns, usage.iter().map(row));
}

fn audit(text: &mut String, audit: &[AuditEntry]) {
    heading(text, "Audit", "who did or was refused what, the newest first");
    let row = |entry: &AuditEntry| {
        vec![
            time(entry.at_ms),
            escape(&entry.actor),
            escape(entry.project.as_deref().unwrap_or("")),
            escape(&entry.action),
            escape(&entry.target),
            entry.status.to_string(),
        ]
    };
    let columns = ["When", "Who", "Project", "What", "About", "n Status"];
    table(text, &columns, audit.iter().map(row));
}

fn document(head: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\"><title>Weft</title>\
         <link rel=stylesheet href=\"/web/style.css\">{head}</head><body>\n{body}</body></html>\n"
    )
}

/// What somebody sees who has logged in.
#[must_use]
pub(super) fn overview(seen: &Overview, now_ms: u64) -> String {
    let whose = match &seen.project {
        None => "all projects".to_owned(),
        Some(project) => format!("project {project}"),
    };
    let mut body = format!(
        "<header><h1>Weft</h1><span>{} <span class=quiet>sees {}</span></span>\
         <form method=post action=\"/logout\"><button>Log out</button></form></header>\n\
         <main data-live><p class=quiet id=state>as of {} UTC</p>\n",
        escape(&seen.who),
        escape(&whose),
        time(now_ms)
    );
    if let Some(all) = &seen.gpus {
        gpus(&mut body, all, &seen.cgpus);
    }
    grants(&mut body, &seen.cgpus);
    queue(&mut body, &seen.queue, seen.queue_length);
    projects(&mut body, &seen.projects);
    usage(&mut body, &seen.usage);
    if let Some(entries) = &seen.audit {
        audit(&mut body, entries);
    }
    body.push_str("</main>\n");
    let head = "<noscript><meta http-equiv=refresh content=5></noscript>\
                <script src=\"/web/live.js\" defer></script>";
    document(head, &body)
}

/// The form for a token.
#[must_use]
pub(super) fn login(wrong: Option<&str>) -> String {
    let wrong = wrong.map(|words| format!("<p class=wrong>{}</p>", escape(words)));
    document(
        "",
        &format!(
            "<main><form class=login method=post action=\"/login\"><h1>Weft</h1>{}\
             <label for=token>A token of the control plane</label>\
             <input id=token name=token type=password autocomplete=current-password required \
             autofocus><button>Log in</button>\
             <p class=quiet>Administrators make tokens; one with the role reader is enough.</p>\
             </form></main>\n",
            wrong.unwrap_or_default()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_782_399_000), "2000-02-28 23:59:59");
        assert_eq!(time(951_782_400_999), "2000-02-29 00:00:00");
        assert_eq!(time(1_735_689_600_000), "2025-01-01 00:00:00");
        assert_eq!(time(4_107_542_400_000), "2100-03-01 00:00:00");
    }

    #[test]
    fn what_comes_from_outside_is_no_markup() {
        assert_eq!(escape("<script>\"'&"), "&lt;script&gt;&quot;&#39;&amp;");
        assert!(login(Some("<b>")).contains("&lt;b&gt;"));
    }
}
