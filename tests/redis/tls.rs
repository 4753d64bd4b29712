//! A server that is spoken to by TLS, with certificates that are made for each test.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tollgate::global::{AuthorityError, RedisAuthority, RedisAuthorityBuilder, RedisBuildError};

use crate::conformance::{exact, window};
use crate::live::ask;
use crate::named::{answers, batch};
use crate::server::{Server, free_port};

/// Somebody who signs certificates.
struct Signer(CertifiedIssuer<'static, KeyPair>);

impl Signer {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        // Not that of those it signs: they would seem to have signed themselves.
        params.distinguished_name.push(DnType::CommonName, "signer");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names, and its key.
    fn sign(&self, names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server that has a port with TLS beside the other one.
struct TlsServer {
    _server: Server,
    port: u16,
    folder: PathBuf,
}

impl TlsServer {
    fn new(signer: &Signer, names: &[&str], asks_clients: bool) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tollgate-tls-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (certificate, key) = signer.sign(names);
        let file = |name: &str, content: &str| {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let [certificate, key, ca] = [file("certificate", &certificate), file("key", &key), file("ca", &signer.pem())];
        let server = Server::with(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            if asks_clients { "yes" } else { "no" },
            "--requirepass",
            "correct-horse",
        ]);
        Self { _server: server, port, folder }
    }

    fn builder(&self) -> RedisAuthorityBuilder {
        RedisAuthority::builder(format!("rediss://:correct-horse@127.0.0.1:{}", self.port))
    }

    /// What a client is told that is refused.
    #[track_caller]
    fn refuses(&self, builder: RedisAuthorityBuilder) -> AuthorityError {
        let authority = builder.build().unwrap();
        let error = ask(&authority, &batch(1, None, window(100, 60), exact(1))).unwrap_err();
        let said = format!("{error} {error:?} {authority:?}");
        assert!(said.contains(&format!("Redis at 127.0.0.1:{}", self.port)), "{said}");
        for secret in ["correct-horse", "rediss://", "BEGIN"] {
            assert!(!said.contains(secret), "{said}");
        }
        assert!(error.wait().is_some(), "it is no use to try again at once");
        error
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn counts_three(builder: RedisAuthorityBuilder) {
    let authority = builder.build().unwrap();
    for number in 1..=3 {
        let after = (number > 1).then(|| number - 1);
        let reply = ask(&authority, &batch(number, after, window(100, 60), exact(1))).unwrap();
        assert_eq!(u64::from(answers(&reply)[0].room), 100 - number);
    }
}

#[test]
fn batches_are_carried_out_by_tls() {
    let signer = Signer::new();
    let server = TlsServer::new(&signer, &["127.0.0.1"], false);
    counts_three(server.builder().root_certificates(signer.pem()));
    // One of several.
    counts_three(server.builder().key_prefix("other").root_certificates(Signer::new().pem() + &signer.pem()));
}

#[test]
fn a_server_that_is_not_trusted_is_told_without_secrets() {
    let signer = Signer::new();
    let server = TlsServer::new(&signer, &["127.0.0.1"], false);
    // The system does not know who has signed it, and neither does another.
    for builder in [server.builder(), server.builder().root_certificates(Signer::new().pem())] {
        let error = server.refuses(builder).to_string();
        assert!(error.contains("certificate is not accepted") && error.contains("root_certificates"), "{error}");
    }
}

#[test]
fn a_certificate_for_another_name_is_told() {
    let signer = Signer::new();
    let server = TlsServer::new(&signer, &["redis.example"], false);
    let error = server.refuses(server.builder().root_certificates(signer.pem())).to_string();
    assert!(error.contains("certificate is not accepted") && error.contains("name"), "{error}");
}

#[test]
fn a_server_that_asks_who_the_client_is_is_told() {
    let signer = Signer::new();
    let server = TlsServer::new(&signer, &["127.0.0.1"], true);
    let builder = || server.builder().root_certificates(signer.pem());
    let error = server.refuses(builder());
    assert!(error.to_string().contains("client_certificate"), "{error}");
    let (chain, key) = signer.sign(&["a client"]);
    counts_three(builder().client_certificate(chain, key));
}

#[test]
fn a_port_without_tls_is_told() {
    let server = Server::new();
    let authority = RedisAuthority::builder(format!("rediss://127.0.0.1:{}", server.port)).build().unwrap();
    let error = ask(&authority, &batch(1, None, window(100, 60), exact(1))).unwrap_err();
    assert!(error.to_string().contains("speaks TLS on that port"), "{error}");
}

#[test]
fn certificates_that_make_no_sense_are_refused_when_built() {
    let refused = |builder: RedisAuthorityBuilder| {
        let error = builder.build().map(|_| ()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        error
    };
    let tls = || RedisAuthority::builder("rediss://:secret@host");
    for pem in ["", "secret", "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n"] {
        let error = refused(tls().root_certificates(pem));
        assert!(matches!(error, RedisBuildError::BadCertificate { .. }), "{error:?}");
    }
    let (chain, _) = Signer::new().sign(&["a client"]);
    assert!(matches!(refused(tls().client_certificate(chain, "secret")), RedisBuildError::BadCertificate { .. }));
    let plain = RedisAuthority::builder("redis://:secret@host").root_certificates(Signer::new().pem());
    assert!(matches!(refused(plain), RedisBuildError::CertificatesUnused));
}
