//! Profiles from files: one line per kernel launch, as a profiler writes them.
//!
//! CSV with a header, or a JSON list of objects, with the columns
//!
//! | column | meaning |
//! |---|---|
//! | `kernel` | the kernel's name |
//! | `duration_ns` | its time on the device, in ns |
//! | `gap_ns` | processor time between this launch and the next one, in ns; 0 if it is missing |
//! | `sync` | 1 or true if the program waits for it; 0 if it is missing |
//!
//! The launches are replayed in this order, again and again.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::kernel::Kernel;
use crate::program::{Behaviour, Step, View};

/// One launch of a profile.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Launch {
    /// The kernel's name.
    pub kernel: String,
    /// Its time on the device, in ns.
    pub duration_ns: u64,
    /// Processor time before the next launch, in ns.
    #[serde(default)]
    pub gap_ns: u64,
    /// The program waits for it.
    #[serde(default)]
    pub sync: bool,
}

/// A profile that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A column that is needed is not there.
    #[error("the profile has no column {0}")]
    Column(&'static str),
    /// A value that is not what its column needs.
    #[error("line {line} of the profile: {column} = {value:?} is not a number")]
    Value {
        /// Where, from 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What stands there.
        value: String,
    },
    /// It is not JSON of that shape.
    #[error("the profile is no list of launches: {0}")]
    Json(#[from] serde_json::Error),
    /// There is no launch in it.
    #[error("the profile has no launch")]
    Empty,
}

/// Reads a profile: JSON if it begins with a bracket, CSV otherwise.
///
/// # Errors
/// If a column is missing, a value is no number, or there is no launch.
pub fn profile(text: &str) -> Result<Vec<Launch>, ImportError> {
    let launches: Vec<Launch> =
        if text.trim_start().starts_with('[') { serde_json::from_str(text)? } else { csv(text)? };
    if launches.is_empty() { Err(ImportError::Empty) } else { Ok(launches) }
}

fn csv(text: &str) -> Result<Vec<Launch>, ImportError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header: Vec<String> = lines.next().map_or_else(Vec::new, |(_, line)| cells(line));
    let find = |name: &str| header.iter().position(|cell| cell == name);
    let kernel = find("kernel").ok_or(ImportError::Column("kernel"))?;
    let duration = find("duration_ns").ok_or(ImportError::Column("duration_ns"))?;
    let (gap, sync) = (find("gap_ns"), find("sync"));
    let mut launches = Vec::new();
    for (line, text) in lines {
        let cells = cells(text);
        let cell = |place: usize| cells.get(place).map_or("", String::as_str);
        let number = |column, place| {
            let value = cell(place);
            let error = || ImportError::Value { line: line + 1, column, value: value.to_owned() };
            value.parse::<u64>().map_err(|_| error())
        };
        launches.push(Launch {
            kernel: cell(kernel).to_owned(),
            duration_ns: number("duration_ns", duration)?,
            gap_ns: gap.map_or(Ok(0), |place| number("gap_ns", place))?,
            sync: sync.is_some_and(|place| matches!(cell(place), "1" | "true")),
        });
    }
    Ok(launches)
}

/// The cells of a line; a quoted cell may hold commas, as kernels' names do.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            other => cell.push(other),
        }
    }
    cells.push(cell.trim().to_owned());
    cells
}

/// A program that replays a profile.
#[derive(Clone, Debug)]
pub struct Replay {
    steps: Vec<Step>,
    place: usize,
}

impl Replay {
    /// The program of these launches.
    pub fn new(launches: &[Launch]) -> Self {
        let mut keys = BTreeMap::new();
        let mut steps = Vec::new();
        for launch in launches {
            let next = u32::try_from(keys.len()).unwrap_or(u32::MAX);
            let key = *keys.entry(launch.kernel.as_str()).or_insert(next);
            steps.push(Step::Launch(Kernel::new(key, launch.duration_ns.max(1))));
            if launch.sync {
                steps.push(Step::Sync);
            }
            // At least something, so that time passes in a profile without gaps.
            steps.push(Step::Compute(launch.gap_ns.max(1)));
        }
        Self { steps, place: 0 }
    }
}

impl Behaviour for Replay {
    fn next(&mut self, _view: &View) -> Step {
        let step = self.steps[self.place % self.steps.len()];
        self.place += 1;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let csv = "kernel,duration_ns,gap_ns,sync\n\"f(int, int)\",21000,5,1\ng,46000,0,0\n";
        let json = r#"[{"kernel": "f(int, int)", "duration_ns": 21000, "gap_ns": 5, "sync": true},
                       {"kernel": "g", "duration_ns": 46000}]"#;
        assert_eq!(profile(csv).unwrap(), profile(json).unwrap());
        assert_eq!(Replay::new(&profile(csv).unwrap()).steps.len(), 5);
    }

    #[test]
    fn an_error_names_the_line_and_the_column() {
        let error = profile("kernel,duration_ns\nf,1\ng,fast\n").unwrap_err().to_string();
        assert_eq!(error, "line 3 of the profile: duration_ns = \"fast\" is not a number");
        assert!(matches!(profile("kernel\n"), Err(ImportError::Column("duration_ns"))));
        assert!(matches!(profile("kernel,duration_ns\n"), Err(ImportError::Empty)));
    }
}
