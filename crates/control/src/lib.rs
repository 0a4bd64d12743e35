#![forbid(unsafe_code)]
//! The control plane: hands vGPUs out to VMs across a cloud.
//!
//! [`http`] and [`web`] are thin over [`service`], which checks who asks and for what, and bounds
//! how many requests of a project are answered at once (`places`). [`allocate`] decides where cGPUs
//! go ([`weft_sched::placement`]) and reserves them in the [`store`]. [`plan`] says what is then to
//! be done about an instance, purely; [`execute`] does one step of it, idempotently; [`engine`]
//! goes on until nothing is left to do, also after a crash ([`patience`] says how often a step is
//! tried); [`sweep`] finds what should not be there. [`provision`] makes VMs, [`rules`] says what
//! the endpoints of their hosts must hold ([`hosts`] tells them), and [`nodes`] makes vGPUs with
//! grants. [`openstack`] is the client of that cloud, and [`identity`] knows its tokens.

pub mod allocate;
pub mod bench;
pub mod bounded;
pub mod clock;
pub mod crash;
pub mod deployment;
pub mod engine;
pub mod execute;
pub mod hosts;
pub mod http;
pub mod identity;
pub mod news;
pub mod nodes;
pub mod openstack;
pub mod patience;
mod pending;
mod places;
pub mod plan;
pub mod provision;
pub mod random;
mod refusals;
pub mod rules;
pub mod service;
pub mod signals;
pub mod store;
pub mod sweep;
pub mod tls;
pub mod web;
mod words;
