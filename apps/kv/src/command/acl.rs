//! `ACL`: the users and their rights.

use super::execute::look_up;
use super::{Args, CommandResult, Context, count, integer, is};
use crate::acl::{Denied, Refusal, hex};
use crate::durable::chance;
use crate::failure::Failure;
use farmem_protocols::commands::{CATEGORIES, all, find_of};
use farmem_protocols::resp::Writer;

const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. Start it with --aclfile FILE to keep users over a restart.";

pub(super) fn acl(context: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let rest = &args[2..];
    match (String::from_utf8_lossy(args[1]).to_ascii_uppercase().as_str(), rest) {
        ("WHOAMI", []) => out.bulk(context.session.user.as_bytes()),
        ("USERS", []) => {
            out.array(context.world.acl.users().len());
            context.world.acl.users().for_each(|user| out.bulk(user.name.as_bytes()));
        }
        ("LIST", []) => {
            out.array(context.world.acl.users().len());
            context.world.acl.users().for_each(|user| out.bulk(user.line().as_bytes()));
        }
        ("GETUSER", [name]) => get_user(context, name, out),
        ("SETUSER", [name, rules @ ..]) => set_user(context, name, rules, out)?,
        ("DELUSER", [_, ..]) => delete_users(context, rest, out)?,
        ("CAT", []) => {
            out.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|name| out.bulk(name.as_bytes()));
        }
        ("CAT", [category]) => category_commands(category, out)?,
        ("GENPASS", [] | [_]) => generate(rest, out)?,
        ("DRYRUN", [user, request @ ..]) if !request.is_empty() => dry_run(context, user, request, out)?,
        ("LOG", [] | [_]) => log(context, rest, out)?,
        ("LOAD", []) if !context.world.acl.has_file() => return Err(Failure::text(NO_FILE)),
        ("SAVE", []) if !context.world.acl.has_file() => return Err(Failure::text(NO_FILE)),
        ("LOAD", []) => {
            context.world.acl.load().map_err(|why| Failure::said(format!("ERR {why}")))?;
            context.world.drop_sessions_of_no_user();
            out.simple("OK");
        }
        ("SAVE", []) => {
            context.world.acl.save().map_err(|why| Failure::said(format!("ERR {why}")))?;
            out.simple("OK");
        }
        _ => {
            let name = String::from_utf8_lossy(args[1]).into_owned();
            return Err(Failure::said(format!(
                "ERR unknown subcommand or wrong number of arguments for '{name}'. Try ACL HELP."
            )));
        }
    }
    Ok(())
}

fn get_user(context: &Context<'_>, name: &[u8], out: &mut Writer<'_>) {
    let user = std::str::from_utf8(name).ok().and_then(|name| context.world.acl.user(name));
    let Some(user) = user else { return out.null_array() };
    let texts = |texts: &[String], out: &mut Writer<'_>| {
        out.array(texts.len());
        texts.iter().for_each(|text| out.bulk(text.as_bytes()));
    };
    out.map(6);
    out.bulk(b"flags");
    out.set(user.flags().len());
    user.flags().iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    texts(&user.hashes(), out);
    for (field, text) in
        [("commands", user.commands()), ("keys", user.key_patterns()), ("channels", user.channel_patterns())]
    {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    }
    out.bulk(b"selectors");
    out.array(0);
}

fn set_user(context: &mut Context<'_>, name: &[u8], rules: &[&[u8]], out: &mut Writer<'_>) -> CommandResult {
    let name =
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && name.chars().all(|c| c > ' '));
    let name = name.ok_or(Failure::text("ERR Usernames can't contain spaces or null characters"))?;
    context.world.acl.set(name, rules).map_err(|(rule, why)| {
        // The reply must not have a refused password.
        let shown = if rule.starts_with(['>', '<']) { rule[..1].to_owned() + "..." } else { rule };
        Failure::said(format!("ERR Error in ACL SETUSER modifier '{shown}': {why}"))
    })?;
    out.simple("OK");
    Ok(())
}

fn delete_users(context: &mut Context<'_>, names: &[&[u8]], out: &mut Writer<'_>) -> CommandResult {
    if names.contains(&&b"default"[..]) {
        return Err(Failure::text("ERR The 'default' user cannot be removed"));
    }
    let gone = names
        .iter()
        .filter(|name| std::str::from_utf8(name).is_ok_and(|name| context.world.acl.remove(name)));
    let gone = gone.count();
    context.world.drop_sessions_of_no_user();
    out.integer(count(gone));
    Ok(())
}

fn category_commands(category: &[u8], out: &mut Writer<'_>) -> CommandResult {
    let name = String::from_utf8_lossy(category).to_ascii_lowercase();
    if !CATEGORIES.contains(&name.as_str()) {
        return Err(Failure::said(format!("ERR Unknown category '{}'", String::from_utf8_lossy(category))));
    }
    let of: Vec<&str> = all().filter(|command| command.is_in(&name)).map(|command| command.name).collect();
    out.array(of.len());
    of.iter().for_each(|command| out.bulk(command.as_bytes()));
    Ok(())
}

/// Writes a random password of this many bits in hexadecimal digits.
fn generate(args: &[&[u8]], out: &mut Writer<'_>) -> CommandResult {
    const BITS: i64 = 256;
    let bits = args.first().map_or(Ok(BITS), |arg| integer(arg))?;
    let digits =
        usize::try_from(bits).ok().filter(|bits| (1..=4096).contains(bits)).map(|bits| bits.div_ceil(4));
    let digits = digits.ok_or(Failure::text(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
    ))?;
    let mut bytes = Vec::new();
    while bytes.len() * 2 < digits {
        let random =
            chance().map_err(|error| Failure::said(format!("ERR no chance from the system: {error}")))?;
        bytes.extend_from_slice(&random.to_le_bytes());
    }
    out.bulk(&hex(&bytes).as_bytes()[..digits]);
    Ok(())
}

fn dry_run(context: &Context<'_>, name: &[u8], request: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let user = std::str::from_utf8(name).ok().and_then(|name| context.world.acl.user(name));
    let Some(user) = user else {
        return Err(Failure::said(format!("ERR User '{}' not found", String::from_utf8_lossy(name))));
    };
    if find_of(request).is_none() {
        return Err(Failure::said(format!(
            "ERR Command '{}' not found",
            String::from_utf8_lossy(request[0])
        )));
    }
    let command = look_up(request)?;
    match user.denies(command, request) {
        None => out.simple("OK"),
        Some(Denied::Command) => {
            out.bulk(
                format!("This user has no permissions to run the '{}' command", command.name).as_bytes(),
            );
        }
        Some(Denied::Key(key)) => {
            out.bulk(
                format!("This user has no permissions to access the '{}' key", String::from_utf8_lossy(key))
                    .as_bytes(),
            );
        }
    }
    Ok(())
}

fn log(context: &mut Context<'_>, args: &[&[u8]], out: &mut Writer<'_>) -> CommandResult {
    if args.first().is_some_and(|word| is(word, "RESET")) {
        context.world.acl.log.clear();
        out.simple("OK");
        return Ok(());
    }
    let wanted = args.first().map_or(Ok(10), |arg| integer(arg))?;
    let wanted = usize::try_from(wanted).unwrap_or(0).min(context.world.acl.log.len());
    let now = context.store.now();
    out.array(wanted);
    for entry in context.world.acl.log.iter().take(wanted) {
        write_refusal(entry, now, out);
    }
    Ok(())
}

fn write_refusal(entry: &Refusal, now: i64, out: &mut Writer<'_>) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    out.map(10);
    out.bulk(b"count");
    out.integer(number(entry.count));
    for (field, text) in [
        ("reason", entry.reason),
        ("context", entry.context),
        ("object", entry.object.as_str()),
        ("username", entry.user.as_str()),
    ] {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    }
    out.bulk(b"age-seconds");
    let seconds = u32::try_from((now - entry.first) / 1000).unwrap_or(u32::MAX);
    out.double(f64::from(seconds));
    out.bulk(b"client-info");
    out.bulk(entry.client.as_bytes());
    for (field, number) in [
        ("entry-id", number(entry.id)),
        ("timestamp-created", entry.first),
        ("timestamp-last-updated", entry.last),
    ] {
        out.bulk(field.as_bytes());
        out.integer(number);
    }
}
