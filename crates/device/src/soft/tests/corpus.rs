//! Programs of the PTX corpus: what nvcc and tinygrad emit.

use super::{Arg, Bench, device};
use crate::{Device, LoadError};

macro_rules! corpus {
    ($name:literal) => {
        include_str!(concat!("../../../../ptx/tests/corpus/cuda/", $name, ".ptx"))
    };
}
pub(super) use corpus;

#[test]
fn every_program_of_the_corpus_loads() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../ptx/tests/corpus");
    let mut seen = 0;
    let mut refused = Vec::new();
    for folder in ["cuda", "tinygrad"] {
        for file in std::fs::read_dir(format!("{root}/{folder}")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|e| e != "ptx") {
                continue;
            }
            seen += 1;
            let text = std::fs::read(&path).unwrap();
            if let Err(error) = device().load(&[&text]) {
                refused.push(format!("{}: {error}", path.display()));
            }
        }
    }
    assert!(seen > 100, "only {seen} programs");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn an_unknown_instruction_is_refused_with_its_text_and_line() {
    let text = ".version 7.5\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\n\
                .reg .b32 %r<3>;\nfrobnicate.b32 %r1, %r2;\nret;\n}\n";
    let error = device().load(&[text.as_bytes()]).unwrap_err();
    let LoadError::InvalidPtx(message) = error else { panic!("{error:?}") };
    assert!(message.contains("frobnicate") && message.contains('7'), "{message}");
}

pub(super) fn matrices(bench: &mut Bench, n: u32) -> (u64, u64, u64, Vec<f32>) {
    let value = |i: u32, m: u32| (i.wrapping_mul(m) % 17) as f32 - 8.0;
    let size = (n * n) as usize;
    let a: Vec<f32> = (0..n * n).map(|i| value(i, 7)).collect();
    let b: Vec<f32> = (0..n * n).map(|i| value(i, 13)).collect();
    let bits = |m: &[f32]| m.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (da, db) = (bench.upload(&bits(&a)), bench.upload(&bits(&b)));
    let dc = bench.alloc(size as u64 * 4);
    let n = n as usize;
    let mut c = vec![0f32; size];
    for row in 0..n {
        for k in 0..n {
            for col in 0..n {
                // Small integers: every order of summation is exact.
                c[row * n + col] += a[row * n + k] * b[k * n + col];
            }
        }
    }
    (dc, da, db, c)
}

fn matmul(kernel: &str) {
    let mut bench = Bench::new(corpus!("matmul"));
    let n = 64;
    let (dc, da, db, expected) = matrices(&mut bench, n);
    let args = [Arg::U64(dc), Arg::U64(da), Arg::U64(db), Arg::U32(n)];
    let mut launch = bench.launch(kernel, n / 16, 1, &args);
    launch.grid = [n / 16, n / 16, 1];
    launch.block = [16, 16, 1];
    bench.finish_ok(launch);
    assert_eq!(bench.floats(dc, expected.len()), expected);
}

#[test]
fn naive_matmul() {
    matmul("matmul_naive");
}

#[test]
fn tiled_matmul() {
    matmul("matmul_tiled");
}

#[test]
fn vectors_of_four() {
    let mut bench = Bench::new(corpus!("vector_add"));
    let n = 333u32;
    let x = bench.upload(&(0..4 * n).map(|i| (i as f32).to_bits()).collect::<Vec<_>>());
    let y = bench.upload(&(0..4 * n).map(|i| (i as f32 / 2.0).to_bits()).collect::<Vec<_>>());
    bench.run("saxpy", 3, 96, &[Arg::F32(2.0), Arg::U64(x), Arg::U64(y), Arg::U32(n)]);
    let got = bench.floats(y, 4 * n as usize);
    for (i, v) in got.iter().enumerate() {
        assert_eq!(*v, 2.5 * i as f32, "element {i}");
    }
}

#[test]
fn reduction_of_doubles() {
    let mut bench = Bench::new(corpus!("reduction"));
    let n = 10_007u32;
    let bytes = (0..n).flat_map(|i| f64::from(i).to_le_bytes()).collect();
    let input = bench.alloc(u64::from(n) * 8);
    bench.write(input, bytes);
    let out = bench.upload(&[0, 0]);
    let mut launch = bench.launch("reduce", 5, 256, &[Arg::U64(input), Arg::U64(out), Arg::U32(n)]);
    launch.shared_bytes = 64;
    bench.finish_ok(launch);
    let sum = f64::from_bits(bench.device.read_word(out, true).unwrap());
    assert_eq!(sum, f64::from(n) * f64::from(n - 1) / 2.0);
}

#[test]
fn votes_and_shuffles() {
    let mut bench = Bench::new(corpus!("reduction"));
    let values: Vec<u32> = (0..64).map(|i| i * 7 % 5).collect();
    let input = bench.upload(&values);
    let out = bench.alloc(256);
    bench.run("votes", 1, 64, &[Arg::U64(input), Arg::U64(out)]);
    let got = bench.words(out, 64);
    for (i, got) in got.iter().enumerate() {
        let warp = &values[i / 32 * 32..][..32];
        let (lane, v) = (i % 32, values[i]);
        let mask =
            |f: &dyn Fn(u32) -> bool| (0..32).fold(0u32, |m, l| m | (u32::from(f(warp[l])) << l));
        let any = u32::from(warp.iter().any(|v| *v > 3));
        let all = u32::from(warp.iter().all(|v| *v > 3));
        let up = if lane >= 2 { warp[lane - 2] } else { v };
        let count = values.iter().filter(|v| **v != 0).count() as u32;
        let both = u32::from(values.iter().all(|v| *v != 0));
        let shuffled = warp[lane ^ 1] + up + warp[lane / 8 * 8 + 3];
        // `match.all` fails: 0 for the mask and the predicate.
        let expected = any
            .wrapping_add(all)
            .wrapping_add(mask(&|v| v & 1 != 0))
            .wrapping_add(mask(&|other| other == v))
            .wrapping_add(count + both + 1)
            .wrapping_add(shuffled);
        assert_eq!(*got, expected, "thread {i}");
    }
}

#[test]
fn histogram_with_atomics() {
    let mut bench = Bench::new(corpus!("histogram"));
    let n = 20_000u32;
    let data: Vec<u8> = (0..n).map(|i| (i * i % 251) as u8).collect();
    let mut expected = vec![0u32; 256];
    for x in &data {
        expected[usize::from(*x)] += 1;
    }
    let input = bench.alloc(u64::from(n));
    bench.write(input, data);
    let bins = bench.upload(&[0; 256]);
    bench.run("histogram", 7, 256, &[Arg::U64(input), Arg::U64(bins), Arg::U32(n)]);
    assert_eq!(bench.words(bins, 256), expected);
}

#[test]
fn atomics_and_a_spin_lock() {
    let mut bench = Bench::new(corpus!("histogram"));
    let i = bench.upload(&[10, 2, 0, 0, 0]);
    let u = bench.upload(&[7, 1, 0, 0, 4, 0, 99]);
    let l = bench.upload(&[0; 6]);
    let f = bench.upload(&[0]);
    let args = [Arg::U64(i), Arg::U64(u), Arg::U64(l), Arg::U64(f)];
    bench.run("atomics", 4, 96, &args);
    let threads = 4 * 96;
    assert_eq!(bench.words(i, 5), [3, 4, threads, threads, threads], "min, max, add, locked");
    let u = bench.words(u, 7);
    assert_eq!(&u[..3], [5, 7, 0], "and, or, xor (an even number of times)");
    assert_eq!(u[3], threads % 9, "inc");
    assert_eq!(u[6], 10, "exch");
    assert_eq!(bench.words(l, 6)[4..], [11, 0], "max of 64 bits");
    assert_eq!(bench.floats(f, 1), [1.5 * threads as f32]);
}

#[test]
fn calls_recursion_and_function_pointers() {
    for which in 0..3u32 {
        let mut bench = Bench::new(corpus!("functions"));
        let out = bench.alloc(64);
        // struct Pair { int a; double b; char c[5]; }
        let mut launch = bench.launch("calls", 1, 32, &[Arg::U64(out), Arg::U32(which)]);
        launch.params.extend(10u32.to_le_bytes());
        launch.params.truncate(12);
        launch.params.resize(16, 0);
        launch.params.extend(10u32.to_le_bytes());
        launch.params.extend([0; 4]);
        launch.params.extend(2.5f64.to_le_bytes());
        launch.params.extend([1, 2, 3, 4, 5, 0, 0, 0]);
        bench.finish_ok(launch);
        let fibonacci = [0, 1, 1][which as usize];
        let first = fibonacci + (10 + which) + 5 + 7;
        let second = [7, 12, (-1i32).cast_unsigned()][which as usize];
        let third = if which == 0 { 28 } else { 4 };
        assert_eq!(bench.words(out, 3), [first, second, third], "which = {which}");
    }
}

#[test]
fn a_switch_with_a_different_case_per_lane() {
    let mut bench = Bench::new(corpus!("switch"));
    let ops: Vec<u32> = (0..24).map(|i| i % 12).collect();
    let values: Vec<u32> = (0..24).map(|i: u32| i.wrapping_mul(0x9e37_79b9)).collect();
    let (op, a) = (bench.upload(&ops), bench.upload(&values));
    let out = bench.alloc(96);
    bench.run("dispatch", 1, 24, &[Arg::U64(op), Arg::U64(a), Arg::U64(out)]);
    let got = bench.words(out, 24);
    for (i, got) in got.iter().enumerate() {
        let x = values[i];
        let signed24 = (x.cast_signed() << 8) >> 8;
        let dot = |x: u32| (0..4).map(|b| (x >> (8 * b) & 255).pow(2)).sum::<u32>();
        let expected = match ops[i] {
            0 => x.count_ones(),
            1 => x.leading_zeros(),
            2 => x.reverse_bits(),
            3 => {
                if x == 0 {
                    0
                } else {
                    x.trailing_zeros() + 1
                }
            }
            // __byte_perm(x, 0, 0x1234)
            4 => ((x >> 24) << 8) | ((x >> 16 & 255) << 16) | ((x >> 8 & 255) << 24),
            5 => x >> 25,
            6 => x / 7 + x % 11,
            7 => ((u64::from(x) * 12345) >> 32) as u32,
            8 => x.cast_signed().abs_diff(5).wrapping_add(6),
            9 => dot(x).wrapping_add(5),
            10 => signed24.wrapping_mul(3).cast_unsigned(),
            _ => (x & 0xff_ffff).wrapping_mul(x & 0xff_ffff),
        };
        assert_eq!(*got, expected, "lane {i}, case {}", ops[i]);
    }
}

#[test]
fn constants_pointers_and_local_arrays() {
    let mut bench = Bench::new(corpus!("constants"));
    let scale = bench.module.globals.iter().find(|g| g.name == "scale").unwrap().address;
    bench.write(scale, 3u32.to_le_bytes().to_vec());
    let out = bench.alloc(256);
    bench.run("constants", 1, 1, &[Arg::U64(out), Arg::U32(1)]);
    // local[(1 + 0) & 15] = coefficients[(1 + 1) & 3] = 0.25, times 3; list sum 3; 'e';
    // packed[1][1].
    assert_eq!(bench.floats(out, 1), [0.75 + 3.0 + 101.0]);
}

#[test]
fn transcendental_functions_of_doubles() {
    let mut bench = Bench::new(corpus!("math"));
    let xs: Vec<f64> = (1..33).map(|i| f64::from(i) * 0.37).collect();
    let input = bench.alloc(256);
    bench.write(input, xs.iter().flat_map(|x| x.to_le_bytes()).collect());
    let out = bench.alloc(256);
    bench.run("math_double", 1, 32, &[Arg::U64(input), Arg::U64(out)]);
    for (i, x) in xs.iter().enumerate() {
        let got = f64::from_bits(bench.device.read_word(out + 8 * i as u64, true).unwrap());
        // Everything but tgamma, which Rust lacks; for integers it would be a factorial.
        let rest = x.sin()
            + x.exp() * x.ln()
            + x.powf(1.5)
            + x
            + x.floor()
            + x * x
            + 1.0
            + x % 3.0
            + x
            + 1.0;
        let gamma = got - rest;
        let stirling = gamma_of(*x);
        let error = (gamma - stirling).abs() / got.abs().max(1.0);
        assert!(error < 1e-9, "x = {x}: {gamma} instead of {stirling}");
    }
}

/// Lanczos approximation of the gamma function (g = 7, n = 9).
fn gamma_of(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return std::f64::consts::PI / ((std::f64::consts::PI * x).sin() * gamma_of(1.0 - x));
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let series: f64 = C[0] + (1..9).map(|i| C[i] / (x + i as f64)).sum::<f64>();
    (2.0 * std::f64::consts::PI).sqrt() * t.powf(x + 0.5) * (-t).exp() * series
}
