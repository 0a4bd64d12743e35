//! Whole programs.

use super::{Arg, Bench};
use crate::FaultKind;

const VECTOR_ADD: &str = r"
.version 7.5
.target sm_75
.address_size 64
.visible .entry add(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [pa];
    ld.param.u64 %rd2, [pb];
    ld.param.u64 %rd3, [pc];
    ld.param.u32 %r2, [pn];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra $DONE;
    cvta.to.global.u64 %rd4, %rd1;
    mul.wide.s32 %rd5, %r1, 4;
    add.s64 %rd6, %rd4, %rd5;
    cvta.to.global.u64 %rd7, %rd2;
    add.s64 %rd8, %rd7, %rd5;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f2, %f1;
    cvta.to.global.u64 %rd9, %rd3;
    add.s64 %rd10, %rd9, %rd5;
    st.global.f32 [%rd10], %f3;
$DONE:
    ret;
}
";

#[test]
fn vectors_are_added() {
    let mut bench = Bench::new(VECTOR_ADD);
    let n = 1000u32;
    let a = bench.upload(&(0..n).map(|i| (i as f32).to_bits()).collect::<Vec<_>>());
    let b = bench.upload(&(0..n).map(|i| (0.5 * i as f32).to_bits()).collect::<Vec<_>>());
    let c = bench.alloc(u64::from(n) * 4);
    bench.run("add", 8, 128, &[Arg::U64(a), Arg::U64(b), Arg::U64(c), Arg::U32(n)]);
    let sum = bench.floats(c, n as usize);
    for (i, x) in sum.iter().enumerate() {
        assert_eq!(*x, 1.5 * i as f32, "element {i}");
    }
}

#[test]
fn reading_behind_an_allocation_is_a_fault() {
    let mut bench = Bench::new(VECTOR_ADD);
    let a = bench.alloc(4096);
    let b = bench.alloc(4096);
    let c = bench.alloc(8192);
    let args = [Arg::U64(a), Arg::U64(b), Arg::U64(c), Arg::U32(2048)];
    let fault = bench.fault("add", 16, 128, &args);
    assert_eq!(fault.kind, FaultKind::IllegalAddress);
    assert_eq!((fault.kernel.as_str(), fault.block, fault.thread), ("add", [8, 0, 0], [0, 0, 0]));
    assert_eq!(fault.address, Some(b + 4096));
    assert_eq!(fault.detail, "ld.global.f32 %f1, [%rd8];");
    assert_eq!(fault.line, 26);
}

/// Each round every thread takes the value of the thread one warp further and adds 1. Warps do
/// unequal work in between, so that their turns end at every place of the loop.
const RING: &str = r"
.version 7.5
.target sm_75
.address_size 64
.visible .entry ring(.param .u64 pout, .param .u32 prounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<14>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 values[1024];
    ld.param.u64 %rd1, [pout];
    ld.param.u32 %r1, [prounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, values;
    shl.b32 %r4, %r2, 2;
    add.u32 %r5, %r3, %r4;
    add.u32 %r6, %r2, 32;
    and.b32 %r6, %r6, 255;
    shl.b32 %r6, %r6, 2;
    add.u32 %r6, %r3, %r6;
    shr.u32 %r7, %r2, 5;
    mul.lo.u32 %r7, %r7, 9;
    mov.u32 %r8, %r2;
    mov.u32 %r9, 0;
$ROUND:
    st.shared.u32 [%r5], %r8;
    mov.u32 %r10, 0;
$WORK:
    add.u32 %r10, %r10, 1;
    setp.le.u32 %p1, %r10, %r7;
    @%p1 bra $WORK;
    bar.sync 0;
    ld.shared.u32 %r8, [%r6];
    add.u32 %r8, %r8, 1;
    bar.sync 0;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p2, %r9, %r1;
    @%p2 bra $ROUND;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r8;
    ret;
}
";

#[test]
fn barriers_hold_in_long_loops() {
    let mut bench = Bench::new(RING);
    for rounds in [1, 7, 1000, 20_000] {
        let out = bench.alloc(1024);
        bench.run("ring", 1, 256, &[Arg::U64(out), Arg::U32(rounds)]);
        for (i, value) in (0u32..).zip(bench.words(out, 256)) {
            assert_eq!(value, (i + 32 * rounds) % 256 + rounds, "thread {i}, {rounds} rounds");
        }
    }
}
