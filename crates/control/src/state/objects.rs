//! Rows of named objects (PROTOCOL 8.33 to 8.37).

use crate::record::ObjectRow;
use crate::state::State;
use alloc::vec::Vec;

impl ObjectRow {
    /// Returns true if no host can reach the object.
    pub(crate) fn is_orphan(&self) -> bool {
        self.name.is_none() && self.hosts.is_empty()
    }
}

impl State {
    /// Replaces or removes the row of an object.
    pub(crate) fn put_object(&mut self, object: u64, row: Option<&ObjectRow>) {
        match row {
            Some(row) => drop(self.objects.insert(object, row.clone())),
            None => {
                self.objects.remove(&object);
                self.files.remove(&object);
            }
        }
    }

    pub(crate) fn object_named(&self, domain: u32, name: &str) -> Option<(u64, &ObjectRow)> {
        let its = |(_, row): &(&u64, &ObjectRow)| row.domain == domain && row.name.as_deref() == Some(name);
        self.objects.iter().find(its).map(|(&object, row)| (object, row))
    }

    /// Returns the object whose memory a vma is.
    pub(crate) fn object_at(&self, base: u64) -> Option<&ObjectRow> {
        self.objects.values().find(|row| row.base == Some(base))
    }

    /// Records the memory that an object got.
    pub(crate) fn place_object(&mut self, object: Option<(u64, u64)>, base: u64) {
        let Some((object, length)) = object else { return };
        self.objects.entry(object).and_modify(|row| (row.base, row.length) = (Some(base), length));
    }

    /// Returns the first invariant about objects that does not hold, if any.
    pub(crate) fn objects_fault(&self) -> Option<&'static str> {
        let (mut names, mut bases) = (Vec::new(), Vec::new());
        for row in self.objects.values() {
            let Some(name) = self.domains.get(&row.domain) else { return Some("an object's domain exists") };
            names.extend(row.name.as_ref().map(|its| (name, its)));
            bases.extend(row.base);
            let vma = row.base.map(|base| self.vmas.get(&base));
            let fits = |vma: &crate::record::VmaRow| {
                (vma.domain, vma.pending) == (row.domain, None) && row.length > 0 && row.length <= vma.size
            };
            if !vma.map_or(row.length == 0, |vma| vma.is_some_and(fits)) {
                return Some("an object's memory is a vma of its domain");
            }
            if let Some(fault) = row.mode_fault() {
                return Some(fault);
            }
            if !row.hosts.iter().all(|host| self.hosts.get(host).is_some_and(|host| host.present)) {
                return Some("a host that has an object open is present");
            }
        }
        let (all_names, all_bases) = (names.len(), bases.len());
        names.sort_unstable();
        names.dedup();
        bases.sort_unstable();
        bases.dedup();
        let apart = (names.len(), bases.len()) == (all_names, all_bases);
        (!apart).then_some("objects of a domain have names and memory of their own")
    }
}
