//! What the papers say, on the plots of FairGV's Figures 8, 9 and 11, and of Flexy's 5, 6 and 7.
//!
//! FairGV's text has few numbers for them: mostly bounds, and words. Those of Figures 8 and 9 are
//! taken from the claims, so a mark and a verdict cannot say different things. Flexy's are numbers.

use crate::claims::Rule;
use crate::experiments::claims;
use crate::flexy::{Said, said_of};
use crate::outcome::{Plot, Series};
use crate::table3::Profile;

/// What the paper says, or the paced device, of one bar or one point.
pub(super) struct Mark {
    /// The series, by its place.
    pub(super) series: usize,
    /// The point's x, for bars the number of the group.
    pub(super) x: f64,
    /// Where the mark is drawn.
    pub(super) y: f64,
    pub(super) side: Side,
    pub(super) source: Source,
    /// What the paper says, as it says it; or what was measured.
    pub(super) text: String,
}

/// On which side of a mark the paper has the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    On,
    Above,
    Below,
}

/// Whose the number of a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Not the paper's: `weft bench` measured it on the paced device.
    Paced,
    /// The paper prints it.
    Number,
    /// The paper has words only. What stands for them is the bound of the claim's test, and in
    /// Figure 11 what FairGV has.
    Words,
}

/// The marks of a plot of this experiment.
pub(super) fn marks(experiment: &str, plot: &Plot) -> Vec<Mark> {
    match experiment {
        "figure8" | "figure9" => sharing(experiment, plot),
        "figure11" => run_times(plot),
        section => pools(section, plot),
    }
}

/// What a plot of Figure 8 or 9 shows, as it is called in names of figures; completion times have
/// no such name.
pub(super) fn measure(plot: &Plot) -> Option<&'static str> {
    match plot.y.as_str() {
        "MMR" => Some("mmr"),
        "aggregated overhead" => Some("overhead"),
        _ => None,
    }
}

/// Figures 8 and 9: fairness and overhead of a system with a program.
fn sharing(experiment: &str, plot: &Plot) -> Vec<Mark> {
    // Completion times have no numbers in the text, and no words either.
    let Some(measure) = measure(plot) else { return Vec::new() };
    let claims = claims();
    let mut marks = Vec::new();
    for (place, series) in plot.series.iter().enumerate() {
        for (&(x, _), program) in series.points.iter().zip(&plot.groups) {
            let figure = format!("{measure}_{}_{program}", series.name);
            let said = claims.iter().filter_map(|claim| claim.says_of(experiment, &figure));
            marks.extend(said.filter_map(|(text, rule)| {
                let (y, side, source) = bound(text, rule)?;
                Some(Mark { series: place, x, y, side, source, text: text.to_owned() })
            }));
        }
    }
    marks
}

/// Where a claim's mark is drawn. A number that the paper prints goes before what the test allows.
fn bound(text: &str, rule: Rule) -> Option<(f64, Side, Source)> {
    let (tested, side) = match rule {
        Rule::AtLeast(value) | Rule::Above(value) => (value, Side::Above),
        Rule::AtMost(value) | Rule::Below(value) => (value, Side::Below),
        Rule::Near(value, _) => (value, Side::On),
        Rule::MostAtMost(_) | Rule::Least | Rule::Unmeasured => return None,
    };
    let number = text.trim_start_matches(['≥', '≤', ' ']).parse();
    Some(number.map_or((tested, side, Source::Words), |value| (value, side, Source::Number)))
}

/// Figure 11: FairGV keeps both programs at twice their time, and Credit-poll has them below as
/// long as the other tenant's kernels are the shorter ones (§5.5.1).
fn run_times(plot: &Plot) -> Vec<Mark> {
    const TWICE: f64 = 2.0;
    let program = plot.title.rsplit(' ').next().and_then(Profile::named);
    let Some(program) = program else { return Vec::new() };
    let of = |place: usize, series: &Series, us: f64| {
        let (side, text) = match series.name.as_str() {
            "fair" => (Side::On, "2.0"),
            "credit_poll" if us < program.kernel_us => (Side::Below, "under 2.0"),
            "credit_poll" if us > program.kernel_us => (Side::Above, "significantly increased"),
            _ => return None,
        };
        let source = if side == Side::Above { Source::Words } else { Source::Number };
        Some(Mark { series: place, x: us, y: TWICE, side, source, text: text.to_owned() })
    };
    let series = plot.series.iter().enumerate();
    series
        .flat_map(|(place, series)| {
            series.points.iter().filter_map(move |point| of(place, series, point.0))
        })
        .collect()
}

/// Flexy's figures: what its text says of a policy.
fn pools(section: &str, plot: &Plot) -> Vec<Mark> {
    let of = |(place, series): (usize, &Series)| {
        let said = said_of(section, &series.name).into_iter();
        said.map(move |(x, y, said, text)| {
            let side = match said {
                Said::At => Side::On,
                Said::Above => Side::Above,
                Said::Below => Side::Below,
            };
            Mark { series: place, x, y, side, source: Source::Number, text: text.to_owned() }
        })
    };
    plot.series.iter().enumerate().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Outcome, PlotKind};

    /// A plot with what `marks` reads.
    fn bars(y: &str, programs: [&str; 2]) -> Plot {
        let mut outcome = Outcome::new("x", "x", "x");
        let plot = outcome.plot(PlotKind::Bars, "t", "", y);
        plot.groups(programs).bars("fair", [0.5, 0.5]).bars("credit_hs", [0.5, 0.5]);
        plot.clone()
    }

    fn told(marks: &[Mark]) -> Vec<(usize, f64, f64, Side, Source)> {
        marks.iter().map(|mark| (mark.series, mark.x, mark.y, mark.side, mark.source)).collect()
    }

    #[test]
    fn bounds_of_the_paper_stand_at_its_numbers_and_words_where_they_are_tested() {
        use Side::{Above, Below};
        use Source::{Number, Words};
        let of = |y: &str| told(&marks("figure9", &bars(y, ["BS", "SRD1"])));
        let mmr = [
            (0, 0.0, 0.97, Above, Number),
            (0, 1.0, 0.97, Above, Number),
            (1, 0.0, 0.9, Above, Words),
            (1, 1.0, 0.9, Below, Words),
        ];
        assert_eq!(of("MMR"), mmr);
        assert_eq!(of("aggregated overhead")[0], (0, 0.0, 1.02, Below, Number));
        // The test of this claim allows 1.02, the paper says 1.
        let overhead = told(&marks("figure8", &bars("aggregated overhead", ["MM", "HS"])));
        assert_eq!(overhead, [(1, 0.0, 1.0, Below, Number), (1, 1.0, 1.0, Below, Number)]);
        assert!(of("s for 10 s of its own").is_empty());
        assert!(marks("figure7", &bars("MMR", ["MM", "HS"])).is_empty());
    }

    #[test]
    fn credit_poll_crosses_twice_the_time_at_the_programs_own_kernel() {
        let mut outcome = Outcome::new("figure11", "", "");
        let plot = outcome.plot(PlotKind::Lines, "Normalised run time of MM", "", "run time");
        for system in ["fair", "credit_poll", "unmanaged"] {
            plot.series(system, [(21.0, 2.0), (207.0, 2.0), (391.0, 2.0)]);
        }
        let marks = marks("figure11", plot);
        let sides: Vec<_> = marks.iter().map(|mark| (mark.series, mark.x, mark.side)).collect();
        let fair = [21.0, 207.0, 391.0].map(|us| (0, us, Side::On));
        assert_eq!(sides[..3], fair);
        // Neither side is named for kernels as long as the program's own, and nothing unmanaged.
        assert_eq!(sides[3..], [(1, 21.0, Side::Below), (1, 391.0, Side::Above)]);
    }
}
