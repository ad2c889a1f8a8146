use super::*;
use farmem_wire::VirtAddr;
use farmem_wire::message::FetchId;

const A: HostId = HostId(1);
const B: HostId = HostId(2);

fn page() -> Page {
    Page::of(VirtAddr(0x9000))
}

fn read(host: HostId, access: Access, seq: u64, clean: bool) -> Read {
    Read { page: page(), access, host, id: FetchId(1), seq: Seq(seq), clean, granted: true, done_due: false }
}

/// Handed out to be written, a page is lent until it is written back; late copies of the write-back change nothing.
#[test]
fn a_page_is_lent_until_it_comes_back() {
    let mut gate = PageGate::default();
    assert_eq!(gate.verdict(page()), Verdict::Latest);
    assert!(gate.read(&read(A, Access::Shared, 0, true)));
    assert_eq!(gate.verdict(page()), Verdict::Latest, "reading lends nothing");
    assert!(gate.read(&read(A, Access::Modified, 1, true)));
    assert_eq!((gate.verdict(page()), gate.gate(page()).lent()), (Verdict::Lent, Some((Seq(1), A))));
    assert!(gate.write_back(page(), A, Seq(1)));
    assert_eq!(gate.verdict(page()), Verdict::Latest);
    assert!(gate.read(&read(A, Access::Modified, 2, false)));
    assert!(!gate.write_back(page(), A, Seq(1)), "a copy of the first");
    assert_eq!(gate.verdict(page()), Verdict::Lent, "and it ends no later loan");
    assert!(gate.write_back(page(), A, Seq(2)));
}

/// Whom the page was not lent to has nothing to write back, whatever number it guesses.
#[test]
fn another_host_writes_nothing_back() {
    let mut gate = PageGate::default();
    assert!(!gate.write_back(page(), A, Seq(1)), "nobody was handed it");
    assert_eq!(gate.iter().count(), 0, "nor does the guess take room");
    assert!(gate.read(&read(A, Access::Modified, 4, true)));
    assert!(!gate.write_back(page(), B, Seq(4)));
    assert!(gate.write_back(page(), A, Seq(4)));
}

/// A late copy of a read lends a page that nobody has; the next clean news heals it.
#[test]
fn clean_news_ends_a_loan_that_never_was() {
    let mut gate = PageGate::default();
    assert!(gate.read(&read(A, Access::Modified, 3, true)));
    gate.clean(page(), Seq(3));
    assert_eq!(gate.verdict(page()), Verdict::Lent, "the grant itself may be in use");
    gate.clean(page(), Seq(4));
    assert_eq!(gate.verdict(page()), Verdict::Latest);
    assert!(!gate.write_back(page(), A, Seq(3)));
}

/// A sweep: what a fenced host had is lost, and said to be; what a live one had is not.
#[test]
fn a_sweep_marks_what_died() {
    let region = Region::around(page(), 3);
    let fenced = HostSet::only(A);
    for (holder, lost) in [(A, 1), (B, 0)] {
        let mut gate = PageGate::default();
        assert!(gate.read(&read(holder, Access::Modified, 5, true)));
        assert_eq!(gate.sweep(region, Seq(6), fenced), lost);
        assert_eq!(gate.sweep(region, Seq(6), fenced), 0, "once");
        assert!(!gate.write_back(page(), holder, Seq(5)), "too late");
        assert_eq!(gate.read(&read(B, Access::Modified, 7, true)), lost == 0);
        gate.accept_loss(page(), page());
        assert!(gate.read(&read(B, Access::Modified, 7, true)));
        assert_eq!(gate.gate(page()).lent(), Some((Seq(7), B)));
    }
    let mut gate = PageGate::default();
    assert!(gate.read(&read(A, Access::Modified, 5, true)));
    assert!(gate.write_back(page(), A, Seq(5)));
    assert_eq!(gate.sweep(region, Seq(6), fenced), 0, "it was back already");
}
