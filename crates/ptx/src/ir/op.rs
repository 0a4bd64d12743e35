//! Instructions and their operands.
//!
//! Conventions that hold for every instruction:
//! * A destination that the program discards (`_`) is `None`.
//! * [`Operand::Imm`] holds the bits of the operand's type, zero-extended to 64 bits: `-1` in an
//!   `.s32` instruction is `0xFFFF_FFFF`, `1.0` in an `.f32` instruction is `0x3F80_0000`.
//! * A register operand has the width of its type, except where the PTX ISA relaxes this: sources
//!   and destinations of `ld`, `st`, `cvt` and `atom`/`red` may be wider than the type. A source is
//!   then truncated; a destination is extended to its width by the sign of the type.
//!   Nowhere else are registers narrower or wider than the type.

use super::modifier::{
    AtomOp, BitBinaryOp, BitUnaryOp, BoolOp, CacheHint, CompareOp, CvtRounding, FenceKind,
    FloatAccuracy, FloatBinaryOp, FloatUnaryOp, Fragment, IntBinaryOp, IntUnaryOp, MatrixLayout,
    MatrixShape, MemOrder, MulMode, PrmtMode, ReduxOp, Rounding, Scope, ShfMode, ShflMode, TestpOp,
    VideoOp, VoteMode,
};
use super::operand::{Address, BarrierAction, Call, Combine, Guard, Operand, Pred, VideoOperand};
use super::{FloatType, IntType, Reg, ScalarType, Space, Width};

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instr {
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// What it does.
    pub op: Op,
    /// Its line in the text (see [`super::Function::text`]), counted from 1.
    pub line: u32,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "operands are named as in the PTX ISA: d = op(a, b, c)")]
pub enum Op {
    // ---- Moves and conversions ----
    /// `mov` of a scalar or predicate of the width.
    Mov {
        width: Width,
        dst: Reg,
        src: Operand,
    },
    /// `mov.bN d, {a, b, …}`: the first element is the least significant. All elements have
    /// `element` width.
    Pack {
        element: Width,
        dst: Reg,
        src: Vec<Operand>,
    },
    /// `mov.bN {a, b, …}, s`
    Unpack {
        element: Width,
        dst: Vec<Option<Reg>>,
        src: Operand,
    },
    /// `cvt`. FP8 and pair conversions with one source have it in `a`.
    Cvt {
        to: ScalarType,
        from: ScalarType,
        rounding: CvtRounding,
        ftz: bool,
        sat: bool,
        relu: bool,
        dst: Reg,
        a: Operand,
    },
    /// `cvt` of two numbers into a pair: `a` becomes the upper, `b` the lower half.
    CvtPair {
        to: ScalarType,
        from: ScalarType,
        rounding: CvtRounding,
        sat: bool,
        relu: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `cvt.pack.sat`: `a` and `b` (`.s32`) saturated to `to`; `a` goes above `b`. With `c` (types
    /// of 8, 4 and 2 bits) its low bits go above them; `element_bits` is 16, 8, 4 or 2.
    CvtPack {
        element_bits: u8,
        signed: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Option<Operand>,
    },
    /// `cvta.space` (to a generic address).
    CvtaTo {
        space: Space,
        dst: Reg,
        a: Operand,
    },
    /// `cvta.to.space` (from a generic address).
    CvtaFrom {
        space: Space,
        dst: Reg,
        a: Operand,
    },
    /// Whether the generic address lies in the space. `dst` is a predicate.
    Isspacep {
        space: Space,
        dst: Reg,
        a: Operand,
    },

    // ---- Memory ----
    /// `ld`, `ldu`. One to eight destinations for consecutive elements.
    Ld {
        space: Space,
        ty: ScalarType,
        order: MemOrder,
        scope: Scope,
        hint: CacheHint,
        dst: Vec<Option<Reg>>,
        addr: Address,
    },
    /// `st`. One to eight sources for consecutive elements.
    St {
        space: Space,
        ty: ScalarType,
        order: MemOrder,
        scope: Scope,
        addr: Address,
        src: Vec<Operand>,
    },
    /// `atom` and (without destination) `red`. `c` is the new value of `Cas`.
    Atom {
        op: AtomOp,
        ty: ScalarType,
        space: Space,
        order: MemOrder,
        scope: Scope,
        ftz: bool,
        dst: Option<Reg>,
        addr: Address,
        b: Operand,
        c: Option<Operand>,
    },
    /// `fence`, `membar`.
    Fence {
        kind: FenceKind,
        scope: Scope,
    },
    /// `cp.async`: copies `bytes` from global to shared memory; only the first `src_bytes` of the
    /// source are read, the rest is zero. `ignore_src` (a predicate) means all zero.
    CpAsync {
        bytes: u32,
        dst: Address,
        src: Address,
        src_bytes: Option<Operand>,
        ignore_src: Option<Pred>,
    },
    CpAsyncCommit,
    /// Waits until at most `pending` of the latest groups are pending; `None` waits for all copies.
    CpAsyncWait {
        pending: Option<u32>,
    },
    /// `alloca`: `dst` is the address in local space (not generic) of `size` bytes.
    Alloca {
        dst: Reg,
        size: Operand,
        align: u32,
    },
    StackSave {
        dst: Reg,
    },
    StackRestore {
        src: Operand,
    },

    // ---- Integers ----
    /// `sat` for `add.s32` and `sub.s32`; `relu` for `min` and `max`.
    IntBinary {
        op: IntBinaryOp,
        ty: IntType,
        sat: bool,
        relu: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `mul.wide`: the destination is twice as wide as the type.
    MulWide {
        ty: IntType,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `mad`; `sat` for `.hi.s32`.
    Mad {
        mode: MulMode,
        ty: IntType,
        sat: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `mad24`; `high` selects bits 47..16 of the product.
    Mad24 {
        high: bool,
        ty: IntType,
        sat: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `add.cc`, `addc`, `addc.cc`, and with `subtract` `sub.cc`, `subc`, `subc.cc`. The carry flag
    /// belongs to the thread; a subtraction keeps the borrow in it. 32 or 64 bits.
    AddCarry {
        subtract: bool,
        width: Width,
        carry_in: bool,
        carry_out: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `mad.cc`, `madc`, `madc.cc`; `mode` is low or high. 32 or 64 bits, or low 16 without a carry
    /// out.
    MadCarry {
        mode: MulMode,
        ty: IntType,
        carry_in: bool,
        carry_out: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `c + |a - b|`
    Sad {
        ty: IntType,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    IntUnary {
        op: IntUnaryOp,
        ty: IntType,
        dst: Reg,
        a: Operand,
    },
    /// Dot product of four bytes, plus `c`.
    Dp4a {
        a_signed: bool,
        b_signed: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// Dot product of two halves of `a` and two bytes of `b` (the upper two if `high`), plus `c`.
    Dp2a {
        high: bool,
        a_signed: bool,
        b_signed: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },

    // ---- Bits ----
    BitBinary {
        op: BitBinaryOp,
        width: Width,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    BitUnary {
        op: BitUnaryOp,
        width: Width,
        dst: Reg,
        a: Operand,
    },
    /// `bool` is `lop3.BoolOp`: the predicate becomes `(result != 0) op pred`.
    Lop3 {
        table: u8,
        dst: Option<Reg>,
        a: Operand,
        b: Operand,
        c: Operand,
        bool: Option<(BoolOp, Reg, Pred)>,
    },
    /// Counts are `.u32` and limited to the width.
    Shl {
        width: Width,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// Arithmetic for signed types.
    Shr {
        ty: IntType,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// Funnel shift of the 64 bits `b:a`: left gives the upper, right the lower 32 bits.
    Shf {
        left: bool,
        mode: ShfMode,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    Bfe {
        ty: IntType,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `a` is inserted into `b` at position `c`, length `d`.
    Bfi {
        width: Width,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
        d: Operand,
    },
    /// The destination has 32 bits.
    Bfind {
        ty: IntType,
        shift_amount: bool,
        dst: Reg,
        a: Operand,
    },
    Bmsk {
        mode: ShfMode,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    Szext {
        mode: ShfMode,
        ty: IntType,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    Fns {
        dst: Reg,
        mask: Operand,
        base: Operand,
        offset: Operand,
    },
    Prmt {
        mode: PrmtMode,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },

    // ---- Floating point ----
    /// `accuracy` is `Rounded` except for `div.approx` and `div.full`. `nan`: `min`/`max` return
    /// NaN if an operand is one. `xorsign`: the sign is the exclusive or of the operands' signs.
    FloatBinary {
        op: FloatBinaryOp,
        ty: FloatType,
        accuracy: FloatAccuracy,
        ftz: bool,
        sat: bool,
        nan: bool,
        xorsign_abs: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `fma`, and `mad` of floating-point types.
    Fma {
        ty: FloatType,
        rounding: Rounding,
        ftz: bool,
        sat: bool,
        relu: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `Sin`, `Cos`, `Lg2` and `Ex2` of `F64`, which tinygrad writes, are `Rounded`; otherwise they
    /// are `Approx` and of `F32` or (`Ex2`) half types.
    FloatUnary {
        op: FloatUnaryOp,
        ty: FloatType,
        accuracy: FloatAccuracy,
        ftz: bool,
        dst: Reg,
        a: Operand,
    },
    /// `ty` is `F32` or `F64`.
    Testp {
        op: TestpOp,
        ty: FloatType,
        dst: Reg,
        a: Operand,
    },
    /// The sign of `a` and the magnitude of `b`.
    Copysign {
        ty: FloatType,
        dst: Reg,
        a: Operand,
        b: Operand,
    },

    // ---- Comparison and selection ----
    /// `dst` is the result, `complement` (after `|`) the result of the complementary comparison;
    /// for pairs (`F16x2`, `BF16x2`) they are the results of the lower and upper halves.
    Setp {
        op: CompareOp,
        ty: ScalarType,
        ftz: bool,
        combine: Option<Combine>,
        dst: Option<Reg>,
        complement: Option<Reg>,
        a: Operand,
        b: Operand,
    },
    /// `to` is `U32`, `S32` (all ones), `F32` (1.0), or a half type.
    Set {
        op: CompareOp,
        to: ScalarType,
        ty: ScalarType,
        ftz: bool,
        combine: Option<Combine>,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    Selp {
        width: Width,
        dst: Reg,
        a: Operand,
        b: Operand,
        pred: Pred,
    },
    /// `a` if `c >= 0` (a NaN is not), else `b`; `c` is `.f32` if `float`, else `.s32`.
    Slct {
        width: Width,
        float: bool,
        ftz: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },

    // ---- Control ----
    Bra {
        target: u32,
        uniform: bool,
    },
    /// An index outside of the list has no defined behaviour; an engine reports it.
    BrxIdx {
        index: Reg,
        targets: Vec<u32>,
        uniform: bool,
    },
    Call(Box<Call>),
    Ret,
    Exit,
    Trap,
    Brkpt,
    /// `nanosleep`; 32 bits.
    Nanosleep {
        duration_ns: Operand,
    },
    /// No effect on results: prefetch, cache control, `griddepcontrol`, `pmevent`, `setmaxnreg`.
    Nop,

    // ---- Between threads ----
    /// `bar`, `barrier`. `threads` defaults to all threads of the block. Not `aligned`: the threads
    /// of a warp may arrive at different instructions.
    Barrier {
        action: BarrierAction,
        id: Operand,
        threads: Option<Operand>,
        aligned: bool,
    },
    /// `bar.warp.sync`
    WarpSync {
        mask: Operand,
    },
    /// `mask` is `None` for the old `shfl`. The first destination may be discarded.
    Shfl {
        mode: ShflMode,
        dst: Option<Reg>,
        pred: Option<Reg>,
        a: Operand,
        b: Operand,
        c: Operand,
        mask: Option<Operand>,
    },
    Vote {
        mode: VoteMode,
        dst: Reg,
        src: Pred,
        mask: Option<Operand>,
    },
    /// `match.any` or (`all`) `match.all` with a predicate. 32 or 64 bits.
    Match {
        all: bool,
        width: Width,
        dst: Option<Reg>,
        pred: Option<Reg>,
        a: Operand,
        mask: Operand,
    },
    Activemask {
        dst: Reg,
    },
    /// `U32`, `S32`, `B32`, or `F32` with `abs` and `nan`.
    Redux {
        op: ReduxOp,
        ty: ScalarType,
        abs: bool,
        nan: bool,
        dst: Reg,
        a: Operand,
        mask: Operand,
    },
    /// `dst` is the lane of the leader.
    Elect {
        dst: Option<Reg>,
        pred: Reg,
        mask: Operand,
    },

    // ---- Matrices ----
    /// `ldmatrix`: 1, 2 or 4 matrices of 8 × 8 16-bit elements.
    Ldmatrix {
        space: Space,
        transposed: bool,
        dst: Vec<Reg>,
        addr: Address,
    },
    /// `stmatrix`
    Stmatrix {
        space: Space,
        transposed: bool,
        src: Vec<Operand>,
        addr: Address,
    },
    /// `mma.sync`. Only halves in `m8n8k4` have other layouts than a row-major `A` and a
    /// column-major `B`.
    Mma {
        shape: MatrixShape,
        a_layout: MatrixLayout,
        b_layout: MatrixLayout,
        d_ty: ScalarType,
        a_ty: ScalarType,
        b_ty: ScalarType,
        c_ty: ScalarType,
        sat: bool,
        d: Vec<Reg>,
        a: Vec<Operand>,
        b: Vec<Operand>,
        c: Vec<Operand>,
    },
    /// `wmma.load`. `stride` is in elements; `None` means packed.
    WmmaLoad {
        fragment: Fragment,
        shape: MatrixShape,
        layout: MatrixLayout,
        ty: ScalarType,
        space: Space,
        dst: Vec<Reg>,
        addr: Address,
        stride: Option<Operand>,
    },
    /// `wmma.store`
    WmmaStore {
        shape: MatrixShape,
        layout: MatrixLayout,
        ty: ScalarType,
        space: Space,
        addr: Address,
        src: Vec<Operand>,
        stride: Option<Operand>,
    },
    /// `wmma.mma`
    WmmaMma {
        shape: MatrixShape,
        a_layout: MatrixLayout,
        b_layout: MatrixLayout,
        d_ty: ScalarType,
        a_ty: ScalarType,
        b_ty: ScalarType,
        c_ty: ScalarType,
        sat: bool,
        d: Vec<Reg>,
        a: Vec<Operand>,
        b: Vec<Operand>,
        c: Vec<Operand>,
    },

    // ---- Video ----
    /// `vadd`, `vsub`, …: `op(a, b)`, saturated to the result type if `sat`. With `merge`, the
    /// result goes into that part of `c`; with `accumulate`, it is combined with `c` (`Add`, `Min`,
    /// `Max`).
    Video {
        op: VideoOp,
        signed: bool,
        sat: bool,
        merge: Option<(u8, u8)>,
        accumulate: Option<IntBinaryOp>,
        dst: Reg,
        a: VideoOperand,
        b: VideoOperand,
        c: Option<Operand>,
    },
    /// `vmad`: `(±a × ±b ± c (+ 1 if plus_one)) >> shift`.
    VideoMad {
        signed: bool,
        sat: bool,
        plus_one: bool,
        shift: u8,
        dst: Reg,
        a: VideoOperand,
        b: VideoOperand,
        c: Operand,
        c_negated: bool,
    },
    /// `vadd2`, `vadd4`, …: lane by lane over `lanes` (2 or 4) parts without selectors; `mask` says
    /// which lanes are written (others keep those of `c`). With `accumulate` the lanes are summed
    /// into `c`.
    VideoPacked {
        op: VideoOp,
        lanes: u8,
        signed: bool,
        a_signed: bool,
        b_signed: bool,
        sat: bool,
        mask: u8,
        accumulate: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
}
