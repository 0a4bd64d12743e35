//! The one error of parsing and linking.

use thiserror::Error;

/// Why a text is not a module, with the place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {kind}: `{text}`")]
pub struct ParseError {
    /// Line in the text, counted from 1.
    pub line: u32,
    /// That line, shortened to [`MAX_EXCERPT_CHARS`].
    pub text: String,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// The most characters of a line that an error repeats.
pub const MAX_EXCERPT_CHARS: usize = 160;

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseErrorKind {
    /// The grammar is violated.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// What may stand here.
        expected: &'static str,
        /// What stands here.
        found: String,
    },
    /// An instruction, modifier or combination that is not implemented or does not exist.
    #[error("unknown instruction {0}")]
    UnknownInstruction(String),
    /// A directive that is not known.
    #[error("unknown directive {0}")]
    UnknownDirective(String),
    /// A name without declaration.
    #[error("undefined name {0}")]
    UndefinedName(String),
    /// A name declared twice.
    #[error("{0} is declared twice")]
    DuplicateName(String),
    /// Operands that do not fit their instruction.
    #[error("{0}")]
    Operand(String),
    /// PTX of another version or machine.
    #[error("unsupported {0}")]
    Unsupported(String),
    /// A bound of this implementation is exceeded.
    #[error("{what} exceeds the limit of {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: u64,
    },
}
