//! The wall clock.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// When this process first asked, in milliseconds since 1970: no wait of an earlier process counts
/// against what this one waits for.
#[must_use]
pub fn started_ms() -> u64 {
    static STARTED_MS: OnceLock<u64> = OnceLock::new();
    *STARTED_MS.get_or_init(now_ms)
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
