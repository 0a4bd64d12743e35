//! Matrix instructions.

use super::corpus::corpus;
use super::faults::kernel;
use super::{Arg, Bench};

/// Small integers have the same value in half precision: 11 bits are exact.
fn half(x: i32) -> u32 {
    let bits = (x as f32).to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude == 0 { 0 } else { (magnitude >> 13) - (112 << 10) };
    (bits >> 16 & 0x8000) | half
}

fn element(seed: i32, i: usize) -> i32 {
    let i = i32::try_from(i).unwrap_or(0);
    (i * seed % 13) - 6
}

fn halves(seed: i32, count: usize) -> Vec<u32> {
    (0..count / 2)
        .map(|i| half(element(seed, 2 * i)) | (half(element(seed, 2 * i + 1)) << 16))
        .collect()
}

#[test]
fn wmma_of_halves() {
    let mut bench = Bench::new(corpus!("tensor"));
    let (a, b) = (bench.upload(&halves(5, 256)), bench.upload(&halves(7, 256)));
    let c = bench.alloc(1024);
    bench.run("tensor", 1, 32, &[Arg::U64(a), Arg::U64(b), Arg::U64(c)]);
    let got = bench.floats(c, 256);
    for row in 0..16 {
        for column in 0..16 {
            // A by rows, B by columns.
            let sum: i32 =
                (0..16).map(|k| element(5, row * 16 + k) * element(7, column * 16 + k)).sum();
            assert_eq!(got[row * 16 + column], sum as f32, "({row}, {column})");
        }
    }
}

#[test]
fn asynchronous_copies_and_reductions() {
    let mut bench = Bench::new(corpus!("tensor"));
    let input = bench.upload(&(0..128).collect::<Vec<_>>());
    let out = bench.alloc(128);
    bench.run("pipeline", 1, 32, &[Arg::U64(input), Arg::U64(out)]);
    // x of lane l is 4l, y is 4l + 1.
    let expected = 4 * (31 * 32 / 2) + 4 * 31 + 1;
    assert_eq!(bench.words(out, 32), vec![expected; 32]);
}

#[test]
fn mma_m16n8k8_by_the_layout_of_the_isa() {
    let body = "mov.u32 %r0, %laneid; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd1, %rd2;\n\
        ld.global.u32 %r1, [%rd2]; ld.global.u32 %r2, [%rd2+128]; ld.global.u32 %r3, [%rd2+256];\n\
        mov.f32 %f0, 0f3f800000;\n\
        mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, \
        {%f0, %f0, %f0, %f0};\n\
        st.global.f32 [%rd2+384], %f1; st.global.f32 [%rd2+512], %f2;\n\
        st.global.f32 [%rd2+640], %f3; st.global.f32 [%rd2+768], %f4;";
    let a = |row: usize, k: usize| element(5, row * 8 + k);
    let b = |k: usize, column: usize| element(7, column * 8 + k);
    let pair = |x: i32, y: i32| half(x) | (half(y) << 16);
    let mut words = vec![0u32; 224];
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        words[lane] = pair(a(g, 2 * t), a(g, 2 * t + 1));
        words[32 + lane] = pair(a(g + 8, 2 * t), a(g + 8, 2 * t + 1));
        words[64 + lane] = pair(b(2 * t, g), b(2 * t + 1, g));
    }
    let mut bench = Bench::new(&kernel("", body));
    let memory = bench.upload(&words);
    bench.run("k", 1, 32, &[Arg::U64(memory)]);
    let got = bench.floats(memory, 224);
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        for (i, row, column) in
            [(0, g, 2 * t), (1, g, 2 * t + 1), (2, g + 8, 2 * t), (3, g + 8, 2 * t + 1)]
        {
            let sum: i32 = (0..8).map(|k| a(row, k) * b(k, column)).sum();
            assert_eq!(got[96 + 32 * i + lane], 1.0 + sum as f32, "lane {lane}, register {i}");
        }
    }
}

#[test]
fn tiles_are_loaded_and_transposed() {
    for (modifier, transposed) in [("", false), (".trans", true)] {
        let body = format!(
            ".shared .align 16 .b8 tile[128];\nmov.u32 %r0, %laneid; mov.u32 %r1, tile;\n\
             shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; mul.wide.u32 %rd2, %r0, 4;\n\
             add.u64 %rd2, %rd1, %rd2; ld.global.u32 %r4, [%rd2]; st.shared.u32 [%r3], %r4;\n\
             bar.sync 0; and.b32 %r5, %r0, 7; shl.b32 %r5, %r5, 4; add.u32 %r5, %r1, %r5;\n\
             ldmatrix.sync.aligned.m8n8.x1{modifier}.shared.b16 {{%r6}}, [%r5];\n\
             st.global.u32 [%rd2], %r6;"
        );
        let mut bench = Bench::new(&kernel("", &body));
        let words: Vec<u32> = (0..32).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
        let memory = bench.upload(&words);
        bench.run("k", 1, 32, &[Arg::U64(memory)]);
        for (lane, word) in bench.words(memory, 32).iter().enumerate() {
            let (row, column) = (lane as u32 / 4, lane as u32 % 4 * 2);
            let at = |r: u32, c: u32| if transposed { c * 8 + r } else { r * 8 + c };
            let expected = at(row, column) | (at(row, column + 1) << 16);
            assert_eq!(*word, expected, "lane {lane}{modifier}");
        }
    }
}
