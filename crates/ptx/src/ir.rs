//! The typed intermediate representation: what the parser produces and the engine trusts.
//!
//! Everything is resolved and checked here: registers are dense indices with a width, labels are
//! instruction indices, names are ids, immediates are bits of the width of the instruction, and
//! `.param` and `.local` variables are byte offsets. An engine that walks a [`Module`] from
//! [`crate::linker::link`] needs no further validation of shapes and types.
//!
//! # Memory of a function
//! * Kernel parameters form one constant buffer per launch ([`Function::param_bytes`]); it is read
//!   through [`Space::Param`] with [`Base::KernelParam`].
//! * Everything else that is private to an activation of a function (its `.local` variables, the
//!   `.param` variables that it receives, returns, and passes to callees) lies in one *frame* of
//!   [`Function::frame_bytes`] bytes in the thread's local memory, addressed by [`Space::Local`]
//!   with [`Base::Frame`]. A call copies [`CallArg`]s into the callee's frame, and results back.
//! * Function-scope `.shared`, `.global` and `.const` variables are hoisted to the module.

mod modifier;
mod op;
mod operand;
mod types;
mod written;

pub use modifier::{
    AtomOp, BitBinaryOp, BitUnaryOp, BoolOp, CacheHint, CompareOp, CvtRounding, FenceKind,
    FloatAccuracy, FloatBinaryOp, FloatUnaryOp, Fragment, IntBinaryOp, IntUnaryOp, MatrixLayout,
    MatrixShape, MemOrder, MulMode, PrmtMode, ReduxOp, Rounding, Scope, ShfMode, ShflMode, TestpOp,
    VideoOp, VoteMode,
};
pub use op::{Instr, Op};
pub use operand::{
    Address, BarrierAction, Base, Call, CallArg, CallTarget, Combine, Guard, Operand, Pred, Slot,
    VideoOperand,
};
pub use types::{Dim, FloatType, IntType, ScalarType, Space, SpecialReg, Width};

/// Index of a virtual register in its function's [`Function::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(pub u32);

/// Index of a variable in [`Module::variables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarId(pub u32);

/// Index of a function in [`Module::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuncId(pub u32);

/// A parsed module, or several after linking (then ids are those of the merged module).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// The PTX ISA version, e.g. `(7, 5)`; the highest one of the linked modules.
    pub version: (u32, u32),
    /// The target, e.g. `sm_75`; that of the first module.
    pub target: String,
    /// Variables of the module's scope, hoisted function-scope ones included.
    pub variables: Vec<Variable>,
    /// Functions and kernels; declarations too.
    pub functions: Vec<Function>,
}

impl Module {
    /// The function of an id.
    #[must_use]
    pub fn function(&self, id: FuncId) -> Option<&Function> {
        self.functions.get(usize::try_from(id.0).ok()?)
    }

    /// The variable of an id.
    #[must_use]
    pub fn variable(&self, id: VarId) -> Option<&Variable> {
        self.variables.get(usize::try_from(id.0).ok()?)
    }

    /// The kernel with that name that has a body.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<(FuncId, &Function)> {
        self.find_function(|f| f.kind == FunctionKind::Kernel && f.is_defined() && f.name == name)
    }

    /// All kernels that have a body, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = (FuncId, &Function)> {
        (0u32..)
            .map(FuncId)
            .zip(&self.functions)
            .filter(|(_, f)| f.kind == FunctionKind::Kernel && f.is_defined())
    }

    /// The variable with that name that a host may look up (`.global` and `.const`, not static).
    #[must_use]
    pub fn host_variable(&self, name: &str) -> Option<(VarId, &Variable)> {
        (0u32..).map(VarId).zip(&self.variables).find(|(_, v)| {
            v.name == name
                && matches!(v.space, Space::Global | Space::Const)
                && v.linkage != Linkage::Extern
        })
    }

    fn find_function(&self, test: impl Fn(&Function) -> bool) -> Option<(FuncId, &Function)> {
        (0u32..).map(FuncId).zip(&self.functions).find(|(_, f)| test(f))
    }
}

/// Who may see and define a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Known inside its module only (no directive).
    Static,
    /// `.visible`: one definition among all linked modules.
    Visible,
    /// `.weak`: any definition will do; a visible one wins.
    Weak,
    /// `.common`: merged with others of its name, the largest wins.
    Common,
    /// `.extern`: defined elsewhere.
    Extern,
}

/// A variable of module scope, in `.global`, `.const` or `.shared` space.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name; hoisted ones are called `function$number$name`.
    pub name: String,
    /// [`Space::Global`], [`Space::Const`] or [`Space::Shared`].
    pub space: Space,
    /// Who sees it.
    pub linkage: Linkage,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// Size in bytes; 0 for an array without bound.
    pub size_bytes: u64,
    /// Size in bytes of an element: what an index counts.
    pub element_bytes: u32,
    /// `.extern .shared x[]`: begins where the launch's dynamic shared memory begins. All dynamic
    /// shared variables of a kernel alias each other.
    pub dynamic_shared: bool,
    /// `.attribute(.managed)`.
    pub managed: bool,
    /// The initial contents; bytes behind it are zero.
    pub init: Initializer,
    /// Line of the declaration in its text.
    pub line: u32,
}

/// Initial contents of a variable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Initializer {
    /// The first bytes, little endian; never longer than the variable; the rest is zero.
    pub bytes: Vec<u8>,
    /// Addresses to write over the bytes at load time.
    pub relocations: Vec<Relocation>,
}

/// An address in an initialiser.
#[derive(Clone, Debug, PartialEq)]
pub struct Relocation {
    /// Where in the variable, in bytes.
    pub offset: u64,
    /// How many bytes are written: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Which byte of the address is the lowest written one (`0xFF00(x)` writes byte 1 of `&x`).
    pub first_byte: u8,
    /// Whose address.
    pub symbol: Symbol,
    /// Added to the address.
    pub addend: i64,
    /// `generic(x)`: the generic address; otherwise that in the variable's own space. (Generic and
    /// global addresses of one object are usually the same number.)
    pub generic: bool,
}

/// What a name in an initialiser or operand denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// A variable.
    Variable(VarId),
    /// A function, for calls through pointers.
    Function(FuncId),
}

/// Kernel or device function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// `.entry`
    Kernel,
    /// `.func`
    Device,
}

/// A kernel or device function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// Who sees it.
    pub linkage: Linkage,
    /// Parameters in order. For a kernel their offsets are those in the parameter buffer of a
    /// launch; for a device function those in its frame.
    pub params: Vec<Param>,
    /// Results in order; offsets are those in the frame. Empty for kernels.
    pub returns: Vec<Param>,
    /// Size of a kernel's parameter buffer (`CU_LAUNCH_PARAM_BUFFER_SIZE`); 0 for others.
    pub param_bytes: u32,
    /// The width of every virtual register.
    pub registers: Vec<Width>,
    /// `.local` variables, for diagnostics; they lie in the frame.
    pub locals: Vec<Local>,
    /// Size of the frame in local memory in bytes, a multiple of `frame_align`.
    pub frame_bytes: u32,
    /// Alignment of the frame in bytes.
    pub frame_align: u32,
    /// The code; `None` for a declaration. After linking only [`BUILTIN_FUNCTIONS`] lack it.
    ///
    /// Falling off the end returns. Branch targets are indices into it and may equal its length.
    pub body: Option<Vec<Instr>>,
    /// Signatures that indirect calls refer to (`.callprototype`).
    pub prototypes: Vec<Prototype>,
    /// Launch bounds.
    pub bounds: LaunchBounds,
    /// `.noreturn`
    pub noreturn: bool,
    /// Line of the declaration in its text.
    pub line: u32,
    /// Which of the linked texts it came from, counted from 0.
    pub text: u32,
}

impl Function {
    /// Whether it has a body.
    #[must_use]
    pub const fn is_defined(&self) -> bool {
        self.body.is_some()
    }

    /// The width of a register of this function. (`Pred` for an index that does not exist.)
    #[must_use]
    pub fn width(&self, reg: Reg) -> Width {
        usize::try_from(reg.0)
            .ok()
            .and_then(|i| self.registers.get(i))
            .copied()
            .unwrap_or(Width::Pred)
    }
}

/// Functions that the CUDA driver provides; the linker leaves them undefined, the engine implements
/// them by name.
pub const BUILTIN_FUNCTIONS: &[&str] = &["vprintf", "malloc", "free", "__assertfail"];

/// One parameter or result.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name in the text.
    pub name: String,
    /// Element type.
    pub ty: ScalarType,
    /// Size in bytes (of the whole array for `.b8 x[16]`).
    pub size_bytes: u32,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// Where it lives.
    pub place: ParamPlace,
    /// `.ptr` attribute of a kernel parameter: the space and the alignment of what it points to.
    pub pointer: Option<(Space, u32)>,
}

/// Where a parameter or result lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamPlace {
    /// At this byte offset: in the parameter buffer for a kernel, else in the frame.
    Offset(u32),
    /// In a register (`.func (.reg .u32 r) f (.reg .u32 a)`).
    Register(Reg),
}

/// A `.local` variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Its name.
    pub name: String,
    /// Its offset in the frame in bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub size_bytes: u32,
}

/// The signature of an indirect call: size and alignment in bytes of each value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prototype {
    /// `(size, align)` of each result.
    pub returns: Vec<(u32, u32)>,
    /// `(size, align)` of each parameter.
    pub params: Vec<(u32, u32)>,
}

/// Directives that bound a kernel's launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchBounds {
    /// `.maxntid`: the most threads per block (product of the three).
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: exactly these threads per block.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`
    pub max_registers: Option<u32>,
}
