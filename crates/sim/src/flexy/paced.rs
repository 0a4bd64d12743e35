//! What `weft bench flexy` and `weft sim predict` measured on paced devices, beside what is
//! simulated.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::experiments::SLA_NS;
use super::paper::section_name;
use super::study::ENTRIES;
use super::workload::COLUMNS;
use crate::outcome::{Dot, Outcome, PlotKind};
use crate::report::RealError;

/// A document of one of the two.
#[derive(Clone, Debug, Deserialize)]
struct Document {
    name: String,
    #[serde(default)]
    window: String,
    #[serde(default)]
    machine: String,
    commit: String,
    #[serde(default)]
    figures: BTreeMap<String, f64>,
    #[serde(default)]
    controls: BTreeMap<String, f64>,
    /// Of `predict`, a configuration each; other benchmarks have other rows.
    #[serde(default)]
    rows: Vec<serde_json::Value>,
}

/// What one configuration of `predict` says.
#[derive(Debug, Deserialize)]
struct Row {
    configuration: u64,
    tenants: Vec<Tenant>,
}

/// A tenant of it; only services have latencies.
#[derive(Debug, Deserialize)]
struct Tenant {
    class: String,
    p99_us: Option<f64>,
    p99_us_simulated: Option<f64>,
}

/// Real runs on paced devices.
#[derive(Clone, Debug, Default)]
pub struct Paced {
    flexy: Option<Document>,
    /// With each service's P99.
    predict: Option<(Document, Vec<Dot>)>,
}

impl Paced {
    /// Takes in a document of `weft bench NAME --json`; those of other benchmarks are left alone.
    ///
    /// # Errors
    /// If it is no document, or one of `predict` with other rows.
    pub fn take(&mut self, text: &str) -> Result<(), RealError> {
        let document: Document = serde_json::from_str(text)?;
        match document.name.as_str() {
            "flexy" => self.flexy = Some(document),
            "predict" => {
                let services = services_of(&document)?;
                self.predict = Some((document, services));
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts the runs on the curves of their columns, and appends a section of their own.
    pub(super) fn beside(&self, sections: &mut Vec<Outcome>) {
        if let Some(document) = &self.flexy {
            for column in COLUMNS {
                let name = section_name(column, SLA_NS);
                let dots = dots_of(document, &column.name.replace(':', "_"));
                let section = sections.iter_mut().find(|section| section.name == name);
                for plot in section.into_iter().flat_map(|section| &mut section.plots) {
                    let is_drawn =
                        |dot: &&(&str, Dot)| plot.series.iter().any(|series| series.name == dot.0);
                    plot.dots = dots.iter().filter(is_drawn).map(|(_, dot)| dot.clone()).collect();
                    "a paced node, one run".clone_into(&mut plot.dots_text);
                }
            }
        }
        let predict = self.predict.as_ref().map(|(document, _)| document);
        let all = self.flexy.iter().chain(predict);
        let sources: Vec<String> = all.map(Document::source).collect();
        if sources.is_empty() {
            return;
        }
        let mut outcome = Outcome::new("paced", "on a node", sources.join("; "));
        if let Some((_, services)) = &self.predict {
            scatter(&mut outcome, services);
        }
        if self.flexy.is_some() {
            outcome
                .note("`weft bench flexy` stands as diamonds on the policies' curves at 200 ms.");
        }
        sections.push(outcome);
    }
}

impl Document {
    fn source(&self) -> String {
        let Self { name, window, machine, commit, .. } = self;
        format!("Not simulated: {name}, {window}, {machine}, commit {commit}")
    }
}

/// The policies that ran in a column: utilisation and part in time, in percent.
fn dots_of(document: &Document, column: &str) -> Vec<(&'static str, Dot)> {
    let of = |kind: &str, policy: &str| {
        let name = format!("{kind}_{policy}_{column}");
        document.figures.get(&name).or_else(|| document.controls.get(&name)).copied()
    };
    let dot = |policy: &'static str| {
        let (y, utilization) = (of("sla_pct", policy)?, of("utilization", policy)?);
        let text = format!("{policy}, a paced node: {y:.1} at {:.1}", 100.0 * utilization);
        Some((policy, Dot { x: 100.0 * utilization, y, text }))
    };
    ENTRIES.iter().filter_map(|entry| dot(entry.name)).collect()
}

/// Each service's P99 in ms: predicted, and as it was measured.
fn services_of(document: &Document) -> Result<Vec<Dot>, RealError> {
    let mut dots = Vec::new();
    for row in &document.rows {
        let Row { configuration, tenants } = Row::deserialize(row)?;
        for Tenant { class, p99_us, p99_us_simulated } in tenants {
            let (Some(real), Some(simulated)) = (p99_us, p99_us_simulated) else { continue };
            let (x, y) = (simulated / 1e3, real / 1e3);
            let text = format!("configuration {configuration}, {class}: {y:.1}, predicted {x:.1}");
            dots.push(Dot { x, y, text });
        }
    }
    Ok(dots)
}

fn scatter(outcome: &mut Outcome, services: &[Dot]) {
    let most = services.iter().map(|dot| dot.x.max(dot.y)).fold(0.0, f64::max);
    outcome.figure("services", services.len() as f64);
    let title = "P99 of services in drawn configurations: measured against predicted";
    let plot = outcome.plot(PlotKind::Lines, title, "predicted, ms", "measured, ms");
    plot.dashed("as predicted", [(0.0, 0.0), (most, most)]);
    "a service".clone_into(&mut plot.dots_text);
    plot.dots = services.to_vec();
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEXY: &str = r#"{"name": "flexy", "commit": "c", "mode": "paced", "window": "w",
        "machine": "m", "figures": {"sla_pct_deadline_80_20": 98.0, "sla_pct_adaptive_80_20": 1.0,
        "utilization_deadline_80_20": 0.86}, "controls": {"sla_pct_fifo_80_20": 32.0,
        "utilization_fifo_80_20": 0.865}}"#;
    const PREDICT: &str = r#"{"name": "predict", "commit": "d", "figures": {}, "rows": [
        {"configuration": 3, "tenants": [
            {"class": "batch", "p99_us": null, "p99_us_simulated": null},
            {"class": "user-facing", "p99_us": 7500.0, "p99_us_simulated": 5000.0}]}]}"#;

    fn column() -> Outcome {
        let mut outcome = Outcome::new("80:20 within 200 ms", "", "");
        outcome.plot(PlotKind::Lines, "p", "", "").series("deadline", [(50.0, 99.0)]);
        outcome.plot(PlotKind::Lines, "K", "", "").series("flexy_k0", [(50.0, 99.0)]);
        outcome
    }

    #[test]
    fn what_a_node_did_stands_on_the_curves_of_its_column() {
        let mut paced = Paced::default();
        paced.take(FLEXY).unwrap();
        let other = Outcome { name: "80:20 within 1000 ms".to_owned(), ..column() };
        let mut sections = vec![column(), other];
        paced.beside(&mut sections);
        let dots = &sections[0].plots[0].dots;
        assert_eq!((dots.len(), dots[0].x, dots[0].y), (1, 86.0, 98.0), "fifo is not drawn there");
        assert!(sections[0].plots[1].dots.is_empty() && sections[1].plots[0].dots.is_empty());
        assert!(sections[2].window.contains("flexy, w, m, commit c"), "{}", sections[2].window);
    }

    #[test]
    fn what_was_predicted_is_held_against_what_was_measured() {
        let mut paced = Paced::default();
        paced.take(PREDICT).unwrap();
        paced.take(r#"{"name": "call", "commit": "e", "rows": [1]}"#).unwrap();
        let mut sections = Vec::new();
        paced.beside(&mut sections);
        assert_eq!(sections[0].figures["services"], 1.0);
        let plot = &sections[0].plots[0];
        assert_eq!((plot.dots[0].x, plot.dots[0].y), (5.0, 7.5));
        assert_eq!(plot.series[0].points[1], (7.5, 7.5));
        paced.take("{}").unwrap_err();
        paced.take(r#"{"name": "predict", "commit": "f", "rows": [1]}"#).unwrap_err();
    }

    #[test]
    fn without_documents_nothing_is_added() {
        let mut sections = vec![column()];
        Paced::default().beside(&mut sections);
        assert_eq!((sections.len(), sections[0].plots[0].dots.len()), (1, 0));
    }
}
