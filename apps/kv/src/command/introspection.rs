//! `COMMAND`, and the `HELP` subcommand of every container: the table, for clients.

use super::{Args, CommandResult, Context, count, is};
use crate::failure::Failure;
use crate::glob::glob;
use farmem_protocols::commands::{
    CATEGORIES, Command, Find, Keys, NO_KEYS, all, commands, find, find_of, subcommands,
};
use farmem_protocols::resp::Writer;

pub(super) fn command(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let [_, subcommand, rest @ ..] = args else {
        out.array(commands().count());
        commands().for_each(|command| describe(command, out));
        return Ok(());
    };
    match (String::from_utf8_lossy(subcommand).to_ascii_uppercase().as_str(), rest) {
        ("COUNT", []) => out.integer(count(commands().count())),
        ("LIST", filter) => list(filter, out)?,
        ("INFO", []) => {
            out.array(commands().count());
            commands().for_each(|command| describe(command, out));
        }
        ("INFO", names) => {
            out.array(names.len());
            names.iter().for_each(|name| match find(name) {
                Some(command) => describe(command, out),
                None => out.null_array(),
            });
        }
        ("DOCS", names) => {
            let is_named =
                |command: &&Command| names.is_empty() || names.iter().any(|name| is(name, command.name));
            let named: Vec<&Command> = all().filter(is_named).collect();
            out.map(named.len());
            for command in named {
                out.bulk(command.name.as_bytes());
                out.map(1);
                out.bulk(b"summary");
                out.bulk(b"The command of Redis 7.0; docs/kv.md lists the differences.");
            }
        }
        ("GETKEYS", request) => {
            let keys = keys_of(request)?;
            out.array(keys.len());
            keys.iter().for_each(|(key, _)| out.bulk(key));
        }
        ("GETKEYSANDFLAGS", request) => {
            let keys = keys_of(request)?;
            out.array(keys.len());
            for (key, access) in keys {
                out.array(2);
                out.bulk(key);
                simple_set(access.names(), out);
            }
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}

fn keys_of<'a>(request: &[&'a [u8]]) -> Result<Keys<'a>, Failure> {
    let command = find_of(request).ok_or(Failure::text("ERR Invalid command specified"))?;
    if command.specs == NO_KEYS {
        return Err(Failure::text("ERR The command has no key arguments"));
    }
    if !command.takes(request.len()) {
        return Err(Failure::text("ERR Invalid number of arguments specified for command"));
    }
    let keys = command.keys(request);
    if keys.is_empty() {
        return Err(Failure::text("ERR Invalid arguments specified for command"));
    }
    Ok(keys)
}

/// Executes `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`.
fn list(filter: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let names: Vec<&str> = match *filter {
        [] => all().map(|command| command.name).collect(),
        [by, kind, _] if is(by, "FILTERBY") && is(kind, "MODULE") => Vec::new(),
        [by, kind, category] if is(by, "FILTERBY") && is(kind, "ACLCAT") => {
            let category = String::from_utf8_lossy(category).to_ascii_lowercase();
            all().filter(|command| command.is_in(&category)).map(|command| command.name).collect()
        }
        [by, kind, pattern] if is(by, "FILTERBY") && is(kind, "PATTERN") => {
            let pattern = pattern.to_ascii_lowercase();
            all().map(|command| command.name).filter(|name| glob(&pattern, name.as_bytes())).collect()
        }
        _ => return Err(Failure::SYNTAX),
    };
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

fn simple_set<T: AsRef<str>>(names: impl Iterator<Item = T>, out: &mut Writer<'_>) {
    let names: Vec<T> = names.collect();
    out.set(names.len());
    names.iter().for_each(|name| out.simple(name.as_ref()));
}

/// Writes a command in the form of the `COMMAND` reply: with its categories, key specifications and subcommands.
fn describe(command: &'static Command, out: &mut Writer<'_>) {
    out.array(10);
    out.bulk(command.name.as_bytes());
    out.integer(command.arity.into());
    simple_set(command.flag_names(), out);
    let range = command.key_range();
    [range.first, range.last, range.step].into_iter().for_each(|number| out.integer(number.into()));
    let categories = CATEGORIES.iter().filter(|category| command.is_in(category));
    simple_set(categories.map(|category| format!("@{category}")), out);
    out.set(0);
    let specs: Vec<_> = command.specs.iter().flatten().collect();
    out.set(specs.len());
    for spec in specs {
        out.map(3);
        out.bulk(b"flags");
        simple_set(spec.access.names(), out);
        let found_by = |name: &str, kind: &str, numbers: &[(&str, i64)], out: &mut Writer<'_>| {
            out.bulk(name.as_bytes());
            out.map(2);
            out.bulk(b"type");
            out.bulk(kind.as_bytes());
            out.bulk(b"spec");
            out.map(numbers.len());
            for (name, number) in numbers {
                out.bulk(name.as_bytes());
                out.integer(*number);
            }
        };
        found_by("begin_search", "index", &[("index", spec.at.into())], out);
        let (kind, numbers) = match spec.find {
            Find::Range { last, step } => {
                ("range", [("lastkey", last.into()), ("keystep", step.into()), ("limit", 0)])
            }
            Find::Counted => ("keynum", [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)]),
        };
        found_by("find_keys", kind, &numbers, out);
    }
    out.set(subcommands(command).count());
    subcommands(command).for_each(|subcommand| describe(subcommand, out));
}

/// Executes the `HELP` subcommand of a command with subcommands.
pub(super) fn help(_: &mut Context<'_>, args: Args<'_>, out: &mut Writer<'_>) -> CommandResult {
    let parent = find(args[0]).expect("the request was looked up");
    let title = format!(
        "{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        parent.name.to_ascii_uppercase()
    );
    let names = subcommands(parent).filter_map(|row| row.name.split_once('|'));
    let lines: Vec<String> =
        std::iter::once(title).chain(names.map(|(_, name)| name.to_ascii_uppercase())).collect();
    out.array(lines.len());
    lines.iter().for_each(|line| out.simple(line));
    Ok(())
}
