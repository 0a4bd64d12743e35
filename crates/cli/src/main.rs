#![forbid(unsafe_code)]
//! `weft`: shares GPUs among tenants. Data goes to stdout, everything else to stderr.

mod accelerator;
mod args;
mod bench;
mod cpu_weight;
mod daemon;
mod demo;
mod doctor;
mod memory;
mod output;
mod owner;
mod programs;
mod remote;
mod replay;
mod run;
mod services;
mod sim;
mod timeline;
mod top;
mod trace;
mod users;
mod vgpu;
mod workload;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Its own message lists the hidden commands too.
        Err(error) if error.kind() == ErrorKind::MissingSubcommand => {
            output::note(&Arguments::command().render_help().to_string());
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    match dispatch(arguments) {
        Ok(code) => code,
        Err(error) => {
            output::failure(&error);
            ExitCode::from(1)
        }
    }
}

fn dispatch(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let sockets = arguments.sockets;
    sockets.check()?;
    match arguments.command {
        Command::Run(options) => return run::run(&sockets, &options),
        Command::Node(options) => daemon::serve(&sockets, &options)?,
        Command::OwnNode { owner, directory, device } => {
            daemon::start_for(owner, &directory, device.as_deref())?;
        }
        Command::Weigh { owner, name, stay: false } => {
            let directory = sockets.config()?.sockets.runtime_dir;
            return cpu_weight::start_guardian(&directory, owner, &name);
        }
        Command::Weigh { owner, name, stay: true } => cpu_weight::guard(&sockets, owner, &name)?,
        Command::Worker => weft_node::run_worker()?,
        Command::Runner => weft_node::run_runner()?,
        Command::Watchdog => weft_node::run_watchdog()?,
        Command::Ls { devices: true, json } => vgpu::devices(&sockets, json)?,
        Command::Ls { devices: false, json } => vgpu::list(&sockets, json)?,
        Command::Usage { json } => vgpu::usage(&sockets, json)?,
        Command::Create { name, tasks: true, settings, bound, access } => {
            accelerator::create(&sockets, &name, &settings, &bound, access)?;
        }
        Command::Create { name, tasks: false, settings, bound, access } => {
            vgpu::create(&sockets, &name, &settings, &bound, access)?;
        }
        Command::Token(options) => remote::token(&sockets, &options)?,
        Command::Remote(options) => remote::serve(&options)?,
        Command::Vm(its) => services::serve_machine(&sockets, &its.arguments)?,
        Command::Control(its) => {
            services::serve(services::CONTROL, "weft control", &its.arguments)?;
        }
        Command::Endpoint(its) => {
            services::serve(services::ENDPOINT, "weft endpoint", &its.arguments)?;
        }
        Command::Set(options) => vgpu::set(&sockets, &options)?,
        Command::Rm { name, force } => vgpu::remove(&sockets, &name, force)?,
        Command::Move { name, device, json } => vgpu::move_to(&sockets, &name, &device, json)?,
        Command::Device { action, name, force } => vgpu::device(&sockets, action, &name, force)?,
        Command::Policy { name, device, json } => {
            vgpu::policy(&sockets, name.as_deref(), device.as_deref(), json)?;
        }
        Command::Top { interval_ms, plain, json, once } => {
            top::top(&sockets, interval_ms, top::How::choose(plain || once, json), once)?;
        }
        Command::Memory { device, json } => memory::memory(&sockets, device.as_deref(), json)?,
        Command::Doctor { json } => return doctor::doctor(&sockets, json),
        Command::Metrics { json } => vgpu::metrics(&sockets, json)?,
        Command::Stop { force } => daemon::stop(&sockets, force)?,
        Command::Demo(options) => return demo::demo(&options),
        Command::Replay { journal, longest_us, json } => {
            replay::replay(&journal, longest_us, json)?;
        }
        Command::Trace(options) => trace::trace(&sockets, &options)?,
        Command::Bench(options) => return bench::bench(&options),
        Command::Sim(options) => return sim::sim(&options),
        Command::Workload { what } => workload::workload(&what)?,
    }
    Ok(ExitCode::SUCCESS)
}
