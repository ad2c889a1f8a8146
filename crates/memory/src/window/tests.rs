//! Windows whose verbs fail, or complete when no page waits for them any more. Tests are skipped if this
//! process may not serve faults.

use super::*;
use farmem_client::api::{ErrorCode, OpenMode};
use farmem_client::{NodeId, Op, Rack};
use farmem_dpu_server::check_dpu;
use farmem_link::OpenError;
use std::num::NonZeroU32;

const PAGE: u64 = PAGE_LEN as u64;
const PAGES: u64 = 64;

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

/// Returns a cache of four entries of four pages of 4 KiB.
fn dpu() -> DpuConfig {
    let table = TableConfig { slots: number(4), entry_pages: 4 };
    DpuConfig { page_len: number(4096), table, ..DpuConfig::new(Caching::Dynamic) }
}

fn options(dpu: Option<DpuConfig>) -> WindowOptions {
    let way = dpu.map_or(AccessPath::Direct, AccessPath::Own);
    WindowOptions { place: Addressing::Anywhere, way, ..WindowOptions::new(FRAMES_MIN * PAGE) }
}

/// Returns the parts of a window on an allocation, directly to its node, unless `options` specifies
/// otherwise.
fn opened(vma: &Vma, options: &WindowOptions) -> Result<(Window, Laid, Config), OpenError> {
    let objects = [Object::new(vma)];
    let laid = Laid::of(&objects, options.chunk, options.read_only).unwrap();
    let (config, frames) = window_config(&laid, &objects, options).unwrap();
    Ok((Window::open(&config)?, laid, cache_config(frames, options)))
}

/// Returns a rack of one node, and an allocation of which each page is filled with its number.
fn numbered() -> (Rack, Client, Vma) {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut client = rack.client("windows").unwrap();
    let vma = client.allocate(PAGES * PAGE).unwrap();
    let bytes: Vec<u8> = (0..PAGES * PAGE).map(|at| u8::try_from(at / PAGE).unwrap()).collect();
    client.write(vma.base, &bytes).unwrap();
    (rack, client, vma)
}

fn at(vma: &Vma, page: u64) -> VirtAddr {
    VirtAddr(vma.base.0 + page * PAGE)
}

/// The READs of a prefetch fail, so its slot gets no bytes. Then the window writes another page of that
/// entry.
///
/// Pages 0 and 3 are lost. The program reads pages 1 and 2, so that the DPU requests the rest of their entry,
/// in two READs; page 60 follows these. Page 1 is written: far memory has it, and no slot does.
#[test]
fn a_page_is_written_after_its_prefetch_failed() {
    let (rack, mut client, vma) = numbered();
    rack.restart_node(NodeId(1)).unwrap();
    client.accept_lost(at(&vma, 1), 2 * PAGE).unwrap();
    client.accept_lost(at(&vma, 4), (PAGES - 4) * PAGE).unwrap();
    let mut client = rack.client("windows").unwrap(); // connected to the present node
    let ran = with_window(&mut client, &vma, options(Some(dpu())), |memory| {
        let mut page = vec![0; PAGE_LEN];
        for number in [1, 2, 60] {
            memory.read(number * PAGE_LEN, &mut page);
        }
        memory.write(PAGE_LEN, &[7; PAGE_LEN]);
    });
    let stats = match ran {
        Err(Error::Open(refused)) => return eprintln!("skipped: {refused}"),
        ran => ran.unwrap().1.dpu.expect("a DPU says what it did"),
    };
    assert_eq!((stats.reads, stats.writes, stats.hits), (3, 1, 0), "{stats:?}");
    assert_eq!((stats.background, stats.ahead.used), (2 * PAGE, 0), "both READs failed: {stats:?}");
    let mut page = vec![0; PAGE_LEN];
    client.read(at(&vma, 1), &mut page).unwrap();
    assert_eq!(page, [7; PAGE_LEN]);
    for lost in [0, 3] {
        assert!(matches!(client.read(at(&vma, lost), &mut page), Err(Error::MemoryLost { .. })));
    }
}

/// Named memory is used through DPUs. One host writes it, so another host's window cannot be opened on it.
/// Then two hosts read it, and find the written bytes.
#[test]
fn named_memory_is_written_by_one_host_and_read_by_many() {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let [mut one, mut two, mut three] = [0; 3].map(|_| rack.client("graphs").unwrap());
    let options = options(Some(dpu()));
    let written = one.create_named_as("graph", PAGES * PAGE, OpenMode::Write).unwrap();
    let ran = with_window(&mut one, written.vma(), options, |memory| {
        for (page, fill) in (0..).step_by(PAGE_LEN).zip(1..=64) {
            memory.write(page, &[fill; PAGE_LEN]);
        }
    });
    if let Err(Error::Open(refused)) = ran {
        return eprintln!("skipped: {refused}");
    }
    ran.unwrap();
    let refused = two.open_named_as("graph", OpenMode::Read).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Conflict), "{refused}");
    drop(written);
    let [a, b] = [&mut two, &mut three].map(|client| client.open_named_as("graph", OpenMode::Read).unwrap());
    for (client, named) in [(&mut two, a), (&mut three, b)] {
        let (sum, stats) = with_window(client, named.vma(), options, |memory| {
            let mut bytes = vec![0; 64 * PAGE_LEN];
            memory.read(0, &mut bytes);
            bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()
        })
        .unwrap();
        assert_eq!(sum, PAGE * (1..=PAGES).sum::<u64>());
        assert_eq!((stats.write_backs, stats.dpu.unwrap().writes), (0, 0), "it was only read");
    }
}

/// The link is lost while a READ is in flight, and then the READ completes, on either path. Its buffer is
/// reused, and no caller of the client sees the completion. A completion of the caller's own operation is
/// kept for the caller.
#[test]
fn what_ends_behind_a_lost_link_is_nobodys() {
    for config in [None, Some(dpu())] {
        let (_rack, mut client, vma) = numbered();
        let own = client.submit(Op::Read { addr: vma.base, buf: vec![0; 8] }).unwrap();
        let options = options(config);
        let (window, laid, cache) = match opened(&vma, &options) {
            Ok(opened) => opened,
            Err(refused) => return eprintln!("skipped: {refused}"),
        };
        let verbs = match config {
            Some(config) => Verbs::Through(Box::new(
                Through::open(&mut client, &laid, config, DpuSettings::default()).unwrap(),
            )),
            None => Verbs::Direct(&mut client),
        };
        let hints = Hints::default();
        let mut server = Server::new(verbs, (&window, &hints), laid, cache);
        server.cache.fault(Key { space: 0, page: 5 }, false, &server.laid, &mut server.actions);
        server.carry_out(Arrived::NOTHING);
        assert_eq!(server.under_way.len(), 1);
        server.link_lost(Error::Unreachable { what: "the rack".into() });
        assert!(server.under_way.is_empty());
        while let Some(ended) = server.verbs.next_completed().unwrap() {
            server.ended(ended);
        }
        assert!(server.abandoned.is_empty(), "it ended");
        let others: Vec<_> = server.others.iter().map(|other| other.ticket).collect();
        assert_eq!(others, [own]);
        assert!(matches!(server.failed, Some(Error::Unreachable { .. })));
    }
}

/// Sizes beyond any machine's, even with a product of more than 64 bits, are refused with the valid range. So
/// is an entry that exceeds one READ.
#[test]
fn a_dpu_that_is_too_large_is_refused() {
    let of = |page_len: u32, entry_pages: u32, slots: u32| {
        let table = TableConfig { slots: number(slots), entry_pages };
        check_dpu(DpuConfig { page_len: number(page_len), table, ..dpu() })
    };
    let page = 1 << 25;
    for (wrong, said) in [
        (of(page, 64, u32::MAX), "4294967295 slots of 2147483648 bytes"),
        (of(page, 64, 1 << 31), "2147483648 slots"), // 2^62 bytes
        (of(4096, 64, 1 << 31), "fewer slots"),
        (of(page, 64, u32::MAX - 7), "fewer slots"),
        (of(page + 4096, 64, 1), "entries of 2147745792 bytes"),
        (of(u32::MAX - 4095, 64, u32::MAX), "at most 2 GiB"),
    ] {
        let error = wrong.unwrap_err();
        let text = format!("{error} {}", error.remedy());
        assert!(text.contains(said), "{text}");
    }
    of(4096, 64, 1).unwrap();
}

/// A store to a read-only window fails, whether its page is local, inactive, in flight or far. The window
/// reports the store, serves all other pages, and writes nothing back.
#[test]
fn a_store_to_a_window_for_reading_only_is_refused() {
    let (_rack, mut client, vma) = numbered();
    let options = WindowOptions { read_only: true, inactive_eighths: 7, ..options(None) };
    let (window, laid, cache) = match opened(&vma, &options) {
        Ok(opened) => opened,
        Err(refused) => return eprintln!("skipped: {refused}"),
    };
    let hints = Hints::default();
    let mut server = Server::new(Verbs::Direct(&mut client), (&window, &hints), laid, cache);
    let touch = |server: &mut Server<'_>, page: u64, write: bool| {
        server.touched(Page::of(at(&vma, page)), write);
    };
    let serve = |server: &mut Server<'_>| while matches!(server.turn(), Next::Look) {};
    for page in 0..FRAMES_MIN {
        touch(&mut server, page, false);
        serve(&mut server);
    }
    let (here, far, coming) = (FRAMES_MIN - 1, 40, 50);
    touch(&mut server, coming, false);
    for page in [0, 1, 2, here, far, coming] {
        touch(&mut server, page, true);
        touch(&mut server, page, true);
    }
    serve(&mut server);
    for page in 20..36 {
        touch(&mut server, page, false);
        serve(&mut server);
    }
    assert!(
        matches!(server.lost, Some(Error::ReadOnly { addr }) if addr == at(&vma, 0)),
        "{:?}",
        server.lost
    );
    assert!(matches!(server.flush(), Err(Error::ReadOnly { .. })));
    assert_eq!(server.stats().write_backs, 0);
    let mut bytes = Vec::new();
    server.window.read_run(Page::of(at(&vma, 35)), 1, &mut bytes);
    assert_eq!(bytes, [35; PAGE_LEN]);
}
