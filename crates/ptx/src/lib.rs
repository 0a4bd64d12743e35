//! PTX text to typed IR: parser, linker, parameter layouts, image containers.
#![forbid(unsafe_code)]

pub mod error;
pub mod ir;
pub mod layout;
mod lexer;
pub mod parser;

pub use error::{ParseError, ParseErrorKind};
pub use parser::parse;
