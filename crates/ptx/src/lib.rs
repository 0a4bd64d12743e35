#![forbid(unsafe_code)]
//! weft-ptx
