//! A file with the keys that the processes of one user on this machine received. With it each process may use
//! the objects of the others.
//!
//! A client of the control plane reads the file when it has changed, and adds the keys of answers. The file
//! is replaced atomically, under a lock. So no process reads a partial file, or loses the keys that another
//! one has added.

use farmem_control::api::{Request, Response};
use farmem_control::keys::{Key, RING_MAX, Ring};
use farmem_link::{private_file, read_private};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Maximum length of the key file in bytes: twice that of [`farmem_control::keys::RING_MAX`] keys with the
/// longest names.
const FILE_MAX: u64 = 4 << 20;

/// The keys of one file, for this process.
#[derive(Debug)]
pub(super) struct KeyFile {
    file: PathBuf,
    known: Mutex<KeyFileState>,
}

#[derive(Default, Debug)]
struct KeyFileState {
    ring: Ring,
    /// Version of the file when it was read: inode number, length, time of the last change.
    version: Option<(u64, u64, i64, i64)>,
    /// True if nearly all domains with keys in the file existed at the last query.
    crowded: bool,
}

impl KeyFile {
    /// Returns the keys of `file`, which need not exist yet. All clients that name the same file share them.
    pub(super) fn of(file: &Path) -> Arc<Self> {
        static OPEN: Mutex<Vec<Weak<KeyFile>>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|one| one.strong_count() > 0);
        if let Some(found) = open.iter().filter_map(Weak::upgrade).find(|one| one.file == file) {
            return found;
        }
        let new = Arc::new(Self { file: file.into(), known: Mutex::default() });
        open.push(Arc::downgrade(&new));
        new
    }

    /// Returns the keys for a request. If the file is unusable now, keys that were read before are returned,
    /// because a running host needs no others.
    ///
    /// # Errors
    /// The file's fault if no key for the request is known. Also the fault of the file's location if the
    /// answer will contain a key: a host must not join with a lost key.
    pub(super) fn show(&self, request: &Request) -> Result<Vec<Key>, String> {
        let mut known = self.known();
        let read = self.read(&mut known, None);
        known.ring.using(request);
        let keys = known.ring.show(request);
        if keys.is_empty() {
            read?;
            if is_told_a_key(request) {
                self.open_lock()?;
            }
        }
        Ok(keys)
    }

    /// Locks the file for a request that creates or opens a domain without a known key; the lock is held
    /// until its drop. So among all processes of this user, one creates the domain, and the next one knows
    /// its key before its request.
    ///
    /// # Errors
    /// A message that names the fault of the file.
    pub(super) fn lock_for(&self, request: &Request) -> Result<Option<File>, String> {
        if !matches!(request, Request::CreateDomain(_)) || !self.show(request)?.is_empty() {
            return Ok(None);
        }
        self.lock().map(Some)
    }

    /// Stores the key of an answer. The caller may already hold the lock. If the file is full, the keys of
    /// domains that are not `there` any more are removed. So no domain with data loses its key.
    ///
    /// # Errors
    /// The file's fault; this process has the key nevertheless.
    pub(super) fn learn(
        &self,
        request: &Request,
        answer: &Response,
        held: Option<File>,
        there: impl FnOnce() -> Option<BTreeSet<u32>>,
    ) -> Result<(), String> {
        let full = {
            let mut known = self.known();
            if !known.ring.learn(request, answer) {
                return Ok(());
            }
            (known.ring.is_full() && !known.crowded).then(|| known.ring.clone())
        };
        // The query takes as long as an answer, so no thread of this process may wait for its end here.
        let gone = full.and_then(|before| Some((before, there()?)));
        let shown = self.file.display();
        let _lock = held.map_or_else(|| self.lock(), Ok)?;
        let text = {
            let mut known = self.known();
            known.version = None;
            self.read(&mut known, gone.as_ref())?;
            // The answer's key is newer than the file's keys for the same object.
            known.ring.learn_newest(request, answer);
            known.ring.to_text()
        };
        self.replace(&text).map_err(|why| format!("cannot write {shown}: {why}"))
    }

    /// Locks the key file. Another process may hold the lock for a long time; meanwhile the other threads of
    /// this process can use their keys.
    fn lock(&self) -> Result<File, String> {
        let lock = self.open_lock()?;
        lock.lock().map_err(|e| format!("cannot lock {}: {e}", self.file.display()))?;
        Ok(lock)
    }

    /// Opens the lock file of processes that write the key file, in the same directory.
    fn open_lock(&self) -> Result<File, String> {
        let above = folder(&self.file);
        fs::create_dir_all(above).map_err(|e| format!("cannot make {}: {e}", above.display()))?;
        private_file(&beside(&self.file, "lock")).map_err(|e| e.to_string())
    }

    fn known(&self) -> MutexGuard<'_, KeyFileState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the file's content atomically, even if the power fails.
    fn replace(&self, text: &str) -> Result<(), String> {
        let new = beside(&self.file, "new");
        match fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.to_string()),
            _ => {}
        }
        let mut written: File = private_file(&new).map_err(|e| e.to_string())?;
        let moved = written
            .write_all(text.as_bytes())
            .and_then(|()| written.sync_all())
            .and_then(|()| fs::rename(&new, &self.file))
            .and_then(|()| File::open(folder(&self.file))?.sync_all());
        moved.map_err(|e| e.to_string())
    }

    /// Merges the file's keys if the file has changed; removes the keys of domains that are `gone` first.
    fn read(&self, known: &mut KeyFileState, gone: Option<&(Ring, BTreeSet<u32>)>) -> Result<(), String> {
        let shown = self.file.display();
        let version = match fs::metadata(&self.file) {
            Ok(about) => Some((about.ino(), about.len(), about.mtime(), about.mtime_nsec())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(format!("cannot read {shown}: {e}")),
        };
        if known.version == version {
            return Ok(());
        }
        let mut text = String::new();
        read_private(&self.file)
            .map_err(|e| e.to_string())?
            .take(FILE_MAX)
            .read_to_string(&mut text)
            .map_err(|e| format!("cannot read {shown}: {e}"))?;
        let mut read = Ring::from_text(&text).map_err(|line| {
            format!("line {line} of {shown} is not a key: restore the file from a backup, or remove it; then only the operator can use the objects of its keys")
        })?;
        if let Some((before, there)) = gone {
            known.crowded = read.forget_gone(before, there) < RING_MAX / 8;
            known.ring.forget_gone(before, there);
        }
        known.ring.merge(&read);
        known.version = version;
        Ok(())
    }
}

/// Returns true if the answer to a request contains a key.
const fn is_told_a_key(request: &Request) -> bool {
    matches!(
        request,
        Request::JoinSwitch(_)
            | Request::JoinNode(_)
            | Request::JoinIndex(_)
            | Request::JoinHost(_)
            | Request::CreateDomain(_)
    )
}

/// Returns the directory of a file.
fn folder(file: &Path) -> &Path {
    file.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn beside(file: &Path, what: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_control::api::{Allocate, CreateDomain, DomainInfo};
    use std::os::unix::fs::PermissionsExt as _;

    fn told(name: &str, domain: u32) -> (Request, Response) {
        let key = Some(format!("{domain:032x}").parse().unwrap());
        (CreateDomain { name: name.into() }.into(), DomainInfo { domain, key }.into())
    }

    fn shown(keys: &KeyFile, domain: u32) -> Vec<String> {
        let keys = keys.show(&Allocate { domain, size: 1, node: None, durable: false }.into()).unwrap();
        keys.iter().map(ToString::to_string).collect()
    }

    /// Eight processes (here, eight readers of the file) get a key each at the same time. Afterwards each of
    /// them has all keys, and only the user can access the file.
    #[test]
    fn a_key_for_one_process_is_known_to_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deeper/keys");
        let process = || KeyFile { file: file.clone(), known: Mutex::default() };
        let processes: Vec<KeyFile> = (0..8).map(|_| process()).collect();
        std::thread::scope(|scope| {
            for (process, number) in processes.iter().zip(1..) {
                scope.spawn(move || {
                    let (request, answer) = told(&format!("d{number}"), number);
                    process.learn(&request, &answer, None, || None).unwrap();
                });
            }
        });
        for process in processes.iter().chain([&process()]) {
            for domain in 1..=8 {
                assert_eq!(shown(process, domain), [format!("{domain:032x}")]);
            }
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Arc::ptr_eq(&KeyFile::of(&file), &KeyFile::of(&file)));
    }

    /// While a host runs, its user's key file becomes readable for all, or invalid. Keys that were read
    /// before stay usable. A request without a key is refused with the reason.
    #[test]
    fn known_keys_outlive_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let keys = KeyFile { file: file.clone(), known: Mutex::default() };
        let (request, answer) = told("d", 7);
        keys.learn(&request, &answer, None, || None).unwrap();
        assert_eq!(shown(&keys, 7), [format!("{:032x}", 7)]);
        let (other, _) = told("other", 8);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, "nonsense, of another length\n").unwrap();
        assert_eq!(shown(&keys, 7), [format!("{:032x}", 7)]);
        assert!(keys.show(&other).unwrap_err().contains("chmod 600"));
    }

    /// A process of the same user is suspended with the lock of the key file, and a thread here waits for the
    /// lock. Meanwhile another thread can use its keys. When the lock is free, the key is added.
    #[test]
    fn a_wait_for_the_lock_delays_no_request() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let keys = KeyFile { file: file.clone(), known: Mutex::default() };
        let stopped = private_file(&beside(&file, "lock")).unwrap();
        stopped.lock().unwrap();
        std::thread::scope(|scope| {
            let learner = scope.spawn(|| {
                let (request, answer) = told("d", 7);
                keys.learn(&request, &answer, None, || None)
            });
            while shown(&keys, 7).is_empty() {
                std::thread::yield_now();
            }
            assert!(!learner.is_finished() && !file.exists(), "it waits for the lock");
            stopped.unlock().unwrap();
            learner.join().unwrap().unwrap();
        });
        assert_eq!(shown(&KeyFile { file, known: Mutex::default() }, 7).len(), 1);
    }

    /// If keys cannot be stored, a host that is about to join gets the error before its request. Otherwise
    /// the host would be in the rack without its key, and its name in use.
    #[test]
    fn a_key_that_cannot_be_stored_is_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        fs::create_dir(beside(&file, "lock")).unwrap();
        let keys = KeyFile { file, known: Mutex::default() };
        let (join, _) = told("d", 7);
        assert!(keys.show(&join).unwrap_err().contains("keys.lock"));
        assert_eq!(keys.show(&Allocate::new(7, 1).into()).unwrap(), []);
    }

    /// Twenty programs run one after the other and create a domain of the same name, which is gone when the
    /// next one starts. Each one, and the next that uses the name, shows the newest key first, and the file
    /// does not grow.
    #[test]
    fn the_newest_key_of_a_name_is_the_one_that_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let process = || KeyFile { file: file.clone(), known: Mutex::default() };
        for domain in 1..=20 {
            let (request, answer) = told("d", domain);
            let maker = process();
            maker.show(&request).unwrap();
            maker.learn(&request, &answer, None, || None).unwrap();
            for other in [maker, process()] {
                let keys = other.show(&request).unwrap();
                assert_eq!(keys.first().map(ToString::to_string), Some(format!("{domain:032x}")));
            }
            assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1);
        }
    }

    /// A user's programs created thousands of domains. All are gone except the first, whose data stay. The
    /// next program queries the existing domains once. The first domain's key is still in the file, and the
    /// file has free space again.
    #[test]
    fn the_key_of_what_stays_is_not_crowded_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let line = |domain: usize| format!("domain {domain} d{domain} {domain:032x}\n");
        fs::write(&file, (1..=RING_MAX).map(line).collect::<String>()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let keys = KeyFile { file: file.clone(), known: Mutex::default() };
        let mut asked = 0;
        for domain in 10_000..10_003 {
            let (request, answer) = told(&format!("d{domain}"), domain);
            keys.show(&request).unwrap();
            keys.learn(&request, &answer, None, || {
                asked += 1;
                Some(BTreeSet::from([1, domain]))
            })
            .unwrap();
        }
        assert_eq!(asked, 1);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert_eq!([1, 2, 10_002].map(|domain| shown(&keys, domain).len()), [1, 0, 1]);
    }

    /// A key file that others can read, and an invalid one, are named in the error, and are not overwritten.
    #[test]
    fn a_key_file_that_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        fs::write(&file, "host 1 h 00000000000000000000000000000001\nnonsense\n").unwrap();
        let open = || KeyFile { file: file.clone(), known: Mutex::default() };
        let (request, answer) = told("d", 7);
        for (mode, why) in [(0o644, "chmod 600"), (0o600, "line 2 of ")] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let errors = [
                open().show(&request).unwrap_err(),
                open().learn(&request, &answer, None, || None).unwrap_err(),
            ];
            assert!(errors.iter().all(|error| error.contains(why)), "{errors:?}");
        }
        assert!(fs::read_to_string(&file).unwrap().contains("nonsense"));
    }
}
