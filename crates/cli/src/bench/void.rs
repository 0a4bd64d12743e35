//! Runs on a paced device that did not keep to its model: they are void, and done again. What stays
//! void has no figures, and its document says so ([`super::document::Document::held`]).

use anyhow::Result;

use super::Context;
use super::tenant::Kept;
use crate::output::note;

/// Runs of one measurement, all of which may be void.
pub(super) const RUNS_MAX: usize = 6;

/// A run whose figures say more of the machine than of what ran.
#[derive(Debug, thiserror::Error)]
#[error(
    "{part:.2} % of the executions {what}, more than {most:.1} %: this machine was too busy for the \
     paced device; stop other work and run it again"
)]
pub(crate) struct Voided {
    /// What too many executions did.
    pub(super) what: &'static str,
    /// How many of them, in percent.
    pub(super) part: f64,
    /// How many may, in percent.
    pub(super) most: f64,
}

/// A measurement of which every run is void.
#[derive(Debug, thiserror::Error)]
#[error("{}", words(.runs))]
pub(crate) struct Void {
    /// How the device kept to its model in each run.
    pub(super) runs: Vec<Kept>,
}

/// What happened in each run.
fn words(runs: &[Kept]) -> String {
    let whys = runs.iter().filter_map(|kept| kept.check().err());
    let each: Vec<String> =
        whys.map(|Voided { what, part, .. }| format!("{part:.2} % {what}")).collect();
    format!(
        "all {} runs are void, of the executions {}: this machine was too busy for the paced \
         device; stop other work and run it again",
        runs.len(),
        each.join(", ")
    )
}

/// Does something until the device has kept to its model meanwhile, so many times at most; what
/// came of that, and how it kept.
///
/// # Errors
/// [`Void`] if it never did; whatever else goes wrong, at once.
pub(super) fn until_it_counts<T>(
    context: &Context,
    runs_max: usize,
    mut run: impl FnMut() -> Result<(T, Kept)>,
) -> Result<(T, Kept)> {
    let mut runs = Vec::new();
    while runs.len() < runs_max {
        let (result, kept) = run()?;
        let Err(why) = kept.judge(context) else { return Ok((result, kept)) };
        runs.push(kept);
        if runs.len() < runs_max {
            note(&format!("a run is void and done again: {why}"));
            context.repeat(kept);
        }
    }
    Err(Void { runs }.into())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use anyhow::bail;

    use super::*;

    /// Of a managed device of whose executions this part began late.
    fn late(late: f64) -> Kept {
        Kept { overruns: 0.0, late, unmanaged: false, paced: true }
    }

    /// What comes of runs with so many late executions each, and how many of them were done.
    fn done(quick: bool, lates: &[f64]) -> (Result<(usize, Kept)>, usize) {
        let context = Context::new(PathBuf::new(), quick);
        let mut runs = 0;
        let result = until_it_counts(&context, RUNS_MAX, || {
            runs += 1;
            let Some(part) = lates.get(runs - 1) else { bail!("no run {runs}") };
            Ok((runs, late(*part)))
        });
        (result, runs)
    }

    #[test]
    fn the_first_run_that_counts_is_taken_and_nothing_of_those_before() {
        let (result, runs) = done(false, &[0.05, 0.03, 0.01, 0.0]);
        let (value, kept) = result.unwrap();
        assert_eq!((value, kept.late, runs), (3, 0.01, 3));
        // The control: what counts is not done again.
        assert_eq!(done(false, &[0.01, 0.0]).1, 1);
        assert_eq!(done(true, &[0.05, 0.0]).1, 1, "every quick run counts");
    }

    #[test]
    fn what_stays_void_tells_each_run() {
        let (result, runs) = done(false, &[0.05, 0.0625, 0.03, 0.04, 0.05, 0.0497, 0.0]);
        assert_eq!(runs, RUNS_MAX);
        let void: Void = result.unwrap_err().downcast().unwrap();
        let lates: Vec<f64> = void.runs.iter().map(|kept| kept.late).collect();
        assert_eq!(lates, [0.05, 0.0625, 0.03, 0.04, 0.05, 0.0497]);
        let text = void.to_string();
        assert!(text.starts_with("all 6 runs are void") && text.contains("6.25 % began late"));
    }

    #[test]
    fn what_fails_otherwise_is_not_void_and_not_done_again() {
        let (result, runs) = done(false, &[0.05]);
        assert_eq!(runs, 2);
        let error = result.unwrap_err();
        assert!(error.downcast_ref::<Void>().is_none() && error.to_string().contains("no run 2"));
    }
}
