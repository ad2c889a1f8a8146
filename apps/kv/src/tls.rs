//! The TLS settings of the server: certificates and keys from files.

use crate::operator::KvError;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether clients must have a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum AuthClients {
    /// Clients must have one, signed by the given authority.
    Yes,
    /// Clients may have one, signed by the given authority.
    Optional,
    /// Clients need no certificate.
    No,
}

/// The files of certificates and keys.
#[derive(Clone, Debug)]
pub(crate) struct Files<'a> {
    pub(crate) certificates: &'a Path,
    pub(crate) key: &'a Path,
    pub(crate) authority: Option<&'a PathBuf>,
    pub(crate) auth_clients: AuthClients,
}

/// Returns the settings of TLS 1.2 and 1.3.
///
/// # Errors
///
/// [`KvError::Settings`] with the file and its fault.
pub(crate) fn config(files: &Files<'_>) -> Result<Arc<ServerConfig>, KvError> {
    let wrong = |option: &str, file: &Path, why: &dyn std::fmt::Display| {
        KvError::Settings(format!("{option} {}: {why}", file.display()))
    };
    let certificates =
        certificates(files.certificates).map_err(|why| wrong("--tls-cert-file", files.certificates, &why))?;
    let key =
        PrivateKeyDer::from_pem_file(files.key).map_err(|why| wrong("--tls-key-file", files.key, &why))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| KvError::Settings(format!("TLS cannot be set up: {why}")))?;
    let builder = match (files.auth_clients, files.authority) {
        (AuthClients::No, _) => builder.with_no_client_auth(),
        (_, None) => {
            return Err(KvError::Settings(
                "clients are asked for certificates, and no --tls-ca-cert-file says of which authority; give one, or --tls-auth-clients no".into(),
            ));
        }
        (how, Some(file)) => {
            let mut roots = RootCertStore::empty();
            for certificate in
                self::certificates(file).map_err(|why| wrong("--tls-ca-cert-file", file, &why))?
            {
                roots.add(certificate).map_err(|why| wrong("--tls-ca-cert-file", file, &why))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier =
                if how == AuthClients::Optional { verifier.allow_unauthenticated() } else { verifier };
            builder.with_client_cert_verifier(
                verifier.build().map_err(|why| wrong("--tls-ca-cert-file", file, &why))?,
            )
        }
    };
    let config = builder.with_single_cert(certificates, key);
    config.map(Arc::new).map_err(|why| wrong("--tls-key-file", files.key, &why))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).map_err(|why| why.to_string())?.collect();
    let all = all.map_err(|why| why.to_string())?;
    if all.is_empty() { Err("it has no certificate in PEM form".into()) } else { Ok(all) }
}
