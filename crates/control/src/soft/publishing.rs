//! Published sections: the sections of all domains, the image that they make together, and the callers that
//! wait for it (PROTOCOL 13.10, 13.16).
//!
//! A change concerns one domain and leaves what others published. It waits while an image is loading, so that
//! two domains which publish in turn do not keep each other from it. Then one image is made of everything
//! that changed meanwhile. The end of a session withdraws what was published over it.

use crate::api;
use crate::api::{ApiError, Base64, ErrorCode, SoftClear, SoftLoad, SoftLoaded, SoftRead, SoftSection};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, bound, error, not_found};
use crate::messages::{Actions, reply};
use crate::rack::Rack;
use crate::soft::sections::{Caller, Edit, Section, Sections, SoftRequest, image_of, len_of};
use crate::soft::target_image::{Stage, TargetImage};
use crate::soft::{Images, Soft};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use farmem_index::{ROUTES_KIND, RoutedTree, SECTION_KIND, SectionError, TREES_MAX, TreeTables};
use farmem_transport::image::{SECTIONS_MAX, SectionKey};
use farmem_wire::message::SOFT_IMAGE_MAX;
use farmem_wire::{Domain, ProgramHash, VirtAddr};

// Requests.
impl Images {
    pub(crate) fn soft_load(&mut self, rack: &mut Rack, call: &SoftLoad) -> Decided<SoftLoad> {
        if call.sections.is_empty() {
            return Err(bad("there are no sections", "give at least one; soft_clear takes sections back"));
        }
        let session = self.session_of(rack, call.host, call.domain)?;
        let target = self.soft_target(rack, call.switch)?;
        let mut put = BTreeMap::new();
        for section in &call.sections {
            let key = SectionKey { domain: Domain(call.domain), kind: section.kind, id: section.id };
            let bytes = &section.bytes.0;
            let programs = match key.kind {
                SECTION_KIND => tree_programs(key.id, bytes)?,
                ROUTES_KIND => {
                    let message = format!("kind {ROUTES_KIND:#06x} is the control plane's");
                    return Err(bad(
                        message,
                        "publish trees: the control plane itself publishes the routes between switches",
                    ));
                }
                _ => Vec::new(),
            };
            if put
                .insert(key, Section { bytes: Arc::from(&bytes[..]), session: Some(session), programs })
                .is_some()
            {
                let message = format!("two sections have kind {:#06x} and id {:#x}", key.kind, key.id);
                return Err(bad(
                    message,
                    "give each section its own kind and id; that of a tree is its root",
                ));
            }
        }
        let edit = Edit { put: put.into_iter().collect(), drop: Vec::new() };
        self.on_target(target, |images| images.has_room(Domain(call.domain), &edit))?;
        Ok(Decision::Soft(target, SoftRequest::Publish(edit)))
    }

    pub(crate) fn soft_clear(&mut self, rack: &mut Rack, call: &SoftClear) -> Decided<SoftClear> {
        rack.domain_known(call.domain)?;
        let target = self.soft_target(rack, call.switch)?;
        let domain = Domain(call.domain);
        let drop = if call.sections.is_empty() {
            self.on_target(target, |images| {
                images.soft.sections.keys().filter(|key| key.domain == domain).copied().collect()
            })
        } else {
            call.sections.iter().map(|name| SectionKey { domain, kind: name.kind, id: name.id }).collect()
        };
        Ok(Decision::Soft(target, SoftRequest::Publish(Edit { put: Vec::new(), drop })))
    }

    pub(crate) fn soft_read(&self, rack: &Rack, call: &SoftRead) -> Decided<SoftRead> {
        rack.domain_known(call.domain)?;
        let &SoftRead { domain, kind, id, switch } = call;
        let soft = match switch {
            None => Some(&self.soft),
            Some(index) => self.index_soft.get(&index).map(|(soft, _)| soft),
        };
        let section =
            soft.and_then(|soft| soft.sections.get(&SectionKey { domain: Domain(domain), kind, id }));
        let section = section.ok_or_else(|| {
            let message =
                format!("domain {domain} has published no section of kind {kind:#06x} and id {id:#x}");
            not_found(message, "publish it: `farmem index agent` does that for a tree")
        })?;
        Ok(Decision::Reply(SoftSection { kind, id, bytes: Base64(section.bytes.to_vec()) }))
    }

    /// Returns the session of a host in a domain.
    fn session_of(&self, rack: &Rack, host: u16, domain: u32) -> Result<u32, ApiError> {
        rack.host_present(host)?;
        rack.domain_known(domain)?;
        let mut open = rack.state.sessions.values();
        let open = open.find(|row| (row.host, row.domain) == (host, domain)).map(|row| row.key.qpn);
        open.ok_or_else(|| {
            let message = format!("host {host} has no session in domain {domain}");
            not_found(message, "open it with `open_session`: what is published goes with the session")
        })
    }

    /// Checks that all sections fit in an image after this change.
    fn has_room(&self, domain: Domain, edit: &Edit) -> Result<(), ApiError> {
        let mut sections = self.soft.sections.clone();
        sections.extend(edit.put.iter().cloned());
        if sections.len() > SECTIONS_MAX {
            return Err(bound("sections of soft state", SECTIONS_MAX));
        }
        let trees = sections.keys().filter(|key| key.kind == SECTION_KIND).count();
        if trees > TREES_MAX {
            return Err(bound("published trees", TREES_MAX));
        }
        let room = self.soft.room();
        let len = len_of(&sections);
        if len <= room {
            return Ok(());
        }
        let of = |own: bool| {
            let its = sections.iter().filter(|(key, _)| (key.domain == domain) == own);
            its.fold(0_usize, |sum, (_, section)| sum.saturating_add(section.bytes.len()))
        };
        let message = format!(
            "an image of all sections would have {len} bytes; the switch has room for one of {room}. Domain {} would have {} bytes of sections, all others have {}",
            domain.0,
            of(true),
            of(false)
        );
        let remedy = "publish less, withdraw what is not used any more (soft_clear), or start the switch with more room for images";
        Err(error(ErrorCode::TableFull, message, remedy))
    }
}

/// Checks a section of a tree (PROTOCOL 13.13) before it is published, so that an invalid section is refused
/// to its publisher.
fn tree_programs(id: u64, bytes: &[u8]) -> Result<Vec<ProgramHash>, ApiError> {
    let checked = TreeTables::parse(bytes).and_then(|tables| {
        let root = tables.root();
        if root.0 == id { Ok(tables.programs().to_vec()) } else { Err(SectionError::Root(root)) }
    });
    checked.map_err(|fault| {
        bad(
            format!("section {id:#x} is no tree: {fault}"),
            "publish what BLinkTree::section answers (PROTOCOL 13.13)",
        )
    })
}

/// The key of the routes, of which there is one section whatever is published.
const WAYS: SectionKey = SectionKey { domain: Domain(0), kind: ROUTES_KIND, id: 0 };

impl Soft {
    /// Returns how long an image the switch has room for, as far as it is known.
    pub(crate) fn room(&self) -> usize {
        self.room.unwrap_or(SOFT_IMAGE_MAX) as usize
    }

    /// Returns the epoch of the active image in the present incarnation of the switch, as far as it is known,
    /// else 0.
    pub(crate) fn standing_epoch(&self) -> u64 {
        self.active.as_ref().map_or(0, |(epoch, _)| *epoch)
    }

    /// Returns the trees of which the switch has tables, each with its programs.
    pub(crate) fn led_trees(&self) -> Vec<RoutedTree> {
        let sections = self.active.iter().flat_map(|(_, sections)| sections);
        let trees = sections.filter(|(key, _)| key.kind == SECTION_KIND);
        let tree = |(key, section): (&SectionKey, &Section)| RoutedTree {
            domain: key.domain,
            root: VirtAddr(key.id),
            programs: section.programs.clone(),
        };
        trees.map(tree).collect()
    }
}

// Actions.
impl Images {
    /// Changes the published sections. The caller is answered when the change is active.
    pub(super) fn edit_sections(&mut self, ticket: u64, edit: Edit, out: &mut Actions) {
        let keys: Vec<SectionKey> =
            edit.put.iter().map(|(key, _)| *key).chain(edit.drop.iter().copied()).collect();
        let withdraws = edit.put.is_empty();
        self.change_sections(edit, out);
        let revision = self.soft.revision;
        self.soft.callers.push(Caller { ticket, revision, keys, withdraws });
        self.begin_image();
    }

    fn change_sections(&mut self, edit: Edit, out: &mut Actions) {
        let sections = &mut self.soft.sections;
        let mut changed = BTreeSet::new();
        for (key, section) in edit.put {
            let bytes = Arc::clone(&section.bytes);
            if sections.insert(key, section).is_none_or(|old| old.bytes != bytes) {
                changed.insert(key);
            }
        }
        changed.extend(edit.drop.into_iter().filter(|key| sections.remove(key).is_some()));
        if changed.is_empty() {
            return;
        }
        self.soft.revision += 1;
        let beaten = |caller: &mut Caller| caller.keys.iter().any(|key| changed.contains(key));
        for caller in self.soft.callers.extract_if(.., beaten).collect::<Vec<_>>() {
            let message = "the same section was published again, or withdrawn, before this one became active";
            let remedy = "publish it again if it is still needed; soft_show shows the active image";
            reply(caller.ticket, Err(error(ErrorCode::Conflict, message, remedy)), out);
        }
    }

    /// Publishes the present routes to the other switches for the switch at hand.
    pub(super) fn publish_routes(&mut self, rack: &mut Rack, out: &mut Actions) {
        let target = self.soft.target;
        let is_restored = self.restored.get(&target) == Some(&rack.state.generation(target));
        if is_restored && self.soft.wanted.is_none() {
            return;
        }
        let ways = self.routes_of(rack, target);
        if self.soft.sections.get(&WAYS).map(|section| &section.bytes[..]) == ways.as_deref() {
            return;
        }
        let section = |bytes| Section { bytes: Arc::from(bytes), session: None, programs: Vec::new() };
        // The sections of domains come first: without routes look-ups begin where the rack's switch knows.
        let put = ways.map(|bytes: Vec<u8>| (WAYS, section(bytes))).filter(|(key, section)| {
            let mut sections = self.soft.sections.clone();
            sections.insert(*key, section.clone());
            sections.len() <= SECTIONS_MAX && len_of(&sections) <= self.soft.room()
        });
        let drop = if put.is_none() { Vec::from([WAYS]) } else { Vec::new() };
        let before = self.soft.revision;
        self.change_sections(Edit { put: put.into_iter().collect(), drop }, out);
        // Without a change there is no new image: its activation would be reason to look at the routes again,
        // and so on for ever.
        if self.soft.revision != before {
            self.begin_image();
        }
    }

    /// Withdraws what was published over sessions that have ended.
    pub(super) fn withdraw_orphans(&mut self, rack: &mut Rack, out: &mut Actions) {
        let sessions: BTreeSet<u32> =
            self.soft.sections.values().filter_map(|section| section.session).collect();
        if sessions.iter().all(|session| rack.state.sessions.contains_key(session)) {
            return;
        }
        let orphan = |section: &Section| {
            section.session.is_some_and(|session| !rack.state.sessions.contains_key(&session))
        };
        let orphans = self.soft.sections.iter().filter(|(_, section)| orphan(section));
        let edit = Edit { put: Vec::new(), drop: orphans.map(|(key, _)| *key).collect() };
        self.change_sections(edit, out);
        self.begin_image();
    }

    /// Begins to load an image of the published sections, unless one is loading, which becomes active first.
    /// Without any change the switch is asked what it has, because the active image may be gone.
    pub(super) fn begin_image(&mut self) {
        let soft = &mut self.soft;
        match &mut soft.wanted {
            Some(wanted) if matches!(wanted.stage, Stage::Loading(_) | Stage::Flipping) => return,
            Some(wanted) if wanted.revision == soft.revision => wanted.stage = Stage::Asking,
            wanted => {
                if let Some(old) = wanted.take()
                    && old.was_active
                {
                    soft.previous_image = Some(old);
                }
                let sections = soft.sections.clone();
                *wanted = Some(TargetImage::new(image_of(&sections), sections, soft.revision));
            }
        }
        // An answer to an earlier question may not reflect a flip that is in flight.
        soft.forget_questions();
    }

    /// Records that an image is active: the callers that wait for it are answered, and the changes made
    /// meanwhile are loaded next.
    pub(super) fn mark_active(&mut self, rack: &mut Rack, out: &mut Actions) {
        let soft = &mut self.soft;
        let Some(wanted) = &mut soft.wanted else { return };
        (wanted.stage, wanted.was_active) = (Stage::Active, true);
        soft.active = Some((wanted.epoch, wanted.sections.clone()));
        rack.routes_due = true;
        let (epoch, revision, is_empty) = (wanted.epoch, wanted.revision, wanted.image.is_empty());
        (soft.previous_image, soft.flip, soft.idle) = (None, None, 0);
        if is_empty {
            // A restarted switch has no section either.
            soft.wanted = None;
        }
        let told = soft.callers.extract_if(.., |caller| caller.revision <= revision);
        for caller in told.collect::<Vec<_>>() {
            let answer = if caller.withdraws { ().into() } else { SoftLoaded { epoch }.into() };
            reply(caller.ticket, Ok(answer), out);
        }
        if self.soft.revision > revision {
            self.begin_image();
        }
    }

    /// Handles an image that the switch refuses: the last active image is published again, and nothing else.
    pub(super) fn refused(&mut self, rack: &mut Rack, why: ApiError, out: &mut Actions) {
        out.note(crate::note::Note::SoftRefused);
        self.tell_callers(&Err(why), out);
        let soft = &mut self.soft;
        soft.flip = None;
        soft.wanted = soft.previous_image.take();
        soft.revision += 1;
        rack.routes_due = true;
        soft.sections = Sections::new();
        if let Some(wanted) = &mut soft.wanted {
            (wanted.stage, wanted.revision) = (Stage::Asking, soft.revision);
            soft.sections = wanted.sections.clone();
        }
    }

    pub(super) fn tell_callers(&mut self, result: &Result<api::Response, ApiError>, out: &mut Actions) {
        for caller in mem::take(&mut self.soft.callers) {
            reply(caller.ticket, result.clone(), out);
        }
    }
}
