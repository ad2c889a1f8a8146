//! Snapshots, written step by step between commands.

use crate::durable::{Durable, Phase};
use crate::store::Store;
use std::io;

/// Bytes of keys that one step takes: the longest wait of a command.
const STEP: usize = 128 << 10;

/// Begins a snapshot of this moment.
pub(crate) fn begin(store: &mut Store, durable: &mut Durable) -> io::Result<()> {
    durable.begin_saving()?;
    store.begin_picture();
    Ok(())
}

/// Takes a step of the snapshot under way. Returns the result when the snapshot has ended. With `wait`, the
/// step waits for the disk.
pub(crate) fn go_on(store: &mut Store, durable: &mut Durable, wait: bool) -> Option<io::Result<()>> {
    let saving = durable.saving.as_ref()?;
    if saving.phase() == Phase::Syncing {
        return durable.settled(wait, store.now());
    }
    if store.picture().is_none() {
        let why =
            "a key could not be read from far memory, all keys of a database were dropped, or more was changed at once than there is room for".to_owned();
        durable.give_up_saving(why.clone(), store.now());
        return Some(Err(io::Error::other(why)));
    }
    let step = store.go_on_with_picture(STEP).map_err(|failure| io::Error::other(failure.reply().to_owned()));
    let written = step.and_then(|(keys, last)| durable.go_on_saving(&keys, last.then(|| store.keys_taken())));
    match written {
        Ok(()) => None,
        Err(error) => {
            store.drop_picture();
            durable.give_up_saving(error.to_string(), store.now());
            Some(Err(error))
        }
    }
}

/// Makes a snapshot of this moment, after one that is under way.
pub(crate) fn save_now(store: &mut Store, durable: &mut Durable) -> io::Result<()> {
    let _the_next_one_counts = finish(store, durable);
    begin(store, durable)?;
    finish(store, durable)
}

/// Continues until the snapshot is on the disk.
pub(crate) fn finish(store: &mut Store, durable: &mut Durable) -> io::Result<()> {
    while durable.saving.is_some() {
        if let Some(ended) = go_on(store, durable, true) {
            return ended;
        }
    }
    Ok(())
}
