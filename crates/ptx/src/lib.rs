//! PTX text to typed IR: parser, linker, parameter layouts, image containers, slicing transform.
#![forbid(unsafe_code)]

pub mod cfg;
mod declarations;
pub mod error;
pub mod image;
pub mod ir;
pub mod layout;
mod lexer;
pub mod linker;
pub mod parser;
mod scan;
pub mod slice;
pub mod state;

pub use declarations::declarations;
pub use error::{ParseError, ParseErrorKind};
pub use linker::{LinkError, link};
pub use parser::parse;
