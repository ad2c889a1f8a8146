//! The ACL file: a line for each user, in the form of `ACL LIST`.

use super::{Acl, User};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

/// The bytes of a file at most.
const LEN_MAX: u64 = 16 << 20;

impl Acl {
    /// Loads users from a file, and uses it for `ACL LOAD` and `ACL SAVE` from now on.
    ///
    /// # Errors
    /// The faults of the file, each with its line.
    pub(crate) fn use_file(&mut self, file: &Path) -> Result<(), String> {
        self.file = Some(file.to_owned());
        self.load()
    }

    /// Returns whether the server has an ACL file.
    pub(crate) const fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Loads all users again, or none if a line is wrong. The user `default` stays as it is if the file has no line
    /// about it.
    pub(crate) fn load(&mut self) -> Result<(), String> {
        let Some(file) = &self.file else { return Err("no file of users was given".into()) };
        let said = |error: io::Error| format!("{}: {error}", file.display());
        let mut text = String::new();
        let opened = File::open(file).map_err(said)?;
        opened.take(LEN_MAX + 1).read_to_string(&mut text).map_err(said)?;
        if text.len() as u64 > LEN_MAX {
            return Err(format!("{}: has more than {LEN_MAX} bytes", file.display()));
        }
        let (mut users, mut wrong) = (BTreeMap::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            match user_of(line) {
                Ok(None) => {}
                Ok(Some(user)) if users.contains_key(&user.name) => {
                    wrong.push(format!(
                        "{}:{}: Duplicate user '{}' found. A user can only be defined once",
                        file.display(),
                        number + 1,
                        user.name
                    ));
                }
                Ok(Some(user)) => drop(users.insert(user.name.clone(), Arc::new(user))),
                Err(why) => wrong.push(format!("{}:{}: {why}", file.display(), number + 1)),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong.join(". "));
        }
        users.entry("default".to_owned()).or_insert_with(|| Arc::clone(self.default_user()));
        self.users = users;
        self.version += 1;
        Ok(())
    }

    /// Writes all users. After a crash the file has the old ones or the new ones, never a part.
    pub(crate) fn save(&self) -> Result<(), String> {
        let Some(file) = &self.file else { return Err("no file of users was given".into()) };
        let said = |error: io::Error| format!("{}: {error}", file.display());
        let beside = file.with_extension(format!("new-{}", std::process::id()));
        let lines: String = self.users().map(|user| user.line() + "\n").collect();
        let write = || {
            // Only the owner may read hashes of passwords.
            let mut to =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
            to.write_all(lines.as_bytes())?;
            to.sync_all()?;
            std::fs::rename(&beside, file)?;
            let dir =
                file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
            File::open(dir)?.sync_all()
        };
        write().map_err(|error| {
            let _it_may_not_be_there = std::fs::remove_file(&beside);
            said(error)
        })
    }
}

/// Parses a line; `None` if it is empty or a comment.
fn user_of(line: &str) -> Result<Option<User>, String> {
    let mut words = line.split_ascii_whitespace();
    let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { return Ok(None) };
    let (true, Some(name)) = (first == "user", words.next()) else {
        return Err("should begin with the word user and a name".into());
    };
    let mut user = User::new(name);
    for rule in words {
        user.apply(rule.as_bytes()).map_err(|why| format!("'{rule}': {why}"))?;
    }
    Ok(Some(user))
}
