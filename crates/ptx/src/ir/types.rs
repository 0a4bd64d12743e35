//! Scalar types, state spaces and special registers.

/// Width of a register, and type of bitwise operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// One bit of a predicate.
    Pred,
    /// 8 bits.
    B8,
    /// 16 bits.
    B16,
    /// 32 bits.
    B32,
    /// 64 bits.
    B64,
    /// 128 bits.
    B128,
}

impl Width {
    /// Number of bits; 1 for a predicate.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B8 => 8,
            Self::B16 => 16,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}

/// Every type that PTX names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum ScalarType {
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    /// 32-bit container of a TF32 number.
    TF32,
    F32,
    F32x2,
    F64,
    U16x2,
    S16x2,
    /// FP8 pair in 16 bits.
    E4M3x2,
    E5M2x2,
    /// One FP8 (matrix element types only).
    E4M3,
    E5M2,
    /// Integers of 4 bits (matrix element types only).
    U4,
    S4,
    Pred,
}

impl ScalarType {
    /// Bytes in memory; a predicate has none and counts as 1, as does an element of 4 bits.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B8
            | Self::U8
            | Self::S8
            | Self::E4M3
            | Self::E5M2
            | Self::U4
            | Self::S4
            | Self::Pred => 1,
            Self::B16
            | Self::U16
            | Self::S16
            | Self::F16
            | Self::BF16
            | Self::E4M3x2
            | Self::E5M2x2 => 2,
            Self::B32
            | Self::U32
            | Self::S32
            | Self::F16x2
            | Self::BF16x2
            | Self::TF32
            | Self::F32
            | Self::U16x2
            | Self::S16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 | Self::F32x2 => 8,
            Self::B128 => 16,
        }
    }

    /// Bits of an element of a matrix.
    #[must_use]
    pub const fn element_bits(self) -> u32 {
        if matches!(self, Self::U4 | Self::S4) { 4 } else { 8 * self.bytes() }
    }

    /// The width of a register that holds exactly this type.
    #[must_use]
    pub const fn width(self) -> Width {
        if matches!(self, Self::Pred) {
            return Width::Pred;
        }
        match self.bytes() {
            1 => Width::B8,
            2 => Width::B16,
            4 => Width::B32,
            8 => Width::B64,
            _ => Width::B128,
        }
    }

    /// Whether widening extends the sign.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// The integer type, if it is `.uN` or `.sN`.
    #[must_use]
    pub const fn int(self) -> Option<IntType> {
        Some(match self {
            Self::U8 => IntType::U8,
            Self::U16 => IntType::U16,
            Self::U32 => IntType::U32,
            Self::U64 => IntType::U64,
            Self::S8 => IntType::S8,
            Self::S16 => IntType::S16,
            Self::S32 => IntType::S32,
            Self::S64 => IntType::S64,
            Self::U16x2 => IntType::U16x2,
            Self::S16x2 => IntType::S16x2,
            Self::B8
            | Self::B16
            | Self::B32
            | Self::B64
            | Self::B128
            | Self::F16
            | Self::F16x2
            | Self::BF16
            | Self::BF16x2
            | Self::TF32
            | Self::F32
            | Self::F32x2
            | Self::F64
            | Self::E4M3x2
            | Self::E5M2x2
            | Self::E4M3
            | Self::E5M2
            | Self::U4
            | Self::S4
            | Self::Pred => return None,
        })
    }

    /// The type of floating-point arithmetic, if it is one.
    #[must_use]
    pub const fn float(self) -> Option<FloatType> {
        Some(match self {
            Self::F16 => FloatType::F16,
            Self::F16x2 => FloatType::F16x2,
            Self::BF16 => FloatType::BF16,
            Self::BF16x2 => FloatType::BF16x2,
            Self::F32 => FloatType::F32,
            Self::F32x2 => FloatType::F32x2,
            Self::F64 => FloatType::F64,
            Self::B8
            | Self::B16
            | Self::B32
            | Self::B64
            | Self::B128
            | Self::U8
            | Self::U16
            | Self::U32
            | Self::U64
            | Self::S8
            | Self::S16
            | Self::S32
            | Self::S64
            | Self::TF32
            | Self::U16x2
            | Self::S16x2
            | Self::E4M3x2
            | Self::E5M2x2
            | Self::E4M3
            | Self::E5M2
            | Self::U4
            | Self::S4
            | Self::Pred => return None,
        })
    }
}

/// Types of integer arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum IntType {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    /// Two lanes of 16 bits (add, min, max).
    U16x2,
    S16x2,
}

impl IntType {
    /// The width of the registers it is held in.
    #[must_use]
    pub const fn width(self) -> Width {
        match self {
            Self::U8 | Self::S8 => Width::B8,
            Self::U16 | Self::S16 => Width::B16,
            Self::U32 | Self::S32 | Self::U16x2 | Self::S16x2 => Width::B32,
            Self::U64 | Self::S64 => Width::B64,
        }
    }

    /// Whether it is signed.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64 | Self::S16x2)
    }
}

/// Types of floating-point arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum FloatType {
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F32x2,
    F64,
}

impl FloatType {
    /// The width of the registers it is held in.
    #[must_use]
    pub const fn width(self) -> Width {
        match self {
            Self::F16 | Self::BF16 => Width::B16,
            Self::F16x2 | Self::BF16x2 | Self::F32 => Width::B32,
            Self::F64 | Self::F32x2 => Width::B64,
        }
    }
}

/// State space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// No space named: the address is generic.
    Generic,
    /// `.global`
    Global,
    /// `.shared` (and `.shared::cta`)
    Shared,
    /// `.const`
    Const,
    /// `.local`; also `.param` inside device functions and at call sites.
    Local,
    /// The parameter buffer of the kernel. A register as base holds an offset into it.
    Param,
}

/// Component of a three-dimensional index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum Dim {
    X,
    Y,
    Z,
}

/// Special registers. Constants (`WARP_SZ`, `%tid.w`, the cluster registers of a launch without
/// clusters) are immediates instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the PTX ISA")]
pub enum SpecialReg {
    Tid(Dim),
    Ntid(Dim),
    Ctaid(Dim),
    Nctaid(Dim),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    /// Low 32 bits of the cycle counter.
    Clock,
    /// High 32 bits of the cycle counter.
    ClockHi,
    Clock64,
    /// Nanoseconds, 64 bits.
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    /// Dynamic shared memory of the launch, bytes.
    DynamicSmemSize,
    /// `%envreg2`: the lower half of the address of the grid's workspace, 8 bytes that are zero
    /// when the launch begins, for a barrier of all blocks.
    GridWorkspaceLow,
    /// `%envreg1`: the upper half.
    GridWorkspaceHigh,
    /// Static and dynamic shared memory of the launch, bytes.
    TotalSmemSize,
}

impl SpecialReg {
    /// Whether it has 64 bits (the others have 32).
    #[must_use]
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::GridId | Self::Clock64 | Self::GlobalTimer)
    }
}
