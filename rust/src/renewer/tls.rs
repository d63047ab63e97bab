//! TLS for the renewer's connection: rustls with ring, set up the way redis-py's options say it.
//!
//! Promises: `verify = "required"` accepts a chain to `ca_certs` (or to the system's authorities when there is none),
//! or a certificate that itself stands in `ca_certs`, as OpenSSL does with a self-signed one.
//! Risks: such a self-signed certificate's dates are not looked at; names in CN alone and encrypted keys are refused;
//! `verify = "none"` stops no one in the middle.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::FromPyObject;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, StreamOwned,
};

/// The `tls` dict of `LeaseRenewer`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TlsOptions {
    ca_certs: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: String,
    verify: String,
    check_hostname: bool,
}

pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// TLS over `socket`, its handshake done. Certificate files are read anew each time: they may have been renewed.
pub fn wrap(mut socket: TcpStream, options: &TlsOptions) -> Result<TlsStream, String> {
    let config = Arc::new(options.config()?);
    let mut connection = ClientConnection::new(config, options.name()?).map_err(|error| error.to_string())?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|error| error.to_string())?;
    }
    Ok(StreamOwned::new(connection, socket))
}

impl TlsOptions {
    /// Err says which option cannot work.
    pub fn check(&self) -> Result<(), String> {
        self.config()?;
        self.name().map(|_| ())
    }

    fn name(&self) -> Result<ServerName<'static>, String> {
        ServerName::try_from(self.server_name.clone()).map_err(|_| {
            format!("expected a host name or address as tls server_name, came {:?}", self.server_name)
        })
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(self.verifier(Arc::clone(&provider))?);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        match (&self.cert, &self.key) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(cert), Some(key)) => {
                builder.with_client_auth_cert(read_certificates(cert)?, read_key(key)?).map_err(|error| {
                    format!("expected a tls cert and its key, came {}: {error}", cert.display())
                })
            }
            _ => Err("expected both tls cert and tls key, or neither, came one of them".to_owned()),
        }
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Verifier, String> {
        let required = match self.verify.as_str() {
            "required" => true,
            "none" => false,
            other => {
                return Err(format!("expected tls verify to be \"required\" or \"none\", came {other:?}"));
            }
        };
        let mut verifier = Verifier {
            provider,
            required,
            check_name: self.check_hostname,
            roots: RootCertStore::empty(),
            pinned: vec![],
        };
        match &self.ca_certs {
            Some(path) => {
                verifier.pinned = read_certificates(path)?;
                verifier.roots.add_parsable_certificates(verifier.pinned.iter().cloned());
            }
            None if required => {
                verifier.roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            None => {}
        }
        Ok(verifier)
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let expected = |came: String| format!("expected PEM certificates in {}, came {came}", path.display());
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err(expected("none".to_owned())),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(expected(error.to_string())),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        format!("expected an unencrypted PEM private key in {}, came {error}", path.display())
    })
}

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    required: bool,
    check_name: bool,
    roots: RootCertStore,
    /// The certificates of `ca_certs`: webpki refuses an authority's certificate as a server's, OpenSSL does not.
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.required {
            return Ok(ServerCertVerified::assertion());
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if !self.pinned.iter().any(|pinned| pinned == end_entity) {
            if self.roots.is_empty() {
                return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
            }
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        }
        if self.check_name {
            verify_server_name(&parsed, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
