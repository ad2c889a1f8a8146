//! A file that is mapped: what far memory stands beside when the far place is this machine's disk.

use farmem_link::OpenError;
use farmem_uffd::{Number, Numbers};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::ptr::{self, NonNull};

/// A file in the addresses of this process, to be read. Its pages come from the page cache, or from the disk when they are not there. A touch of what is behind the
/// file's end, when it was made shorter since, is a SIGBUS, as of any mapping.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is this value's alone, and is read by atomic loads.
unsafe impl Send for MappedFile {}
// SAFETY: as above: several threads load at once, and none stores.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps all bytes of `file`.
    ///
    /// # Errors
    /// [`OpenError::System`] when it has none, or cannot be mapped.
    pub fn open(file: &File) -> Result<Self, OpenError> {
        let failed = OpenError::system("map a file");
        let len = match file.metadata() {
            Ok(metadata) => usize::try_from(metadata.len()).expect("a file has addresses of 64 bits"),
            Err(error) => return Err(failed(error)),
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        let start = start.map_err(|error| failed(error.into()))?;
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), len })
    }

    /// Returns `count` little-endian numbers from byte `offset` on.
    ///
    /// # Panics
    /// When they leave the file or are not aligned.
    #[must_use]
    pub fn numbers<T: Number>(&self, offset: usize, count: usize) -> Numbers<'_, T> {
        const { assert!(cfg!(target_endian = "little")) };
        let len = count.checked_mul(size_of::<T>()).expect("numbers of this machine's memory");
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "inside the file");
        // SAFETY: inside the mapping, or its end, by the check.
        let place = unsafe { self.start.add(offset) }.cast::<T::Atomic>();
        assert!(place.is_aligned(), "aligned numbers");
        // SAFETY: aligned, mapped as long as this lives, and every pattern of bits is a number. Another process may change the file: atomic loads allow that.
        Numbers::of(unsafe { std::slice::from_raw_parts(place.as_ptr(), count) })
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `open`, and no number of it outlives this.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Numbers are those of the file, each where it is; what leaves the file or is not aligned is refused, and so is a file of nothing.
    #[test]
    fn a_mapped_file_is_its_numbers() {
        let mut file = tempfile::tempfile().unwrap();
        MappedFile::open(&file).unwrap_err();
        (0_u64..1000).for_each(|number| file.write_all(&(number << 40 | number).to_le_bytes()).unwrap());
        let mapped = MappedFile::open(&file).unwrap();
        let long = mapped.numbers::<u64>(80, 990);
        assert!(long.iter().eq((10..1000).map(|number| number << 40 | number)));
        assert_eq!(mapped.numbers::<u32>(84, 2).iter().collect::<Vec<_>>(), [10 << 8, 11]);
        assert_eq!(mapped.numbers::<u32>(8000, 0).len(), 0);
        for (offset, count) in [(0, 1001), (8000, 1), (4, 1), (8, usize::MAX / 8)] {
            let refused = std::panic::catch_unwind(|| mapped.numbers::<u64>(offset, count).len());
            assert!(refused.is_err(), "{offset} {count}");
        }
    }
}
