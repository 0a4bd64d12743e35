//! A worker's log: lines go to the daemon through the link, which bounds and tags them.
//!
//! A worker has no file and no terminal of the daemon's: one that was taken over can neither fill a
//! disk nor write what looks like somebody else's line.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::config::LogConfig;
use crate::link::{LINE_BYTES_MAX, Severity};

/// Sends this process's log lines, panics included, through `tell`.
pub(crate) fn init(config: &LogConfig, tell: impl Fn(Severity, String) + Send + Sync + 'static) {
    let subscriber = Registry::default().with(config.filter()).with(Lines(tell));
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        tracing::debug!("the program has a log already");
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "worker panics");
        before(panic);
    }));
}

struct Lines<F>(F);

impl<S: Subscriber, F: Fn(Severity, String) + 'static> Layer<S> for Lines<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { mut text, fields } = line;
        text.push_str(&fields);
        truncate(&mut text);
        let severity = match *event.metadata().level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warn,
            Level::INFO => Severity::Info,
            Level::DEBUG | Level::TRACE => Severity::Debug,
        };
        (self.0)(severity, text);
    }
}

/// Cuts a text to what a line may have.
fn truncate(text: &mut String) {
    let end = (0..=LINE_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

/// An event as text: its message, then its fields.
#[derive(Default)]
struct Line {
    text: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
