#![forbid(unsafe_code)]
//! weft-client
