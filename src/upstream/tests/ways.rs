//! The way to an upstream: names, addresses, proxies, TLS.
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::upstream::proxy::Proxies;
use crate::upstream::resolve::Resolver;
use crate::wire::exchange::{FaultKind, Phase};

/// A client for which names below `test` have `addresses`, but `nowhere.test`, which does not exist.
pub(super) fn client_with(addresses: &[&str], config: ClientConfig) -> Client {
    let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let lookup = move |name: &str| match name {
        "nowhere.test" => Err(io::Error::other("no such name")),
        _ => Ok(addresses.clone()),
    };
    Client::resolving_by(Resolver::with(Arc::new(lookup)), config).unwrap()
}

fn proxied(variables: &[(&str, &str)]) -> ClientConfig {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    ClientConfig { proxies: Proxies::from_env(&variables), ca_file: Some(data("ca.pem")) }
}

pub(super) fn trusting() -> ClientConfig {
    proxied(&[])
}

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(file)
}

pub(super) type Tls = StreamOwned<ServerConnection, TcpStream>;

fn tls_config(certificate: &str) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_file(data(certificate)).unwrap();
    let key = PrivateKeyDer::from_pem_file(data("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    Arc::new(config)
}

/// Like [`Server::start`], speaking TLS.
pub(super) fn tls_server(certificate: &str, script: impl Fn(Tls) + Send + Sync + 'static) -> Server {
    let config = tls_config(certificate);
    Server::start(move |_, stream| {
        script(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream));
    })
}

fn echoing(mut stream: Tls) {
    while let Some(request) = read_request(&mut stream) {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        stream.write_all(ok(body).as_bytes()).unwrap();
    }
}

fn port(server: &Server) -> u16 {
    server.address.port()
}

/// A port that nobody listens on.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn far(url: &str) -> Provider {
    Provider { local: false, ..provider(url) }
}

#[test]
fn fo_06_what_fails_below_http_is_told_apart() {
    let check = |url: &str, kind: FaultKind, phase: Phase| {
        let fault = fault_of(ask(&client_with(&["127.0.0.1"], trusting()), &provider(url)));
        assert_eq!((fault.kind, fault.phase, fault.request_sent), (kind, phase, false), "{fault:?}");
    };
    check("http://nowhere.test", FaultKind::Dns, Phase::Resolve);
    check(&format!("http://up.test:{}", closed_port()), FaultKind::Refused, Phase::Connect);
    let plain = Server::start(|_, mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        wait_for_leave(&mut stream);
    });
    check(&format!("https://up.test:{}", port(&plain)), FaultKind::Tls, Phase::Connect);
    let leaving = Server::start(|_, _| {});
    check(&format!("https://up.test:{}", port(&leaving)), FaultKind::Closed, Phase::Connect);
}

#[test]
fn net_03_all_addresses_are_tried_in_turn() {
    let server = Server::saying(ok("{}"));
    let client = client_with(&["::1", "127.0.0.2", "127.0.0.1"], trusting());
    let provider = provider(&format!("http://up.test:{}", port(&server)));
    assert_eq!(ask(&client, &provider).unwrap(), "{}");
    let system = super::client();
    let by_name = super::provider(&format!("http://localhost:{}", port(&server)));
    assert_eq!(ask(&system, &by_name).unwrap(), "{}");
}

#[test]
fn link_local_and_metadata_addresses_are_refused_after_resolution() {
    let dead = proxied(&[("HTTP_PROXY", "http://127.0.0.1:9")]);
    for (addresses, url, config) in [
        (["169.254.169.254"], "http://up.test/latest", trusting()),
        (["fd00:ec2::254"], "http://up.test", trusting()),
        (["127.0.0.1"], "http://169.254.169.254", trusting()),
        (["127.0.0.1"], "http://[::ffff:169.254.169.254]", trusting()),
        (["127.0.0.1"], "http://100.100.100.200", dead),
    ] {
        let fault = fault_of(ask(&client_with(&addresses, config), &far(url)));
        assert_eq!((fault.kind, fault.request_sent), (FaultKind::BlockedAddress, false), "{url}");
    }
}

#[test]
fn net_02_a_dead_proxy_breaks_only_what_it_covers_and_is_named() {
    let server = Server::saying(ok("{}"));
    let dead = format!("http://127.0.0.1:{}", closed_port());
    let client = client_with(
        &["127.0.0.1"],
        proxied(&[("HTTPS_PROXY", &dead), ("HTTP_PROXY", &dead), ("NO_PROXY", "localhost,127.0.0.1")]),
    );
    assert_eq!(ask(&client, &far(&server.url())).unwrap(), "{}");
    assert_eq!(ask(&client, &provider(&format!("http://up.test:{}", port(&server)))).unwrap(), "{}");
    for (scheme, variable) in [("http", "HTTP_PROXY"), ("https", "HTTPS_PROXY")] {
        let fault = fault_of(ask(&client, &far(&format!("{scheme}://up.test:{}", port(&server)))));
        assert_eq!((fault.kind, fault.request_sent), (FaultKind::Proxy, false));
        assert!(fault.message.contains(variable), "{fault:?}");
    }
    let socks = client_with(&["127.0.0.1"], proxied(&[("ALL_PROXY", "socks5://127.0.0.1:9")]));
    let fault = fault_of(ask(&socks, &far(&format!("http://up.test:{}", port(&server)))));
    assert_eq!(fault.kind, FaultKind::Proxy);
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_plain_call_goes_through_a_proxy_in_absolute_form() {
    let (tell, told) = mpsc::channel();
    let proxy = Server::start(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            tell.send(request).unwrap();
            stream.write_all(ok("{}").as_bytes()).unwrap();
        }
    });
    let variable = format!("http://me:secret@{}", proxy.address);
    let client = client_with(&[], proxied(&[("HTTP_PROXY", &variable)]));
    for _ in 0..2 {
        assert_eq!(ask(&client, &far("http://up.test/v1")).unwrap(), "{}");
        let request = told.recv_timeout(PATIENCE).unwrap();
        assert!(request.starts_with("POST http://up.test/v1/chat/completions HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nproxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{request}");
        assert!(request.contains("\r\nhost: up.test\r\n"), "{request}");
    }
    assert_eq!(proxy.connections(), 1);
}

/// A proxy that answers `CONNECT` with `status` and then speaks TLS itself, as the peer would.
fn connect_proxy(status: &'static str) -> (Server, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let config = tls_config("server.pem");
    let server = Server::start(move |_, mut stream| {
        tell.send(read_request(&mut stream).unwrap()).unwrap();
        stream.write_all(format!("HTTP/1.1 {status}\r\nVia: x\r\n\r\n").as_bytes()).unwrap();
        if status.starts_with('2') {
            echoing(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream));
        }
    });
    (server, told)
}

#[test]
fn a_tls_call_goes_through_a_proxy_by_connect() {
    let (proxy, told) = connect_proxy("200 Fine");
    let variable = format!("http://me:secret@{}", proxy.address);
    let client = client_with(&[], proxied(&[("HTTPS_PROXY", &variable)]));
    for _ in 0..2 {
        assert_eq!(ask(&client, &far("https://up.test/v1")).unwrap(), "{\"model\":\"m\"}");
    }
    assert_eq!(
        told.recv_timeout(PATIENCE).unwrap(),
        "CONNECT up.test:443 HTTP/1.1\r\nHost: up.test:443\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n"
    );
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn a_proxy_that_refuses_is_blamed() {
    for status in ["407 Who?", "502 Bad"] {
        let (proxy, _told) = connect_proxy(status);
        let client = client_with(&[], proxied(&[("https_proxy", &proxy.address.to_string())]));
        let fault = fault_of(ask(&client, &far("https://up.test/v1")));
        assert_eq!((fault.kind, fault.phase, fault.request_sent), (FaultKind::Proxy, Phase::Connect, false));
        assert!(fault.message.contains("https_proxy"), "{fault:?}");
    }
}

#[test]
fn tls_carries_bodies_of_any_size_and_is_used_again() {
    let server = tls_server("server.pem", echoing);
    let client = client_with(&["127.0.0.1"], trusting());
    let provider = provider(&format!("https://up.test:{}/v1", port(&server)));
    for size in [1, 16_000, 16_384, 700_000] {
        let body = "x".repeat(size);
        let asked = Asked { body: body.as_bytes(), ..Asked::new(&client, &provider) };
        assert!(asked.text().unwrap() == body, "{size}");
    }
    let by_address = super::provider(&format!("https://127.0.0.1:{}/v1", port(&server)));
    assert_eq!(ask(&client, &by_address).unwrap(), "{\"model\":\"m\"}");
    assert_eq!(server.connections(), 2);
}

#[test]
fn tls_streams_and_ends_with_or_without_farewell() {
    for farewell in [true, false] {
        let server = tls_server("server.pem", move |mut stream| {
            read_request(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n").unwrap();
            stream.flush().unwrap();
            if farewell {
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
        });
        let client = client_with(&["127.0.0.1"], trusting());
        let provider = provider(&format!("https://up.test:{}", port(&server)));
        assert_eq!(ask(&client, &provider).unwrap(), "data: 1\n\n");
    }
    let short = tls_server("server.pem", |mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}").unwrap();
        stream.flush().unwrap();
    });
    let client = client_with(&["127.0.0.1"], trusting());
    let fault = fault_of(ask(&client, &provider(&format!("https://up.test:{}", port(&short)))));
    assert_eq!((fault.kind, fault.phase), (FaultKind::Closed, Phase::Stream));
}

#[test]
fn a_tls_call_is_cut_and_timed_out_like_any_other() {
    let server = tls_server("server.pem", |mut stream| {
        read_request(&mut stream);
        let mut sink = [0; 10];
        let _ = stream.read(&mut sink);
    });
    let client = client_with(&["127.0.0.1"], trusting());
    let provider = provider(&format!("https://up.test:{}", port(&server)));
    let watch = Watch::new(Instant::now() + Duration::from_millis(500));
    let fault = fault_of(Asked { watch, ..Asked::new(&client, &provider) }.text());
    assert_eq!((fault.kind, fault.phase), (FaultKind::Timeout, Phase::FirstByte));
    let asked = Asked::new(&client, &provider);
    let cut = Arc::clone(&asked.cut);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        cut.cut();
    });
    assert_eq!(fault_of(asked.text()).kind, FaultKind::Cut);
    let silent = Server::start(|_, mut stream| wait_for_leave(&mut stream));
    let mut provider = super::provider(&format!("https://up.test:{}", port(&silent)));
    provider.timeouts.connect_ms = 200;
    let fault = fault_of(ask(&client, &provider));
    assert_eq!((fault.kind, fault.phase), (FaultKind::Timeout, Phase::Connect));
}

#[test]
fn certificates_are_judged() {
    let check = |certificate: &str, host: &str, config: ClientConfig, kind: FaultKind, says: &str| {
        let server = tls_server(certificate, echoing);
        let client = client_with(&["127.0.0.1"], config);
        let fault = fault_of(ask(&client, &provider(&format!("https://{host}:{}", port(&server)))));
        assert_eq!((fault.kind, fault.phase, fault.request_sent), (kind, Phase::Connect, false));
        assert!(fault.message.contains(says), "{fault:?}");
    };
    check("server.pem", "up.test", ClientConfig::default(), FaultKind::Tls, "FREEWAY_CA_FILE");
    check("server.pem", "other.test", trusting(), FaultKind::Tls, "another name");
    check("expired.pem", "up.test", trusting(), FaultKind::Tls, "expired");
    check("not-yet.pem", "up.test", trusting(), FaultKind::CertNotYetValid, "clock");
}

#[test]
fn a_ca_file_that_is_none_is_refused_by_name() {
    for file in [data("missing.pem"), data("server.key"), data("README.md")] {
        let config = ClientConfig { ca_file: Some(file.clone()), ..ClientConfig::default() };
        let problem = Client::new(config).unwrap_err();
        assert!(problem.contains("FREEWAY_CA_FILE") && problem.contains(file.to_str().unwrap()), "{problem}");
    }
}
