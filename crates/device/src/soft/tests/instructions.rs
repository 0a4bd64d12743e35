//! Instructions one by one: literal inputs and outputs, from the PTX ISA document.

use super::faults::kernel;
use super::{Arg, Bench};

/// Runs `body` in one thread; it leaves its 32-bit result in `%r0`.
fn r32(body: &str) -> u32 {
    let mut bench = Bench::new(&kernel("", &format!("{body}\nst.global.u32 [%rd1], %r0;")));
    let out = bench.upload(&[0xdead_beef]);
    bench.run("k", 1, 1, &[Arg::U64(out)]);
    bench.words(out, 1)[0]
}

/// The same for 64 bits in `%rd0`.
fn r64(body: &str) -> u64 {
    let mut bench = Bench::new(&kernel("", &format!("{body}\nst.global.u64 [%rd1], %rd0;")));
    let out = bench.upload(&[0, 0]);
    bench.run("k", 1, 1, &[Arg::U64(out)]);
    let words = bench.words(out, 2);
    u64::from(words[0]) | (u64::from(words[1]) << 32)
}

fn all32(cases: &[(&str, u32)]) {
    for (body, expected) in cases {
        assert_eq!(r32(body), *expected, "{body}");
    }
}

fn all64(cases: &[(&str, u64)]) {
    for (body, expected) in cases {
        assert_eq!(r64(body), *expected, "{body}");
    }
}

#[test]
fn integer_arithmetic() {
    all32(&[
        ("add.sat.s32 %r0, 0x7fffffff, 1;", 0x7fff_ffff),
        ("sub.sat.s32 %r0, 0x80000000, 1;", 0x8000_0000),
        ("mul.hi.s32 %r0, -3, 0x40000000;", 0xffff_ffff),
        ("mul.hi.u32 %r0, 0xffffffff, 0xffffffff;", 0xffff_fffe),
        ("mul24.lo.s32 %r0, 0x00ffffff, 2;", 0xffff_fffe),
        ("mul24.hi.u32 %r0, 0xffffff, 0xffffff;", 0xffff_fe00),
        ("mad.lo.s32 %r0, -2, 3, 10;", 4),
        ("mad.hi.sat.s32 %r0, 0x7fffffff, 0x7fffffff, 0x7fffffff;", 0x7fff_ffff),
        ("div.s32 %r0, -7, 2;", 0xffff_fffd),
        ("rem.s32 %r0, -7, 2;", 0xffff_ffff),
        ("div.s32 %r0, 0x80000000, -1;", 0x8000_0000),
        ("sad.s32 %r0, -5, 3, 1;", 9),
        ("abs.s32 %r0, -5;", 5),
        ("min.s32 %r0, -1, 1;", 0xffff_ffff),
        ("min.u32 %r0, -1, 1;", 1),
        ("mov.u16 %h1, 0xffff; mul.wide.s16 %r0, %h1, 5;", 0xffff_fffb),
        (
            "mov.u16 %h1, 0x8000; mov.u16 %h2, 1; sub.u16 %h3, %h1, %h2; cvt.s32.s16 %r0, %h3;",
            0x7fff,
        ),
        ("dp4a.s32.u32 %r0, 0xff01ff01, 0x01010101, 7;", 7),
        ("dp4a.u32.u32 %r0, 0x01020304, 0x01010101, 0;", 10),
        ("dp2a.lo.s32.u32 %r0, 0xffff0002, 0x00000305, 1;", 8),
        ("add.cc.u32 %r1, 0xffffffff, 1; addc.u32 %r0, 0, 0;", 1),
        ("sub.cc.u32 %r1, 0, 1; subc.u32 %r0, 5, 0;", 4),
        ("mad.lo.cc.u32 %r1, 0xffffffff, 1, 1; madc.hi.u32 %r0, 0xffffffff, 2, 0;", 2),
    ]);
    all64(&[
        ("mul.wide.s32 %rd0, -2, 3;", (-6i64).cast_unsigned()),
        ("mul.hi.u64 %rd0, 0xffffffffffffffff, 2;", 1),
        ("mul.hi.s64 %rd0, -1, 2;", u64::MAX),
        ("mad.wide.u32 %rd0, 0xffffffff, 2, 1;", 0x1_ffff_ffff),
        ("div.u64 %rd0, 1000000000000, 7;", 142_857_142_857),
        ("add.cc.u64 %rd2, 0xffffffffffffffff, 1; addc.u64 %rd0, 2, 3;", 6),
    ]);
}

#[test]
fn bits_and_fields() {
    all32(&[
        ("shl.b32 %r0, 1, 32;", 0),
        ("shr.s32 %r0, 0x80000000, 40;", 0xffff_ffff),
        ("shr.u32 %r0, 0x80000000, 31;", 1),
        ("shf.l.wrap.b32 %r0, 0x80000000, 0x1, 33;", 3),
        ("shf.l.clamp.b32 %r0, 0x12345678, 0x1, 40;", 0x1234_5678),
        ("shf.r.clamp.b32 %r0, 0x1, 0x89abcdef, 32;", 0x89ab_cdef),
        ("bfe.u32 %r0, 0x12345678, 8, 8;", 0x56),
        ("bfe.s32 %r0, 0x0000ff00, 8, 8;", 0xffff_ffff),
        ("bfe.s32 %r0, 0x80000000, 28, 12;", 0xffff_fff8),
        ("bfe.u32 %r0, 0xffffffff, 4, 0;", 0),
        ("bfi.b32 %r0, 0xf, 0x12345678, 8, 4;", 0x1234_5f78),
        ("bfi.b32 %r0, 0xff, 0, 28, 12;", 0xf000_0000),
        ("bfind.u32 %r0, 0x00010000;", 16),
        ("bfind.s32 %r0, -2;", 0),
        ("bfind.u32 %r0, 0;", 0xffff_ffff),
        ("bfind.shiftamt.u32 %r0, 0x00010000;", 15),
        ("popc.b64 %r0, 0xff00ff00ff00ff00;", 32),
        ("clz.b32 %r0, 1;", 31),
        ("brev.b32 %r0, 1;", 0x8000_0000),
        ("cnot.b32 %r0, 0;", 1),
        ("lop3.b32 %r0, 0xf0f0f0f0, 0xcccccccc, 0xaaaaaaaa, 0x80;", 0x8080_8080),
        ("lop3.b32 %r0, 0xf0f0f0f0, 0xcccccccc, 0xaaaaaaaa, 0x96;", 0x9696_9696),
        ("prmt.b32 %r0, 0x03020100, 0x07060504, 0x7531;", 0x0705_0301),
        ("prmt.b32 %r0, 0x80, 0, 0x8888;", 0xffff_ffff),
        ("prmt.b32.f4e %r0, 0x03020100, 0x07060504, 1;", 0x0403_0201),
        ("prmt.b32.rc16 %r0, 0x03020100, 0x07060504, 1;", 0x0302_0302),
        ("fns.b32 %r0, 0xaaaaaaaa, 3, 1;", 3),
        ("fns.b32 %r0, 0xaaaaaaaa, 2, -1;", 1),
        ("szext.wrap.s32 %r0, 0xff, 8;", 0xffff_ffff),
        ("bmsk.clamp.b32 %r0, 4, 8;", 0xff0),
    ]);
    all64(&[
        ("shl.b64 %rd0, 1, 63;", 1 << 63),
        ("bfe.s64 %rd0, 0xff00000000, 32, 8;", u64::MAX),
        ("bfi.b64 %rd0, 0xab, 0, 60, 8;", 0xb << 60),
        ("mov.b64 %rd0, {1, 2};", 0x2_0000_0001),
        ("brev.b64 %rd0, 1;", 1 << 63),
    ]);
}

#[test]
fn single_precision() {
    let f = |body: &str| format!("{body} mov.b32 %r0, %f0;");
    let cases: &[(&str, u32)] = &[
        // 1 + 2^-24: halfway.
        ("add.rn.f32 %f0, 0f3f800000, 0f33800000;", 0x3f80_0000),
        ("add.rp.f32 %f0, 0f3f800000, 0f33800000;", 0x3f80_0001),
        ("add.rz.f32 %f0, 0fbf800000, 0fb3800001;", 0xbf80_0000),
        ("add.rm.f32 %f0, 0fbf800000, 0fb3800000;", 0xbf80_0001),
        ("add.rm.f32 %f0, 0f3f800000, 0fbf800000;", 0x8000_0000),
        ("add.rn.f32 %f0, 0f7f800000, 0fff800000;", 0x7fff_ffff),
        ("add.rz.f32 %f0, 0f7f7fffff, 0f7f7fffff;", 0x7f7f_ffff),
        ("mul.rn.ftz.f32 %f0, 0f00400000, 0f3f800000;", 0),
        ("mul.rn.f32 %f0, 0f00400000, 0f3f800000;", 0x0040_0000),
        ("mul.rp.f32 %f0, 0f00000001, 0f00000001;", 1),
        ("mul.rz.f32 %f0, 0f3f800001, 0f3f800001;", 0x3f80_0002),
        ("mul.rp.f32 %f0, 0f3f800001, 0f3f800001;", 0x3f80_0003),
        ("div.rn.f32 %f0, 0f3f800000, 0f40400000;", 0x3eaa_aaab),
        ("div.rz.f32 %f0, 0f3f800000, 0f40400000;", 0x3eaa_aaaa),
        ("sqrt.rm.f32 %f0, 0f40000000;", 0x3fb5_04f3),
        ("sqrt.rp.f32 %f0, 0f40000000;", 0x3fb5_04f4),
        ("rcp.rp.f32 %f0, 0f40400000;", 0x3eaa_aaab),
        ("fma.rz.f32 %f0, 0f3f800001, 0f3f800001, 0fbf800000;", 0x3480_0000),
        ("fma.rn.sat.f32 %f0, 0f40000000, 0f40000000, 0f00000000;", 0x3f80_0000),
        ("min.f32 %f0, 0f80000000, 0f00000000;", 0x8000_0000),
        ("max.f32 %f0, 0f7fc00000, 0f3f800000;", 0x3f80_0000),
        ("min.NaN.f32 %f0, 0f7fc00000, 0f3f800000;", 0x7fff_ffff),
        ("ex2.approx.f32 %f0, 0f40400000;", 0x4100_0000),
        ("lg2.approx.f32 %f0, 0f41000000;", 0x4040_0000),
        ("rsqrt.approx.f32 %f0, 0f40800000;", 0x3f00_0000),
        ("sin.approx.f32 %f0, 0f00000000;", 0),
        ("copysign.f32 %f0, 0fbf800000, 0f40000000;", 0xc000_0000),
        ("cvt.rn.f32.s32 %f0, 0x01000001;", 0x4b80_0000),
        ("cvt.rp.f32.u32 %f0, 0x01000001;", 0x4b80_0001),
        ("cvt.rni.f32.f32 %f0, 0f40200000;", 0x4000_0000),
        ("cvt.rmi.f32.f32 %f0, 0fbf000000;", 0xbf80_0000),
        ("cvt.rpi.f32.f32 %f0, 0fbf000000;", 0x8000_0000),
        ("cvt.sat.f32.f32 %f0, 0f40000000;", 0x3f80_0000),
        ("cvt.rn.f32.f64 %f0, 0d3FF0000010000000;", 0x3f80_0000),
    ];
    for (body, expected) in cases {
        assert_eq!(r32(&f(body)), *expected, "{body}");
    }
}

#[test]
fn double_precision() {
    let f = |body: &str| format!("{body} mov.b64 %rd0, %fd0;");
    let one = 1f64.to_bits();
    let cases: &[(&str, u64)] = &[
        ("add.rp.f64 %fd0, 0d3ff0000000000000, 0d0000000000000001;", one + 1),
        ("add.rz.f64 %fd0, 0d3ff0000000000000, 0d8000000000000001;", one - 1),
        ("add.rn.f64 %fd0, 0d3ff0000000000000, 0d8000000000000001;", one),
        ("mul.rm.f64 %fd0, 0d0000000000000001, 0dbff0000000000000;", 1 << 63 | 1),
        ("mul.rz.f64 %fd0, 0d0000000000000001, 0d3fe0000000000000;", 0),
        ("mul.rp.f64 %fd0, 0d0000000000000001, 0d3fe0000000000000;", 1),
        ("div.rz.f64 %fd0, 0d3ff0000000000000, 0d4008000000000000;", 0x3fd5_5555_5555_5555),
        ("div.rp.f64 %fd0, 0d3ff0000000000000, 0d4008000000000000;", 0x3fd5_5555_5555_5556),
        ("sqrt.rp.f64 %fd0, 0d4000000000000000;", 0x3ff6_a09e_667f_3bcd),
        ("sqrt.rz.f64 %fd0, 0d4000000000000000;", 0x3ff6_a09e_667f_3bcc),
        ("fma.rp.f64 %fd0, 0d3ff0000000000000, 0d3ff0000000000000, 0d0000000000000001;", one + 1),
        ("max.f64 %fd0, 0d8000000000000000, 0d0000000000000000;", 0),
        ("cvt.rn.f64.s64 %fd0, -3;", (-3f64).to_bits()),
        ("cvt.f64.f32 %fd0, 0f3fc00000;", 1.5f64.to_bits()),
    ];
    for (body, expected) in cases {
        assert_eq!(r64(&f(body)), *expected, "{body}");
    }
}

#[test]
fn conversions_saturate() {
    all32(&[
        ("cvt.rzi.s32.f32 %r0, 0f4f800000;", 0x7fff_ffff),
        // A NaN becomes 0, except where 64 bits are on either side.
        ("cvt.rzi.s32.f32 %r0, 0f7fc00000;", 0),
        ("cvt.rzi.u32.f32 %r0, 0f7fc00000;", 0),
        ("cvt.rzi.s32.f64 %r0, 0d7ff8000000000000;", 0x8000_0000),
        ("cvt.rni.u32.f64 %r0, 0d7ff8000000000000;", 0x8000_0000),
        ("cvt.rzi.s16.f64 %h1, 0d7ff8000000000000; cvt.u32.u16 %r0, %h1;", 0x8000),
        ("cvt.rzi.u32.f32 %r0, 0fbf800000;", 0),
        ("cvt.rni.s32.f32 %r0, 0f40200000;", 2),
        ("cvt.rmi.s32.f32 %r0, 0fbf000000;", 0xffff_ffff),
        ("cvt.rzi.s32.f64 %r0, 0dc1e0000000200000;", 0x8000_0000),
        ("cvt.sat.u8.s32 %r0, 300;", 255),
        ("cvt.sat.s8.s32 %r0, -300;", 0xffff_ff80),
        ("cvt.u32.u64 %r0, 0x123456789;", 0x2345_6789),
        ("mov.u32 %r1, 0x1ff; cvt.s32.s8 %r0, %r1;", 0xffff_ffff),
        ("cvt.rn.f16.f32 %h1, 0f477ff000; cvt.u32.u16 %r0, %h1;", 0x7c00),
        ("cvt.rz.f16.f32 %h1, 0f477ff000; cvt.u32.u16 %r0, %h1;", 0x7bff),
        ("cvt.rn.f16.f32 %h1, 0f33000001; cvt.u32.u16 %r0, %h1;", 1),
        ("mov.b16 %h1, 0x3c00; cvt.f32.f16 %f0, %h1; mov.b32 %r0, %f0;", 0x3f80_0000),
        ("mov.b16 %h1, 0x0001; cvt.f32.f16 %f0, %h1; mov.b32 %r0, %f0;", 0x3380_0000),
        ("cvt.rn.bf16.f32 %h1, 0f3f808000; cvt.u32.u16 %r0, %h1;", 0x3f80),
        ("cvt.rn.f16x2.f32 %r0, 0f3f800000, 0f40000000;", 0x3c00_4000),
        ("cvt.rna.tf32.f32 %r0, 0f3f801000;", 0x3f80_2000),
    ]);
    all64(&[
        ("cvt.rzi.s64.f32 %rd0, 0f7fc00000;", 1 << 63),
        ("cvt.rzi.u64.f32 %rd0, 0f7fc00000;", 1 << 63),
        ("cvt.rzi.u64.f64 %rd0, 0d7ff8000000000000;", 1 << 63),
        ("cvt.rzi.s64.f64 %rd0, 0dfff0000000000000;", 1 << 63),
        ("cvt.rzi.u64.f64 %rd0, 0d7ff0000000000000;", u64::MAX),
    ]);
}

#[test]
fn halves() {
    all32(&[
        ("add.f16x2 %r0, 0x3c003c00, 0x40003c00;", 0x4200_4000),
        ("fma.rn.f16x2 %r0, 0x3c013c01, 0x3c013c01, 0xbc00bc00;", 0x1800_1800),
        ("mul.f16x2 %r0, 0x00013c00, 0x38004000;", 0x0000_4000),
        ("max.f16x2 %r0, 0x7e00bc00, 0x3c003c00;", 0x3c00_3c00),
        ("neg.f16x2 %r0, 0x3c00bc00;", 0xbc00_3c00),
        (
            "mov.b16 %h1, 0x3c00; mov.b16 %h2, 0x4000; setp.lt.f16 %p1, %h1, %h2; selp.u32 %r0, 1, 0, %p1;",
            1,
        ),
        ("fma.rn.bf16x2 %r0, 0x3f803f80, 0x40004000, 0x3f803f80;", 0x4040_4040),
    ]);
}

#[test]
fn comparisons() {
    let p = |setp: &str| r32(&format!("{setp} selp.u32 %r0, 1, 0, %p1;"));
    assert_eq!(p("setp.lt.s32 %p1, -1, 1;"), 1);
    assert_eq!(p("setp.lo.u32 %p1, -1, 1;"), 0);
    assert_eq!(p("setp.lt.f32 %p1, 0f7fc00000, 0f3f800000;"), 0);
    assert_eq!(p("setp.ltu.f32 %p1, 0f7fc00000, 0f3f800000;"), 1);
    assert_eq!(p("setp.ne.f32 %p1, 0f7fc00000, 0f3f800000;"), 0);
    assert_eq!(p("setp.neu.f32 %p1, 0f7fc00000, 0f3f800000;"), 1);
    assert_eq!(p("setp.nan.f32 %p1, 0f7fc00000, 0f3f800000;"), 1);
    assert_eq!(p("setp.eq.ftz.f32 %p1, 0f00000001, 0f00000000;"), 1);
    assert_eq!(p("setp.eq.u32 %p2, 1, 1; setp.eq.and.u32 %p1, 2, 2, !%p2;"), 0);
    assert_eq!(p("setp.eq.u32 %p2|%p1, 1, 1;"), 0);
    assert_eq!(p("testp.subnormal.f32 %p1, 0f00000001;"), 1);
    // Zeros count as normal.
    assert_eq!(p("testp.normal.f32 %p1, 0f80000000;"), 1);
    assert_eq!(p("testp.normal.f64 %p1, 0d0000000000000000;"), 1);
    assert_eq!(p("testp.subnormal.f64 %p1, 0d0000000000000000;"), 0);
    // Both halves are combined with what the predicate was before.
    let pair = "setp.ne.u32 %p2, 0, 0; setp.eq.or.f16x2 %p2|%p1, 0x3c003c00, 0x40003c00, %p2;";
    assert_eq!(p(pair), 0);
    all32(&[
        ("set.lt.u32.s32 %r0, -1, 1;", 0xffff_ffff),
        ("set.lt.f32.s32 %f0, -1, 1; mov.b32 %r0, %f0;", 0x3f80_0000),
        ("slct.u32.s32 %r0, 7, 9, -1;", 9),
        ("slct.u32.f32 %r0, 7, 9, 0f80000000;", 7),
        ("slct.u32.f32 %r0, 7, 9, 0f7fc00000;", 9),
    ]);
}

#[test]
fn vectors_local_and_shared_memory() {
    all32(&[
        (
            ".local .align 16 .b8 mine[32]; mov.u64 %rd2, mine; st.local.v4.u32 [%rd2+16], {1, 2, 3, 4};\n\
             ld.local.v2.u32 {%r0, %r1}, [%rd2+24]; shl.b32 %r1, %r1, 8; or.b32 %r0, %r0, %r1;",
            0x403,
        ),
        (
            ".shared .align 8 .b8 pool[16]; st.shared.u64 [pool+8], 0x1122334455667788;\n\
             ld.shared.u8 %r0, [pool+9]; ld.shared.s16 %r1, [pool+14]; add.u32 %r0, %r0, %r1;",
            0x77 + 0x1122,
        ),
        (
            ".local .align 8 .b8 mine[16]; mov.u64 %rd2, mine; cvta.local.u64 %rd3, %rd2;\n\
             st.u64 [%rd3+8], 0x8000000000000005; ld.local.u32 %r0, [%rd2+12];",
            0x8000_0000,
        ),
        (
            ".local .align 8 .b8 mine[8]; mov.u64 %rd2, mine; st.local.u8 [%rd2+3], 0xf0;\n\
          ld.local.s8 %r0, [%rd2+3];",
            0xffff_fff0,
        ),
        // Addresses of 32 bits wrap at 32 bits.
        (
            ".shared .align 8 .b8 pool[16]; st.shared.u32 [pool+4], 77; mov.u32 %r1, %tid.x;\n\
             sub.u32 %r1, %r1, 4; ld.shared.u32 %r0, [%r1+8];",
            77,
        ),
        ("cvta.to.global.u64 %rd2, %rd1; isspacep.shared %p1, %rd2; selp.u32 %r0, 1, 2, %p1;", 2),
    ]);
}

#[test]
fn packed_conversions_saturate() {
    all32(&[
        ("cvt.pack.sat.u16.s32 %r0, 70000, -5;", 0xffff_0000),
        ("cvt.pack.sat.s16.s32 %r0, -40000, 7;", 0x8000_0007),
        ("cvt.pack.sat.u8.s32.b32 %r0, 300, 17, 0x12345678;", 0x5678_ff11),
        ("cvt.pack.sat.s8.s32.b32 %r0, -200, 200, 0;", 0x807f),
        ("cvt.pack.sat.s4.s32.b32 %r0, -1, 100, 0xabcdef;", 0xabcd_eff7),
        ("cvt.pack.sat.u2.s32.b32 %r0, 2, 9, 0x1;", 0x1b),
    ]);
}
