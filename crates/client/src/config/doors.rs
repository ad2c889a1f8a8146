//! The API endpoints of a rack: where the control plane serves, and which endpoint a machine uses.
//!
//! The control plane's machine uses a Unix socket in the state directory. Another machine uses a *join file*
//! ([`Join`]), which the operator copies there: address, token, and the certificate of the rack's authority.
//! Description and machine determine the endpoint; no code tries several. A client shows the token only to a
//! server that has proved to be the rack.

use crate::config::RackConfig;
use crate::config::page::Page;
use crate::config::raw::RawControl;
use crate::config::roles::is_of_this_machine;
use crate::config::terms::Transport;
use crate::error::Error;
use farmem_api::{ApiDoor, ApiDoors, Authority, CaCert, Identity, read_ca};
use farmem_link::{is_own, read_private};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{env, fs};
use toml::Spanned;

/// Name of the token's file in the control plane's state directory.
const TOKEN_FILE: &str = "token";

/// Name of the API's Unix socket in the control plane's state directory.
const SOCKET_FILE: &str = "api.sock";

/// Name of the join file in another machine's state directory.
const JOIN_FILE: &str = "join";

/// Name of the file of the operator's token in the state directory.
const OPERATOR_FILE: &str = "operator";

/// Name of the file of the secret from which the rack's keys derive, in the control plane's state directory.
const SECRET_FILE: &str = "secret";

/// Name of the file of the keys that this user's processes received, in the state directory.
const KEYS_FILE: &str = "keys";

/// Environment variable that names another file for these keys.
const KEYS_VARIABLE: &str = "FARMEM_KEYS";

/// Maximum length of a token or join file, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// Certificates of an authority other than the one that farmem creates for a rack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdentityFiles {
    /// The authority's certificate, in PEM.
    pub ca: PathBuf,
    /// The server's certificate and the chain up to the authority's, in PEM.
    pub certificate: PathBuf,
    /// The server's key, in PEM; only this user can read it.
    pub key: PathBuf,
}

/// The source of a machine's copy of the rack's token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Credentials {
    /// The control plane's state directory.
    State(PathBuf),
    /// A join file.
    Join(PathBuf),
}

impl Credentials {
    pub(crate) fn token(&self) -> Result<String, Error> {
        match self {
            Self::State(state) => {
                let file = state.join(TOKEN_FILE);
                let read = fs::read_to_string(&file);
                let read = read.map_err(|e| Error::Api {
                    message: format!("cannot read the rack's token {}: {e}", file.display()),
                })?;
                Ok(read.trim().to_owned())
            }
            Self::Join(file) => Ok(Join::read(file)?.token),
        }
    }
}

/// The credentials by which a machine joins a rack: one file, whose holder may use the rack.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// Address at which the control plane serves TLS.
    pub address: SocketAddr,
    /// The rack's token.
    pub token: String,
    /// SHA-256 of the authority's certificate, for people to compare.
    pub sha256: String,
    /// The authority's certificate, in PEM.
    pub ca: String,
}

impl Join {
    /// Reads a join file, which only this user can read.
    ///
    /// # Errors
    /// [`Error::Join`] with the fault of the file.
    pub fn read(file: &Path) -> Result<Self, Error> {
        let fault = |why: String| Error::Join { file: file.into(), why };
        let mut text = String::new();
        read_private(file)
            .map_err(|e| fault(e.to_string()))?
            .take(FILE_MAX)
            .read_to_string(&mut text)
            .map_err(|e| fault(e.to_string()))?;
        let join: Self = toml::from_str(&text).map_err(|e| fault(e.message().to_owned()))?;
        join.ca().map_err(fault)?;
        if join.token.is_empty() || !join.token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(fault("its `token` is invalid: expected letters and digits".into()));
        }
        if join.address.port() == 0 || join.address.ip().is_unspecified() {
            return Err(fault(format!(
                "its `address` is {}: expected the control plane's address",
                join.address
            )));
        }
        Ok(join)
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn text(&self, rack: &str) -> String {
        let fields = toml::to_string_pretty(self).expect("texts and an address are TOML");
        format!(
            "# Credentials by which a machine joins the rack {rack:?}. The holder may use the rack: mode 0600.\n{fields}"
        )
    }

    fn ca(&self) -> Result<CaCert, String> {
        let ca = CaCert::from_pem(&self.ca).map_err(|why| format!("its `ca` is {why}"))?;
        let found = ca.fingerprint();
        if found == self.sha256 {
            return Ok(ca);
        }
        Err(format!(
            "its `ca` has the SHA-256 {found}, and `sha256` is {}: it was damaged on its way",
            self.sha256
        ))
    }
}

impl RackConfig {
    /// Returns the path of the control plane's token on its machine. A program that can read the token can
    /// use the API.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.control.state.join(TOKEN_FILE)
    }

    /// Returns the path of the operator's token. A program that can read it has all rights.
    #[must_use]
    pub fn operator_file(&self) -> PathBuf {
        self.control.state.join(OPERATOR_FILE)
    }

    /// Returns the path of the secret from which the rack's keys derive.
    pub(crate) fn secret_file(&self) -> PathBuf {
        self.control.state.join(SECRET_FILE)
    }

    /// Returns the path of the keys that this user's processes received. The path is, in this order:
    ///
    /// 1. The file that `FARMEM_KEYS` names.
    /// 2. `keys` in the state directory, if this user owns the directory.
    /// 3. A file in the user's own directory for state. Its name contains the rack's name and address,
    ///    because key numbers of different racks are the same.
    pub(crate) fn key_file(&self) -> PathBuf {
        let named =
            |variable: &str| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(file) = named(KEYS_VARIABLE) {
            return file;
        }
        let state = &self.control.state;
        let home = || named("HOME").map(|home| home.join(".local/state"));
        match named("XDG_STATE_HOME").or_else(home) {
            Some(own) if !is_own(state) => {
                let address = self.control.address.to_string().replace(':', "-");
                own.join("farmem").join(format!("{}-{address}.keys", self.name))
            }
            _ => state.join(KEYS_FILE),
        }
    }

    /// Returns the path of the API's Unix socket, on the control plane's machine.
    #[must_use]
    pub fn api_socket(&self) -> PathBuf {
        self.control.state.join(SOCKET_FILE)
    }

    /// Returns the source of this machine's token: the join file if the description names one, else the state
    /// directory on the control plane's machine.
    pub(crate) fn credentials(&self) -> Credentials {
        let state = &self.control.state;
        match &self.control.join {
            Some(join) => Credentials::Join(join.clone()),
            None if self.has_control() => Credentials::State(state.clone()),
            None => Credentials::Join(state.join(JOIN_FILE)),
        }
    }

    /// Returns the endpoint by which this machine reaches the API, and the token.
    ///
    /// # Errors
    /// [`Error::Api`] without a token, [`Error::Join`] with the fault of a join file.
    pub fn api_door(&self) -> Result<(ApiDoor, String), Error> {
        match self.credentials() {
            it @ Credentials::State(_) => Ok((ApiDoor::Unix(self.api_socket()), it.token()?)),
            Credentials::Join(file) => {
                let join = Join::read(&file)?;
                let fault = |why: String| Error::Join { file: file.clone(), why };
                if let Some(listen) = self.control.listen.filter(|&listen| listen != join.address) {
                    let written = join.address;
                    return Err(fault(format!("it says {written}, and rack.toml has listen = \"{listen}\"")));
                }
                let ca = join.ca().map_err(fault)?;
                Ok((ApiDoor::Tls(join.address, ca), join.token))
            }
        }
    }

    /// Returns the endpoints at which the control plane serves. Creates the rack's authority if it is
    /// necessary and absent.
    ///
    /// # Errors
    /// [`Error::Open`] with the fault of a certificate or key.
    pub(crate) fn api_doors(&self) -> Result<ApiDoors, Error> {
        let identity = |address: SocketAddr| match &self.control.identity {
            Some(files) => Identity::from_files(&files.certificate, &files.key),
            None => Authority::load_or_create(&self.control.state)?.identity(address.ip()),
        };
        let tls = self.control.listen.map(|address| Ok::<_, Error>((address, identity(address)?)));
        Ok(ApiDoors { unix: Some(self.api_socket()), tls: tls.transpose()?, plain: self.control.http })
    }

    /// Returns the credentials for another machine; runs on the control plane's machine.
    ///
    /// # Errors
    /// [`Error::Config`] if no other machine can join; [`Error::Api`] before the first start of the control
    /// plane.
    pub fn join(&self) -> Result<Join, Error> {
        let Some(address) = self.control.listen else {
            let message = "other machines cannot join: expected `listen = \"ADDRESS:7471\"` under [control]";
            return Err(Error::Config { file: self.file.clone(), message: message.into() });
        };
        let token = Credentials::State(self.control.state.clone()).token()?;
        let (ca, pem) = match &self.control.identity {
            Some(files) => read_ca(&files.ca)?,
            None => {
                let pem = Authority::load_or_create(&self.control.state)?.pem().to_owned();
                let ca = CaCert::from_pem(&pem).map_err(|message| Error::Api { message })?;
                (ca, pem)
            }
        };
        Ok(Join { address, token, sha256: ca.fingerprint(), ca: pem })
    }

    /// Returns the risk of the address that serves plain HTTP, if there is one, and the remedy.
    #[must_use]
    pub fn plain_cost(&self) -> Option<(String, &'static str)> {
        self.control.http.map(|address| {
            (
                format!(
                    "the API is served in clear at http://{address}: a process that takes this port while the control plane is down is handed the \
                     token by clients there"
                ),
                "take `http` out of rack.toml: farmem itself, and `curl --unix-socket`, use the Unix socket",
            )
        })
    }

    /// Returns true on the machine of the control plane.
    fn has_control(&self) -> bool {
        self.transport == Transport::Shm || is_of_this_machine(self.control.address)
    }
}

impl Page<'_> {
    pub(super) fn listening(&self, key: &str, raw: &Spanned<String>) -> Result<SocketAddr, Error> {
        let parsed: Option<SocketAddr> = raw.as_ref().parse().ok();
        parsed.filter(|address| address.port() != 0).ok_or_else(|| {
            let expected = "expected an address and a port of 1 to 65535, such as 127.0.0.1:7471";
            self.fault(&raw.span(), format!("{key} is {:?}: {expected}", raw.as_ref()))
        })
    }

    /// Returns the address of the TLS server, which its certificate must be able to name.
    pub(super) fn tls_listening(&self, raw: &Spanned<String>) -> Result<SocketAddr, Error> {
        let address = self.listening("listen", raw)?;
        if !address.ip().is_unspecified() {
            return Ok(address);
        }
        let expected =
            "expected one address at which other machines reach it, because the certificate names it";
        Err(self.fault(&raw.span(), format!("listen is {:?}: {expected}", raw.as_ref())))
    }

    /// Returns the address of the plain HTTP server, which must be a loopback address.
    pub(super) fn plain_listening(&self, raw: &Spanned<String>) -> Result<SocketAddr, Error> {
        let address = self.listening("http", raw)?;
        if address.ip().is_loopback() {
            return Ok(address);
        }
        let expected = "expected a loopback address, as it is HTTP in clear; for other machines write `listen` in its place, \
                        and bring them what `farmem join` prints";
        Err(self.fault(&raw.span(), format!("http is {:?}: {expected}", raw.as_ref())))
    }

    /// Returns the files of another authority: all three of them, or none.
    pub(super) fn identity(&self, raw: &RawControl) -> Result<Option<IdentityFiles>, Error> {
        let named = [&raw.ca, &raw.certificate, &raw.key];
        let [Some(ca), Some(certificate), Some(key)] = named else {
            let Some(one) = named.into_iter().flatten().next() else { return Ok(None) };
            let message =
                "expected ca, certificate and key together, or none of them: then farmem creates its own";
            return Err(self.fault(&one.span(), message.into()));
        };
        if raw.listen.is_none() {
            let message = "certificates are for TLS: expected `listen = \"ADDRESS:7471\"` with them";
            return Err(self.fault(&certificate.span(), message.into()));
        }
        let [ca, certificate, key] = [("ca", ca), ("certificate", certificate), ("key", key)]
            .map(|(name, raw)| self.directory(name, raw));
        Ok(Some(IdentityFiles { ca: ca?, certificate: certificate?, key: key? }))
    }
}
