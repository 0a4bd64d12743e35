#![forbid(unsafe_code)]
//! Tasks: self-contained kernel launches that any device of a pool may run.
//!
//! A *task* is a kernel of a module, a grid, scalars and buffers. It is submitted to a *virtual
//! accelerator* (`weft create NAME --tasks --device POOL`), which runs it on whichever device of
//! its pool the pool's policy picks, may stop a batch task between thread blocks and go on
//! elsewhere, and begins it anew where a device or a process is lost. So a task must depend on
//! nothing but its arguments: variables of its module are not kept from one task to the next.
//!
//! ```no_run
//! use weft_tasks::{Accelerator, Task};
//!
//! let accelerator = Accelerator::open("vision")?;
//! let module = accelerator.load(&std::fs::read("saxpy.ptx")?)?;
//! let (x, y) = (vec![1.0f32; 1024], vec![2.0f32; 1024]);
//! let task = Task::new(&module, "saxpy")
//!     .grid([4, 1, 1])
//!     .block([256, 1, 1])
//!     .in_out(&y)
//!     .input(&x)
//!     .scalar(3.0f32)
//!     .scalar(1024u32);
//! let done = accelerator.submit(&task)?.wait()?;
//! assert_eq!(done.output::<f32>(0)[0], 5.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Bad input is refused by [`Accelerator::load`] and [`Accelerator::submit`], before anything runs.
//! Arguments are copied when a task is submitted, outputs when they are asked for.

mod accelerator;
mod element;
mod error;
mod link;
mod pending;
pub mod protocol;
mod task;

pub use accelerator::{Accelerator, Module, Options};
pub use element::Element;
pub use error::TaskError;
pub use pending::{Done, Pending};
pub use protocol::{KernelInfo, RefusalCode};
pub use task::Task;
