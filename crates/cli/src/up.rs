//! `farmem up`: a rack as processes on this machine, until Ctrl-C.

use crate::args::{EXAMPLE, Up};
use crate::output::{self, Report};
use crate::supervisor::Supervisor;
use crate::{End, Failure};
use farmem::RackConfig;
use serde::Serialize;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Time between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Listening {
    rack: String,
    transport: &'static str,
    api: String,
    token_file: String,
    roles: Vec<Role>,
}

#[derive(Serialize)]
struct Role {
    role: String,
    address: String,
    pid: u32,
}

impl Report for Listening {
    fn text(&self) -> String {
        let rows: Vec<_> =
            self.roles.iter().map(|r| vec![r.role.clone(), r.address.clone(), r.pid.to_string()]).collect();
        let table = output::table(&["role", "address", "process"], &rows);
        format!(
            "rack {:?} is up, transport {}\n{table}API    {}\ntoken  {}\nCtrl-C stops it.\n",
            self.rack, self.transport, self.api, self.token_file
        )
    }
}

pub(crate) fn run(args: &Up) -> Result<End, Failure> {
    let Some(file) = args.rack.as_ref().filter(|_| !args.example) else {
        output::write_out(EXAMPLE);
        return Ok(End::Fine);
    };
    let (ask_to_stop, stop) = channel();
    ctrlc::set_handler(move || {
        // A second Ctrl-C while stopping finds nobody listening, which is fine.
        let _nobody_listens = ask_to_stop.send(());
    })
    .map_err(|e| Failure::environment(format!("cannot catch Ctrl-C: {e}"), ""))?;
    let mut rack = Supervisor::start(RackConfig::load(file)?)?;
    output::print(&listening(&rack), args.json);
    loop {
        match stop.recv_timeout(LOOK_EVERY) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(End::Fine),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(ended) = rack.ended() {
            return Err(Failure::environment(ended, "the rack is stopped; start it again with `farmem up`"));
        }
    }
}

fn listening(rack: &Supervisor) -> Listening {
    let config = rack.config();
    let mut addresses = vec![config.control.address, config.switch.address];
    addresses.extend(config.nodes.iter().map(|n| n.address));
    let roles = rack.processes().zip(addresses).map(|((role, pid), address)| Role {
        role: role.to_owned(),
        address: address.to_string(),
        pid,
    });
    Listening {
        rack: config.name.clone(),
        transport: config.transport.name(),
        api: format!("http://{}/v1", config.control.http),
        token_file: config.token_file().display().to_string(),
        roles: roles.collect(),
    }
}
