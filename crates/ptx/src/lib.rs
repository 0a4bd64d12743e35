//! PTX text to typed IR: parser, linker, parameter layouts, image containers.
#![forbid(unsafe_code)]

pub mod error;
pub mod ir;

pub use error::{ParseError, ParseErrorKind};
