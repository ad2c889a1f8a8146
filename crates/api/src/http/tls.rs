//! TLS between machines: the rack's own authority, the server's certificate, and the client's trust.
//!
//! No public authority certifies a rack, so no certificate must be bought or renewed. The control plane
//! creates a certificate authority once ([`Authority`]). At each start, the control plane creates a key and a
//! certificate for the address at which it listens. A client trusts only the authority whose certificate it
//! was given ([`CaCert`]), and shows its token to no other server (PROTOCOL 8.65).

use farmem_link::read_private;
use farmem_link::{OpenError, private_file};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Name of the file of the authority's certificate, in its directory.
const CA_FILE: &str = "ca.pem";
/// Name of the file of the authority's key, in its directory.
const CA_KEY_FILE: &str = "ca.key";
/// Name of the authority in its certificate.
const CA_NAME: &str = "farmem rack";
/// Maximum length of a PEM file in bytes.
const PEM_MAX: u64 = 64 << 10;

/// The certificate of the one authority that a client trusts.
#[derive(Clone, PartialEq, Eq)]
pub struct CaCert(CertificateDer<'static>);

impl CaCert {
    /// Parses the first certificate of a PEM text.
    ///
    /// # Errors
    /// The text's fault.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        let der = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|why| format!("no certificate in PEM: {why}"))?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(der.clone()).map_err(|why| format!("not the certificate of an authority: {why}"))?;
        Ok(Self(der))
    }

    /// Returns the SHA-256 of the certificate for people to compare: 64 hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        Sha256::digest(&self.0).iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes it");
            text
        })
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for CaCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CaCert").field(&self.fingerprint()).finish()
    }
}

/// A rack's certificate authority, with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Loads the certificate authority from a state directory, or creates one. Only this user can read its
    /// files.
    ///
    /// # Errors
    /// [`OpenError`] if other users can read the files, a file is damaged or cannot be written, or
    /// certificate and key do not match.
    pub fn load_or_create(state: &Path) -> Result<Self, OpenError> {
        let (file, key_file) = (state.join(CA_FILE), state.join(CA_KEY_FILE));
        // The control plane and `farmem join` may start together: the lock lets one create both files and the
        // other read them.
        let lock = private_file(&key_file)?;
        lock.lock().map_err(OpenError::system(format!("lock {}", key_file.display())))?;
        let key_text = load_or_write(&key_file, || KeyPair::generate().map(|key| key.serialize_pem()))?;
        let key =
            KeyPair::from_pem(&key_text).map_err(|why| foreign(&key_file, format!("holds no key: {why}")))?;
        let params = ca_params();
        let pem = load_or_write(&file, || params.self_signed(&key).map(|cert| cert.pem()))?;
        let cert = CaCert::from_pem(&pem).map_err(|why| foreign(&file, format!("holds {why}")))?;
        if !is_of_key(&cert, &key) {
            let why = format!(
                "does not match the key in {}: restore both from the same backup, or remove both and copy the new output of `farmem join` to each machine",
                key_file.display()
            );
            return Err(foreign(&file, why));
        }
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Returns the certificate as a PEM text.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Creates a new key, and a certificate of it for a server at this address.
    ///
    /// # Errors
    /// [`OpenError`] if the certificate cannot be created.
    pub fn identity(&self, address: IpAddr) -> Result<Identity, OpenError> {
        let made = || {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new([address.to_string()])?;
            params.distinguished_name.push(DnType::CommonName, "farmem control plane");
            params.use_authority_key_identifier_extension = true;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
            let cert = params.signed_by(&key, &self.issuer)?;
            Ok::<_, rcgen::Error>((cert.der().clone(), key.serialize_der()))
        };
        let (cert, key) =
            made().map_err(|why| unusable(&format!("make a certificate for {address}: {why}")))?;
        let key = PrivateKeyDer::try_from(key).map_err(|why| unusable(&format!("use a new key: {why}")))?;
        Identity::new(vec![cert], key).map_err(|why| unusable(&format!("use a new certificate: {why}")))
    }
}

/// The credentials by which an API server proves that it is the rack's.
#[derive(Clone)]
pub struct Identity(Arc<ServerConfig>);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Loads the certificates of one PEM file, the server's own first, and the key of another file.
    ///
    /// # Errors
    /// [`OpenError`] if a file cannot be read, other users can read the key, or certificate and key do not
    /// match.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, OpenError> {
        let text = read_pem(certificates)?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let chain = chain.map_err(|why| unfit("certificate", certificates, &format!("no PEM: {why}")))?;
        if chain.is_empty() {
            return Err(unfit("certificate", certificates, "it contains no certificate in PEM"));
        }
        let mut secret = String::new();
        read_private(key)?
            .take(PEM_MAX)
            .read_to_string(&mut secret)
            .map_err(OpenError::system(format!("read {}", key.display())))?;
        let secret = PrivateKeyDer::from_pem_slice(secret.as_bytes())
            .map_err(|why| unfit("key", key, &format!("it contains no key in PEM: {why}")))?;
        Self::new(chain, secret).map_err(|why| {
            unfit("certificate", certificates, &format!("it does not match the key {}: {why}", key.display()))
        })
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, rustls::Error> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Self(Arc::new(config)))
    }

    pub(super) fn acceptor(&self) -> Acceptor {
        Acceptor(Arc::clone(&self.0).into())
    }
}

/// Loads the certificate of an authority from a file that other users may read.
///
/// # Errors
/// [`OpenError`] if the file contains no such certificate.
pub fn read_ca(file: &Path) -> Result<(CaCert, String), OpenError> {
    let pem = read_pem(file)?;
    let cert = CaCert::from_pem(&pem).map_err(|why| unfit("ca", file, &why))?;
    Ok((cert, pem))
}

/// The TLS acceptor of a server.
#[derive(Clone)]
pub(super) struct Acceptor(pub(super) tokio_rustls::TlsAcceptor);

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the parameters of the authority's certificate. Its expiry is in the far future, because the
/// certificate ends with the rack.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// Returns the content of a private file; `make` creates the content if the file is empty.
fn load_or_write(
    file: &Path,
    make: impl FnOnce() -> Result<String, rcgen::Error>,
) -> Result<String, OpenError> {
    let cannot = |doing: &str| OpenError::system(format!("{doing} {}", file.display()));
    let (mut opened, mut text) = (private_file(file)?, String::new());
    (&opened).take(PEM_MAX).read_to_string(&mut text).map_err(cannot("read"))?;
    if text.trim().is_empty() {
        text = make().map_err(|why| unusable(&format!("make {}: {why}", file.display())))?;
        // The content must be on disk before its first use, so that it is the same after a power failure.
        let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
        let above = file.parent().unwrap_or(file);
        written.and_then(|()| fs::File::open(above)?.sync_all()).map_err(cannot("write"))?;
    }
    Ok(text)
}

/// Returns true if the certificate belongs to this key.
fn is_of_key(cert: &CaCert, key: &KeyPair) -> bool {
    PrivateKeyDer::try_from(key.serialize_der())
        .is_ok_and(|key| CertifiedKey::from_der(vec![cert.0.clone()], key, &provider()).is_ok())
}

fn read_pem(file: &Path) -> Result<String, OpenError> {
    let cannot = || OpenError::system(format!("read {}", file.display()));
    let mut text = String::new();
    fs::File::open(file).map_err(cannot())?.take(PEM_MAX).read_to_string(&mut text).map_err(cannot())?;
    Ok(text)
}

fn foreign(file: &Path, why: String) -> OpenError {
    OpenError::Foreign { path: file.into(), why }
}

fn unfit(setting: &'static str, file: &Path, why: &str) -> OpenError {
    OpenError::Setting { setting, value: file.display().to_string(), remedy: why.into() }
}

fn unusable(doing: &str) -> OpenError {
    OpenError::System { doing: doing.into(), source: std::io::ErrorKind::Other.into() }
}
