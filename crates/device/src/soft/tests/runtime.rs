//! What kernels take from the driver: a heap, and a barrier of the grid.

use super::{Arg, Bench};
use crate::{Device, FaultKind};

const HEAD: &str = ".version 7.5\n.target sm_75\n.address_size 64\n\
    .extern .func (.param .b64 r) malloc(.param .b64 n);\n.extern .func free(.param .b64 p);\n";

/// A kernel `k(out, bytes)` of which each thread allocates and frees what it wants.
fn heap_kernel(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 out, .param .u64 bytes) {{\n\
         .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<3>; .param .b64 n; .param .b64 got;\n\
         ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [bytes]; mov.u32 %r1, %tid.x;\n\
         mad.wide.u32 %rd3, %r1, 8, %rd1; st.param.b64 [n], %rd2; call (got), malloc, (n);\n\
         ld.param.b64 %rd4, [got];\n{body}\nret; }}"
    )
}

#[test]
fn threads_get_memory_of_their_own() {
    // Each thread writes its number to both ends, waits for the others, and reads it back.
    let text = heap_kernel(
        "add.u64 %rd5, %rd4, %rd2; st.u32 [%rd5+-4], %r1; st.u32 [%rd4], %r1; bar.sync 0;\n\
         ld.u32 %r2, [%rd4]; ld.u32 %r3, [%rd5+-4]; add.u32 %r2, %r2, %r3;\n\
         st.global.u64 [%rd3], %rd4; @%p1 bra END; END:\n\
         st.param.b64 [n], %rd4; call free, (n); st.global.u32 [%rd3], %r2;",
    );
    let mut bench = Bench::new(&text);
    let out = bench.alloc(8 * 64);
    for bytes in [4, 16, 100, 8192, 20_000] {
        let before = bench.device.memory_use().free;
        for _ in 0..3 {
            bench.run("k", 1, 64, &[Arg::U64(out), Arg::U64(bytes)]);
            for i in 0..64 {
                assert_eq!(bench.words(out + 8 * i, 1), [2 * i as u32], "{bytes} bytes");
            }
        }
        let grown = before - bench.device.memory_use().free;
        assert!(grown <= 64 * 8192 + (128 << 10), "{grown} bytes for {bytes} each, freed");
    }
}

#[test]
fn a_heap_without_room_gives_null() {
    let mut bench = Bench::new(&heap_kernel("st.global.u64 [%rd3], %rd4;"));
    let out = bench.upload(&[1, 1]);
    bench.run("k", 1, 1, &[Arg::U64(out), Arg::U64(1 << 40)]);
    assert_eq!(bench.words(out, 2), [0, 0]);
}

#[test]
fn freeing_twice_is_a_fault_and_freeing_null_is_nothing() {
    let free = "st.param.b64 [n], %rd4; call free, (n);";
    for (body, bytes) in [(format!("{free} {free}"), 64), (format!("{free} {free}"), 1 << 20)] {
        let mut bench = Bench::new(&heap_kernel(&body));
        let out = bench.alloc(8);
        let fault = bench.fault("k", 1, 1, &[Arg::U64(out), Arg::U64(bytes)]);
        assert_eq!(fault.kind, FaultKind::IllegalAddress);
        assert!(fault.detail.contains("malloc did not give"), "{}", fault.detail);
    }
    let mut bench = Bench::new(&heap_kernel(&format!("mov.u64 %rd4, 0; {free}")));
    let out = bench.alloc(8);
    bench.run("k", 1, 1, &[Arg::U64(out), Arg::U64(16)]);
}

#[test]
fn memory_that_a_kernel_freed_is_out_of_its_reach() {
    let text = heap_kernel(
        "st.u32 [%rd4], 5; st.param.b64 [n], %rd4; call free, (n); ld.u32 %r2, [%rd4];\n\
         st.global.u32 [%rd3], %r2;",
    );
    let mut bench = Bench::new(&text);
    let out = bench.alloc(8);
    let fault = bench.fault("k", 1, 1, &[Arg::U64(out), Arg::U64(1 << 20)]);
    assert_eq!(fault.kind, FaultKind::IllegalAddress);
}

/// Every block adds one to a counter, waits for all of them, and notes what it sees; twice.
const GRID: &str = ".version 7.5\n.target sm_75\n.address_size 64\n.global .u32 count;\n\
    .extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 scope);\n\
    .extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 flags);\n\
    .visible .entry k(.param .u64 out) { .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p;\n\
    .param .b32 s; .param .b64 h; .param .b32 f; .param .b32 e; ld.param.u64 %rd1, [out];\n\
    st.param.b32 [s], 1; call (h), cudaCGGetIntrinsicHandle, (s); ld.param.b64 %rd2, [h];\n\
    mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; mov.u32 %r2, %ctaid.x; mov.u32 %r5, 0;\n\
    mov.u64 %rd5, count; mad.wide.u32 %rd4, %r2, 8, %rd1;\n\
    AGAIN: @!%p red.global.add.u32 [%rd5], 1; st.param.b64 [h], %rd2; st.param.b32 [f], 0;\n\
    call (e), cudaCGSynchronize, (h, f); ld.param.b32 %r6, [e]; ld.volatile.global.u32 %r3, [%rd5];\n\
    add.u32 %r3, %r3, %r6; @!%p st.global.u32 [%rd4], %r3; add.u64 %rd4, %rd4, 4;\n\
    call (e), cudaCGSynchronize, (h, f); add.u32 %r5, %r5, 1;\n\
    { .reg .pred %q; setp.lt.u32 %q, %r5, 2; @%q bra AGAIN; } ret; }";

#[test]
fn a_grid_waits_for_all_its_blocks() {
    let mut bench = Bench::new(GRID);
    let out = bench.alloc(8 * 24);
    for round in 0..2 {
        bench.run("k", 24, 40, &[Arg::U64(out)]);
        let seen = bench.words(out, 48);
        let base = 48 * round;
        for pair in seen.chunks(2) {
            assert_eq!(pair, [base + 24, base + 48]);
        }
    }
}

#[test]
fn the_workspace_of_a_grid_is_its_environment() {
    // Cooperative groups compiled by NVRTC find it in two registers and bring their own barrier.
    let text = ".version 7.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 out) {\n\
        .reg .b64 %rd<4>; .reg .b32 %r<4>; ld.param.u64 %rd1, [out]; mov.u32 %r1, %envreg1;\n\
        mov.u32 %r2, %envreg2; mov.b64 %rd2, {%r2, %r1}; atom.add.u32 %r3, [%rd2+4], 7;\n\
        st.global.u32 [%rd1], %r3; ret; }";
    let mut bench = Bench::new(text);
    let out = bench.upload(&[9]);
    for _ in 0..2 {
        bench.run("k", 1, 1, &[Arg::U64(out)]);
        assert_eq!(bench.words(out, 1), [0]);
    }
}

#[test]
fn a_function_of_the_runtime_that_is_not_there_is_named() {
    let text = ".version 7.5\n.target sm_75\n.address_size 64\n\
        .extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a, .param .b64 b);\n\
        .visible .entry k() { .param .b64 a; .param .b32 r;\n\
        call (r), cudaLaunchDeviceV2, (a, a); ret; }";
    let refused = super::device().load(&[text.as_bytes()]).unwrap_err();
    assert!(refused.to_string().contains("undefined symbol cudaLaunchDeviceV2"), "{refused}");
}
