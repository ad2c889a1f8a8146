//! The function of each command.

use super::collections::Operation;
use super::sorted_ranges::By;
use super::{
    Args, CommandResult, Context, Handler, acl, blocking, client, config, hashes, info, introspection, item,
    keys, latency, lcs, lists, numbers, server, sets, slowlog, sort, sorted, sorted_ranges, strings,
    transactions,
};
use crate::failure::Failure;
use crate::session::Session;
use crate::store::Store;
use crate::world::World;
use farmem_protocols::commands::TABLE;
use farmem_protocols::resp::Writer;
use std::sync::LazyLock;

/// The functions, in the order of the table.
static HANDLERS: LazyLock<Vec<Handler>> =
    LazyLock::new(|| TABLE.iter().map(|command| of(command.name).unwrap_or(unserved)).collect());

/// Returns the state that a command of this session reads and changes.
pub(crate) fn context<'a>(
    store: &'a mut Store,
    session: &'a mut Session,
    world: &'a mut World,
) -> Context<'a> {
    Context { store, session, world, handlers: &HANDLERS, logged_request: None }
}

/// Returns the function of a command, by its name in the table. Subcommands have their command's, but for `HELP`.
fn of(name: &str) -> Option<Handler> {
    let name = match name.split_once('|') {
        Some((_, "help")) => return Some(introspection::help),
        Some((command, _)) => command,
        None => name,
    };
    let handler: Handler = match name {
        "get" => strings::get,
        "farmem.item" => item::item,
        "set" => strings::set,
        "setnx" => strings::setnx,
        "setex" => strings::setex,
        "psetex" => strings::psetex,
        "getset" => strings::getset,
        "getdel" => strings::getdel,
        "getex" => strings::getex,
        "mget" => strings::mget,
        "mset" => strings::mset,
        "msetnx" => strings::msetnx,
        "strlen" => strings::strlen,
        "append" => strings::append,
        "setrange" => strings::setrange,
        "getrange" | "substr" => strings::getrange,
        "incr" => |context, args, out| numbers::add(context, args[1], 1, out),
        "decr" => |context, args, out| numbers::add(context, args[1], -1, out),
        "incrby" => numbers::incrby,
        "decrby" => numbers::decrby,
        "incrbyfloat" => numbers::incrbyfloat,
        "del" | "unlink" => keys::del,
        "exists" => keys::exists,
        "touch" => keys::touch,
        "type" => keys::kind,
        "expire" => |context, args, out| keys::expire_in(context, args, out, 1000, true),
        "pexpire" => |context, args, out| keys::expire_in(context, args, out, 1, true),
        "expireat" => |context, args, out| keys::expire_in(context, args, out, 1000, false),
        "pexpireat" => |context, args, out| keys::expire_in(context, args, out, 1, false),
        "ttl" => keys::ttl,
        "pttl" => keys::pttl,
        "expiretime" => keys::expiretime,
        "pexpiretime" => keys::pexpiretime,
        "persist" => keys::persist,
        "scan" => keys::scan,
        "keys" => keys::keys,
        "randomkey" => keys::randomkey,
        "dbsize" => keys::dbsize,
        "flushdb" => keys::flushdb,
        "flushall" => keys::flushall,
        "rename" => keys::rename,
        "renamenx" => keys::renamenx,
        "copy" => keys::copy,
        "move" => keys::move_to,
        "swapdb" => keys::swapdb,
        "object" => keys::object,
        "sort" => |context, args, out| sort::sort_with(context, args, out, true),
        "sort_ro" => |context, args, out| sort::sort_with(context, args, out, false),
        "hset" => hashes::hset,
        "hmset" => hashes::hmset,
        "hsetnx" => hashes::hsetnx,
        "hget" => hashes::hget,
        "hmget" => hashes::hmget,
        "hdel" => hashes::hdel,
        "hexists" => hashes::hexists,
        "hlen" => hashes::hlen,
        "hstrlen" => hashes::hstrlen,
        "hgetall" => hashes::hgetall,
        "hkeys" => hashes::hkeys,
        "hvals" => hashes::hvals,
        "hincrby" => hashes::hincrby,
        "hincrbyfloat" => hashes::hincrbyfloat,
        "hrandfield" => hashes::hrandfield,
        "hscan" => hashes::hscan,
        "lpush" => |context, args, out| lists::push(context, args, out, true, true),
        "rpush" => |context, args, out| lists::push(context, args, out, false, true),
        "lpushx" => |context, args, out| lists::push(context, args, out, true, false),
        "rpushx" => |context, args, out| lists::push(context, args, out, false, false),
        "lpop" => |context, args, out| lists::pop(context, args, out, true),
        "rpop" => |context, args, out| lists::pop(context, args, out, false),
        "lmpop" => blocking::lmpop,
        "blpop" => |context, args, out| blocking::pop(context, args, out, true),
        "brpop" => |context, args, out| blocking::pop(context, args, out, false),
        "blmove" => blocking::blmove,
        "brpoplpush" => blocking::brpoplpush,
        "blmpop" => blocking::blmpop,
        "bzpopmin" => |context, args, out| blocking::pop_member(context, args, out, true),
        "bzpopmax" => |context, args, out| blocking::pop_member(context, args, out, false),
        "bzmpop" => blocking::bzmpop,
        "zmpop" => blocking::zmpop,
        "zintercard" => sorted::zintercard,
        "lcs" => lcs::lcs,
        "slowlog" => slowlog::slowlog,
        "llen" => lists::llen,
        "lindex" => lists::lindex,
        "lset" => lists::lset,
        "lrange" => lists::lrange,
        "ltrim" => lists::ltrim,
        "lrem" => lists::lrem,
        "linsert" => lists::linsert,
        "lpos" => lists::lpos,
        "rpoplpush" => {
            |context, args, out| lists::move_between(context, (args[1], args[2]), false, true, out)
        }
        "lmove" => lists::lmove,
        "sadd" => sets::sadd,
        "srem" => sets::srem,
        "scard" => sets::scard,
        "sismember" => sets::sismember,
        "smismember" => sets::smismember,
        "smembers" => sets::smembers,
        "smove" => sets::smove,
        "srandmember" => sets::srandmember,
        "spop" => sets::spop,
        "sunion" => |context, args, out| sets::answer(context, args, out, Operation::Union),
        "sinter" => |context, args, out| sets::answer(context, args, out, Operation::Intersection),
        "sdiff" => |context, args, out| sets::answer(context, args, out, Operation::Difference),
        "sunionstore" => |context, args, out| sets::store(context, args, out, Operation::Union),
        "sinterstore" => |context, args, out| sets::store(context, args, out, Operation::Intersection),
        "sdiffstore" => |context, args, out| sets::store(context, args, out, Operation::Difference),
        "sintercard" => sets::sintercard,
        "sscan" => sets::sscan,
        "zadd" => sorted::zadd,
        "zincrby" => sorted::zincrby,
        "zrem" => sorted::zrem,
        "zcard" => sorted::zcard,
        "zscore" => sorted::zscore,
        "zmscore" => sorted::zmscore,
        "zrank" => |context, args, out| sorted::rank(context, args, out, false),
        "zrevrank" => |context, args, out| sorted::rank(context, args, out, true),
        "zpopmin" => |context, args, out| sorted::pop(context, args, out, false),
        "zpopmax" => |context, args, out| sorted::pop(context, args, out, true),
        "zrandmember" => sorted::zrandmember,
        "zscan" => sorted::zscan,
        "zunion" => |context, args, out| sorted::answer(context, args, out, ("zunion", Operation::Union)),
        "zinter" => {
            |context, args, out| sorted::answer(context, args, out, ("zinter", Operation::Intersection))
        }
        "zdiff" => |context, args, out| sorted::answer(context, args, out, ("zdiff", Operation::Difference)),
        "zunionstore" => {
            |context, args, out| sorted::store(context, args, out, ("zunionstore", Operation::Union))
        }
        "zinterstore" => {
            |context, args, out| sorted::store(context, args, out, ("zinterstore", Operation::Intersection))
        }
        "zdiffstore" => {
            |context, args, out| sorted::store(context, args, out, ("zdiffstore", Operation::Difference))
        }
        "zrange" => |context, args, out| sorted_ranges::range(context, args, out, None, false),
        "zrevrange" => |context, args, out| sorted_ranges::range(context, args, out, Some(By::Rank), true),
        "zrangebyscore" => {
            |context, args, out| sorted_ranges::range(context, args, out, Some(By::Score), false)
        }
        "zrevrangebyscore" => {
            |context, args, out| sorted_ranges::range(context, args, out, Some(By::Score), true)
        }
        "zrangebylex" => |context, args, out| sorted_ranges::range(context, args, out, Some(By::Text), false),
        "zrevrangebylex" => {
            |context, args, out| sorted_ranges::range(context, args, out, Some(By::Text), true)
        }
        "zrangestore" => sorted_ranges::zrangestore,
        "zcount" => |context, args, out| sorted_ranges::counted(context, args, out, By::Score),
        "zlexcount" => |context, args, out| sorted_ranges::counted(context, args, out, By::Text),
        "zremrangebyrank" => |context, args, out| sorted_ranges::removed(context, args, out, By::Rank),
        "zremrangebyscore" => |context, args, out| sorted_ranges::removed(context, args, out, By::Score),
        "zremrangebylex" => |context, args, out| sorted_ranges::removed(context, args, out, By::Text),
        "multi" => transactions::multi,
        "exec" => transactions::exec,
        "discard" => transactions::discard,
        "watch" => transactions::watch,
        "unwatch" => transactions::unwatch,
        "ping" => server::ping,
        "echo" => server::echo,
        "select" => server::select,
        "acl" => acl::acl,
        "auth" => server::auth,
        "hello" => server::hello,
        "quit" => server::quit,
        "reset" => server::reset,
        "time" => server::time,
        "info" => info::info,
        "client" => client::client,
        "config" => config::config,
        "command" => introspection::command,
        "debug" => server::debug,
        "memory" => server::memory,
        "role" => server::role,
        "wait" => server::wait,
        "save" => server::save,
        "bgsave" => server::bgsave,
        "bgrewriteaof" => server::bgrewriteaof,
        "lastsave" => server::lastsave,
        "shutdown" => server::shutdown,
        "latency" => latency::latency,
        "module" => server::module,
        _ => return None,
    };
    Some(handler)
}

/// Refuses a command that the table has for parsers of traffic alone. No request finds it.
fn unserved(_: &mut Context<'_>, _: Args<'_>, _: &mut Writer<'_>) -> CommandResult {
    Err(Failure::text("ERR unknown command"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocols::commands::all;

    /// Each command that clients may send, and the append log's own, has a function of its own.
    #[test]
    fn each_served_command_has_a_handler() {
        for command in all() {
            assert!(of(command.name).is_some(), "{}", command.name);
        }
        assert!(of("farmem.item").is_some() && of("bitcount").is_none());
    }
}
