//! The load at a start: the newest snapshot, and the logs after it.

use crate::command::execute::{incoming, look_up};
use crate::command::handlers;
use crate::durable::frame::{self, FRAME_HEAD, HEADER_LEN, MAGIC_LOG, MAGIC_SNAPSHOT, Next};
use crate::durable::{log_name, number_of, snapshot_name};
use crate::guesses::GuessSource;
use crate::session::{Patience, Session};
use crate::store::picture::parse;
use crate::store::{Kind, Store};
use crate::world::World;
use farmem_protocols::commands;
use farmem_protocols::resp::{Protocol, Writer};
use std::fs::{File, OpenOptions};
use std::io;
use std::io::{Read as _, Seek as _};
use std::path::Path;

/// The result of a load.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Loaded {
    /// Keys of the snapshot.
    pub(crate) keys: u64,
    /// Requests of logs.
    pub(crate) requests: u64,
    /// Bytes of a torn end that were cut off, and the file that has them now.
    pub(crate) torn: Option<(u64, String)>,
    /// The time of the last request, in milliseconds since 1970.
    pub(crate) last: i64,
}

/// The file that prevents a start, and its fault.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {what}")]
pub(crate) struct LoadError {
    file: String,
    what: String,
}

/// Loads the directory into an empty store, and begins to write after its logs.
pub(crate) fn load(store: &mut Store, world: &mut World) -> Result<Loaded, LoadError> {
    let mut loaded = Loaded::default();
    let Some(dir) = world.durable.dir().map(Path::to_owned) else { return Ok(loaded) };
    let wrong = |file: &Path, what: String| LoadError { file: file.display().to_string(), what };
    let names = list(&dir).map_err(|error| wrong(&dir, error.to_string()))?;
    let numbers = |kind: &str| names.iter().filter_map(|name| number_of(name, kind)).collect::<Vec<_>>();
    let snapshot = numbers("snapshot").into_iter().max();
    if let Some(number) = snapshot {
        let path = dir.join(snapshot_name(number));
        loaded.keys = load_snapshot(store, world, &path).map_err(|what| wrong(&path, what))?;
    }
    let first = snapshot.unwrap_or(0);
    let mut logs: Vec<u64> = numbers("log").into_iter().filter(|&number| number >= first).collect();
    logs.sort_unstable();
    if let Some(gap) = logs.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        return Err(wrong(&dir.join(log_name(gap[0] + 1)), "is missing; logs follow it".into()));
    }
    if let Some(&begin) = logs.first()
        && begin != first
    {
        return Err(wrong(&dir.join(log_name(first)), "is missing; logs follow it".into()));
    }
    world.durable.replaying = true;
    store.loading = true;
    for (&number, is_last) in logs.iter().zip((1..=logs.len()).map(|at| at == logs.len())) {
        let path = dir.join(log_name(number));
        replay(store, world, &path, is_last, &mut loaded).map_err(|what| wrong(&path, what))?;
    }
    world.durable.replaying = false;
    store.loading = false;
    world.durable.unsaved = 0;
    let number = logs.last().copied().unwrap_or(first);
    world.durable.begin(number).map_err(|error| wrong(&dir.join(log_name(number)), error.to_string()))?;
    Ok(loaded)
}

fn list(dir: &Path) -> io::Result<Vec<String>> {
    std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// A reader of a file's frames, which has one of them in memory.
struct Frames {
    file: io::BufReader<File>,
    at: u64,
    len: u64,
}

impl Frames {
    fn open(path: &Path, magic: [u8; 8]) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let len = file.metadata().map_err(|error| error.to_string())?.len();
        let mut frames =
            Self { file: io::BufReader::with_capacity(1 << 16, file), at: HEADER_LEN as u64, len };
        let mut head = [0; HEADER_LEN];
        frames.file.read_exact(&mut head).map_err(|error| format!("has no head: {error}"))?;
        if head != magic {
            return Err("is no file of this server, or of another version".into());
        }
        Ok(frames)
    }
}

fn load_snapshot(store: &mut Store, world: &mut World, path: &Path) -> Result<u64, String> {
    let mut frames = Frames::open(path, MAGIC_SNAPSHOT)?;
    let mut keys = 0;
    loop {
        let Some((time, content)) = frames.next()? else {
            return Err("has no end: it was not written whole".into());
        };
        if time == 1 {
            let said = content.as_slice().try_into().ok().map(u64::from_le_bytes);
            return if said == Some(keys) {
                Ok(keys)
            } else {
                Err(format!("has {keys} keys and says otherwise"))
            };
        }
        let mut rest = content.as_slice();
        while !rest.is_empty() {
            let taken = parse(&mut rest).ok_or("has a key that is none")?;
            let kind = Kind::of(taken.kind).ok_or("has a value of an unknown kind")?;
            let put = store.restore(taken.db, taken.key, kind, taken.value, taken.end);
            put.map_err(|failure| failure.reply().to_owned())?;
            keys += 1;
        }
        world.settle(store);
    }
}

impl Frames {
    /// Returns the next frame: its time and content. Returns `None` at the end, which may be torn.
    fn next(&mut self) -> Result<Option<(i64, Vec<u8>)>, String> {
        let mut head = [0; FRAME_HEAD];
        let left = self.len - self.at;
        if left < FRAME_HEAD as u64 {
            return Ok(None);
        }
        self.file.read_exact(&mut head).map_err(|error| error.to_string())?;
        let Some(len) = frame::len_of(&head).map(u64::from) else { return Ok(None) };
        let mut whole = head.to_vec();
        if len <= left - FRAME_HEAD as u64 {
            whole.resize(FRAME_HEAD + usize::try_from(len).expect("a length in memory"), 0);
            self.file.read_exact(&mut whole[FRAME_HEAD..]).map_err(|error| error.to_string())?;
        }
        match frame::next(&whole) {
            Next::Frame(time, content, _) => {
                self.at += FRAME_HEAD as u64 + len;
                Ok(Some((time, content.to_vec())))
            }
            Next::End | Next::Torn | Next::Corrupt => Ok(None),
        }
    }

    /// Checks the bytes behind the last good frame. Returns the bytes of a torn end, 0 for reserved room, and an
    /// error for a damaged frame.
    fn judge_end(&mut self, path: &Path) -> Result<u64, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let (mut reader, mut rest) = (io::BufReader::new(file), Vec::new());
        io::copy(&mut reader.by_ref().take(self.at), &mut io::sink()).map_err(|error| error.to_string())?;
        reader.read_to_end(&mut rest).map_err(|error| error.to_string())?;
        match frame::next(&rest) {
            Next::End => Ok(0),
            Next::Torn => Ok(rest.len() as u64),
            Next::Frame(..) | Next::Corrupt => Err(format!(
                "the frame at byte {} was changed, and others follow it; take the file from a copy, or cut it there (truncate -s {}) and lose what follows",
                self.at, self.at
            )),
        }
    }
}

/// Bytes of requests after which the limit of local memory is enforced.
const SETTLED_EACH: usize = 1 << 20;

/// Copies a file from `at` on to another file, so that no written byte is lost.
fn keep_end(path: &Path, at: u64, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(path)?, File::create(to)?);
    from.seek(io::SeekFrom::Start(at))?;
    io::copy(&mut from, &mut to)?;
    to.sync_all()
}

fn replay(
    store: &mut Store,
    world: &mut World,
    path: &Path,
    is_last: bool,
    loaded: &mut Loaded,
) -> Result<(), String> {
    // The process ended before it had written the head.
    if is_last && std::fs::metadata(path).is_ok_and(|known| known.len() < HEADER_LEN as u64) {
        return Ok(());
    }
    let mut frames = Frames::open(path, MAGIC_LOG)?;
    let mut session = Session::new(0, String::new(), GuessSource::Server, world.acl.default_user());
    session.patience = Patience::None;
    let mut reply = Vec::new();
    let (mut unsettled, mut from) = (0, frames.at);
    while let Some((time, content)) = frames.next()? {
        let at = std::mem::replace(&mut from, frames.at);
        // The time does not go back, even if the clock did.
        store.set_now(time.max(store.now()));
        loaded.last = store.now();
        let mut rest = content.as_slice();
        while !rest.is_empty() {
            let is_wrong = |what: &str| format!("has {what} in the frame at byte {at}");
            let (db, args) =
                frame::take_entry(&mut rest).ok_or_else(|| is_wrong("a request that is none"))?;
            let command = match args.first() {
                None => return Err(is_wrong("an empty request")),
                Some(_) => look_up(&args).map_err(|failure| {
                    is_wrong(&format!("a request that is refused ({})", failure.reply()))
                })?,
            };
            session.db = db;
            reply.clear();
            store.incoming = incoming(command, &args);
            let mut context = handlers::context(store, &mut session, world);
            let handler = context.handlers[commands::number_of(command)];
            let done = handler(&mut context, &args, &mut Writer::new(&mut reply, Protocol::Resp2));
            // A command that failed then fails again. Only a lack of room is new.
            if let Err(failure) = done
                && ["OOM", "FARMEMORY"].iter().any(|kind| failure.reply().starts_with(kind))
            {
                return Err(failure.reply().to_owned());
            }
            loaded.requests += 1;
        }
        // As in a turn: by the count of requests, and by their bytes.
        unsettled += content.len() + SETTLED_EACH / 256;
        if unsettled >= SETTLED_EACH {
            unsettled = 0;
            world.settle(store);
        }
    }
    let torn = frames.judge_end(path)?;
    if torn > 0 && !is_last {
        return Err(format!("ends in the middle of a frame at byte {}, and logs follow it", frames.at));
    }
    if torn > 0 {
        let cut = path.with_extension("cut");
        keep_end(path, frames.at, &cut).map_err(|error| format!("{}: {error}", cut.display()))?;
        loaded.torn = Some((torn, cut.display().to_string()));
    }
    if is_last {
        let file = OpenOptions::new().write(true).open(path).map_err(|error| error.to_string())?;
        file.set_len(frames.at).and_then(|()| file.sync_all()).map_err(|error| error.to_string())?;
    }
    Ok(())
}
