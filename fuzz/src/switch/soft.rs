//! Slow model of the switch's reaction to messages about images: bytes in lists, checked as a whole each
//! time.

use super::{CONTROL, HOME, Outcome};
use crate::frames::{ReceivedFrame, enclosed};
use crate::input::Input;
use farmem_machine::Port;
use farmem_switch::{Note, Switch};
use farmem_transport::image::{Hasher, Image, SectionKey};
use farmem_transport::ud::Endpoint;
use farmem_wire::message::{
    Count, Counts, ImageDigest, ImageId, ImageStatus, Load, Loading, SoftBody, SoftMessage, Verdict,
};
use farmem_wire::{Domain, Extension, Packet, RequestId};

/// Maximum length of an image in this switch, in bytes.
pub(super) const ROOM: u32 = 400;
/// Length of a part, in bytes.
const PART: usize = 90;

/// Returns the images of the target. The last image is too long, and the one before it is invalid.
fn images() -> [Vec<u8>; 4] {
    let image = |kind, len| {
        let bytes = vec![7; len];
        let key = |id| SectionKey { domain: Domain(10), kind, id };
        let image = Image::of(&[(key(1), &bytes), (key(2), &[5])]);
        image.expect("a short image").bytes().to_vec()
    };
    [image(1, 200), image(2, 20), vec![9; 100], image(3, 400)]
}

fn digest(bytes: &[u8]) -> ImageDigest {
    let mut hasher = Hasher::default();
    hasher.take(bytes);
    hasher.digest()
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("few bytes")
}

/// Returns a message of the control plane about an image, usually the expected next one.
pub(super) fn told(model: &SoftModel, input: &mut Input<'_>) -> ReceivedFrame {
    let epoch = u64::from(1 + input.below(6));
    let images = images();
    let which = input.u8();
    let bytes = &images[usize::from(which) % 4];
    let len = number(bytes.len());
    let next =
        model.loading.as_ref().filter(|loading| loading.0 == epoch).map_or(0, |loading| loading.2.len());
    let body = match input.below(8) {
        0..=3 => {
            let offset = if input.one_in(8) { PART } else { next }.min(bytes.len() - 1);
            let part = &bytes[offset..(offset + PART).min(bytes.len())];
            SoftBody::Load(Load { epoch, len, offset: number(offset), bytes: part })
        }
        4 => SoftBody::Show,
        _ => {
            let right = digest(bytes);
            let digest = if input.one_in(8) { ImageDigest([1; 16]) } else { right };
            SoftBody::Flip(ImageId { epoch, len, digest })
        }
    };
    // Some messages ask for counters instead.
    let body = if which >= 0xe0 {
        let (epoch, from) = (if which.is_multiple_of(2) { epoch } else { 0 }, u32::from(which & 0x0f) * 100);
        SoftBody::Count(Count { epoch, domain: Domain(10), kind: 0x0d13, id: 1, from })
    } else {
        body
    };
    let mut message = Vec::new();
    SoftMessage { token: RequestId(u64::from(input.u8())), body }.emit(&mut message);
    (Port::CONTROL, enclosed(HOME, &message))
}

/// Returns the message about images when the control plane sent this frame to the switch.
pub(super) fn heard(port: Port, frame: &[u8]) -> Option<Vec<u8>> {
    let packet = Packet::parse(frame).ok()?;
    let Extension::Deth(deth) = packet.ext else { return None };
    let home = Endpoint { qpn: packet.bth.dest_qp, qkey: deth.qkey } == HOME;
    (home && port == Port::CONTROL && SoftMessage::is(packet.payload)).then(|| packet.payload.to_vec())
}

/// Current image and the image that is loading.
#[derive(Debug, Default)]
pub(super) struct SoftModel {
    /// Epoch and bytes of the current image.
    active: Option<(u64, Vec<u8>)>,
    /// Epoch, length and received bytes of the loading image.
    loading: Option<(u64, u32, Vec<u8>)>,
}

impl SoftModel {
    fn shown(&self) -> ImageStatus {
        let id = |(epoch, bytes): &(u64, Vec<u8>)| ImageId {
            epoch: *epoch,
            len: number(bytes.len()),
            digest: digest(bytes),
        };
        let loading = self.loading.as_ref();
        let loading =
            loading.map(|(epoch, len, have)| Loading { epoch: *epoch, len: *len, next: number(have.len()) });
        let active = self.active.as_ref().map(id);
        ImageStatus { active: active.unwrap_or_default(), loading: loading.unwrap_or_default() }
    }

    /// Returns true when the epoch is too old. The switch then answers with its state.
    fn is_old(&self, epoch: u64) -> bool {
        let active = self.active.as_ref().map_or(0, |active| active.0);
        epoch <= active || self.loading.as_ref().is_some_and(|loading| loading.0 > epoch)
    }

    /// Returns the required answer of the switch.
    fn answer(&mut self, body: &SoftBody<'_>) -> Option<SoftBody<'static>> {
        let too_long = |epoch| SoftBody::Flipped { epoch, verdict: Verdict::TooLong(ROOM) };
        Some(match *body {
            SoftBody::Show => SoftBody::Shown(self.shown()),
            SoftBody::Load(Load { epoch, len, .. }) if len > ROOM => too_long(epoch),
            SoftBody::Flip(ImageId { epoch, len, .. }) if len > ROOM => too_long(epoch),
            SoftBody::Flip(id) if self.shown().active == id => {
                SoftBody::Flipped { epoch: id.epoch, verdict: Verdict::Active }
            }
            SoftBody::Load(Load { epoch, .. }) | SoftBody::Flip(ImageId { epoch, .. })
                if self.is_old(epoch) =>
            {
                SoftBody::Shown(self.shown())
            }
            SoftBody::Load(Load { epoch, len, offset, bytes }) => {
                let same = self.loading.take().filter(|loading| (loading.0, loading.1) == (epoch, len));
                let loading = self.loading.insert(same.unwrap_or((epoch, len, Vec::new())));
                if loading.2.len() == offset as usize {
                    loading.2.extend_from_slice(bytes);
                }
                SoftBody::Loaded { epoch, next: number(loading.2.len()) }
            }
            SoftBody::Flip(id) => self.flip(id),
            // No image of the target has a tree.
            SoftBody::Count(_) => {
                let epoch = self.shown().active.epoch;
                SoftBody::Counts(Counts { epoch, edition: 0, total: 0, from: 0, counters: &[] })
            }
            SoftBody::Loaded { .. } | SoftBody::Flipped { .. } | SoftBody::Shown(_) | SoftBody::Counts(_) => {
                return None;
            }
        })
    }

    fn flip(&mut self, id: ImageId) -> SoftBody<'static> {
        let epoch = id.epoch;
        let loading = self.loading.clone().filter(|loading| loading.0 == epoch);
        let Some((_, len, bytes)) = loading else { return SoftBody::Loaded { epoch, next: 0 } };
        if bytes.len() < len as usize {
            return SoftBody::Loaded { epoch, next: number(bytes.len()) };
        }
        self.loading = None;
        let verdict = match Image::parse(bytes.clone()) {
            _ if (number(bytes.len()), digest(&bytes)) != (id.len, id.digest) => Verdict::Damaged,
            Err(fault) => Verdict::Fault(fault),
            Ok(_) => {
                self.active = Some((epoch, bytes));
                Verdict::Active
            }
        };
        SoftBody::Flipped { epoch, verdict }
    }

    /// Checks the switch's reaction to a message.
    pub(super) fn judge(&mut self, payload: &[u8], control: Endpoint, switch: &Switch, outcome: &Outcome) {
        let asked = SoftMessage::parse(payload).ok();
        match asked.and_then(|message| Some((message.token, self.answer(&message.body)?))) {
            None => {
                assert!(
                    outcome.sent.is_empty() && matches!(outcome.notes[..], [Note::Dropped(_)]),
                    "{outcome:?}"
                );
            }
            Some((token, body)) => {
                let [(port, frame)] = &outcome.sent[..] else { panic!("one answer: {outcome:?}") };
                let packet = Packet::parse(frame).expect("a switch sends frames");
                let Extension::Deth(deth) = packet.ext else { panic!("a datagram") };
                let to = Endpoint { qpn: packet.bth.dest_qp, qkey: deth.qkey };
                assert_eq!((*port, to), (CONTROL.port, control), "the control plane is answered");
                assert_eq!(SoftMessage::parse(packet.payload), Ok(SoftMessage { token, body }));
            }
        }
        self.unchanged(switch);
    }

    /// Checks that the switch and the model have the same images.
    pub(super) fn unchanged(&self, switch: &Switch) {
        assert_eq!(switch.soft().shown(), self.shown());
        if let Some((_, bytes)) = &self.active {
            assert_eq!(switch.soft().image().bytes(), bytes);
        }
    }
}
