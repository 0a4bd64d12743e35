//! Registers and operands as rows.

use weft_ptx::ir::{
    Address, Base, Function, Operand, Param, ParamPlace, Pred, Reg, SpecialReg, Width,
};

use super::super::address::FUNCTION_WINDOW;
use super::super::program::{ParamHome, RowValue};
use super::super::special;
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

/// Which row of which file each register has.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    rows: Vec<u32>,
    pub(super) count32: u32,
    pub(super) count64: u32,
    pub(super) preds: u32,
}

impl Rows {
    pub(super) fn of(function: &Function) -> Self {
        let mut rows = Self::default();
        for width in &function.registers {
            let (count, step) = match width {
                Width::Pred => (&mut rows.preds, 1),
                Width::B8 | Width::B16 | Width::B32 => (&mut rows.count32, 1),
                Width::B64 => (&mut rows.count64, 1),
                Width::B128 => (&mut rows.count64, 2),
            };
            rows.rows.push(*count);
            *count += step;
        }
        rows
    }

    pub(super) fn row(&self, reg: Reg) -> u32 {
        self.rows.get(reg.0 as usize).copied().unwrap_or(0)
    }

    /// Where a parameter or result of a device function lives.
    pub(super) fn home(&self, function: &Function, param: &Param) -> ParamHome {
        match param.place {
            ParamPlace::Offset(offset) => ParamHome::Slot { offset, bytes: param.size_bytes },
            ParamPlace::Register(reg) => self.register_home(function, reg, param.size_bytes),
        }
    }

    pub(super) fn register_home(&self, function: &Function, reg: Reg, bytes: u32) -> ParamHome {
        let row = self.row(reg);
        match function.width(reg) {
            Width::Pred => ParamHome::Pred { row },
            Width::B8 | Width::B16 | Width::B32 => ParamHome::Row32 { row, bytes },
            Width::B64 | Width::B128 => ParamHome::Row64 { row, bytes },
        }
    }
}

/// The constant that a special register is during a launch; `None` for the clocks.
pub(super) fn special_value(special: SpecialReg) -> Option<RowValue> {
    use weft_ptx::ir::Dim;
    let dim = |d: Dim| match d {
        Dim::X => 0,
        Dim::Y => 1,
        Dim::Z => 2,
    };
    Some(match special {
        SpecialReg::Tid(d) => RowValue::Tid(dim(d)),
        SpecialReg::Ntid(d) => RowValue::Ntid(dim(d)),
        SpecialReg::Ctaid(d) => RowValue::Ctaid(dim(d)),
        SpecialReg::Nctaid(d) => RowValue::Nctaid(dim(d)),
        SpecialReg::LaneId => RowValue::LaneId,
        SpecialReg::WarpId => RowValue::WarpId,
        SpecialReg::NwarpId => RowValue::WarpCount,
        SpecialReg::SmId => RowValue::Bits(0),
        SpecialReg::NsmId => RowValue::Bits(1),
        SpecialReg::GridId => RowValue::GridId,
        SpecialReg::LaneMaskEq => RowValue::LaneMask(0),
        SpecialReg::LaneMaskLe => RowValue::LaneMask(1),
        SpecialReg::LaneMaskLt => RowValue::LaneMask(2),
        SpecialReg::LaneMaskGe => RowValue::LaneMask(3),
        SpecialReg::LaneMaskGt => RowValue::LaneMask(4),
        SpecialReg::DynamicSmemSize => RowValue::DynamicShared,
        SpecialReg::GridWorkspaceLow => RowValue::GridWorkspace { high: false },
        SpecialReg::GridWorkspaceHigh => RowValue::GridWorkspace { high: true },
        SpecialReg::TotalSmemSize => RowValue::TotalShared,
        SpecialReg::Clock
        | SpecialReg::ClockHi
        | SpecialReg::Clock64
        | SpecialReg::GlobalTimer
        | SpecialReg::GlobalTimerLo
        | SpecialReg::GlobalTimerHi => return None,
    })
}

impl FunctionLowering<'_> {
    /// What is known of an operand's value before the launch runs.
    pub(super) fn value_of(&self, operand: Operand) -> Option<RowValue> {
        match operand {
            Operand::Imm(bits) => Some(RowValue::Bits(bits)),
            Operand::Reg(reg) => self.known.get(&reg).copied(),
            Operand::Special(special) => special_value(special),
            Operand::Address(address) => self.address_value(address),
            Operand::Function(id) => Some(RowValue::Bits(FUNCTION_WINDOW + u64::from(id.0))),
        }
    }

    /// The value of an address without a register.
    pub(super) fn address_value(&self, address: Address) -> Option<RowValue> {
        let offset = address.offset as u64;
        match address.base {
            Base::Reg(_) => None,
            Base::Variable(var) => Some(if self.is_dynamic_shared(var) {
                RowValue::DynamicBase { offset: offset as u32 }
            } else {
                RowValue::Bits(self.layout.address(var).wrapping_add(offset))
            }),
            Base::Frame => Some(RowValue::FrameAddress { offset: offset as u32 }),
            Base::KernelParam | Base::Absolute => Some(RowValue::Bits(offset)),
        }
    }

    fn is_dynamic_shared(&self, var: weft_ptx::ir::VarId) -> bool {
        self.module.variable(var).is_some_and(|v| v.dynamic_shared)
    }

    /// The 32-bit row of an operand of at most 32 bits.
    pub(super) fn r32(&mut self, operand: Operand) -> Result<u32, Refusal> {
        if let Some(value) = self.value_of(operand) {
            return Ok(self.const32(value));
        }
        match operand {
            Operand::Reg(reg) => match self.function.width(reg) {
                Width::B8 | Width::B16 | Width::B32 => Ok(self.rows.row(reg)),
                Width::Pred => Err(Refusal::new("a predicate where a value is needed")),
                Width::B64 | Width::B128 => {
                    let row = self.temp32();
                    self.emit::<super::super::bits::Low32>(WORDS.d(row).a(self.rows.row(reg)));
                    Ok(row)
                }
            },
            Operand::Special(special) => {
                let wide = self.clock(special);
                let row = self.temp32();
                self.emit::<super::super::bits::Low32>(WORDS.d(row).a(wide));
                Ok(row)
            }
            Operand::Imm(_) | Operand::Address(_) | Operand::Function(_) => {
                Err(Refusal::new("an operand without a value"))
            }
        }
    }

    /// The 64-bit row of an operand; narrower registers are zero-extended.
    pub(super) fn r64(&mut self, operand: Operand) -> Result<u32, Refusal> {
        if let Some(value) = self.value_of(operand) {
            return Ok(self.const64(value));
        }
        match operand {
            Operand::Reg(reg) => match self.function.width(reg) {
                Width::B64 | Width::B128 => Ok(self.rows.row(reg)),
                Width::B8 | Width::B16 | Width::B32 => {
                    let row = self.temp64();
                    self.emit::<super::super::bits::Zext64>(WORDS.d(row).a(self.rows.row(reg)));
                    Ok(row)
                }
                Width::Pred => Err(Refusal::new("a predicate where a value is needed")),
            },
            Operand::Special(special) => Ok(self.clock(special)),
            Operand::Imm(_) | Operand::Address(_) | Operand::Function(_) => {
                Err(Refusal::new("an operand without a value"))
            }
        }
    }

    fn clock(&mut self, special: SpecialReg) -> u32 {
        let row = self.temp64();
        let which = match special {
            SpecialReg::ClockHi => special::CLOCK_HI,
            SpecialReg::GlobalTimer | SpecialReg::GlobalTimerLo => special::TIMER,
            SpecialReg::GlobalTimerHi => special::TIMER_HI,
            _ => special::CLOCK,
        };
        self.emit::<special::Clock>(WORDS.d(row).imm(which));
        row
    }

    /// Predicate row and whether it is inverted.
    pub(super) fn predicate(&mut self, pred: Pred) -> (u32, bool) {
        match pred {
            Pred::Reg { reg, negated } => (self.rows.row(reg), negated),
            Pred::Const(value) => {
                let row = self.temp_pred();
                self.emit::<super::super::compare::PredConst>(WORDS.d(row).imm(u64::from(value)));
                (row, false)
            }
        }
    }

    /// The row of a destination of at most 32 bits.
    pub(super) fn dst(&self, reg: Reg) -> u32 {
        self.rows.row(reg)
    }

    /// The row of an optional destination of 32 bits.
    pub(super) fn dst32_or_temp(&mut self, reg: Option<Reg>) -> u32 {
        match reg {
            Some(reg) => self.rows.row(reg),
            None => self.temp32(),
        }
    }

    /// The row of an optional destination of 64 bits.
    pub(super) fn dst64_or_temp(&mut self, reg: Option<Reg>) -> u32 {
        match reg {
            Some(reg) => self.rows.row(reg),
            None => self.temp64(),
        }
    }

    /// The row of an optional predicate.
    pub(super) fn pred_or_temp(&mut self, reg: Option<Reg>) -> u32 {
        match reg {
            Some(reg) => self.rows.row(reg),
            None => self.temp_pred(),
        }
    }

    /// Whether the register is kept in a 64-bit row.
    pub(super) fn is_wide(&self, reg: Reg) -> bool {
        matches!(self.function.width(reg), Width::B64 | Width::B128)
    }
}
