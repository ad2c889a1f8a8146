//! Several objects in one buffer of chunks. Tests of windows are skipped if this process may not serve
//! faults.

use super::super::{AccessPath, WindowOptions, WindowStats, with_objects};
use super::*;
use farmem_client::api::ErrorCode;
use farmem_client::{Client, Rack};
use farmem_dpu::{Caching, Config as DpuConfig, TableConfig};
use farmem_machine::Rng;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::thread;

const PAGE: u64 = PAGE_LEN as u64;

fn rack() -> (Rack, Client) {
    let rack = Rack::embedded_with(2, 16 << 20).unwrap();
    let client = rack.client("objects").unwrap();
    (rack, client)
}

/// Returns the window's counters, and the program's result. Returns `None`, with the reason on stderr, if
/// this process may not serve faults.
fn ran<R: Send>(
    client: &mut Client,
    objects: &[Object],
    options: WindowOptions,
    program: impl FnOnce(Objects<'_>) -> R + Send,
) -> Option<(R, WindowStats)> {
    match with_objects(client, objects, options, program) {
        Err(error @ Error::Open(OpenError::NotPermitted { .. })) => {
            eprintln!("skipped: {error}");
            None
        }
        ran => Some(ran.unwrap()),
    }
}

/// A program loads and stores at random addresses of four objects, of a page to 1 MiB, with a quarter of them
/// local. Each load returns the last store, the limit holds for all together, and far memory has every byte
/// afterwards.
///
/// The test runs with chunks of one, four and sixteen pages. Paths are direct to two memory nodes, and
/// through a DPU with pages larger than the smallest object.
#[test]
fn loads_find_the_last_store_in_all_objects() {
    const STEPS: u32 = 6000;
    let number = |number| NonZeroU32::new(number).unwrap();
    let table = TableConfig { slots: number(4), entry_pages: 4 };
    let dpu = DpuConfig { page_len: number(16 << 10), table, ..DpuConfig::new(Caching::Dynamic) };
    let chunks = [4 << 10, 16 << 10, 64 << 10];
    for (chunk, way) in
        chunks.into_iter().flat_map(|chunk| [(chunk, AccessPath::Direct), (chunk, AccessPath::Own(dpu))])
    {
        let (_rack, mut client) = rack();
        let sizes = [PAGE, 1 << 20, 8 * PAGE, 256 << 10];
        let vmas = sizes.map(|size| client.allocate(size).unwrap());
        let mut models = sizes.map(|size| vec![0_u8; small(size)]);
        let limit = (16 * u64::from(chunk)).max(400 << 10);
        let options = WindowOptions { chunk, way, ..WindowOptions::buffer(limit) };
        let objects = vmas.each_ref().map(Object::new);
        let program = |objects: Objects<'_>| {
            let mut rng = Rng::from_number(u64::from(chunk));
            let (mut buf, mut here_max) = ([0; 3000], 0);
            for step in 0..STEPS {
                let object = rng.below(4) as usize;
                let (memory, model) = (objects.get(object), &mut models[object]);
                let len = 1 + rng.below(3000) as usize;
                let at = rng.below(u32::try_from(model.len() - len + 1).unwrap()) as usize;
                if rng.chance(1, 3) {
                    let fill = u8::try_from(step % 251).unwrap();
                    memory.write(at, &vec![fill; len]);
                    model[at..at + len].fill(fill);
                } else {
                    memory.read(at, &mut buf[..len]);
                    assert_eq!(buf[..len], model[at..at + len], "step {step}: object {object} from {at} on");
                }
                here_max = here_max.max(memory.bytes_here());
            }
            here_max
        };
        let Some((here_max, stats)) = ran(&mut client, &objects, options, program) else { return };
        assert!(here_max <= limit && stats.bytes_here_max <= limit, "{here_max} bytes of {limit}: {stats:?}");
        assert!(stats.evictions > 100 && stats.write_backs > 100, "{stats:?}");
        assert!(stats.waited == 0 || way != AccessPath::Direct, "{stats:?}");
        let by_dpu = stats.dpu.map(|dpu| (dpu.asked, dpu.written, dpu.hits > 0));
        let moved = (stats.bytes_fetched, stats.bytes_written_back, true);
        assert!(by_dpu.is_none_or(|by_dpu| by_dpu == moved), "{stats:?}");
        assert_eq!(by_dpu.is_some(), way != AccessPath::Direct);
        for (vma, model) in vmas.iter().zip(&models) {
            let mut bytes = vec![0; model.len()];
            client.read(vma.base, &mut bytes).unwrap();
            assert!(bytes == *model, "{} bytes at {} are as they were written", vma.size, vma.base);
        }
    }
}

/// Eight threads access all sixteen pages of each of eight chunks at the same time. Each chunk is fetched
/// once, and no byte twice.
#[test]
fn faults_of_many_threads_on_one_chunk_are_merged() {
    const THREADS: usize = 8;
    let (_rack, mut client) = rack();
    let vma = client.allocate(8 * u64::from(CHUNK)).unwrap();
    let options = WindowOptions::buffer(16 * u64::from(CHUNK));
    let program = |objects: Objects<'_>| {
        let (memory, barrier) = (objects.get(0), Barrier::new(THREADS));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let barrier = &barrier;
                scope.spawn(move || {
                    for chunk in 0..8 {
                        barrier.wait();
                        for page in 0..16 {
                            let page = (page + 2 * thread) % 16;
                            let mut byte = [1];
                            memory.read(chunk * CHUNK as usize + page * PAGE_LEN, &mut byte);
                            assert_eq!(byte, [0]);
                        }
                    }
                });
            }
        });
    };
    let Some(((), stats)) = ran(&mut client, &[Object::new(&vma)], options, program) else { return };
    assert_eq!((stats.fetches, stats.missing, stats.bytes_fetched), (8, 8, vma.size), "{stats:?}");
}

/// The buffer holds the used chunks of all objects. One object may have all frames while the others are not
/// used, and loses them chunk by chunk when they are.
#[test]
fn room_goes_to_the_object_that_is_used() {
    let (_rack, mut client) = rack();
    let chunk = u64::from(CHUNK);
    let vmas = [(); 2].map(|()| client.allocate(32 * chunk).unwrap());
    let objects = vmas.each_ref().map(Object::new);
    let options = WindowOptions::buffer(32 * chunk);
    let scan = |memory: Memory<'_>, chunks: u64| {
        (0..chunks).for_each(|n| memory.read(small(n * chunk), &mut [0]));
    };
    let both = |objects: Objects<'_>| {
        (0..3).for_each(|_| scan(objects.get(0), 31));
        scan(objects.get(1), 31);
        scan(objects.get(1), 31);
    };
    let Some(((), stats)) = ran(&mut client, &objects, options, both) else { return };
    assert_eq!((stats.fetches, stats.bytes_fetched), (62, 62 * chunk), "{stats:?}");
}

/// Named memory is cached in the mode in which it is open. Beside an object that is written, a store to a
/// read-only one is refused; a shared one is not cached.
#[test]
fn named_objects_are_used_as_they_are_open() {
    let (rack, mut client) = rack();
    drop(client.create_named_as("kept", 1 << 20, OpenMode::Write).unwrap());
    drop(client.create_named_as("changed", 1 << 20, OpenMode::Write).unwrap());
    let kept = client.open_named_as("kept", OpenMode::Read).unwrap();
    let changed = client.open_named_as("changed", OpenMode::Write).unwrap();
    let objects = [&kept, &changed].map(|named| Object::named(named).unwrap());
    let mut other = rack.client("objects").unwrap();
    let refused = other.open_named_as("changed", OpenMode::Read).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Conflict), "{refused}");
    let program = |objects: Objects<'_>| {
        let mut bytes = [0; 8];
        objects.get(1).write(5 * PAGE_LEN, b"far away");
        objects.get(0).read(5 * PAGE_LEN, &mut bytes);
        bytes
    };
    let options = WindowOptions::buffer(16 * u64::from(CHUNK));
    let Some((bytes, stats)) = ran(&mut client, &objects, options, program) else { return };
    assert_eq!((bytes, stats.bytes_written_back), ([0; 8], CHUNK.into()));
    drop((kept, changed));
    let shared = client.open_named_as("kept", OpenMode::Shared).unwrap();
    let refused = Object::named(&shared).unwrap_err();
    assert!(matches!(refused, Error::Open(_)), "{refused}");
}

/// A program advises what it will need: no byte is fetched twice, and nearly no fault waits. Memory that the
/// program does not need any more is evicted, and a later read returns the same bytes. Advice outside the
/// objects is refused.
#[test]
fn advice_changes_what_is_here_and_nothing_else() {
    let (_rack, mut client) = rack();
    let chunk = u64::from(CHUNK);
    let vma = client.allocate(16 * chunk).unwrap();
    let options = WindowOptions::buffer(32 * chunk);
    let program = |objects: Objects<'_>| {
        let memory = objects.get(0);
        objects.advise(0, 1..8 * chunk - 1, Advice::WillNeed).unwrap();
        (0..8).for_each(|n| memory.write(small(n * chunk), &[7]));
        objects.advise(0, 0..16 * chunk, Advice::DontNeed).unwrap();
        objects.advise(0, 0..16 * chunk, Advice::Random).unwrap();
        let mut bytes = [0; 8];
        (0..8).zip(&mut bytes).for_each(|(n, byte)| {
            let mut read = [0];
            memory.read(small(n * chunk), &mut read);
            *byte = read[0];
        });
        let wrong = [(0, 0..16 * chunk + 1), (1, 0..1)];
        let refused = wrong.map(|(object, bytes)| objects.advise(object, bytes, Advice::Cold).is_err());
        (bytes, refused)
    };
    let Some(((bytes, refused), stats)) = ran(&mut client, &[Object::new(&vma)], options, program) else {
        return;
    };
    assert_eq!((bytes, refused), ([7; 8], [true; 2]));
    // A fault may come before the advice is received.
    assert!((8 * chunk..=16 * chunk).contains(&stats.bytes_fetched), "{stats:?}");
    assert!(stats.bytes_written_back >= 8 * chunk && stats.ahead.wanted >= 7, "{stats:?}");
    assert_eq!((stats.waited, stats.unadvised), (0, 0), "{stats:?}");
}

/// Invalid chunks, no objects, and options that several objects exclude are refused with the valid ones.
#[test]
fn what_cannot_be_is_refused() {
    let (_rack, mut client) = rack();
    let vmas = [(); 2].map(|()| client.allocate(1 << 20).unwrap());
    let both = vmas.each_ref().map(Object::new);
    let usual = WindowOptions::buffer(1 << 20);
    for (objects, options, said) in [
        (&both[..], WindowOptions { chunk: 5000, ..usual }, "power of two"),
        (&both[..], WindowOptions { chunk: 2048, ..usual }, "power of two"),
        (&both[..], WindowOptions { chunk: 512 << 10, ..usual }, "power of two"),
        (&both[..0], usual, "1 to 4096 objects"),
        (&both[..], WindowOptions { local_limit: (1 << 20) - 4096, ..usual }, "1024 KiB at least"),
        (&both[..], WindowOptions { place: super::super::Addressing::Same, ..usual }, "placed anywhere"),
    ] {
        let error = with_objects(&mut client, objects, options, |_| ()).unwrap_err();
        let text = format!("{error} {}", error.remedy());
        assert!(text.contains(said), "{text}");
    }
}

/// Two objects are read through a DPU that has parts of both in static memory. These parts, from the last
/// page of the first to the first page of the second, are not requested from a node again. A request beyond
/// the DPU's memory is refused, and so is a part without bytes of the objects.
#[test]
fn a_dpu_keeps_parts_of_several_objects() {
    let (_rack, mut client) = rack();
    let vmas = [1_u8, 2].map(|fill| {
        let vma = client.allocate(1 << 20).unwrap();
        client.write(vma.base, &vec![fill; 1 << 20]).unwrap();
        vma
    });
    let objects = vmas.each_ref().map(Object::new);
    let way = AccessPath::Own(DpuConfig { fixed_pages_max: 2, ..DpuConfig::new(Caching::Off) });
    let fixed = Some(((1 << 20) - 1, 2));
    let options = WindowOptions { way, fixed, read_only: true, ..WindowOptions::buffer(1 << 20) };
    let program = |objects: Objects<'_>| {
        [(0, (1 << 20) - 1), (1, 0), (1, (1 << 20) - 1)].map(|(object, at)| {
            let mut byte = [0];
            objects.get(object).read(at, &mut byte);
            byte[0]
        })
    };
    let Some((found, stats)) = ran(&mut client, &objects, options, program) else { return };
    assert_eq!(found, [1, 2, 2]);
    let dpu = stats.dpu.unwrap();
    assert_eq!((dpu.reads, dpu.fixed, dpu.background, dpu.on_demand), (3, 2, 2 << 16, 1 << 16), "{stats:?}");
    for (fixed, said) in [((0, (1 << 17) + 1), "room for 2"), ((2 << 20, 1), "lie in the 2097152 bytes")] {
        let options = WindowOptions { fixed: Some(fixed), ..options };
        let error = with_objects(&mut client, &objects, options, |_| ()).unwrap_err();
        let text = format!("{error} {}", error.remedy());
        assert!(text.contains(said), "{text}");
    }
}

/// Objects are one after the other, each from the start of a chunk, and no run of chunks crosses the end of
/// an object. Joined, they are one memory if none ends within a chunk.
#[test]
fn objects_lie_one_behind_the_other() {
    let vma = |base, size| Vma { base: VirtAddr(base), size, node: farmem_client::NodeId(1) };
    let objects = [vma(0x10_0000, 4096), vma(0x20_0000, 0x20_000), vma(0x40_0000, 0x10_000)];
    let objects = objects.each_ref().map(Object::new);
    let laid = Laid::of(&objects, CHUNK, false).unwrap();
    let at: Vec<u64> = laid.extents.iter().map(|extent| extent.at).collect();
    assert_eq!((at, laid.len(), laid.chunks()), (vec![0, 0x10_000, 0x30_000], 0x40_000, 4));
    assert_eq!(laid.far(0, 1), (VirtAddr(0x10_0000), 4096));
    assert_eq!(laid.far(1, 2), (VirtAddr(0x20_0000), 0x20_000));
    assert_eq!(laid.extent_of(4096), None, "behind the first object");
    assert_eq!(laid.extent_of(0x40_000), None, "behind the last one");
    let key = |page| Key { space: 0, page };
    let far: Vec<Source> = (0..5).map(|page| laid.source(key(page))).collect();
    assert_eq!(far, [Source::Far(0), Source::Far(2), Source::Far(3), Source::Far(5), Source::Elsewhere]);
    assert_eq!((laid.around(key(2)), laid.around(key(3))), (1..3, 3..4));
    let parts: Vec<_> = laid.parts(0, 4).collect();
    assert_eq!((parts, laid.parts(2, 2).collect()), (vec![(0, 1), (1, 2), (3, 1)], vec![(2, 1), (3, 1)]));
}
