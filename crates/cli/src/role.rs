//! `farmem role`: runs one role of a rack until SIGTERM or Ctrl-C.
//!
//! A role prints [`READY`] to standard output once it serves. The role also notifies systemd when a unit of
//! `Type=notify` started it. The supervisor starts its roles with `--until-input-ends` and keeps the other
//! end of their standard input. Therefore no role outlives the supervisor, even when the supervisor is
//! killed.

use crate::args::{Role, RoleName};
use crate::logging::{self, LogLevel};
use crate::outcome::{End, Failure};
use crate::output;
use farmem::RackConfig;
use farmem::config::NodeConfig;
use farmem::serve::{self, Serving, Stop};
use sd_notify::NotifyState;
use std::io::{self, Read as _};

/// Line that tells the supervisor that the role serves.
pub(crate) const READY: &str = "ready\n";

pub(crate) fn run(args: &Role) -> Result<End, Failure> {
    run_with(args, |config, node, serving| serve::node(config, node, serving))
}

/// Works as [`run`], with another function that serves a memory node.
pub(crate) fn run_with(
    args: &Role,
    serve_node: impl for<'a> FnOnce(&'a RackConfig, &'a NodeConfig, Serving<'a>) -> Result<(), farmem::Error>,
) -> Result<End, Failure> {
    logging::begin(args.log, if args.until_input_ends { LogLevel::Off } else { LogLevel::Info })?;
    let config = RackConfig::load(&args.rack)?;
    let stop = Stop::new();
    stop_at_signal(stop.clone())?;
    if args.until_input_ends {
        stop_at_end_of_input(stop.clone());
    }
    let mut say_ready = || {
        output::write_out(READY);
        tell_systemd(NotifyState::Ready);
    };
    let serving = Serving::new(&stop, &mut say_ready);
    match args.role {
        RoleName::Control => serve::control(&config, serving)?,
        RoleName::Switch => serve::switch(&config, serving)?,
        RoleName::Dpu => farmem::dpu::serve_with(&config, serving, farmem::form::look_up)?,
        RoleName::Index => {
            let name = args.index.as_deref().unwrap_or_default();
            let found = config.index.iter().find(|switch| switch.name == name);
            let switch = found.ok_or_else(|| {
                let names: Vec<&str> = config.index.iter().map(|switch| switch.name.as_str()).collect();
                let message = format!("{} has no index-switch {name:?}", config.file.display());
                Failure::environment(message, format!("its index switches are: {}", names.join(", ")))
            })?;
            serve::index_switch(&config, switch, serving)?;
        }
        RoleName::Node => {
            let name = args.node.as_deref().unwrap_or_default();
            let node = config.nodes.iter().find(|n| n.name == name).ok_or_else(|| unknown(&config, name))?;
            serve_node(&config, node, serving)?;
        }
    }
    tell_systemd(NotifyState::Stopping);
    Ok(End::Fine)
}

/// Stops the role at SIGTERM or SIGINT. The role finishes its current work and ends with 0. The role ignores
/// SIGHUP, because its end would lose the memory of a node.
fn stop_at_signal(stop: Stop) -> Result<(), Failure> {
    farmem_workload::on_terminate(move || stop.set())
        .map_err(|e| Failure::environment(format!("cannot catch SIGTERM: {e}"), ""))
}

/// Notifies the service manager that started this role, if `NOTIFY_SOCKET` names one.
fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        output::note(&format!("farmem: cannot tell the service manager: {error}; is NOTIFY_SOCKET right?"));
    }
}

fn unknown(config: &RackConfig, name: &str) -> Failure {
    let names: Vec<&str> = config.nodes.iter().map(|n| n.name.as_str()).collect();
    let message = format!("{} has no memory node {name:?}", config.file.display());
    Failure::environment(message, format!("its nodes are: {}", names.join(", ")))
}

fn stop_at_end_of_input(stop: Stop) {
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while io::stdin().read(&mut bytes).is_ok_and(|n| n > 0) {}
        stop.set();
    });
}
