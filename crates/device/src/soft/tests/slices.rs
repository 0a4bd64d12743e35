//! Rewritten kernels in pieces do what the originals do in one go: for every kernel of the corpus,
//! to the byte.

use std::collections::BTreeMap;

use weft_ptx::slice::{Piece, PieceKernel, Sliced, rewrite};

use super::{Bench, finish};
use crate::{Device, FunctionInfo, Launch, Op, Outcome, QueueId};

/// Bytes behind every pointer that a kernel is given.
const BUFFER_BYTES: usize = 64 << 10;
/// Grids that the kernels are launched with: in a row, and in all three dimensions.
const GRIDS: [[u32; 3]; 2] = [[7, 1, 1], [3, 2, 2]];
/// Blocks per piece: single blocks, and pieces that end within and across rows.
const PIECES: [u32; 4] = [1, 2, 5, u32::MAX];

/// What a launch left behind.
#[derive(Debug, PartialEq)]
struct Left {
    fault: Option<String>,
    memory: Vec<u64>,
}

/// A kernel's parameters: each 64-bit one points to a buffer of its own, others are small numbers.
fn parameters(bench: &mut Bench, kernel: &FunctionInfo) -> (Vec<u8>, Vec<u64>) {
    let mut bytes = vec![0; kernel.param_bytes as usize];
    let mut buffers = Vec::new();
    for param in &kernel.params {
        let (offset, size) = (param.offset as usize, param.size as usize);
        let place = &mut bytes[offset..offset + size];
        if size == 8 {
            let words: Vec<u32> = (0..BUFFER_BYTES as u32 / 4).map(|i| i * 7 % 12).collect();
            let address = bench.upload(&words);
            buffers.push(address);
            place.copy_from_slice(&address.to_le_bytes());
        } else {
            // `calls` computes Fibonacci numbers by recursion, `grid_constant` selects an element.
            let few = ["calls", "grid_constant"].contains(&kernel.name.as_str());
            let number = if few { 2 } else { 48 };
            place.iter_mut().step_by(4).for_each(|byte| *byte = number);
        }
    }
    (bytes, buffers)
}

/// The block shape that a kernel needs.
fn block_of(kernel: &FunctionInfo) -> [u32; 3] {
    match kernel.required_block {
        Some(block) => block,
        None if kernel.name.starts_with("matmul") => [16, 16, 1],
        None if kernel.name == "reduce" => [256, 1, 1],
        None => [kernel.max_threads.min(32), 1, 1],
    }
}

/// Runs one kernel of a text; in pieces if there is a piece kernel.
fn run(text: &str, name: &str, grid: [u32; 3], pieces: Option<(&PieceKernel, u32)>) -> Left {
    let mut bench = Bench::new(text);
    let find = |name: &str| bench.module.functions.iter().position(|f| f.name == name).unwrap();
    let original = find(name);
    let kernel = bench.module.functions[original].clone();
    let (params, buffers) = parameters(&mut bench, &kernel);
    let whole = Launch {
        grid,
        block: block_of(&kernel),
        shared_bytes: 256,
        params,
        ..bench.launch(name, 1, 1, &[])
    };
    let mut fault = None;
    let mut execute = |launch: Launch| {
        bench.device.start(QueueId(0), Op::Launch(launch), None).unwrap();
        match finish(&mut bench.device).remove(0) {
            Outcome::Fault(found) => {
                fault.get_or_insert_with(|| format!("{:?}", found.kind));
            }
            Outcome::Done | Outcome::Partial { .. } => {}
        }
    };
    match pieces {
        None => execute(whole),
        Some((copy, blocks)) => {
            for piece in Piece::all(grid, blocks) {
                let params = copy.parameters(&whole.params, &piece);
                let launch = bench.module.functions.iter().position(|f| f.name == copy.name);
                let function = u32::try_from(launch.unwrap()).unwrap();
                let grid = piece.launch_grid();
                execute(Launch { function, grid, params, ..whole.clone() });
            }
        }
    }
    let words = |address: &u64| -> Vec<u64> {
        (0..BUFFER_BYTES as u64 / 8)
            .map(|i| bench.device.read_word(address + 8 * i, true).unwrap())
            .collect()
    };
    Left { fault, memory: buffers.iter().flat_map(words).collect() }
}

/// The texts of the corpus by name.
fn corpus() -> BTreeMap<String, String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../ptx/tests/corpus");
    let mut all = BTreeMap::new();
    for folder in ["cuda", "tinygrad"] {
        for file in std::fs::read_dir(format!("{root}/{folder}")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|e| e == "ptx") {
                // Clocks differ between any two launches.
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.replace("%clock64", "7").replace("%clock", "7");
                all.insert(path.display().to_string(), text);
            }
        }
    }
    all
}

fn slice(text: &str) -> Sliced {
    rewrite(text.as_bytes()).unwrap()
}

#[test]
fn every_kernel_of_the_corpus_does_the_same_in_pieces() {
    let (mut same, mut refused) = (0, Vec::new());
    for (path, text) in corpus() {
        let sliced = slice(&text);
        let with_copies = String::from_utf8(sliced.text).unwrap();
        for (name, decision) in &sliced.kernels {
            let Ok(copy) = decision else {
                refused.push(name.clone());
                continue;
            };
            for grid in GRIDS {
                let whole = run(&text, name, grid, None);
                assert_eq!(whole.fault, None, "{name}");
                for blocks in PIECES {
                    let left = run(&with_copies, name, grid, Some((copy, blocks)));
                    // The memory is too long for a message.
                    let same = left.memory == whole.memory;
                    assert!(same, "{path}: {name} in pieces of {blocks}: {:?}", left.fault);
                }
            }
            same += 1;
        }
    }
    // It takes a spin lock.
    assert_eq!(refused, ["atomics"]);
    assert!(same > 130, "only {same} kernels");
}

/// Every thread adds its block's number, as the kernel and as a function sees it, at the place that
/// the block's number and the grid name.
const PLACES: &str = r"
.version 7.5
.target sm_75
.address_size 64
.func (.param .b32 r) linear()
{
    .reg .b32 %r<6>;
    mov.u32 %r1, %ctaid.z;
    mov.u32 %r2, %nctaid.y;
    mov.u32 %r3, %ctaid.y;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r3, %ctaid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    st.param.b32 [r], %r1;
    ret;
}
.visible .entry places(.param .u64 out, .param .u64 more)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    {
        .param .b32 v;
        call.uni (v), linear, ();
        ld.param.b32 %r1, [v];
    }
    ld.param.u64 %d1, [out];
    mul.wide.u32 %d2, %r1, 16;
    add.u64 %d3, %d1, %d2;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ctaid.y;
    mov.u32 %r4, %ctaid.z;
    mov.u32 %r5, %nctaid.z;
    red.global.add.u32 [%d3], %r2;
    red.global.add.u32 [%d3+4], %r3;
    red.global.add.u32 [%d3+8], %r4;
    red.global.add.u32 [%d3+12], %r5;
    ret;
}
";

#[test]
fn blocks_and_their_functions_find_their_places_in_every_dimension() {
    let sliced = slice(PLACES);
    let copy = sliced.kernels["places"].as_ref().unwrap();
    let with_copies = String::from_utf8(sliced.text.clone()).unwrap();
    for grid in [[5, 4, 3], [1, 7, 2], [1, 1, 6], [40, 1, 1]] {
        let whole = run(PLACES, "places", grid, None);
        let [x, y, z] = grid.map(u64::from);
        let last = usize::try_from(x * y * z - 1).unwrap();
        let started = |word: usize| (4 * last + word) as u64 * 7 % 12;
        let expected = started(0) + 32 * (x - 1);
        assert_eq!(whole.memory[2 * last] & 0xffff_ffff, expected, "{grid:?}");
        for blocks in [1, 3, 7, 11, 1000] {
            let left = run(&with_copies, "places", grid, Some((copy, blocks)));
            assert_eq!(left.fault, None);
            assert!(left.memory == whole.memory, "{grid:?} in pieces of {blocks}");
        }
    }
}
