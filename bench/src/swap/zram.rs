//! Compressed swap space.

use super::cleanup_guard::CleanupGuard;
use super::swap_to;
use crate::to_f64;
use std::fs::{read_to_string, write};

/// A zram device that is swap space while this lives. The device is removed when this process dies, too.
pub(crate) struct Zram {
    number: String,
    _away: CleanupGuard,
}

/// A device in use cannot be removed: processes with pages on it may still be ending, so the removal retries
/// for 10 s. After the removal, another device may take its number.
const TAKE_AWAY: &str = r#"n=0
until
    swapoff "/dev/zram$1"; echo 1 > "/sys/block/zram$1/reset"
    echo "$1" > /sys/class/zram-control/hot_remove || test $n -ge 100
do n=$((n + 1)); sleep 0.1; done"#;

impl Zram {
    /// Creates a device of this many bytes, and enables it before all other swap space.
    pub(crate) fn begin(len: u64) -> Result<Self, String> {
        let add = "/sys/class/zram-control/hot_add";
        let number = read_to_string(add)
            .map_err(|error| format!("no zram device ({add}: {error}); needs the module zram, and root"))?;
        let number = number.trim().to_owned();
        let away = CleanupGuard::begin(TAKE_AWAY, &number);
        if away.is_err() {
            let _stays = write("/sys/class/zram-control/hot_remove", &number);
        }
        let device = Self { number, _away: away? };
        let size = device.setting("disksize");
        write(&size, len.to_string()).map_err(|error| format!("{size}: {error}"))?;
        swap_to(&device.path()).map(|()| device)
    }

    pub(crate) fn path(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    pub(crate) fn setting(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.number)
    }

    /// Describes the compressed size of the device's present bytes; an error when there are fewer than
    /// `least`.
    pub(crate) fn compressed(&self, least: u64) -> Result<String, String> {
        let stat = read_to_string(self.setting("mm_stat")).unwrap_or_default();
        let mut numbers = stat.split_whitespace().map_while(|number| number.parse::<u64>().ok());
        match (numbers.next(), numbers.next()) {
            (Some(bytes), Some(room)) if bytes >= least => {
                Ok(format!("compressed to {:.0} % of their bytes", to_f64(room) / to_f64(bytes) * 100.0))
            }
            (bytes, _) => {
                Err(format!("{} has {} bytes: pages went elsewhere", self.path(), bytes.unwrap_or(0)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PRIORITY, swapped_to};
    use super::*;
    use std::path::Path;

    /// A device disappears with its guard, also on a panic, and is no longer swap space. While it exists it
    /// has the highest priority.
    #[test]
    fn a_device_goes_with_its_measurement() {
        let device = match Zram::begin(64 << 20) {
            Ok(device) => device,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let (path, setting) = (device.path(), device.setting(""));
        let line = swapped_to(&path);
        assert!(line.as_ref().is_some_and(|line| line.ends_with(PRIORITY)), "{line:?}");
        assert!(Path::new(&setting).exists());
        let panicked = std::panic::catch_unwind(move || {
            let _device = device;
            panic!("a measurement went wrong");
        });
        assert!(panicked.is_err());
        assert_eq!(swapped_to(&path), None);
        assert!(!Path::new(&setting).exists(), "{setting} is left");
    }
}
