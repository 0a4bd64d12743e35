//! What was measured as a drawing, with what the paper says (GSaaS, Figures 7 and 8).

use std::fmt::Write as _;

use weft_api::figures::Figures;

use super::Plan;

/// Pixels of the highest bar.
const HEIGHT: f64 = 200.0;

/// Where bars stand.
const BOTTOM: f64 = 260.0;

/// Pixels from bar to bar.
const STEP: f64 = 84.0;

/// The boot of a VM with so many cGPUs over one without, in the paper's text, in %.
const OF_PAPER: [(u32, f64); 2] = [(50, 0.2), (75, 12.0)];

/// The number of cGPUs from which managing them takes longer than the VM's own part, in the paper.
const PASSED_IN_PAPER: u32 = 62;

/// The boot of one VM by its cGPUs, the VM's own part and what is beside it; the boots of many; and
/// what managing a VM's cGPUs takes.
#[must_use]
pub fn drawing(plan: &Plan, found: &Figures) -> String {
    let (boots, many, managed) = (boots(plan, found), many(plan, found), managed(plan, found));
    let columns = boots.len().max(many.len()).max(4);
    let width = (1..=columns).fold(120.0, |width, _| width + STEP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"980\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <text x=\"10\" y=\"18\">{}, commit {}</text>\n\
         <text x=\"10\" y=\"36\">Boot of one VM, ms: its own part (green), all else (red, % of \
         it); black: where the paper's would end</text>\n",
        escaped(&found.mode),
        found.commit
    );
    bars(&mut svg, 0.0, &boots);
    svg.push_str(
        "<text x=\"10\" y=\"326\">Boots of many VMs with one cGPU each, ms: median (green), \
         longest (red); black: the median without cGPUs</text>\n",
    );
    bars(&mut svg, 320.0, &many);
    svg.push_str(
        "<text x=\"10\" y=\"640\">The paper has 15 to 90 VMs, 10 s apart on three hosts: an \
         \u{201c}almost negligible increment\u{201d}.</text>\n\
         <text x=\"10\" y=\"666\">Managing a VM's cGPUs, ms: vGPUs and rules (green), all other \
         steps (red); the VM's own part meanwhile below</text>\n",
    );
    bars(&mut svg, 660.0, &managed);
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"10\" y=\"972\">The paper's grows linearly, and takes longer than the VM's own \
         part from about {PASSED_IN_PAPER} cGPUs on.</text>\n</svg>"
    );
    svg
}

/// One VM by its cGPUs; first the one without, if somebody has measured it.
fn boots(plan: &Plan, found: &Figures) -> Vec<Bar> {
    let without = found.baselines.get("boot_ms_0").map(|boot| Bar {
        name: "0 cGPUs".to_owned(),
        ends: Some((*boot, *boot)),
        mark: None,
        words: [String::new(), String::new()],
    });
    let with = plan.cgpus.iter().map(|cgpus| {
        let boot = found.figure(&format!("boot_ms_{cgpus}"));
        let ends = found.figure(&format!("deploy_ms_{cgpus}")).zip(boot);
        let ends = ends.map(|(deploy, boot)| (deploy.min(boot), boot));
        let over = found.figure(&format!("overhead_{cgpus}"));
        let paper = OF_PAPER.iter().find(|(of, _)| of == cgpus);
        Bar {
            name: format!("{cgpus} cGPUs"),
            ends,
            mark: ends.zip(paper).map(|((deploy, _), (_, over))| deploy * (1.0 + over / 100.0)),
            words: [
                over.map_or_else(String::new, |over| format!("+{:.2} %", over * 100.0)),
                paper.map_or_else(String::new, |(_, over)| format!("paper +{over} %")),
            ],
        }
    });
    without.into_iter().chain(with).collect()
}

/// What managing takes by the number of cGPUs, and what the VM takes meanwhile.
fn managed(plan: &Plan, found: &Figures) -> Vec<Bar> {
    let of_number = |cgpus: &u32| {
        let of = |part: &str| found.figure(&format!("{part}_ms_{cgpus}"));
        let (configure, manage) = (of("configure"), of("manage"));
        let beside = of("deploy").map(|deploy| format!("of {deploy:.0}"));
        Bar {
            name: format!("{cgpus} cGPUs"),
            ends: manage.map(|manage| (configure.unwrap_or(0.0).min(manage), manage)),
            mark: None,
            words: [beside.unwrap_or_default(), String::new()],
        }
    };
    plan.cgpus.iter().map(of_number).collect()
}

/// Several VMs with one cGPU each, beside as many without.
fn many(plan: &Plan, found: &Figures) -> Vec<Bar> {
    let of_number = |vms: &usize| {
        let median = format!("boot_ms_median_of_{vms}_vms");
        let longest = found.figure(&format!("boot_ms_longest_of_{vms}_vms"));
        let without = found.baselines.get(&median).copied();
        let words = without.map_or_else(String::new, |ms| format!("without {ms:.0}"));
        Bar {
            name: format!("{vms} VMs"),
            ends: found.figure(&median).zip(longest),
            mark: without,
            words: [words, String::new()],
        }
    };
    plan.vms.iter().map(of_number).collect()
}

/// Two values on one place, and what is written below.
struct Bar {
    name: String,
    /// Nothing is drawn of what was not measured: a bar of no height would say that it took none.
    ends: Option<(f64, f64)>,
    /// The paper's value, or that of VMs without cGPUs, if there is one.
    mark: Option<f64>,
    words: [String; 2],
}

fn bars(svg: &mut String, down: f64, bars: &[Bar]) {
    let values =
        bars.iter().flat_map(|bar| bar.ends.map(|ends| ends.1).into_iter().chain(bar.mark));
    let highest = values.fold(1.0, f64::max);
    let (scale, bottom) = (HEIGHT / highest, BOTTOM + down);
    let mut x = 30.0;
    for Bar { name, ends, mark, words: [first, second] } in bars {
        let [name_line, first_line, second_line] = [15.0, 30.0, 45.0].map(|below| bottom + below);
        // Writing to a string does not fail, here and below.
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{name_line}\">{name}</text>\n\
             <text x=\"{x}\" y=\"{first_line}\">{first}</text>\n\
             <text x=\"{x}\" y=\"{second_line}\" fill=\"#555\">{second}</text>"
        );
        match ends {
            Some((low, high)) => rise(svg, [x, bottom], scale, [*low, *high]),
            None => {
                let above = bottom - 4.0;
                let _ = writeln!(svg, "<text x=\"{x}\" y=\"{above}\">not measured</text>");
            }
        }
        if let Some(value) = mark {
            let (left, right, y) = (x - 4.0, x + 44.0, bottom - value * scale);
            let _ = writeln!(
                svg,
                "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#000\"/>"
            );
        }
        x += STEP;
    }
}

/// One bar of two values, from where it stands.
fn rise(svg: &mut String, [x, bottom]: [f64; 2], scale: f64, [low, high]: [f64; 2]) {
    let (low_px, high_px) = (low * scale, high * scale);
    let (low_top, high_top) = (bottom - low_px, bottom - high_px);
    let (between, above) = ((high_px - low_px).max(0.0), high_top - 4.0);
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{low_top:.1}\" width=\"40\" height=\"{low_px:.1}\" fill=\"#7a8\"/>\n\
         <rect x=\"{x}\" y=\"{high_top:.1}\" width=\"40\" height=\"{between:.1}\" fill=\"#c63\"/>\n\
         <text x=\"{x}\" y=\"{above:.1}\">{low:.0}; {high:.0}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_measured_stands_beside_the_papers() {
        let plan = Plan {
            cgpus: vec![1, 75],
            vms: vec![15],
            pace: Duration::ZERO,
            memory_mib: 100,
            repeats: 1,
        };
        let figures = [
            ("boot_ms_75", 5_050.0),
            ("deploy_ms_75", 5_000.0),
            ("overhead_75", 0.01),
            ("configure_ms_75", 41.0),
            ("manage_ms_75", 62.0),
            ("boot_ms_median_of_15_vms", 7_000.0),
            ("boot_ms_longest_of_15_vms", 9_000.0),
        ];
        let figures: BTreeMap<String, f64> =
            figures.map(|(name, value)| (name.to_owned(), value)).into();
        let mode = "real, <a cloud>".to_owned();
        let svg = drawing(&plan, &Figures::new("deployment", mode, String::new(), figures));
        for words in [
            "+1.00 %",
            "paper +12 %",
            "5000; 5050",
            "7000; 9000",
            "41; 62",
            "of 5000",
            "&lt;a cloud>",
        ] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        // The paper's 5,600 ms are the highest there is.
        assert!(svg.contains("y1=\"60.0\" y2=\"60.0\""), "{svg}");
        assert_eq!(svg.matches("not measured").count(), 2, "of one cGPU: {svg}");
    }

    #[test]
    fn vms_without_cgpus_stand_beside_those_with_them() {
        let plan = Plan {
            cgpus: vec![1],
            vms: vec![15, 30],
            pace: Duration::ZERO,
            memory_mib: 100,
            repeats: 1,
        };
        let figures = [
            ("boot_ms_1", 5_000.0),
            ("deploy_ms_1", 4_990.0),
            ("boot_ms_median_of_15_vms", 6_000.0),
            ("boot_ms_longest_of_15_vms", 8_000.0),
            ("boot_ms_median_of_30_vms", 6_000.0),
            ("boot_ms_longest_of_30_vms", 8_000.0),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
        let mut found = Figures::new("deployment", String::new(), String::new(), figures);
        let alone = drawing(&plan, &found);
        assert!(!alone.contains("0 cGPUs") && !alone.contains("<line"), "{alone}");
        let baselines = [("boot_ms_0", 4_900.0), ("boot_ms_median_of_15_vms", 4_000.0)];
        found.baselines = baselines.map(|(name, value)| (name.to_owned(), value)).into();
        let svg = drawing(&plan, &found);
        for words in [">0 cGPUs<", "4900; 4900", "without 4000"] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        // Half as high as the longest, and of 15 VMs alone.
        assert!(svg.contains("y1=\"480.0\" y2=\"480.0\""), "{svg}");
        assert_eq!(svg.matches("<line").count(), 1, "{svg}");
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let plan = Plan {
            cgpus: vec![75],
            vms: vec![15],
            pace: Duration::ZERO,
            memory_mib: 100,
            repeats: 1,
        };
        let figures = Figures::new("deployment", String::new(), String::new(), BTreeMap::new());
        let svg = drawing(&plan, &figures);
        assert_eq!(svg.matches("not measured").count(), 3, "{svg}");
        assert!(!svg.contains("<rect") && !svg.contains("<line"), "{svg}");
        let none = Plan { cgpus: Vec::new(), vms: Vec::new(), ..plan };
        assert!(drawing(&none, &figures).ends_with("</svg>\n"));
    }
}
