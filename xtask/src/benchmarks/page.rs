//! The middle part of docs/benchmarks.md, written from the documents.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::attacks::{self, ADVERSARY};
use super::rows::Goal::{AtLeast, AtMost, Told};
use super::rows::{BENCHES, Bench, Row};
use super::{PAGE, RESULTS, document_path, in_words};
use crate::shell::root;
use crate::void::{failed, is_void, voids};

/// Where that part begins and ends.
const MARKS: [&str; 2] = ["<!-- begin figures -->\n", "<!-- end figures -->\n"];

/// Rewrites the page's figures.
pub(super) fn write(results: &Path) -> Result<()> {
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page)?;
    let parts = (text.split_once(MARKS[0]), text.split_once(MARKS[1]));
    let (Some((head, _)), Some((_, tail))) = parts else {
        bail!("{PAGE} lacks the marks between which its figures stand");
    };
    let mut middle = String::new();
    middle.push_str("| command | mode | figure | measured | goal | |\n|---|---|---|---|---|---|\n");
    let (mut windows, mut details, mut attacks) = (String::new(), String::new(), String::new());
    for bench in &BENCHES {
        let Ok(text) = fs::read_to_string(document_path(results, bench.name)) else {
            // Its goals are not met by that nobody looked.
            add_rows(&mut middle, bench, &Value::Null);
            continue;
        };
        let document: Value = serde_json::from_str(&text)?;
        ensure_full(bench.name, &document)?;
        add_rows(&mut middle, bench, &document);
        if let Some(why) = failed(&document) {
            let commit = word(&document, "commit");
            let _ = writeln!(windows, "- `{}`: failed: {why}; commit `{commit}`.", bench.name);
            continue;
        }
        let _ = writeln!(
            windows,
            "- `{}`: {}; {}; {}{}; commit `{}`.",
            bench.name,
            word(&document, "window"),
            word(&document, "machine"),
            stolen(&document),
            repeated(&document),
            word(&document, "commit")
        );
        for (figures, why) in voids(&document) {
            let _ = writeln!(windows, "  - void: `{}`: {why}.", figures.join("`, `"));
        }
        if bench.name.starts_with(ADVERSARY) {
            let (command, commit) = (in_words(bench.name), word(&document, "commit"));
            let table = attacks::table(&document);
            let _ = write!(attacks, "\nAttacks (`{command}`, commit `{commit}`):\n{table}");
        }
        add_details(&mut details, bench.name, &document);
    }
    let [begin, end] = MARKS;
    let figures = format!("{begin}{middle}{attacks}\nWindows:\n\n{windows}\n{details}{end}");
    fs::write(&page, format!("{head}{figures}{tail}"))?;
    Ok(())
}

/// Refuses a document of a quick run, whose figures mean little and count however busy the machine
/// was. Documents from before that was said are taken for full ones.
fn ensure_full(name: &str, document: &Value) -> Result<()> {
    let is_quick = document.get("quick").and_then(Value::as_bool).unwrap_or(false);
    ensure!(!is_quick, "{RESULTS}/{name}.json is of a quick run: measure it without --quick");
    let is_part = document.get("only").is_some();
    ensure!(!is_part, "{RESULTS}/{name}.json is of a part: measure it without --only");
    Ok(())
}

/// Every figure of a document, folded away.
fn add_details(text: &mut String, name: &str, document: &Value) {
    let command = in_words(name);
    let _ = writeln!(text, "<details><summary>all of <code>{command}</code></summary>\n");
    text.push_str("| | |\n|---|---|\n");
    for part in ["figures", "baselines", "controls"] {
        let Some(Value::Object(figures)) = document.get(part) else { continue };
        for (key, value) in figures {
            let value = value.as_f64().map_or_else(|| value.to_string(), shown);
            let _ = writeln!(text, "| {part}: `{key}` | {value} |");
        }
    }
    for figure in voids(document).flat_map(|(figures, _)| figures) {
        let _ = writeln!(text, "| `{figure}` | void |");
    }
    text.push_str("\n</details>\n\n");
}

fn add_rows(table: &mut String, bench: &Bench, document: &Value) {
    for (index, Row(key, what, goal)) in bench.rows.iter().enumerate() {
        let command =
            if index == 0 { format!("`{}`", in_words(bench.name)) } else { String::new() };
        let mode = if index == 0 { word(document, "mode") } else { "" };
        let value = ["figures", "controls", "baselines"]
            .iter()
            .find_map(|part| document.get(part)?.get(key)?.as_f64());
        let absent = match failed(document) {
            Some(_) => "failed",
            None if is_void(document, key) => "void",
            None => "not measured",
        };
        let measured = value.map_or_else(|| absent.to_owned(), shown);
        let (goal, verdict) = match (goal, value) {
            (Told, _) => (String::new(), ""),
            (AtMost(most), value) => {
                (format!("≤ {}", shown(*most)), verdict(value.map(|value| value <= *most)))
            }
            (AtLeast(least), value) => {
                (format!("≥ {}", shown(*least)), verdict(value.map(|value| value >= *least)))
            }
        };
        let _ =
            writeln!(table, "| {command} | {mode} | {what} | {measured} | {goal} | {verdict} |");
    }
}

fn word<'a>(document: &'a Value, key: &str) -> &'a str {
    document.get(key).and_then(Value::as_str).unwrap_or("not stated")
}

/// How much of the processors' time a hypervisor took away while it was measured.
fn stolen(document: &Value) -> String {
    document.get("stolen").and_then(Value::as_f64).map_or_else(
        || "nobody looked whether processors were taken away".to_owned(),
        |part| format!("{} % of the processors' time taken away", shown(part * 100.0)),
    )
}

/// How many runs were void and done again, if any were.
fn repeated(document: &Value) -> String {
    let runs = document.get("repeated").and_then(Value::as_array).map_or(0, Vec::len);
    if runs == 0 { String::new() } else { format!("; {runs} void runs were done again") }
}

fn verdict(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    }
}

/// Four significant digits at most.
fn shown(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        small if small < 0.1 => 5,
        small if small < 10.0 => 3,
        middle if middle < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_a_quick_run_is_refused() {
        let document = |quick: Value| serde_json::json!({"mode": "paced", "quick": quick});
        let error = ensure_full("call", &document(true.into())).unwrap_err().to_string();
        assert!(error.contains("real/call.json is of a quick run"), "{error}");
        ensure_full("call", &document(false.into())).unwrap();
        ensure_full("call", &serde_json::json!({"mode": "paced"})).unwrap();
    }

    #[test]
    fn figures_are_short_and_goals_judged() {
        assert_eq!(shown(0.998_84), "0.999");
        assert_eq!(shown(166.4), "166");
        assert_eq!(shown(0.000_04), "0.00004");
        assert_eq!(shown(0.0), "0");
        let bench = Bench { name: "x", rows: &[Row("a", "A", AtMost(1.0)), Row("b", "B", Told)] };
        let document = serde_json::json!({"mode": "real", "figures": {"a": 1.5}});
        let mut table = String::new();
        add_rows(&mut table, &bench, &document);
        let expected =
            "| `bench x` | real | A | 1.5 | ≤ 1 | **missed** |\n|  |  | B | not measured |  |  |\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn what_failed_has_no_figures_of_an_earlier_commit() {
        let bench = Bench { name: "x", rows: &[Row("a", "A", AtMost(1.0))] };
        let document = serde_json::json!({"name": "x", "failed": "no document", "figures": {}});
        assert_eq!(failed(&document), Some("no document"));
        let mut table = String::new();
        add_rows(&mut table, &bench, &document);
        assert_eq!(table, "| `bench x` | not stated | A | failed | ≤ 1 |  |\n");
    }

    #[test]
    fn what_is_void_is_neither_a_figure_nor_forgotten() {
        let rows =
            &[Row("small", "S", AtMost(1.0)), Row("large", "L", AtMost(1.0)), Row("no", "N", Told)];
        let bench = Bench { name: "x", rows };
        let document = serde_json::json!({"mode": "paced", "figures": {"large": 0.5},
            "void": [{"figures": ["small", "other"], "late_share": [0.05], "why": "too busy"}]});
        let (mut table, mut details) = (String::new(), String::new());
        add_rows(&mut table, &bench, &document);
        let expected = "| `bench x` | paced | S | void | ≤ 1 |  |\n|  |  | L | 0.5 | ≤ 1 | met |\n\
            |  |  | N | not measured |  |  |\n";
        assert_eq!(table, expected);
        add_details(&mut details, "x", &document);
        assert!(details.contains("| `small` | void |\n| `other` | void |\n"), "{details}");
    }
}
