//! The table of attacks in docs/benchmarks.md, from `bench adversary`'s document.

use std::fmt::Write as _;

use serde_json::Value;

/// The benchmark whose document has them.
pub(super) const ADVERSARY: &str = "adversary";

/// An honest tenant in an attacker's place.
const NOBODY: &str = "none";

/// The goals, and what a control must lose at least: what misses them is printed in bold.
const LOSS_MAX: f64 = 0.01;
const UTILIZATION_MIN: f64 = 0.97;
const CONTROL_MIN: f64 = 0.1;

const HEAD: &str = "\n| attack | mode | lost work | of its half | lost time | control's lost work \
    | longest stall, ms | beyond, ms | utilisation |\n|---|---|---|---|---|---|---|---|---|\n";

/// Whoever took most comes first, behind the honest tenant.
pub(super) fn table(document: &Value) -> String {
    let mut attacks: Vec<Attack<'_>> = Attack::all(document).collect();
    attacks.sort_by(|one, other| {
        let key = |attack: &Attack<'_>| (attack.name == NOBODY, attack.of("loss").unwrap_or(0.0));
        let ((own, loss), (others, of_other)) = (key(one), key(other));
        others.cmp(&own).then(of_other.total_cmp(&loss))
    });
    attacks.iter().fold(HEAD.to_owned(), |mut text, attack| {
        let _ = writeln!(text, "{}", attack.row());
        text
    })
}

/// One attack's figures.
struct Attack<'a> {
    name: &'a str,
    document: &'a Value,
}

impl<'a> Attack<'a> {
    /// Those whose figures are all there.
    fn all(document: &'a Value) -> impl Iterator<Item = Self> {
        let measured = document["baselines"].as_object().into_iter().flatten();
        let names = measured.filter_map(|(key, _)| key.strip_prefix("utilization_"));
        names.map(move |name| Self { name, document }).filter(|attack| attack.of("loss").is_some())
    }

    fn number(&self, part: &str, figure: &str) -> Option<f64> {
        self.document[part][format!("{figure}_{}", self.name)].as_f64()
    }

    /// What was seen beside the attacker. The honest tenant in its place is among the controls.
    fn of(&self, figure: &str) -> Option<f64> {
        let part = if self.name == NOBODY { "controls" } else { "figures" };
        self.number(part, figure)
    }

    fn row(&self) -> String {
        let error = self.of("loss_error");
        let mode = if error.is_some() { "real" } else { "paced" };
        let work = loss(self.of("loss"), error);
        let own = loss(self.of("loss_own"), None);
        let time = loss(self.of("time_loss"), self.of("time_loss_error"));
        let control = match self.number("controls", "loss").filter(|_| self.name != NOBODY) {
            Some(lost) => marked(lost < CONTROL_MIN, &decimal(lost)),
            None => NOTHING.to_owned(),
        };
        let whole = |value: Option<f64>| value.map_or_else(|| NOTHING.to_owned(), whole);
        let stalls = [self.of("stall_ms"), self.number("baselines", "stall_ms")].map(whole);
        let beyond = whole(self.of("stall_beyond_ms"));
        let part = |value: Option<f64>| {
            value.map_or_else(
                || NOTHING.to_owned(),
                |value| marked(value < UTILIZATION_MIN, &decimal(value)),
            )
        };
        let used = [self.of("utilization"), self.number("baselines", "utilization")].map(part);
        format!(
            "| `{}` | {mode} | {work} | {own} | {time} | {control} | {} | {beyond} | {} |",
            self.name,
            stalls.join("; "),
            used.join("; ")
        )
    }
}

/// Where nothing was measured.
const NOTHING: &str = "–";

fn loss(value: Option<f64>, error: Option<f64>) -> String {
    let Some(value) = value else { return NOTHING.to_owned() };
    let error = error.map_or_else(String::new, |error| format!(" ± {error:.3}"));
    format!("{}{error}", marked(value > LOSS_MAX, &decimal(value)))
}

fn decimal(value: f64) -> String {
    with_minus(&format!("{value:.3}"))
}

fn whole(value: f64) -> String {
    with_minus(&format!("{value:.0}"))
}

fn with_minus(text: &str) -> String {
    text.replace('-', "−")
}

fn marked(misses: bool, text: &str) -> String {
    if misses { format!("**{text}**") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_most_comes_first_behind_the_honest_tenant() {
        let document = serde_json::json!({
            "figures": {"loss_a": -0.02, "loss_error_a": 0.01, "loss_own_a": 0.0, "stall_ms_a": 7.2,
                "stall_beyond_ms_a": 1.2, "utilization_a": 0.98, "time_loss_a": 0.002,
                "time_loss_error_a": 0.001, "loss_b": 0.3, "loss_own_b": 0.1, "stall_ms_b": 103.0,
                "stall_beyond_ms_b": -3.0, "utilization_b": 0.9, "utilization_min": 0.9},
            "baselines": {"stall_ms_a": 9.0, "utilization_a": 0.97, "stall_ms_b": 14.0,
                "utilization_b": 0.996, "utilization_none": 0.96, "stall_ms_none": 2.0},
            "controls": {"loss_a": 0.9, "loss_b": 0.05, "loss_none": 0.004, "loss_error_none": 0.02,
                "loss_own_none": 0.0, "stall_ms_none": 3.0, "stall_beyond_ms_none": 4.0,
                "utilization_none": 0.96},
        });
        let table = table(&document);
        let rows: Vec<&str> = table.trim().lines().skip(2).collect();
        let expected = [
            "`none` | real | 0.004 ± 0.020 | 0.000 | – | – | 3; 2 | 4 | **0.960**; **0.960**",
            "`b` | paced | **0.300** | **0.100** | – | **0.050** | 103; 14 | −3 | **0.900**; 0.996",
            "`a` | real | −0.020 ± 0.010 | 0.000 | 0.002 ± 0.001 | 0.900 | 7; 9 | 1 | 0.980; 0.970",
        ];
        assert_eq!(rows, expected.map(|row| format!("| {row} |")));
    }

    #[test]
    fn what_was_left_out_or_void_is_no_row() {
        let document = serde_json::json!({"figures": {}, "baselines": {"utilization_users": 0.9}});
        assert_eq!(table(&document), HEAD);
    }
}
