//! `libcuda.so.1`: the CUDA driver API over the client runtime.
//!
//! [`exports`] makes one exported function per row of the table of driver calls. It turns C
//! arguments into the types of [`args`] and calls the body in the file of its API noun; [`border`]
//! refuses calls before `cuInit` and after a fork and lets no panic pass. All `unsafe` that deals
//! with the application's pointers stands in [`args`] and in what reads launch parameters and module
//! images.

mod abi;
mod args;
mod border;
mod driver;
mod error;
mod export_table;
mod exports;
mod image;
mod jit;
mod params;
mod proc_address;
