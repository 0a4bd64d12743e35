#![forbid(unsafe_code)]
//! The runtime behind the shims: what a driver API means, over a session with a vGPU.
//!
//! A shim turns C arguments into safe values, calls one method of [`Client`] and turns the result
//! back. The client is the process's half: its devices and what the application made on them. Each
//! device is a session with a vGPU (`session`), which knows no handles. The methods stand in one
//! module per noun. What can be answered here is: attributes, the
//! current-context stack, layouts, pointer ranges, captures, and (from the segment's progress
//! words) whether events and streams have ended. Everything else becomes one
//! [`weft_wire::Command`].
//!
//! Nothing here needs a thread-local destructor, and no call panics on what an application passes.

mod advice;
pub mod attach;
mod capture;
mod client;
mod config;
mod context;
mod copy;
mod copy_across;
mod current;
mod device;
mod device_range;
mod event;
mod function;
mod graph;
mod graph_exec;
mod graph_update;
mod handle;
mod host_function;
mod ipc;
mod ipc_event;
mod launch;
mod library;
mod link;
mod memory;
mod memset;
mod module;
mod occupancy;
mod param_block;
mod pinned;
mod pointer;
mod pool;
mod primary;
mod registered;
mod session;
mod staging;
mod stream;
mod stream_value;
mod table;
mod transport;
mod user_object;
mod virtual_memory;

pub use advice::{Advice, Location};
pub use attach::{AttachError, DirectSession};
pub use capture::CaptureInfo;
pub use client::Client;
pub use config::{Attach, Config, ConfigError};
pub use copy::{Layout, Source, Target};
pub use device::DeviceProperties;
pub use function::FunctionState;
pub use graph::{CopySide, CopyWork, HostWork, KernelWork, Work};
pub use graph_update::Updated;
pub use handle::{
    Context, Event, Function, Graph, GraphExec, GraphNode, Kernel, Kind, Library, Link, MemPool,
    Module, Stream, UserObject,
};
pub use host_function::Callback;
pub use launch::Launch;
pub use link::LinkInput;
pub use module::LoadFailure;
pub use param_block::ParamBlock;
pub use pointer::{Range, RangeKind};
pub use registered::RegisterError;
pub use stream::{PRIORITY_GREATEST, PRIORITY_LEAST};
pub use transport::{Answer, Transport};
pub use weft_ring::Loss;
pub use weft_wire::container as image;
