//! The instruction dispatch, control flow, predicates and calls.

use weft_ptx::ir::{
    BarrierAction, BitBinaryOp, BoolOp, Call, CallArg, CallTarget, Combine, CompareOp, Op as Ir,
    Operand, Pred, Reg, ScalarType, Width,
};

use super::super::compare::{self as c, result};
use super::super::control::{self, barrier_flags};
use super::super::program::{CallSite, ParamHome};
use super::super::{bits, float, int};
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

impl FunctionLowering<'_> {
    /// Emits the operations of one instruction.
    #[expect(clippy::too_many_lines, reason = "one table of all instructions")]
    pub(super) fn op(&mut self, op: &Ir) -> Done {
        match op {
            Ir::Mov { .. }
            | Ir::Pack { .. }
            | Ir::Unpack { .. }
            | Ir::Cvt { .. }
            | Ir::CvtPair { .. }
            | Ir::CvtPack { .. } => self.conversion(op),
            Ir::CvtaTo { .. }
            | Ir::CvtaFrom { .. }
            | Ir::Isspacep { .. }
            | Ir::Ld { .. }
            | Ir::St { .. }
            | Ir::Atom { .. }
            | Ir::Fence { .. }
            | Ir::CpAsync { .. }
            | Ir::CpAsyncCommit
            | Ir::CpAsyncWait { .. }
            | Ir::Alloca { .. }
            | Ir::StackSave { .. }
            | Ir::StackRestore { .. } => self.memory(op),
            Ir::IntBinary { op, ty, sat, relu, dst, a, b } => {
                self.int_binary(*op, *ty, *sat, *dst, &[*a, *b])?;
                if *relu { self.relu(*ty, *dst) } else { Ok(()) }
            }
            Ir::MulWide { ty, dst, a, b } => self.mul_wide(*ty, *dst, *a, *b),
            Ir::Mad { mode, ty, sat, dst, a, b, c } => {
                self.mad((*mode, *ty, *sat), *dst, [*a, *b, *c])
            }
            Ir::Mad24 { high, ty, sat, dst, a, b, c } => {
                self.mad24((*high, *ty, *sat), *dst, [*a, *b, *c])
            }
            Ir::AddCarry { .. } | Ir::MadCarry { .. } => self.carry(op),
            Ir::Sad { ty, dst, a, b, c } => self.sad(*ty, *dst, [*a, *b, *c]),
            Ir::IntUnary { op, ty, dst, a } => self.int_unary(*op, *ty, *dst, *a),
            Ir::Dp4a { .. } | Ir::Dp2a { .. } => self.dot(op),
            Ir::BitBinary { op, width, dst, a, b } => self.bit_binary(*op, *width, *dst, [*a, *b]),
            Ir::BitUnary { op, width, dst, a } => self.bit_unary(*op, *width, *dst, *a),
            Ir::Lop3 { .. } => self.lop3(op),
            Ir::Shl { .. } | Ir::Shr { .. } | Ir::Shf { .. } => self.shift(op),
            Ir::Bfe { .. }
            | Ir::Bfi { .. }
            | Ir::Bfind { .. }
            | Ir::Bmsk { .. }
            | Ir::Szext { .. }
            | Ir::Fns { .. }
            | Ir::Prmt { .. } => self.field(op),
            Ir::FloatBinary { .. }
            | Ir::Fma { .. }
            | Ir::FloatUnary { .. }
            | Ir::Testp { .. }
            | Ir::Copysign { .. } => self.float(op),
            Ir::Setp { .. } | Ir::Set { .. } | Ir::Selp { .. } | Ir::Slct { .. } => {
                self.comparison(op)
            }
            Ir::Bra { .. }
            | Ir::BrxIdx { .. }
            | Ir::Call(_)
            | Ir::Ret
            | Ir::Exit
            | Ir::Trap
            | Ir::Brkpt
            | Ir::Nanosleep { .. }
            | Ir::Nop
            | Ir::Barrier { .. } => self.control(op),
            Ir::WarpSync { .. }
            | Ir::Shfl { .. }
            | Ir::Vote { .. }
            | Ir::Match { .. }
            | Ir::Activemask { .. }
            | Ir::Redux { .. }
            | Ir::Elect { .. }
            | Ir::Ldmatrix { .. }
            | Ir::Stmatrix { .. }
            | Ir::Mma { .. }
            | Ir::WmmaLoad { .. }
            | Ir::WmmaStore { .. }
            | Ir::WmmaMma { .. } => self.warp(op),
            Ir::Video { .. } | Ir::VideoMad { .. } | Ir::VideoPacked { .. } => self.video(op),
        }
    }

    fn control(&mut self, op: &Ir) -> Done {
        match op {
            Ir::Bra { target, .. } => self.jump(*target),
            Ir::BrxIdx { index, targets, .. } => {
                let start = self.target_list(targets);
                let row = self.r32(Operand::Reg(*index))?;
                self.emit::<control::BranchIndexed>(WORDS.d(start).a(row).b(targets.len() as u32));
            }
            Ir::Call(call) => self.call(call)?,
            Ir::Ret => self.end(),
            Ir::Exit => self.emit::<control::Exit>(WORDS),
            Ir::Trap | Ir::Brkpt => self.emit::<control::Trap>(WORDS),
            Ir::Nanosleep { duration_ns } => {
                let row = self.r32(*duration_ns)?;
                self.emit::<control::Nanosleep>(WORDS.a(row));
            }
            Ir::Barrier { action, id, threads, .. } => self.barrier(*action, *id, *threads)?,
            _ => self.emit::<control::Nop>(WORDS),
        }
        Ok(())
    }

    fn barrier(&mut self, action: BarrierAction, id: Operand, threads: Option<Operand>) -> Done {
        let id = self.r32(id)?;
        let mut flags = 0;
        let count = match threads {
            Some(threads) => {
                flags |= barrier_flags::COUNTED;
                self.r32(threads)?
            }
            None => 0,
        };
        if action != BarrierAction::Arrive {
            flags |= barrier_flags::WAIT;
        }
        let vote = match action {
            BarrierAction::Popc { pred, .. }
            | BarrierAction::And { pred, .. }
            | BarrierAction::Or { pred, .. } => {
                let (row, inverted) = self.predicate(pred);
                flags |= barrier_flags::REDUCE;
                if inverted {
                    flags |= barrier_flags::INVERT;
                }
                row
            }
            BarrierAction::Sync | BarrierAction::Arrive => 0,
        };
        self.emit::<control::Barrier>(WORDS.a(id).b(count).c(vote).imm(flags));
        match action {
            BarrierAction::Popc { dst, .. } => {
                self.emit::<control::BarrierCount>(WORDS.d(self.dst(dst)));
            }
            BarrierAction::And { dst, .. } => {
                self.emit::<control::BarrierVote>(WORDS.d(self.dst(dst)).imm(1));
            }
            BarrierAction::Or { dst, .. } => {
                self.emit::<control::BarrierVote>(WORDS.d(self.dst(dst)));
            }
            BarrierAction::Sync | BarrierAction::Arrive => {}
        }
        Ok(())
    }

    fn call(&mut self, call: &Call) -> Done {
        let args = call.args.iter().map(|a| self.argument(a)).collect::<Result<_, _>>()?;
        let returns = call.returns.iter().map(|a| self.argument(a)).collect::<Result<_, _>>()?;
        let site = self.program.calls.len() as u32;
        self.program.calls.push(CallSite { args, returns });
        match &call.target {
            CallTarget::Direct(id) => {
                let callee = self.program.functions.get(id.0 as usize);
                if callee.is_none_or(|f| !f.callable) {
                    let name = callee.map(|f| f.name.clone()).unwrap_or_default();
                    return Err(Refusal(format!("function {name} is not available")));
                }
                self.emit::<control::Call>(WORDS.d(site).a(id.0));
            }
            CallTarget::Indirect { pointer, .. } => {
                let row = self.r64(Operand::Reg(*pointer))?;
                self.emit::<control::CallIndirect>(WORDS.d(site).a(row));
            }
        }
        Ok(())
    }

    fn argument(&mut self, arg: &CallArg) -> Result<ParamHome, Refusal> {
        Ok(match *arg {
            CallArg::Slot(slot) => ParamHome::Slot { offset: slot.offset, bytes: slot.bytes },
            CallArg::Value { value: Operand::Reg(reg), bytes }
                if !self.known.contains_key(&reg) =>
            {
                self.rows.register_home(self.function, reg, bytes)
            }
            CallArg::Value { value, bytes } if bytes > 4 => {
                ParamHome::Row64 { row: self.r64(value)?, bytes }
            }
            CallArg::Value { value, bytes } => ParamHome::Row32 { row: self.r32(value)?, bytes },
        })
    }

    /// The row of a predicate operand.
    pub(super) fn pred_operand(&mut self, operand: Operand) -> Result<u32, Refusal> {
        match operand {
            Operand::Reg(reg) => Ok(self.rows.row(reg)),
            Operand::Imm(bits) => Ok(self.predicate(Pred::Const(bits & 1 != 0)).0),
            Operand::Special(_) | Operand::Address(_) | Operand::Function(_) => {
                Err(Refusal::new("a value where a predicate is needed"))
            }
        }
    }

    pub(super) fn pred_logic(&mut self, op: BitBinaryOp, dst: Reg, ops: [Operand; 2]) -> Done {
        let (a, b) = (self.pred_operand(ops[0])?, self.pred_operand(ops[1])?);
        let code = match op {
            BitBinaryOp::And => 0,
            BitBinaryOp::Or => 1,
            BitBinaryOp::Xor => 2,
        };
        self.emit::<c::PredLogic>(WORDS.d(self.dst(dst)).a(a).b(b).imm(code));
        Ok(())
    }

    fn lop3(&mut self, op: &Ir) -> Done {
        let Ir::Lop3 { table, dst, a, b, c, bool } = *op else {
            return Err(Refusal::new("not a lop3"));
        };
        let (a, b, c) = (self.r32(a)?, self.r32(b)?, self.r32(c)?);
        let d = self.dst32_or_temp(dst);
        self.emit::<bits::Lop3>(WORDS.d(d).a(a).b(b).c(c).imm(u64::from(table)));
        if let Some((op, reg, pred)) = bool {
            let zero = self.r32(Operand::Imm(0))?;
            let (imm, with) = self.combination(Some(Combine { op, pred }), None);
            self.emit::<c::NeU32>(WORDS.d(self.dst(reg)).a(d).b(zero).c(with).imm(imm));
        }
        Ok(())
    }

    /// The `imm` and `c` of a comparison's result.
    fn combination(&mut self, combine: Option<Combine>, complement: Option<Reg>) -> (u64, u32) {
        let mut imm = 0;
        let mut with = 0;
        if let Some(Combine { op, pred }) = combine {
            let (row, inverted) = self.predicate(pred);
            with = row;
            imm |= match op {
                BoolOp::And => result::AND,
                BoolOp::Or => result::OR,
                BoolOp::Xor => result::XOR,
            };
            if inverted {
                imm |= result::INVERT;
            }
        }
        if let Some(reg) = complement {
            imm |= u64::from(self.dst(reg) + 1) << result::COMPLEMENT_SHIFT;
        }
        (imm, with)
    }

    fn comparison(&mut self, op: &Ir) -> Done {
        match *op {
            Ir::Setp { op, ty, ftz, combine, dst, complement, a, b } => {
                if matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2) {
                    let rows = [self.pred_or_temp(dst), self.pred_or_temp(complement)];
                    return self.compare_pair(op, ty, combine, rows, [a, b]);
                }
                let (imm, with) = self.combination(combine, complement);
                let d = self.pred_or_temp(dst);
                self.compare(op, ty, ftz, d, (imm, with), [a, b])
            }
            Ir::Set { op, to, ty, ftz, combine, dst, a, b } => {
                if matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2) {
                    return self.set_pair((op, to, ty), combine, dst, [a, b]);
                }
                let (imm, with) = self.combination(combine, None);
                let p = self.temp_pred();
                self.compare(op, ty, ftz, p, (imm, with), [a, b])?;
                let one = match to {
                    ScalarType::F32 => u64::from(1f32.to_bits()),
                    ScalarType::F16 => 0x3c00,
                    ScalarType::BF16 => 0x3f80,
                    ScalarType::U16 | ScalarType::S16 => 0xffff,
                    _ => 0xffff_ffff,
                };
                self.emit::<c::PredToRow>(WORDS.d(self.dst(dst)).a(p).imm(one));
                Ok(())
            }
            Ir::Selp { width, dst, a, b, pred } => self.select(width, dst, [a, b], pred),
            Ir::Slct { width, float, ftz, dst, a, b, c } => {
                let mut z = self.r32(c)?;
                if ftz {
                    let t = self.temp32();
                    self.emit::<float::FlushF32>(WORDS.d(t).a(z));
                    z = t;
                }
                let d = self.dst(dst);
                let wide = width == Width::B64;
                let (x, y) =
                    if wide { (self.r64(a)?, self.r64(b)?) } else { (self.r32(a)?, self.r32(b)?) };
                match (wide, float) {
                    (false, false) => self.emit::<c::SlctS32>(WORDS.d(d).a(x).b(y).c(z)),
                    (false, true) => self.emit::<c::SlctF32>(WORDS.d(d).a(x).b(y).c(z)),
                    (true, false) => self.emit::<c::SlctS64>(WORDS.d(d).a(x).b(y).c(z)),
                    (true, true) => self.emit::<c::SlctF64>(WORDS.d(d).a(x).b(y).c(z)),
                }
                Ok(())
            }
            _ => Err(Refusal::new("not a comparison")),
        }
    }

    fn select(&mut self, width: Width, dst: Reg, [a, b]: [Operand; 2], pred: Pred) -> Done {
        let (p, inverted) = self.predicate(pred);
        let imm = u64::from(inverted);
        let d = self.dst(dst);
        match width {
            Width::Pred => {
                // d = (a and p) or (b and not p)
                let (a, b, t) = (self.pred_operand(a)?, self.pred_operand(b)?, self.temp_pred());
                let u = self.temp_pred();
                self.emit::<c::PredLogic>(WORDS.d(t).a(a).b(p).imm(imm << 3));
                self.emit::<c::PredLogic>(WORDS.d(u).a(b).b(p).imm((imm ^ 1) << 3));
                self.emit::<c::PredLogic>(WORDS.d(d).a(t).b(u).imm(1));
            }
            Width::B64 => {
                let (a, b) = (self.r64(a)?, self.r64(b)?);
                self.emit::<c::Select64>(WORDS.d(d).a(a).b(b).c(p).imm(imm));
            }
            Width::B128 => return Err(Refusal::new("128-bit selp")),
            Width::B8 | Width::B16 | Width::B32 => {
                let (a, b) = (self.r32(a)?, self.r32(b)?);
                self.emit::<c::Select32>(WORDS.d(d).a(a).b(b).c(p).imm(imm));
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        op: CompareOp,
        ty: ScalarType,
        ftz: bool,
        d: u32,
        (imm, with): (u64, u32),
        [a, b]: [Operand; 2],
    ) -> Done {
        macro_rules! int_table {
            ($a:expr, $b:expr, $eq:ident $ne:ident $lt:ident $le:ident $gt:ident $ge:ident) => {{
                let (a, b) = ($a, $b);
                match op {
                    CompareOp::Eq | CompareOp::Equ => {
                        self.emit::<c::$eq>(WORDS.d(d).a(a).b(b).c(with).imm(imm))
                    }
                    CompareOp::Ne | CompareOp::Neu => {
                        self.emit::<c::$ne>(WORDS.d(d).a(a).b(b).c(with).imm(imm))
                    }
                    CompareOp::Lt | CompareOp::Ltu => {
                        self.emit::<c::$lt>(WORDS.d(d).a(a).b(b).c(with).imm(imm))
                    }
                    CompareOp::Le | CompareOp::Leu => {
                        self.emit::<c::$le>(WORDS.d(d).a(a).b(b).c(with).imm(imm))
                    }
                    CompareOp::Gt | CompareOp::Gtu => {
                        self.emit::<c::$gt>(WORDS.d(d).a(a).b(b).c(with).imm(imm))
                    }
                    CompareOp::Ge | CompareOp::Geu => {
                        self.emit::<c::$ge>(WORDS.d(d).a(a).b(b).c(with).imm(imm))
                    }
                    CompareOp::Num | CompareOp::Nan => {
                        return Err(Refusal::new("num and nan compare floating-point numbers"));
                    }
                }
            }};
        }
        match ty {
            ScalarType::U16 | ScalarType::B16 | ScalarType::U8 | ScalarType::B8 => {
                int_table!(self.r32(a)?, self.r32(b)?, EqU16 NeU16 LtU16 LeU16 GtU16 GeU16);
            }
            ScalarType::S16 => {
                int_table!(self.r32(a)?, self.r32(b)?, EqS16 NeS16 LtS16 LeS16 GtS16 GeS16);
            }
            ScalarType::U32 | ScalarType::B32 => {
                int_table!(self.r32(a)?, self.r32(b)?, EqU32 NeU32 LtU32 LeU32 GtU32 GeU32);
            }
            ScalarType::S32 => {
                int_table!(self.r32(a)?, self.r32(b)?, EqS32 NeS32 LtS32 LeS32 GtS32 GeS32);
            }
            ScalarType::U64 | ScalarType::B64 => {
                int_table!(self.r64(a)?, self.r64(b)?, EqU64 NeU64 LtU64 LeU64 GtU64 GeU64);
            }
            ScalarType::S64 => {
                int_table!(self.r64(a)?, self.r64(b)?, EqS64 NeS64 LtS64 LeS64 GtS64 GeS64);
            }
            ScalarType::F32 | ScalarType::F16 | ScalarType::BF16 => {
                let (mut a, mut b) = (self.as_f32(ty, a)?, self.as_f32(ty, b)?);
                if ftz {
                    let (x, y) = (self.temp32(), self.temp32());
                    self.emit::<float::FlushF32>(WORDS.d(x).a(a));
                    self.emit::<float::FlushF32>(WORDS.d(y).a(b));
                    (a, b) = (x, y);
                }
                self.compare_f32(op, d, (imm, with), a, b);
            }
            ScalarType::F64 => {
                let (a, b) = (self.r64(a)?, self.r64(b)?);
                self.compare_f64(op, d, (imm, with), a, b);
            }
            _ => return Err(Refusal::new("comparison of this type")),
        }
        Ok(())
    }

    fn compare_f32(&mut self, op: CompareOp, d: u32, (imm, with): (u64, u32), a: u32, b: u32) {
        match op {
            CompareOp::Eq => self.emit::<c::EqF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Ne => self.emit::<c::NeF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Lt => self.emit::<c::LtF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Le => self.emit::<c::LeF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Gt => self.emit::<c::GtF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Ge => self.emit::<c::GeF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Equ => self.emit::<c::EquF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Neu => self.emit::<c::NeuF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Ltu => self.emit::<c::LtuF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Leu => self.emit::<c::LeuF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Gtu => self.emit::<c::GtuF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Geu => self.emit::<c::GeuF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Num => self.emit::<c::NumF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Nan => self.emit::<c::NanF32>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
        }
    }

    fn compare_f64(&mut self, op: CompareOp, d: u32, (imm, with): (u64, u32), a: u32, b: u32) {
        match op {
            CompareOp::Eq => self.emit::<c::EqF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Ne => self.emit::<c::NeF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Lt => self.emit::<c::LtF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Le => self.emit::<c::LeF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Gt => self.emit::<c::GtF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Ge => self.emit::<c::GeF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Equ => self.emit::<c::EquF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Neu => self.emit::<c::NeuF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Ltu => self.emit::<c::LtuF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Leu => self.emit::<c::LeuF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Gtu => self.emit::<c::GtuF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Geu => self.emit::<c::GeuF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Num => self.emit::<c::NumF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
            CompareOp::Nan => self.emit::<c::NanF64>(WORDS.d(d).a(a).b(b).c(with).imm(imm)),
        }
    }

    /// The results of both halves beside each other.
    fn set_pair(
        &mut self,
        (op, to, ty): (CompareOp, ScalarType, ScalarType),
        combine: Option<Combine>,
        dst: Reg,
        operands: [Operand; 2],
    ) -> Done {
        let rows = [self.temp_pred(), self.temp_pred()];
        self.compare_pair(op, ty, combine, rows, operands)?;
        let one = match to {
            ScalarType::F16x2 => 0x3c00,
            ScalarType::BF16x2 => 0x3f80,
            _ => 0xffff,
        };
        let (low, high) = (self.temp32(), self.temp32());
        self.emit::<c::PredToRow>(WORDS.d(low).a(rows[0]).imm(one));
        self.emit::<c::PredToRow>(WORDS.d(high).a(rows[1]).imm(one << 16));
        self.emit::<bits::Or32>(WORDS.d(self.dst(dst)).a(low).b(high));
        Ok(())
    }

    /// Compares both halves; the results go to different predicates.
    fn compare_pair(
        &mut self,
        op: CompareOp,
        ty: ScalarType,
        combine: Option<Combine>,
        [low, high]: [u32; 2],
        [a, b]: [Operand; 2],
    ) -> Done {
        let (imm, mut with) = self.combination(combine, None);
        if combine.is_some() {
            // The first result may be the predicate that the second is combined with.
            let kept = self.temp_pred();
            self.emit::<c::PredLogic>(WORDS.d(kept).a(with).imm(3));
            with = kept;
        }
        let (a, b) = (self.r32(a)?, self.r32(b)?);
        let (x, y) = (self.temp32(), self.temp32());
        for (dst, shift) in [(low, 0), (high, 16)] {
            for (to, from) in [(x, a), (y, b)] {
                self.emit::<bits::Low16>(WORDS.d(to).a(from).imm(shift));
                if ty == ScalarType::F16x2 {
                    self.emit::<super::super::convert::F16ToF32>(WORDS.d(to).a(to));
                } else {
                    self.emit::<super::super::convert::BF16ToF32>(WORDS.d(to).a(to));
                }
            }
            self.compare_f32(op, dst, (imm, with), x, y);
        }
        Ok(())
    }

    /// Copies a row to another of the same width.
    pub(super) fn copy_row(&mut self, wide: bool, to: u32, from: u32) {
        if wide {
            self.emit::<int::Mov64>(WORDS.d(to).a(from));
        } else {
            self.emit::<int::Mov32>(WORDS.d(to).a(from));
        }
    }
}
