//! The rights of a client's user: a request that they forbid is refused, and the refusal logged (`ACL LOG`).

use super::client::client_line;
use super::{Args, CommandResult, Context};
use crate::acl::{Denied, Refusal};
use crate::failure::Failure;
use farmem_protocols::commands::Command;

/// Refuses a request that the rules of the client's user forbid, and logs the refusal.
pub(super) fn permit(context: &mut Context<'_>, command: &'static Command, args: Args<'_>) -> CommandResult {
    if !context.world.is_current(context.session) {
        return Err(Failure::text("NOAUTH Authentication required: this client's user is gone."));
    }
    let Some(denied) = context.session.rights.denies(command, args) else { return Ok(()) };
    let name = command.name.to_owned();
    let (reason, object, text) = match denied {
        Denied::Command => {
            let text = format!("NOPERM this user has no permissions to run the '{name}' command");
            ("command", name, text)
        }
        Denied::Key(key) => (
            "key",
            String::from_utf8_lossy(&key[..key.len().min(128)]).into_owned(),
            "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned(),
        ),
    };
    let user = context.session.user.clone();
    note(context, reason, object, user);
    Err(Failure::said(text))
}

/// Logs a refusal of this client.
pub(super) fn note(context: &mut Context<'_>, reason: &'static str, object: String, user: String) {
    let now = context.store.now();
    let session = &context.session;
    let shown = context.world.clients.get(&session.id);
    let client = shown.map_or_else(String::new, |shown| client_line(context, session.id, shown));
    context.world.acl.note(Refusal {
        id: 0,
        count: 1,
        reason,
        context: if session.queues() { "multi" } else { "toplevel" },
        object,
        user,
        client,
        first: now,
        last: now,
    });
}
