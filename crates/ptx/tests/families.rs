//! One or more instructions of each family, as the PTX ISA document writes them, and their IR.
#![expect(clippy::unwrap_used, reason = "a panic is the report of a test")]

use weft_ptx::ir::{
    Address, AtomOp, BarrierAction, Base, BitBinaryOp, CacheHint, Combine, CompareOp, CvtRounding,
    Dim, FloatAccuracy, FloatBinaryOp, FloatType, FloatUnaryOp, Guard, IntBinaryOp, IntType,
    MatrixLayout, MatrixShape, MemOrder, MulMode, Op, Operand, Pred, Reg, Rounding, ScalarType,
    Scope, Space, SpecialReg, VideoOp, VideoOperand, Width,
};

const P: u32 = 0;
const H: u32 = 4;
const R: u32 = 8;
const L: u32 = 12;
const F: u32 = 16;
const D: u32 = 20;

/// Parses one instruction in a kernel whose registers are numbered as the constants above say.
fn instr(line: &str) -> weft_ptx::ir::Instr {
    let declare = |ty: &str, name: &str| {
        let names: Vec<String> = (0..4).map(|i| format!("{name}{i}")).collect();
        format!(".reg .{ty} {};", names.join(", "))
    };
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.shared .b32 tile[4];\n\
         .entry k (.param .u64 x, .param .u32 n) {{ {}{}{}{}{}{} {line} ret; }}",
        declare("pred", "p"),
        declare("b16", "h"),
        declare("b32", "r"),
        declare("b64", "l"),
        declare("f32", "f"),
        declare("f64", "d"),
    );
    let module = weft_ptx::parse(text.as_bytes()).unwrap();
    module.functions[0].body.as_ref().unwrap()[0].clone()
}

fn op(line: &str) -> Op {
    instr(line).op
}

fn reg(base: u32, index: u32) -> Operand {
    Operand::Reg(Reg(base + index))
}

#[test]
fn guards() {
    assert_eq!(instr("@!p1 ret;").guard, Some(Guard { reg: Reg(P + 1), negated: true }));
}

#[test]
fn moves() {
    let (width, dst) = (Width::B32, Reg(R));
    assert_eq!(
        op("mov.u32 r0, %tid.x;"),
        Op::Mov { width, dst, src: Operand::Special(SpecialReg::Tid(Dim::X)) }
    );
    assert_eq!(op("mov.s32 r0, -1;"), Op::Mov { width, dst, src: Operand::Imm(0xFFFF_FFFF) });
    let width = Width::B64;
    let src = Operand::Imm(0x3FF0_0000_0000_0000);
    assert_eq!(op("mov.f64 d0, 0f3F800000;"), Op::Mov { width, dst: Reg(D), src });
    let halves = vec![reg(H, 0), reg(H, 1)];
    assert_eq!(op("mov.b32 r0, {h0, h1};"), Op::Pack { element: Width::B16, dst, src: halves });
    assert_eq!(
        op("mov.b64 {r0, _}, l0;"),
        Op::Unpack { element: Width::B32, dst: vec![Some(Reg(R)), None], src: reg(L, 0) }
    );
}

#[test]
fn loads_and_stores() {
    let (order, hint, scope) = (MemOrder::Weak, CacheHint::Default, Scope::Gpu);
    assert_eq!(
        op("ld.param.u32 r0, [n];"),
        Op::Ld {
            space: Space::Param,
            ty: ScalarType::U32,
            order,
            scope,
            hint,
            dst: vec![Some(Reg(R))],
            addr: Address { base: Base::KernelParam, offset: 8 },
        }
    );
    assert_eq!(
        op("ld.acquire.sys.global.v2.f32 {f0, f1}, [l0+-8];"),
        Op::Ld {
            space: Space::Global,
            ty: ScalarType::F32,
            order: MemOrder::Acquire,
            scope: Scope::Sys,
            hint,
            dst: vec![Some(Reg(F)), Some(Reg(F + 1))],
            addr: Address { base: Base::Reg(Reg(L)), offset: -8 },
        }
    );
    let Op::St { space, addr, src, .. } = op("st.shared.u8 [tile+3], 258;") else { panic!() };
    assert!(matches!(addr, Address { base: Base::Variable(_), offset: 3 }));
    assert_eq!((space, src), (Space::Shared, vec![Operand::Imm(2)]));
}

#[test]
fn atomics() {
    let Op::Atom { op: kind, ty, order, scope, dst, b, c, .. } =
        op("atom.acq_rel.sys.global.cas.b32 r0, [l0], r1, 7;")
    else {
        panic!()
    };
    assert_eq!(
        (kind, ty, order, scope),
        (AtomOp::Cas, ScalarType::B32, MemOrder::AcqRel, Scope::Sys)
    );
    assert_eq!((dst, b, c), (Some(Reg(R)), reg(R, 1), Some(Operand::Imm(7))));
    assert!(matches!(op("red.global.add.f32 [l0], f0;"), Op::Atom { dst: None, ftz: true, .. }));
}

#[test]
fn integers() {
    let (dst, a, b, c) = (Reg(R), reg(R, 1), reg(R, 2), reg(R, 3));
    let (sat, relu) = (true, false);
    let ty = IntType::S32;
    assert_eq!(
        op("add.sat.s32 r0, r1, r2;"),
        Op::IntBinary { op: IntBinaryOp::Add, ty, sat, relu, dst, a, b }
    );
    assert_eq!(
        op("mad.wide.s32 l0, r1, r2, l1;"),
        Op::Mad { mode: MulMode::Wide, ty, sat: false, dst: Reg(L), a, b, c: reg(L, 1) }
    );
    assert_eq!(
        op("madc.hi.cc.s32 r0, r1, r2, r3;"),
        Op::MadCarry { mode: MulMode::Hi, ty, carry_in: true, carry_out: true, dst, a, b, c }
    );
    assert_eq!(
        op("subc.u32 r0, r1, r2;"),
        Op::AddCarry {
            subtract: true,
            width: Width::B32,
            carry_in: true,
            carry_out: false,
            dst,
            a,
            b,
        }
    );
    assert_eq!(
        op("dp4a.u32.s32 r0, r1, r2, r3;"),
        Op::Dp4a { a_signed: false, b_signed: true, dst, a, b, c }
    );
}

#[test]
fn bits() {
    let (dst, a, b, c) = (Reg(R), reg(R, 1), reg(R, 2), reg(R, 3));
    assert_eq!(
        op("xor.pred p0, p1, p2;"),
        Op::BitBinary {
            op: BitBinaryOp::Xor,
            width: Width::Pred,
            dst: Reg(P),
            a: reg(P, 1),
            b: reg(P, 2),
        }
    );
    assert_eq!(
        op("lop3.b32 r0, r1, r2, r3, 0x3f;"),
        Op::Lop3 { table: 0x3F, dst: Some(dst), a, b, c, bool: None }
    );
    assert_eq!(
        op("shr.b64 l0, l1, 4;"),
        Op::Shr { ty: IntType::U64, dst: Reg(L), a: reg(L, 1), b: Operand::Imm(4) }
    );
    assert_eq!(
        op("bfi.b32 r0, r1, r2, 8, r3;"),
        Op::Bfi { width: Width::B32, dst, a, b, c: Operand::Imm(8), d: c }
    );
}

#[test]
fn floats() {
    let (dst, a, b) = (Reg(F), reg(F, 1), reg(F, 2));
    let (ty, nan, xorsign_abs) = (FloatType::F32, false, false);
    assert_eq!(
        op("add.rz.ftz.sat.f32 f0, f1, f2;"),
        Op::FloatBinary {
            op: FloatBinaryOp::Add,
            ty,
            accuracy: FloatAccuracy::Rounded(Rounding::Zero),
            ftz: true,
            sat: true,
            nan,
            xorsign_abs,
            dst,
            a,
            b,
        }
    );
    let accuracy = FloatAccuracy::Approx;
    assert_eq!(
        op("ex2.approx.ftz.f32 f0, f1;"),
        Op::FloatUnary { op: FloatUnaryOp::Ex2, ty, accuracy, ftz: true, dst, a }
    );
    let (rounding, ftz, sat, relu) = (Rounding::Up, false, false, false);
    assert_eq!(
        op("fma.rp.f32 f0, f1, f2, 1.0;"),
        Op::Fma { ty, rounding, ftz, sat, relu, dst, a, b, c: Operand::Imm(0x3F80_0000) }
    );
}

#[test]
fn conversions() {
    let (ftz, relu) = (false, false);
    assert_eq!(
        op("cvt.rzi.sat.s8.f32 r0, f0;"),
        Op::Cvt {
            to: ScalarType::S8,
            from: ScalarType::F32,
            rounding: CvtRounding::Integral(Rounding::Zero),
            ftz,
            sat: true,
            relu,
            dst: Reg(R),
            a: reg(F, 0),
        }
    );
    let a = reg(L, 1);
    assert_eq!(op("cvta.local.u64 l0, l1;"), Op::CvtaTo { space: Space::Local, dst: Reg(L), a });
    assert_eq!(
        op("cvta.to.global.u64 l0, l1;"),
        Op::CvtaFrom { space: Space::Global, dst: Reg(L), a }
    );
}

#[test]
fn comparisons() {
    let pred = Pred::Reg { reg: Reg(P + 2), negated: true };
    assert_eq!(
        op("setp.hs.or.u32 p0|p1, r0, 5, !p2;"),
        Op::Setp {
            op: CompareOp::Ge,
            ty: ScalarType::U32,
            ftz: false,
            combine: Some(Combine { op: weft_ptx::ir::BoolOp::Or, pred }),
            dst: Some(Reg(P)),
            complement: Some(Reg(P + 1)),
            a: reg(R, 0),
            b: Operand::Imm(5),
        }
    );
    assert!(matches!(op("selp.b16 h0, 1, 0, p0;"), Op::Selp { width: Width::B16, .. }));
}

#[test]
fn threads() {
    let threads = Some(Operand::Imm(64));
    assert_eq!(
        op("bar.arrive 1, 64;"),
        Op::Barrier { action: BarrierAction::Arrive, id: Operand::Imm(1), threads, aligned: true }
    );
    let Op::Shfl { dst, pred, c, mask, .. } = op("shfl.sync.up.b32 r0|p0, r1, 1, 0, -1;") else {
        panic!()
    };
    assert_eq!((dst, pred), (Some(Reg(R)), Some(Reg(P))));
    assert_eq!((c, mask), (Operand::Imm(0), Some(Operand::Imm(0xFFFF_FFFF))));
}

#[test]
fn matrices_and_video() {
    let Op::Mma { shape, d, a, b, c, .. } = op("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 \
        {f0, f1, f2, f3}, {r0, r1}, {r2}, {f0, f1, f2, f3};")
    else {
        panic!()
    };
    assert_eq!(shape, MatrixShape { m: 16, n: 8, k: 8 });
    assert_eq!((d.len(), a.len(), b.len(), c.len()), (4, 2, 1, 4));
    let Op::Mma { a_layout, b_layout, d, a, b, c, .. } =
        op("mma.sync.aligned.m8n8k4.col.row.f32.f16.f16.f16 \
        {f0, f1, f2, f3, r0, r1, r2, r3}, {r0, r1}, {r2, r3}, {r0, r1, r2, r3};")
    else {
        panic!()
    };
    assert_eq!((a_layout, b_layout), (MatrixLayout::Column, MatrixLayout::Row));
    assert_eq!((d.len(), a.len(), b.len(), c.len()), (8, 2, 2, 4));
    let Op::Mma { a_ty, b_ty, sat, d, a, b, .. } =
        op("mma.sync.aligned.m8n8k32.row.col.satfinite.s32.u4.s4.s32 \
        {r0, r1}, {r2}, {r3}, {r0, r1};")
    else {
        panic!()
    };
    assert_eq!((a_ty, b_ty, sat), (ScalarType::U4, ScalarType::S4, true));
    assert_eq!((d.len(), a.len(), b.len()), (2, 1, 1));
    let part =
        |index, part, signed| VideoOperand { value: reg(R, index), signed, part, negated: false };
    assert_eq!(
        op("vsub.s32.u32.s32.sat r0, r1.b2, r2.h1;"),
        Op::Video {
            op: VideoOp::Sub,
            signed: true,
            sat: true,
            merge: None,
            accumulate: None,
            dst: Reg(R),
            a: part(1, (16, 8), false),
            b: part(2, (16, 16), true),
            c: None,
        }
    );
}
