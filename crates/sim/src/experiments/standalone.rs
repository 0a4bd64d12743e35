//! One program alone: what the transport costs (FairGV Figures 2 and 7).

use super::lab::{Lab, RunError};
use crate::kernel::SECOND;
use crate::outcome::{Outcome, PlotKind};
use crate::program::{Behaviour, Transport};
use crate::table3::{Loop, Profile};
use crate::world::World;

const SIZES_US: [u64; 6] = [21, 51, 102, 172, 285, 391];
/// GVirtuS in Figure 2, as far as the text gives it.
const GVIRTUS: [(f64, f64); 3] = [(21.0, 1.45), (285.0, 1.05), (391.0, 1.0)];

/// Device time per second of a program that has the node for itself.
pub(super) fn rate_alone(
    lab: &mut Lab<'_>,
    program: Box<dyn Behaviour>,
    transport: Transport,
    duration_ns: u64,
) -> Result<f64, RunError> {
    let mut setup = lab.setup("fair");
    if transport.lock_step || transport == lab.native() {
        // Its measured cost is that of a caller that polls, as drivers do.
        setup.spin_ns = None;
    }
    let mut world = World::new(setup)?;
    let vgpu = world.vgpu(1);
    world.program(vgpu, program, transport, None, 1_024);
    world.run_for(SECOND / 10);
    let before = world.work_ns()[vgpu];
    world.run_for(duration_ns);
    let work_ns = world.work_ns()[vgpu] - before;
    lab.close(&mut world, "alone");
    Ok(work_ns as f64 / duration_ns as f64)
}

pub(super) fn figure2(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let seconds = lab.seconds(5, 1);
    let window = format!("{} s per point", seconds / SECOND);
    let mut outcome = Outcome::new("figure2", "Overhead against kernel size", window);
    let transports = [
        ("rings", lab.rings(), false),
        ("rings_sync", lab.rings(), true),
        ("trap", lab.trapping(), false),
    ];
    let mut lines = vec![Vec::new(); transports.len()];
    for us in SIZES_US {
        for (line, (name, transport, waits)) in lines.iter_mut().zip(transports) {
            let native = rate_alone(lab, Box::new(Loop::simple(us, waits)), lab.native(), seconds)?;
            let rate = rate_alone(lab, Box::new(Loop::simple(us, waits)), transport, seconds)?;
            let overhead = native / rate;
            outcome.figure(format!("overhead_{name}_{us}us"), overhead);
            line.push((us as f64, overhead));
        }
    }
    let most = |line: &[(f64, f64)]| line.iter().map(|point| point.1).fold(0.0, f64::max);
    outcome.figure("overhead_max", most(&lines[0]).max(most(&lines[1])));
    outcome.control("trap_21us", lines[2][0].1);
    let names = ["rings, batches", "rings, synchronised", "four system calls (model)"];
    let plot =
        outcome.plot(PlotKind::Lines, "Overhead against kernel size", "kernel, µs", "overhead");
    for (name, line) in names.into_iter().zip(lines) {
        plot.series(name, line);
    }
    plot.dashed("GVirtuS (paper)", GVIRTUS);
    outcome.note(
        "The trapping transport is a model: every request costs four system calls and nothing is \
         queued ahead of the device, so its cost adds to each kernel's time. What a request costs \
         is assumed: an echo of four bare system calls (trapping_call), where a transport that \
         executes takes longer.",
    );
    Ok(outcome)
}

pub(super) fn figure7(lab: &mut Lab<'_>) -> Result<Outcome, RunError> {
    let mut outcome = Outcome::new("figure7", "Twelve programs alone", "4 s each, LMD and PF 40 s");
    let transports = [("gvirtus", lab.trapping()), ("rcuda", lab.tcp()), ("weft", lab.rings())];
    let mut bars = vec![Vec::new(); transports.len()];
    let profiles = Profile::table3();
    for profile in &profiles {
        lab.say(&profile.name);
        let full = if profile.async_per_10ms < 0.5 { 40 } else { 4 };
        let seconds = lab.seconds(full, full / 4);
        let native = rate_alone(lab, Box::new(profile.program(lab.seed)), lab.native(), seconds)?;
        for (bar, (name, transport)) in bars.iter_mut().zip(transports) {
            let rate = rate_alone(lab, Box::new(profile.program(lab.seed)), transport, seconds)?;
            outcome.figure(format!("overhead_{name}_{}", profile.name), native / rate);
            bar.push(native / rate);
        }
    }
    let most = |place: usize| bars[place].iter().copied().fold(0.0, f64::max);
    outcome.figure("overhead_max", most(2));
    outcome.control("gvirtus_max", most(0));
    outcome.control("rcuda_max", most(1));
    let srd1 = outcome.figures["overhead_rcuda_SRD1"];
    for program in ["CFD", "SCAN"] {
        let other = outcome.figures[&format!("overhead_rcuda_{program}")];
        outcome.control(format!("rcuda_srd1_over_{program}"), srd1 / other);
    }
    let plot = outcome.plot(PlotKind::Bars, "Overhead of programs alone", "", "overhead");
    plot.groups(profiles.iter().map(|profile| profile.name.as_str()))
        .line_at(1.0, "paper, FairGV: close to 1.0");
    for (name, bar) in ["GVirtuS (model)", "rCUDA (model)", "Weft"].into_iter().zip(bars) {
        // SRD1 over TCP would flatten everything else.
        plot.bars(name, bar.into_iter().map(|overhead| overhead.min(3.0)));
    }
    outcome.note("The paper's Figure 7 has no numbers in its text; bars above 3 are cut.");
    outcome.note("GVirtuS's requests cost what is assumed in Figure 2 (trapping_call).");
    outcome.note(
        "The native baseline polls for its answers. Calls cost time there too: as much as measured \
         where the device is in the program's own process, which is less than any driver's. The \
         profile's period already contains its calls, so both sides pay for them once more.",
    );
    Ok(outcome)
}
