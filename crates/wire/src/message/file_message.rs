//! Messages between the control plane and a memory node about the node's files (PROTOCOL 20.6).
//!
//! Each message may be lost, duplicated and delayed. The control plane retransmits its request; a task has a
//! number, under which the node executes it once.

use super::{Header, PAGE_LEN, VERSION, put_numbered, read_numbered};
use crate::reader::{Put, Reader};
use crate::{RequestId, VirtAddr, WireError};
use alloc::vec::Vec;

/// Most bytes of a file's name (PROTOCOL 20.1).
pub const FILE_NAME_MAX: usize = 512;

/// The body of a message about files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileBody<'a> {
    /// Control to node: look up the length of the file with this name.
    Lookup(&'a str),
    /// Control to node: execute this task once.
    Task(FileTask<'a>),
    /// Node to control: the state of the task with this number; 0 for a lookup.
    Report(u64, FileState),
}

/// A copy of bytes between a file and a vma.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileTask<'a> {
    /// Number of the task, not 0.
    pub task: u64,
    /// True to save the vma to the file, false to load it.
    pub saves: bool,
    /// The first byte of the vma.
    pub base: VirtAddr,
    /// Length of the file in bytes: 1 to `size`.
    pub length: u64,
    /// Size of the vma in bytes: a power of two of at least a page.
    pub size: u64,
    /// The stamp that the file must have; 0 accepts any. 0 for a save.
    pub stamp: u64,
    /// Name of the file.
    pub name: &'a str,
}

/// The state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileState {
    /// The task is running.
    Busy {
        /// Bytes copied so far.
        done: u64,
        /// Bytes in total; 0 while unknown.
        length: u64,
    },
    /// The task succeeded. For a lookup: the file exists.
    Done {
        /// Length of the file in bytes.
        length: u64,
        /// Stamp of the file.
        stamp: u64,
    },
    /// The task failed.
    Failed(FileFault),
}

/// The failure of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileFault {
    /// Cause of the failure.
    pub cause: FileCause,
    /// Number of the system's error; 0 for none.
    pub errno: u32,
    /// Offset in the file in bytes; for [`FileCause::Length`] the length of the file.
    pub at: u64,
}

/// The causes of file failures (PROTOCOL 20.8). Numbers are frozen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FileCause {
    /// The node has no directory of files.
    NoDirectory = 1,
    /// The name is invalid.
    Name = 2,
    /// The file does not exist.
    Missing = 3,
    /// The file is not a regular one, or its path has a symbolic link.
    Kind = 4,
    /// The system denies access.
    Denied = 5,
    /// The file is empty, or its length differs from the expected one.
    Length = 6,
    /// The file ended early.
    Short = 7,
    /// The file changed during the task.
    Changed = 8,
    /// The disk is full.
    Full = 9,
    /// The system reported another error.
    System = 10,
    /// The node does not hold the vma, the vma is not lost, or it was cleared.
    Memory = 11,
    /// The node forgot the task's number.
    Forgotten = 12,
}

impl FileCause {
    const ALL: [Self; 12] = [
        Self::NoDirectory,
        Self::Name,
        Self::Missing,
        Self::Kind,
        Self::Denied,
        Self::Length,
        Self::Short,
        Self::Changed,
        Self::Full,
        Self::System,
        Self::Memory,
        Self::Forgotten,
    ];

    /// Returns the cause with this number.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&cause| cause as u8 == bits)
    }
}

/// Returns true if `name` is valid for a file (PROTOCOL 20.1).
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    const PART_MAX: usize = 255;
    let part = |part: &str| (1..=PART_MAX).contains(&part.len()) && part != "." && part != "..";
    name.len() <= FILE_NAME_MAX && !name.chars().any(char::is_control) && name.split('/').all(part)
}

/// A message about files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileMessage<'a> {
    /// Number of the request; the response has the same.
    pub token: RequestId,
    /// The rest.
    pub body: FileBody<'a>,
}

/// The first kind (PROTOCOL 3.4).
const TASK: u8 = 0x62;
/// The last kind.
const REPORT: u8 = 0x63;
/// Bytes of a task before its name.
const TASK_LEN: usize = 44;
const REPORT_LEN: usize = 40;

impl<'a> FileMessage<'a> {
    /// Returns true if the payload is a message about files, of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, TASK..=REPORT, ..])
    }

    /// Reads a message. Checks every length, number and reserved field. Accepts any text as a name;
    /// [`is_file_name`] validates one.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let (kind, token, mut r) = read_numbered("file message", payload)?;
        let body = match kind {
            TASK => read_task(&mut r)?,
            REPORT => FileBody::Report(r.u64()?, read_state(&mut r)?),
            _ => return Err(WireError::Unknown { what: "message.kind", value: kind.into() }),
        };
        r.end()?;
        Ok(Self { token: RequestId(token), body })
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self.body {
            FileBody::Lookup(name) => {
                put_numbered(out, TASK, self.token.0);
                put_task(out, 1, [0; 5], name);
            }
            FileBody::Task(FileTask { task, saves, base, length, size, stamp, name }) => {
                put_numbered(out, TASK, self.token.0);
                put_task(out, if saves { 3 } else { 2 }, [task, base.0, length, size, stamp], name);
            }
            FileBody::Report(task, state) => {
                put_numbered(out, REPORT, self.token.0);
                out.put_u64(task);
                put_state(out, state);
            }
        }
    }

    /// Returns the number of bytes that [`FileMessage::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        Header::LEN
            + match self.body {
                FileBody::Lookup(name) | FileBody::Task(FileTask { name, .. }) => TASK_LEN + name.len(),
                FileBody::Report(..) => REPORT_LEN,
            }
    }

    /// Returns false: a message is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

fn put_task(out: &mut Vec<u8>, what: u8, [task, base, length, size, stamp]: [u64; 5], name: &str) {
    let bytes = u16::try_from(name.len()).expect("a name has at most 512 bytes");
    out.put_u64(task);
    out.extend_from_slice(&[what, 0]);
    out.put_u16(bytes);
    [base, length, size, stamp].into_iter().for_each(|number| out.put_u64(number));
    out.extend_from_slice(name.as_bytes());
}

fn read_task<'a>(r: &mut Reader<'a>) -> Result<FileBody<'a>, WireError> {
    let (task, what) = (r.u64()?, r.u8()?);
    r.zero::<1>("file task.reserved")?;
    let bytes = usize::from(r.u16()?);
    let (base, length, size, stamp) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    if bytes > FILE_NAME_MAX {
        return Err(WireError::Long { what: "file task.name", most: FILE_NAME_MAX, have: bytes });
    }
    let name = r.take(bytes)?;
    let value = |what, value| WireError::Unknown { what, value };
    let name = core::str::from_utf8(name).map_err(|e| value("file task.name", e.valid_up_to() as u64))?;
    let saves = match what {
        1 if [task, base, length, size, stamp] == [0; 5] => return Ok(FileBody::Lookup(name)),
        1 => return Err(WireError::Reserved { what: "file task of a look" }),
        2 => false,
        3 => true,
        _ => return Err(value("file task.what", what.into())),
    };
    if task == 0 {
        return Err(value("file task.task", task));
    }
    if !size.is_power_of_two() || size < PAGE_LEN as u64 || base.checked_add(size - 1).is_none() {
        return Err(value("file task.size", size));
    }
    if base == 0 || !base.is_multiple_of(size) {
        return Err(value("file task.base", base));
    }
    if length == 0 || length > size {
        return Err(value("file task.length", length));
    }
    if saves && stamp != 0 {
        return Err(value("file task.stamp", stamp));
    }
    Ok(FileBody::Task(FileTask { task, saves, base: VirtAddr(base), length, size, stamp, name }))
}

fn put_state(out: &mut Vec<u8>, state: FileState) {
    let (bits, fault, at, length, stamp) = match state {
        FileState::Busy { done, length } => (1, None, done, length, 0),
        FileState::Done { length, stamp } => (2, None, 0, length, stamp),
        FileState::Failed(fault) => (3, Some(fault), fault.at, 0, 0),
    };
    out.extend_from_slice(&[bits, fault.map_or(0, |fault| fault.cause as u8), 0, 0]);
    out.put_u32(fault.map_or(0, |fault| fault.errno));
    [at, length, stamp].into_iter().for_each(|number| out.put_u64(number));
}

fn read_state(r: &mut Reader<'_>) -> Result<FileState, WireError> {
    let (state, cause) = (r.u8()?, r.u8()?);
    r.zero::<2>("file state.reserved")?;
    let (errno, at, length, stamp) = (r.u32()?, r.u64()?, r.u64()?, r.u64()?);
    let unused = |none: bool| if none { Ok(()) } else { Err(WireError::Reserved { what: "file state" }) };
    match state {
        1 => {
            unused((cause, errno, stamp) == (0, 0, 0))?;
            Ok(FileState::Busy { done: at, length })
        }
        2 => {
            unused((cause, errno, at) == (0, 0, 0))?;
            Ok(FileState::Done { length, stamp })
        }
        3 => {
            unused((length, stamp) == (0, 0))?;
            let known = FileCause::from_bits(cause);
            let cause =
                known.ok_or_else(|| WireError::Unknown { what: "file state.cause", value: cause.into() })?;
            Ok(FileState::Failed(FileFault { cause, errno, at }))
        }
        _ => Err(WireError::Unknown { what: "file state", value: state.into() }),
    }
}

const _: () = assert!(super::OVERHEAD + TASK_LEN + FILE_NAME_MAX <= 1024, "a task fits a PMTU of 1024");

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn tasks() -> impl Strategy<Value = (u64, bool, u64, u32, u64, u64)> {
        (1..=u64::MAX, any::<bool>(), 1..=u64::from(u32::MAX), 12..=24_u32, any::<u64>(), any::<u64>())
    }

    fn states() -> impl Strategy<Value = FileState> {
        let cause = prop::sample::select(FileCause::ALL.to_vec());
        prop_oneof![
            any::<(u64, u64)>().prop_map(|(done, length)| FileState::Busy { done, length }),
            any::<(u64, u64)>().prop_map(|(length, stamp)| FileState::Done { length, stamp }),
            (cause, any::<(u32, u64)>()).prop_map(|(cause, (errno, at))| FileState::Failed(FileFault {
                cause,
                errno,
                at
            })),
        ]
    }

    fn comes_back(body: FileBody<'_>, token: u64) -> Result<(), TestCaseError> {
        let message = FileMessage { token: RequestId(token), body };
        let mut bytes = vec![];
        message.emit(&mut bytes);
        prop_assert_eq!(bytes.len(), message.len());
        prop_assert!(FileMessage::is(&bytes));
        prop_assert_eq!(FileMessage::parse(&bytes), Ok(message));
        for have in 0..bytes.len() {
            prop_assert!(FileMessage::parse(&bytes[..have]).is_err(), "{} bytes", have);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(
            (task, saves, place, log2, length, stamp) in tasks(), name in "[a-z/.é]{0,100}", state in states(), token in any::<u64>()
        ) {
            let size = 1 << log2;
            let (base, length) = (VirtAddr(place << log2), length % size + 1);
            let stamp = if saves { 0 } else { stamp };
            comes_back(FileBody::Task(FileTask { task, saves, base, length, size, stamp, name: &name }), token)?;
            comes_back(FileBody::Lookup(&name), token)?;
            comes_back(FileBody::Report(task, state), token)?;
        }

        #[test]
        fn hostile_bytes_are_read_or_refused(kind in 0x62..=0x63_u8, rest in prop::collection::vec(any::<u8>(), 0..120)) {
            let mut bytes = vec![VERSION, kind];
            bytes.extend([0; 22]);
            bytes.extend(rest);
            if let Ok(message) = FileMessage::parse(&bytes) {
                let mut again = vec![];
                message.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    /// Invalid tasks (PROTOCOL 20.6).
    #[test]
    fn tasks_without_sense_are_refused() {
        let good = FileTask {
            task: 1,
            saves: true,
            base: VirtAddr(0x4000),
            length: 0x1001,
            size: 0x2000,
            stamp: 0,
            name: "a",
        };
        let bad = [
            FileTask { task: 0, ..good },
            FileTask { base: VirtAddr(0x1000), ..good },
            FileTask { base: VirtAddr(0), ..good },
            FileTask { length: 0, ..good },
            FileTask { length: 0x2001, ..good },
            FileTask { size: 0x3000, ..good },
            FileTask { size: 0x800, length: 1, ..good },
            FileTask { stamp: 1, ..good },
        ];
        let read = |task| {
            let mut bytes = vec![];
            FileMessage { token: RequestId(1), body: FileBody::Task(task) }.emit(&mut bytes);
            FileMessage::parse(&bytes).map(drop)
        };
        assert_eq!(read(good), Ok(()));
        for task in bad {
            assert!(read(task).is_err(), "{task:?}");
        }
    }

    /// Valid and invalid names (PROTOCOL 20.1).
    #[test]
    fn names_lead_to_files_in_the_directory_only() {
        let long = "x".repeat(255);
        for name in ["a", "graph.fmg", "a/b/c", "..a", "a..", "é", &long] {
            assert!(is_file_name(name), "{name:?}");
        }
        let longer = "x".repeat(256);
        let whole = ["x"; 257].join("/");
        for name in
            ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/..", "a\nb", "a\0", &longer, &whole]
        {
            assert!(!is_file_name(name), "{name:?}");
        }
    }
}
