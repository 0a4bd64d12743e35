//! The engine: executes PTX as a machine of 32-lane warps, one operation for all lanes at a time.
//!
//! [`lower`] turns the typed representation of a module into an array of micro-operations
//! ([`handler::Op`]), each with the function that executes it. [`launch`] runs thread blocks,
//! [`block`] the warps of one, [`run`] one warp: its *splits* (lanes at one place), their
//! divergence and reconvergence. Everything that a kernel has computed so far is data in these
//! structures, so execution can stop at any branch and go on later.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    clippy::cast_lossless,
    reason = "arithmetic of the machine: PTX defines it by truncation and reinterpretation"
)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a family of operations handles its members and refuses all others"
)]
#![expect(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    reason = "comparisons of PTX differ in what they make of NaN"
)]
#![expect(
    clippy::vec_box,
    reason = "warp states change hands often; a box makes that the copy of a pointer"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "loops over the lanes of several rows at once, in the form that is vectorised"
)]

pub(crate) mod address;
mod atom;
mod bits;
mod block;
mod builtin;
mod compare;
mod control;
mod convert;
pub(crate) mod cx;
mod float;
mod format;
mod fp8;
mod frame_copy;
mod half;
pub(crate) mod handler;
mod ieee;
mod int;
pub(crate) mod launch;
mod local;
pub(crate) mod lower;
mod memory_ops;
mod mma;
pub(crate) mod program;
mod rows;
mod run;
mod special;
mod testp;
pub(crate) mod uses;
mod video;
mod warp;
mod warp_ops;
