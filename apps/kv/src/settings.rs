//! The settings of the server, which `CONFIG` reads and changes.

/// Settings of the server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The bytes of a word of a request, and of a string, at most (`proto-max-bulk-len`).
    pub(crate) word_len_max: usize,
    /// The bytes of a request at most.
    pub(crate) request_len_max: usize,
    /// The bytes of replies that may wait for a client; with more the connection is closed
    /// (`client-output-buffer-limit`).
    pub(crate) output_max: usize,
    /// The bytes of replies that may wait before the client's next request is executed.
    pub(crate) output_pause: usize,
    /// The bytes of replies that may wait, and for this many seconds.
    pub(crate) output_soft: (usize, u64),
    /// The bytes of the buffers of all connections at most.
    pub(crate) buffers_max: usize,
    /// The number of clients at most (`maxclients`).
    pub(crate) clients_max: usize,
    /// The password of the user `default` (`requirepass`).
    pub(crate) password: Option<String>,
    /// The ACL file (`aclfile`).
    pub(crate) acl_file: Option<std::path::PathBuf>,
    /// The seconds and the changes after which a snapshot begins (`save`).
    pub(crate) save: Vec<(u64, u64)>,
    /// The seconds after which an idle connection is closed; 0 for never (`timeout`).
    pub(crate) timeout: u64,
    /// Whether far values of waiting requests are read together, before the first of these requests is executed.
    pub(crate) read_ahead: bool,
    /// The seconds that a TLS handshake may take; 0 for no limit (`tls-handshake-timeout`).
    pub(crate) tls_handshake: u64,
    /// The values of [`ENCODING_LIMITS`].
    pub(crate) encoding_limits: [i64; ENCODING_LIMITS.len()],
}

/// Settings of Redis's compact encodings: name, older name, default. Their only effect is on the replies of `OBJECT
/// ENCODING`.
pub(crate) const ENCODING_LIMITS: [(&str, &str, i64); 7] = [
    ("hash-max-listpack-entries", "hash-max-ziplist-entries", 128),
    ("hash-max-listpack-value", "hash-max-ziplist-value", 64),
    ("list-compress-depth", "list-compress-depth", 0),
    ("list-max-listpack-size", "list-max-ziplist-size", -2),
    ("set-max-intset-entries", "set-max-intset-entries", 512),
    ("zset-max-listpack-entries", "zset-max-ziplist-entries", 128),
    ("zset-max-listpack-value", "zset-max-ziplist-value", 64),
];

/// Returns the index of a setting in [`ENCODING_LIMITS`].
pub(crate) fn encoding_limit(name: &str) -> Option<usize> {
    ENCODING_LIMITS.iter().position(|(new, old, _)| *new == name || *old == name)
}

impl Settings {
    /// Returns the defaults of [`ENCODING_LIMITS`].
    pub(crate) fn default_encoding_limits() -> [i64; ENCODING_LIMITS.len()] {
        ENCODING_LIMITS.map(|(_, _, default)| default)
    }

    /// Returns the largest number of elements, or of bytes, of the encoding of this setting.
    pub(crate) fn encoding_limit(&self, name: &str) -> usize {
        let limit = self.encoding_limits[encoding_limit(name).expect("the name is one of the list")];
        usize::try_from(limit).unwrap_or(0)
    }

    /// Returns the maximum length of one reply in bytes: the bound of a client's replies, or of all buffers if there
    /// is none.
    pub(crate) const fn reply_len_max(&self) -> usize {
        if self.output_max == 0 { self.buffers_max } else { self.output_max }
    }
}
