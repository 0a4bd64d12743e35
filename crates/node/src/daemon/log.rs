//! The log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

use crate::config::{LogConfig, LogFormat};

/// Sends log lines to standard error, as configured. A program that has a log already keeps it.
pub(crate) fn init(config: &LogConfig) {
    let to = Registry::default().with(config.filter());
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let set = match config.format {
        LogFormat::Text => to.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => to.with(lines.json().flatten_event(true)).try_init(),
    };
    if set.is_err() {
        tracing::debug!("the program has a log already");
    }
}

/// Bounds lines that others can cause as often as they like.
#[derive(Debug)]
pub(crate) struct LogLimit {
    per_second: u32,
    state: Mutex<LimitState>,
}

#[derive(Debug)]
struct LimitState {
    /// When the present second began.
    since: Option<Instant>,
    /// Lines in it.
    lines: u32,
    /// Lines that were kept back since the last one.
    suppressed: u64,
}

impl LogLimit {
    /// At most so many lines per second.
    pub(crate) const fn per_second(lines: u32) -> Self {
        let state = LimitState { since: None, lines: 0, suppressed: 0 };
        Self { per_second: lines, state: Mutex::new(state) }
    }

    /// Asks for a line: with it goes how many were kept back since the last one. `None`: this one
    /// is kept back, too.
    pub(crate) fn line(&self, now: Instant) -> Option<u64> {
        self.line_if(now, || true)
    }

    /// The same where another bound has to allow the line, too, which is asked last: what it
    /// refuses is kept back and counted here.
    fn line_if(&self, now: Instant, allows: impl FnOnce() -> bool) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let second = Duration::from_secs(1);
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= second) {
            (state.since, state.lines) = (Some(now), 0);
        }
        if state.lines >= self.per_second || !allows() {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// Lines per second that a tenant can cause: its workers' and those about its sessions.
const TENANT_LINES: u32 = 20;

/// The same for all tenants together.
const ALL_LINES: u32 = 200;

/// Tenants whose lines are counted apart.
const TENANTS_MAX: usize = 1024;

/// Bounds the lines of each tenant and of all tenants.
#[derive(Debug)]
pub(crate) struct TenantLines {
    tenants: Mutex<BTreeMap<u32, Arc<LogLimit>>>,
    all: LogLimit,
}

impl Default for TenantLines {
    fn default() -> Self {
        Self { tenants: Mutex::default(), all: LogLimit::per_second(ALL_LINES) }
    }
}

impl TenantLines {
    /// Asks for a line that the tenant of a user caused: with it goes how many of the tenant's
    /// lines were kept back since its last one. `None`: this one is kept back, too.
    pub(crate) fn line(&self, payer: u32, now: Instant) -> Option<u64> {
        self.of(payer).line_if(now, || self.all.line(now).is_some())
    }

    fn of(&self, payer: u32) -> Arc<LogLimit> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(&payer) {
            // Each of them begins a second anew, at worst.
            tenants.clear();
        }
        let limit = || Arc::new(LogLimit::per_second(TENANT_LINES));
        Arc::clone(tenants.entry(payer).or_insert_with(limit))
    }
}

/// Somebody else's words, safe for a log and a terminal, at most `limit` characters of them.
pub(crate) fn printable(text: &str, limit: usize) -> String {
    text.chars().filter(|c| !c.is_control() && !is_invisible(*c)).take(limit).collect()
}

/// Characters that are not seen and change how those around them are: line and paragraph
/// separators, directions, and widths of nothing.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_past_the_limit_are_kept_back_and_counted() {
        let limit = LogLimit::per_second(2);
        let start = Instant::now();
        let lines: Vec<_> = (0..5).map(|_| limit.line(start)).collect();
        assert_eq!(lines, [Some(0), Some(0), None, None, None]);
        let next = start + Duration::from_secs(1);
        let lines: Vec<_> = (0..3).map(|_| limit.line(next)).collect();
        assert_eq!(lines, [Some(3), Some(0), None]);
    }

    #[test]
    fn what_the_bound_of_all_keeps_back_is_counted_for_whose_line_it_was() {
        let lines = TenantLines::default();
        let start = Instant::now();
        for _ in 0..=TENANT_LINES {
            lines.line(1000, start);
        }
        let next = start + Duration::from_secs(1);
        // Others take all there is.
        assert!((0..1000).filter(|payer| lines.line(*payer, next).is_some()).count() > 100);
        assert_eq!(lines.line(1000, next), None);
        assert_eq!(lines.line(1000, next + Duration::from_secs(1)), Some(2));
    }

    #[test]
    fn a_user_who_floods_the_log_leaves_room_for_others() {
        let lines = TenantLines::default();
        let start = Instant::now();
        let written = (0..3000).filter(|_| lines.line(1000, start).is_some()).count();
        assert_eq!(written, usize::try_from(TENANT_LINES).unwrap());
        assert_eq!(lines.line(1001, start), Some(0));
        let next = start + Duration::from_secs(1);
        assert_eq!(lines.line(1000, next), Some(3000 - u64::from(TENANT_LINES)));
        let many = (0..100_000).filter(|uid| lines.line(*uid, next).is_some()).count();
        assert!(many <= usize::try_from(ALL_LINES).unwrap());
    }
}
