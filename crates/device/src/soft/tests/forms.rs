//! Forms that assemblers take and compilers write, beside those that the PTX ISA document lists.
//! What they mean was found by comparing the code that an assembler makes of two spellings.

use super::faults::kernel;
use super::{Arg, Bench};

/// Runs a text's kernel `k(u64 p)` in one thread; the first words behind `p`.
fn words(text: &str, count: usize) -> Vec<u32> {
    let mut bench = Bench::new(text);
    let out = bench.upload(&vec![0xdead_beef; count]);
    bench.run("k", 1, 1, &[Arg::U64(out)]);
    bench.words(out, count)
}

fn body(globals: &str, body: &str, count: usize) -> Vec<u32> {
    words(&kernel(globals, body), count)
}

#[test]
fn an_index_behind_a_name_counts_elements() {
    let text = ".local .align 8 .b8 bytes[16]; .local .align 4 .b32 all[4];\n\
        mov.u32 %r1, 2; mov.u64 %rd2, 2; st.local.b32 all[2], 5; st.local.b32 all[%r1+1], 6;\n\
        st.local.b32 bytes[%rd2+2], 7; ld.local.b32 %r2, [all+8]; ld.local.b32 %r3, [all+12];\n\
        ld.local.b32 %r4, [bytes+4]; ld.global.b32 %r5, table[%r1]; mov.u32 %r6, sh[3];\n\
        mov.u32 %r7, sh; sub.u32 %r6, %r6, %r7; mov.u64 %rd3, table[%rd2]; mov.u64 %rd4, table;\n\
        sub.u64 %rd3, %rd3, %rd4; cvt.u32.u64 %r7, %rd3;\n\
        st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5}; st.global.v2.u32 [%rd1+16], {%r6, %r7};";
    let globals = ".global .align 4 .u32 table[4] = {10, 11, 12, 13}; .shared .align 8 .b64 sh[4];";
    assert_eq!(body(globals, text, 6), [5, 6, 7, 12, 24, 8]);
}

#[test]
fn registers_may_have_constants_added() {
    let text = "mov.u32 %r1, 5; mov.u32 %r2, %r1+4; add.s32 %r3, %r1+-1, 3;\n\
        setp.eq.u32 %p1, %r1+1, 6; selp.u32 %r4, 1, 0, %p1; st.global.u32 [%rd1], %r2+1;\n\
        st.global.u32 [%rd1+4], %r3; st.global.u32 [%rd1+8], %r4;";
    assert_eq!(body("", text, 3), [10, 7, 1]);
}

#[test]
fn predicates_may_be_negated_where_they_are_read() {
    let text = "mov.pred %p1, 1; mov.pred %p2, !%p1; xor.pred %p3, %p1, !%p2;\n\
        and.pred %p4, !%p2, %p1; not.pred %p5, !%p1;\n\
        selp.u32 %r1, 1, 0, %p2; selp.u32 %r2, 1, 0, %p3; selp.u32 %r3, 1, 0, %p4;\n\
        selp.u32 %r4, 1, 0, %p5; st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};\n\
        mov.u32 %r1, 7; @%p2 mov.pred %p1, !%p3; selp.u32 %r2, %r1, 0, %p1;\n\
        st.global.u32 [%rd1+16], %r2;";
    assert_eq!(body("", text, 5), [0, 0, 1, 1, 7]);
}

#[test]
fn vectors_are_moved_whole_and_by_element() {
    let text = ".reg .v2 .b32 v, w; .reg .v4 .u32 q<3>; .reg .v2 .b16 h;\n\
        mov.u32 v.x, 1; mov.u32 v.y, 2; mov.v2.b32 w, v; mov.v2.b32 {v.x, v.y}, {w.y, w.x};\n\
        mov.v4.u32 q1, {v.x, v.y, w.x, 9}; st.global.v4.u32 [%rd1], q1;\n\
        mov.b64 %rd2, w; st.global.u64 [%rd1+16], %rd2; mov.b64 v, %rd2; add.u32 v.g, v.r, 10;\n\
        st.global.v2.b32 [%rd1+24], v; mov.v4.u32 q2, %ntid; mov.b32 h, 0x50004; mov.b32 %r1, h;\n\
        add.u32 q2.x, q2.x, q2.w; st.global.v2.u32 [%rd1+32], {q2.x, %r1};";
    assert_eq!(body("", text, 10), [2, 1, 1, 9, 1, 2, 1, 11, 2, 0x50004]);
}

#[test]
fn vectors_are_parameters_and_results_of_functions() {
    let globals = ".func (.reg .v2 .u32 swapped) swap(.reg .v2 .u32 pair, .reg .u32 by) {\n\
        add.u32 pair.x, pair.x, by; mov.v2.u32 swapped, {pair.y, pair.x}; ret; }";
    let text = ".reg .v2 .u32 v; .reg .b16 %w<8>; mov.v2.u32 v, {1, 2}; call (v), swap, (v, 4);\n\
        st.global.v2.u32 [%rd1], v; mov.v8.u16 {%w0, %w1, %w2, %w3, %w4, %w5, %w6, %w7},\n\
        {0, 1, 2, 3, 4, 5, 6, 7}; mov.v8.u16 {%w7, %w6, %w5, %w4, %w3, %w2, %w1, %w0},\n\
        {%w0, %w1, %w2, %w3, %w4, %w5, %w6, %w7}; st.global.v2.u16 [%rd1+8], {%w0, %w6};";
    assert_eq!(body(globals, text, 3), [2, 5, 0x1_0007]);
}

/// As ZLUDA's vectors have it from hardware.
#[test]
fn a_subtraction_leaves_the_complement_of_its_borrow() {
    let text = "sub.cc.u32 %r1, 3, 2; addc.u32 %r2, 0, 0; sub.cc.u32 %r1, 2, 3;\n\
        addc.u32 %r3, 0, 0; sub.cc.u32 %r1, 0, 1; subc.u32 %r4, 7, 0; add.cc.u32 %r1, -1, 1;\n\
        subc.u32 %r5, 7, 0; st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};";
    assert_eq!(body("", text, 4), [1, 0, 6, 7]);
}

#[test]
fn a_product_of_16_bits_takes_a_carry_in() {
    let text = "mov.b16 %h1, 0x8765; mov.b16 %h2, -3; add.cc.u32 %r1, -1, 1;\n\
        madc.lo.u16 %h3, %h1, 0x101, %h2; madc.lo.s16 %h4, %h2, %h2, 7;\n\
        add.cc.u32 %r1, 1, 1; madc.lo.u16 %h5, %h1, 0x101, %h2; addc.u32 %r2, 0, 0;\n\
        cvt.u32.u16 %r3, %h3; cvt.u32.u16 %r4, %h4; cvt.u32.u16 %r5, %h5;\n\
        st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};";
    let product = 0x8765 * 0x101 - 3;
    assert_eq!(body("", text, 4), [0, (product + 1) & 0xffff, 17, product & 0xffff]);
}

#[test]
fn a_function_may_store_its_result_through_an_address() {
    let globals = ".func (.param .align 8 .b8 r[16]) pair(.param .u64 a) { .reg .b64 %x<3>;\n\
        ld.param.u64 %x1, [a]; mov.u64 %x2, r; st.param.u64 [%x2+8], %x1; st.param.u64 [r], 5;\n\
        ret; }";
    let text = "{ .param .u64 A; .param .align 8 .b8 R[16]; st.param.u64 [A], 7;\n\
        call (R), pair, (A); ld.param.v2.u64 {%rd2, %rd3}, [R];\n\
        st.global.v2.u64 [%rd1], {%rd2, %rd3}; }";
    assert_eq!(body(globals, text, 4), [5, 0, 7, 0]);
}

#[test]
fn a_guarded_vector_move_happens_or_does_not() {
    let text = ".reg .v2 .b32 v; mov.v2.b32 v, {3, 4}; mov.pred %p1, 0;\n\
        @%p1 mov.v2.b32 v, {5, 6}; st.global.v2.b32 [%rd1], v; @!%p1 mov.v2.b32 v, {7, 8};\n\
        st.global.v2.b32 [%rd1+8], v;";
    assert_eq!(body("", text, 4), [3, 4, 7, 8]);
}

#[test]
fn names_of_a_range_are_variables_too() {
    let text = "{ .param .u64 %P<2>; .local .b32 q<3>; st.local.b32 [q0], 4; st.local.b32 [q2], 5;\n\
        st.param.u64 [%P0], %rd1; st.param.u64 [%P1], 77; call store, (%P0, %P1);\n\
        ld.local.b32 %r1, [q0]; ld.local.b32 %r2, [q2]; st.global.v2.u32 [%rd1+8], {%r1, %r2}; }";
    let store = ".func store(.param .u64 to, .param .u64 what) { .reg .b64 %a, %b;\n\
        ld.param.u64 %a, [to]; ld.param.u64 %b, [what]; st.global.u64 [%a], %b; ret; }";
    assert_eq!(body(store, text, 4), [77, 0, 4, 5]);
}

#[test]
fn ranges_declare_variables_of_all_spaces() {
    let globals = ".global .align 8 .b32 g<3>; .const .u32 c<2>; .shared .align 16 .b32 s<3>, t;\n\
        .visible .global .u64 at = g2; .weak .global .v2 .u32 pairs<2>;";
    let text = "st.global.b32 [g0], 10; st.global.b32 [g1], 11; st.global.b32 [g2], 12;\n\
        st.shared.b32 [s0], 20; st.shared.b32 [s1], 21; st.shared.b32 [s2], 22;\n\
        st.shared.b32 [t], 23; st.global.v2.u32 [pairs1], {31, 32}; ld.global.u64 %rd2, [at];\n\
        ld.global.b32 %r1, [g0]; ld.global.b32 %r2, [g1]; ld.global.b32 %r3, [%rd2];\n\
        st.global.v4.u32 [%rd1], {%r1, %r2, %r3, 0}; ld.shared.b32 %r1, [s0];\n\
        ld.shared.b32 %r2, [s1]; ld.shared.b32 %r3, [s2]; ld.shared.b32 %r4, [t];\n\
        st.global.v4.u32 [%rd1+16], {%r1, %r2, %r3, %r4}; ld.const.u32 %r1, [c1];\n\
        mov.u64 %rd3, g1; cvt.u32.u64 %r2, %rd3; mov.u32 %r3, s1; or.b32 %r2, %r2, %r3;\n\
        and.b32 %r2, %r2, 7; ld.global.u32 %r3, [pairs1+4]; ld.global.u32 %r4, [pairs0+4];\n\
        st.global.v4.u32 [%rd1+32], {%r1, %r2, %r3, %r4};";
    assert_eq!(body(globals, text, 12), [10, 11, 12, 0, 20, 21, 22, 23, 0, 0, 32, 0]);
}

#[test]
fn ranges_of_a_function_are_its_own() {
    let globals = ".global .b32 g<2>; .func set() { .global .b32 g<2>; .shared .b32 s<2>;\n\
        st.global.b32 [g1], 1; st.shared.b32 [s1], 2; ret; }";
    let text = ".shared .b32 s<2>; .const .b32 c<2>; .global .u64 at = g1;\n\
        st.global.b32 [g1], 3; st.shared.b32 [s0], 4; st.shared.b32 [s1], 5; call set;\n\
        { .global .b32 g<3>; .global .u64 at = g2; st.global.b32 [g2], 6;\n\
        ld.global.u64 %rd2, [at]; ld.global.b32 %r4, [%rd2]; }\n\
        ld.global.u64 %rd2, [at]; ld.global.b32 %r1, [%rd2]; ld.shared.b32 %r2, [s0];\n\
        ld.shared.b32 %r3, [s1]; st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};\n\
        ld.const.b32 %r1, [c1]; st.global.b32 [%rd1+16], %r1;";
    assert_eq!(body(globals, text, 5), [3, 4, 5, 6, 0]);
}

#[test]
fn predicates_pass_to_functions_and_results_may_be_discarded() {
    let globals = ".func (.reg .pred r) both(.reg .pred a, .reg .pred b) {\n\
        and.pred r, a, !b; ret; }\n\
        .global .u32 calls; .func (.param .b32 r) count(.param .b32 by) { .reg .b32 %a, %b;\n\
        ld.param.b32 %a, [by]; atom.global.add.u32 %b, [calls], %a; st.param.b32 [r], %b; ret; }";
    let text = "mov.pred %p1, 1; mov.pred %p2, 0; call (%p3), both, (%p1, %p2);\n\
        call (%p4), both, (%p1, %p1); selp.u32 %r1, 1, 0, %p3; selp.u32 %r2, 1, 0, %p4;\n\
        call (_), count, (5); call (%r3), count, (1);\n\
        st.global.v2.u32 [%rd1], {%r1, %r2}; st.global.u32 [%rd1+8], %r3;";
    assert_eq!(body(globals, text, 3), [1, 0, 5]);
}

#[test]
fn set_writes_half_types() {
    let text = "mov.b32 %r1, 0x3c004000; mov.b32 %r2, 0x3c003c00; mov.b16 %h1, 0x3c00;\n\
        set.eq.f16x2.f16x2 %r3, %r1, %r2; set.gt.u32.f16x2 %r4, %r1, %r2;\n\
        set.ge.f16.f16 %h2, %h1, %h1; set.eq.f16.u32 %h3, %r1, %r1; mov.b32 %r5, {%h2, %h3};\n\
        mov.pred %p1, 0; set.eq.and.f16x2.f16x2 %r6, %r1, %r1, %p1;\n\
        st.global.v4.u32 [%rd1], {%r3, %r4, %r5, %r6};";
    assert_eq!(body("", text, 4), [0x3c00_0000, 0xffff, 0x3c00_3c00, 0]);
}

#[test]
fn constants_are_expressions_of_c() {
    let text = "mov.u32 %r1, 5 > 3 ? 2+3 : 7; mov.u32 %r2, (1<<4|3) == 19 && 0 != 1;\n\
        mov.u32 %r3, 4 <= 3 || 2 >= 3; mov.f32 %f1, 1.0+2.5*2.0; mov.b32 %r4, %f1;\n\
        st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};";
    assert_eq!(body("", text, 4), [5, 1, 0, 6.0f32.to_bits()]);
}

#[test]
fn shared_memory_that_is_only_declared_has_its_size() {
    let globals = ".extern .shared .align 8 .b8 pool[256]; .shared .align 4 .b32 other;";
    let text = "st.shared.u32 [pool+252], 3; st.shared.u32 [other], 4; ld.shared.u32 %r1, [pool+252];\n\
        mov.u32 %r2, %total_smem_size; st.global.v2.u32 [%rd1], {%r1, %r2};";
    assert_eq!(body(globals, text, 2), [3, 512]);
}
