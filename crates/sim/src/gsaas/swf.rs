//! Jobs, and the standard workload format of the Parallel Workloads Archive (version 2): a line of
//! 18 numbers for each job, comments behind semicolons.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use weft_sched::placement::CGPUS_MAX;

use crate::flexy::TraceError;

/// A job: so many nodes for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// When it is submitted, in seconds.
    pub arrival_s: u64,
    /// Nodes, each with one GPU.
    pub nodes: u32,
    /// How long it runs alone on its GPUs, in seconds.
    pub run_s: u64,
    /// How long its user says, in seconds: what backfilling believes.
    pub estimate_s: u64,
}

/// Fields that are read, from 0, with their names in the format's definition.
const SUBMIT: (usize, &str) = (1, "Submit Time");
const RUN: (usize, &str) = (3, "Run Time");
const ALLOCATED: (usize, &str) = (4, "Number of Allocated Processors");
const REQUESTED: (usize, &str) = (7, "Requested Number of Processors");
const REQUESTED_TIME: (usize, &str) = (8, "Requested Time");

/// Bounds of what is read: sums of them cannot overflow, and no request has more cGPUs.
const SUBMIT_MAX_S: i64 = 1 << 40;
const RUN_MAX_S: i64 = 10 * 366 * 86_400;
const PROCESSORS_MAX: i64 = CGPUS_MAX as i64;

/// Reads jobs by arrival. Jobs that never ran (no time or no processors) are left out; a user's
/// estimate below the run time is raised to it, and a missing one is exact.
///
/// # Errors
/// If a line lacks fields, a field is no number or more than can be simulated, or no job ran.
pub fn import(text: &str) -> Result<Vec<Job>, TraceError> {
    let mut jobs = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let text = text.split(';').next().unwrap_or_default();
        let cells: Vec<&str> = text.split_whitespace().collect();
        if cells.is_empty() {
            continue;
        }
        let number = |(place, column): (usize, &'static str)| {
            let value = cells.get(place).copied().unwrap_or_default();
            let wrong = || TraceError::Value { line: line + 1, column, value: value.to_owned() };
            // Some logs have fractions of seconds.
            value.split('.').next().unwrap_or_default().parse::<i64>().map_err(|_| wrong())
        };
        let bounded = |field: (usize, &'static str), most: i64| {
            let value = number(field)?;
            if value > most {
                let why = format!("{} = {value}: {most} is the most that is simulated", field.1);
                return Err(TraceError::Job { line: line + 1, why });
            }
            Ok(value)
        };
        let (submit, run) = (bounded(SUBMIT, SUBMIT_MAX_S)?, bounded(RUN, RUN_MAX_S)?);
        let processors = match bounded(REQUESTED, PROCESSORS_MAX)? {
            requested if requested > 0 => requested,
            _ => bounded(ALLOCATED, PROCESSORS_MAX)?,
        };
        let (Ok(arrival_s), Ok(run_s), Ok(nodes)) =
            (u64::try_from(submit), u64::try_from(run), u32::try_from(processors))
        else {
            continue;
        };
        if run_s > 0 && nodes > 0 {
            let estimate_s = bounded(REQUESTED_TIME, RUN_MAX_S)?;
            let estimate_s = u64::try_from(estimate_s).unwrap_or(0).max(run_s);
            jobs.push(Job { arrival_s, nodes, run_s, estimate_s });
        }
    }
    jobs.sort_by_key(|job| job.arrival_s);
    let first_s = jobs.first().ok_or(TraceError::Empty)?.arrival_s;
    jobs.iter_mut().for_each(|job| job.arrival_s -= first_s);
    Ok(jobs)
}

/// Writes jobs; what is not known is −1.
#[must_use]
pub fn export(jobs: &[Job], comment: &str) -> String {
    let mut text = format!("; Version: 2\n; Note: {comment}\n; MaxJobs: {}\n", jobs.len());
    for (number, job) in (1..).zip(jobs) {
        let Job { arrival_s, nodes, run_s, estimate_s } = job;
        let _ = writeln!(
            text,
            "{number} {arrival_s} -1 {run_s} {nodes} -1 -1 {nodes} {estimate_s} -1 1 -1 -1 -1 -1 -1 \
             -1 -1"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by hand: a comment, a job that was cancelled, one without a request, one with both.
    const TEXT: &str = "; Computer: none\n\
        1 100 5 60 2 -1 -1 -1 -1 -1 1 1 1 1 1 -1 -1 -1\n\
        2 110 -1 -1 4 -1 -1 4 600 -1 0 1 1 1 1 -1 -1 -1\n\
        3 90.5 0 30.9 3 -1 -1 4 20 -1 1 1 1 1 1 -1 -1 -1 ; last\n";

    #[test]
    fn jobs_that_ran_are_read_by_arrival() {
        let jobs = import(TEXT).expect("it is sound");
        assert_eq!(
            jobs,
            [
                Job { arrival_s: 0, nodes: 4, run_s: 30, estimate_s: 30 },
                Job { arrival_s: 10, nodes: 2, run_s: 60, estimate_s: 60 },
            ]
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let jobs = [
            Job { arrival_s: 0, nodes: 1, run_s: 5, estimate_s: 9 },
            Job { arrival_s: 7, nodes: 4, run_s: 1, estimate_s: 1 },
        ];
        assert_eq!(import(&export(&jobs, "two")).expect("it was just written"), jobs);
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_by_its_line() {
        let line = |submit: &str, run: &str, nodes: &str, estimate: &str| {
            format!("; a comment\n1 {submit} 0 {run} {nodes} 0 0 {nodes} {estimate} 0\n")
        };
        import(&line("0", "316224000", "4096", "316224000")).expect("the most");
        for (text, name, most) in [
            (line("0", "9223372036854775807", "1", "1"), "Run Time", "316224000"),
            (line("0", "1", "4294967295", "1"), "Requested Number of Processors", "4096"),
            (line("0", "1", "1000000", "1"), "Requested Number of Processors", "4096"),
            (line("0", "1", "1", "9223372036854775807"), "Requested Time", "316224000"),
            (line("9223372036854775807", "1", "1", "1"), "Submit Time", "1099511627776"),
        ] {
            let error = import(&text).expect_err("too much").to_string();
            let is_told = [name, most, "line 2"].iter().all(|words| error.contains(words));
            assert!(is_told, "{error}");
        }
        let allocated = "1 0 0 1 4097 0 0 -1 1 0\n";
        import(allocated).expect_err("as many were allocated");
    }

    #[test]
    fn an_error_names_line_and_field() {
        let error = import("1 2 3\n").expect_err("it is short").to_string();
        assert_eq!(error, "line 1 of the trace: Run Time = \"\" cannot be read");
        assert!(matches!(import("; nothing\n"), Err(TraceError::Empty)));
        import("1 x 0 1 1 0 0 1 1\n").expect_err("no number");
    }
}
