//! Whole programs.

use super::{Arg, Bench};
use crate::{FaultKind, Launch};

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
fn a_const_variable_is_device_memory_to_those_who_have_its_address() {
    let text = ".version 7.5\n.target sm_75\n.address_size 64\n.const .align 4 .u32 table[2];\n\
        .visible .entry fill(.param .u64 at) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [at];\n\
        cvta.to.global.u64 %rd1, %rd1; st.global.u32 [%rd1+4], 77; ret; }\n\
        .visible .entry look(.param .u64 out) { .reg .b64 %rd<2>; .reg .b32 %r<2>;\n\
        ld.param.u64 %rd1, [out]; ld.const.u32 %r1, [table+4]; st.global.u32 [%rd1], %r1; ret; }";
    let mut bench = Bench::new(text);
    let table = bench.module.globals.iter().find(|g| g.name == "table").unwrap().address;
    bench.run("fill", 1, 1, &[Arg::U64(table)]);
    let out = bench.upload(&[0]);
    bench.run("look", 1, 1, &[Arg::U64(out)]);
    assert_eq!(bench.words(out, 1), [77]);
}

#[test]
fn shared_memory_is_handed_out_in_units() {
    // Compilers of reductions read whole vectors where the program asked for less.
    let text = ".version 7.5\n.target sm_75\n.address_size 64\n.extern .shared .align 8 .b8 s[];\n\
        .visible .entry k(.param .u64 out) { .reg .b64 %rd<4>; .reg .b32 %r<2>;\n\
        ld.param.u64 %rd1, [out]; st.shared.u64 [s+248], 5; ld.shared.u64 %rd2, [s+248];\n\
        st.global.u32 [%rd1], %rd2; mov.u32 %r1, %total_smem_size; st.global.u32 [%rd1+4], %r1;\n\
        mov.u32 %r1, %dynamic_smem_size; st.global.u32 [%rd1+8], %r1; ret; }";
    let mut bench = Bench::new(text);
    let out = bench.upload(&[0; 3]);
    let launch = Launch { shared_bytes: 8, ..bench.launch("k", 1, 1, &[Arg::U64(out)]) };
    bench.finish_ok(launch);
    assert_eq!(bench.words(out, 3), [5, 256, 8]);
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

/// A kernel that prints `format` with the arguments that `body` stores at `%rd2`.
fn printed(format: &str, body: &str, arguments: &str) -> (u32, Vec<u8>) {
    let bytes: Vec<String> = format.bytes().chain([0]).map(|b| b.to_string()).collect();
    let globals = format!(
        ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);\n\
         .global .align 1 .b8 text[] = {{{}}};",
        bytes.join(", ")
    );
    let body = format!(
        ".local .align 8 .b8 args[32];\nmov.u64 %rd2, args;\n{body}\n\
         cvta.local.u64 %rd3, %rd2;\n{arguments}\nmov.u64 %rd4, text;\n\
         {{ .param .b64 f; .param .b64 a; .param .b32 r;\nst.param.b64 [f], %rd4;\n\
         st.param.b64 [a], %rd3;\ncall.uni (r), vprintf, (f, a);\nld.param.b32 %r0, [r]; }}\n\
         st.global.u32 [%rd1], %r0;"
    );
    let mut bench = Bench::new(&super::faults::kernel(&globals, &body));
    let out = bench.upload(&[0]);
    bench.run("k", 1, 1, &[Arg::U64(out)]);
    (bench.words(out, 1)[0], crate::Device::take_output(&mut bench.device))
}

#[test]
fn kernels_print_as_c_does() {
    let body = "mov.u32 %r1, -7; st.local.u32 [%rd2], %r1; st.local.f64 [%rd2+8], 0d3FC999999999999A;\n\
                st.local.f64 [%rd2+16], 0d41DFFFFFFFC00000; st.local.u32 [%rd2+24], %r1;";
    let (count, text) = printed("<%+d|%g|%.3e|%hhx|%%>", body, "");
    assert_eq!(String::from_utf8_lossy(&text), "<-7|0.2|2.147e+09|f9|%>");
    assert_eq!(count, 4);
}

#[test]
fn a_hostile_format_costs_little() {
    let (_, text) = printed("%4000000000d%.4000000000f", "", "");
    assert!(text.len() < 1 << 16, "{} bytes", text.len());
    // The arguments end where the address space does.
    let (count, text) = printed("a%dz", "", "mov.u64 %rd3, -1;");
    assert_eq!((count, text.as_slice()), (0, &b"a"[..]));
}
///  Each thread sums 0..=its number over an array as long as that, through a function with a frame
/// of its own; even threads allocate once more before, and all do it again on the memory given
/// back.
const DYNAMIC_STACK: &str = ".func (.param .b32 s) sum (.param .b64 at, .param .b32 n) {
.reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>; .local .align 4 .b8 total[4];
ld.param.u64 %rd1, [at]; ld.param.u32 %r1, [n]; mov.u32 %r2, 0; st.local.u32 [total], %r2;
$L: ld.local.u32 %r3, [%rd1]; ld.local.u32 %r4, [total]; add.u32 %r4, %r4, %r3;
st.local.u32 [total], %r4; add.u64 %rd1, %rd1, 4; add.u32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, %r1; @%p1 bra $L; ld.local.u32 %r4, [total];
st.param.b32 [s], %r4; ret; }";

#[test]
fn the_stack_grows_by_what_a_thread_asks() {
    let body = "mov.u32 %r9, %laneid; mul.wide.u32 %rd9, %r9, 4; add.u64 %rd9, %rd1, %rd9;
        stacksave.u64 %rd8; and.b32 %r1, %r9, 1; setp.eq.u32 %p1, %r1, 1; mov.u32 %r7, 0;
        $AGAIN: @%p1 bra $ODD; alloca.u64 %rd2, 40, 16; st.local.u64 [%rd2+32], %rd9; $ODD:
        add.u32 %r2, %r9, 1; mul.wide.u32 %rd3, %r2, 4; alloca.u64 %rd4, %rd3;
        mov.u32 %r3, 0; mov.u64 %rd5, %rd4;
        $FILL: st.local.u32 [%rd5], %r3; add.u64 %rd5, %rd5, 4; add.u32 %r3, %r3, 1;
        setp.lt.u32 %p2, %r3, %r2; @%p2 bra $FILL;
        { .param .b64 a; .param .b32 n; .param .b32 r; st.param.b64 [a], %rd4;
        st.param.b32 [n], %r2; call.uni (r), sum, (a, n); ld.param.b32 %r0, [r]; }
        stackrestore.u64 %rd8; add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 4096;
        @%p3 bra $AGAIN; st.global.u32 [%rd9], %r0;";
    let mut bench = Bench::new(&super::faults::kernel(DYNAMIC_STACK, body));
    let out = bench.upload(&[0; 32]);
    bench.run("k", 1, 32, &[Arg::U64(out)]);
    let sums: Vec<u32> = (0..32).map(|n| n * (n + 1) / 2).collect();
    assert_eq!(bench.words(out, 32), sums);
}

#[test]
fn a_stack_without_end_is_a_fault() {
    let fault = |body: &str| {
        Bench::new(&super::faults::kernel("", body)).fault("k", 1, 32, &[Arg::U64(0)]).kind
    };
    assert_eq!(fault("$L: alloca.u64 %rd2, 1024; bra $L;"), FaultKind::StackOverflow);
    assert_eq!(fault("alloca.u64 %rd2, 0xffffffffffffffff;"), FaultKind::StackOverflow);
    let behind = "alloca.u64 %rd2, 64, 64; st.local.u32 [%rd2+64], 1;";
    assert_eq!(fault(behind), FaultKind::IllegalAddress);
}

#[test]
fn shared_variables_have_places_whichever_instruction_names_them() {
    // Each variable is named by one instruction only; all must lie apart.
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let declared: String = names.map(|n| format!(".shared .align 4 .b8 {n}[4];\n")).concat();
    let body = format!(
        "{declared}mov.u32 %r1, a; add.cc.u32 %r2, b, 0; mad.lo.cc.u32 %r3, 1, 1, c;\n\
         sub.u32 %r3, %r3, 1; mov.b64 %rd2, {{d, d}}; cvt.u32.u64 %r4, %rd2;\n\
         shl.b32 %r5, e, 0; lop3.b32 %r6, f, f, f, 0xff; lop3.b32 %r6, f, %r1, %r1, 0xf0;\n\
         atom.global.exch.b32 %r0, [%rd1+24], g;\n\
         st.global.v4.u32 [%rd1], {{%r1, %r2, %r3, %r4}}; st.global.v2.u32 [%rd1+16], {{%r5, %r6}};"
    );
    let mut bench = Bench::new(&super::faults::kernel("", &body));
    let out = bench.upload(&[99; 8]);
    bench.run("k", 1, 1, &[Arg::U64(out)]);
    let mut places = bench.words(out, 7);
    places.sort_unstable();
    assert_eq!(places, (0..7).map(|n| 4 * n).collect::<Vec<u32>>());
    assert_eq!(bench.module.functions[0].shared_bytes, 28);
}

#[test]
fn hostile_modules_get_a_layout_that_is_found_fast() {
    const HEAD: &str = ".version 7.5\n.target sm_75\n.address_size 64\n";
    let n = 10_000;
    // Kernels times functions are more steps than anybody has time for: what is not known to be
    // unused counts as used.
    let call = |i: u32| format!(".func f{} {{ call f{i}; ret; }}\n", i + 1);
    let kernel = |i: u32| format!(".visible .entry k{i}() {{ call f{n}; ret; }}\n");
    let text: String = (0..n).map(call).chain((0..n).map(kernel)).collect();
    let last = ".shared .b32 unused[4];\n.func f0 { .shared .b32 used[4]; ret; }\n";
    let bench = Bench::new(&format!("{HEAD}{last}{text}"));
    assert_eq!(bench.module.functions[0].shared_bytes, 32);
    // So are pairs of variables: none shares its place with another.
    let declared: String = (0..=n).map(|i| format!(".shared .b8 s{i}[2];\n")).collect();
    let used: String = (0..n).map(|i| format!("mov.u32 %r, s{i};\n")).collect();
    let entries = format!(
        ".visible .entry k() {{ .reg .b32 %r; {used} ret; }}\n\
         .visible .entry other() {{ .reg .b32 %r; mov.u32 %r, s{n}; ret; }}"
    );
    let bench = Bench::new(&format!("{HEAD}{declared}{entries}"));
    let bytes: Vec<u32> = bench.module.functions.iter().map(|f| f.shared_bytes).collect();
    assert_eq!(bytes, [2 * n, 2 * n + 2]);
}
