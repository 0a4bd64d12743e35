//! `libcuda.so.1`: the CUDA driver API over the client runtime.
//!
//! [`exports`] makes one exported function per row of the table of driver calls. It turns C
//! arguments into the types of [`args`] and calls the body in the file of its API noun; [`border`]
//! refuses calls before `cuInit` and after a fork and lets no panic pass. All `unsafe` that deals
//! with the application's pointers stands in [`args`], in what reads launch parameters
//! ([`params`]), module images ([`image`]) and compiler options ([`jit`]), and where a pointer lies
//! inside a struct.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the exports make every argument a value, and its borrows end with the call"
)]

mod abi;
mod args;
mod border;
mod capture;
mod context;
mod copy;
mod copy_shape;
mod device;
mod direct;
mod driver;
mod error;
mod event;
mod export_table;
mod exports;
mod fork;
mod function;
mod graph_exec;
mod graph_kernel;
mod graph_node;
mod graph_shape;
mod host_memory;
mod image;
mod ipc;
mod jit;
mod launch;
mod library;
mod link;
mod managed;
mod memory;
mod memset;
mod module;
mod occupancy;
mod output;
mod params;
mod pool;
mod proc_address;
mod profiler;
mod stream;
mod stream_value;
mod text;
mod user_object;
mod virtual_memory;
