//! What is done beside commands by time.

use crate::durable::Durable;
use crate::saving;
use crate::store::Store;
use crate::world::World;
use std::time::{Duration, Instant};

/// Keys whose end is looked at in a round, and rounds of a tick in any case while a quarter of them has ended; then as many as there is time for.
const EXPIRE_SAMPLES: usize = 20;
const EXPIRE_ROUNDS: usize = 32;
const EXPIRE_TIME: Duration = Duration::from_millis(20);

/// Takes out keys that have ended.
pub(super) fn expire(store: &mut Store) {
    let begun = Instant::now();
    for db in 0..u8::try_from(crate::store::SPACES).expect("few") {
        // As long as many have ended, but not for more of a tick than clients notice.
        for round in 0.. {
            let has_few = store.expire_some(db, EXPIRE_SAMPLES) <= 25;
            if has_few || (round >= EXPIRE_ROUNDS && begun.elapsed() >= EXPIRE_TIME) {
                break;
            }
        }
    }
}

/// Seconds after a snapshot that failed before the next one begins by itself.
const RETRY_SECONDS: i64 = 5;

/// A snapshot begins when enough has changed for long enough, or the log has grown to many times its beginning.
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
        crate::say(&format!("no snapshot can begin: {error}"));
    }
}
