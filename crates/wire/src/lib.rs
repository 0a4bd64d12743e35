#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
//! weft-wire

extern crate alloc;

pub mod status;
