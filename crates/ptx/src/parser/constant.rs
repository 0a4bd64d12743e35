//! Literals and constant expressions, and their conversion to the bits of a type.

use std::cmp::Ordering;

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

    /// The value, rounded if it is a large integer.
    #[expect(clippy::cast_precision_loss, reason = "constants of mixed types are rounded")]
    fn float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::F32(value) => f64::from(value),
            Self::F64(value) => value,
        }
    }

    /// Whether it is not zero.
    fn holds(self) -> bool {
        match self {
            Self::Int(value) => value != 0,
            Self::F32(value) => value != 0.0,
            Self::F64(value) => value != 0.0,
        }
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

/// A binary operator: C's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binary {
    Mul,
    Div,
    Rem,
    Add,
    Sub,
    Shl,
    Shr,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Xor,
    Or,
    Both,
    Either,
}

/// The operator at a token, how many tokens it has, and how tightly it binds.
const fn operator(first: Token<'_>, second: Token<'_>) -> Option<(Binary, u8, u8)> {
    let Token::Punct(c) = first else { return None };
    let then = if let Token::Punct(then) = second { then } else { 0 };
    Some(match (c, then) {
        (b'*', _) => (Binary::Mul, 1, 10),
        (b'/', _) => (Binary::Div, 1, 10),
        (b'%', _) => (Binary::Rem, 1, 10),
        (b'+', _) => (Binary::Add, 1, 9),
        (b'-', _) => (Binary::Sub, 1, 9),
        (b'<', b'<') => (Binary::Shl, 2, 8),
        (b'>', b'>') => (Binary::Shr, 2, 8),
        (b'<', b'=') => (Binary::Le, 2, 7),
        (b'>', b'=') => (Binary::Ge, 2, 7),
        (b'<', _) => (Binary::Lt, 1, 7),
        (b'>', _) => (Binary::Gt, 1, 7),
        (b'=', b'=') => (Binary::Eq, 2, 6),
        (b'!', b'=') => (Binary::Ne, 2, 6),
        (b'&', b'&') => (Binary::Both, 2, 2),
        (b'|', b'|') => (Binary::Either, 2, 1),
        (b'&', _) => (Binary::And, 1, 5),
        (b'^', _) => (Binary::Xor, 1, 4),
        (b'|', _) => (Binary::Or, 1, 3),
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
        self.choice(0)
    }

    pub(super) fn constant_int(&mut self) -> Parsed<i128> {
        self.constant()?.int()
    }

    /// `a ? b : c`
    fn choice(&mut self, depth: u32) -> Parsed<Constant> {
        let condition = self.binary(1, depth)?;
        if !self.accept(b'?')? {
            return Ok(condition);
        }
        let yes = self.choice(depth + 1)?;
        self.expect(b':')?;
        let no = self.choice(depth + 1)?;
        Ok(if condition.holds() { yes } else { no })
    }

    fn binary(&mut self, least: u8, depth: u32) -> Parsed<Constant> {
        let mut left = self.unary(depth)?;
        loop {
            if !matches!(self.token, Token::Punct(c) if b"*/%+-<>=!&^|".contains(&c)) {
                return Ok(left);
            }
            let second = self.lexer.clone().next().map_or(Token::End, |(token, _)| token);
            let Some((op, tokens, level)) = operator(self.token, second) else { return Ok(left) };
            if level < least {
                return Ok(left);
            }
            for _ in 0..tokens {
                self.advance()?;
            }
            let right = self.binary(level + 1, depth + 1)?;
            left = apply(op, left, right)?;
        }
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
                let value = self.choice(depth + 1)?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => self.error("a constant"),
        }
    }
}

fn apply(op: Binary, left: Constant, right: Constant) -> Parsed<Constant> {
    if !matches!((left, right), (Constant::Int(_), Constant::Int(_))) {
        return apply_float(op, left.float(), right.float());
    }
    let (a, b) = (left.int()?, right.int()?);
    let shift = u32::try_from(b).ok().filter(|&n| n < 64);
    let value = match op {
        Binary::Mul => a.checked_mul(b),
        Binary::Div => a.checked_div(b),
        Binary::Rem => a.checked_rem(b),
        Binary::Add => a.checked_add(b),
        Binary::Sub => a.checked_sub(b),
        Binary::Shl => shift.and_then(|n| a.checked_shl(n)),
        Binary::Shr => shift.and_then(|n| a.checked_shr(n)),
        Binary::And => Some(a & b),
        Binary::Xor => Some(a ^ b),
        Binary::Or => Some(a | b),
        Binary::Both => Some(i128::from(a != 0 && b != 0)),
        Binary::Either => Some(i128::from(a != 0 || b != 0)),
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge | Binary::Eq | Binary::Ne => {
            Some(i128::from(compares(op, a.cmp(&b))))
        }
    };
    value.map_or_else(
        || operand_error("a constant expression without value"),
        |value| Ok(Constant::Int(wrap(value))),
    )
}

fn apply_float(op: Binary, a: f64, b: f64) -> Parsed<Constant> {
    let truth = |holds| Ok(Constant::Int(i128::from(holds)));
    match op {
        Binary::Mul => Ok(Constant::F64(a * b)),
        Binary::Div => Ok(Constant::F64(a / b)),
        Binary::Add => Ok(Constant::F64(a + b)),
        Binary::Sub => Ok(Constant::F64(a - b)),
        Binary::Both => truth(a != 0.0 && b != 0.0),
        Binary::Either => truth(a != 0.0 || b != 0.0),
        Binary::Ne => truth(a != b),
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge | Binary::Eq => {
            truth(a.partial_cmp(&b).is_some_and(|order| compares(op, order)))
        }
        Binary::Rem | Binary::Shl | Binary::Shr | Binary::And | Binary::Xor | Binary::Or => {
            operand_error("an integer operation of floating-point constants")
        }
    }
}

fn compares(op: Binary, order: Ordering) -> bool {
    match op {
        Binary::Lt => order.is_lt(),
        Binary::Le => order.is_le(),
        Binary::Gt => order.is_gt(),
        Binary::Ge => order.is_ge(),
        Binary::Ne => order.is_ne(),
        _ => order.is_eq(),
    }
}

/// Keeps an intermediate value in 65 bits, so that `i128` arithmetic cannot overflow.
const fn wrap(value: i128) -> i128 {
    if value > u64::MAX as i128 || value < i64::MIN as i128 {
        value & u64::MAX as i128
    } else {
        value
    }
}
