//! Loads, stores, atomics, fences, asynchronous copies.

use super::Mods;
use crate::ir::{
    Address, AtomOp, Base, CacheHint, FenceKind, MemOrder, Op, Operand, Pred, ScalarType, Scope,
    Space, Width,
};
use crate::lexer::Token;
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser, operand_error};

/// Cache operators, which change no result.
const CACHE: [&str; 9] = ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "L2", "L1"];

impl<'a> Parser<'a> {
    pub(super) fn memory(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "ld" | "ldu" => self.ld(m),
            "st" => self.st(m),
            "atom" | "red" => self.atom(m),
            "fence" | "membar" => fence(m),
            "cp" => self.cp(m),
            "createpolicy" => {
                // A policy is an opaque hint that no instruction here looks at.
                let dst = self.dst(Width::B64)?;
                self.skip_operands()?;
                Ok(Op::Mov { width: Width::B64, dst, src: Operand::Imm(0) })
            }
            "alloca" => {
                let ty = m.ty()?;
                m.check(ty == ScalarType::U64)?;
                m.finish()?;
                let (dst, size) = self.dst_a(ty)?;
                let align = if self.accept(b',')? { self.alignment()? } else { 8 };
                Ok(Op::Alloca { dst, size, align })
            }
            "stacksave" | "stackrestore" => {
                let ty = m.ty()?;
                m.check(ty == ScalarType::U64)?;
                m.finish()?;
                if m.opcode() == "stacksave" {
                    return Ok(Op::StackSave { dst: self.dst(Width::B64)? });
                }
                Ok(Op::StackRestore { src: self.value(ty, Fit::Exact)? })
            }
            _ => {
                // Prefetches and the like.
                self.skip_operands()?;
                Ok(Op::Nop)
            }
        }
    }

    fn ld(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let order = order(m, &[("acquire", MemOrder::Acquire)]);
        let scope = m.scope().unwrap_or(Scope::Gpu);
        let space = m.space();
        let read_only = m.flag("nc") || m.opcode() == "ldu";
        let hint = if read_only { CacheHint::ReadOnly } else { CacheHint::Default };
        let policy = cache_hints(m);
        let count = vector(m);
        m.flag("unified");
        let ty = memory_type(m)?;
        m.check(total(ty, count) <= VECTOR_BYTES_MAX)?;
        m.finish()?;
        let dst = self.dst_vector(ty.width(), Fit::Wider)?;
        if dst.len() != count {
            return operand_error(format!("{} destinations of a load of {count}", dst.len()));
        }
        self.comma()?;
        let (addr, space) = self.access(space, total(ty, count))?;
        if self.accept_dotted("unified")? || policy {
            self.policy()?;
        }
        Ok(Op::Ld { space, ty, order, scope, hint, dst, addr })
    }

    fn st(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let order = order(m, &[("release", MemOrder::Release)]);
        let scope = m.scope().unwrap_or(Scope::Gpu);
        let space = m.space();
        let policy = cache_hints(m);
        let count = vector(m);
        let ty = memory_type(m)?;
        m.check(total(ty, count) <= VECTOR_BYTES_MAX)?;
        m.finish()?;
        let (addr, space) = self.access(space, total(ty, count))?;
        if matches!(space, Space::Const | Space::Param) {
            return operand_error("a store to read-only memory");
        }
        self.comma()?;
        let src = self.src_vector(ty, Fit::Wider)?;
        if src.len() != count {
            return operand_error(format!("{} sources of a store of {count}", src.len()));
        }
        if policy {
            self.policy()?;
        }
        Ok(Op::St { space, ty, order, scope, addr, src })
    }

    /// `, policy` if it is there.
    fn policy(&mut self) -> Parsed<()> {
        if self.accept(b',')? {
            self.value(ScalarType::B64, Fit::Exact)?;
        }
        Ok(())
    }

    /// An address; within parameters and frames, of an access that stays inside of them.
    fn access(&mut self, space: Space, bytes: u32) -> Parsed<(Address, Space)> {
        let (addr, space) = self.address(space)?;
        let limit = match addr.base {
            Base::KernelParam => self.body.param_bytes,
            Base::Frame => self.body.frame_bytes,
            Base::Reg(_) | Base::Variable(_) | Base::Absolute => return Ok((addr, space)),
        };
        let end = u32::try_from(addr.offset).ok().and_then(|offset| offset.checked_add(bytes));
        if end.is_some_and(|end| end <= limit) {
            return Ok((addr, space));
        }
        operand_error("an access beyond a parameter or local variable")
    }

    fn atom(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let returns = m.opcode() == "atom";
        let order = order(
            m,
            &[
                ("acquire", MemOrder::Acquire),
                ("release", MemOrder::Release),
                ("acq_rel", MemOrder::AcqRel),
            ],
        );
        let order = if order == MemOrder::Weak { MemOrder::Relaxed } else { order };
        let scope = m.scope().unwrap_or(Scope::Gpu);
        let space = m.space();
        m.check(matches!(space, Space::Generic | Space::Global | Space::Shared))?;
        let op = m.need(&[
            ("and", AtomOp::And),
            ("or", AtomOp::Or),
            ("xor", AtomOp::Xor),
            ("exch", AtomOp::Exch),
            ("cas", AtomOp::Cas),
            ("add", AtomOp::Add),
            ("inc", AtomOp::Inc),
            ("dec", AtomOp::Dec),
            ("min", AtomOp::Min),
            ("max", AtomOp::Max),
        ])?;
        let noftz = m.flag("noftz");
        let policy = cache_hints(m);
        let ty = m.ty()?;
        m.check(atom_fits(op, ty) && (returns || !matches!(op, AtomOp::Exch | AtomOp::Cas)))?;
        m.finish()?;
        let dst = if returns {
            let dst = self.dst_or_sink(ty.width(), Fit::Wider)?;
            self.comma()?;
            dst
        } else {
            None
        };
        let (addr, space) = self.access(space, ty.bytes())?;
        let b = self.src_wider(ty)?;
        let c = if op == AtomOp::Cas { Some(self.src_wider(ty)?) } else { None };
        if policy {
            self.policy()?;
        }
        let ftz = ty == ScalarType::F32 && space == Space::Global && !noftz;
        Ok(Op::Atom { op, ty, space, order, scope, ftz, dst, addr, b, c })
    }

    fn cp(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        let is_async = m.flag("async");
        m.check(is_async)?;
        if m.flag("commit_group") {
            m.finish()?;
            return Ok(Op::CpAsyncCommit);
        }
        if m.flag("wait_all") {
            m.finish()?;
            return Ok(Op::CpAsyncWait { pending: None });
        }
        if m.flag("wait_group") {
            m.finish()?;
            let pending = u32::try_from(self.small(0, 1 << 16)?).unwrap_or(0);
            return Ok(Op::CpAsyncWait { pending: Some(pending) });
        }
        let all = m.flag("ca");
        let level = all || m.flag("cg");
        m.check(level)?;
        let spaces = (m.space(), m.space());
        m.check(spaces == (Space::Shared, Space::Global))?;
        let policy = cache_hints(m);
        m.finish()?;
        let (dst, _) = self.address(Space::Shared)?;
        self.comma()?;
        let (src, _) = self.address(Space::Global)?;
        self.comma()?;
        let bytes = u32::try_from(self.small(4, 16)?).unwrap_or(16);
        if !(bytes == 16 || (all && matches!(bytes, 4 | 8))) {
            return operand_error(format!("an asynchronous copy of {bytes} bytes"));
        }
        let (mut src_bytes, mut ignore_src) = (None, None);
        if self.accept(b',')? {
            match self.third_operand()? {
                CopyOperand::Bytes(value) => src_bytes = Some(value),
                CopyOperand::Ignore(pred) => ignore_src = Some(pred),
                CopyOperand::Policy => {}
            }
            if policy {
                self.policy()?;
            }
        }
        Ok(Op::CpAsync { bytes, dst, src, src_bytes, ignore_src })
    }

    /// Source size, predicate or cache policy, told apart by the width of the register.
    fn third_operand(&mut self) -> Parsed<CopyOperand> {
        if self.at(b'!') {
            return Ok(CopyOperand::Ignore(self.pred()?));
        }
        if let Token::Word(_) = self.token {
            let reg = self.reg()?;
            return match self.body.width(reg) {
                Width::Pred => Ok(CopyOperand::Ignore(Pred::Reg { reg, negated: false })),
                Width::B32 => Ok(CopyOperand::Bytes(Operand::Reg(reg))),
                Width::B64 => Ok(CopyOperand::Policy),
                Width::B8 | Width::B16 | Width::B128 => operand_error("a register of 32 bits"),
            };
        }
        Ok(CopyOperand::Bytes(self.value(ScalarType::U32, Fit::Exact)?))
    }
}

enum CopyOperand {
    Bytes(Operand),
    Ignore(Pred),
    Policy,
}

/// Memory order; `.weak` if none is given.
fn order(m: Mods<'_, '_>, special: &[(&str, MemOrder)]) -> MemOrder {
    let common = m.pick(&[
        ("weak", MemOrder::Weak),
        ("volatile", MemOrder::Volatile),
        ("relaxed", MemOrder::Relaxed),
    ]);
    let order = common.or_else(|| m.pick(special)).unwrap_or(MemOrder::Weak);
    // `.mmio.relaxed`
    if m.flag("mmio") { MemOrder::Mmio } else { order }
}

/// Consumes cache operators; whether a policy operand follows.
fn cache_hints(m: Mods<'_, '_>) -> bool {
    let mut policy = false;
    while let Some(hint) = m.find(|item| {
        let leveled = item.starts_with("L1::") || item.starts_with("L2::");
        (leveled || CACHE.contains(&item)).then_some(item == "L2::cache_hint")
    }) {
        policy |= hint;
    }
    policy
}

fn vector(m: Mods<'_, '_>) -> usize {
    m.pick(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
}

/// The largest vector of an access, in bytes.
const VECTOR_BYTES_MAX: u32 = 32;

fn total(ty: ScalarType, count: usize) -> u32 {
    ty.bytes() * u32::try_from(count).unwrap_or(8)
}

fn memory_type(m: Mods<'_, '_>) -> Parsed<ScalarType> {
    let ty = m.ty()?;
    m.check(ty != ScalarType::Pred)?;
    Ok(ty)
}

/// Which types an operation has.
fn atom_fits(op: AtomOp, ty: ScalarType) -> bool {
    let width = ty.width();
    let word = matches!(width, Width::B32 | Width::B64);
    match op {
        AtomOp::And | AtomOp::Or | AtomOp::Xor => word && ty.float().is_none(),
        AtomOp::Exch => word,
        AtomOp::Cas => word || width == Width::B16,
        AtomOp::Inc | AtomOp::Dec => ty == ScalarType::U32,
        AtomOp::Add => {
            (word && ty.int().is_some()) || ty.float().is_some_and(|_| ty != ScalarType::F32x2)
        }
        AtomOp::Min | AtomOp::Max => {
            let half = matches!(
                ty,
                ScalarType::F16 | ScalarType::F16x2 | ScalarType::BF16 | ScalarType::BF16x2
            );
            half || (word && ty.int().is_some())
        }
    }
}

fn fence(m: Mods<'_, '_>) -> Parsed<Op> {
    if m.opcode() == "membar" {
        let scope = m.pick(&[("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)]);
        if scope.is_none() {
            let proxy = m.flag("proxy");
            m.check(proxy)?;
            m.find(|_| Some(()));
        }
        m.finish()?;
        return Ok(Op::Fence { kind: FenceKind::SeqCst, scope: scope.unwrap_or(Scope::Gpu) });
    }
    if m.flag("proxy") {
        // All memory here is one proxy.
        while m.find(|_| Some(())).is_some() {}
        return Ok(Op::Fence { kind: FenceKind::AcqRel, scope: Scope::Gpu });
    }
    let kind = m.pick(&[
        ("sc", FenceKind::SeqCst),
        ("acq_rel", FenceKind::AcqRel),
        ("acquire", FenceKind::AcqRel),
        ("release", FenceKind::AcqRel),
    ]);
    let scope = m.scope();
    m.check(scope.is_some())?;
    m.finish()?;
    Ok(Op::Fence { kind: kind.unwrap_or(FenceKind::AcqRel), scope: scope.unwrap_or(Scope::Gpu) })
}
