//! Initialisers of variables.

use super::constant::Constant;
use super::directive::Shape;
use super::scope::Name;
use super::{MAX_DEPTH, MAX_INITIALIZER_BYTES, Parsed, Parser, operand_error, undefined};
use crate::error::ParseErrorKind;
use crate::ir::{Initializer, Relocation, ScalarType, Symbol};
use crate::lexer::Token;

/// An initialiser being read.
struct Fill<'d> {
    ty: ScalarType,
    /// Elements per dimension, that of vectors included.
    dimensions: &'d [u64],
    init: Initializer,
}

/// An element: bits, or an address.
enum Element {
    Bits(u64),
    Address { symbol: Symbol, addend: i64, generic: bool, mask: Option<u64> },
}

impl<'a> Parser<'a> {
    /// The part after `=`. Sets the first bound of an array if it is missing.
    pub(super) fn initializer(
        &mut self,
        shape: Shape,
        dimensions: &mut [u64],
    ) -> Parsed<Initializer> {
        let mut all = dimensions.to_vec();
        if shape.vector > 1 {
            all.push(u64::from(shape.vector));
        }
        let mut fill = Fill { ty: shape.ty, dimensions: &all, init: Initializer::default() };
        let elements = if self.at(b'{') {
            self.list(&mut fill, 0, 0, 0)?
        } else {
            self.element(&mut fill, 0)?;
            1
        };
        if dimensions.first() == Some(&0) {
            let rest: u64 = all.iter().skip(1).product();
            let bound = elements.div_ceil(rest.max(1));
            if let Some(first) = dimensions.first_mut() {
                *first = bound;
            }
        }
        Ok(fill.init)
    }

    /// `{ … }` of a dimension, beginning at an element; the number of elements from 0 on that are
    /// covered then.
    fn list(&mut self, fill: &mut Fill<'_>, level: usize, start: u64, depth: u32) -> Parsed<u64> {
        if depth > MAX_DEPTH {
            let limit = u64::from(MAX_DEPTH);
            return Err(ParseErrorKind::Limit { what: "depth of an initialiser", limit });
        }
        self.expect(b'{')?;
        // Elements in one item of this list, and in all of it (0 if its bound is missing).
        let item: u64 = fill.dimensions.iter().skip(level + 1).product::<u64>().max(1);
        let bound = fill.dimensions.get(level).copied().unwrap_or(1).saturating_mul(item);
        let mut next = start;
        while !self.accept(b'}')? {
            if bound != 0 && next >= start.saturating_add(bound) {
                return operand_error("too many elements in an initialiser");
            }
            if self.at(b'{') {
                self.list(fill, level + 1, next, depth + 1)?;
                next = next.saturating_add(item);
            } else {
                self.element(fill, next)?;
                next = next.saturating_add(1);
            }
            if !self.accept(b',')? {
                self.expect(b'}')?;
                break;
            }
        }
        Ok(next)
    }

    fn element(&mut self, fill: &mut Fill<'_>, index: u64) -> Parsed<()> {
        let bytes = fill.ty.bytes();
        let offset = index.saturating_mul(u64::from(bytes));
        match self.element_value(fill.ty)? {
            Element::Bits(0) => Ok(()),
            Element::Bits(bits) => {
                let end = offset.saturating_add(u64::from(bytes));
                let growth = end.saturating_sub(fill.init.bytes.len() as u64);
                let Some(left) = self.initializer_left.checked_sub(growth) else {
                    let limit = MAX_INITIALIZER_BYTES;
                    return Err(ParseErrorKind::Limit { what: "size of initialisers", limit });
                };
                self.initializer_left = left;
                write(&mut fill.init.bytes, offset, bits, bytes)
            }
            Element::Address { symbol, addend, generic, mask } => {
                let first_byte = mask.map_or(Ok(0), |mask| mask_byte(mask, bytes))?;
                let bytes = u8::try_from(bytes).unwrap_or(8);
                let reloc = Relocation { offset, bytes, first_byte, symbol, addend, generic };
                fill.init.relocations.push(reloc);
                Ok(())
            }
        }
    }

    fn element_value(&mut self, ty: ScalarType) -> Parsed<Element> {
        if self.at_constant() {
            let value = self.constant()?;
            if let Constant::Int(mask) = value
                && self.accept(b'(')?
            {
                let mask = u64::try_from(mask).ok();
                let element = self.symbol_element(mask)?;
                self.expect(b')')?;
                return Ok(element);
            }
            return Ok(Element::Bits(value.bits(ty)?));
        }
        if ty.float().is_some() {
            return self.error("a constant");
        }
        self.symbol_element(None)
    }

    /// `name`, `name + 4` or `generic(name) + 4`.
    fn symbol_element(&mut self, mask: Option<u64>) -> Parsed<Element> {
        let mut name = self.word()?;
        let generic = name == "generic" && self.accept(b'(')?;
        let mut addend = 0i64;
        if generic {
            name = self.word()?;
            addend = self.offset()?;
        }
        let symbol = match self.body_variable(name)? {
            Some(symbol) => symbol,
            None => match self.refer(name) {
                Some(symbol) => symbol,
                None => return undefined(name),
            },
        };
        if generic {
            self.expect(b')')?;
        }
        addend = addend.wrapping_add(self.offset()?);
        Ok(Element::Address { symbol, addend, generic, mask })
    }

    fn body_variable(&mut self, name: &'a str) -> Parsed<Option<Symbol>> {
        if self.token == Token::End {
            return self.error("an initialiser");
        }
        Ok(match self.body.find(name)? {
            Some(Name::Variable(id)) => Some(Symbol::Variable(id)),
            _ => None,
        })
    }
}

/// Which byte `0xFF00…` selects.
fn mask_byte(mask: u64, bytes: u32) -> Parsed<u8> {
    let shift = mask.trailing_zeros();
    let selected = mask.checked_shr(shift).unwrap_or(0);
    let whole = if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
    if !shift.is_multiple_of(8) || selected != whole {
        return operand_error("a mask that does not select the bytes of the element");
    }
    Ok(u8::try_from(shift / 8).unwrap_or(0))
}

fn write(out: &mut Vec<u8>, offset: u64, bits: u64, bytes: u32) -> Parsed<()> {
    let end = offset.saturating_add(u64::from(bytes));
    let (Ok(start), Ok(end)) = (usize::try_from(offset), usize::try_from(end)) else {
        return operand_error("an initialiser beyond the address space");
    };
    if out.len() < end {
        out.resize(end, 0);
    }
    if let Some(place) = out.get_mut(start..end) {
        for (byte, value) in place.iter_mut().zip(bits.to_le_bytes()) {
            *byte = value;
        }
    }
    Ok(())
}
