//! The format of the files: frames with a length and a checksum, after a head that names the kind of file.

/// The first bytes of a log.
pub(crate) const MAGIC_LOG: [u8; 8] = *b"fmkvlog2";
/// The first bytes of a snapshot.
pub(crate) const MAGIC_SNAPSHOT: [u8; 8] = *b"fmkvsnp2";
/// Bytes of a file's head.
pub(crate) const HEADER_LEN: usize = 8;
/// Bytes of a frame's head: the content's length, the time, the content's checksum, and the checksum of
/// these.
pub(crate) const FRAME_HEAD: usize = 20;

pub(crate) const fn head(magic: [u8; 8]) -> [u8; HEADER_LEN] {
    magic
}

/// Appends a frame.
///
/// # Panics
///
/// When the content has 4 GiB.
pub(crate) fn emit(into: &mut Vec<u8>, time: i64, content: &[u8]) {
    let len = u32::try_from(content.len()).expect("a frame is shorter than 4 GiB");
    let from = into.len();
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(&time.to_le_bytes());
    into.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    let sum = crc32fast::hash(&into[from..]);
    into.extend_from_slice(&sum.to_le_bytes());
    into.extend_from_slice(content);
}

/// Returns the content's length in a frame's head; `None` if the head is damaged.
pub(crate) fn len_of(head: &[u8; FRAME_HEAD]) -> Option<u32> {
    let (said, sum) = head.split_last_chunk::<4>().expect("a head is longer");
    let len = said.first_chunk().expect("a head is longer");
    (crc32fast::hash(said) == u32::from_le_bytes(*sum)).then(|| u32::from_le_bytes(*len))
}

/// The next item of a file.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Next<'a> {
    /// A frame: its time, its content, and the bytes behind it.
    Frame(i64, &'a [u8], &'a [u8]),
    /// The end: no bytes, or reserved room.
    End,
    /// A frame that was not written to its end, with nothing behind it.
    Torn,
    /// A damaged frame, with others behind it.
    Corrupt,
}

/// Parses the first frame.
pub(crate) fn next(bytes: &[u8]) -> Next<'_> {
    if bytes.iter().take(FRAME_HEAD).all(|&byte| byte == 0) {
        return if bytes.iter().all(|&byte| byte == 0) { Next::End } else { Next::Corrupt };
    }
    let Some((head, rest)) = bytes.split_first_chunk() else { return Next::Torn };
    let torn_or_corrupt =
        |behind: &[u8]| if behind.iter().all(|&byte| byte == 0) { Next::Torn } else { Next::Corrupt };
    // A changed length would make the frames behind it look like the end of this one.
    let Some(len) = len_of(head) else { return torn_or_corrupt(rest) };
    let time = i64::from_le_bytes(head[4..12].try_into().expect("eight bytes"));
    let Some((content, rest)) = rest.split_at_checked(len as usize) else { return Next::Torn };
    if crc32fast::hash(content).to_le_bytes() == head[12..16] {
        return Next::Frame(time, content, rest);
    }
    torn_or_corrupt(rest)
}

/// Appends a request to a frame's content.
pub(crate) fn entry<'a>(into: &mut Vec<u8>, db: u8, args: impl ExactSizeIterator<Item = &'a [u8]>) {
    let len = |len: usize| u32::try_from(len).expect("a request is shorter than 4 GiB").to_le_bytes();
    into.push(db);
    into.extend_from_slice(&len(args.len()));
    for arg in args {
        into.extend_from_slice(&len(arg.len()));
        into.extend_from_slice(arg);
    }
}

/// Parses the first request of a frame's content; `None` if it is damaged.
pub(crate) fn take_entry<'a>(content: &mut &'a [u8]) -> Option<(u8, Vec<&'a [u8]>)> {
    let (&db, rest) = content.split_first()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut args = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (len, behind) = rest.split_first_chunk()?;
        let (arg, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        args.push(arg);
        rest = behind;
    }
    *content = rest;
    Some((db, args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_end_is_told_from_a_change() {
        let (mut content, mut file) = (Vec::new(), Vec::new());
        entry(&mut content, 3, [&b"SET"[..], b"k", b"v"].into_iter());
        emit(&mut file, 77, &content);
        emit(&mut file, 78, &content);
        let Next::Frame(77, mut first, rest) = next(&file) else { panic!("a frame") };
        assert_eq!(take_entry(&mut first), Some((3, vec![&b"SET"[..], b"k", b"v"])));
        assert!(first.is_empty() && matches!(next(rest), Next::Frame(78, _, [])));
        for cut in 1..rest.len() {
            assert_eq!(next(&rest[..cut]), Next::Torn, "{cut}");
        }
        assert_eq!((next(&[]), next(&[0; 100])), (Next::End, Next::End));
        for at in 0..file.len() / 2 {
            let mut changed = file.clone();
            changed[at] ^= 0x40;
            assert!(!matches!(next(&changed), Next::Frame(..)), "{at}");
        }
        for at in [0, 2, 3, 30] {
            let mut changed = file.clone();
            changed[at] ^= 0x10;
            assert_eq!(next(&changed), Next::Corrupt, "byte {at}: a whole frame follows");
        }
    }
}
