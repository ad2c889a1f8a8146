//! The journal of a DPU: what processes have open, in a file beside its socket (PROTOCOL 17.22).
//!
//! Key type: [`Journal`]. A restarted DPU knows no process of its predecessor. Such a process goes straight to the
//! memory nodes, so it may still write what it had open. The journal names the process, and the DPU keeps its
//! allocations from others until its host has left the rack. The file lives as long as the machine is up, as the
//! processes do, so nothing is written through to a disk.

use farmem_client::Error;
use farmem_client::api::VmaInfo;
use farmem_dpu::Asker;
use farmem_link::private_file;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Number and generation of a host.
pub(super) type Life = (u16, u16);

/// Number of lines up to which a file is not rewritten.
const LINES_MIN: usize = 4096;
/// A longer file is rewritten if it has this many times the necessary lines.
const REWRITE_RATIO: usize = 4;
/// Openings that a journal has, of earlier and of present processes.
pub(super) const OPENINGS_MAX: usize = 1 << 16;
/// Bytes of a line, at most: two hosts, an address and a length with all digits.
const LINE_LEN_MAX: usize = 256;
/// Lines of a file, at most: it is rewritten when it has more.
const LINES_MAX: usize = REWRITE_RATIO * (1 + OPENINGS_MAX) + 1;

/// An open allocation, with the process and its DPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct Holding {
    /// The host of the process.
    pub(super) process: Life,
    /// The DPU's host, which executes the writes of the process.
    pub(super) dpu: Life,
    /// The first byte of the allocation.
    base: u64,
    /// Its length in bytes.
    size: u64,
    /// True if the process writes.
    write: bool,
}

impl Holding {
    /// Returns true if a process must not open an allocation as long as this one has it open: one process
    /// writes, or any number read (PROTOCOL 17.3).
    pub(super) fn excludes(&self, vma: &VmaInfo, write: bool) -> bool {
        let overlaps =
            self.base < vma.base.saturating_add(vma.size) && vma.base < self.base.saturating_add(self.size);
        overlaps && (write || self.write)
    }
}

/// A line of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first line: the mark of the rack. Hosts of another rack have other numbers.
    Rack(String),
    /// A process opened an allocation.
    Open(Holding),
    /// A process has closed an allocation.
    Closed(Holding),
}

/// The journal, open for appending.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    mark: String,
    lines: usize,
    /// Openings by processes of earlier DPUs.
    former: BTreeSet<Holding>,
    /// Hosts of earlier DPUs that have left the rack.
    fenced: BTreeSet<Life>,
    /// Openings by processes of this DPU, one for each region.
    present: Vec<(Asker, u32, Holding)>,
}

impl Journal {
    /// Opens the journal of the DPU whose socket is at `socket`, for the rack with this mark.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be read or written, others may, a line is no journal's, or another rack's
    /// processes have something open.
    pub(super) fn open(socket: &Path, mark: &str) -> Result<Self, Error> {
        let path = PathBuf::from(format!("{}.journal", socket.display()));
        let failed = |source| Error::System { what: format!("cannot use {}", path.display()), source };
        let file = private_file(&path)?;
        let former = read(&file, mark).map_err(|refused| refused.at(&path))?;
        let (path_of_file, mark, fenced) = (path.clone(), mark.into(), BTreeSet::new());
        let mut journal =
            Self { path: path_of_file, file, mark, lines: 0, former, fenced, present: Vec::new() };
        journal.rewrite().map_err(failed)?;
        Ok(journal)
    }

    /// Returns the holdings of earlier DPUs' processes that exclude a request of `process`. A holding of `process`
    /// itself excludes the request until the DPU that executed its writes has left the rack.
    pub(super) fn excluding(&self, vma: &VmaInfo, write: bool, process: Life) -> Vec<Holding> {
        let own = |former: &Holding| former.process == process && self.fenced.contains(&former.dpu);
        let excludes = |former: &&Holding| former.excludes(vma, write) && !own(former);
        self.former.iter().filter(excludes).copied().collect()
    }

    /// Returns the hosts of the processes of earlier DPUs, and of these DPUs, with openings that are not
    /// released.
    pub(super) fn former_lives(&self) -> BTreeSet<(Life, Life)> {
        self.former.iter().map(|former| (former.process, former.dpu)).collect()
    }

    /// Records that the DPUs of these holdings have left the rack, and the hosts of their processes except `process`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn release(&mut self, released: &[Holding], process: Life) -> io::Result<()> {
        self.fenced.extend(released.iter().map(|holding| holding.dpu));
        for holding in released.iter().filter(|holding| holding.process != process) {
            self.release_one(holding)?;
        }
        Ok(())
    }

    /// Records that hosts of processes of earlier DPUs, and of these DPUs, have left the rack. Such a process can
    /// write nothing of what it had open, and no later request names it.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn prune(&mut self, gone: &BTreeSet<(Life, Life)>) -> io::Result<()> {
        let is_gone = |holding: &&Holding| gone.contains(&(holding.process, holding.dpu));
        let released: Vec<Holding> = self.former.iter().filter(is_gone).copied().collect();
        released.iter().try_for_each(|holding| self.release_one(holding))?;
        let Self { former, fenced, .. } = self;
        fenced.retain(|dpu| former.iter().any(|holding| holding.dpu == *dpu));
        Ok(())
    }

    fn release_one(&mut self, holding: &Holding) -> io::Result<()> {
        if self.former.contains(holding) {
            self.append(&Line::Closed(*holding))?;
            self.former.remove(holding);
        }
        Ok(())
    }

    /// Returns true if the journal has no room for another opening.
    pub(super) fn is_full(&self) -> bool {
        self.former.len() + self.present.len() >= OPENINGS_MAX
    }

    /// Records that a process opens an allocation, before the DPU grants the request.
    ///
    /// # Errors
    /// The system's error. The process must not use the allocation then.
    pub(super) fn opened(
        &mut self,
        (asker, object): (Asker, u32),
        (process, dpu): (Life, Life),
        vma: &VmaInfo,
        write: bool,
    ) -> io::Result<()> {
        assert!(!self.is_full(), "the door asks for room first");
        let holding = Holding { process, dpu, base: vma.base, size: vma.size, write };
        self.append(&Line::Open(holding))?;
        self.present.push((asker, object, holding));
        Ok(())
    }

    /// Returns true if a process of this DPU has an allocation open for writing.
    pub(super) fn writes(&self, asker: Asker) -> bool {
        self.present.iter().any(|(by, _, holding)| *by == asker && holding.write)
    }

    /// Records that a process has closed a region of an object.
    pub(super) fn closed(&mut self, asker: Asker, object: u32) {
        if let Some(at) = self.present.iter().position(|row| (row.0, row.1) == (asker, object)) {
            let (.., holding) = self.present.swap_remove(at);
            self.record_closed(&holding);
        }
    }

    /// Records that a process has closed all its allocations.
    pub(super) fn gone(&mut self, asker: Asker) {
        let rows: Vec<_> = self.present.extract_if(.., |row| row.0 == asker).collect();
        rows.iter().for_each(|(.., holding)| self.record_closed(holding));
    }

    /// Records a closed allocation. If the write fails, other processes wait longer for the allocation, without harm.
    fn record_closed(&mut self, holding: &Holding) {
        let _kept_longer = self.append(&Line::Closed(*holding));
    }

    fn append(&mut self, line: &Line) -> io::Result<()> {
        let needed = 1 + self.former.len() + self.present.len();
        if self.lines >= LINES_MIN && self.lines > REWRITE_RATIO * needed {
            self.rewrite()?;
        }
        match self.file.write_all(&text_of(line)?) {
            Ok(()) => self.lines += 1,
            Err(error) => {
                // A part of the line may be in the file and would hide later lines.
                self.lines = usize::MAX;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Replaces the file by one that has only open allocations.
    fn rewrite(&mut self) -> io::Result<()> {
        let present = self.present.iter().map(|(.., holding)| holding);
        let all = self.former.iter().chain(present).map(|holding| Line::Open(*holding));
        let lines: Vec<Line> = [Line::Rack(self.mark.clone())].into_iter().chain(all).collect();
        let next = self.path.with_extension("journal.new");
        let mut file = private_file(&next).map_err(io::Error::other)?;
        file.set_len(0)?;
        for line in &lines {
            file.write_all(&text_of(line)?)?;
        }
        fs::rename(&next, &self.path)?;
        file.seek(SeekFrom::End(0))?;
        (self.file, self.lines) = (file, lines.len());
        Ok(())
    }
}

impl Drop for Journal {
    /// Removes a journal without open allocations.
    fn drop(&mut self) {
        if self.former.is_empty() && self.present.is_empty() {
            let _kept = fs::remove_file(&self.path);
        }
    }
}

/// The reason that a DPU does not use a journal.
#[derive(Debug)]
enum Refused {
    /// The system's error.
    System(io::Error),
    /// The number of a line that no DPU writes.
    Line(usize),
    /// Processes of another rack have something open.
    OtherRack,
}

impl Refused {
    fn at(self, path: &Path) -> Error {
        let file = path.display();
        let what = match self {
            Self::System(source) => return Error::System { what: format!("cannot use {file}"), source },
            Self::Line(line) => format!(
                "line {line} of {file} is not a journal's; remove the file once no program of this machine uses the DPU"
            ),
            Self::OtherRack => format!(
                "{file} has open allocations of another rack, whose DPU used this socket; give the DPU of each rack \
                 a path of its own (`socket` in [dpu] of rack.toml), or remove the file once no program of this \
                 machine uses the other rack"
            ),
        };
        Error::System { what, source: io::ErrorKind::InvalidData.into() }
    }
}

/// Returns what is open by the end of a journal. A line that was cut off when its DPU died was not answered to a
/// process, and ends the journal.
fn read(file: impl io::Read, mark: &str) -> Result<BTreeSet<Holding>, Refused> {
    let mut file = BufReader::new(file);
    let mut open: BTreeMap<Holding, usize> = BTreeMap::new();
    let mut is_own = true;
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        (&mut file).take(LINE_LEN_MAX as u64).read_until(b'\n', &mut text).map_err(Refused::System)?;
        let is_cut = text.len() < LINE_LEN_MAX && text.last() != Some(&b'\n');
        match serde_json::from_slice(&text) {
            Err(_) if is_cut => break,
            _ if number > LINES_MAX => return Err(Refused::Line(number)),
            Ok(Line::Rack(rack)) if number == 1 => is_own = rack == mark,
            Ok(Line::Open(holding)) if number > 1 => *open.entry(holding).or_default() += 1,
            Ok(Line::Closed(holding)) if number > 1 => {
                let times = open.get_mut(&holding).ok_or(Refused::Line(number))?;
                *times -= 1;
                if *times == 0 {
                    open.remove(&holding);
                }
            }
            _ => return Err(Refused::Line(number)),
        }
    }
    let open: BTreeSet<Holding> = open.into_keys().collect();
    if !is_own && !open.is_empty() {
        return Err(Refused::OtherRack);
    }
    Ok(open)
}

fn text_of(line: &Line) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "0123";
    const DPU: Life = (9, 1);
    /// The host of a process that sends a request.
    const OTHER: Life = (8, 1);

    struct Dir(PathBuf);

    impl Dir {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("farmem-test-{test}-{}", std::process::id()));
            farmem_link::private_directory(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("dpu.sock")
        }

        fn journal(&self) -> Journal {
            Journal::open(&self.socket(), MARK).unwrap()
        }

        fn file(&self) -> PathBuf {
            self.0.join("dpu.sock.journal")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn vma(base: u64) -> VmaInfo {
        VmaInfo { id: 1, base, size: 0x1000, node: 1, domain: 1 }
    }

    /// Ends a DPU as a signal does: without drops.
    fn kill(journal: Journal) {
        std::mem::forget(journal);
    }

    /// A DPU is killed. The next one knows which allocations were open, until they are released. A journal without
    /// open allocations is removed with its DPU.
    #[test]
    fn a_restarted_dpu_knows_what_was_open() {
        let dir = Dir::new("journal");
        let mut journal = dir.journal();
        let (one, two) = ((3, 1), (4, 1));
        journal.opened((Asker(1), 0), (one, DPU), &vma(0x1000), true).unwrap();
        journal.opened((Asker(1), 1), (one, DPU), &vma(0x2000), false).unwrap();
        journal.opened((Asker(1), 1), (one, DPU), &vma(0x2000), false).unwrap();
        journal.opened((Asker(2), 2), (two, DPU), &vma(0x3000), true).unwrap();
        journal.closed(Asker(1), 1);
        journal.gone(Asker(2));
        assert_eq!(journal.excluding(&vma(0x1000), true, OTHER), [], "present processes are not former ones");
        kill(journal);

        let mut journal = dir.journal();
        let written = journal.excluding(&vma(0x1000), false, OTHER);
        assert_eq!(
            written.iter().map(|former| (former.process, former.dpu)).collect::<Vec<_>>(),
            [(one, DPU)]
        );
        assert_eq!(journal.excluding(&vma(0x2000), true, OTHER).len(), 1);
        assert_eq!(journal.excluding(&vma(0x2000), false, OTHER), [], "any number may read");
        assert_eq!(journal.excluding(&vma(0x3000), true, OTHER), []);
        let part = VmaInfo { size: 0x10, ..vma(0x1ff0) };
        assert_eq!(
            journal.excluding(&part, true, OTHER),
            written,
            "another allocation with some of its bytes"
        );
        assert_eq!(journal.excluding(&vma(0x1000), true, one), written, "its DPU may write for it");
        journal.release(&written, one).unwrap();
        assert_eq!(journal.excluding(&vma(0x1000), true, one), [], "its own");
        assert_eq!(journal.excluding(&vma(0x1000), true, OTHER), written);
        journal.release(&written, OTHER).unwrap();
        assert_eq!(journal.excluding(&vma(0x1000), true, OTHER), []);
        kill(journal);

        let mut journal = dir.journal();
        assert_eq!(journal.excluding(&vma(0x1000), true, OTHER), []);
        let read = journal.excluding(&vma(0x2000), true, OTHER);
        journal.release(&read, OTHER).unwrap();
        drop(journal);
        assert!(!dir.file().exists());
    }

    /// A journal is cut off at each position, as by a full disk: its whole lines count.
    #[test]
    fn a_journal_may_end_anywhere() {
        let dir = Dir::new("journal-cut");
        let mut journal = dir.journal();
        journal.opened((Asker(1), 0), ((3, 1), DPU), &vma(0x1000), true).unwrap();
        journal.opened((Asker(2), 1), ((4, 1), DPU), &vma(0x2000), true).unwrap();
        kill(journal);
        let text = fs::read_to_string(dir.file()).unwrap();
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        assert_eq!(ends.len(), 3);
        for len in 0..=text.len() {
            let whole = ends[1..].iter().filter(|&&end| end <= len).count();
            assert_eq!(read(&text.as_bytes()[..len], MARK).unwrap().len(), whole, "{len} bytes");
        }
    }

    /// The DPU of one rack is killed while a process has something open, and the DPU of another rack starts at
    /// its socket. The other DPU is refused and changes nothing, so that the first DPU, when it starts again,
    /// still knows the process. A journal of another rack in which nothing is open is replaced.
    #[test]
    fn the_journal_of_another_rack_is_kept() {
        let dir = Dir::new("journal-rack");
        let mut journal = dir.journal();
        journal.opened((Asker(1), 0), ((3, 1), DPU), &vma(0x1000), true).unwrap();
        kill(journal);
        let text = fs::read_to_string(dir.file()).unwrap();
        let refused = Journal::open(&dir.socket(), "4567").unwrap_err().to_string();
        let parts =
            ["another rack", &dir.file().display().to_string(), "`socket` in [dpu]", "remove the file"];
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
        assert_eq!(fs::read_to_string(dir.file()).unwrap(), text);
        let mut journal = dir.journal();
        let former = journal.excluding(&vma(0x1000), true, OTHER);
        assert_eq!(former.len(), 1);
        journal.release(&former, OTHER).unwrap();
        kill(journal);
        drop(Journal::open(&dir.socket(), "4567").unwrap());
        assert!(!dir.file().exists());
    }

    /// DPUs are killed again and again, each with processes that never ask again. Openings of processes that have
    /// left the rack are dropped; those of others, and of the same process at another DPU, stay.
    #[test]
    fn openings_of_hosts_that_left_are_pruned() {
        let dir = Dir::new("journal-prune");
        for life in 1..=3 {
            let mut journal = dir.journal();
            journal.opened((Asker(1), 0), ((3, 1), (9, life)), &vma(0x1000), true).unwrap();
            journal.opened((Asker(2), 1), ((4, life), (9, life)), &vma(0x2000), true).unwrap();
            journal.opened((Asker(2), 1), ((4, life), (9, life)), &vma(0x2000), true).unwrap();
            kill(journal);
        }
        let mut journal = dir.journal();
        let lives = journal.former_lives();
        assert_eq!(lives.len(), 6, "each pair of hosts once");
        let gone = lives.into_iter().filter(|(process, dpu)| process.0 == 4 || *dpu == (9, 1)).collect();
        journal.prune(&gone).unwrap();
        let left = BTreeSet::from([((3, 1), (9, 2)), ((3, 1), (9, 3))]);
        assert_eq!(journal.former_lives(), left);
        kill(journal);
        assert_eq!(dir.journal().former_lives(), left, "also for a later DPU");
    }

    /// A journal has a bound: openings beyond it have no room, and a file with more lines than a DPU writes, or a
    /// line without an end, is refused before it takes memory.
    #[test]
    fn a_journal_has_a_bound() {
        let dir = Dir::new("journal-bound");
        let mut journal = dir.journal();
        for asker in 0..u32::try_from(OPENINGS_MAX).unwrap() {
            assert!(!journal.is_full());
            journal.opened((Asker(asker), 0), ((3, 1), DPU), &vma(u64::from(asker) << 12), true).unwrap();
        }
        assert!(journal.is_full());
        journal.gone(Asker(7));
        assert!(!journal.is_full());
        kill(journal);
        assert_eq!(dir.journal().former.len(), OPENINGS_MAX - 1);
        let first = text_of(&Line::Rack(MARK.into())).unwrap();
        let holding = Holding { process: (3, 1), dpu: DPU, base: 0, size: 0, write: true };
        let line = text_of(&Line::Open(holding)).unwrap();
        let long = [first.clone(), line.repeat(LINES_MAX)].concat();
        assert!(matches!(read(&long[..], MARK), Err(Refused::Line(line)) if line == LINES_MAX + 1));
        let endless = [first, vec![b' '; 1 << 20]].concat();
        assert!(matches!(read(&endless[..], MARK), Err(Refused::Line(2))));
    }

    /// An invalid line is refused with its number, and later lines are not ignored.
    #[test]
    fn a_foreign_line_is_refused() {
        let dir = Dir::new("journal-foreign");
        let mut journal = dir.journal();
        journal.opened((Asker(1), 0), ((3, 1), DPU), &vma(0x1000), true).unwrap();
        kill(journal);
        let text = fs::read_to_string(dir.file()).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        fs::write(dir.file(), format!("{first}\nnonsense\n{rest}")).unwrap();
        let refused = Journal::open(&dir.socket(), MARK).unwrap_err().to_string();
        assert!(refused.contains("line 2") && refused.contains("remove the file"), "{refused}");
    }

    /// A journal of many openings stays a small file.
    #[test]
    fn a_journal_is_rewritten() {
        let dir = Dir::new("journal-long");
        let mut journal = dir.journal();
        journal.opened((Asker(0), 0), ((3, 1), DPU), &vma(0x1000), true).unwrap();
        for asker in 1..=10_000 {
            journal.opened((Asker(asker), 1), ((4, 1), DPU), &vma(0x2000), true).unwrap();
            journal.gone(Asker(asker));
        }
        let lines = fs::read_to_string(dir.file()).unwrap().lines().count();
        assert!(lines <= LINES_MIN, "{lines} lines");
        kill(journal);
        assert_eq!(dir.journal().excluding(&vma(0), true, OTHER), []);
        assert_eq!(dir.journal().excluding(&vma(0x1000), true, OTHER).len(), 1);
    }
}
