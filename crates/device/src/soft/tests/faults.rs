//! What a kernel does wrong is a fault of its operation, whatever it does.

use super::super::{Clock, FrameStore, MemoryConfig, SoftConfig, SoftDevice};
use super::{Arg, Bench, finish};
use crate::{Device, FaultKind, LocalFrames, Outcome};

/// A kernel `k(u64 p)` with a body that may use `%rd1` = p, `%r0..9`, `%rd2..9`, `%p0..9`.
pub(super) fn kernel(globals: &str, body: &str) -> String {
    format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n{globals}\n\
         .visible .entry k(.param .u64 p)\n{{\n.reg .pred %p<10>;\n.reg .b16 %h<10>;\n\
         .reg .b32 %r<10>;\n.reg .b64 %rd<10>;\n.reg .f32 %f<10>;\n.reg .f64 %fd<10>;\n\
         ld.param.u64 %rd1, [p];\n{body}\nret;\n}}\n"
    )
}

fn fault_of(globals: &str, body: &str, p: u64) -> FaultKind {
    Bench::new(&kernel(globals, body)).fault("k", 1, 32, &[Arg::U64(p)]).kind
}

#[test]
fn wild_addresses() {
    let body = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.u64 %rd3, %rd1, %rd2;\n\
                ld.global.u64 %rd4, [%rd3];";
    for at in [0, 8, 1 << 20, 1 << 46, 1 << 47, u64::MAX - 7, 1 << 63, 0x0fff_ffff_ffff_fff8] {
        assert_eq!(fault_of("", body, at), FaultKind::IllegalAddress, "{at:#x}");
    }
}

#[test]
fn spaces_have_ends() {
    let shared = ".shared .align 8 .b8 pool[64];";
    let at = |a: &str| format!("mov.u32 %r1, {a}; ld.shared.u32 %r2, [%r1];");
    assert_eq!(
        fault_of(shared, &format!("mov.u32 %r2, pool; {}", at("256")), 0),
        FaultKind::IllegalAddress
    );
    assert_eq!(
        fault_of(shared, &format!("mov.u32 %r2, pool; {}", at("0xfffffffc")), 0),
        FaultKind::IllegalAddress
    );
    assert_eq!(
        fault_of(shared, &format!("mov.u32 %r2, pool; {}", at("2")), 0),
        FaultKind::MisalignedAddress
    );
    let local = ".local .align 8 .b8 mine[64]; mov.u64 %rd2, mine; st.local.u32 [%rd2+4096], 1;";
    assert_eq!(fault_of("", local, 0), FaultKind::IllegalAddress);
    let generic = "mov.u64 %rd2, 0x0001000000000000; st.global.u32 [%rd2], 1;";
    assert_eq!(fault_of(shared, generic, 0), FaultKind::InvalidAddressSpace);
}

#[test]
fn misaligned_and_freed() {
    let mut bench = Bench::new(&kernel("", "st.global.u32 [%rd1], 1;"));
    let address = bench.alloc(64);
    let fault = bench.fault("k", 1, 1, &[Arg::U64(address + 2)]);
    assert_eq!((fault.kind, fault.address), (FaultKind::MisalignedAddress, Some(address + 2)));
    bench.run("k", 1, 1, &[Arg::U64(address)]);
    bench.device.free(address).unwrap();
    let fault = bench.fault("k", 1, 1, &[Arg::U64(address)]);
    assert_eq!((fault.kind, fault.address), (FaultKind::IllegalAddress, Some(address)));
    for _ in 0..10 {
        let other = bench.alloc(64);
        assert_ne!(other, address, "addresses are reused late");
        bench.device.free(other).unwrap();
    }
}

#[test]
fn endless_recursion_and_wild_calls() {
    let text = ".version 7.5\n.target sm_75\n.address_size 64\n\
        .func deep()\n{\n.local .align 4 .b8 big[1024];\ncall.uni deep, ();\nret;\n}\n\
        .visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [p];\n\
        setp.ne.u64 %p1, %rd1, 0;\n@%p1 bra $WILD;\ncall.uni deep, ();\nret;\n$WILD:\n\
        { proto: .callprototype _ ();\ncall %rd1, (), proto; }\nret;\n}\n"
        .replace(".reg .b64 %rd<3>;", ".reg .b64 %rd<3>;\n.reg .pred %p<2>;");
    let mut bench = Bench::new(&text);
    assert_eq!(bench.fault("k", 1, 1, &[Arg::U64(0)]).kind, FaultKind::StackOverflow);
    for pointer in [1, 0x1234_5678, 4 << 48, (4 << 48) + 1, (4 << 48) + 99, u64::MAX] {
        let fault = bench.launch("k", 1, 1, &[Arg::U64(pointer)]);
        bench.start(fault);
        let outcome = finish(&mut bench.device).remove(0);
        let Outcome::Fault(fault) = outcome else { panic!("{pointer:#x}: {outcome:?}") };
        let kinds = [FaultKind::InvalidPc, FaultKind::StackOverflow];
        assert!(kinds.contains(&fault.kind), "{pointer:#x}: {fault:?}");
    }
}

#[test]
fn assertions_say_what_failed() {
    let text = r#".version 7.5
.target sm_75
.address_size 64
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 what[6] = {120, 32, 62, 32, 48, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.visible .entry k(.param .u64 p)
{
    .reg .b64 %rd<4>;
    mov.u64 %rd1, what;
    cvta.global.u64 %rd1, %rd1;
    mov.u64 %rd2, file;
    cvta.global.u64 %rd2, %rd2;
    {
    .param .b64 param0; st.param.b64 [param0], %rd1;
    .param .b64 param1; st.param.b64 [param1], %rd2;
    .param .b32 param2; st.param.b32 [param2], 7;
    .param .b64 param3; st.param.b64 [param3], %rd2;
    .param .b64 param4; st.param.b64 [param4], 1;
    call.uni __assertfail, (param0, param1, param2, param3, param4);
    }
    ret;
}
"#;
    let fault = Bench::new(text).fault("k", 1, 1, &[Arg::U64(0)]);
    assert_eq!(fault.kind, FaultKind::Assert);
    assert_eq!(fault.detail, "assertion `x > 0` failed in a.cu at a.cu:7");
}

#[test]
fn printed_text_is_collected() {
    let text = r"
.version 7.5
.target sm_75
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.global .align 1 .b8 format[10] = {105, 61, 37, 100, 32, 37, 46, 50, 102, 0};
.visible .entry k(.param .u64 p)
{
    .local .align 8 .b8 args[16];
    .reg .b64 %rd<5>;
    .reg .b32 %r<3>;
    mov.u64 %rd3, args;
    cvta.local.u64 %rd1, %rd3;
    mov.u32 %r1, %tid.x;
    st.local.u32 [%rd3], %r1;
    mov.u64 %rd4, 0x3ff8000000000000;
    st.local.u64 [%rd3+8], %rd4;
    mov.u64 %rd2, format;
    {
    .param .b64 param0; st.param.b64 [param0], %rd2;
    .param .b64 param1; st.param.b64 [param1], %rd1;
    .param .b32 ret0;
    call.uni (ret0), vprintf, (param0, param1);
    ld.param.b32 %r2, [ret0];
    }
    ret;
}
";
    let mut bench = Bench::new(text);
    bench.run("k", 1, 2, &[Arg::U64(0)]);
    assert_eq!(bench.device.take_output(), b"i=0 1.50i=1 1.50");
}

/// A device of its own, with or without exact bounds.
fn bounded(text: &str, exact_bounds: bool) -> Bench {
    let memory_bytes = 1 << 20;
    let memory = MemoryConfig {
        store: FrameStore::local(memory_bytes).unwrap(),
        source: Box::new(LocalFrames::new(memory_bytes)),
        base: 1 << 40,
        len: 1 << 30,
        window: None,
        exact_bounds,
    };
    let config = SoftConfig { memory, memory_bytes, clock: Clock::Real, page: None };
    let mut device = SoftDevice::new(config);
    let module = device.load(&[text.as_bytes()]).unwrap();
    Bench { device, module }
}

#[test]
fn exact_bounds_are_at_the_last_byte_asked_for() {
    let text = kernel("", "ld.global.u8 %r2, [%rd1];");
    let shared = kernel(
        ".shared .align 8 .b8 pool[60];",
        "cvt.u32.u64 %r1, %rd1; mov.u32 %r2, pool; add.u32 %r1, %r1, %r2; ld.shared.u8 %r2, [%r1];",
    );
    for (exact, inside) in [(false, 255), (true, 59)] {
        let mut bench = bounded(&text, exact);
        let address = bench.alloc(60);
        bench.run("k", 1, 1, &[Arg::U64(address + inside)]);
        let fault = bench.fault("k", 1, 1, &[Arg::U64(address + inside + 1)]);
        assert_eq!(fault.kind, FaultKind::IllegalAddress);
        let mut bench = bounded(&shared, exact);
        bench.run("k", 1, 1, &[Arg::U64(inside)]);
        let fault = bench.fault("k", 1, 1, &[Arg::U64(inside + 1)]);
        assert_eq!(fault.kind, FaultKind::IllegalAddress);
    }
}

#[test]
fn lanes_of_one_warp_take_turns_at_a_lock() {
    // Every lane spins until it holds the lock; the holder leaves the loop while others spin on.
    let body = "$SPIN:\natom.global.exch.b32 %r1, [%rd1], 1;\nsetp.ne.u32 %p1, %r1, 0;\n\
                @%p1 bra $SPIN;\nld.global.u32 %r2, [%rd1+4];\nadd.u32 %r2, %r2, 1;\n\
                st.global.u32 [%rd1+4], %r2;\nmembar.gl;\natom.global.exch.b32 %r1, [%rd1], 0;";
    let mut bench = Bench::new(&kernel("", body));
    let address = bench.upload(&[0, 0]);
    bench.run("k", 3, 96, &[Arg::U64(address)]);
    assert_eq!(bench.words(address, 2), [0, 288]);
}

#[test]
fn blocks_that_wait_for_later_blocks() {
    // A barrier of the whole grid: every block adds 1 and waits until all have.
    let body = "atom.global.add.u32 %r1, [%rd1], 1;\n$WAIT:\nld.volatile.global.u32 %r2, [%rd1];\n\
                mov.u32 %r3, %nctaid.x;\nsetp.lt.u32 %p1, %r2, %r3;\n@%p1 bra $WAIT;";
    let mut bench = Bench::new(&kernel("", body));
    let address = bench.upload(&[0]);
    bench.run("k", 6, 1, &[Arg::U64(address)]);
    assert_eq!(bench.words(address, 1), [6]);
}
