#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
//! weft-sched

extern crate alloc;
