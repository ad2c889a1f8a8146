//! Named memory: objects that hosts of a domain open by a name, like POSIX shared memory (PROTOCOL 8.33 to
//! 8.37, 8.53 to 8.58).
//!
//! An object has an unpredictable number, which hosts use once they have opened it; a name until it is
//! unlinked; a length; and one vma, allocated when the length is first set. It is freed when it has no name
//! and no host has it open. The module `modes` has the rules for concurrent opens.

use crate::api::{
    Allocate, ApiError, DropObject, ErrorCode, FileStage, HoldObject, ObjectInfo, ObjectShown, OpenMode,
    OpenObject, ResizeObject, ShowObject, UnlinkObject,
};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, bound, error, not_found};
use crate::messages::Actions;
use crate::rack::Rack;
use crate::record::{ChangeKind, Line, ObjectRow};
use crate::state::claims::Claim;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Maximum length of an object's name in bytes.
pub const OBJECT_NAME_MAX: usize = 255;

impl Rack {
    /// Opens or creates the object with a name.
    pub(crate) fn open_object(&mut self, call: &OpenObject) -> Decided<OpenObject> {
        let OpenObject { host, domain, ref name, create, exclusive, mode } = *call;
        self.host_present(host)?;
        self.domain_known(domain)?;
        object_name_allowed(name)?;
        if let Some((object, row)) = self.state.object_named(domain, name) {
            if create && exclusive {
                let message = format!("domain {domain} has an object called {name:?}");
                return Err(error(ErrorCode::Conflict, message, "open it without `exclusive`, or unlink it"));
            }
            return self.held(object, row, host, mode);
        }
        if !create {
            let message = format!("domain {domain} has no object called {name:?}");
            return Err(not_found(message, "make it with `create`"));
        }
        let most = self.config.bounds.objects_max;
        if self.state.objects.len() >= most {
            return Err(bound("objects", most));
        }
        let row = ObjectRow::new(domain, name.clone());
        let object = self.draw_object();
        self.held(object, &row, host, mode)
    }

    /// Opens the object with a number, which a host of the domain learnt.
    pub(crate) fn hold_object(&self, &HoldObject { host, object, mode }: &HoldObject) -> Decided<HoldObject> {
        self.host_present(host)?;
        let row = self.state.objects.get(&object).filter(|row| !row.is_orphan());
        self.held(object, row.ok_or_else(|| unknown(object))?, host, mode)
    }

    /// Sets the length of an object.
    pub(crate) fn resize_object(&self, host: u16, object: u64, length: u64) -> Decided<ResizeObject> {
        let row = self.opened(host, object)?;
        if length == row.length {
            return Ok(Decision::Reply(self.object(object)));
        }
        row.base.map_or(Ok(()), |base| self.no_file(base, "made longer"))?;
        if row.mode == OpenMode::Read {
            let message =
                format!("host {host} has object {object} open to read, and wants to set its length");
            return Err(error(
                ErrorCode::Conflict,
                message,
                "open it to write, or leave its length as it is",
            ));
        }
        let Some(size) = row.base.and_then(|base| self.state.vmas.get(&base)).map(|vma| vma.size) else {
            let call = Allocate { durable: true, ..Allocate::new(row.domain, length) };
            return self.allocate_for(object, &call, None);
        };
        if length < row.length || length > size {
            let message =
                format!("an object of {} bytes, in {size}, cannot be made {length} bytes long", row.length);
            let remedy = "unlink it and make another: it may grow within its memory, and does not shrink";
            return Err(error(ErrorCode::Conflict, message, remedy));
        }
        let row = ObjectRow { length, ..row.clone() };
        let answer = self.described(object, &row);
        Ok(Decision::Keep(Line::Object { object, row: Some(row) }, answer))
    }

    /// Frees the name. Hosts that have the object open keep it.
    pub(crate) fn unlink_object(&self, domain: u32, name: &str) -> Decided<UnlinkObject> {
        self.domain_known(domain)?;
        let Some((object, row)) = self.state.object_named(domain, name) else {
            let message = format!("domain {domain} has no object called {name:?}");
            return Err(not_found(message, "it may have been unlinked already"));
        };
        let row = ObjectRow { name: None, ..row.clone() };
        Ok(Decision::Keep(Line::Object { object, row: Some(row) }, ()))
    }

    /// Closes the object at the host.
    pub(crate) fn drop_object(&self, host: u16, object: u64) -> Decided<DropObject> {
        let mut row = self.opened(host, object)?.clone();
        row.let_go(host);
        Ok(Decision::Keep(Line::Object { object, row: Some(row) }, ()))
    }

    /// Returns the hosts that have the object of a name open.
    pub(crate) fn show_object(&self, domain: u32, name: &str) -> Decided<ShowObject> {
        self.domain_known(domain)?;
        let found = self.state.object_named(domain, name);
        let (object, row) = found.ok_or_else(|| {
            let message = format!("domain {domain} has no object called {name:?}");
            not_found(message, "it may not have been made yet, or unlinked")
        })?;
        let info = |&host: &u16| self.state.hosts.get(&host).map(|row| row.info(host));
        let hosts = row.hosts.iter().filter_map(info).collect();
        Ok(Decision::Reply(ObjectShown { object, mode: row.mode, hosts }))
    }

    /// Describes an object as it is now.
    pub(crate) fn object(&self, object: u64) -> ObjectInfo {
        match self.state.objects.get(&object) {
            Some(row) => self.described(object, row),
            None => unreachable!("the object is there: the host that has it open was just checked"),
        }
    }

    /// Frees the objects that no host can reach any more.
    pub(crate) fn free_objects(&mut self, out: &mut Actions) {
        let claims = self.state.claims();
        let idle = |(object, row): &(&u64, &ObjectRow)| {
            let claimed = row.base.is_some_and(|base| claims.contains(&Claim::Vma(base)));
            let saving = self.state.files.get(object).is_some_and(|file| file.stage == FileStage::Saving);
            row.is_orphan() && !claimed && !saving && !claims.contains(&Claim::Object(**object))
        };
        let orphans: Vec<(u64, Option<u64>)> =
            self.state.objects.iter().filter(idle).map(|(&object, row)| (object, row.base)).collect();
        for (object, base) in orphans {
            let kept = match base {
                None => self.keep(Line::Object { object, row: None }, out),
                Some(base) if self.switch_answers().is_ok() => {
                    let change = self.state.next_change;
                    self.keep(Line::Began { change, what: ChangeKind::Free { base } }, out)
                }
                Some(_) => Ok(()), // later: the holder of a lease asks again and again
            };
            if kept.is_err() {
                return; // they are found again
            }
        }
    }

    pub(crate) fn described(&self, object: u64, row: &ObjectRow) -> ObjectInfo {
        let size = row.base.and_then(|base| self.state.vmas.get(&base)).map_or(0, |vma| vma.size);
        ObjectInfo { object, length: row.length, base: row.base.unwrap_or(0), size }
    }

    /// Returns the object if the host has it open.
    pub(crate) fn opened(&self, host: u16, object: u64) -> Result<&ObjectRow, ApiError> {
        self.host_present(host)?;
        let row = self.state.objects.get(&object).filter(|row| row.hosts.contains(&host));
        row.ok_or_else(|| unknown(object))
    }

    fn draw_object(&mut self) -> u64 {
        loop {
            let object = (u64::from(self.rng.next_u32()) << 32) | u64::from(self.rng.next_u32());
            if object != 0 && !self.state.objects.contains_key(&object) {
                return object;
            }
        }
    }
}

fn unknown(object: u64) -> ApiError {
    let message = format!("the host has no object {object} open");
    not_found(message, "open it by its name; it may have been freed since")
}

fn object_name_allowed(name: &str) -> Result<(), ApiError> {
    let allowed = |c: char| c != '/' && !c.is_control();
    if (1..=OBJECT_NAME_MAX).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    let shown: String = name.chars().take(crate::bounds::NAME_LEN_MAX).collect();
    let message = format!("{shown:?} is no name for an object");
    Err(bad(message, format!("use 1 to {OBJECT_NAME_MAX} bytes without `/` and control characters")))
}
