//! Loads PTX files on the software GPU, each alone or (`--link`) all as one module, and says
//! whether they are taken, to be held against what an assembler says of them.
//!
//! `cargo run -p weft-device --example assemble -- a.ptx b.ptx`

#![expect(clippy::print_stdout, reason = "the findings are what it is for")]

use std::error::Error;

use weft_device::Device;
use weft_device::soft::{Clock, SoftDevice};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.first().is_some_and(|first| first == "--link") {
        paths.remove(0);
        return assemble(&paths);
    }
    paths.iter().try_for_each(|path| assemble(std::slice::from_ref(path)))
}

fn assemble(paths: &[String]) -> Result<(), Box<dyn Error>> {
    let images = paths.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
    let images: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
    let mut device = SoftDevice::local(64 << 20, 0x7000_0000_0000, 1 << 30, Clock::Real)?;
    let name = paths.join(" ");
    match device.load(&images) {
        Ok(module) => println!("{name}: taken, {} kernels", module.functions.len()),
        Err(error) => println!("{name}: refused: {error}"),
    }
    Ok(())
}
