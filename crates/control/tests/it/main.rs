//! The control plane, from the interface's document to `kill -9`.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

mod batches;
mod commands;
mod crash;
mod database;
mod deployment;
mod document;
mod http;
mod nodes;
mod openstack;
mod placement;
mod replicas;
mod service;
mod store;
mod support;
mod tls;
mod versions;
mod web;
