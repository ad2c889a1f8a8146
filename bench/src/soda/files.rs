//! The rows of `soda.file`: the rates at which a memory node loads an object by file, and saves it, compared
//! with the disk's rates in the same run (SODA IV-A).

use super::Sizes;
use super::alone::{put_out, read_cold};
use super::far::node_memory;
use super::subject::{FOLDER, named};
use crate::samples::median;
use crate::{NodeKind, Racks};
use crate::{Plan, Row, Sheet, to_f64};
use farmem::api::FileStage;
use farmem::{Client, Error, OpenNamed, VirtAddr};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The file in the node's directory, and the object.
const NAME: &str = "object";
/// The polling interval of a node's progress: a small part of a load in a full run.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes of a read that checks loaded data.
const PART: usize = 1 << 20;

/// Measures the rows that `plan` selects.
pub(super) fn rows<R: Racks>(
    plan: &Plan,
    sizes: &Sizes,
    racks: &mut R,
    sheet: &mut Sheet<'_>,
) -> Result<(), R::Failure> {
    if !plan.wants("soda.file.") {
        return Ok(());
    }
    sheet.begins("an object by file");
    let folder = tempfile::Builder::new().prefix("farmem-soda-").tempdir_in(FOLDER).map_err(named)?;
    let path = folder.path().join(NAME);
    let bytes: Vec<u8> = (0..sizes.file / 8).flat_map(|word| word_at(word, 0).to_le_bytes()).collect();
    write(&path, &bytes).map_err(named)?;
    let directory = format!("files = '{}'\n", folder.path().display());
    let rack = racks.start_with(1, NodeKind::Offload, node_memory(sizes.file), &directory)?;
    let mut client = rack.as_ref().client("soda")?;
    let [mut load, mut save, mut read, mut written] = [const { Vec::new() }; 4];
    for round in 0..sizes.rounds as u64 {
        put_out(&path).map_err(named)?;
        let (of_disk, time) = read_cold(&path).map_err(named)?;
        read.push(rate(of_disk, time));
        put_out(&path).map_err(named)?;
        let mut object = opened(&mut client, sizes.file, &mut load)?;
        sheet.add_wrong(wrong_words(&mut client, &object, sizes.file, round)?);
        client.write_file(&mut object)?;
        for word in (0..sizes.file / 8).step_by(PART / 8) {
            let at = VirtAddr(object.vma().base.0 + 8 * word);
            client.write(at, &word_at(word, round + 1).to_le_bytes())?;
        }
        let begin = Instant::now();
        client.save_file(&mut object)?;
        wait(&mut client, &object)?;
        save.push(rate(sizes.file, begin.elapsed()));
        object.close()?;
        client.unlink_named(NAME)?;
        let begin = Instant::now();
        write(&folder.path().join("beside"), &bytes).map_err(named)?;
        written.push(rate(sizes.file, begin.elapsed()));
    }
    let why =
        "beside the disk: the same bytes read where nothing of the file is in memory, and written and synced";
    for (id, mut rates, mut disk) in [("soda.file.load", load, read), ("soda.file.save", save, written)] {
        let row = Row::figure(id, "MB/s", median(&mut rates), rates.len() as u64);
        sheet.add([Row { why: Some(why.into()), ..row.beside(Some(median(&mut disk))) }]);
    }
    Ok(())
}

/// Opens the object, waits until its node has loaded it, and records the rate.
fn opened(client: &mut Client, bytes: u64, rates: &mut Vec<f64>) -> Result<OpenNamed, Error> {
    let node = client.node_named("node1")?;
    let begin = Instant::now();
    let object = client.open_file(NAME, node, NAME)?;
    wait(client, &object)?;
    rates.push(rate(bytes, begin.elapsed()));
    Ok(object)
}

/// Waits until the node is done with the object.
fn wait(client: &mut Client, object: &OpenNamed) -> Result<(), Error> {
    loop {
        match client.file_of(object)?.stage {
            FileStage::Loading | FileStage::Saving => std::thread::sleep(LOOK),
            // This call returns the reason of a failure.
            _ => return client.wait_for_file(object, &mut |_| true).map(drop),
        }
    }
}

/// Counts the words of the object that differ from the file. The first word of each part was rewritten in
/// each round.
fn wrong_words(client: &mut Client, object: &OpenNamed, bytes: u64, round: u64) -> Result<u64, Error> {
    let mut wrong = 0;
    let mut part = vec![0; PART.min(usize::try_from(bytes).expect("a file of this machine"))];
    for at in (0..bytes).step_by(PART) {
        client.read(VirtAddr(object.vma().base.0 + at), &mut part)?;
        let words = part.chunks_exact(8).zip(at / 8..);
        let of = |word: u64| word_at(word, if 8 * word == at { round } else { 0 });
        wrong += words.filter(|(has, word)| **has != of(*word).to_le_bytes()).count() as u64;
    }
    Ok(wrong)
}

const fn word_at(word: u64, round: u64) -> u64 {
    (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round
}

fn rate(bytes: u64, time: Duration) -> f64 {
    to_f64(bytes) / 1e6 / time.as_secs_f64()
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
