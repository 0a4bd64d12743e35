//! Video instructions: literal cases, and packed ones against the arithmetic of small integers.

use super::faults::kernel;
use super::{Arg, Bench};

/// Words with every kind of byte and half.
const WORDS: [u32; 8] =
    [0, 0xffff_ffff, 0x7f80_01ff, 0x8000_7fff, 0x1234_89ab, 0xfedc_ba98, 0x0001_ff80, 0x7fff_8001];

/// Runs `body` for each pair of [`WORDS`], in `%r1` and `%r2`, with 0xa5a5a5a5 in `%r3`; it leaves
/// its result in `%r0`.
fn all_pairs(body: &str) -> Vec<(u32, u32, u32)> {
    let text = format!(
        "mov.u32 %r9, %tid.x; shr.u32 %r8, %r9, 3; and.b32 %r7, %r9, 7;\n\
         mul.wide.u32 %rd2, %r8, 4; add.u64 %rd2, %rd2, %rd1; ld.global.u32 %r1, [%rd2];\n\
         mul.wide.u32 %rd2, %r7, 4; add.u64 %rd2, %rd2, %rd1; ld.global.u32 %r2, [%rd2];\n\
         mov.u32 %r3, 0xa5a5a5a5;\n{body}\n\
         mul.wide.u32 %rd2, %r9, 4; add.u64 %rd2, %rd2, %rd1; st.global.u32 [%rd2+32], %r0;"
    );
    let mut bench = Bench::new(&kernel("", &text));
    let memory = bench.upload(&[&WORDS[..], &[0; 64]].concat());
    bench.run("k", 1, 64, &[Arg::U64(memory)]);
    let results = bench.words(memory + 32, 64);
    let pairs = (0..64).map(|i| (WORDS[i / 8], WORDS[i % 8]));
    pairs.zip(results).map(|((a, b), result)| (a, b, result)).collect()
}

/// What a function of the bytes makes of all four.
fn bytes(a: u32, b: u32, f: impl Fn(u8, u8) -> u8) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    u32::from_le_bytes(std::array::from_fn(|i| f(a[i], b[i])))
}

/// What a function of the halves makes of both.
fn halves(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    let half = |shift: u32| {
        let part = |x: u32| ((x >> shift) as u16).cast_signed();
        u32::from(f(part(a), part(b)).cast_unsigned()) << shift
    };
    half(0) | half(16)
}

fn agree(instruction: &str, model: impl Fn(u32, u32) -> u32) {
    for (a, b, result) in all_pairs(instruction) {
        assert_eq!(result, model(a, b), "{instruction} of {a:#x}, {b:#x}");
    }
}

#[test]
fn packed_lanes_are_small_integers() {
    agree("vadd4.u32.u32.u32 %r0, %r1, %r2, %r3;", |a, b| bytes(a, b, u8::wrapping_add));
    agree("vadd4.u32.u32.u32.sat %r0, %r1, %r2, %r3;", |a, b| bytes(a, b, u8::saturating_add));
    agree("vabsdiff4.u32.u32.u32 %r0, %r1, %r2, %r3;", |a, b| bytes(a, b, u8::abs_diff));
    agree("vavrg4.u32.u32.u32 %r0, %r1, %r2, %r3;", |a, b| {
        bytes(a, b, |x, y| (u16::midpoint(x.into(), y.into()) as u8) + ((x ^ y) & 1))
    });
    agree("vset4.u32.u32.lt %r0, %r1, %r2, %r3;", |a, b| bytes(a, b, |x, y| u8::from(x < y)));
    agree("vsub2.s32.s32.s32.sat %r0, %r1, %r2, %r3;", |a, b| halves(a, b, i16::saturating_sub));
    agree("vmin2.s32.s32.s32 %r0, %r1, %r2, %r3;", |a, b| halves(a, b, i16::min));
    agree("vmax2.s32.s32.s32 %r0.h1, %r1, %r2, %r3;", |a, b| {
        (halves(a, b, i16::max) & 0xffff_0000) | 0xa5a5
    });
}

#[test]
fn packed_lanes_are_summed() {
    agree("vabsdiff4.u32.u32.u32.add %r0, %r1, %r2, %r3;", |a, b| {
        let lanes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        0xa5a5_a5a5 + lanes.map(|(x, y)| u32::from(x.abs_diff(y))).sum::<u32>()
    });
    agree("vmax4.s32.s32.s32.add %r0.b31, %r1, %r2, %r3;", |a, b| {
        let lane = |i: usize| {
            let (x, y) = (a.to_le_bytes()[i].cast_signed(), b.to_le_bytes()[i].cast_signed());
            i32::from(x.max(y)).cast_unsigned()
        };
        0xa5a5_a5a5u32.wrapping_add(lane(1)).wrapping_add(lane(3))
    });
}

#[test]
fn words_saturate_and_combine() {
    agree("vadd.s32.s32.s32.sat %r0, %r1, %r2;", |a, b| {
        a.cast_signed().saturating_add(b.cast_signed()).cast_unsigned()
    });
    agree("vsub.u32.u32.u32.sat %r0, %r1, %r2;", u32::saturating_sub);
    agree("vabsdiff.u32.s32.s32 %r0, %r1, %r2;", |a, b| a.cast_signed().abs_diff(b.cast_signed()));
    agree("vmax.s32.s32.s32.add %r0, %r1, %r2, %r3;", |a, b| {
        a.cast_signed().max(b.cast_signed()).cast_unsigned().wrapping_add(0xa5a5_a5a5)
    });
    agree("vset.u32.u32.ge %r0, %r1.b3, %r2.b0;", |a, b| u32::from(a >> 24 >= b & 0xff));
    agree("vmad.u32.u32.u32 %r0, %r1, %r2, %r3;", |a, b| {
        a.wrapping_mul(b).wrapping_add(0xa5a5_a5a5)
    });
    agree("vmad.s32.s32.s32.shr15 %r0, %r1.h0, %r2.h1, -%r3;", |a, b| {
        let part = |x: u32| i64::from((x as u16).cast_signed());
        let sum = part(a) * part(b >> 16) - i64::from(0xa5a5_a5a5u32.cast_signed());
        (sum >> 15).cast_unsigned() as u32
    });
}

#[test]
fn literal_cases() {
    let cases: &[(&str, u32)] = &[
        // The sum of the largest words is wider than a word before it is limited or combined.
        ("vadd.u32.u32.u32.sat %r0, 0xffffffff, 0xffffffff;", 0xffff_ffff),
        ("vadd.u32.u32.u32.min %r0, 0xffffffff, 2, 7;", 7),
        ("vadd.s32.u32.s32 %r0, 5, -7;", 0xffff_fffe),
        // Limited to the part that the result goes to, and merged with `c`.
        ("mov.u32 %r1, 300; vadd.u32.u32.u32.sat %r0.b2, %r1, %r1, 0x11223344;", 0x11ff_3344),
        ("mov.u32 %r1, -300; vadd.s32.s32.s32.sat %r0.b0, %r1, %r1, 0x11223344;", 0x1122_3380),
        ("mov.u32 %r1, 0x8001; vmin.s32.s32.u32 %r0.h1, %r1.h0, 5, 0x11223344;", 0x8001_3344),
        ("mov.u32 %r1, 0xf0; vadd.s32.s32.u32 %r0, %r1.b0, 1;", 0xffff_fff1),
        ("vshl.u32.u32.u32.clamp %r0, 1, 33;", 0),
        ("vshl.u32.u32.u32.wrap %r0, 1, 33;", 2),
        ("vshl.u32.u32.u32.sat.clamp %r0, 3, 31;", 0xffff_ffff),
        ("vshr.s32.s32.u32.clamp %r0, -8, 100;", 0xffff_ffff),
        ("vshr.u32.u32.u32.wrap.add %r0, 0x80000000, 63, 5;", 6),
        ("vset.s32.u32.lt %r0, -1, 0;", 1),
        ("vset.u32.u32.eq.add %r0, 3, 3, 41;", 42),
        ("vmad.s32.s32.s32.sat %r0, 0x7fffffff, 2, 0;", 0x7fff_ffff),
        ("vmad.u32.u32.u32.sat.shr7 %r0, 0xffffffff, 0x10, 0;", 0x1fff_ffff),
        ("vmad.u32.u32.u32.po %r0, 3, 4, 5;", 18),
        ("mov.u32 %r1, 3; vmad.s32.s32.s32 %r0, -%r1, 4, 5;", 0xffff_fff9),
        ("mov.u32 %r1, 3; vmad.u32.u32.u32.sat %r0, -%r1, 4, 5;", 0xffff_fff9),
        // A negative sum of odd halves is rounded down, a positive one up.
        ("vavrg2.s32.s32.s32 %r0, 0xfffe0002, 0xffff0001, 0;", 0xfffe_0002),
    ];
    for (body, expected) in cases {
        let mut bench = Bench::new(&kernel("", &format!("{body}\nst.global.u32 [%rd1], %r0;")));
        let out = bench.upload(&[0xdead_beef]);
        bench.run("k", 1, 1, &[Arg::U64(out)]);
        assert_eq!(bench.words(out, 1)[0], *expected, "{body}");
    }
}
