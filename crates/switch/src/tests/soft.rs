//! Images: accepted parts, flips, refusals (PROTOCOL 13.1 to 13.7).

use super::*;
use crate::Reason;
use farmem_transport::image::{Hasher, Image, SectionKey};
use farmem_wire::message::{
    Counts, ImageDigest, ImageFault, ImageId, ImageRule, ImageStatus, Load, Loading, SoftBody, SoftMessage,
    Verdict,
};
use proptest::prelude::*;

/// Bytes of a part in these tests.
const PART: usize = 100;
const TOKEN: RequestId = RequestId(77);

pub(super) fn said(body: SoftBody<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    SoftMessage { token: TOKEN, body }.emit(&mut bytes);
    datagram(HOME, &bytes)
}

/// Bytes of an image with one section before the section's own.
const ROWS: usize = 8 + 24;

const fn key(kind: u16) -> SectionKey {
    SectionKey { domain: Domain(10), kind, id: 3 }
}

/// Returns an image of one section of this kind, with this many bytes of this value.
fn image(kind: u16, len: usize, with: u8) -> Image {
    Image::of(&[(key(kind), &alloc::vec![with; len])]).expect("a short image")
}

fn id_of(epoch: u64, image: &Image) -> ImageId {
    ImageId { epoch, len: image.len(), digest: image.digest() }
}

/// A response, by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Loaded(u64, u32),
    Flipped(u64, Verdict),
    Shown(ImageStatus),
}

impl Scene {
    /// Sends a request; returns its response, which must have its token, and the note.
    fn soft(&mut self, body: SoftBody<'_>) -> (Answer, Note) {
        let (payload, note) = self.relayed(Port::CONTROL, &said(body), CONTROL);
        let SoftMessage { token, body } = SoftMessage::parse(&payload).expect("the switch sends messages");
        assert_eq!(token, TOKEN);
        let answer = match body {
            SoftBody::Loaded { epoch, next } => Answer::Loaded(epoch, next),
            SoftBody::Flipped { epoch, verdict } => Answer::Flipped(epoch, verdict),
            SoftBody::Shown(shown) => Answer::Shown(shown),
            other => panic!("a switch does not say {other:?}"),
        };
        (answer, note)
    }

    /// Sends the part of the image that begins at `offset`.
    fn part(&mut self, epoch: u64, bytes: &[u8], offset: usize) -> (Answer, Note) {
        let end = (offset + PART).min(bytes.len());
        let number = |n: usize| u32::try_from(n).unwrap();
        let part = &bytes[offset..end];
        self.soft(SoftBody::Load(Load {
            epoch,
            len: number(bytes.len()),
            offset: number(offset),
            bytes: part,
        }))
    }

    /// Sends all parts from `offset` on, in order.
    fn parts(&mut self, epoch: u64, bytes: &[u8], offset: usize) {
        for offset in (offset..bytes.len()).step_by(PART) {
            let next = u32::try_from((offset + PART).min(bytes.len())).unwrap();
            assert_eq!(self.part(epoch, bytes, offset), (Answer::Loaded(epoch, next), Note::SoftLoaded));
        }
    }

    fn flip(&mut self, id: ImageId) -> (Answer, Note) {
        self.soft(SoftBody::Flip(id))
    }

    fn shown(&mut self) -> ImageStatus {
        let (Answer::Shown(shown), Note::SoftShown) = self.soft(SoftBody::Show) else { panic!("a Shown") };
        assert_eq!(shown, self.switch.occupancy().soft, "what people see is what the control plane sees");
        shown
    }

    /// Loads an image that must be refused with this fault.
    pub(super) fn refuses(&mut self, epoch: u64, image: &Image, fault: ImageFault) {
        self.parts(epoch, image.bytes(), 0);
        let verdict = Verdict::Fault(fault);
        assert_eq!(
            self.flip(id_of(epoch, image)),
            (Answer::Flipped(epoch, verdict), Note::SoftRefused(verdict))
        );
    }

    pub(super) fn activate(&mut self, epoch: u64, image: &Image) {
        self.parts(epoch, image.bytes(), 0);
        let active = (Answer::Flipped(epoch, Verdict::Active), Note::SoftFlipped);
        assert_eq!(self.flip(id_of(epoch, image)), active);
        assert_eq!(self.switch.soft().image(), image);
    }
}

/// PROTOCOL 13.1, 13.4, 13.5: an image arrives in parts. None of it is visible before the flip, and none of
/// the earlier one after it.
#[test]
fn an_image_stands_as_a_whole() {
    let mut scene = Scene::rack();
    let (old, new) = (image(1, 450, 5), image(2, 333, 6));
    assert_eq!(
        (scene.shown(), scene.switch.soft().epoch()),
        (ImageStatus::default(), 0),
        "a switch starts with none"
    );
    scene.activate(7, &old);
    assert_eq!(scene.switch.soft().section(key(1)), Some(&[5; 450][..]));
    let active = id_of(7, &old);
    assert_eq!(scene.shown(), ImageStatus { active, loading: Loading::default() });

    scene.parts(8, new.bytes(), 0);
    let len = new.len();
    assert_eq!(scene.shown(), ImageStatus { active, loading: Loading { epoch: 8, len, next: len } });
    assert_eq!(scene.switch.soft().section(key(2)), None, "it is not active yet");
    assert_eq!(scene.switch.soft().section(key(1)), Some(&[5; 450][..]));
    let memory = scene.switch.occupancy().soft_bytes;
    assert_eq!(memory.used, old.bytes().len() + new.bytes().len(), "two images, and no more");

    let active = Answer::Flipped(8, Verdict::Active);
    assert_eq!(scene.flip(id_of(8, &new)), (active, Note::SoftFlipped));
    assert_eq!(scene.switch.soft().section(key(2)), Some(&[6; 333][..]));
    assert_eq!(scene.switch.soft().section(key(1)), None, "the old one is gone");
    assert_eq!(scene.switch.occupancy().soft_bytes.used, new.bytes().len());
    assert_eq!(scene.flip(id_of(8, &new)), (active, Note::SoftShown), "again: it is active already");

    scene.activate(9, &Image::empty());
    assert_eq!((scene.switch.soft().epoch(), scene.switch.soft().section(key(2))), (9, None));
}

/// PROTOCOL 13.4: only a part at the first missing byte is accepted; an older one is answered with the
/// present state.
#[test]
fn parts_are_taken_in_order_and_once() {
    let mut scene = Scene::rack();
    let new = image(1, 424 - ROWS, 5);
    let bytes = new.bytes();
    let none = |next| (Answer::Loaded(5, next), Note::SoftNotTaken);
    assert_eq!(scene.part(5, bytes, 100), none(0), "behind a gap");
    assert_eq!(scene.flip(id_of(5, &new)), none(0), "not whole");
    scene.parts(5, &bytes[..100], 0);
    scene.parts(5, bytes, 0);
    assert_eq!(scene.part(5, bytes, 0), none(424), "twice");
    let len = new.len();
    let loading = Loading { epoch: 5, len, next: len };
    let (answer, _) = scene.part(4, bytes, 0);
    assert_eq!(
        answer,
        Answer::Shown(ImageStatus { active: ImageId::default(), loading }),
        "older than what is loading"
    );
    assert_eq!(scene.flip(id_of(4, &new)).0, answer);
    assert_eq!(scene.flip(id_of(6, &new)).0, Answer::Loaded(6, 0), "no byte of it is there");
    assert_eq!(scene.flip(id_of(5, &new)).0, Answer::Flipped(5, Verdict::Active));
    let active = id_of(5, &new);
    let shown = (Answer::Shown(ImageStatus { active, loading: Loading::default() }), Note::SoftNotTaken);
    for epoch in [4, 5] {
        assert_eq!(scene.part(epoch, bytes, 0), shown, "not newer than the active image");
    }
    assert_eq!(scene.flip(id_of(4, &new)), shown);
    assert_eq!(scene.flip(id_of(5, &image(2, 9, 9))), shown, "the same epoch, another image");
    assert_eq!(scene.part(6, bytes, 0).0, Answer::Loaded(6, 100));
    assert_eq!(scene.part(7, bytes, 0).0, Answer::Loaded(7, 100), "begun anew");
    assert_eq!(scene.shown().loading, Loading { epoch: 7, len, next: 100 });
    assert_eq!(scene.part(7, &bytes[..300], 0).0, Answer::Loaded(7, 100), "another length: begun anew");
    assert_eq!(scene.shown().loading, Loading { epoch: 7, len: 300, next: 100 });
}

/// PROTOCOL 13.5: damaged or invalid bytes are dropped, and the active image stays.
#[test]
fn what_is_refused_leaves_what_stands() {
    let mut scene = Scene::rack();
    let old = image(1, 50, 5);
    scene.activate(1, &old);
    let refused = |verdict| (Answer::Flipped(2, verdict), Note::SoftRefused(verdict));
    let other = image(1, 50, 6);
    let wrong = ImageId { digest: ImageDigest([1; 16]), ..id_of(2, &other) };
    let longer = ImageId { len: 1000, ..id_of(2, &other) };
    for id in [wrong, longer] {
        scene.parts(2, other.bytes(), 0);
        assert_eq!(scene.flip(id), refused(Verdict::Damaged));
        assert_eq!(scene.shown(), ImageStatus { active: id_of(1, &old), loading: Loading::default() });
    }
    let mut none = other.bytes().to_vec();
    none[24..28].fill(0xff);
    let mut hasher = Hasher::default();
    hasher.take(&none);
    scene.parts(2, &none, 0);
    let fault = ImageFault { rule: ImageRule::Bounds, row: 0 };
    let id = ImageId { epoch: 2, len: other.len(), digest: hasher.digest() };
    assert_eq!(scene.flip(id), refused(Verdict::Fault(fault)));
    assert_eq!(scene.switch.soft().image(), &old);
    scene.activate(2, &other);
}

/// The tables made of an image take memory too: those of the active image, and those of the loading one
/// from its first bytes on.
#[test]
fn the_memory_of_tables_is_counted() {
    let mut scene = Scene::rack();
    let tables = |scene: &Scene| scene.switch.occupancy().soft_tables;
    assert_eq!(tables(&scene).used, 0);
    let trees = index::image(&[index::section()]);
    scene.activate(5, &trees);
    let active = tables(&scene).used;
    assert_eq!(active, scene.switch.soft().index().memory());
    assert!(active > trees.bytes().len(), "{active} bytes of tables");
    scene.parts(6, &trees.bytes()[..trees.bytes().len() - 8], 0);
    let loading = tables(&scene);
    assert!(loading.used > active && loading.used <= loading.budget, "{loading:?}");
    scene.activate(7, &Image::empty());
    assert_eq!(tables(&scene).used, 0);
}

/// PROTOCOL 13.4: the switch's budget bounds an image, and memory is allocated as parts arrive.
#[test]
fn the_budget_is_kept() {
    let mut scene = Scene::new(Budgets { soft_bytes: 500, ..Budgets::default() });
    let (fits, long) = (image(1, 500 - ROWS, 1), image(1, 501 - ROWS, 1));
    let too_long = |epoch| (Answer::Flipped(epoch, Verdict::TooLong(500)), Note::SoftNotTaken);
    assert_eq!(scene.part(1, long.bytes(), 0), too_long(1));
    assert_eq!(scene.flip(id_of(1, &long)).0, too_long(1).0);
    assert_eq!(scene.shown(), ImageStatus::default());
    scene.activate(1, &fits);
    scene.parts(2, fits.bytes(), 0);
    assert_eq!(scene.switch.occupancy().soft_bytes, crate::Usage { used: 1000, budget: 1000 });
    let mut large = Scene::rack();
    let part = Load { epoch: 1, len: 8 << 20, offset: 0, bytes: &[0; 100] };
    assert_eq!(large.soft(SoftBody::Load(part)).0, Answer::Loaded(1, 100));
    assert!(large.switch.occupancy().soft_bytes.used <= 200, "not 8 MiB for the word of one frame");
}

/// PROTOCOL 13.2: only the control plane is accepted, at the switch's own queue pair; responses are not
/// answered.
#[test]
fn nobody_else_loads() {
    let mut scene = Scene::rack();
    let load = SoftBody::Load(Load { epoch: 1, len: 2, offset: 0, bytes: &[1, 2] });
    let frame = said(load);
    assert_eq!(scene.silent(NODE_1.port, &frame), Note::Dropped(Reason::Message));
    assert_eq!(scene.silent(HOST_1.port, &frame), Note::Dropped(Reason::WrongPort));
    let mut bytes = Vec::new();
    SoftMessage { token: id(1, 5), body: load }.emit(&mut bytes);
    scene.relayed(HOST_1.port, &datagram(SESSION_1_10, &bytes), HOST_1);
    let shown = SoftBody::Shown(ImageStatus::default());
    let counts = Counts { epoch: 1, edition: 1, total: 1, from: 0, counters: &[0; 4] };
    for answer in [SoftBody::Loaded { epoch: 1, next: 0 }, shown, SoftBody::Counts(counts)] {
        assert_eq!(scene.silent(Port::CONTROL, &said(answer)), Note::Dropped(Reason::Message));
    }
    assert_eq!(scene.silent(Port::CONTROL, &frame[..frame.len() - 4]), Note::Dropped(Reason::Message));
    assert_eq!(scene.shown(), ImageStatus::default());
}

proptest! {
    /// Parts and flips of three images arrive in any order and repeatedly: the active image is one of them
    /// as a whole, and epochs only grow.
    #[test]
    fn whatever_order_parts_come_in_what_stands_is_whole(
        steps in prop::collection::vec((1..=3_u64, 0..7_usize), 0..80)
    ) {
        let mut scene = Scene::rack();
        let images = [image(1, 410, 1), image(2, 250, 2), image(3, 90, 3)];
        let (mut active, none) = (0, Image::empty());
        for (epoch, step) in steps {
            let image = &images[usize::try_from(epoch).unwrap() - 1];
            let offset = step * PART;
            if offset < image.bytes().len() {
                scene.part(epoch, image.bytes(), offset);
            } else {
                scene.flip(id_of(epoch, image));
            }
            let soft = scene.switch.soft();
            prop_assert!(soft.epoch() >= active);
            active = soft.epoch();
            let whole = active.checked_sub(1).map(|index| &images[usize::try_from(index).unwrap()]);
            prop_assert_eq!(soft.image(), whole.unwrap_or(&none));
        }
    }
}
