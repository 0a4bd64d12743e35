//! Plots as SVG that follows the page's light or dark colours.

use std::fmt::Write as _;

use super::number;
use super::paper::{Mark, Side, Source};
use crate::outcome::{Plot, PlotKind};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// Where values lie on the picture.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
    logarithmic: bool,
}

impl Frame {
    fn of(plot: &Plot, marks: &[Mark]) -> Self {
        let dots = || plot.dots.iter().map(|dot| (dot.x, dot.y));
        let points =
            || plot.series.iter().flat_map(|series| series.points.iter().copied()).chain(dots());
        let logarithmic = plot.kind == PlotKind::LogLines;
        let mut x = range(points().map(|point| point.0).chain(marks.iter().map(|mark| mark.x)));
        let ranges = plot.series.iter().flat_map(|series| &series.ranges);
        let ends = ranges.flat_map(|(low, high)| [*low, *high]);
        let marked = plot.mark.into_iter().chain(marks.iter().map(|mark| mark.y));
        let (mut low, mut high) = range(points().map(|point| point.1).chain(marked).chain(ends));
        if plot.kind == PlotKind::Bars {
            x = (-0.5, plot.groups.len() as f64 - 0.5);
            low = low.min(0.0);
        }
        // A curve that stays near its top is read better from near it than from zero.
        let narrow = plot.kind != PlotKind::Bars && low > 0.5 * high;
        low = if narrow { low - 0.15 * (high - low).max(0.02 * high) } else { low.min(0.0) };
        high += 0.06 * (high - low).max(1e-12);
        if logarithmic {
            x = (x.0.max(1e-9).ln(), x.1.max(1e-9).ln());
        }
        if x.1 <= x.0 {
            x.1 = x.0 + 1.0;
        }
        Self { x, y: (low, high), logarithmic }
    }

    fn x(&self, x: f64) -> f64 {
        let at = if self.logarithmic { x.max(1e-9).ln() } else { x };
        LEFT + (at - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - (y - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// The plot, with its legend, what the paper says and what was measured, as an HTML figure.
pub(super) fn figure(plot: &Plot, marks: &[Mark]) -> String {
    let frame = Frame::of(plot, marks);
    let mut svg = format!(
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">",
        escape(&plot.title),
        escape(&plot.title)
    );
    grid(&mut svg, &frame);
    match plot.kind {
        PlotKind::Bars => bars(&mut svg, plot, &frame),
        PlotKind::Lines | PlotKind::LogLines => lines(&mut svg, plot, &frame),
    }
    if let Some(mark) = plot.mark {
        let y = frame.y(mark);
        let _ = write!(
            svg,
            "<line class=\"mark\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            WIDTH - RIGHT
        );
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            y - 4.0,
            escape(&plot.mark_text)
        );
    }
    for dot in &plot.dots {
        let (x, y) = (frame.x(dot.x), frame.y(dot.y));
        let _ = write!(
            svg,
            "<path class=\"dot\" d=\"M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z\"><title>{}</title>\
             </path>",
            y - 4.5,
            escape(&dot.text)
        );
    }
    for mark in marks {
        match mark.source {
            Source::Paced => dot_of_paced(&mut svg, plot, &frame, mark),
            Source::Number | Source::Words => tick_of_paper(&mut svg, plot, &frame, mark),
        }
    }
    labels(&mut svg, plot);
    svg.push_str("</svg>");
    legend(&mut svg, plot, marks);
    svg.push_str("</figure>\n");
    svg
}

/// Horizontal lines at round values.
fn grid(svg: &mut String, frame: &Frame) {
    for value in ticks(frame.y) {
        let y = frame.y(value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            tick(value)
        );
    }
}

/// Four to eight round values in a range.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough).unwrap_or(10.0);
    let step = step * power;
    let first = (low / step).ceil();
    (0..12).map(|place| (first + f64::from(place)) * step).take_while(|at| *at <= high).collect()
}

fn tick(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Left end and width of a bar: the group's place is shared by all series.
fn bar(plot: &Plot, frame: &Frame, series: usize, group: f64) -> (f64, f64) {
    let slot = frame.x(1.0) - frame.x(0.0);
    let width = 0.82 * slot / plot.series.len().max(1) as f64;
    (frame.x(group) - 0.41 * slot + width * series as f64, width)
}

/// Left end and width of what a mark is about, and its name.
fn marked(plot: &Plot, frame: &Frame, mark: &Mark) -> (f64, f64, String) {
    let name = plot.series.get(mark.series).map_or("", |series| series.name.as_str());
    match plot.kind {
        PlotKind::Bars => {
            let (left, width) = bar(plot, frame, mark.series, mark.x);
            (left, width, format!("{name} {}", group_name(plot, mark.x)))
        }
        PlotKind::Lines | PlotKind::LogLines => {
            (frame.x(mark.x) - 7.0, 14.0, format!("{name} at {}", tick(mark.x)))
        }
    }
}

/// A hollow dot where the paced device has a bar or a point.
fn dot_of_paced(svg: &mut String, plot: &Plot, frame: &Frame, mark: &Mark) {
    let (left, width, what) = marked(plot, frame, mark);
    let _ = write!(
        svg,
        "<circle class=\"paced\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>paced device, {}: \
         {}</title></circle>",
        left + width / 2.0,
        frame.y(mark.y),
        escape(&what),
        escape(&mark.text)
    );
}

/// A short line at the bar or the point that it is about, and an arrow to where the paper has it.
fn tick_of_paper(svg: &mut String, plot: &Plot, frame: &Frame, mark: &Mark) {
    let (left, width, what) = marked(plot, frame, mark);
    let y = frame.y(mark.y);
    let (end, middle) = (left + width, left + width / 2.0);
    let class = if mark.source == Source::Words { "paper words" } else { "paper" };
    let _ = write!(
        svg,
        "<g class=\"{class}\"><title>paper, {}: {}</title>\
         <line x1=\"{left:.1}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
        escape(&what),
        escape(&mark.text)
    );
    let tip = match mark.side {
        Side::On => None,
        Side::Above => Some(-8.0),
        Side::Below => Some(8.0),
    };
    if let Some(tip) = tip {
        let (from, to, base) = (middle - 3.0, middle + 3.0, y + tip / 4.0);
        let _ =
            write!(svg, "<path d=\"M{from:.1} {base:.1}H{to:.1}L{middle:.1} {:.1}Z\"/>", y + tip);
    }
    svg.push_str("</g>");
}

fn bars(svg: &mut String, plot: &Plot, frame: &Frame) {
    let slot = frame.x(1.0) - frame.x(0.0);
    for (colour, series) in plot.series.iter().enumerate() {
        for (number_of, &(group, value)) in series.points.iter().enumerate() {
            let (x, width) = bar(plot, frame, colour, group);
            let (top, base) = (frame.y(value.max(0.0)), frame.y(value.min(0.0)));
            let group = group_name(plot, group);
            let _ = write!(
                svg,
                "<rect class=\"f{colour}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\"><title>{} {}: {}</title></rect>",
                (width - 1.0).max(0.8),
                (base - top).max(0.5),
                escape(&group),
                escape(&series.name),
                number(value)
            );
            whisker(svg, frame, x + width / 2.0, series.ranges.get(number_of));
        }
    }
    // Names that do not fit side by side are slanted.
    let longest = plot.groups.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    let slanted = longest * 6.5 > slot;
    for (place, name) in plot.groups.iter().enumerate() {
        let (x, y) = (frame.x(place as f64), HEIGHT - BOTTOM + 14.0);
        let turn = if slanted {
            format!("text-anchor=\"end\" transform=\"rotate(-32 {x:.1} {y:.1})\"")
        } else {
            "text-anchor=\"middle\"".to_owned()
        };
        let short: String = name.chars().take(24).collect();
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" {turn}>{}</text>",
            escape(&short)
        );
    }
}

/// The range of a point over all seeds.
fn whisker(svg: &mut String, frame: &Frame, x: f64, range: Option<&(f64, f64)>) {
    let Some(&(low, high)) = range else { return };
    let (top, base) = (frame.y(high), frame.y(low));
    // Nothing to see below a pixel.
    if base - top > 1.0 {
        let _ = write!(
            svg,
            "<line class=\"whisker\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{base:.1}\"/>"
        );
    }
}

fn group_name(plot: &Plot, place: f64) -> String {
    let found = (0..plot.groups.len()).find(|group| (*group as f64 - place).abs() < 0.5);
    found.map(|group| plot.groups[group].clone()).unwrap_or_default()
}

fn lines(svg: &mut String, plot: &Plot, frame: &Frame) {
    for (place, series) in plot.series.iter().enumerate() {
        // A dashed line that stands beside a solid one of the same place has its colour.
        let solid = plot.series.iter().filter(|series| !series.dashed).count();
        let own =
            if series.dashed && plot.series.len() == 2 * solid { place - solid } else { place };
        let path: Vec<String> = series
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", frame.x(*x), frame.y(*y)))
            .collect();
        let dashed = if series.dashed { " dashed" } else { "" };
        let _ = write!(
            svg,
            "<polyline class=\"s{own}{dashed}\" points=\"{}\"><title>{}</title></polyline>",
            path.join(" "),
            escape(&series.name)
        );
        if series.points.len() <= 24 && !series.dashed {
            for (number_of, (x, y)) in series.points.iter().enumerate() {
                whisker(svg, frame, frame.x(*x), series.ranges.get(number_of));
                let _ = write!(
                    svg,
                    "<circle class=\"f{own}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: {} at \
                     {}</title></circle>",
                    frame.x(*x),
                    frame.y(*y),
                    escape(&series.name),
                    number(*y),
                    tick(*x)
                );
            }
        }
    }
    let places = if frame.logarithmic {
        let (low, high) =
            (frame.x.0 / std::f64::consts::LN_10, frame.x.1 / std::f64::consts::LN_10);
        (-3..12)
            .map(f64::from)
            .filter(|at| (low..=high).contains(at))
            .map(|at| 10_f64.powf(at))
            .collect()
    } else {
        ticks(frame.x)
    };
    for value in places {
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            frame.x(value),
            HEIGHT - BOTTOM + 16.0,
            tick(value)
        );
    }
}

fn labels(svg: &mut String, plot: &Plot) {
    let middle = TOP + (HEIGHT - TOP - BOTTOM) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"label\" x=\"12\" y=\"{middle:.1}\" text-anchor=\"middle\" \
         transform=\"rotate(-90 12 {middle:.1})\">{}</text>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 8.0,
        escape(&plot.x),
        escape(&plot.y)
    );
}

fn legend(svg: &mut String, plot: &Plot, marks: &[Mark]) {
    if plot.series.len() < 2 && marks.is_empty() && plot.dots.is_empty() {
        return;
    }
    svg.push_str("<div class=\"legend\">");
    let solid = plot.series.iter().filter(|series| !series.dashed).count();
    for (place, series) in plot.series.iter().enumerate() {
        let paired = series.dashed && plot.series.len() == 2 * solid;
        let own = if paired { place - solid } else { place };
        let dashed = if series.dashed { " hollow" } else { "" };
        let _ =
            write!(svg, "<span><i class=\"b{own}{dashed}\"></i>{}</span>", escape(&series.name));
    }
    if !plot.dots.is_empty() {
        let _ = write!(svg, "<span><b>◇</b> {}</span>", escape(&plot.dots_text));
    }
    let has = |test: &dyn Fn(&Mark) -> bool| marks.iter().any(test);
    let is_number = |mark: &Mark| mark.source == Source::Number;
    for (sign, shown, text) in [
        ("―", has(&|mark| is_number(mark) && mark.side == Side::On), "paper"),
        ("▴", has(&|mark| is_number(mark) && mark.side == Side::Above), "paper: at least"),
        ("▾", has(&|mark| is_number(mark) && mark.side == Side::Below), "paper: at most"),
        ("┄", has(&|mark| mark.source == Source::Words), "paper, in words: a bound for them"),
        ("○", has(&|mark| mark.source == Source::Paced), "a real daemon's paced device"),
    ] {
        if shown {
            let _ = write!(svg, "<span><b>{sign}</b> {text}</span>");
        }
    }
    svg.push_str("</div>");
}

/// Text that cannot end an element or an attribute.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Dot, Outcome};

    #[test]
    fn ticks_are_round_and_inside() {
        let at = ticks((0.0, 1.06));
        assert!(at.len() >= 3 && at.iter().all(|at| (0.0..=1.06).contains(at)), "{at:?}");
        assert_eq!(tick(0.0), "0");
    }

    #[test]
    fn names_are_escaped() {
        let mut outcome = Outcome::new("x", "x", "x");
        outcome.plot(PlotKind::Bars, "a < b", "", "").groups(["<g>"]).bars("\"s\"", [1.0]);
        let text = figure(&outcome.plots[0], &[]);
        assert!(!text.contains("<g>") && text.contains("a &lt; b"), "{text}");
    }

    #[test]
    fn dots_are_drawn_within_the_picture_and_named() {
        let mut outcome = Outcome::new("x", "x", "x");
        let plot = outcome.plot(PlotKind::Lines, "p", "", "");
        plot.series("a", [(1.0, 2.0), (3.0, 4.0)]);
        plot.dots = vec![Dot { x: 5.0, y: 9.0, text: "<far> off".to_owned() }];
        "on a node".clone_into(&mut plot.dots_text);
        let frame = Frame::of(plot, &[]);
        assert!(frame.x(5.0) <= WIDTH - RIGHT && frame.y(9.0) >= TOP);
        let text = figure(plot, &[]);
        assert!(text.contains("<title>&lt;far&gt; off</title>"), "{text}");
        assert!(text.contains("◇</b> on a node"), "{text}");
    }

    #[test]
    fn what_the_paper_says_is_drawn_at_its_bar_and_named_in_the_legend() {
        let mut outcome = Outcome::new("x", "x", "x");
        let plot = outcome.plot(PlotKind::Bars, "p", "", "").groups(["MM", "HS"]);
        plot.bars("a", [0.2, 0.2]).bars("b", [0.2, 0.2]);
        let mark = |y, side, source| {
            let text = "≥ <0.9>".to_owned();
            Mark { series: 1, x: 1.0, y, side, source, text }
        };
        let bound = figure(plot, &[mark(0.9, Side::Above, Source::Number)]);
        assert!(bound.contains("<title>paper, b HS: ≥ &lt;0.9&gt;</title>"), "{bound}");
        assert!(bound.contains("paper: at least") && !bound.contains("in words"), "{bound}");
        let frame = Frame::of(plot, &[mark(0.9, Side::Above, Source::Number)]);
        let (left, width) = bar(plot, &frame, 1, 1.0);
        let place = format!("x1=\"{left:.1}\" x2=\"{:.1}\"", left + width);
        assert!(bound.contains(&place) && frame.y(0.9) > TOP, "{place} in {bound}");
        let words = figure(plot, &[mark(0.9, Side::Below, Source::Words)]);
        assert!(words.contains("class=\"paper words\""), "{words}");
        assert!(words.contains("paper, in words") && !words.contains("at least"), "{words}");
        assert!(!figure(plot, &[]).contains("paper"), "{}", figure(plot, &[]));
        let paced = figure(plot, &[mark(0.9, Side::On, Source::Paced)]);
        let centre = format!("class=\"paced\" cx=\"{:.1}\"", left + width / 2.0);
        assert!(paced.contains(&centre) && !paced.contains("paper"), "{centre} in {paced}");
        assert!(paced.contains("<title>paced device, b HS: ") && paced.contains("○"), "{paced}");
    }
}
