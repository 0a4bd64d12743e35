#![forbid(unsafe_code)]
//! weft-exec
