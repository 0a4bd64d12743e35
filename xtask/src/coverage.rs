//! The coverage page: which driver calls Weft answers, from the one table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use weft_wire::table::{Call, Class, DRIVER_VERSION, StreamMode, TABLE};

/// Writes `docs/coverage.md`.
pub(crate) fn write() -> Result<()> {
    let path = page();
    fs::write(&path, render()).with_context(|| format!("failed to write {}", path.display()))
}

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/coverage.md")
}

fn render() -> String {
    let all = TABLE.iter().copied().flatten();
    let answered = all.clone().filter(|call| call.is_implemented()).count();
    let mut text = format!(
        "# Driver calls\n\n\
         Generated from the one table of calls by `cargo xtask coverage`; do not edit.\n\n\
         Weft exports every function and spelling that the CUDA {}.{} headers declare, {} in all, \
         and answers {answered} of them. The others return `CUDA_ERROR_NOT_SUPPORTED`.\n\n\
         *Local* calls never leave the process; *async* ones are sent and not awaited; *sync* ones \
         await the worker's answer; *bulk* ones carry data.\n",
        DRIVER_VERSION / 1000,
        DRIVER_VERSION % 1000 / 10,
        all.count(),
    );
    for rows in TABLE {
        noun(&mut text, rows);
    }
    text
}

fn noun(text: &mut String, rows: &[Call]) {
    let Some(first) = rows.first() else { return };
    let plain: Vec<_> = rows.iter().filter(|call| call.stream != StreamMode::PerThread).collect();
    let answered = plain.iter().filter(|call| call.is_implemented()).count();
    let title = first.noun.replace('_', " ");
    // Writing to a string cannot fail.
    let _ = write!(text, "\n## {title}: {answered} of {}\n\n", plain.len());
    let mut by_class: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for call in plain {
        let per_thread = if call.stream == StreamMode::Legacy { "°" } else { "" };
        by_class
            .entry(rank(call.class))
            .or_default()
            .push(format!("`{}`{per_thread}", call.symbol));
    }
    for (rank, symbols) in by_class {
        let _ = writeln!(text, "- **{}**: {}", CLASSES[rank], symbols.join(", "));
    }
    if rows.iter().any(|call| call.stream == StreamMode::PerThread) {
        let _ = writeln!(text, "\n° also in its per-thread default stream spelling.");
    }
}

const CLASSES: [&str; 6] = ["local", "async", "sync", "bulk in", "bulk out", "refused"];

fn rank(class: Class) -> usize {
    match class {
        Class::Local => 0,
        Class::Async => 1,
        Class::Sync => 2,
        Class::BulkIn => 3,
        Class::BulkOut => 4,
        Class::Refused => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_up_to_date() {
        let committed = fs::read_to_string(page()).unwrap_or_default();
        assert!(committed == render(), "docs/coverage.md is stale: run `cargo xtask coverage`");
    }
}
