//! `farmem up`: a rack as processes on this machine, until Ctrl-C. The command restarts dead roles and
//! reports the consequences.

use crate::args::{EXAMPLE, Up};
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use crate::supervisor::{DEATHS_MAX, Death, Happened, Role as Which, Supervisor};
use farmem::api::RackOverview;
use farmem::{RackConfig, serve};
use farmem_workload::STOPPED;
use serde::Serialize;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Time between two checks of the processes.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Maximum wait for the control plane's answer about a memory node.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Listening {
    rack: String,
    transport: &'static str,
    link: String,
    /// Addresses of the API, with the Unix socket first.
    api: Vec<String>,
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
            "rack {:?} is up, transport {}, link {}\n{table}API    {}\ntoken  {}\nCtrl-C stops it.\n",
            self.rack,
            self.transport,
            self.link,
            self.api.join(", "),
            self.token_file
        )
    }
}

pub(crate) fn run(args: &Up) -> Result<End, Failure> {
    let Some(file) = args.rack.as_ref().filter(|_| !args.example) else {
        output::write_out(EXAMPLE);
        return Ok(End::Fine);
    };
    let (ask_to_stop, stop) = channel();
    farmem_workload::on_interrupt(move || {
        // A second Ctrl-C during the stop finds no listener, which is fine.
        let _already_stopped = ask_to_stop.send(());
    })
    .map_err(|e| Failure::environment(format!("cannot catch Ctrl-C: {e}"), ""))?;
    let Some(config) = load(file, &stop) else { return Ok(End::Program(STOPPED)) };
    let is_asked = || stop.try_recv().is_ok();
    let Some(mut rack) = Supervisor::start_unless(config?, &is_asked)? else {
        return Ok(End::Program(STOPPED));
    };
    output::print(&listening(&rack), args.json);
    loop {
        match stop.recv_timeout(LOOK_EVERY) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                return Ok(if rack.has_given_up() { End::Violation } else { End::Fine });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        for happened in rack.tend() {
            let event = match &happened {
                Happened::Died { role, death, again } => died(&rack, *role, death, *again),
                Happened::Serves { role } => serves(&rack, *role),
            };
            output::note(&format!("farmem: {}", event.text));
            if args.json {
                output::print_json(&event);
            }
        }
        if rack.is_over() {
            let remedy = "the lines above say why; start it again with `farmem up`";
            return Err(Failure::environment("every role of the rack is given up", remedy));
        }
    }
}

/// Reads the description in another thread, because a FIFO may have no writer for a long time. Returns `None`
/// when the command is stopped first.
fn load(file: &Path, stop: &Receiver<()>) -> Option<Result<RackConfig, farmem::Error>> {
    let (say, said) = channel();
    let file = file.to_owned();
    std::thread::spawn(move || drop(say.send(RackConfig::load(&file))));
    loop {
        if stop.try_recv().is_ok() {
            return None;
        }
        match said.recv_timeout(LOOK_EVERY) {
            Ok(loaded) => return Some(loaded),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
        }
    }
}

/// Event of a role: a line on standard error, and with `--json` an object after [`Listening`].
#[derive(Serialize)]
struct RoleEvent {
    event: &'static str,
    role: String,
    /// How the process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<String>,
    /// Time until the restart, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    again_in_ms: Option<u64>,
    /// Process that serves now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Memory of a memory node that died, if the control plane answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Lost>,
    /// Line of text about the event.
    text: String,
}

/// Memory that was lost with its node.
#[derive(Clone, Copy, Serialize)]
struct Lost {
    allocations: usize,
    bytes: u64,
}

fn died(rack: &Supervisor, role: usize, death: &Death, again: Option<Duration>) -> RoleEvent {
    let name = name_of(rack, role);
    let lost = match rack.role(role) {
        Which::Node(node) => lost_with(rack, node),
        Which::Control | Which::Switch | Which::Index(_) | Which::Dpu => None,
    };
    let means = means(rack.role(role), lost, again.is_some());
    let then = match again {
        Some(wait) => format!("it is started again in {} ms", wait.as_millis()),
        None => format!("it died {DEATHS_MAX} times in a row and is given up; the others go on"),
    };
    RoleEvent {
        event: if again.is_some() { "died" } else { "given_up" },
        text: format!("{name} ended: {death}; {then}; {means}"),
        role: name,
        how: Some(death.to_string()),
        again_in_ms: again.and_then(|wait| u64::try_from(wait.as_millis()).ok()),
        pid: None,
        lost,
    }
}

/// Returns the consequence of a role's death for programs: during a restart, or for good when the role was
/// given up (PROTOCOL 9.7, 9.9, 9.12, 9.21).
fn means(role: Which<'_>, lost: Option<Lost>, again: bool) -> String {
    match (role, again) {
        (Which::Control, true) => {
            "what is allocated can be used meanwhile; changes and joins wait, and nothing is lost: its log is on disk".to_owned()
        }
        (Which::Control, false) => format!(
            "what is allocated can still be used; changes and joins fail, and hosts that share pages lose the use of them when their leases end, \
             {RESTART}; its log is on disk"
        ),
        (Which::Switch, true) => {
            "READs and WRITEs go on; traversals are repeated meanwhile, hosts write cached pages back, and a new epoch begins; nothing is lost"
                .to_owned()
        }
        (Which::Switch, false) => format!(
            "READs and WRITEs go on; traversals, requests for shared pages, and allocating, freeing and granting fail {RESTART}"
        ),
        (Which::Index(_), true) => {
            "look-ups that it lost are repeated, and go by way of the rack's switch meanwhile; it is given its part of the index again".to_owned()
        }
        (Which::Index(_), false) => "look-ups go by way of the rack's switch instead".to_owned(),
        (Which::Dpu, again) => {
            let then = if again { "once it serves again" } else { RESTART };
            format!("its processes go on straight to the memory nodes, and nothing is lost; new ones come to it {then}")
        }
        (Which::Node(_), _) => {
            let what = match lost {
                Some(Lost { allocations, bytes }) => format!("{bytes} bytes of {allocations} allocations"),
                None => "every allocation there (the control plane does not say how many)".to_owned(),
            };
            let then = if again {
                "what was there is refused as lost: start programs that need it again; one written for farmem can go on after `Client::accept_lost`"
                    .to_owned()
            } else {
                format!("what needs it fails {RESTART}")
            };
            format!("ITS MEMORY IS LOST: {what}; {then}")
        }
    }
}

/// Remedy after a role was given up, and its cost.
const RESTART: &str = "until the rack is started again (end `farmem up` and start it anew: all memory of its nodes is lost by that)";

fn serves(rack: &Supervisor, role: usize) -> RoleEvent {
    let name = name_of(rack, role);
    let pid = rack.processes().nth(role).map(|(_, pid)| pid);
    let text = format!("{name} serves again, as process {}", pid.unwrap_or(0));
    RoleEvent { event: "serves", role: name, how: None, again_in_ms: None, pid, lost: None, text }
}

fn name_of(rack: &Supervisor, role: usize) -> String {
    rack.processes().nth(role).map_or_else(String::new, |(name, _)| name.to_owned())
}

/// Returns the memory of a node, as the control plane knows it. The data is still current, because the node
/// has not joined again. Returns `None` without an answer.
fn lost_with(rack: &Supervisor, name: &str) -> Option<Lost> {
    if !rack.has_control() {
        return None;
    }
    let (say, said) = channel();
    let config = rack.config().clone();
    // The call runs in a separate thread, because a control plane that does not answer must not stop the
    // watch over the other roles.
    std::thread::spawn(move || drop(say.send(serve::overview(&config))));
    let Ok(Ok(RackOverview { nodes, vmas, moved, .. })) = said.recv_timeout(ASK_TIME_MAX) else {
        return None;
    };
    let node = nodes.iter().find(|node| node.name == name)?;
    let here = vmas.iter().filter(|vma| vma.node == node.node).map(|vma| vma.base);
    let parts = moved.iter().filter(|part| part.node == node.node).map(|part| part.base);
    let allocations = here.count() + parts.count();
    Some(Lost { allocations, bytes: node.allocated })
}

fn listening(rack: &Supervisor) -> Listening {
    let config = rack.config();
    let mut addresses = vec![config.control.address, config.switch.address];
    addresses.extend(config.nodes.iter().map(|n| n.address));
    addresses.extend(config.index.iter().map(|switch| switch.address));
    let unix = format!("unix:{}", config.api_socket().display());
    let tls = config.control.listen.map(|address| format!("https://{address}/v1"));
    let plain = config.control.http.map(|address| format!("http://{address}/v1"));
    let api = [Some(unix), tls, plain].into_iter().flatten();
    let sockets = config.dpu.iter().map(|dpu| dpu.socket.display().to_string());
    let addresses = addresses.iter().map(ToString::to_string).chain(sockets);
    let roles = rack.processes().zip(addresses);
    let roles = roles.map(|((role, pid), address)| Role { role: role.to_owned(), address, pid });
    Listening {
        rack: config.name.clone(),
        transport: config.transport.name(),
        link: config.link.to_string(),
        api: api.collect(),
        token_file: config.token_file().display().to_string(),
        roles: roles.collect(),
    }
}
