use super::*;
use farmem_wire::VirtAddr;
use farmem_wire::message::FetchId;

const A: HostId = HostId(1);
const B: HostId = HostId(2);

fn page() -> Page {
    Page::of(VirtAddr(0x9000))
}

fn read(host: HostId, access: Access, seq: u64, clean: bool) -> Read {
    Read {
        page: page(),
        access,
        host,
        id: FetchId(1),
        seq: Seq(seq),
        clean,
        behind: false,
        granted: true,
        done_due: false,
    }
}

/// A page that is granted for writing is lent until it is written back; late copies of the write-back have no
/// effect.
#[test]
fn a_page_is_lent_until_it_comes_back() {
    let mut states = PageStates::default();
    assert_eq!(states.verdict(page()), Verdict::Latest);
    assert_eq!(states.read(&read(A, Access::Shared, 0, true)), GrantReply::Bytes);
    assert_eq!(states.verdict(page()), Verdict::Latest, "reading lends nothing");
    assert_eq!(states.read(&read(A, Access::Modified, 1, true)), GrantReply::Bytes);
    assert_eq!((states.verdict(page()), states.record(page()).lent()), (Verdict::Lent, Some((Seq(1), A))));
    assert!(states.write_back(page(), A, Seq(1)));
    assert_eq!(states.verdict(page()), Verdict::Latest);
    assert_eq!(states.read(&read(A, Access::Modified, 2, false)), GrantReply::Bytes);
    assert!(!states.write_back(page(), A, Seq(1)), "a copy of the first");
    assert_eq!(states.verdict(page()), Verdict::Lent, "and it ends no later loan");
    assert!(states.write_back(page(), A, Seq(2)));
}

/// A Read that overtakes the write-back before it has no effect; after the write-back it succeeds (PROTOCOL
/// 12.26).
#[test]
fn a_read_behind_a_write_back_waits_for_it() {
    let mut states = PageStates::default();
    assert_eq!(states.read(&read(A, Access::Modified, 1, true)), GrantReply::Bytes);
    let behind = Read { behind: true, ..read(B, Access::Modified, 2, true) };
    let before = states.clone();
    assert_eq!(states.read(&behind), GrantReply::Nothing);
    assert_eq!(states, before);
    assert!(states.write_back(page(), A, Seq(1)), "it still counts");
    assert_eq!(states.read(&behind), GrantReply::Bytes);
    assert_eq!(states.record(page()).lent(), Some((Seq(2), B)));
    assert!(!states.write_back(page(), A, Seq(1)), "a copy of it");
    assert_eq!(states.read(&behind), GrantReply::Nothing, "a copy comes when the page is lent to the asker");
}

/// A host to which the page was not lent cannot write it back, whatever number it guesses.
#[test]
fn another_host_writes_nothing_back() {
    let mut states = PageStates::default();
    assert!(!states.write_back(page(), A, Seq(1)), "no host was handed it");
    assert_eq!(states.iter().count(), 0, "nor does the guess take room");
    assert_eq!(states.read(&read(A, Access::Modified, 4, true)), GrantReply::Bytes);
    assert!(!states.write_back(page(), B, Seq(4)));
    assert!(states.write_back(page(), A, Seq(4)));
}

/// A late copy of a Read lends a page that no host has; the next Clean corrects this.
#[test]
fn clean_news_ends_a_loan_that_never_was() {
    let mut states = PageStates::default();
    assert_eq!(states.read(&read(A, Access::Modified, 3, true)), GrantReply::Bytes);
    states.clean(page(), Seq(3));
    assert_eq!(states.verdict(page()), Verdict::Lent, "the grant itself may be in use");
    states.clean(page(), Seq(4));
    assert_eq!(states.verdict(page()), Verdict::Latest);
    assert!(!states.write_back(page(), A, Seq(3)));
}

/// A sweep: the pages of a fenced host are lost and reported as lost; those of a live host are not.
#[test]
fn a_sweep_marks_what_died() {
    let region = Region::around(page(), 3);
    let fenced = HostSet::only(A);
    for (holder, lost) in [(A, 1), (B, 0)] {
        let mut states = PageStates::default();
        assert_eq!(states.read(&read(holder, Access::Modified, 5, true)), GrantReply::Bytes);
        assert_eq!(states.sweep(region, Seq(6), fenced), lost);
        assert_eq!(states.sweep(region, Seq(6), fenced), 0, "once");
        assert!(!states.write_back(page(), holder, Seq(5)), "too late");
        let handed = if lost == 0 { GrantReply::Bytes } else { GrantReply::Loss };
        assert_eq!(states.read(&read(B, Access::Modified, 7, true)), handed);
        states.accept_loss(page(), page());
        assert_eq!(states.read(&read(B, Access::Modified, 7, true)), GrantReply::Bytes);
        assert_eq!(states.record(page()).lent(), Some((Seq(7), B)));
    }
    let mut states = PageStates::default();
    assert_eq!(states.read(&read(A, Access::Modified, 5, true)), GrantReply::Bytes);
    assert!(states.write_back(page(), A, Seq(5)));
    assert_eq!(states.sweep(region, Seq(6), fenced), 0, "it was back already");
}
