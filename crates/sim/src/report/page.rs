//! The page: figures, the paper's beside ours, plots. It loads nothing.

use std::fmt::Write as _;

use super::svg::{escape, figure};
use super::{RealRun, Report, headline, number, paced, paper, real, timeline};
use crate::claims::counts;
use crate::outcome::Outcome;

pub(crate) const TEMPLATE: &str = include_str!("page.html");

type Tile = (&'static str, &'static str, Option<(f64, bool)>);

/// What is shown first: figure, what it is, its goal and whether more is better.
const TILES: [Tile; 12] = [
    ("mmr_min", "least MMR, Figures 8 and 9", Some((0.97, true))),
    ("overhead_max", "largest aggregated overhead", None),
    ("long_kernel_mmr", "MMR beside 1.9-s kernels, 0.2 ms", Some((0.999, true))),
    ("wake_delay_over_fair_quanta_max", "quanta of waiting past the share", Some((1.0, false))),
    ("adversary_gain_max", "largest gain by cheating", Some((0.001, false))),
    ("victim_loss_max", "largest loss to an attack", Some((0.001, false))),
    ("attacked_utilization_min", "least use of an attacked device", Some((0.97, true))),
    ("hierarchy_mmr_min", "least MMR of tenants, vGPUs, sessions", Some((0.99, true))),
    ("share_over_cap_max", "largest share over its cap", Some((1.001, false))),
    ("closure_max", "metering closure", Some((0.001, false))),
    ("lag_bound_violations", "steps beyond the lag bound", Some((0.0, false))),
    ("decisions", "decisions checked", None),
];

/// What the figure is that most of the page is about.
const MMR: &str = "MMR (min over max ratio) says how evenly tenants were treated: of each tenant what \
                   it did over what it would have done at its ideal fair share, then the least of \
                   these over the largest. 1 is a perfect division; at 0.5 one tenant had half of \
                   what another had of its due. It is always over a window, because any division is \
                   even over a long enough one.";

pub(super) fn render(report: &Report) -> String {
    let mut body = String::new();
    head(&mut body, report);
    claims(&mut body, report);
    for outcome in &report.outcomes {
        section(&mut body, outcome, &report.real);
    }
    beside(&mut body, report);
    calibration(&mut body, report);
    TEMPLATE.replace("<!--BODY-->", &body)
}

fn head(body: &mut String, report: &Report) {
    let quick = if report.quick { ", a quick run: its figures mean little" } else { "" };
    let _ = write!(
        body,
        "<h1>FairGV's evaluation and past it</h1>\n<p>Simulated around the scheduling core that the \
         daemon runs: <code>{}</code>, commit {}, seed {}{quick}. Competitors are models. Hover over \
         a bar or a point for its value.</p>\n",
        escape(&report.command),
        escape(&report.commit),
        report.seed
    );
    let _ = writeln!(body, "<p>{MMR}</p>");
    body.push_str("<div class=\"tiles\">");
    for (name, what, goal) in TILES {
        let Some(value) = report.summary.figures.get(name) else { continue };
        let class = match goal {
            Some((goal, true)) if *value >= goal => " class=\"good\"",
            Some((goal, false)) if *value <= goal => " class=\"good\"",
            Some(_) => " class=\"bad\"",
            None => "",
        };
        let goal = goal.map_or(String::new(), |(goal, more)| {
            format!(", goal {} {goal}", if more { "≥" } else { "≤" })
        });
        let _ = write!(
            body,
            "<div class=\"tile\"><b{class}>{}</b><span>{what}{goal}</span></div>",
            number(*value)
        );
    }
    body.push_str("</div>\n<nav><a href=\"#claims\">claims</a>");
    for outcome in &report.outcomes {
        let _ = write!(body, "<a href=\"#{0}\">{0}</a>", escape(&outcome.name));
    }
    if !real::rows(&report.real, &report.outcomes).is_empty() {
        body.push_str("<a href=\"#real\">real and paced runs</a>");
    }
    body.push_str("<a href=\"#calibration\">costs</a></nav>\n");
}

fn claims(body: &mut String, report: &Report) {
    let rows = report.claims();
    let _ = write!(
        body,
        "<h2 id=\"claims\">The paper's claims</h2>\n<p>{} A claim is reproduced if it holds at \
         every one of {} seeds (least … largest); the test is in brackets. The paced device is a \
         real daemon's.</p>\n",
        counts(&rows),
        report.seeds
    );
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| {
            let (verdict, why) = (row.verdict.to_owned(), row.reasons());
            vec![row.experiment, row.what, row.paper, row.simulated, verdict, row.paced, why]
        })
        .collect();
    let header = ["", "claim", "paper", "simulated", "verdict", "paced device", "why"];
    table(body, &header, &rows, true);
}

/// An experiment, with what `runs` have beside its plots.
pub(crate) fn section(body: &mut String, outcome: &Outcome, runs: &[RealRun]) {
    let _ = write!(
        body,
        "<h2 id=\"{0}\">{0}: {1}</h2>\n<p>{2}</p>\n",
        escape(&outcome.name),
        escape(&outcome.title),
        escape(&outcome.window)
    );
    if !outcome.comparisons.is_empty() {
        let rows: Vec<_> = outcome
            .comparisons
            .iter()
            .map(|row| vec![row.what.clone(), row.paper.clone(), row.ours.clone()])
            .collect();
        table(body, &["", "paper", "here"], &rows, true);
    }
    body.push_str("<div class=\"plots\">");
    for plot in &outcome.plots {
        let mut marks = paper::marks(&outcome.name, plot);
        marks.extend(paced::marks(&outcome.name, plot, runs));
        body.push_str(&figure(plot, &marks));
    }
    body.push_str("</div>\n");
    for timeline in &outcome.timelines {
        body.push_str(&timeline::figure(timeline));
    }
    let mut rows = Vec::new();
    let parts = [
        ("", &outcome.figures),
        ("baseline ", &outcome.baselines),
        ("control ", &outcome.controls),
    ];
    for (kind, values) in parts {
        let prefix = if kind == "control " { "control:" } else { "" };
        rows.extend(values.iter().map(|(name, value)| {
            let range = outcome.intervals.get(&format!("{prefix}{name}"));
            let range = range.filter(|(low, high)| low < high);
            let range = range.map_or(String::new(), |(low, high)| {
                format!("{} … {}", number(*low), number(*high))
            });
            vec![format!("{kind}{name}"), number(*value), range]
        }));
    }
    if outcome.plots.is_empty() {
        let rows: Vec<_> =
            headline(outcome).map(|(name, value)| vec![name.clone(), number(*value)]).collect();
        table(body, &["figure", "value"], &rows, false);
    }
    let _ = write!(body, "<details><summary>All {} figures</summary>", rows.len());
    table(body, &["figure", "value", "least … largest of all seeds"], &rows, false);
    body.push_str("</details>\n<ul>");
    for note in outcome.notes.iter().chain(&paced::gaps(outcome, runs)) {
        let _ = write!(body, "<li>{}</li>", escape(note));
    }
    if let Some(first) = &outcome.first_violation {
        let _ = write!(
            body,
            "<li class=\"bad\">{} steps beyond the lag bound, {} other violations; the first: {}</li>",
            outcome.lag_bound_violations,
            outcome.other_violations,
            escape(first)
        );
    }
    body.push_str("</ul>\n");
}

fn beside(body: &mut String, report: &Report) {
    let rows = real::rows(&report.real, &report.outcomes);
    if rows.is_empty() {
        return;
    }
    body.push_str(
        "<h2 id=\"real\">Real and paced runs beside the simulated ones</h2>\n<p>Documents of weft \
         bench. Windows and kernel mixes differ, so a counterpart is the nearest, not the same.</p>\n",
    );
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    table(body, &["figure (window)", "mode", "measured", "simulated"], &rows, false);
    let _ = writeln!(body, "<p>{}</p>", escape(real::TABLE4));
    for run in &report.real {
        let stolen = run.stolen.map_or_else(String::new, |part| {
            format!(", {:.1} % of its processors' time taken away", part * 100.0)
        });
        let _ = writeln!(
            body,
            "<p>{}: {}{stolen}, commit {}</p>",
            escape(&run.name),
            escape(&run.machine),
            escape(&run.commit)
        );
    }
}

fn calibration(body: &mut String, report: &Report) {
    body.push_str("<h2 id=\"calibration\">What things cost in the simulation</h2>\n");
    let rows: Vec<_> = report
        .calibration
        .iter()
        .map(|(name, ns, from)| vec![name.clone(), ns.to_string(), from.clone()])
        .collect();
    table(body, &["cost", "ns", "from"], &rows, true);
}

pub(crate) fn table(body: &mut String, header: &[&str], rows: &[Vec<String>], text: bool) {
    let class = if text { " class=\"text\"" } else { "" };
    body.push_str("<div class=\"scroll\"><table><tr>");
    for name in header {
        let _ = write!(body, "<th{class}>{}</th>", escape(name));
    }
    body.push_str("</tr>");
    for row in rows {
        body.push_str("<tr>");
        for cell in row {
            let _ = write!(body, "<td{class}>{}</td>", escape(cell));
        }
        body.push_str("</tr>");
    }
    body.push_str("</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_navigation_names_every_part_of_the_page() {
        let run = r#"{"name": "fairness", "commit": "c", "mode": "paced", "window": "w",
            "figures": {"mmr_min": 0.996}}"#;
        let report = |real| Report {
            command: String::new(),
            commit: String::new(),
            seed: 1,
            seeds: 1,
            quick: true,
            calibration: Vec::new(),
            summary: Outcome::default(),
            outcomes: vec![Outcome::new("figure9", "t", "w")],
            real,
        };
        for real in [vec![RealRun::parse(run).unwrap()], Vec::new()] {
            let count = 3 + real.len();
            let page = render(&report(real));
            let parts: Vec<&str> = page
                .split("<h2 id=\"")
                .skip(1)
                .filter_map(|part| Some(part.split_once('"')?.0))
                .collect();
            assert_eq!(parts.len(), count, "{parts:?}");
            for part in parts {
                assert!(page.contains(&format!("<a href=\"#{part}\">")), "{part} in {page}");
            }
            assert_eq!(page.matches("<a href=\"#").count(), count, "a link leads nowhere");
        }
    }
}
