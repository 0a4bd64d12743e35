//! PTX text to typed IR: parser, linker, parameter layouts, image containers, slicing transform.
#![forbid(unsafe_code)]

pub mod cfg;
pub mod error;
pub mod image;
pub mod ir;
pub mod layout;
mod lexer;
pub mod linker;
pub mod parser;
pub mod slice;

pub use error::{ParseError, ParseErrorKind};
pub use linker::{LinkError, link};
pub use parser::parse;
