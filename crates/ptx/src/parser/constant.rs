//! Literals and constant expressions, and their conversion to the bits of a type.

use super::{MAX_DEPTH, Parsed, Parser, operand_error};
use crate::error::ParseErrorKind;
use crate::ir::{ScalarType, Width};
use crate::lexer::Token;

const WRONG_FLOAT: &str = "a floating-point constant in an instruction of another type";

/// Value of a constant expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    /// Any integer of 64 bits, signed or not.
    Int(i128),
    /// `0f…`
    F32(f32),
    /// `0d…`, decimal fractions.
    F64(f64),
}

impl Constant {
    /// The bits of the constant as a value of the type, zero-extended.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "PTX truncates integers to the width and rounds doubles to the type"
    )]
    pub(super) fn bits(self, ty: ScalarType) -> Parsed<u64> {
        let is_f32 = matches!(ty, ScalarType::F32 | ScalarType::TF32);
        let bits = match (self, ty) {
            (Self::Int(value), ScalarType::F32 | ScalarType::F64) if value != 0 => {
                return operand_error("an integer constant in a floating-point instruction");
            }
            (Self::Int(value), _) => value as u64,
            (Self::F32(_) | Self::F64(_), _) if ty.int().is_some() => {
                return operand_error(WRONG_FLOAT);
            }
            (Self::F32(value), ScalarType::F64) => f64::from(value).to_bits(),
            (Self::F32(value), _) if ty.bytes() == 4 => u64::from(value.to_bits()),
            (Self::F64(value), _) if is_f32 || ty.width() == Width::B32 => {
                u64::from((value as f32).to_bits())
            }
            (Self::F64(value), _) if ty.bytes() == 8 => value.to_bits(),
            (Self::F32(_) | Self::F64(_), _) => {
                return operand_error(
                    "a floating-point constant in an instruction of another type",
                );
            }
        };
        Ok(truncate(bits, ty.width()))
    }

    fn int(self) -> Parsed<i128> {
        match self {
            Self::Int(value) => Ok(value),
            Self::F32(_) | Self::F64(_) => {
                operand_error("a floating-point constant for an integer")
            }
        }
    }
}

/// The low bits of a value.
pub(super) const fn truncate(bits: u64, width: Width) -> u64 {
    match width {
        Width::Pred => (bits != 0) as u64,
        Width::B8 => bits & 0xFF,
        Width::B16 => bits & 0xFFFF,
        Width::B32 => bits & 0xFFFF_FFFF,
        Width::B64 | Width::B128 => bits,
    }
}

/// Binding strength of a binary operator; higher binds tighter.
const fn strength(token: Token<'_>) -> Option<(u8, u8)> {
    let Token::Punct(c) = token else { return None };
    Some(match c {
        b'*' | b'/' | b'%' => (c, 6),
        b'+' | b'-' => (c, 5),
        b'<' | b'>' => (c, 4),
        b'&' => (c, 3),
        b'^' => (c, 2),
        b'|' => (c, 1),
        _ => return None,
    })
}

impl Parser<'_> {
    /// Whether a constant expression begins here.
    pub(super) fn at_constant(&self) -> bool {
        match self.token {
            Token::Int(_) | Token::F32(_) | Token::F64(_) => true,
            Token::Punct(c) => matches!(c, b'-' | b'+' | b'~' | b'(' | b'!'),
            Token::Word(word) => word == "WARP_SZ",
            Token::Dotted(_) | Token::Str | Token::End => false,
        }
    }

    pub(super) fn constant(&mut self) -> Parsed<Constant> {
        self.binary(1, 0)
    }

    pub(super) fn constant_int(&mut self) -> Parsed<i128> {
        self.constant()?.int()
    }

    fn binary(&mut self, least: u8, depth: u32) -> Parsed<Constant> {
        let mut left = self.unary(depth)?;
        while let Some((op, level)) = strength(self.token).filter(|&(_, level)| level >= least) {
            self.advance()?;
            if matches!(op, b'<' | b'>') {
                self.expect(op)?;
            }
            let right = self.binary(level + 1, depth + 1)?;
            left = apply(op, left, right)?;
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Parsed<Constant> {
        if depth > MAX_DEPTH {
            let limit = u64::from(MAX_DEPTH);
            return Err(ParseErrorKind::Limit { what: "depth of an expression", limit });
        }
        match self.advance()? {
            Token::Int(value) => Ok(Constant::Int(i128::from(value))),
            Token::F32(bits) => Ok(Constant::F32(f32::from_bits(bits))),
            Token::F64(bits) => Ok(Constant::F64(f64::from_bits(bits))),
            Token::Word("WARP_SZ") => Ok(Constant::Int(32)),
            Token::Punct(b'+') => self.unary(depth + 1),
            Token::Punct(b'-') => Ok(match self.unary(depth + 1)? {
                Constant::Int(value) => Constant::Int(wrap(-value)),
                Constant::F32(value) => Constant::F32(-value),
                Constant::F64(value) => Constant::F64(-value),
            }),
            Token::Punct(b'~') => Ok(Constant::Int(!self.unary(depth + 1)?.int()?)),
            Token::Punct(b'!') => Ok(Constant::Int(i128::from(self.unary(depth + 1)?.int()? == 0))),
            Token::Punct(b'(') => {
                // A cast such as `(.u64)` changes nothing in 128-bit arithmetic.
                if matches!(self.token, Token::Dotted("u64" | "s64")) {
                    self.advance()?;
                    self.expect(b')')?;
                    return self.unary(depth + 1);
                }
                let value = self.binary(1, depth + 1)?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => self.error("a constant"),
        }
    }
}

fn apply(op: u8, left: Constant, right: Constant) -> Parsed<Constant> {
    let (a, b) = (left.int()?, right.int()?);
    let shift = u32::try_from(b).ok().filter(|&n| n < 64);
    let value = match op {
        b'*' => a.checked_mul(b),
        b'/' => a.checked_div(b),
        b'%' => a.checked_rem(b),
        b'+' => a.checked_add(b),
        b'-' => a.checked_sub(b),
        b'<' => shift.and_then(|n| a.checked_shl(n)),
        b'>' => shift.and_then(|n| a.checked_shr(n)),
        b'&' => Some(a & b),
        b'^' => Some(a ^ b),
        _ => Some(a | b),
    };
    value.map_or_else(
        || operand_error("a constant expression without value"),
        |value| Ok(Constant::Int(wrap(value))),
    )
}

/// Keeps an intermediate value in 65 bits, so that `i128` arithmetic cannot overflow.
const fn wrap(value: i128) -> i128 {
    if value > u64::MAX as i128 || value < i64::MIN as i128 {
        value & u64::MAX as i128
    } else {
        value
    }
}
