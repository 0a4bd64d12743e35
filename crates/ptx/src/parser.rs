//! From PTX text to a [`Module`].
//!
//! One pass: names are declared before they are used, except labels, which are resolved at the end
//! of the block that defines them. Nesting, sizes and list expansions are bounded by the constants
//! below, so that hostile text costs time and memory proportional to its length.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a parser names the tokens that it accepts; all others are the same error"
)]

mod constant;
mod directive;
mod expand;
mod function;
mod initializer;
mod inst;
mod modifiers;
mod operand;
mod scope;

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::error::{MAX_EXCERPT_CHARS, ParseError, ParseErrorKind};
use crate::ir::{Linkage, Module, Symbol};
use crate::lexer::{Lexer, Token};
use crate::linker::Shared;
use scope::Body;

/// The longest text in bytes.
pub const MAX_TEXT_BYTES: usize = 256 << 20;
/// The deepest nesting of blocks, initialisers and constant expressions.
pub const MAX_DEPTH: u32 = 64;
/// The largest frame, and the largest parameter, in bytes: the local memory of a thread.
pub const MAX_FRAME_BYTES: u32 = 512 << 10;
/// The largest parameter buffer of a kernel in bytes (PTX ISA 8.1 and later).
pub const MAX_KERNEL_PARAM_BYTES: u32 = 32_764;
/// The largest variable in bytes.
pub const MAX_VARIABLE_BYTES: u64 = 1 << 40;
/// The most entries of all `.branchtargets` and `.calltargets` lists, counted once per use.
pub const MAX_TARGETS: u32 = 1 << 20;

/// The most instructions and registers that aliases of a text may copy.
pub const MAX_ALIASED: u64 = 1 << 20;

/// The most bytes of all names that ranges of variables such as `.shared .b32 s<4>` stand for.
pub const MAX_RANGED_BYTES: u64 = 1 << 18;

/// The most bytes of all initialisers of a text, zeros between spelled elements included.
pub const MAX_INITIALIZER_BYTES: u64 = 256 << 20;

/// Result of a step of the parser; the statement's line is added at the top.
type Parsed<T> = Result<T, ParseErrorKind>;

/// Parses one PTX text. It may end with a NUL and white space.
///
/// # Errors
/// The first violation of the grammar, unknown instruction or exceeded limit, with its line.
pub fn parse(text: &[u8]) -> Result<Module, ParseError> {
    let mut shared = Shared::default();
    parse_into(text, &mut shared)?;
    Ok(shared.module)
}

/// Parses a text into what earlier texts began. After an error the state is of no use.
pub(crate) fn parse_into(text: &[u8], shared: &mut Shared) -> Result<(), ParseError> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.len() > MAX_TEXT_BYTES {
        let kind = ParseErrorKind::Limit { what: "text size", limit: MAX_TEXT_BYTES as u64 };
        return Err(ParseError { line: 1, text: String::new(), kind });
    }
    let mut parser = Parser::new(text, std::mem::take(shared));
    let result = parser.module();
    match result {
        Ok(()) => {
            *shared = parser.shared;
            Ok(())
        }
        Err(kind) => Err(ParseError { line: parser.line, text: excerpt(text, parser.line), kind }),
    }
}

fn excerpt(text: &[u8], line: u32) -> String {
    let index = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
    let bytes = text.split(|&c| c == b'\n').nth(index).unwrap_or_default();
    let start = bytes.get(..bytes.len().min(4 * MAX_EXCERPT_CHARS)).unwrap_or_default();
    let line = String::from_utf8_lossy(start);
    line.trim().chars().filter(|c| !c.is_control()).take(MAX_EXCERPT_CHARS).collect()
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token that comes next.
    token: Token<'a>,
    /// The line of the next token.
    token_line: u32,
    /// The line of the statement being parsed, which errors report.
    line: u32,
    /// The module and what it shares with other texts.
    shared: Shared,
    names: HashMap<Cow<'a, str>, Symbol>,
    /// State of the function being parsed.
    body: Body<'a>,
    /// Entries of target lists that may still be expanded.
    targets_left: u32,
    /// Bytes that initialisers may still take.
    initializer_left: u64,
    /// Instructions and registers that aliases may still copy.
    aliased_left: u64,
    /// Bytes of names that ranges of variables may still stand for.
    ranged_left: u64,
    /// Hoisted variables so far, for unique names.
    hoisted: u32,
}

impl<'a> Parser<'a> {
    fn new(text: &'a [u8], shared: Shared) -> Self {
        Self {
            lexer: Lexer::new(text),
            token: Token::End,
            token_line: 1,
            line: 1,
            shared,
            names: HashMap::new(),
            body: Body::default(),
            targets_left: MAX_TARGETS,
            initializer_left: MAX_INITIALIZER_BYTES,
            aliased_left: MAX_ALIASED,
            ranged_left: MAX_RANGED_BYTES,
            hoisted: 0,
        }
    }

    /// Consumes and returns the next token.
    fn advance(&mut self) -> Parsed<Token<'a>> {
        match self.lexer.next() {
            Ok((token, line)) => {
                self.token_line = line;
                Ok(std::mem::replace(&mut self.token, token))
            }
            Err(kind) => {
                self.line = self.lexer.line();
                Err(kind)
            }
        }
    }

    fn begin_statement(&mut self) {
        self.line = self.token_line;
    }

    fn error<T>(&self, expected: &'static str) -> Parsed<T> {
        Err(ParseErrorKind::Syntax { expected, found: describe(self.token) })
    }

    fn at(&self, punct: u8) -> bool {
        self.token == Token::Punct(punct)
    }

    /// Consumes the punctuation if it is next.
    fn accept(&mut self, punct: u8) -> Parsed<bool> {
        if !self.at(punct) {
            return Ok(false);
        }
        self.advance()?;
        Ok(true)
    }

    fn expect(&mut self, punct: u8) -> Parsed<()> {
        if self.accept(punct)? { Ok(()) } else { self.error(punct_name(punct)) }
    }

    /// Consumes the dotted name if it is next.
    fn accept_dotted(&mut self, name: &str) -> Parsed<bool> {
        if self.token != Token::Dotted(name) {
            return Ok(false);
        }
        self.advance()?;
        Ok(true)
    }

    fn word(&mut self) -> Parsed<&'a str> {
        let Token::Word(word) = self.token else { return self.error("a name") };
        self.advance()?;
        Ok(word)
    }

    fn dotted(&mut self) -> Parsed<&'a str> {
        let Token::Dotted(name) = self.token else { return self.error("a name after `.`") };
        self.advance()?;
        Ok(name)
    }

    fn int(&mut self) -> Parsed<u64> {
        let Token::Int(value) = self.token else { return self.error("an integer") };
        self.advance()?;
        Ok(value)
    }

    fn int_u32(&mut self) -> Parsed<u32> {
        let value = self.int()?;
        u32::try_from(value)
            .map_err(|_| ParseErrorKind::Limit { what: "number", limit: u64::from(u32::MAX) })
    }

    /// What a name of module scope denotes, noted as used.
    fn refer(&mut self, name: &str) -> Option<Symbol> {
        let symbol = self.names.get(name).copied()?;
        self.shared.referenced.insert(symbol);
        Some(symbol)
    }

    /// The symbol of that name that this text or (for names with linkage) an earlier one declared.
    fn known(&mut self, name: &str, linkage: Linkage) -> Option<Symbol> {
        if let Some(&symbol) = self.names.get(name) {
            return Some(symbol);
        }
        if linkage == Linkage::Static {
            return None;
        }
        let symbol = self.shared.exports.get(name).copied()?;
        self.names.insert(Cow::Owned(name.to_owned()), symbol);
        Some(symbol)
    }

    /// Makes a name known to later texts.
    fn export(&mut self, name: &str, linkage: Linkage, symbol: Symbol) {
        if linkage != Linkage::Static {
            self.shared.exports.insert(name.to_owned(), symbol);
        }
    }

    /// Declares a name of module scope.
    fn declare(&mut self, name: Cow<'a, str>, global: Symbol) -> Parsed<()> {
        match self.names.entry(name) {
            Entry::Vacant(place) => {
                place.insert(global);
                Ok(())
            }
            Entry::Occupied(old) => Err(ParseErrorKind::DuplicateName(shorten(old.key()).into())),
        }
    }
}

fn punct_name(punct: u8) -> &'static str {
    match punct {
        b',' => "`,`",
        b';' => "`;`",
        b':' => "`:`",
        b'{' => "`{`",
        b'}' => "`}`",
        b'(' => "`(`",
        b')' => "`)`",
        b'[' => "`[`",
        b']' => "`]`",
        b'>' => "`>`",
        _ => "punctuation",
    }
}

fn describe(token: Token<'_>) -> String {
    match token {
        Token::Word(word) => format!("`{}`", shorten(word)),
        Token::Dotted(name) => format!("`.{}`", shorten(name)),
        Token::Int(value) => format!("`{value}`"),
        Token::F32(bits) => format!("`0f{bits:08X}`"),
        Token::F64(bits) => format!("`0d{bits:016X}`"),
        Token::Str => "a string".to_owned(),
        Token::Punct(c) => format!("`{}`", char::from(c)),
        Token::End => "the end of the text".to_owned(),
    }
}

/// A name as an error shows it: names have no bound, messages have.
fn shorten(name: &str) -> &str {
    name.get(..MAX_EXCERPT_CHARS).unwrap_or(name)
}

fn operand_error<T>(message: impl Into<String>) -> Parsed<T> {
    Err(ParseErrorKind::Operand(message.into()))
}

fn undefined<T>(name: &str) -> Parsed<T> {
    Err(ParseErrorKind::UndefinedName(shorten(name).to_owned()))
}
