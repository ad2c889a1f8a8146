//! Calls to the pager. The caller fills a mailbox and rings its doorbell; when that store returns, the reply is
//! in the mailbox.

use crate::area;
use crate::signals::Blocked;
use farmem_preload_abi::call::{
    Call, MAILBOX_WORDS, MAILBOXES, TEXT_MAX, TEXTS, VALUES, WORD_CALL, WORD_NUMBER, WORD_STATUS, WORD_VALUE,
    doorbell,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static BUSY: [AtomicBool; MAILBOXES] = [const { AtomicBool::new(false) }; MAILBOXES];
static NUMBERS: [AtomicU64; MAILBOXES] = [const { AtomicU64::new(0) }; MAILBOXES];

/// Makes a call; returns its first value, or its status as the error.
pub(crate) fn call(call: Call) -> Result<u64, u64> {
    call_with(&[], call).map(|[value, ..]| value)
}

/// Makes a call with a text; returns its values.
pub(crate) fn call_with(text: &[u8], call: Call) -> Result<[u64; VALUES], u64> {
    assert!(text.len() <= TEXT_MAX, "a text that fits");
    // A handler that forks during the call would leave the child with half a call in an empty mailbox.
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
    // The page is write-protected: this store waits until the pager has replied.
    area::word(doorbell(mailbox, number), 0).store(number, Ordering::SeqCst);
    let answer = |word| area::word(0, mailbox * MAILBOX_WORDS + word).load(Ordering::Acquire);
    let (status, values) = (answer(WORD_STATUS), std::array::from_fn(|n| answer(WORD_VALUE + n)));
    BUSY[mailbox].store(false, Ordering::Release);
    if status == 0 { Ok(values) } else { Err(status) }
}

/// Resets the mailboxes in a fork's child, where no other thread is calling.
pub(crate) fn begin_anew() {
    BUSY.iter().for_each(|busy| busy.store(false, Ordering::Relaxed));
    NUMBERS.iter().for_each(|number| number.store(0, Ordering::Relaxed));
}

/// Acquires a free mailbox for this thread.
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
