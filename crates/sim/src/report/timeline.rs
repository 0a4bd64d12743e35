//! Who had which device when, as an SVG that follows the page's colours.

use std::fmt::Write as _;

use super::number;
use super::svg::escape;
use crate::outcome::{SpanKind, Timeline};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 8.0;
const LANE: f64 = 34.0;
const GAP: f64 = 8.0;
const FOOT: f64 = 22.0;

/// Marks along the time axis.
const TICKS: u32 = 10;

/// The timeline, with its legend, as an HTML figure.
pub(crate) fn figure(timeline: &Timeline) -> String {
    let length_s = (timeline.to_s - timeline.from_s).max(1e-9);
    let x = |at_s: f64| {
        let at_s = at_s.clamp(timeline.from_s, timeline.to_s);
        LEFT + (at_s - timeline.from_s) / length_s * (WIDTH - LEFT - RIGHT)
    };
    let bottom = timeline.lanes.len() as f64 * (LANE + GAP);
    let title = escape(&timeline.title);
    let mut svg = format!(
        "<figure class=\"wide\"><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {}\" \
         role=\"img\" aria-label=\"{title}\">",
        bottom + FOOT
    );
    for (place, lane) in timeline.lanes.iter().enumerate() {
        let y = place as f64 * (LANE + GAP);
        let _ = write!(
            svg,
            "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{LANE}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - LEFT - RIGHT,
            LEFT - 8.0,
            y + LANE / 2.0 + 4.0,
            escape(lane)
        );
    }
    for span in &timeline.spans {
        let (left, right) = (x(span.from_s), x(span.to_s));
        let _ = write!(
            svg,
            "<rect class=\"{}\" x=\"{left:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{LANE}\">\
             <title>{}: {} s to {} s</title></rect>",
            colour(span.kind),
            span.lane as f64 * (LANE + GAP),
            (right - left).max(0.4),
            escape(&span.who),
            number(span.from_s),
            number(span.to_s)
        );
    }
    for tick in 0..=TICKS {
        let at_s = timeline.from_s + length_s * f64::from(tick) / f64::from(TICKS);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(at_s),
            bottom + FOOT - 6.0,
            number(at_s)
        );
    }
    svg.push_str("</svg><div class=\"legend\">");
    for kind in SpanKind::ALL {
        if timeline.spans.iter().any(|span| span.kind == kind) {
            let _ = write!(svg, "<span><i class=\"{}\"></i>{}</span>", swatch(kind), kind.name());
        }
    }
    svg.push_str("<span>time in s; hover for who</span></div></figure>\n");
    svg
}

fn colour(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::InTime => "f2",
        SpanKind::Late => "f4",
        SpanKind::Batch => "f0",
        SpanKind::Reset => "f5",
    }
}

fn swatch(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::InTime => "b2",
        SpanKind::Late => "b4",
        SpanKind::Batch => "b0",
        SpanKind::Reset => "b5",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Span;

    #[test]
    fn spans_lie_in_their_lanes_and_within_the_picture() {
        let span = |lane, from_s, to_s, kind| Span { lane, from_s, to_s, kind, who: "<j>".into() };
        let timeline = Timeline {
            title: "a & b".to_owned(),
            lanes: vec!["gpu0".to_owned(), "gpu1".to_owned()],
            from_s: 1.0,
            to_s: 3.0,
            spans: vec![span(0, 0.0, 2.0, SpanKind::InTime), span(1, 2.0, 9.0, SpanKind::Batch)],
        };
        let svg = figure(&timeline);
        // Half the picture each, cut off at its ends.
        let half = (WIDTH - LEFT - RIGHT) / 2.0;
        let first = format!("class=\"f2\" x=\"{LEFT:.2}\" y=\"0.0\" width=\"{half:.2}\"");
        let middle = LEFT + half;
        let second =
            format!("class=\"f0\" x=\"{middle:.2}\" y=\"{:.1}\" width=\"{half:.2}\"", LANE + GAP);
        assert!(svg.contains(&first), "{svg}");
        assert!(svg.contains(&second), "{svg}");
        assert!(svg.contains("&lt;j&gt;") && svg.contains("a &amp; b"), "{svg}");
        assert!(!svg.contains(SpanKind::Reset.name()), "nothing was reset");
    }
}
