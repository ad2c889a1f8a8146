//! A snapshot that is being written.

use super::frame::{self, MAGIC_SNAPSHOT};
use super::{Durable, Saving, number_of, snapshot_name};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{TryRecvError, sync_channel};

impl Durable {
    /// Begins a snapshot, and the log after it.
    pub(crate) fn begin_saving(&mut self) -> io::Result<()> {
        self.flush()?;
        let Some(dir) = self.dir.clone() else {
            return Err(io::Error::other("there is no directory; start the server with --dir"));
        };
        let number = self.number + 1;
        let path = dir.join("snapshot-under-way");
        let mut file = File::create(&path)?;
        file.write_all(&frame::head(MAGIC_SNAPSHOT))?;
        self.begin(number)?;
        self.saving = Some(Saving { file: Some(file), path, number, covers: self.unsaved, ended: None });
        Ok(())
    }

    /// Writes keys; `last` is the count of all keys, at the end.
    pub(crate) fn go_on_saving(&mut self, keys: &[u8], last: Option<u64>) -> io::Result<()> {
        let Some(saving) = &mut self.saving else { return Ok(()) };
        let Some(file) = &mut saving.file else { return Ok(()) };
        let mut bytes = Vec::new();
        if !keys.is_empty() {
            frame::emit(&mut bytes, 0, keys);
        }
        if let Some(count) = last {
            frame::emit(&mut bytes, 1, &count.to_le_bytes());
        }
        file.write_all(&bytes)?;
        if last.is_some() {
            let (tell, ended) = sync_channel(1);
            let file = saving.file.take().expect("it was written a moment ago");
            let (from, dir) = (saving.path.clone(), self.dir.clone().expect("snapshots have a directory"));
            let to = dir.join(snapshot_name(saving.number));
            saving.ended = Some(ended);
            std::thread::spawn(move || {
                let settled = file
                    .sync_all()
                    .and_then(|()| std::fs::rename(&from, &to))
                    .and_then(|()| File::open(&dir)?.sync_all());
                // The server may have ended.
                let _server_may_have_ended = tell.send(settled);
            });
        }
        Ok(())
    }

    /// Returns the result of the snapshot, once. With `wait`, waits until its file is synced.
    pub(crate) fn settled(&mut self, wait: bool, now: i64) -> Option<io::Result<()>> {
        let saving = self.saving.as_ref()?;
        let ended = saving.ended.as_ref()?;
        let result = if wait {
            ended.recv().unwrap_or_else(|_| Err(io::Error::other("the thread that saves ended")))
        } else {
            match ended.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread that saves ended")),
            }
        };
        let (number, covers) = (saving.number, saving.covers);
        self.saving = None;
        match &result {
            Ok(()) => {
                self.unsaved -= covers.min(self.unsaved);
                (self.last_save, self.last_save_failed) = (now / 1000, None);
                // Older files are not needed. One that cannot be removed is removed after the next snapshot.
                let _later = self.dir.as_deref().map(|dir| remove_before(dir, number));
            }
            Err(error) => {
                self.last_save_failed = Some(error.to_string());
                self.failed_at = now / 1000;
            }
        }
        Some(result)
    }

    /// Gives the snapshot up. The log that it began continues; a start reads the earlier log, too.
    pub(crate) fn give_up_saving(&mut self, why: String, now: i64) {
        self.failed_at = now / 1000;
        if let Some(saving) = self.saving.take() {
            let _it_is_overwritten_by_the_next = std::fs::remove_file(saving.path);
        }
        self.last_save_failed = Some(why);
    }
}

/// Removes snapshots and logs before this number.
fn remove_before(dir: &Path, number: u64) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let is_older = |kind| number_of(&name, kind).is_some_and(|other| other < number);
        if is_older("snapshot") || is_older("log") {
            std::fs::remove_file(dir.join(&*name))?;
        }
    }
    Ok(())
}
