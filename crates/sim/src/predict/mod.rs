//! Does the simulator predict? Configurations are drawn from a seed that no calibration used; the
//! same ones run real, and [`Figures`] of both are compared.
//!
//! [`draw()`] makes a [`Configuration`], [`simulate`] runs it in [`World`](crate::World)s, one for
//! each device; who runs it real hands over a [`Seen`] of the same shape.

mod draw;
mod figures;
mod model;

pub use draw::{Configuration, LONG_BLOCK_US, LONG_BLOCKS, Load, SLA_NS, Tenant, draw};
pub use figures::{Errors, Figures, Seen};
pub use model::{Model, simulate};
