//! TLS: whom we trust, at what time, and what its failures mean.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use super::watch::Current;
use crate::base::clock;
use crate::wire::exchange::{Fault, FaultKind};

/// Providers whose sessions are remembered, to shorten the next handshake.
const SESSIONS_MAX: usize = 64;

/// A configuration that trusts the roots of the web and those in `ca_file` (PEM, any number).
///
/// The error says what is wrong with the file.
pub(super) fn config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
        add_file(&mut roots, path)
            .map_err(|problem| format!("FREEWAY_CA_FILE ({}): {problem}", path.display()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(NotBeforeBuild))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
    Ok(Arc::new(config))
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let mut added = 0;
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
        added += 1;
    }
    if added == 0 { Err("it holds no certificate".into()) } else { Ok(()) }
}

/// The later of the clock and the build date: a box without a clock chip wakes up in the past.
#[derive(Debug)]
struct NotBeforeBuild;

impl TimeProvider for NotBeforeBuild {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(judged_at_s(clock::now().wall_ms))))
    }
}

fn judged_at_s(wall_ms: u64) -> u64 {
    (wall_ms / 1000).max(clock::built_s())
}

/// What a failure of TLS means. rustls's own words may hold the host, so they are not passed on.
pub(super) fn fault(error: &Error, call: &Current) -> Fault {
    use CertificateError as Bad;
    let kind = match error {
        Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            FaultKind::CertNotYetValid
        }
        _ => FaultKind::Tls,
    };
    let message = match error {
        Error::InvalidCertificate(problem) => match problem {
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "its certificate is not valid yet; is the clock of this box right?"
            }
            Bad::Expired | Bad::ExpiredContext { .. } => "its certificate has expired",
            Bad::UnknownIssuer => {
                "its certificate is signed by nobody that is trusted here; FREEWAY_CA_FILE adds an authority"
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                "its certificate is for another name"
            }
            _ => "its certificate is not acceptable",
        },
        Error::InvalidMessage(_) => "it does not speak TLS; should the base URL begin with http://?",
        Error::PeerIncompatible(_) => "it speaks no version or cipher of TLS that is safe",
        Error::AlertReceived(_) => "it refused the TLS handshake",
        _ => "TLS failed",
    };
    call.fault(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_behind_the_build_is_not_believed() {
        assert_eq!(judged_at_s(0), clock::built_s());
        assert_eq!(judged_at_s(4_000_000_000_000), 4_000_000_000);
        assert!(clock::built_s() > 1_700_000_000);
    }
}
