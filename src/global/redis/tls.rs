//! Certificates, for a server that is spoken to by TLS.

use ::redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::RedisBuildError;

/// Those that were given, in PEM.
#[derive(Default)]
pub(super) struct Certificates {
    pub(super) roots: Option<Vec<u8>>,
    /// A chain, and a key.
    pub(super) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// A client that goes by these.
    pub(super) fn client(self, info: ConnectionInfo) -> Result<Client, RedisBuildError> {
        let Self { roots, client } = self;
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            if roots.is_some() || client.is_some() {
                return Err(RedisBuildError::CertificatesUnused);
            }
            return Client::open(info).map_err(|_| RedisBuildError::BadAddress);
        }
        // With none, or with more than one to choose from, rustls would panic.
        _ = rustls::crypto::ring::default_provider().install_default();
        let chain = client.as_ref().map(|(chain, _)| chain);
        for (what, pem) in [("the root certificates", roots.as_ref()), ("the client's certificate", chain)] {
            if pem.is_some_and(|pem| CertificateDer::pem_slice_iter(pem).next().is_none()) {
                return Err(RedisBuildError::BadCertificate { reason: format!("{what} hold none") });
            }
        }
        let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: roots })
            .map_err(|error| RedisBuildError::BadCertificate { reason: error.to_string() })
    }
}
