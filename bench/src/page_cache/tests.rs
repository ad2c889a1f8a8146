use super::*;
use proptest::prelude::*;

/// A request to the cache.
#[derive(Clone, Copy, Debug)]
enum Request {
    Read(u64),
    Write(u64, u8),
    /// Uses the page if it is cached, fetches it otherwise.
    Need(u64),
    Evict,
    /// Writes back the dirty ones among this many of the oldest pages.
    Clean(usize),
}

fn ask() -> impl Strategy<Value = Request> {
    // Few pages in few tables, so that they collide, and some far away, as on other memory nodes.
    let page = prop_oneof![0..12_u64, 508..516_u64, Just(1 << 40), Just((1 << 52) - 1)];
    prop_oneof![
        page.clone().prop_map(Request::Read),
        (page.clone(), any::<u8>()).prop_map(|(page, byte)| Request::Write(page, byte)),
        page.prop_map(Request::Need),
        Just(Request::Evict),
        (0..12_usize).prop_map(Request::Clean),
    ]
}

/// The plain model: pages in LRU order, the most recently used last.
#[derive(Default)]
struct Model(Vec<(u64, u8, bool)>);

impl Model {
    fn touch(&mut self, page: u64) -> Option<&mut (u64, u8, bool)> {
        let at = self.0.iter().position(|entry| entry.0 == page)?;
        let entry = self.0.remove(at);
        self.0.push(entry);
        self.0.last_mut()
    }

    fn evict(&mut self) -> Option<(u64, Option<u8>)> {
        (!self.0.is_empty())
            .then(|| self.0.remove(0))
            .map(|(page, byte, dirty)| (page, dirty.then_some(byte)))
    }
}

fn low(page: u64) -> u8 {
    page.to_le_bytes()[0]
}

fn evict(pages: &mut Pages) -> Option<(u64, Option<u8>)> {
    pages.evict().map(|evicted| (evicted.page.0, evicted.dirty.map(|bytes| bytes[17])))
}

proptest! {
    /// The cache matches a list in LRU order under any sequence: the same pages are cached, the same one is
    /// evicted, the same bytes are written back.
    #[test]
    fn it_does_what_a_list_in_order_of_use_does(capacity in 1..9_usize, asks in prop::collection::vec(ask(), 0..200)) {
        let mut pages = Pages::new((capacity * PAGE_LEN) as u64 + 4095);
        let mut model = Model::default();
        for ask in asks {
            match ask {
                Request::Read(page) => {
                    let expected = model.touch(page).map(|entry| entry.1);
                    prop_assert_eq!(pages.get(Page(page)).map(|bytes| bytes[17]), expected);
                }
                Request::Write(page, byte) => {
                    let here = model.touch(page).map(|entry| (entry.1, entry.2) = (byte, true)).is_some();
                    let got = pages.get_mut(Page(page)).map(|bytes| bytes[17] = byte).is_some();
                    prop_assert_eq!(got, here);
                }
                Request::Need(page) => {
                    if model.touch(page).is_none() {
                        if model.0.len() == capacity {
                            prop_assert_eq!(evict(&mut pages), model.evict());
                        }
                        model.0.push((page, low(page), false));
                        pages.fill(Page(page), &[low(page); PAGE_LEN]);
                    } else {
                        prop_assert!(pages.get(Page(page)).is_some());
                    }
                }
                Request::Clean(most) => {
                    let oldest = model.0.iter_mut().take(most).filter(|entry| entry.2);
                    let expected: Vec<_> = oldest.map(|entry| {
                        entry.2 = false;
                        (entry.0, entry.1)
                    }).collect();
                    let mut got = Vec::new();
                    pages.clean_oldest(most, |page, bytes| got.push((page.0, bytes[17])));
                    prop_assert_eq!(got, expected);
                }
                Request::Evict => prop_assert_eq!(evict(&mut pages), model.evict()),
            }
            prop_assert_eq!(pages.len(), model.0.len());
            prop_assert!(pages.len() <= pages.capacity());
        }
    }
}

/// A cache of this many bytes holds the whole pages that fit, to the byte, and allocates no more.
#[test]
fn its_limit_is_in_bytes() {
    for (bytes, capacity) in [(4096, 1), (8191, 1), (8192, 2), (40_959, 9)] {
        let pages = Pages::new(bytes);
        assert_eq!((pages.capacity(), pages.bytes.len()), (capacity, capacity * PAGE_LEN));
        assert!(pages.bytes.len() as u64 <= bytes);
    }
}

/// Filling beyond the capacity is a caller's error.
#[test]
#[should_panic(expected = "room was made for it")]
fn it_takes_no_page_without_room() {
    let mut pages = Pages::new(4096);
    pages.fill(Page(1), &[0; PAGE_LEN]);
    pages.fill(Page(2), &[0; PAGE_LEN]);
}

/// The last page of the address space has an address.
#[test]
fn pages_and_addresses() {
    assert_eq!(Page::of(VirtAddr(u64::MAX)), (Page((1 << 52) - 1), 4095));
    assert_eq!(Page((1 << 52) - 1).addr(), VirtAddr(u64::MAX - 4095));
}
