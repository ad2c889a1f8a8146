//! Periodic work: snapshots, and the state of far memory.

use crate::durable::Durable;
use crate::operator::say;
use crate::saving;
use crate::store::Store;
use crate::world::World;

/// Probes far memory, and logs changes of its state on standard error: memory that is lost, silent, or back.
pub(super) fn watch_far_memory(store: &mut Store) {
    store.probe_far().iter().for_each(|line| say(line));
}

/// Seconds between a failed snapshot and the next automatic one.
const RETRY_SECONDS: i64 = 5;

/// Begins a snapshot when enough keys have changed for long enough, or when the append log is much longer
/// than the data.
pub(super) fn begin_saves(store: &mut Store, world: &mut World) {
    const LOG_LEN_MIN: u64 = 256 << 20;
    let durable: &mut Durable = &mut world.durable;
    let since_failed = (store.now() / 1000).saturating_sub(durable.failed_at);
    if durable.saving.is_some() || durable.dir().is_none() || since_failed < RETRY_SECONDS {
        return;
    }
    let age = u64::try_from(store.now() / 1000 - durable.last_save).unwrap_or(0);
    let by_time = !durable.has_log()
        && world.settings.save.iter().any(|&(seconds, changes)| age >= seconds && durable.unsaved >= changes);
    let by_len = durable.log_len() > LOG_LEN_MIN.max(2 * store.data_bytes() as u64);
    if (by_time || by_len || std::mem::take(&mut durable.save_is_due))
        && let Err(error) = saving::begin(store, &mut world.durable)
    {
        world.durable.give_up_saving(error.to_string(), store.now());
        say(&format!("no snapshot can begin: {error}"));
    }
}
