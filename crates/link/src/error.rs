//! Errors that prevent the start of a driver. Each message contains a remedy.

use farmem_preload_abi::userfaultfd;
use std::io;
use std::path::PathBuf;

/// The reason why a link, a store or a server cannot be opened. The text states the cause, then the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the address.
    #[error("another instance is running on {address}; stop it or choose another address")]
    InUse {
        /// The address and port, or the endpoint and directory.
        address: String,
    },
    /// The address is not an address of this machine.
    #[error(
        "{address} is not an address of this machine; choose one that `ip address` lists, or any 127.x.y.z"
    )]
    NotHere {
        /// The address.
        address: String,
    },
    /// The system does not permit the operation to this user.
    #[error("no permission to {doing}; {remedy}")]
    NotPermitted {
        /// The operation that was refused.
        doing: String,
        /// The remedy.
        remedy: String,
    },
    /// An existing file is not one of farmem's.
    #[error("{} {why}; stop what uses it and remove it", path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Other users may be able to read a file or directory with secrets.
    #[error("{} {why}; {remedy}", path.display())]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        why: String,
        /// The command to run.
        remedy: String,
    },
    /// A setting has an invalid value.
    #[error("{setting} cannot be {value}; {remedy}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Value of the setting.
        value: String,
        /// Permitted values.
        remedy: String,
    },
    /// Memory or disk space ran out.
    #[error("no room to {doing}; {remedy}")]
    NoRoom {
        /// The operation that ran out of space.
        doing: String,
        /// The remedy.
        remedy: String,
    },
    /// The system reported another error.
    #[error("cannot {doing}: {source}")]
    System {
        /// The operation that failed.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns a function for `map_err` that reports that the system refused to do `doing`.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::InUse { .. } => io::ErrorKind::AddrInUse,
            OpenError::NotHere { .. } => io::ErrorKind::AddrNotAvailable,
            OpenError::NotPermitted { .. } | OpenError::Exposed { .. } => io::ErrorKind::PermissionDenied,
            OpenError::Foreign { .. } => io::ErrorKind::InvalidData,
            OpenError::Setting { .. } => io::ErrorKind::InvalidInput,
            OpenError::NoRoom { .. } => io::ErrorKind::StorageFull,
            OpenError::System { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

impl From<userfaultfd::OpenError> for OpenError {
    fn from(error: userfaultfd::OpenError) -> Self {
        let doing = userfaultfd::DOING.into();
        match error {
            userfaultfd::OpenError::NotPermitted { remedy } => Self::NotPermitted { doing, remedy },
            userfaultfd::OpenError::System { source } => Self::System { doing, source },
        }
    }
}
