//! Modifiers of instructions: operations, roundings, modes, scopes.

use super::ScalarType;

/// Rounding of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// `.rn`, and none given.
    Nearest,
    /// `.rz`
    Zero,
    /// `.rm`, towards minus infinity.
    Down,
    /// `.rp`, towards plus infinity.
    Up,
}

/// Rounding of conversions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CvtRounding {
    /// The conversion is exact or between integers.
    None,
    /// `.rn`/`.rz`/`.rm`/`.rp`: the result is a floating-point number.
    Float(Rounding),
    /// `.rna`: to nearest, ties away from zero (TF32).
    FloatAway,
    /// `.rni`/`.rzi`/`.rmi`/`.rpi`: the result has an integral value.
    Integral(Rounding),
}

/// Integer operations of two operands. Signedness is that of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum IntBinaryOp {
    Add,
    Sub,
    MulLo,
    MulHi,
    /// `mul24.lo`: low 32 bits of the 48-bit product of the low 24 bits.
    Mul24Lo,
    /// `mul24.hi`: high 32 bits of that product.
    Mul24Hi,
    Div,
    Rem,
    Min,
    Max,
}

/// Integer operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum IntUnaryOp {
    Neg,
    Abs,
}

/// Which part of a product a multiply-add uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MulMode {
    /// Low half.
    Lo,
    /// High half.
    Hi,
    /// Whole product; the addend and the result are twice as wide as the type.
    Wide,
}

/// Bitwise operations of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum BitBinaryOp {
    And,
    Or,
    Xor,
}

/// Bitwise operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitUnaryOp {
    /// All bits inverted.
    Not,
    /// 1 if the source is 0, else 0.
    Cnot,
    /// Number of ones; the destination has 32 bits.
    Popc,
    /// Number of leading zeros; the destination has 32 bits.
    Clz,
    /// Bits reversed.
    Brev,
}

/// Floating-point operations of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum FloatBinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

/// Floating-point operations of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum FloatUnaryOp {
    Abs,
    Neg,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    /// Base-2 logarithm.
    Lg2,
    /// Power of 2.
    Ex2,
    Tanh,
}

/// How exact a division or function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatAccuracy {
    /// IEEE, with the given rounding.
    Rounded(Rounding),
    /// `.approx`
    Approx,
    /// `.full` (division only).
    Full,
}

/// Comparisons. The unordered ones exist for floating-point types only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    /// Equal.
    Eq,
    /// Not equal (and both are numbers).
    Ne,
    /// Less (`lo` for unsigned).
    Lt,
    /// Less or equal (`ls`).
    Le,
    /// Greater (`hi`).
    Gt,
    /// Greater or equal (`hs`).
    Ge,
    /// Equal or a NaN.
    Equ,
    /// Not equal or a NaN.
    Neu,
    /// Less or a NaN.
    Ltu,
    /// Less or equal or a NaN.
    Leu,
    /// Greater or a NaN.
    Gtu,
    /// Greater or equal or a NaN.
    Geu,
    /// Both are numbers.
    Num,
    /// At least one NaN.
    Nan,
}

/// Combination of a comparison with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// Properties that `testp` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum TestpOp {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// `shf` with a count above 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShfMode {
    /// The count is limited to 32.
    Clamp,
    /// The count is taken modulo 32.
    Wrap,
}

/// Modes of `prmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum PrmtMode {
    /// Four selectors of 4 bits in `c`.
    Generic,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

/// Ordering of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum MemOrder {
    Weak,
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
    Mmio,
}

/// Who observes an ordered access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// Cache operator of a load or store; no effect on results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheHint {
    /// None given, or one without meaning for an engine.
    Default,
    /// `.nc` or `ldu`: the data do not change while the kernel runs.
    ReadOnly,
}

/// Operations of `atom` and `red`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomOp {
    /// Bitwise.
    And,
    /// Bitwise.
    Or,
    /// Bitwise.
    Xor,
    /// New value is `b`.
    Exch,
    /// New value is `c` if the old one equals `b`.
    Cas,
    /// Sum, integer or floating-point by the type.
    Add,
    /// `old >= b ? 0 : old + 1`
    Inc,
    /// `old == 0 || old > b ? b : old - 1`
    Dec,
    /// Smaller.
    Min,
    /// Larger.
    Max,
}

/// Operations of `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum ReduxOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// Modes of `vote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum VoteMode {
    All,
    Any,
    Uni,
    /// The destination is a 32-bit mask, not a predicate.
    Ballot,
}

/// Modes of `shfl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// Strength of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceKind {
    /// `fence.acq_rel`, and one-sided or proxy fences.
    AcqRel,
    /// `fence.sc`, `membar`
    SeqCst,
}

/// Shape of a matrix instruction: `m16n8k8` is (16, 8, 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "rows, columns and depth")]
pub struct MatrixShape {
    pub m: u8,
    pub n: u8,
    pub k: u8,
}

impl MatrixShape {
    /// How many products of this shape one `mma` computes: with halves in `m8n8k4` each of four
    /// pairs of quads has a product of its own, otherwise the whole warp has one.
    #[must_use]
    pub const fn products(self, factor: ScalarType) -> u8 {
        let small = matches!((self.m, self.n, self.k), (8, 8, 4));
        if small && matches!(factor, ScalarType::F16) { 4 } else { 1 }
    }
}

/// Order of a matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum MatrixLayout {
    Row,
    Column,
}

/// Which matrix of `D = A B + C` a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum Fragment {
    A,
    B,
    C,
    D,
}

/// Scalar and packed video operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    /// `vavrg2`/`vavrg4`
    Average,
    /// Shift left; `wrap` takes the count modulo 32 instead of limiting it to 32.
    Shl {
        wrap: bool,
    },
    Shr {
        wrap: bool,
    },
    Set(CompareOp),
}
