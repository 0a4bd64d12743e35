//! What LZ4 makes of pieces as a remote session sends them, and how fast: `cargo run --release -p
//! weft-ptx --example lz4_rate`. ADR 64 has what follows from it.

#![expect(clippy::print_stdout, reason = "the figures are what it is for")]

use std::time::Instant;

use lz4_flex::block::{compress, decompress};

/// Bytes of a frame's payload at the most, and of all that is sent.
const PIECE: usize = 64 << 10;
const ALL: usize = 128 << 20;

fn main() {
    println!("{:<24} {:>8} {:>14} {:>14}", "bytes", "ratio", "compress GB/s", "restore GB/s");
    let mut state = 1_u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    let mut uniform = || f32::from_bits(0x3f80_0000 | (next() >> 9)) - 1.5;
    // The sum of twelve is nearly normal: weights of a network.
    let weights: Vec<f32> = (0..ALL / 4).map(|_| (0..12).map(|_| uniform()).sum()).collect();
    let bytes =
        |words: &[f32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    report("f32, normal", &bytes(&weights));
    let halves = |word: &f32| word.to_bits().to_le_bytes()[2..].to_vec();
    report("bf16, normal", &weights.iter().flat_map(halves).collect::<Vec<u8>>());
    let relu: Vec<f32> = weights.iter().map(|word| word.max(0.0)).collect();
    report("f32, half of it zero", &bytes(&relu));
    let labels = |number: usize| u32::try_from(number % 1000).unwrap_or(0).to_le_bytes();
    report("u32, below 1,000", &(0..ALL / 4).flat_map(labels).collect::<Vec<u8>>());
    let tokens = |_| ((next() >> 8) % 1000).to_le_bytes();
    report("the same in no order", &(0..ALL / 4).flat_map(tokens).collect::<Vec<u8>>());
    report("zeros", &vec![0; ALL]);
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn report(what: &str, all: &[u8]) {
    let begun = Instant::now();
    let pieces: Vec<Vec<u8>> = all.chunks(PIECE).map(compress).collect();
    let compressed_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for (piece, original) in pieces.iter().zip(all.chunks(PIECE)) {
        let restored = decompress(piece, original.len());
        assert!(restored.is_ok_and(|restored| restored == original), "{what} comes back");
    }
    let restored_s = begun.elapsed().as_secs_f64();
    let sent: usize = pieces.iter().map(Vec::len).sum();
    let (bytes, rate) = (all.len() as f64, |seconds: f64| all.len() as f64 / seconds / 1e9);
    let ratio = bytes / sent as f64;
    println!("{what:<24} {ratio:>8.2} {:>14.2} {:>14.2}", rate(compressed_s), rate(restored_s));
}
