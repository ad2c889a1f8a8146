//! Model of the switch for images. The model stores the images that the control plane sent, and sometimes
//! answers wrongly.

use crate::input::Input;
use farmem_control::api::{
    Base64, Overview, Request, SoftClear, SoftCounts, SoftLoad, SoftName, SoftRead, SoftSection, SoftShow,
};
use farmem_wire::message::{
    Counts, ImageFault, ImageId, ImageRule, ImageStatus, Load, Loading, SoftBody, SoftMessage, Verdict,
};
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of unanswered questions. The model discards older ones.
const OPEN_MAX: usize = 40;
/// Counters of each section: more than a message can hold.
const COUNTERS: u32 = 300;

/// Images in the switch, and the questions that the control plane asked.
#[derive(Debug, Default)]
pub(super) struct SoftSwitch {
    active: ImageId,
    loading: Loading,
    open: VecDeque<Vec<u8>>,
    /// Tokens of all questions since the control plane started.
    tokens: BTreeSet<u64>,
}

impl SoftSwitch {
    /// Discards all questions because the control plane starts again.
    pub(super) fn forget(&mut self) {
        self.tokens.clear();
        self.open.clear();
    }

    /// Records a question of the control plane.
    pub(super) fn asked(&mut self, payload: &[u8]) {
        let message = SoftMessage::parse(payload).expect("the control plane sends messages");
        self.tokens.insert(message.token.0);
        self.open.push_back(payload.to_vec());
        if self.open.len() > OPEN_MAX {
            self.open.pop_front();
        }
    }

    /// Returns true when the payload may answer a question.
    pub(super) fn may_answer(&self, payload: &[u8]) -> bool {
        SoftMessage::parse(payload).is_ok_and(|message| self.tokens.contains(&message.token.0))
    }

    /// Returns the answer to the oldest question. The answer is right, unless `input` selects a wrong one.
    pub(super) fn answer(&mut self, mut input: Option<&mut Input<'_>>) -> Option<Vec<u8>> {
        let question = self.open.pop_front()?;
        let SoftMessage { token, body } = SoftMessage::parse(&question).expect("it was one");
        let counters = vec![1; 4 * COUNTERS as usize];
        let right = self.right(&body, &counters);
        let wrong = input.take_if(|input| input.one_in(6)).map(|input| other(&body, input));
        let body = wrong.unwrap_or(right);
        let mut bytes = Vec::new();
        SoftMessage { token, body }.emit(&mut bytes);
        Some(bytes)
    }

    fn right<'a>(&mut self, body: &SoftBody<'_>, counters: &'a [u8]) -> SoftBody<'a> {
        let newest = self.active.epoch.max(self.loading.epoch);
        match *body {
            SoftBody::Load(Load { epoch, .. }) | SoftBody::Flip(ImageId { epoch, .. })
                if epoch < newest || epoch == self.active.epoch =>
            {
                SoftBody::Shown(ImageStatus { active: self.active, loading: self.loading })
            }
            SoftBody::Load(Load { epoch, len, offset, bytes }) => {
                if (self.loading.epoch, self.loading.len) != (epoch, len) {
                    self.loading = Loading { epoch, len, next: 0 };
                }
                if offset == self.loading.next {
                    self.loading.next += u32::try_from(bytes.len()).expect("a part");
                }
                SoftBody::Loaded { epoch, next: self.loading.next }
            }
            SoftBody::Flip(id) if self.loading.epoch == id.epoch && self.loading.next == id.len => {
                (self.active, self.loading) = (id, Loading::default());
                SoftBody::Flipped { epoch: id.epoch, verdict: Verdict::Active }
            }
            SoftBody::Flip(id) => SoftBody::Loaded { epoch: id.epoch, next: 0 },
            SoftBody::Count(count) => {
                let epoch = self.active.epoch;
                if epoch == 0 || count.epoch != 0 && count.epoch != epoch {
                    return SoftBody::Counts(Counts { epoch, edition: 0, total: 0, from: 0, counters: &[] });
                }
                let from = count.from.min(COUNTERS);
                let room = 4 * farmem_wire::message::SOFT_COUNTS_MAX;
                let part = &counters[4 * from as usize..];
                let counters = &part[..part.len().min(room)];
                SoftBody::Counts(Counts { epoch, edition: 9, total: COUNTERS, from, counters })
            }
            _ => SoftBody::Shown(ImageStatus { active: self.active, loading: self.loading }),
        }
    }
}

/// Returns a wrong answer, or one that no switch sends.
fn other(body: &SoftBody<'_>, input: &mut Input<'_>) -> SoftBody<'static> {
    let epoch = match *body {
        SoftBody::Load(Load { epoch, .. }) | SoftBody::Flip(ImageId { epoch, .. }) => epoch,
        _ => u64::from(1 + input.below(5)),
    };
    let verdicts = [
        Verdict::Damaged,
        Verdict::TooLong(u32::from(input.u8())),
        Verdict::Fault(ImageFault { rule: ImageRule::Content, row: 1 }),
        Verdict::Active,
    ];
    match input.below(6) {
        0 => SoftBody::Show,
        1 => SoftBody::Loaded { epoch, next: u32::from(input.u16()) },
        2 => SoftBody::Counts(Counts {
            epoch,
            edition: 3,
            total: 2,
            from: u32::from(input.below(2)),
            counters: &[0; 4],
        }),
        3 => SoftBody::Shown(ImageStatus::default()),
        _ => SoftBody::Flipped { epoch, verdict: input.pick(&verdicts) },
    }
}

/// Returns a request about soft state, sensible or not.
pub(super) fn request(host: u16, domain: u32, input: &mut Input<'_>) -> Request {
    let (kind, id) = (input.pick(&[1, 2, 0x0d13]), u64::from(input.below(3)) << 8);
    let switch = None;
    match input.below(9) {
        8 => Overview {}.into(),
        0..=3 => {
            let section = |input: &mut Input<'_>| SoftSection {
                kind,
                id: id + u64::from(input.below(2)),
                bytes: Base64(input.bytes().to_vec()),
            };
            let sections = (0..input.below(3)).map(|_| section(input)).collect();
            SoftLoad { host, domain, sections, switch }.into()
        }
        4 => SoftClear {
            domain,
            sections: (0..input.below(2)).map(|_| SoftName { kind, id }).collect(),
            switch,
        }
        .into(),
        5 => SoftShow { switch }.into(),
        6 => SoftRead { domain, kind, id, switch }.into(),
        _ => SoftCounts { domain, kind, id, switch }.into(),
    }
}
