//! Decisions of random histories with every invariant checked, as many as one has time for:
//! `cargo run --release -p weft-sched --example soak -- 1000000000 [SEED]`
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a report, or a panic that is one")]

#[path = "../tests/model/mod.rs"]
mod model;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

use model::Random;
use model::histories::{Played, play};

/// Decisions of one history.
const HISTORY: u64 = 10_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let decisions = arguments.next().unwrap_or(10_000_000);
    let mut seed = arguments.next().unwrap_or(1);
    let first = seed;
    let (begin, mut total, mut said, mut broken) = (Instant::now(), Played::default(), 0, 0_u64);
    while total.decisions < decisions {
        // A panic names the broken invariant; the seed replays it.
        match catch_unwind(|| play(&mut Random(seed), HISTORY)) {
            Ok(played) => total.add(played),
            Err(_) => {
                println!("broken by seed {seed}");
                broken += 1;
            }
        }
        seed += 1;
        if total.decisions * 20 / decisions > said {
            said = total.decisions * 20 / decisions;
            report(&total, (first, seed - 1), broken, begin);
        }
    }
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(total: &Played, (first, last): (u64, u64), broken: u64, begin: Instant) {
    let Played { decisions, turns, simulated_ns, worst_ppm } = total;
    let (simulated_s, seconds) = (simulated_ns / 1_000_000_000, begin.elapsed().as_secs());
    println!(
        "{decisions} decisions, {turns} turns, {simulated_s} s simulated, seeds {first} to {last}, \
         {seconds} s: {broken} histories broke an invariant; in the others the worst lag was \
         {worst_ppm} millionths of its bound"
    );
}
