//! Requests of public traces as jobs of one task each, and jobs as text.
//!
//! | source | file | a request's time |
//! |---|---|---|
//! | Azure LLM 2023 | `TIMESTAMP,ContextTokens,GeneratedTokens` | 40 µs a context token, 25 ms a generated one (a model: the trace has no times) |
//! | Alibaba GenAI 2026 | `lora_request_trace.csv` | `exec_time_seconds` |
//!
//! The files are the user's; none is part of Weft.

use std::fmt::Write as _;

use super::workload::Job;
use crate::{MS, SECOND, US};

/// Where requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Azure's LLM inference trace of 2023.
    Azure,
    /// Alibaba's GenAI requests of 2026.
    Alibaba,
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A column that is needed is not there.
    #[error("the trace has no column {0}")]
    Column(&'static str),
    /// A value that is not what its column needs.
    #[error("line {line} of the trace: {column} = {value:?} cannot be read")]
    Value {
        /// Where, from 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What stands there.
        value: String,
    },
    /// There is no request in it.
    #[error("the trace has no request")]
    Empty,
    /// A line that is no job.
    #[error("line {line} is no job: {why}")]
    Job {
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// There is no time in which to look at them.
    #[error("all jobs arrive at once: the window is from the first arrival to the last")]
    Window,
    /// More than can be simulated.
    #[error("the jobs have {0}")]
    TooMuch(&'static str),
}

/// Bounds of jobs that are read: what a simulated pool can take, and sums that cannot overflow.
const KERNEL_MAX: u32 = 1 << 16;
const JOBS_MAX: usize = 1 << 19;
const WEIGHT_MAX: u32 = 10_000;
const NS_MAX: u64 = 1 << 60;
/// The header of a CSV file of jobs.
const CSV_HEADER: &str = "job,arrival_ns,class,weight,outstanding,kernel,time_ns";

/// Kernels of a request in proportion to its tokens: a model of a mid-sized language model.
const CONTEXT_TOKEN_NS: u64 = 40 * US;
const GENERATED_TOKEN_NS: u64 = 25 * MS;

/// Reads requests as user-facing jobs, by arrival from 0 on. The kernel's number is the time's
/// power of two, so that what is like is learnt together.
///
/// # Errors
/// If a column is missing, a value cannot be read, or there is no request.
pub fn import(source: Source, text: &str) -> Result<Vec<Job>, TraceError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header: Vec<&str> = lines.next().map_or_else(Vec::new, |(_, line)| cells(line));
    let find = |name: &'static str| {
        header.iter().position(|cell| *cell == name).ok_or(TraceError::Column(name))
    };
    let names: &[&'static str] = match source {
        Source::Azure => &["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
        Source::Alibaba => &["gmt_create", "exec_time_seconds"],
    };
    let places: Vec<usize> = names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
    let mut jobs = Vec::new();
    for (line, text) in lines {
        let cells = cells(text);
        let cell = |place: usize| cells.get(places[place]).copied().unwrap_or_default();
        let wrong = |place: usize| TraceError::Value {
            line: line + 1,
            column: names[place],
            value: cell(place).to_owned(),
        };
        let arrival_ns = clock_ns(cell(0)).ok_or_else(|| wrong(0))?;
        let number = |place| decimal_ns(cell(place)).ok_or_else(|| wrong(place));
        let length_ns = match source {
            Source::Azure => {
                let tokens = |place| Ok::<u64, TraceError>(number(place)? / SECOND);
                let context_ns = tokens(1)?.checked_mul(CONTEXT_TOKEN_NS);
                let generated_ns = tokens(2)?.checked_mul(GENERATED_TOKEN_NS);
                let sum = context_ns.zip(generated_ns).and_then(|(one, two)| one.checked_add(two));
                sum.ok_or_else(|| wrong(2))?
            }
            // A request that failed at once has no time.
            Source::Alibaba if cell(1).is_empty() => continue,
            Source::Alibaba => number(1)?,
        };
        let length_ns = length_ns.max(1);
        let tasks = vec![(length_ns.ilog2(), length_ns)];
        jobs.push(Job { arrival_ns, user_facing: true, weight: 1, outstanding: 1, tasks });
    }
    jobs.sort_by_key(|job| job.arrival_ns);
    let first_ns = jobs.first().ok_or(TraceError::Empty)?.arrival_ns;
    jobs.iter_mut().for_each(|job| job.arrival_ns -= first_ns);
    Ok(jobs)
}

fn cells(line: &str) -> Vec<&str> {
    line.split(',').map(str::trim).collect()
}

/// `YYYY-MM-DD hh:mm:ss[.fraction]` in ns since March 1600.
fn clock_ns(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(' ')?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':');
    let (hour, minute) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
    let second_ns = decimal_ns(time.next()?)?;
    let is_date = year <= 2_180 && (1..=12).contains(&month) && (1..=31).contains(&day);
    // 60 is a leap second.
    if !is_date || hour > 23 || minute > 59 || second_ns >= 61 * SECOND {
        return None;
    }
    // Years begin in March, so that the leap day is the last one.
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    // From 1600, where the calendar's 400 years begin and a u64 of ns still reaches.
    let years = year.checked_sub(1_600)?;
    let leaps = years / 4 - years / 100 + years / 400;
    let days = years * 365 + leaps + (153 * month + 2) / 5 + day - 1;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60;
    seconds.checked_mul(SECOND)?.checked_add(second_ns)
}

/// A decimal number in billionths.
fn decimal_ns(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    whole.checked_mul(SECOND)?.checked_add(digits.parse().ok()?)
}

/// One line for each task, behind a header: the job, its arrival in ns, class, weight and
/// outstanding tasks, the task's kernel and time in ns.
#[must_use]
pub fn csv(jobs: &[Job]) -> String {
    let mut text = format!("{CSV_HEADER}\n");
    for (place, job) in jobs.iter().enumerate() {
        let class = if job.user_facing { "user-facing" } else { "batch" };
        for (kernel, time_ns) in &job.tasks {
            let (arrival, weight, most) = (job.arrival_ns, job.weight, job.outstanding);
            let _ = writeln!(text, "{place},{arrival},{class},{weight},{most},{kernel},{time_ns}");
        }
    }
    text
}

/// Reads jobs as `weft workload flexy` writes them, a JSON object a job or a CSV line a task, and
/// sorts them by arrival, the first at 0.
///
/// # Errors
/// If a line is no job, there is none, they arrive at once, or they are more than can be simulated.
pub fn read(text: &str) -> Result<Vec<Job>, TraceError> {
    let lines = text.lines().enumerate().map(|(line, text)| (line + 1, text.trim()));
    let mut lines = lines.filter(|(_, text)| !text.is_empty()).peekable();
    let is_csv = lines.next_if(|(_, text)| *text == CSV_HEADER).is_some();
    let mut jobs: Vec<Job> = Vec::new();
    // Which job of a CSV file the last line was about.
    let mut latest = None;
    for (line, text) in lines {
        let wrong = |why: String| TraceError::Job { line, why };
        let (number, job) = if is_csv {
            csv_line(text).map(|(number, job)| (Some(number), job)).map_err(wrong)?
        } else {
            (None, serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?)
        };
        check(&job).map_err(wrong)?;
        match jobs.last_mut().filter(|_| is_csv && latest == number) {
            Some(last) => last.tasks.extend(job.tasks),
            None => jobs.push(job),
        }
        latest = number;
    }
    jobs.sort_by_key(|job| job.arrival_ns);
    let first_ns = jobs.first().ok_or(TraceError::Empty)?.arrival_ns;
    jobs.iter_mut().for_each(|job| job.arrival_ns -= first_ns);
    if jobs.last().is_none_or(|job| job.arrival_ns == 0) {
        return Err(TraceError::Window);
    }
    if jobs.len() > JOBS_MAX {
        return Err(TraceError::TooMuch("too many lines"));
    }
    let mut times = jobs.iter().flat_map(|job| &job.tasks).map(|task| task.1);
    let sum = times.try_fold(0u64, u64::checked_add);
    if sum.is_none_or(|sum| sum > NS_MAX) {
        return Err(TraceError::TooMuch("more work than 36 years of a device"));
    }
    Ok(jobs)
}

/// The job's number and the job of a CSV line, with its one task.
fn csv_line(text: &str) -> Result<(u64, Job), String> {
    let cells = cells(text);
    let [job, arrival, class, weight, outstanding, kernel, time] = cells.as_slice() else {
        return Err(format!("{} columns instead of {CSV_HEADER}", cells.len()));
    };
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| format!("{text:?} is no number, or none that is taken"))
    };
    let small = |text: &str| {
        let number = number(text)?;
        u32::try_from(number).map_err(|_| format!("{number} is out of range"))
    };
    let user_facing = match *class {
        "user-facing" => true,
        "batch" => false,
        other => return Err(format!("{other:?} is neither user-facing nor batch")),
    };
    let (weight, outstanding) = (small(weight)?, small(outstanding)?);
    let tasks = vec![(small(kernel)?, number(time)?)];
    Ok((
        number(job)?,
        Job { arrival_ns: number(arrival)?, user_facing, weight, outstanding, tasks },
    ))
}

fn check(job: &Job) -> Result<(), String> {
    let range = |what: &str, value: u64, least: u64, most: u64| {
        let is_inside = (least..=most).contains(&value);
        let wrong = || format!("{what} is {value}, not {least} to {most}");
        is_inside.then_some(()).ok_or_else(wrong)
    };
    range("its weight", job.weight.into(), 1, WEIGHT_MAX.into())?;
    range("what it keeps outstanding", job.outstanding.into(), 1, u32::MAX.into())?;
    range("its arrival in ns", job.arrival_ns, 0, NS_MAX)?;
    for (kernel, time_ns) in &job.tasks {
        range("a task's kernel", u64::from(*kernel), 0, KERNEL_MAX.into())?;
        range("a task's time in ns", *time_ns, 1, NS_MAX)?;
    }
    Ok(())
}
