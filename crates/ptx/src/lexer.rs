//! Tokens of PTX text.

use crate::error::ParseErrorKind;

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    /// A name: `ld`, `%r1`, `$L__BB0_2`, `_`.
    Word(&'a str),
    /// A name after a dot, without it: directives, modifiers, components. May contain `::`.
    Dotted(&'a str),
    /// An integer literal.
    Int(u64),
    /// `0f3F800000`
    F32(u32),
    /// `0d3FF0000000000000`, and decimal fractions.
    F64(u64),
    /// A string; its contents never matter.
    Str,
    /// One of ``, ; : { } ( ) [ ] < > @ ! + - * / % & | ^ ~ = ?``.
    Punct(u8),
    /// The end of the text.
    End,
}

/// Splits PTX text into tokens.
#[derive(Clone, Debug)]
pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    position: usize,
    /// Where the last token began.
    start: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub(crate) const fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0, start: 0, line: 1 }
    }

    /// The line of the last character consumed, counted from 1.
    pub(crate) const fn line(&self) -> u32 {
        self.line
    }

    /// Where the last token stands in the text, in bytes.
    pub(crate) const fn span(&self) -> std::ops::Range<usize> {
        self.start..self.position
    }

    /// The next token, and the line it begins in.
    pub(crate) fn next(&mut self) -> Result<(Token<'a>, u32), ParseErrorKind> {
        self.skip_blank()?;
        self.start = self.position;
        let line = self.line;
        let Some(first) = self.peek(0) else { return Ok((Token::End, line)) };
        let token = match first {
            b'0'..=b'9' => self.number()?,
            b'.' => {
                self.position += 1;
                let name = self.take_while(|c| is_word(c) || c == b':');
                // A lone colon ends a label, a double one is part of a modifier.
                let name = name.strip_suffix(':').map_or(name, |short| {
                    self.position -= 1;
                    short
                });
                if name.is_empty() {
                    return Err(syntax("a name after `.`", self.peek(0)));
                }
                Token::Dotted(name)
            }
            b'"' => self.string()?,
            b'%' if !self.peek(1).is_some_and(is_word) => self.punct(b'%'),
            c if is_word(c) || c == b'%' => {
                let start = self.position;
                self.position += 1;
                self.take_while(is_word);
                Token::Word(self.slice(start))
            }
            c if b",;:{}()[]<>@!+-*/&|^~=?".contains(&c) => self.punct(c),
            c => return Err(syntax("PTX", Some(c))),
        };
        Ok((token, line))
    }

    fn punct(&mut self, c: u8) -> Token<'a> {
        self.position += 1;
        Token::Punct(c)
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.position + ahead).copied()
    }

    fn slice(&self, start: usize) -> &'a str {
        let bytes = self.text.get(start..self.position).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    fn take_while(&mut self, test: impl Fn(u8) -> bool) -> &'a str {
        let start = self.position;
        while self.peek(0).is_some_and(&test) {
            self.position += 1;
        }
        self.slice(start)
    }

    fn skip_blank(&mut self) -> Result<(), ParseErrorKind> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'\n'), _) => {
                    self.line = self.line.saturating_add(1);
                    self.position += 1;
                }
                (Some(b' ' | b'\t' | b'\r' | 0x0B | 0x0C), _) => self.position += 1,
                (Some(b'/'), Some(b'/')) => {
                    while self.peek(0).is_some_and(|c| c != b'\n') {
                        self.position += 1;
                    }
                }
                (Some(b'/'), Some(b'*')) => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), ParseErrorKind> {
        self.position += 2;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'*'), Some(b'/')) => {
                    self.position += 2;
                    return Ok(());
                }
                (Some(c), _) => {
                    self.line = self.line.saturating_add(u32::from(c == b'\n'));
                    self.position += 1;
                }
                (None, _) => return Err(syntax("the end of a comment", None)),
            }
        }
    }

    fn string(&mut self) -> Result<Token<'a>, ParseErrorKind> {
        self.position += 1;
        loop {
            match self.peek(0) {
                Some(b'"') => {
                    self.position += 1;
                    return Ok(Token::Str);
                }
                Some(b'\\') => self.position += 2,
                Some(b'\n') | None => return Err(syntax("the end of a string", self.peek(0))),
                Some(_) => self.position += 1,
            }
        }
    }

    /// Integers (decimal, `0x`, `0b`, octal, optional `U`), `0f`/`0d` bits, decimal fractions.
    fn number(&mut self) -> Result<Token<'a>, ParseErrorKind> {
        let start = self.position;
        if self.peek(0) == Some(b'0') {
            let radix = match self.peek(1) {
                Some(b'x' | b'X') => 16,
                Some(b'b' | b'B') => 2,
                Some(b'f' | b'F') => return self.float_bits(8),
                Some(b'd' | b'D') => return self.float_bits(16),
                _ => 0,
            };
            if radix != 0 {
                self.position += 2;
                return self.digits(radix, self.position);
            }
        }
        let whole = self.take_while(|c| c.is_ascii_digit());
        let fraction = self.peek(0) == Some(b'.');
        let exponent = matches!(self.peek(0), Some(b'e' | b'E'));
        if !fraction && !exponent {
            let octal = whole.len() > 1 && whole.starts_with('0');
            self.position = start;
            return self.digits(if octal { 8 } else { 10 }, start);
        }
        if fraction {
            self.position += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        if matches!(self.peek(0), Some(b'e' | b'E')) {
            self.position += 1;
            if matches!(self.peek(0), Some(b'+' | b'-')) {
                self.position += 1;
            }
            self.take_while(|c| c.is_ascii_digit());
        }
        let text = self.slice(start);
        let value = text
            .parse::<f64>()
            .map_err(|_| ParseErrorKind::Syntax { expected: "a number", found: text.to_owned() })?;
        Ok(Token::F64(value.to_bits()))
    }

    fn digits(&mut self, radix: u32, start: usize) -> Result<Token<'a>, ParseErrorKind> {
        self.take_while(|c| c.is_ascii_alphanumeric());
        let text = self.slice(start);
        let number = text.strip_suffix(['U', 'u']).unwrap_or(text);
        u64::from_str_radix(number, radix).map(Token::Int).map_err(|_| ParseErrorKind::Syntax {
            expected: "an integer below 2^64",
            found: text.to_owned(),
        })
    }

    fn float_bits(&mut self, digits: usize) -> Result<Token<'a>, ParseErrorKind> {
        self.position += 2;
        let text = self.take_while(|c| c.is_ascii_alphanumeric());
        let bits = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == digits);
        let token = bits.and_then(|bits| match digits {
            8 => u32::try_from(bits).ok().map(Token::F32),
            _ => Some(Token::F64(bits)),
        });
        token.ok_or_else(|| ParseErrorKind::Syntax {
            expected: "the hexadecimal digits of a floating-point number",
            found: text.to_owned(),
        })
    }
}

const fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c == b'$'
}

fn syntax(expected: &'static str, found: Option<u8>) -> ParseErrorKind {
    let found = match found {
        None => "the end of the text".to_owned(),
        Some(c) => format!("`{}`", c.escape_ascii()),
    };
    ParseErrorKind::Syntax { expected, found }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one token")]
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text.as_bytes());
        let mut all = Vec::new();
        loop {
            match lexer.next().unwrap().0 {
                Token::End => return all,
                token => all.push(token),
            }
        }
    }

    #[test]
    fn literals_of_the_isa_document() {
        assert_eq!(tokens("0x1F 017 0b101 42U 0"), [31, 15, 5, 42, 0].map(Token::Int));
        assert_eq!(tokens("0f3F800000"), [Token::F32(0x3F80_0000)]);
        assert_eq!(tokens("0d3FF0000000000000 1.0 1e0"), [Token::F64(0x3FF0 << 48); 3]);
    }

    #[test]
    fn modifiers_labels_and_comments() {
        assert_eq!(
            tokens("ld.shared::cta.u32 /* a\nb */ $L_1: %r<3> // end"),
            [
                Token::Word("ld"),
                Token::Dotted("shared::cta"),
                Token::Dotted("u32"),
                Token::Word("$L_1"),
                Token::Punct(b':'),
                Token::Word("%r"),
                Token::Punct(b'<'),
                Token::Int(3),
                Token::Punct(b'>'),
            ]
        );
    }

    #[test]
    fn lines_are_counted_through_comments() {
        let mut lexer = Lexer::new(b"\n/*\n\n*/ x");
        assert_eq!(lexer.next().unwrap(), (Token::Word("x"), 4));
    }

    #[test]
    fn bad_literals_are_errors() {
        for text in ["0f3F", "0d12", "0xG", "09", "99999999999999999999", "\"abc", "/* x", "`"] {
            assert!(Lexer::new(text.as_bytes()).next().is_err(), "{text}");
        }
    }
}
