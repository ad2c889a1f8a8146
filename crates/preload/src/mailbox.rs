//! Calls of the pager: a mailbox is filled, its doorbell is rung, and when the ringing returns the answer is there.

use crate::area;
use crate::signals::Blocked;
use farmem_preload_abi::call::{
    Call, MAILBOX_WORDS, MAILBOXES, TEXT_MAX, TEXTS, VALUES, WORD_CALL, WORD_NUMBER, WORD_STATUS, WORD_VALUE,
    doorbell,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static BUSY: [AtomicBool; MAILBOXES] = [const { AtomicBool::new(false) }; MAILBOXES];
static NUMBERS: [AtomicU64; MAILBOXES] = [const { AtomicU64::new(0) }; MAILBOXES];

/// Carries a call out; answers its value, or the status that it came to.
pub(crate) fn call(call: Call) -> Result<u64, u64> {
    call_with(&[], call).map(|[value, ..]| value)
}

/// Carries a call out that goes with a text; answers its values.
pub(crate) fn call_with(text: &[u8], call: Call) -> Result<[u64; VALUES], u64> {
    assert!(text.len() <= TEXT_MAX, "a text that fits");
    // A handler that forked here would have a child go on with half a call, in a mailbox that is empty.
    let _whole = Blocked::new();
    let mailbox = take();
    for (n, bytes) in text.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let place = (TEXTS + mailbox * TEXT_MAX) / 8 + n;
        area::word(0, place).store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    let number = NUMBERS[mailbox].load(Ordering::Relaxed) + 1;
    NUMBERS[mailbox].store(number, Ordering::Relaxed);
    for (n, word) in call.words().into_iter().enumerate() {
        area::word(0, mailbox * MAILBOX_WORDS + WORD_CALL + n).store(word, Ordering::Relaxed);
    }
    area::word(0, mailbox * MAILBOX_WORDS + WORD_NUMBER).store(number, Ordering::Release);
    // The page is write-protected: this store waits until the pager has answered.
    area::word(doorbell(mailbox, number), 0).store(number, Ordering::SeqCst);
    let answer = |word| area::word(0, mailbox * MAILBOX_WORDS + word).load(Ordering::Acquire);
    let (status, values) = (answer(WORD_STATUS), std::array::from_fn(|n| answer(WORD_VALUE + n)));
    BUSY[mailbox].store(false, Ordering::Release);
    if status == 0 { Ok(values) } else { Err(status) }
}

/// In a fork's child: its mailboxes are new, and no thread is calling.
pub(crate) fn begin_anew() {
    BUSY.iter().for_each(|busy| busy.store(false, Ordering::Relaxed));
    NUMBERS.iter().for_each(|number| number.store(0, Ordering::Relaxed));
}

/// A mailbox of this thread's own until it lets go.
fn take() -> usize {
    loop {
        let free = |busy: &AtomicBool| {
            busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if let Some(mailbox) = BUSY.iter().position(free) {
            return mailbox;
        }
        rustix::thread::sched_yield();
    }
}
