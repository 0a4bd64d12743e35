//! What a wake of a flag costs on which nobody sleeps: the bare instructions, a flag of memory
//! without a bell, and one of memory with a bell, in turn:
//! `cargo run --release -p weft-ring --example wake`
#![expect(clippy::print_stdout, reason = "the table is this program's purpose")]

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

use weft_ring::bell::marks;
use weft_ring::{Access, Bell, MemoryFile, PAGE, WakeFlag};

/// Rounds in which every way has its turn.
const ROUNDS: usize = 1_001;
const WAKES: u32 = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plain = MemoryFile::create("flag", PAGE)?;
    let (_marks, out) = marks()?;
    let belled = plain.try_clone()?.with_bell(Bell::of_host(out, 0));
    let flag = |file: &MemoryFile| -> Result<WakeFlag, Box<dyn std::error::Error>> {
        Ok(WakeFlag::new(file.map(Access::ReadWrite)?.cell(0)?))
    };
    let (plain, belled, bare) = (flag(&plain)?, flag(&belled)?, AtomicU32::new(0));
    let ways: [(&str, &dyn Fn()); 3] = [
        ("bare word", &|| wake_bare(&bare)),
        ("no bell", &|| black_box(&plain).wake()),
        ("bell", &|| black_box(&belled).wake()),
    ];
    let mut costs: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS {
        // Each way is first, second and third equally often.
        for turn in 0..3 {
            let way = (round + turn) % 3;
            costs[way].push(nanoseconds(ways[way].1));
        }
    }
    println!("{:>10} {:>8} {:>8}", "way", "p50 ns", "p99 ns");
    for ((name, _), mut costs) in ways.into_iter().zip(costs) {
        costs.sort_unstable_by(f64::total_cmp);
        let (p50, p99) = (costs[costs.len() / 2], costs[costs.len() * 99 / 100]);
        println!("{name:>10} {p50:>8.2} {p99:>8.2}");
    }
    Ok(())
}

/// What `WakeFlag::wake` does, without a flag around it.
fn wake_bare(word: &AtomicU32) {
    fence(Ordering::SeqCst);
    if black_box(word).load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::AcqRel) != 0 {
        std::process::abort();
    }
}

/// The mean of many wakes.
fn nanoseconds(wake: &dyn Fn()) -> f64 {
    let begin = Instant::now();
    for _ in 0..WAKES {
        wake();
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(WAKES)
}
