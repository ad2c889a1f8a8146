//! Requests: the decision about each, by the module that owns its rows (PROTOCOL 8.10 to 8.14).

mod acting_hosts;
mod address_proof;
mod card_numbers;
mod cards;
mod checks;
mod connections;
mod index_switches;
mod members;
mod memory;
mod migrate;
mod numbers;
mod objects;
mod open_modes;
mod processes;

pub use acting_hosts::ACTS_MAX;
pub use objects::OBJECT_NAME_MAX;

use crate::api;
use crate::api::{Mmap, Mprotect, Munmap, Request, Response};
use crate::coherence::Coherence;
use crate::decision::{Decided, Decision};
use crate::messages::{Actions, reply};
use crate::rack::{Pending, Rack};
use crate::record::{ChangeKind, Line};
use crate::soft::Images;
use crate::syscalls::Call;

/// Converts the decision about a request of one type to one about any request.
fn any<C: api::Call>(_: &C, decided: Decided<C>) -> Decided<Request>
where
    Response: From<C::Answer>,
{
    decided.map(|decision| match decision {
        Decision::Reply(answer) => Decision::Reply(answer.into()),
        Decision::Keep(line, answer) => Decision::Keep(line, answer.into()),
        Decision::Begin(what) => Decision::Begin(what),
        Decision::Soft(role, want) => Decision::Soft(role, want),
        Decision::Look { node, file } => Decision::Look { node, file },
    })
}

/// Decides a request.
pub(crate) fn decide(
    rack: &mut Rack,
    coherence: &mut Coherence,
    images: &mut Images,
    request: &Request,
) -> Decided<Request> {
    match request {
        Request::JoinSwitch(call) => any(call, rack.join_switch(&call.gid)),
        Request::JoinIndex(call) => any(call, rack.join_index(call)),
        Request::JoinNode(call) => any(call, rack.join_node(call)),
        Request::JoinHost(call) => any(call, rack.join_host(call)),
        Request::Stay(call) => any(call, rack.stay(call)),
        Request::Leave(call) => any(call, rack.leave(call.port, call.generation)),
        Request::ActFor(call) => any(call, rack.act_for(call)),
        Request::CreateDomain(call) => any(call, rack.create_domain(&call.name)),
        Request::OpenSession(call) => any(call, rack.open_session(call.host, call.domain)),
        Request::Connect(call) => any(call, rack.connect(call)),
        Request::Disconnect(call) => any(call, rack.disconnect(call.host, call.qpn)),
        Request::Allocate(call) => any(call, rack.allocate(call)),
        Request::Free(call) => any(call, rack.free(call.domain, call.base, call.id)),
        Request::Grant(call) => any(call, rack.grant(call)),
        Request::ProcessStart(call) => any(call, rack.process_start(call.domain, call.heap)),
        Request::ProcessExit(call) => any(call, rack.process_exit(call.process)),
        Request::Mmap(call) => {
            let &Mmap { process, addr, len, prot, flags } = call;
            any(call, rack.memory_call(process, &Call::Mmap { addr, len, prot, flags }))
        }
        Request::Munmap(call) => {
            let &Munmap { process, addr, len } = call;
            any(call, rack.memory_call(process, &Call::Munmap { addr, len }))
        }
        Request::Mprotect(call) => {
            let &Mprotect { process, addr, len, prot } = call;
            any(call, rack.memory_call(process, &Call::Mprotect { addr, len, prot }))
        }
        Request::Brk(call) => any(call, rack.memory_call(call.process, &Call::Brk { addr: call.addr })),
        Request::Renew(call) => any(call, coherence.renew(rack, call)),
        Request::Recover(call) => any(call, coherence.recover(rack, call.host, call.page)),
        Request::AcceptLost(call) => any(call, rack.accept_lost(call.domain, call.base, call.len)),
        Request::OpenObject(call) => any(call, rack.open_object(call)),
        Request::HoldObject(call) => any(call, rack.hold_object(call)),
        Request::ResizeObject(call) => any(call, rack.resize_object(call.host, call.object, call.length)),
        Request::UnlinkObject(call) => any(call, rack.unlink_object(call.domain, &call.name)),
        Request::DropObject(call) => any(call, rack.drop_object(call.host, call.object)),
        Request::LookFile(call) => any(call, rack.look_file(call)),
        Request::LoadObject(call) => any(call, rack.load_object(call)),
        Request::SaveObject(call) => any(call, rack.save_object(call)),
        Request::ListObjects(call) => any(call, rack.list_objects(call)),
        Request::Migrate(call) => any(call, rack.migrate(call.domain, call.base, call.len, call.node)),
        Request::ShowObject(call) => any(call, rack.show_object(call.domain, &call.name)),
        Request::Locate(call) => any(call, rack.locate(call.addr)),
        Request::SoftLoad(call) => any(call, images.soft_load(rack, call)),
        Request::SoftRead(call) => any(call, images.soft_read(rack, call)),
        Request::SoftCounts(call) => any(call, images.soft_counts(rack, call)),
        Request::SoftShow(call) => any(call, images.soft_show(rack, call.switch)),
        Request::SoftClear(call) => any(call, images.soft_clear(rack, call)),
        Request::Usage(call) => any(call, Ok(Decision::Reply(rack.usage()))),
        Request::Overview(call) => any(
            call,
            Ok(Decision::Reply(rack.overview(coherence.directory_info(rack), images.index_infos(rack)))),
        ),
    }
}

impl Rack {
    /// Begins the change that a request asks for. The request is answered when the change ends.
    pub(crate) fn begin_request(&mut self, pending: Pending, what: ChangeKind, out: &mut Actions) {
        let change = self.state.next_change;
        let (ticket, build, port) = (pending.ask.ticket, pending.ask.shown.build.clone(), what.joining());
        self.asked.insert(change, pending);
        if self.keep(Line::Began { change, what }, out).is_err() {
            self.asked.remove(&change);
            return reply(ticket, Err(self.stall_error("nothing was changed")), out);
        }
        if let Some(port) = port {
            self.joined_as(port, build, out);
        }
    }
}
