#![forbid(unsafe_code)]
//! weft-gate
