//! The worker: one process, one session.

mod event_loop;
mod link;
mod output;
mod predict;
mod sandbox;
