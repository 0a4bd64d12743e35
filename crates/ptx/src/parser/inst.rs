//! Instructions, one file per family.

mod arithmetic;
mod bits;
mod compare;
mod control;
mod convert;
mod float;
mod matrix;
mod memory;
mod video;
mod warp;

use super::modifiers::Modifiers;
use super::{Parsed, Parser};
use crate::ir::{Op, Operand, Reg, ScalarType};
use crate::lexer::Token;

type Mods<'m, 'a> = &'m mut Modifiers<'a>;

impl<'a> Parser<'a> {
    /// The operands of an instruction whose opcode and modifiers have been read.
    pub(super) fn instruction(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "add" | "sub" | "addc" | "subc" | "mul" | "mad" | "madc" | "mul24" | "mad24"
            | "sad" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "dp4a" | "dp2a" => {
                self.arithmetic(m)
            }
            "fma" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "testp"
            | "copysign" => self.float(m),
            "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "bfe"
            | "bfi" | "bfind" | "brev" | "popc" | "clz" | "bmsk" | "szext" | "fns" | "prmt" => {
                self.bits(m)
            }
            "set" | "setp" | "selp" | "slct" => self.compare(m),
            "mov" | "cvt" | "cvta" | "isspacep" => self.convert(m),
            "ld" | "ldu" | "st" | "atom" | "red" | "fence" | "membar" | "cp" | "prefetch"
            | "prefetchu" | "discard" | "applypriority" | "createpolicy" | "alloca"
            | "stacksave" | "stackrestore" => self.memory(m),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep"
            | "griddepcontrol" | "pmevent" | "setmaxnreg" => self.control(m),
            "bar" | "barrier" | "shfl" | "vote" | "match" | "activemask" | "redux" | "elect" => {
                self.warp(m)
            }
            "ldmatrix" | "stmatrix" | "mma" | "wmma" => self.matrix(m),
            _ if m.opcode().starts_with('v') => self.video(m),
            _ => Err(m.unknown()),
        }
    }

    /// `d, a`
    fn dst_a(&mut self, ty: ScalarType) -> Parsed<(Reg, Operand)> {
        Ok((self.dst(ty.width())?, self.src(ty)?))
    }

    /// `d, a, b`
    fn dst_ab(&mut self, ty: ScalarType) -> Parsed<(Reg, Operand, Operand)> {
        Ok((self.dst(ty.width())?, self.src(ty)?, self.src(ty)?))
    }

    /// `d, a, b, c`
    fn dst_abc(&mut self, ty: ScalarType) -> Parsed<(Reg, Operand, Operand, Operand)> {
        Ok((self.dst(ty.width())?, self.src(ty)?, self.src(ty)?, self.src(ty)?))
    }

    /// Skips operands that have no meaning for an engine.
    fn skip_operands(&mut self) -> Parsed<()> {
        while !self.at(b';') {
            if matches!(self.token, Token::End | Token::Punct(b'{' | b'}')) {
                return self.error("`;`");
            }
            self.advance()?;
        }
        Ok(())
    }
}
