//! Why a driver does not start: for people, each with what to do about it.

use farmem_preload_abi::userfaultfd;
use std::io;
use std::path::PathBuf;

/// Why a link, a store or a server cannot be opened. The text says the cause, then the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the address.
    #[error("another instance is running on {address}; stop it or choose another address")]
    InUse {
        /// The address and port, or the endpoint and directory.
        address: String,
    },
    /// The address belongs to another machine, or to none.
    #[error(
        "{address} is not an address of this machine; choose one that `ip address` lists, or any 127.x.y.z"
    )]
    NotHere {
        /// The address.
        address: String,
    },
    /// The system does not let this user.
    #[error("no permission to {doing}; {remedy}")]
    NotPermitted {
        /// The operation that was refused.
        doing: String,
        /// The remedy.
        remedy: String,
    },
    /// A file that is there is not what farmem puts there.
    #[error("{} {why}; stop what uses it and remove it", path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file or directory with secrets in it that others may get at.
    #[error("{} {why}; {remedy}", path.display())]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        why: String,
        /// The command to run.
        remedy: String,
    },
    /// A setting that cannot be.
    #[error("{setting} cannot be {value}; {remedy}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Permitted values.
        remedy: String,
    },
    /// Memory or disk ran out.
    #[error("no room to {doing}; {remedy}")]
    NoRoom {
        /// The operation that ran out of room.
        doing: String,
        /// The remedy.
        remedy: String,
    },
    /// Anything else the system said.
    #[error("cannot {doing}: {source}")]
    System {
        /// The operation that failed.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// For `map_err`: the system refused to do `doing`.
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
