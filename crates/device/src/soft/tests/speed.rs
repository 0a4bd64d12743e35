//! How fast the engine is: `cargo test --release -p weft-device -- --ignored --nocapture speed`.

use rustix::time::{ClockId, clock_gettime};

use super::corpus::{corpus, matrices};
use super::{Arg, Bench};

/// Time of this thread on a processor: others may use the machine too.
fn processor_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn best(mut f: impl FnMut()) -> f64 {
    (0..7)
        .map(|_| {
            let start = processor_ns();
            f();
            (processor_ns() - start) / 1e6
        })
        .fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement, not a test"]
fn speed() {
    let mut bench = Bench::new(corpus!("matmul"));
    let n = 256;
    let (dc, da, db, expected) = matrices(&mut bench, n);
    for (kernel, block) in [("matmul_naive", 16), ("matmul_naive", 32), ("matmul_tiled", 16)] {
        let args = [Arg::U64(dc), Arg::U64(da), Arg::U64(db), Arg::U32(n)];
        let mut launch = bench.launch(kernel, 1, 1, &args);
        launch.grid = [n / block, n / block, 1];
        launch.block = [block, block, 1];
        let ms = best(|| bench.finish_ok(launch.clone()));
        println!("{kernel} {n} (block {block}): {ms:.2} ms");
        assert_eq!(bench.floats(dc, expected.len()), expected);
    }
    let mut bench = Bench::new(SAXPY);
    let n = 1u32 << 20;
    let (x, y) = (bench.alloc(u64::from(n) * 4), bench.alloc(u64::from(n) * 4));
    let args = [Arg::U64(x), Arg::U64(y), Arg::F32(2.0), Arg::U32(n)];
    let launch = bench.launch("saxpy", n / 256, 256, &args);
    let ms = best(|| bench.finish_ok(launch.clone()));
    println!("saxpy {n}: {ms:.2} ms");
    let mut bench = Bench::new(corpus!("vector_add"));
    let (a, b) = (bench.alloc(u64::from(n) * 4), bench.alloc(u64::from(n) * 4));
    let args = [Arg::U64(a), Arg::U64(b), Arg::U64(b), Arg::U32(n)];
    let launch = bench.launch("vector_add", n / 256, 256, &args);
    let ms = best(|| bench.finish_ok(launch.clone()));
    println!("vector_add {n}: {ms:.2} ms");
    let mut bench = Bench::new(corpus!("reduction"));
    let (input, out) = (bench.alloc(u64::from(n) * 8), bench.alloc(8));
    let args = [Arg::U64(input), Arg::U64(out), Arg::U32(n)];
    let mut launch = bench.launch("reduce", 64, 256, &args);
    launch.shared_bytes = 64;
    let ms = best(|| bench.finish_ok(launch.clone()));
    println!("reduce {n} doubles: {ms:.2} ms");
}

const SAXPY: &str = r"
.version 7.5
.target sm_75
.address_size 64
.visible .entry saxpy(.param .u64 px, .param .u64 py, .param .f32 pa, .param .u32 pn)
{
    .reg .pred %p<2>;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [px];
    ld.param.u64 %rd2, [py];
    ld.param.f32 %f1, [pa];
    ld.param.u32 %r2, [pn];
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra $DONE;
    cvta.to.global.u64 %rd3, %rd1;
    mul.wide.s32 %rd4, %r1, 4;
    add.s64 %rd5, %rd3, %rd4;
    ld.global.f32 %f2, [%rd5];
    cvta.to.global.u64 %rd6, %rd2;
    add.s64 %rd7, %rd6, %rd4;
    ld.global.f32 %f3, [%rd7];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd7], %f4;
$DONE:
    ret;
}
";
