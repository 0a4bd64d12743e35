//! What bad text says: the place, the line and the reason.

/// Parses a body of a kernel with registers of each kind, and gives the error.
fn body_error(line: &str) -> String {
    let text = format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n.entry k (.param .u64 p) {{\n\
         .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .f32 %f<4>;\n\
         .param .b32 slot; .local .b8 depot[8];\n{line}\nret; }}"
    );
    error(&text)
}

fn error(text: &str) -> String {
    weft_ptx::parse(text.as_bytes()).err().map_or_else(|| "accepted".to_owned(), |e| e.to_string())
}

#[test]
fn unknown_instructions_are_named_with_their_line() {
    for (line, name) in [
        ("frobnicate.u32 %r1, %r2;", "frobnicate.u32"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f3}, [p, {%f1, %f2}];", "tex.2d.v4.f32.f32"),
        ("mapa.u64 %rd1, %rd2, %r1;", "mapa.u64"),
        ("add.f128 %r1, %r2, %r3;", "add.f128"),
        ("add.sat.u32 %r1, %r2, %r3;", "add.sat.u32"),
        ("setp.ltu.s32 %p1, %r1, %r2;", "setp.ltu.s32"),
        ("cvt.rn.s32.f32 %r1, %f1;", "cvt.rn.s32.f32"),
        ("ld.global.pred %p1, [%rd1];", "ld.global.pred"),
        ("ld.shared::cluster.u32 %r1, [%rd1];", "ld.shared::cluster.u32"),
        ("red.exch.b32 [%rd1], %r1;", "red.exch.b32"),
        ("cvt.rn.satfinite.f16.f32 %h1, %f1;", "cvt.rn.satfinite.f16.f32"),
        ("add.rz.f32x2 %rd1, %rd2, %rd3;", "add.rz.f32x2"),
        ("st.global.v8.b128 [%rd1], %rd1;", "st.global.v8.b128"),
        (
            "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32 {}, {}, {}, {};",
            "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32",
        ),
        (
            "mma.sync.aligned.m8n8k32.row.row.s32.s4.s4.s32 {}, {}, {}, {};",
            "mma.sync.aligned.m8n8k32.row.row.s32.s4.s4.s32",
        ),
        (
            "wmma.load.a.sync.aligned.col.m8n8k32.u4 {%r1}, [%rd1];",
            "wmma.load.a.sync.aligned.col.m8n8k32.u4",
        ),
        ("add.s4 %r1, %r2, %r3;", "add.s4"),
        ("madc.hi.u16 %h1, %h2, %h3, %h1;", "madc.hi.u16"),
        ("madc.lo.cc.u16 %h1, %h2, %h3, %h1;", "madc.lo.cc.u16"),
        ("atom.global.v2.f32.add {%f1, %f2}, [%rd1], {%f1, %f2};", "atom.global.v2.f32.add"),
    ] {
        let expected = format!("line 7: unknown instruction {name}: `{line}`");
        assert_eq!(body_error(line), expected);
    }
}

#[test]
fn operands_must_fit() {
    for (line, message) in [
        ("mov.u32 %r1, %rd1;", "a B64 register where B32 is needed"),
        ("add.f32 %f1, %f2, 1;", "an integer constant in a floating-point instruction"),
        ("add.s32 %r1, %r2, 1.5;", "a floating-point constant in an instruction of another type"),
        ("mov.u32 %r9, 1;", "undefined name %r9"),
        ("bra nowhere;", "undefined name nowhere"),
        ("ld.global.v2.u32 %r1, [%rd1];", "1 destinations of a load of 2"),
        ("st.param.b64 [p], %rd1;", "a store to read-only memory"),
        ("ld.param.u64 %rd1, [p+1];", "an access beyond a parameter or local variable"),
        ("st.local.b32 [depot+6], %r1;", "an access beyond a parameter or local variable"),
        ("ld.shared.b32 %r1, [depot];", "depot lies in another space"),
        ("mov.b64 %rd1, {%h1, %h2};", "a B16 register where B32 is needed"),
        ("call k;", "a call of a kernel"),
        ("call %rd1, ();", "an indirect call needs a prototype or list of targets"),
        ("mov.u32 %r1, %r2, %r3;", "expected `;`, found `,`"),
        ("mov.u32 %r1, %r2", "expected `;`, found `ret`"),
        ("bar.sync 16;", "not between 0 and 15"),
        (".reg .b32 %r<2>;", "%r is declared twice"),
        (".shared .b32 s<2>[4];", "expected `;`, found `[`"),
        (".shared .b32 s<2>; mov.u32 %r1, s2;", "undefined name s2"),
        ("L: L: ret;", "L is declared twice"),
    ] {
        assert_eq!(body_error(line), format!("line 7: {message}: `{line}`"));
    }
}

#[test]
fn headers_and_directives() {
    for (text, message) in [
        ("", "line 1: expected `.version`, found the end of the text: ``"),
        (".version 99.0", "line 1: unsupported PTX version `0d4058C00000000000`: `.version 99.0`"),
        (".version 7.5\n.target sm_130", "line 2: unsupported target sm_130: `.target sm_130`"),
        (
            ".version 7.5\n.address_size 32",
            "line 2: unsupported address size 32: `.address_size 32`",
        ),
        (".version 7.5\n.bogus x;", "line 2: unknown directive .bogus: `.bogus x;`"),
        (
            ".version 7.5\n.global .texref t;",
            "line 2: unsupported type .texref: `.global .texref t;`",
        ),
        (
            ".version 7.5\n.global .u32 a[2] = {1, 2, 3};",
            "line 2: too many elements in an initialiser: `.global .u32 a[2] = {1, 2, 3};`",
        ),
        (".version 7.5\n.global .u64 a = b;", "line 2: undefined name b: `.global .u64 a = b;`"),
        (
            ".version 7.5\n.global .align 3 .u64 a;",
            "line 2: alignment 3 is not a power of two up to 4096: `.global .align 3 .u64 a;`",
        ),
        (
            ".version 7.5\n.global .u32 a<2> = 1;",
            "line 2: expected `;`, found `=`: `.global .u32 a<2> = 1;`",
        ),
        (
            ".version 7.5\n.global .u32 a<3>, a1;",
            "line 2: a1 is declared twice: `.global .u32 a<3>, a1;`",
        ),
        (
            ".version 7.5\n.entry k () {",
            "line 2: expected a statement, found the end of the text: `.entry k () {`",
        ),
    ] {
        assert_eq!(error(text), message);
    }
}

#[test]
fn hostile_sizes_are_refused() {
    let head = ".version 7.5\n.target sm_75\n.address_size 64\n";
    let deep = |open: &str, n: usize| open.repeat(n);
    for text in [
        format!("{head}.entry k () {{ {}", deep("{", 1000)),
        format!("{head}.global .u32 a = {};", deep("(", 100_000)),
        format!("{head}.global .u32 a = {}1;", deep("-", 100_000)),
        format!("{head}.global .u32 a[2] = {};", deep("{", 100_000)),
        format!("{head}.global .u32 a[3][100000000] = {{{{}}, {{}}, {{1}}}};"),
        format!("{head}.global .b8 a[4294967296][4294967296];"),
        format!("{head}.global .b32 a<4294967295>;"),
        format!("{head}.global .b32 {}<1000000>;", "a".repeat(10)),
        format!("{head}.entry k () {{ .shared .b32 a<4294967295>; ret; }}"),
        format!("{head}.entry k () {{ {} ret; }}", "{ .shared .b8 a<9999>; }".repeat(99)),
        format!("{head}.entry k (.param .b8 a[40000]) {{ ret; }}"),
        format!("{head}.entry k () {{ .local .b8 a[1000000]; ret; }}"),
        format!("{head}.entry k () {{ {} ret; }}", ".local .b8 a[500000]; {".repeat(2)),
    ] {
        assert!(error(&text).contains("exceeds the limit"), "{}", error(&text));
    }
}

#[test]
fn a_range_of_registers_costs_nothing_until_it_is_used() {
    let text =
        ".version 7.5\n.entry k () { .reg .b32 %r<4294967295>; mov.u32 %r4294967294, 1; ret; }";
    let module = weft_ptx::parse(text.as_bytes()).unwrap();
    assert_eq!(module.functions[0].registers.len(), 1);
}
