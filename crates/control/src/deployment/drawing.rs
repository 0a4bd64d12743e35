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

/// The boot of one VM by its cGPUs, the VM's own part and what is beside it; and the boots of many.
#[must_use]
pub fn drawing(plan: &Plan, found: &Figures) -> String {
    let value = |name: String| found.figure(&name).unwrap_or(0.0);
    let columns = plan.cgpus.len().max(plan.vms.len()).max(4);
    let width = (1..=columns).fold(120.0, |width, _| width + STEP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"660\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <text x=\"10\" y=\"18\">{}, commit {}</text>\n\
         <text x=\"10\" y=\"36\">Boot of one VM, ms: its own part (green), all else (red, % of \
         it)</text>\n",
        escaped(&found.mode),
        found.commit
    );
    let boots = plan.cgpus.iter().map(|cgpus| {
        let boot = value(format!("boot_ms_{cgpus}"));
        let deploy = value(format!("deploy_ms_{cgpus}")).min(boot);
        let over = found.figure(&format!("overhead_{cgpus}"));
        let paper = OF_PAPER.iter().find(|(of, _)| of == cgpus);
        Bar {
            name: format!("{cgpus} cGPUs"),
            low: deploy,
            high: boot,
            words: [
                over.map_or_else(String::new, |over| format!("+{:.2} %", over * 100.0)),
                paper.map_or_else(String::new, |(_, over)| format!("paper +{over} %")),
            ],
        }
    });
    bars(&mut svg, 0.0, &boots.collect::<Vec<_>>());
    svg.push_str(
        "<text x=\"10\" y=\"326\">Boots of many VMs with one cGPU each, ms: median (green), \
         longest (red)</text>\n",
    );
    let many = plan.vms.iter().map(|vms| Bar {
        name: format!("{vms} VMs"),
        low: value(format!("boot_ms_median_of_{vms}_vms")),
        high: value(format!("boot_ms_longest_of_{vms}_vms")),
        words: [String::new(), String::new()],
    });
    bars(&mut svg, 320.0, &many.collect::<Vec<_>>());
    svg.push_str(
        "<text x=\"10\" y=\"640\">The paper has 15 to 90 VMs, 10 s apart on three hosts: an \
         \u{201c}almost negligible increment\u{201d}.</text>\n</svg>\n",
    );
    svg
}

/// Two values on one place, and what is written below.
struct Bar {
    name: String,
    low: f64,
    high: f64,
    words: [String; 2],
}

fn bars(svg: &mut String, down: f64, bars: &[Bar]) {
    let highest = bars.iter().map(|bar| bar.high).fold(1.0, f64::max);
    let (scale, bottom) = (HEIGHT / highest, BOTTOM + down);
    let mut x = 30.0;
    for Bar { name, low, high, words: [first, second] } in bars {
        let (low_px, high_px) = (low * scale, high * scale);
        let (low_top, high_top) = (bottom - low_px, bottom - high_px);
        let between = (high_px - low_px).max(0.0);
        let [above, below] = [high_top - 4.0, bottom + 15.0];
        let [first_line, second_line] = [below + 15.0, below + 30.0];
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{low_top:.1}\" width=\"40\" height=\"{low_px:.1}\" \
             fill=\"#7a8\"/>\n\
             <rect x=\"{x}\" y=\"{high_top:.1}\" width=\"40\" height=\"{between:.1}\" \
             fill=\"#c63\"/>\n\
             <text x=\"{x}\" y=\"{above:.1}\">{low:.0}; {high:.0}</text>\n\
             <text x=\"{x}\" y=\"{below}\">{name}</text>\n\
             <text x=\"{x}\" y=\"{first_line}\">{first}</text>\n\
             <text x=\"{x}\" y=\"{second_line}\" fill=\"#555\">{second}</text>"
        );
        x += STEP;
    }
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
            ("boot_ms_median_of_15_vms", 7_000.0),
            ("boot_ms_longest_of_15_vms", 9_000.0),
        ];
        let figures: BTreeMap<String, f64> =
            figures.map(|(name, value)| (name.to_owned(), value)).into();
        let mode = "real, <a cloud>".to_owned();
        let svg = drawing(&plan, &Figures::new("deployment", mode, String::new(), figures));
        for words in ["+1.00 %", "paper +12 %", "5000; 5050", "7000; 9000", "&lt;a cloud>"] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
    }
}
