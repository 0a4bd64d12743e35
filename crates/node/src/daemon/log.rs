//! The log.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{LogConfig, LogFormat};

/// Sends log lines to standard error, as configured. A program that has a log already keeps it.
pub(crate) fn init(config: &LogConfig) {
    let filter = EnvFilter::try_new(&config.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let set = match config.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if set.is_err() {
        tracing::debug!("the program has a log already");
    }
}
