//! The expected words of far memory: the last store of any host, except for memory that the protocol reports
//! as lost.

use farmem_wire::message::Page;
use std::collections::BTreeMap;

/// Words of each page that programs use.
pub(super) const WORDS: usize = 4;

/// The state of a page beside its latest words.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct PageState {
    /// True if the page's node restarted empty. Until no host holds the page from before, such a host sees
    /// the latest words, never zeros.
    wiped: bool,
    loss: Loss,
}

/// Whether older words are acceptable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Loss {
    #[default]
    None,
    /// Lost with its node: no host may see a word of it before its owner accepts that.
    Sure,
    /// The owner is accepting the old bytes; only control plane and node know when.
    Accepting,
    /// The next load defines the contents: lost bytes were given up for older ones, or for zeros.
    Open,
}

/// All words of far memory.
#[derive(Debug)]
pub(super) struct WordChecker {
    first: u64,
    latest: Vec<[u64; WORDS]>,
    known: BTreeMap<Page, PageState>,
    stored: u64,
}

/// A page and the index of a word in it.
pub(super) type WordAddr = (Page, usize);

impl WordChecker {
    pub(super) fn new(first: Page, pages: usize) -> Self {
        Self { first: first.number(), latest: vec![[0; WORDS]; pages], known: BTreeMap::new(), stored: 0 }
    }

    /// Returns a value that was never stored, unique to this word.
    pub(super) fn next(&mut self, place: WordAddr) -> u64 {
        self.stored += 1;
        self.stored << 16 | self.tag(place)
    }

    /// Records a store.
    pub(super) fn store(&mut self, (page, word): WordAddr, value: u64) {
        let index = self.index(page);
        self.latest[index][word] = value;
    }

    /// Checks the words of a page that programs can read; an open state is settled by them.
    ///
    /// # Errors
    ///
    /// The mismatch.
    pub(super) fn look(&mut self, page: Page, found: &[u64; WORDS]) -> Result<(), String> {
        let index = self.index(page);
        if self.latest[index] == *found && self.known.is_empty() {
            return Ok(());
        }
        let known = self.known.get(&page).copied().unwrap_or_default();
        for (word, &found) in found.iter().enumerate() {
            let latest = self.latest[index][word];
            let older = found < latest && (found == 0 || found & 0xffff == self.tag((page, word)));
            let given_up = matches!(known.loss, Loss::Accepting | Loss::Open);
            let there = known.wiped || known.loss != Loss::Sure;
            let fine = there && found == latest || given_up && older;
            if !fine {
                return Err(format!(
                    "{found:#x} is read in word {word} of {page:?}, where {latest:#x} is the latest"
                ));
            }
        }
        if known.loss != Loss::None {
            self.latest[index] = *found;
        }
        if known.loss == Loss::Open && !known.wiped {
            self.set(page, PageState { loss: Loss::None, ..known });
        }
        Ok(())
    }

    /// Records that the owner requests the old bytes of the page.
    pub(super) fn begin_accepting(&mut self, page: Page) {
        let known = self.known.get(&page).copied().unwrap_or_default();
        if matches!(known.loss, Loss::None | Loss::Sure) {
            self.set(page, PageState { loss: Loss::Accepting, ..known });
        }
    }

    /// Records that the owner has them.
    pub(super) fn accept_loss(&mut self, page: Page) {
        let known = self.known.get(&page).copied().unwrap_or_default();
        if known.loss == Loss::Accepting {
            self.set(page, PageState { loss: Loss::Open, ..known });
        }
    }

    /// Records that the node of the page restarted.
    pub(super) fn wipe(&mut self, page: Page) {
        let known = self.known.entry(page).or_default();
        known.wiped = true;
        // An acceptance in progress may be carried out after this loss.
        if known.loss != Loss::Accepting {
            known.loss = Loss::Sure;
        }
    }

    /// Returns the pages of which hosts may still hold contents from before the restart of their node.
    pub(super) fn wiped(&self) -> impl Iterator<Item = Page> + '_ {
        self.known.iter().filter(|(_, known)| known.wiped).map(|(&page, _)| page)
    }

    /// Records that no host holds the wiped page any more: it is lost for all, or accepted.
    pub(super) fn reopen(&mut self, page: Page) {
        let known = self.known.get(&page).copied().unwrap_or_default();
        self.set(page, PageState { wiped: false, ..known });
    }

    fn set(&mut self, page: Page, known: PageState) {
        if known == PageState::default() {
            self.known.remove(&page);
        } else {
            self.known.insert(page, known);
        }
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = Page> + use<> {
        (self.first..).take(self.latest.len()).map(page_of)
    }

    fn index(&self, page: Page) -> usize {
        usize::try_from(page.number() - self.first).expect("one of the pages")
    }

    fn tag(&self, (page, word): WordAddr) -> u64 {
        (self.index(page) * WORDS + word) as u64 + 1
    }
}

const fn page_of(number: u64) -> Page {
    Page::of(farmem_wire::VirtAddr(number << farmem_wire::message::PAGE_SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = page_of(16);

    fn words() -> WordChecker {
        let mut words = WordChecker::new(PAGE, 4);
        let value = words.next((PAGE, 1));
        words.store((PAGE, 1), value);
        words
    }

    /// The checker detects old bytes, bytes of another word, and a silent loss.
    #[test]
    fn only_the_latest_will_do() {
        let mut words = words();
        let first = words.latest[0][1];
        assert_eq!(words.look(PAGE, &[0, first, 0, 0]), Ok(()));
        let second = words.next((PAGE, 1));
        words.store((PAGE, 1), second);
        for wrong in [[0, first, 0, 0], [0, 0, 0, 0], [second, second, 0, 0]] {
            assert!(words.look(PAGE, &wrong).is_err(), "{wrong:?}");
        }
    }

    /// An accepted loss allows an older value of the same word, once; then that is the latest.
    #[test]
    fn an_accepted_loss_allows_old_bytes_of_the_same_word() {
        let mut words = words();
        let first = words.latest[0][1];
        let second = words.next((PAGE, 1));
        words.store((PAGE, 1), second);
        words.begin_accepting(PAGE);
        words.accept_loss(PAGE);
        assert!(words.look(PAGE, &[0, first + 1, 0, 0]).is_err(), "another word's");
        assert_eq!(words.look(PAGE, &[0, first, 0, 0]), Ok(()));
        assert!(words.look(PAGE, &[0, second, 0, 0]).is_err(), "it was given up");
    }

    /// A node restarts empty. A host that holds the page from before sees its words; then no host sees any
    /// until the loss is accepted, and then zeros.
    #[test]
    fn a_wiped_page_is_the_latest_or_lost() {
        let mut words = words();
        let first = words.latest[0][1];
        words.pages().for_each(|page| words.wipe(page));
        assert_eq!(words.wiped().count(), 4);
        assert_eq!(words.look(PAGE, &[0, first, 0, 0]), Ok(()));
        assert!(words.look(PAGE, &[0; WORDS]).is_err(), "zeros in silence");
        words.reopen(PAGE);
        for wrong in [[0; WORDS], [0, first, 0, 0]] {
            assert!(words.look(PAGE, &wrong).is_err(), "it is lost");
        }
        words.begin_accepting(PAGE);
        words.accept_loss(PAGE);
        assert_eq!(words.look(PAGE, &[0; WORDS]), Ok(()));
        assert!(words.look(PAGE, &[0, first, 0, 0]).is_err());
        assert_eq!(words.wiped().count(), 3);
    }
}
