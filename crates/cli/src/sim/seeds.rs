//! Runs of several experiments and seeds, as many at a time as there are processors.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use weft_sim::experiments::{Experiment, Lab};
use weft_sim::{Calibration, Outcome};

use super::seeds_of;
use crate::args::SimOptions;
use crate::output::note;

/// Nothing is said of what takes less.
const SILENCE: Duration = Duration::from_secs(1);

/// One run: the experiment's place, and its seed.
type Task = (usize, u64);

/// The outcome of each experiment: of the paper's the median of all seeds.
pub(super) fn run(
    chosen: &[&'static Experiment],
    options: &SimOptions,
    costs: &Calibration,
) -> Result<Vec<Outcome>> {
    let seeds = |experiment: &Experiment| {
        if experiment.is_of_paper() { u64::from(seeds_of(options)) } else { 1 }
    };
    let (alone, beside): (Vec<Task>, Vec<Task>) = chosen
        .iter()
        .enumerate()
        .flat_map(|(place, one)| (0..seeds(one)).map(move |seed| (place, options.seed + seed)))
        .partition(|(place, _)| chosen[*place].is_real());
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut found = work(chosen, &beside, processors, options, costs)?;
    found.extend(work(chosen, &alone, 1, options, costs)?);
    found.sort_by_key(|(task, _)| *task);
    let merged = (0..chosen.len()).map(|place| {
        let of_place = found.iter().filter(|((at, _), _)| *at == place);
        let outcomes: Vec<Outcome> = of_place.map(|(_, outcome)| outcome.clone()).collect();
        match <[Outcome; 1]>::try_from(outcomes) {
            Ok([single]) => Ok(single),
            Err(several) => weft_sim::seeds::merge(several).context("an experiment did not run"),
        }
    });
    merged.collect()
}

/// Goes through tasks in so many threads.
fn work(
    chosen: &[&'static Experiment],
    tasks: &[Task],
    threads: usize,
    options: &SimOptions,
    costs: &Calibration,
) -> Result<Vec<(Task, Outcome)>> {
    let (next, found, said) =
        (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Instant::now()));
    let one = || -> Result<()> {
        while let Some(&(place, seed)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut progress = |what: &str| say(&said, &format!("sim: {what}, seed {seed}"));
            let mut lab = Lab::new(seed, options.quick, costs.clone(), &mut progress);
            let outcome = chosen[place].run(&mut lab)?;
            found.lock().map_err(|_| anyhow!("a run panicked"))?.push(((place, seed), outcome));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a run of the simulator panicked"))?
        })
    })?;
    found.into_inner().map_err(|_| anyhow!("a run panicked"))
}

fn say(said: &Mutex<Instant>, text: &str) {
    let Ok(mut last) = said.lock() else { return };
    if last.elapsed() >= SILENCE {
        *last = Instant::now();
        note(text);
    }
}
