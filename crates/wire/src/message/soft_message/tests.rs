//! Valid messages of soft state parse, and invalid ones do not.

use super::*;
use alloc::vec;
use proptest::prelude::*;

fn image_of() -> impl Strategy<Value = ImageId> {
    (1..=u64::MAX, 1..=SOFT_IMAGE_MAX, any::<[u8; 16]>()).prop_map(|(epoch, len, digest)| ImageId {
        epoch,
        len,
        digest: ImageDigest(digest),
    })
}

fn loading_of() -> impl Strategy<Value = (u32, u32)> {
    (1..=SOFT_IMAGE_MAX, 0..=SOFT_IMAGE_MAX).prop_map(|(a, b)| (a.max(b), a.min(b)))
}

fn verdict_of() -> impl Strategy<Value = Verdict> {
    let rules = (1..=5_u8).prop_map(|bits| ImageRule::from_bits(bits).unwrap());
    prop_oneof![
        Just(Verdict::Active),
        Just(Verdict::Damaged),
        any::<u32>().prop_map(Verdict::TooLong),
        (rules, any::<u32>()).prop_map(|(rule, row)| Verdict::Fault(ImageFault { rule, row })),
    ]
}

fn bodies() -> impl Strategy<Value = SoftBody<'static>> {
    let epoch = || 1..=u64::MAX;
    let shown = (prop::option::of(image_of()), prop::option::of((1..=u64::MAX, loading_of())));
    let shown = shown.prop_map(|(active, loading)| {
        let active = active.unwrap_or_default();
        let above = loading.filter(|(epoch, _)| *epoch > active.epoch);
        let loading = above.map(|(epoch, (len, next))| Loading { epoch, len, next });
        SoftBody::Shown(ImageStatus { active, loading: loading.unwrap_or_default() })
    });
    prop_oneof![
        (epoch(), 0..=SOFT_IMAGE_MAX).prop_map(|(epoch, next)| SoftBody::Loaded { epoch, next }),
        image_of().prop_map(SoftBody::Flip),
        (epoch(), verdict_of()).prop_map(|(epoch, verdict)| SoftBody::Flipped { epoch, verdict }),
        Just(SoftBody::Show),
        shown,
        (any::<u64>(), any::<u32>(), any::<u16>(), any::<u64>(), any::<u32>()).prop_map(
            |(epoch, domain, kind, id, from)| {
                SoftBody::Count(Count { epoch, domain: Domain(domain), kind, id, from })
            }
        ),
    ]
}

fn emitted(body: SoftBody<'_>, token: u64) -> Vec<u8> {
    let message = SoftMessage { token: RequestId(token), body };
    let mut bytes = vec![];
    message.emit(&mut bytes);
    assert_eq!(bytes.len(), message.len(), "{body:?}");
    bytes
}

fn heard(bytes: &[u8]) -> Result<SoftBody<'_>, WireError> {
    SoftMessage::parse(bytes).map(|message| message.body)
}

proptest! {
    #[test]
    fn what_is_said_is_what_is_heard(body in bodies(), token in any::<u64>()) {
        let bytes = emitted(body, token);
        prop_assert!(SoftMessage::is(&bytes));
        prop_assert_eq!(SoftMessage::parse(&bytes), Ok(SoftMessage { token: RequestId(token), body }));
        for have in 0..bytes.len() {
            prop_assert!(SoftMessage::parse(&bytes[..have]).is_err(), "{} bytes", have);
        }
    }

    #[test]
    fn a_part_is_heard_as_it_was_said(
        epoch in 1..=u64::MAX,
        bytes in prop::collection::vec(any::<u8>(), 1..=SOFT_PART_MAX),
        offset in 0..=SOFT_IMAGE_MAX - u32::try_from(SOFT_PART_MAX).unwrap(),
        behind in 0..5_u32
    ) {
        let len = (offset + u32::try_from(bytes.len()).unwrap() + behind).min(SOFT_IMAGE_MAX);
        let load = SoftBody::Load(Load { epoch, len, offset, bytes: &bytes });
        let said = emitted(load, 3);
        prop_assert_eq!(heard(&said), Ok(load));
    }

    #[test]
    fn hostile_bytes_are_read_or_refused(kind in prop_oneof![0x54..=0x5a_u8, 0x60..=0x61_u8], rest in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = vec![VERSION, kind];
        bytes.extend([0; 22]);
        bytes.extend(rest);
        if let Ok(message) = SoftMessage::parse(&bytes) {
            let mut again = vec![];
            message.emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

/// PROTOCOL 13.17: invalid Counts.
#[test]
fn counters_outside_of_their_section_are_refused() {
    let part = [7; 4 * SOFT_COUNTS_MAX + 8];
    let counts = |epoch, edition, total, from, have| {
        let counters = &part[..have];
        let body = SoftBody::Counts(Counts { epoch, edition, total, from, counters });
        let said = emitted(body, 1);
        heard(&said).inspect(|heard| assert_eq!(*heard, body)).is_ok()
    };
    assert!(
        counts(1, 5, 3, 0, 12) && counts(1, 5, 3, 2, 4) && counts(1, 5, 3, 3, 0) && counts(9, 0, 0, 0, 0)
    );
    assert!(counts(0, 0, 0, 0, 0), "no image is active");
    assert!(!counts(0, 0, 1, 0, 4) && !counts(1, 5, 0, 0, 0) && !counts(1, 0, 0, 1, 0), "not there");
    assert!(!counts(1, 5, 3, 0, 16) && !counts(1, 5, 3, 2, 8) && !counts(1, 5, 3, 4, 0), "behind the end");
    assert!(!counts(1, 5, 3, 0, 7) && !counts(1, 5, 3, 0, 1), "half a counter");
    assert!(counts(1, 5, SOFT_COUNTERS_MAX, 0, 4 * SOFT_COUNTS_MAX), "as much as there may be");
    assert!(!counts(1, 5, SOFT_COUNTERS_MAX, 0, 4 * SOFT_COUNTS_MAX + 4));
    assert!(!counts(1, 5, SOFT_COUNTERS_MAX + 1, 0, 4), "too many");
}

/// PROTOCOL 13.2: an invalid Load.
#[test]
fn a_part_outside_of_its_image_is_refused() {
    let part = [7; SOFT_PART_MAX + 1];
    let load = |epoch, len, offset, have| {
        let bytes = &part[..have];
        heard(&emitted(SoftBody::Load(Load { epoch, len, offset, bytes }), 1)).is_ok()
    };
    assert!(load(1, 5, 0, 5) && load(1, 5, 4, 1) && load(1, SOFT_IMAGE_MAX, SOFT_IMAGE_MAX - 1, 1));
    assert!(!load(0, 5, 0, 5), "no epoch");
    assert!(
        !load(1, 5, 0, 6) && !load(1, 5, 4, 2) && !load(1, 5, 5, 1) && !load(1, 5, u32::MAX, 1),
        "behind the end"
    );
    assert!(!load(1, 0, 0, 1) && !load(1, 5, 0, 0), "nothing");
    assert!(!load(1, SOFT_IMAGE_MAX + 1, 0, 1), "too long an image");
    assert!(load(1, 2000, 0, SOFT_PART_MAX) && !load(1, 2000, 0, SOFT_PART_MAX + 1), "too long a part");
}
