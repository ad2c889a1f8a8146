//! Checks before the start of a program that cannot have far memory, because the system would silently not
//! load the preload library.

use crate::outcome::Failure;
use object::Endianness;
use object::elf::{DT_NEEDED, DT_STRTAB, FileHeader64, PT_INTERP, ProgramHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Maximum depth of scripts whose interpreter is a script, as in the kernel.
const SCRIPTS_MAX: u32 = 4;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const EXECUTABLE: u32 = 0o111;

/// Returns the file that a shell would run for this name.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    let runs = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & EXECUTABLE != 0)
    };
    std::env::split_paths(&path).map(|place| place.join(name)).find(runs).ok_or_else(|| {
        Failure::environment(
            format!("there is no program {}", name.display()),
            "give its path, or one that is in PATH",
        )
    })
}

/// A program that can have far memory.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Checked {
    /// A program that loads glibc, with the library that it requires to be loaded first, if any.
    Glibc(Option<OsString>),
    /// A dynamically linked program that loads no glibc, as those of Go without cgo.
    WithoutGlibc { is_musl: bool },
    /// A static program, which loads no library.
    Static,
}

/// Returns an error for a program that would run without far memory.
pub(super) fn check(file: &Path) -> Result<Checked, Failure> {
    let mut file = file.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let at = |e: &dyn std::fmt::Display| {
            Failure::environment(format!("{}: {e}", file.display()), "name a program that can be run")
        };
        let meta = fs::metadata(&file).map_err(|e| at(&e))?;
        let bytes = fs::read(&file).map_err(|e| at(&e))?;
        match bytes.strip_prefix(b"#!") {
            Some(rest) => {
                file = interpreter(rest).ok_or_else(|| at(&"its first line names no interpreter"))?
            }
            None => return check_binary(&file, &meta, &bytes),
        }
    }
    Err(Failure::environment(format!("{}: too many scripts run each other", file.display()), ""))
}

/// Returns the interpreter in the first line of a script.
fn interpreter(rest: &[u8]) -> Option<PathBuf> {
    let line = rest.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let name = line.split(|byte| byte.is_ascii_whitespace()).next().filter(|name| !name.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn check_binary(file: &Path, meta: &Metadata, bytes: &[u8]) -> Result<Checked, Failure> {
    let refuse =
        |why: &str, remedy: &str| Err(Failure::environment(format!("{} {why}", file.display()), remedy));
    let of_another = meta.uid() != rustix::process::geteuid().as_raw();
    let mode = meta.permissions().mode();
    if (mode & SETUID != 0 && of_another) || mode & SETGID != 0 {
        let remedy = "run a copy of it without these bits";
        return refuse(
            "runs with another user's rights: the system loads no library of ours into it",
            remedy,
        );
    }
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else {
        let remedy = "farmem runs dynamically linked 64-bit programs, and scripts of such interpreters";
        return refuse("is not a 64-bit ELF program, nor a script that begins with #!", remedy);
    };
    let headers = header.endian().and_then(|endian| Ok((endian, header.program_headers(endian, bytes)?)));
    let Ok((endian, headers)) = headers else {
        return refuse("is not a whole ELF program", "is the file damaged?");
    };
    let loader = headers.iter().find(|header| header.p_type(endian) == PT_INTERP);
    let loader = loader.and_then(|header| header.interpreter(endian, bytes).ok().flatten());
    let Some(loader) = loader else { return Ok(Checked::Static) };
    let loader = Path::new(OsStr::from_bytes(loader));
    if !loader.exists() {
        return refuse(
            &format!("wants the dynamic linker {}, which is not there", loader.display()),
            "install its libc",
        );
    }
    let is_musl = loader.to_string_lossy().contains("musl");
    let needed = needed(endian, headers, bytes).unwrap_or_default();
    if is_musl || !needed.contains(&GLIBC) {
        return Ok(Checked::WithoutGlibc { is_musl });
    }
    // The runtime of AddressSanitizer ends its program when another library is loaded first.
    let is_runtime = |name: &&&[u8]| name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan");
    Ok(Checked::Glibc(needed.iter().find(is_runtime).map(|name| OsStr::from_bytes(name).to_owned())))
}

/// Name of the library whose functions the preload library interposes.
const GLIBC: &[u8] = b"libc.so.6";

/// Returns the names of the libraries that a program asks for.
fn needed<'a>(
    endian: Endianness,
    headers: &[ProgramHeader64<Endianness>],
    bytes: &'a [u8],
) -> Option<Vec<&'a [u8]>> {
    let entries = headers.iter().find_map(|header| header.dynamic(endian, bytes).ok().flatten())?;
    let strings = entries.iter().find(|entry| entry.d_tag(endian) == DT_STRTAB)?.d_val(endian);
    // Converts an address in memory to a place in the file.
    let place = headers.iter().find_map(|header| {
        let into = strings.checked_sub(header.p_vaddr(endian))?;
        header.p_offset(endian).checked_add(into).filter(|_| into < header.p_filesz(endian))
    })?;
    let strings = bytes.get(usize::try_from(place).ok()?..)?;
    let needed = entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED);
    let names = needed.filter_map(|entry| {
        let name = strings.get(usize::try_from(entry.d_val(endian)).ok()?..)?;
        name.split(|&byte| byte == 0).next()
    });
    Some(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_names_an_interpreter() {
        let of = |line: &[u8]| interpreter(line).map(|path| path.display().to_string());
        assert_eq!(of(b"/bin/sh\nmore"), Some("/bin/sh".into()));
        assert_eq!(of(b" /usr/bin/env python3 -I\n"), Some("/usr/bin/env".into()));
        assert_eq!(of(b"\n"), None);
        assert_eq!(of(b""), None);
    }

    #[test]
    fn programs_are_found_as_a_shell_does() {
        assert_eq!(find(OsStr::new("./here")).unwrap(), PathBuf::from("./here"));
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert!(find(OsStr::new("no such program")).is_err());
    }

    /// This test and the shell are dynamically linked. A text file is no program.
    #[test]
    fn what_can_be_served_is_told_from_what_cannot() {
        assert!(matches!(check(&std::env::current_exe().unwrap()), Ok(Checked::Glibc(None))));
        assert!(matches!(check(Path::new("/bin/sh")), Ok(Checked::Glibc(None))));
        assert!(check(Path::new("/etc/passwd")).is_err());
        assert!(check(Path::new("/nonexistent")).is_err());
    }
}
