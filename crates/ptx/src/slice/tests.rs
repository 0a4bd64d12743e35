use super::*;

const HEAD: &str = ".version 7.5\n.target sm_75\n.address_size 64\n";

fn sliced(rest: &str) -> Sliced {
    rewrite(format!("{HEAD}{rest}").as_bytes()).unwrap()
}

fn refusal(rest: &str) -> Refusal {
    sliced(rest).kernels["k"].clone().unwrap_err()
}

#[test]
fn the_original_stays_and_a_copy_follows() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u32 a // last\n)\n.maxntid 64\n{{ .reg .b32 %r<3>; \
         mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %ctaid.y, %nctaid.x, %r1; // end\n}}"
    );
    let sliced = rewrite(text.as_bytes()).unwrap();
    assert!(sliced.text.starts_with(text.as_bytes()));
    let kernel = sliced.kernels["k"].as_ref().unwrap();
    assert_eq!((kernel.range_offset, kernel.param_bytes, kernel.shared_bytes), (4, 28, 0));
    let module = crate::parse(&sliced.text).unwrap();
    let (_, piece) = module.kernel(&kernel.name).unwrap();
    assert_eq!(piece.bounds.max_threads, Some([64, 1, 1]));
    let added = String::from_utf8(sliced.text[text.len()..].to_vec()).unwrap();
    assert!(added.contains("mad.lo.u32 %r2, %weft_y, %weft_nx, %r1"), "{added}");
}

#[test]
fn functions_that_read_ids_are_copied_with_their_callers() {
    let text = ".func (.param .b32 r) leaf() { .reg .b32 %r<2>; mov.u32 %r1, %ctaid.z; \
                st.param.b32 [r], %r1; ret; }\n\
                .func (.param .b32 r) middle() { .reg .b32 %r<2>; { .param .b32 v; \
                call.uni (v), leaf, (); ld.param.b32 %r1, [v]; } st.param.b32 [r], %r1; ret; }\n\
                .func other() { ret; }\n\
                .visible .entry k() { call.uni middle_is_not_called_here_other, (); ret; }";
    let text = text.replace("middle_is_not_called_here_other", "other");
    assert_eq!(sliced(&text).kernels["k"].as_ref().unwrap().shared_bytes, 0);
    let text = text.replace("call.uni other, ()", "{ .param .b32 v; call.uni (v), middle, (); }");
    let sliced = sliced(&text);
    assert!(sliced.kernels["k"].as_ref().unwrap().shared_bytes > 0);
    let added = String::from_utf8(sliced.text).unwrap();
    assert!(added.contains("call.uni (v), leaf$weft_piece, ()"), "{added}");
    assert!(added.contains("call.uni (v), middle$weft_piece, ()"), "{added}");
    assert!(!added.contains("other$weft_piece"), "{added}");
}

#[test]
fn what_belongs_to_the_launch_is_refused() {
    let body = |code: &str| {
        format!(".visible .entry k() {{ .reg .b64 %d<3>; .reg .b32 %r<3>; {code} ret; }}")
    };
    assert_eq!(refusal(&body("mov.u64 %d1, %gridid;")), Refusal::GridId);
    assert_eq!(refusal(&body("mov.u32 %r1, %clusterid.x;")), Refusal::Cluster);
    assert_eq!(refusal(&body("mov.u32 %r1, %envreg1;")), Refusal::GridSync);
    assert_eq!(refusal(&body(".global .b32 count;")), Refusal::OwnState("k".into()));
    let wait = ".reg .pred %p;\nL: ld.volatile.global.u32 %r1, [%d1];\n\
                setp.ne.u32 %p, %r1, 1;\n@%p bra L;";
    let text = body(wait);
    assert_eq!(refusal(&text), Refusal::Waits { function: "k".into(), line: 7 });
    let large = ".visible .entry k(.param .b8 a[4090]) { ret; }";
    assert_eq!(refusal(large), Refusal::Parameters);
    let extern_call = ".extern .func elsewhere();\n.visible .entry k() { call elsewhere, (); }";
    assert_eq!(refusal(extern_call), Refusal::Elsewhere("elsewhere".into()));
}

#[test]
fn a_function_behind_a_pointer_must_not_read_ids() {
    let text = |code: &str| {
        format!(
            ".func f() {{ .reg .b32 %r<2>; {code} ret; }}\n\
             .global .u64 table[1] = {{f}};\n\
             .visible .entry k() {{ .reg .b64 %d<2>; ld.global.u64 %d1, [table]; \
             P: .callprototype _ (); call %d1, (), P; ret; }}"
        )
    };
    assert_eq!(sliced(&text("")).kernels["k"].as_ref().err(), None);
    assert_eq!(refusal(&text("mov.u32 %r1, %nctaid.x;")), Refusal::Pointer("f".into()));
}

#[test]
fn refused_and_sliced_kernels_live_side_by_side() {
    let text = ".visible .entry k() { .reg .b64 %d; mov.u64 %d, %gridid; ret; }\n\
                .visible .entry other() { ret; }";
    let sliced = sliced(text);
    assert_eq!(sliced.kernels["k"], Err(Refusal::GridId));
    assert_eq!(sliced.kernels["other"].as_ref().err(), None);
    assert_eq!(plan(format!("{HEAD}{text}").as_bytes()).unwrap()["k"], Err(Refusal::GridId));
}

#[test]
fn pieces_cover_the_grid_once() {
    for grid in [[7, 1, 1], [3, 4, 5], [1, 1, 9], [65_535, 2, 2]] {
        let total: u64 = grid.iter().map(|n| u64::from(*n)).product();
        for blocks in [1, 2, 5, 64, u32::MAX] {
            if total > 1000 && blocks < 64 {
                continue;
            }
            let mut next = 0;
            for piece in Piece::all(grid, blocks) {
                assert_eq!(piece.first, next);
                assert!((1..=blocks).contains(&piece.blocks));
                let [x, y, z] = piece.place().map(u64::from);
                let [nx, ny, _] = grid.map(u64::from);
                assert_eq!(x + nx * (y + ny * z), piece.first);
                next += u64::from(piece.blocks);
            }
            assert_eq!(next, total);
        }
    }
}
