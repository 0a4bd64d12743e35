//! Draws the page of a report anew from its data, for when only the drawing has changed:
//! `cargo run -p weft-sim --example page -- docs/evaluation`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use weft_sim::report::Report;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("name the report's directory")?;
    let directory = PathBuf::from(directory);
    let report: Report = serde_json::from_str(&fs::read_to_string(directory.join("report.json"))?)?;
    fs::write(directory.join("index.html"), report.html())?;
    Ok(())
}
