//! Operands of instructions.

use super::modifier::BoolOp;
use super::{FuncId, Reg, SpecialReg, VarId};

/// Guard predicate of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub reg: Reg,
    /// `@!p`
    pub negated: bool,
}

/// A value that an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// Constant bits.
    Imm(u64),
    /// A special register. Narrower instruction types truncate it, wider ones zero-extend it.
    Special(SpecialReg),
    /// The address of a variable, parameter or local, in its own space (not generic). `base` is
    /// never a register here.
    Address(Address),
    /// The address of a function, for indirect calls.
    Function(FuncId),
}

/// A predicate that an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pred {
    /// `p` or `!p`
    Reg {
        /// The predicate register.
        reg: Reg,
        /// `!p`
        negated: bool,
    },
    /// A literal.
    Const(bool),
}

/// `[base + offset]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// What the offset is added to.
    pub base: Base,
    /// Bytes, added wrapping.
    pub offset: i64,
}

/// Base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// A 64-bit register, or a 32-bit one (zero-extended; for spaces smaller than 4 GiB).
    Reg(Reg),
    /// A variable of the module.
    Variable(VarId),
    /// The frame of the running function, in local memory.
    Frame,
    /// The parameter buffer of the running kernel.
    KernelParam,
    /// Zero: the offset is the address.
    Absolute,
}

/// A range of the frame in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where it begins.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
}

/// `set`/`setp` with a third operand: the result is `compare(a, b) op pred`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combine {
    /// The operation.
    pub op: BoolOp,
    /// The predicate.
    pub pred: Pred,
}

/// What a block barrier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierAction {
    /// Arrive and wait.
    Sync,
    /// Arrive without waiting.
    Arrive,
    /// Wait and count the threads whose predicate holds (`.red.popc`).
    Popc {
        /// 32-bit result.
        dst: Reg,
        /// What is counted.
        pred: Pred,
    },
    /// Wait; whether the predicate holds for all threads.
    And {
        /// Predicate result.
        dst: Reg,
        /// What is combined.
        pred: Pred,
    },
    /// Wait; whether the predicate holds for any thread.
    Or {
        /// Predicate result.
        dst: Reg,
        /// What is combined.
        pred: Pred,
    },
}

/// Target of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// A function by name.
    Direct(FuncId),
    /// A function pointer.
    Indirect {
        /// The 64-bit register with the pointer.
        pointer: Reg,
        /// Index into [`super::Function::prototypes`], if one is named.
        prototype: Option<u32>,
        /// What `.calltargets` lists; empty if unknown.
        candidates: Vec<FuncId>,
    },
}

/// One argument of a call, or one place for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallArg {
    /// A range of the caller's frame (a `.param` variable).
    Slot(Slot),
    /// A register or constant of that many bytes. A result is always a register.
    Value {
        /// The value, or where the result goes.
        value: Operand,
        /// Its size.
        bytes: u32,
    },
}

/// A call. The counts and sizes of a direct call match those of the callee; those of an indirect
/// call match its prototype, and the engine must check them against the function that the pointer
/// denotes.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is called.
    pub target: CallTarget,
    /// Arguments in order.
    pub args: Vec<CallArg>,
    /// Where results go, in order.
    pub returns: Vec<CallArg>,
    /// `.uni`: all active threads make the same call.
    pub uniform: bool,
}

/// A source of a scalar video instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoOperand {
    /// 32 bits.
    pub value: Operand,
    /// How the selected part is extended to 33 bits.
    pub signed: bool,
    /// Which part: lowest bit and number of bits, e.g. `.b1` is (8, 8), `.h1` (16, 16), all (0,
    /// 32).
    pub part: (u8, u8),
    /// Negated after extension (`vmad` only).
    pub negated: bool,
}
