//! What an experiment found, as plain data for tables, JSON and plots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The result of one experiment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name on the command line.
    pub name: String,
    /// What it shows, in half a line.
    pub title: String,
    /// Over what time the figures were taken.
    pub window: String,
    /// Figures by name.
    pub figures: BTreeMap<String, f64>,
    /// What they are compared with.
    pub baselines: BTreeMap<String, f64>,
    /// What must fail, and by how much it did.
    pub controls: BTreeMap<String, f64>,
    /// Least and largest value of each figure and baseline over all seeds; `control:` before the
    /// names of controls.
    pub intervals: BTreeMap<String, (f64, f64)>,
    /// Runs with different seeds that this is the median of; 0 for a single run.
    pub seeds: usize,
    /// What goes past the paper: what, what the paper has there, and ours.
    pub comparisons: Vec<Comparison>,
    /// Pictures.
    pub plots: Vec<Plot>,
    /// Who had which device when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<Timeline>,
    /// Where it differs from the paper and why; what it assumes.
    pub notes: Vec<String>,
    /// Steps at which two vGPUs were further apart than the lag bound.
    pub lag_bound_violations: u64,
    /// The largest lag over that bound.
    pub lag_share_max: f64,
    /// Steps at which another invariant was broken.
    pub other_violations: u64,
    /// The first violation in words, with what replays it.
    pub first_violation: Option<String>,
    /// Events that the scheduling core handled.
    pub decisions: u64,
}

/// The machine that made a report, because what a decision costs is real time there.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MadeOn {
    /// Its processors.
    pub machine: String,
    /// The part of their time that a hypervisor gave to others meanwhile, 0 to 1.
    pub stolen: f64,
}

/// One statement of the paper and ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// About what.
    pub what: String,
    /// What the paper says.
    pub paper: String,
    /// What this run says.
    pub ours: String,
}

/// A picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: String,
    /// The vertical axis.
    pub y: String,
    /// How to draw it.
    pub kind: PlotKind,
    /// Names of the groups of bars, or of the places of points; empty where `x` is a number.
    pub groups: Vec<String>,
    /// What is drawn.
    pub series: Vec<Series>,
    /// A horizontal line, such as a goal or what the paper says.
    pub mark: Option<f64>,
    /// What that line is.
    pub mark_text: String,
    /// Single values that were found in another way than the series.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dots: Vec<Dot>,
    /// What they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dots_text: String,
}

/// A single value on a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dot {
    /// Its place on the horizontal axis.
    pub x: f64,
    /// Its place on the vertical axis.
    pub y: f64,
    /// Whose it is, with both.
    pub text: String,
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlotKind {
    /// Groups of bars, one bar per series.
    Bars,
    /// Lines over `x`.
    Lines,
    /// Lines over the logarithm of `x`.
    LogLines,
}

/// One line or one colour of bars.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// (x, y); for bars x is the number of the group.
    pub points: Vec<(f64, f64)>,
    /// Least and largest y of each point over all seeds; empty for a single run.
    pub ranges: Vec<(f64, f64)>,
    /// Drawn dashed: what is expected, or the paper's.
    pub dashed: bool,
}

/// Who had which device when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timeline {
    /// What it shows.
    pub title: String,
    /// Names of the devices.
    pub lanes: Vec<String>,
    /// Its beginning, in s.
    pub from_s: f64,
    /// Its end, in s.
    pub to_s: f64,
    /// What the devices did; what lies outside is cut off.
    pub spans: Vec<Span>,
}

/// What one device did for a while.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The device, by its place.
    pub lane: usize,
    /// Since when, in s.
    pub from_s: f64,
    /// Until when, in s.
    pub to_s: f64,
    /// What it was.
    pub kind: SpanKind,
    /// For whom.
    pub who: String,
}

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// Runs a user-facing task that is within its SLA.
    InTime,
    /// Runs a user-facing task that is not.
    Late,
    /// Runs a batch task.
    Batch,
    /// Is reset.
    Reset,
}

impl SpanKind {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::InTime, Self::Late, Self::Batch, Self::Reset];

    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InTime => "user-facing, in time",
            Self::Late => "user-facing, late",
            Self::Batch => "batch",
            Self::Reset => "reset",
        }
    }
}

impl Outcome {
    pub(crate) fn new(name: &str, title: &str, window: impl Into<String>) -> Self {
        let (name, title) = (name.to_owned(), title.to_owned());
        Self { name, title, window: window.into(), ..Self::default() }
    }

    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// Least and largest value of a figure over all seeds.
    pub fn interval(&self, name: &str) -> Option<(f64, f64)> {
        let value = *self.figures.get(name)?;
        Some(self.intervals.get(name).copied().unwrap_or((value, value)))
    }

    pub(crate) fn baseline(&mut self, name: impl Into<String>, value: f64) {
        self.baselines.insert(name.into(), value);
    }

    pub(crate) fn control(&mut self, name: impl Into<String>, value: f64) {
        self.controls.insert(name.into(), value);
    }

    pub(crate) fn compare(&mut self, what: &str, paper: &str, ours: String) {
        let (what, paper) = (what.to_owned(), paper.to_owned());
        self.comparisons.push(Comparison { what, paper, ours });
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// Lines or bars.
    pub(crate) fn plot(&mut self, kind: PlotKind, title: &str, x: &str, y: &str) -> &mut Plot {
        self.plots.push(Plot {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            kind,
            groups: Vec::new(),
            series: Vec::new(),
            mark: None,
            mark_text: String::new(),
            dots: Vec::new(),
            dots_text: String::new(),
        });
        let last = self.plots.len() - 1;
        &mut self.plots[last]
    }
}

impl Plot {
    pub(crate) fn groups<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> &mut Self {
        self.groups = names.into_iter().map(str::to_owned).collect();
        self
    }

    pub(crate) fn mark(&mut self, at: f64) -> &mut Self {
        self.mark = Some(at);
        self
    }

    /// A line that says what it is.
    pub(crate) fn line_at(&mut self, at: f64, text: &str) -> &mut Self {
        text.clone_into(&mut self.mark_text);
        self.mark(at)
    }

    pub(crate) fn series(
        &mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> &mut Self {
        let points = points.into_iter().collect();
        let (name, ranges) = (name.into(), Vec::new());
        self.series.push(Series { name, points, ranges, dashed: false });
        self
    }

    pub(crate) fn dashed(
        &mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> &mut Self {
        self.series(name, points);
        if let Some(last) = self.series.last_mut() {
            last.dashed = true;
        }
        self
    }

    /// Bars of one colour, one for each group.
    pub(crate) fn bars(
        &mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
    ) -> &mut Self {
        let points: Vec<(f64, f64)> =
            values.into_iter().enumerate().map(|(place, value)| (place as f64, value)).collect();
        self.series(name, points)
    }
}
