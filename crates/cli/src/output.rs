//! How `weft` speaks to people: tables, sizes, times, errors.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use weft_node::admin::AdminError;
use weft_node::config::ByteSize;

/// Exit code of a program whose output nobody reads any more, as shells say it: 128 + SIGPIPE.
const UNREAD: i32 = 141;

/// Prints one line of data. Without a reader (`weft ls | head -1`) the command ends here; a daemon
/// that was started for it ends with it.
#[expect(clippy::exit, reason = "what is left to do is to print more")]
pub(crate) fn line(text: &str) {
    let Err(error) = writeln!(io::stdout(), "{text}") else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(UNREAD);
    }
    note(&format!("error: cannot write to the standard output: {error}"));
    std::process::exit(1);
}

/// Prints one line for people, apart from the data. That they cannot read it stops nothing.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints an error with its causes, and what to do next where that is known.
pub(crate) fn failure(error: &anyhow::Error) {
    let mut text = format!("error: {error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    note(&text);
    if let Some(hint) = error.chain().find_map(hint) {
        note(&format!("hint: {hint}"));
    }
}

fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref::<AdminError>()? {
        AdminError::NotRunning { .. } => Some(
            "start a daemon with `weft node`, or name its directory with --runtime-dir; \
             `weft run -- PROGRAM` starts one for a single run",
        ),
        AdminError::Permission { .. } => {
            Some("ask as the user who runs the daemon, or let it widen sockets.admin_mode")
        }
        AdminError::Stranger { .. } => Some(
            "name your own node's directory with --runtime-dir, or ask root to run a node for all",
        ),
        AdminError::Unexpected(_) => Some("use the `weft` that belongs to the running daemon"),
        AdminError::Io(_) | AdminError::Refused(_) => None,
    }
}

/// The column of a table that is a list, as long as it is: it comes last.
pub(crate) const LIST: &str = "PROCESSES";

/// A table whose columns are as wide as their widest cell; the first and the list are left-aligned.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let head: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match (column, header[column]) {
                (0, _) => write!(text, "{cell:<width$}"),
                (_, LIST) => write!(text, "  {cell}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

/// A size with a binary unit, exact or with one decimal.
pub(crate) fn size(bytes: u64) -> String {
    let exact = ByteSize(bytes).to_string();
    if exact.len() <= 7 {
        return exact;
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.1}MiB")
}

/// Nanoseconds as seconds with a sensible number of decimals.
pub(crate) fn seconds(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three decimals are shown")]
    let seconds = ns as f64 / 1e9;
    format!("{seconds:.3}s")
}

/// A ratio as a percentage.
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.1}%", 100.0 * ratio)
}

/// A bar of `width` characters, filled to `ratio`, with a mark where it should end.
pub(crate) fn bar(ratio: f64, mark: f64, width: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a bar is a few dozen characters")]
    let scale = width as f64;
    (0..width)
        .map(|cell| {
            #[expect(clippy::cast_precision_loss, reason = "a bar is a few dozen characters")]
            let (from, to) = (cell as f64 / scale, (cell as f64 + 1.0) / scale);
            if mark > 0.0 && from < mark && mark <= to {
                '┃'
            } else if to <= ratio + 0.5 / scale {
                '█'
            } else {
                '·'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_its_columns() {
        let rows = vec![vec!["a".to_owned(), "10".to_owned()], vec!["bcd".into(), "2".into()]];
        assert_eq!(table(&["NAME", "X"], &rows), "NAME   X\na     10\nbcd    2\n");
        assert_eq!(table(&["NAME", LIST], &rows), "NAME  PROCESSES\na     10\nbcd   2\n");
    }

    #[test]
    fn a_bar_is_filled_to_the_ratio_and_marked() {
        assert_eq!(bar(0.5, 0.0, 4), "██··");
        assert_eq!(bar(0.5, 0.75, 4), "██┃·");
        assert_eq!(bar(0.0, 0.0, 4), "····");
    }
}
