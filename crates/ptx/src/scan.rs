//! Where functions stand in a text.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the arms list the tokens that delimit functions or are marks"
)]

use std::ops::Range;

use crate::error::ParseErrorKind;
use crate::ir::FunctionKind;
use crate::lexer::{Lexer, Token};

/// A function with a body, by byte ranges of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: FunctionKind,
    /// From behind `.entry` or `.func` to the name: attributes, results.
    pub(crate) before_name: Range<usize>,
    /// Between the parentheses of the parameters; empty (behind the name) if there are none.
    pub(crate) params: Range<usize>,
    /// From behind the parameters to the opening brace: launch bounds.
    pub(crate) directives: Range<usize>,
    /// Between the braces.
    pub(crate) body: Range<usize>,
}

/// What a text consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan<'a> {
    /// Functions with bodies in order.
    pub(crate) units: Vec<Unit<'a>>,
    /// Whether there is a `.debug_info` section, which names labels inside functions.
    pub(crate) debug_info: bool,
}

/// Finds the functions of a text that parses.
pub(crate) fn scan(text: &[u8]) -> Result<Scan<'_>, ParseErrorKind> {
    let mut lexer = Lexer::new(text);
    let mut scan = Scan::default();
    loop {
        match lexer.next()?.0 {
            Token::End => return Ok(scan),
            Token::Dotted("section") => {
                scan.debug_info |= lexer.next()?.0 == Token::Dotted("debug_info");
            }
            Token::Dotted("entry") => unit(&mut lexer, FunctionKind::Kernel, &mut scan)?,
            Token::Dotted("func") => unit(&mut lexer, FunctionKind::Device, &mut scan)?,
            Token::Punct(b'{') => {
                close(&mut lexer, b'{', b'}')?;
            }
            _ => {}
        }
    }
}

/// The rest of a function; declarations leave nothing.
fn unit<'a>(
    lexer: &mut Lexer<'a>,
    kind: FunctionKind,
    scan: &mut Scan<'a>,
) -> Result<(), ParseErrorKind> {
    let start = lexer.span().end;
    let (name, before_name) = loop {
        match lexer.next()?.0 {
            Token::Word(name) => break (name, start..lexer.span().start),
            Token::Punct(b'(') => {
                close(lexer, b'(', b')')?;
            }
            Token::End => return Ok(()),
            _ => {}
        }
    };
    let mut params = lexer.span().end..lexer.span().end;
    let mut after = lexer.span().end;
    loop {
        match lexer.next()?.0 {
            Token::Punct(b'(') if params.is_empty() && after == params.start => {
                let open = lexer.span().end;
                let end = close(lexer, b'(', b')')?;
                params = open..end;
                after = lexer.span().end;
            }
            Token::Punct(b'{') => {
                let directives = after..lexer.span().start;
                let open = lexer.span().end;
                let body = open..close(lexer, b'{', b'}')?;
                scan.units.push(Unit { name, kind, before_name, params, directives, body });
                return Ok(());
            }
            Token::Punct(b';') | Token::End => return Ok(()),
            _ => {}
        }
    }
}

/// Goes behind the closing parenthesis or brace; where that stands.
fn close(lexer: &mut Lexer<'_>, open: u8, shut: u8) -> Result<usize, ParseErrorKind> {
    let mut depth = 1u32;
    loop {
        match lexer.next()?.0 {
            Token::Punct(c) if c == open => depth += 1,
            Token::Punct(c) if c == shut => {
                depth -= 1;
                if depth == 0 {
                    return Ok(lexer.span().start);
                }
            }
            Token::End => return Ok(lexer.span().start),
            _ => {}
        }
    }
}

/// A token that a rewrite replaces or a decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark<'a> {
    /// `%ctaid.x` (dimension 0 to 2).
    BlockId(usize),
    /// `%nctaid.x`
    GridSize(usize),
    /// `%ctaid` or `%nctaid` without a component: a vector.
    Vector,
    /// Any other word.
    Word(&'a str),
    /// A word after a dot.
    Dotted(&'a str),
}

/// The marks of a range of the text, with their places in the whole text.
pub(crate) fn marks(
    text: &[u8],
    range: Range<usize>,
) -> Result<Vec<(Range<usize>, Mark<'_>)>, ParseErrorKind> {
    let part = text.get(range.clone()).unwrap_or_default();
    let mut lexer = Lexer::new(part);
    let mut all = Vec::new();
    let at = |span: Range<usize>| range.start + span.start..range.start + span.end;
    let mut token = lexer.next()?.0;
    loop {
        let span = lexer.span();
        let next = match token {
            Token::End => return Ok(all),
            Token::Word(word @ ("%ctaid" | "%nctaid")) => {
                let next = lexer.next()?.0;
                let component = match next {
                    Token::Dotted("x") => Some(0),
                    Token::Dotted("y") => Some(1),
                    Token::Dotted("z") => Some(2),
                    _ => None,
                };
                // The fourth component is a constant, in a piece too.
                if let Some(dim) = component {
                    let mark =
                        if word == "%ctaid" { Mark::BlockId(dim) } else { Mark::GridSize(dim) };
                    all.push((at(span.start..lexer.span().end), mark));
                } else if next != Token::Dotted("w") {
                    all.push((at(span), Mark::Vector));
                }
                next
            }
            Token::Word(word) => {
                all.push((at(span), Mark::Word(word)));
                lexer.next()?.0
            }
            Token::Dotted(word) => {
                all.push((at(span), Mark::Dotted(word)));
                lexer.next()?.0
            }
            _ => lexer.next()?.0,
        };
        token = next;
    }
}
