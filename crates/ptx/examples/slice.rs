//! Prints a PTX file with piece kernels, and on stderr what became of each kernel.
//!
//! `cargo run -p weft-ptx --example slice -- kernel.ptx | ptxas -arch sm_90 -o /dev/null -`

#![expect(clippy::print_stderr, reason = "decisions go beside the text")]

use std::error::Error;
use std::io::Write as _;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name a PTX file")?;
    let sliced = weft_ptx::slice::rewrite(&std::fs::read(path)?)?;
    for (name, decision) in &sliced.kernels {
        match decision {
            Ok(kernel) => eprintln!("{name}: {kernel:?}"),
            Err(refusal) => eprintln!("{name} is not sliced: {refusal}"),
        }
    }
    std::io::stdout().write_all(&sliced.text)?;
    Ok(())
}
