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

/// Numbers that differ from each other, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as u32 % end
    }

    fn between(&mut self, least: i32, most: i32) -> i32 {
        least + self.below(least.abs_diff(most) + 1).cast_signed()
    }

    fn matrix(&mut self, rows: usize, columns: usize, least: i32, most: i32) -> Vec<Vec<i32>> {
        (0..rows).map(|_| (0..columns).map(|_| self.between(least, most)).collect()).collect()
    }
}

fn sum_of_products(a: &[Vec<i32>], b: &[Vec<i32>], row: usize, column: usize) -> i32 {
    a[row].iter().zip(b).map(|(x, y)| x * y[column]).sum()
}

/// A register of each lane.
type Lanes = [u32; 32];

/// Elements of a lane, the first in the lowest bits of the first register.
fn packed(bits: u32, count: usize, of: impl Fn(usize, usize) -> u32) -> Vec<Lanes> {
    let per_register = 32 / bits as usize;
    let register = |r: usize, lane: usize| {
        let parts = (0..per_register).map(|i| (i, of(lane, r * per_register + i)));
        parts.fold(0, |word, (i, part)| word | part << (bits as usize * i))
    };
    let lanes = |r| std::array::from_fn(|lane| register(r, lane));
    (0..count / per_register).map(lanes).collect()
}

/// The registers of `D` after an `mma` with these registers of `A`, `B` and `C`.
fn run_mma(name: &str, [a, b, c]: [&[Lanes]; 3], results: usize) -> Vec<Lanes> {
    let inputs: Vec<&Lanes> = [a, b, c].into_iter().flatten().collect();
    let moves = |op: &str, registers: std::ops::Range<usize>| -> String {
        registers
            .map(|i| match op {
                "ld" => format!("ld.global.b32 %m{i}, [%rd2+{}];\n", 128 * i),
                _ => format!("st.global.b32 [%rd2+{}], %m{i};\n", 128 * i),
            })
            .collect()
    };
    let mut next = 0;
    let mut list = |count: usize| {
        let all: Vec<String> = (next..next + count).map(|i| format!("%m{i}")).collect();
        next += count;
        format!("{{{}}}", all.join(", "))
    };
    let factors = [list(a.len()), list(b.len()), list(c.len())].join(", ");
    let (count, sums) = (inputs.len(), list(results));
    let body = format!(
        ".reg .b32 %m<32>; mov.u32 %r0, %laneid; mul.wide.u32 %rd2, %r0, 4;\n\
         add.u64 %rd2, %rd1, %rd2;\n{}{name} {sums}, {factors};\n{}",
        moves("ld", 0..count),
        moves("st", count..count + results)
    );
    let mut words: Vec<u32> = inputs.into_iter().flatten().copied().collect();
    words.resize(words.len() + 32 * results, 0xdead_beef);
    let mut bench = Bench::new(&kernel("", &body));
    let memory = bench.upload(&words);
    bench.run("k", 1, 32, &[Arg::U64(memory)]);
    let all = bench.words(memory, words.len());
    all[32 * count..].chunks(32).map(|lanes| std::array::from_fn(|i| lanes[i])).collect()
}

/// `mma.m8n8k4` as the ISA lays out its fragments: lanes `4p…` and `16 + 4p…` compute product `p`.
fn check_pairs_of_quads([a_layout, b_layout]: [&str; 2], [d_ty, c_ty]: [&str; 2]) {
    let mut random = Random(84);
    let mut matrices = |rows, columns| -> Vec<Vec<Vec<i32>>> {
        (0..4).map(|_| random.matrix(rows, columns, -9, 9)).collect()
    };
    let (a, b, c) = (matrices(8, 4), matrices(4, 8), matrices(8, 8));
    let product = |lane: usize| lane % 16 / 4;
    let upper = |lane: usize| if lane < 16 { 0 } else { 4 };
    let a_element = |lane: usize, i: usize| {
        let (row, column) = if a_layout == "row" { (lane % 4, i) } else { (i, lane % 4) };
        half(a[product(lane)][row + upper(lane)][column])
    };
    let b_element = |lane: usize, i: usize| {
        let (row, column) = if b_layout == "row" { (lane % 4, i) } else { (i, lane % 4) };
        half(b[product(lane)][row][column + upper(lane)])
    };
    let of_sums = |ty: &str, at: &dyn Fn(usize, usize, usize) -> i32| {
        if ty == "f16" {
            return packed(16, 8, |lane, i| half(at(product(lane), lane % 4 + upper(lane), i)));
        }
        packed(32, 8, |lane, i| {
            let row = (lane & 1) + (i & 2) + upper(lane);
            let column = (i & 4) + (lane & 2) + (i & 1);
            (at(product(lane), row, column) as f32).to_bits()
        })
    };
    let factors = [packed(16, 4, a_element), packed(16, 4, b_element)];
    let start = of_sums(c_ty, &|p, row, column| c[p][row][column]);
    let expected = of_sums(d_ty, &|p, row, column| {
        c[p][row][column] + sum_of_products(&a[p], &b[p], row, column)
    });
    let name = format!("mma.sync.aligned.m8n8k4.{a_layout}.{b_layout}.{d_ty}.f16.f16.{c_ty}");
    let got = run_mma(&name, [&factors[0], &factors[1], &start], expected.len());
    assert_eq!(got, expected, "{name}");
}

#[test]
fn mma_m8n8k4_computes_a_product_in_each_pair_of_quads() {
    for a_layout in ["row", "col"] {
        for b_layout in ["row", "col"] {
            for types in [["f16", "f16"], ["f32", "f32"], ["f32", "f16"]] {
                check_pairs_of_quads([a_layout, b_layout], types);
            }
        }
    }
}

/// Least and greatest number of a type of 4 bits.
fn limits(ty: &str) -> (i32, i32) {
    if ty == "s4" { (-8, 7) } else { (0, 15) }
}

fn nibble(x: i32) -> u32 {
    x.cast_unsigned() & 15
}

#[test]
fn mma_m8n8k32_of_4_bits_by_the_layout_of_the_isa() {
    let mut random = Random(432);
    for (a_ty, b_ty) in [("s4", "s4"), ("s4", "u4"), ("u4", "s4"), ("u4", "u4")] {
        let (a_limits, b_limits) = (limits(a_ty), limits(b_ty));
        let a = random.matrix(8, 32, a_limits.0, a_limits.1);
        let b = random.matrix(32, 8, b_limits.0, b_limits.1);
        // The first rows begin near the greatest number and the last ones near the least, so that
        // sums leave the range.
        let mut c = random.matrix(8, 8, 0, 99);
        for row in &mut c[..4] {
            row.iter_mut().for_each(|x| *x = i32::MAX - *x);
        }
        c[5..].iter_mut().flatten().for_each(|x| *x += i32::MIN);
        let factors = [
            packed(4, 8, |lane, i| nibble(a[lane / 4][lane % 4 * 8 + i])),
            packed(4, 8, |lane, i| nibble(b[lane % 4 * 8 + i][lane / 4])),
        ];
        let of_sums = |at: &dyn Fn(usize, usize) -> i32| {
            packed(32, 2, |lane, i| at(lane / 4, lane % 4 * 2 + i).cast_unsigned())
        };
        let start = of_sums(&|row, column| c[row][column]);
        let products = |row, column| sum_of_products(&a, &b, row, column);
        let wrapped = of_sums(&|row, column| c[row][column].wrapping_add(products(row, column)));
        let clamped = of_sums(&|row, column| c[row][column].saturating_add(products(row, column)));
        assert_ne!(wrapped, clamped);
        for (modifier, expected) in [("", wrapped), (".satfinite", clamped)] {
            let name = format!("mma.sync.aligned.m8n8k32.row.col{modifier}.s32.{a_ty}.{b_ty}.s32");
            let got = run_mma(&name, [&factors[0], &factors[1], &start], 2);
            assert_eq!(got, expected, "{name}");
        }
    }
}

#[test]
fn wmma_of_4_bits() {
    let mut random = Random(832);
    for ty in ["s4", "u4"] {
        let (least, most) = limits(ty);
        let (a, b) = (random.matrix(8, 32, least, most), random.matrix(32, 8, least, most));
        let c = random.matrix(8, 8, -1000, 1000);
        let pack =
            |at: &dyn Fn(usize) -> i32| (0..8).fold(0, |word, i| word | nibble(at(i)) << (4 * i));
        // Rows of A have a stride of 64 elements, which are 8 words; columns of B are packed.
        let mut words = vec![0x5555_5555; 64 + 32];
        for (line, word) in (0..8).flat_map(|line| (0..4).map(move |word| (line, word))) {
            words[8 * line + word] = pack(&|i| a[line][8 * word + i]);
            words[64 + 4 * line + word] = pack(&|i| b[8 * word + i][line]);
        }
        words.extend(c.iter().flatten().map(|x| x.cast_unsigned()));
        words.extend([0xdead_beef; 64]);
        let body = format!(
            "wmma.load.a.sync.aligned.row.m8n8k32.global.{ty} {{%r0}}, [%rd1], 64;\n\
             wmma.load.b.sync.aligned.col.m8n8k32.global.{ty} {{%r1}}, [%rd1+256];\n\
             wmma.load.c.sync.aligned.row.m8n8k32.global.s32 {{%r2, %r3}}, [%rd1+384], 8;\n\
             wmma.mma.sync.aligned.row.col.m8n8k32.s32.{ty}.{ty}.s32 {{%r4, %r5}}, {{%r0}},\n\
             {{%r1}}, {{%r2, %r3}};\n\
             wmma.store.d.sync.aligned.col.m8n8k32.global.s32 [%rd1+640], {{%r4, %r5}}, 8;"
        );
        let mut bench = Bench::new(&kernel("", &body));
        let memory = bench.upload(&words);
        bench.run("k", 1, 32, &[Arg::U64(memory)]);
        let got = bench.words(memory + 640, 64);
        for (row, column) in (0..8).flat_map(|row| (0..8).map(move |column| (row, column))) {
            let sum = c[row][column] + sum_of_products(&a, &b, row, column);
            assert_eq!(got[column * 8 + row], sum.cast_unsigned(), "{ty}, ({row}, {column})");
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
