//! The dotted modifiers of an instruction, consumed by its family one by one.

use super::{Parsed, shorten};
use crate::error::ParseErrorKind;
use crate::ir::{Rounding, ScalarType, Scope, Space};

const MAX_MODIFIERS: usize = 24;

/// An opcode with its modifiers. Those not consumed in the end make it an unknown instruction.
#[derive(Debug)]
pub(super) struct Modifiers<'a> {
    opcode: &'a str,
    items: [&'a str; MAX_MODIFIERS],
    count: usize,
    used: u32,
}

impl<'a> Modifiers<'a> {
    pub(super) const fn new(opcode: &'a str) -> Self {
        Self { opcode, items: [""; MAX_MODIFIERS], count: 0, used: 0 }
    }

    pub(super) fn push(&mut self, item: &'a str) -> Parsed<()> {
        match self.items.get_mut(self.count) {
            Some(place) => *place = item,
            None => return Err(self.unknown()),
        }
        self.count += 1;
        Ok(())
    }

    pub(super) const fn opcode(&self) -> &'a str {
        self.opcode
    }

    /// The error that the instruction is not known.
    pub(super) fn unknown(&self) -> ParseErrorKind {
        let mut text = shorten(self.opcode).to_owned();
        for item in self.items.iter().take(self.count) {
            text.push('.');
            text.push_str(shorten(item));
        }
        ParseErrorKind::UnknownInstruction(text)
    }

    /// Consumes the first modifier that the function maps to something.
    pub(super) fn find<T>(&mut self, map: impl Fn(&str) -> Option<T>) -> Option<T> {
        for (i, item) in self.items.iter().take(self.count).enumerate() {
            if self.used & (1 << i) == 0
                && let Some(found) = map(item)
            {
                self.used |= 1 << i;
                return Some(found);
            }
        }
        None
    }

    /// Consumes the first modifier that stands in the table.
    pub(super) fn pick<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        self.find(|item| table.iter().find(|(name, _)| *name == item).map(|&(_, value)| value))
    }

    /// As [`Self::pick`], but one of them must be there.
    pub(super) fn need<T: Copy>(&mut self, table: &[(&str, T)]) -> Parsed<T> {
        self.pick(table).ok_or_else(|| self.unknown())
    }

    /// Consumes the modifier if it is there.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.find(|item| (item == name).then_some(())).is_some()
    }

    pub(super) fn opt_ty(&mut self) -> Option<ScalarType> {
        self.find(scalar_type)
    }

    pub(super) fn ty(&mut self) -> Parsed<ScalarType> {
        self.opt_ty().ok_or_else(|| self.unknown())
    }

    pub(super) fn rounding(&mut self) -> Option<Rounding> {
        self.pick(&[
            ("rn", Rounding::Nearest),
            ("rz", Rounding::Zero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ])
    }

    /// A state space, or generic.
    pub(super) fn space(&mut self) -> Space {
        self.find(space).unwrap_or(Space::Generic)
    }

    pub(super) fn scope(&mut self) -> Option<Scope> {
        self.pick(&[
            ("cta", Scope::Cta),
            ("cluster", Scope::Cluster),
            ("gpu", Scope::Gpu),
            ("sys", Scope::Sys),
        ])
    }

    /// Fails if a condition on the modifiers does not hold.
    pub(super) fn check(&self, condition: bool) -> Parsed<()> {
        if condition { Ok(()) } else { Err(self.unknown()) }
    }

    /// Fails if modifiers are left.
    pub(super) fn finish(&self) -> Parsed<()> {
        self.check(self.used.count_ones() as usize == self.count)
    }
}

/// A state space by its name.
pub(super) fn space(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "const" => Space::Const,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

/// A scalar type by its name.
pub(super) fn scalar_type(name: &str) -> Option<ScalarType> {
    Some(match name {
        "b8" => ScalarType::B8,
        "b16" => ScalarType::B16,
        "b32" => ScalarType::B32,
        "b64" => ScalarType::B64,
        "b128" => ScalarType::B128,
        "u8" => ScalarType::U8,
        "u16" => ScalarType::U16,
        "u32" => ScalarType::U32,
        "u64" => ScalarType::U64,
        "s8" => ScalarType::S8,
        "s16" => ScalarType::S16,
        "s32" => ScalarType::S32,
        "s64" => ScalarType::S64,
        "f16" => ScalarType::F16,
        "f16x2" => ScalarType::F16x2,
        "bf16" => ScalarType::BF16,
        "bf16x2" => ScalarType::BF16x2,
        "tf32" => ScalarType::TF32,
        "f32" => ScalarType::F32,
        "f32x2" => ScalarType::F32x2,
        "f64" => ScalarType::F64,
        "u16x2" => ScalarType::U16x2,
        "s16x2" => ScalarType::S16x2,
        "e4m3x2" => ScalarType::E4M3x2,
        "e5m2x2" => ScalarType::E5M2x2,
        "e4m3" => ScalarType::E4M3,
        "e5m2" => ScalarType::E5M2,
        "pred" => ScalarType::Pred,
        _ => return None,
    })
}
