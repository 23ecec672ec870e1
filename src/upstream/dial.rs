//! Finds or makes the connection for a call: an idle one, else name, addresses, proxy and TLS in turn.
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver as NameResolver};
use ureq::unversioned::transport::{ConnectionDetails, Connector, NextTimeout};

use super::idle::Idle;
use super::proxy::Proxy;
use super::resolve::Resolver;
use super::transport::Line;
use super::watch::{Current, Freshness, current};
use super::wire::{Peer, Wire};
use crate::base::clock;
use crate::wire::exchange::{Fault, FaultKind, Phase};

/// Longest wait for one of several addresses; the last one has all the time that is left.
const ADDRESS_WAIT_MAX: Duration = Duration::from_millis(2_500);
/// How often idle connections are checked for a way to their peer, all together; it costs three system calls.
const LOOK_EVERY_MS: u64 = 5;
/// A peer that acknowledges nothing for so long is gone, however long it may think about an answer. Also the longest
/// that one may leave a large request unread.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);
/// Longest answer of a proxy to `CONNECT`.
const PROXY_HEAD_BYTES_MAX: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct Dialer {
    pub idle: Arc<Idle>,
    pub resolver: Resolver,
    pub tls: Arc<ClientConfig>,
    /// When a way to some peer was last found.
    pub looked_ms: AtomicU64,
}

/// ureq resolves before it asks for a connection, also when an idle one will do. We resolve when dialling instead.
#[derive(Debug)]
pub(super) struct Unresolved;

impl NameResolver for Unresolved {
    fn resolve(
        &self,
        _: &Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        Ok(self.empty())
    }
}

impl Connector for Dialer {
    type Out = Line;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Line>, ureq::Error> {
        let call = current()?;
        self.line(details.uri, &call).map(Some).map_err(|fault| call.fail(fault))
    }
}

impl Dialer {
    fn line(&self, uri: &Uri, call: &Current) -> Result<Line, Fault> {
        let peer = peer_of(uri, call.proxy.as_deref());
        if call.freshness == Freshness::Any {
            while let Some(wire) = self.idle.take(&peer, Instant::now()) {
                if wire.is_idle() && self.has_way(&wire) {
                    call.hold(wire.socket())?;
                    call.reused.set(true);
                    call.watch.set_phase(Phase::Send);
                    return Ok(Line::new(wire, &self.idle));
                }
            }
        }
        let mut wire = self.open(peer, call).map_err(|fault| match call.proxy.as_deref() {
            Some(proxy) => blame_proxy(fault, proxy, call),
            None => fault,
        })?;
        if wire.peer.tls {
            wire.start_tls(&self.tls, call)?;
        }
        call.connect_by.set(None);
        call.watch.set_phase(Phase::Send);
        Ok(Line::new(wire, &self.idle))
    }

    /// Whether there is still a way to the peer of an idle connection. What is sent into a network that is gone comes back
    /// as silence, and the call would wait for nothing; that it is gone shows when dialling anew.
    fn has_way(&self, wire: &Wire) -> bool {
        let now_ms = clock::uptime_ms();
        let looked_ms = self.looked_ms.load(Ordering::Relaxed);
        if looked_ms > 0 && now_ms < looked_ms + LOOK_EVERY_MS {
            return true;
        }
        let has_way = wire.has_way();
        if has_way {
            self.looked_ms.store(now_ms, Ordering::Relaxed);
        }
        has_way
    }

    /// A connection to the peer or to the proxy before it, through that if it is one.
    fn open(&self, peer: Peer, call: &Current) -> Result<Wire, Fault> {
        call.watch.set_phase(Phase::Resolve);
        // The name, the connection and TLS share one limit: a resolver that hangs is no better than a dead peer.
        call.connect_by.set(Some(Instant::now() + call.connect_within));
        let (host, port) = match call.proxy.as_deref() {
            Some(proxy) => {
                self.resolver.refuse_literal(&peer.host, call)?;
                if let Some(defect) = &proxy.defect {
                    return Err(call.fault(FaultKind::Proxy, defect.as_str()));
                }
                (&*proxy.host, proxy.port)
            }
            None => (&*peer.host, peer.port),
        };
        let addresses = self.resolver.resolve(host, call)?;
        call.watch.set_phase(Phase::Connect);
        let socket = self.connect_any(host, port, &addresses, call)?;
        let mut wire = Wire::new(peer, socket);
        if let Some(proxy) = call.proxy.as_deref().filter(|_| wire.peer.tls) {
            tunnel(&mut wire, proxy, call)?;
        }
        Ok(wire)
    }

    /// Tries every address in turn.
    fn connect_any(
        &self,
        host: &str,
        port: u16,
        addresses: &[IpAddr],
        call: &Current,
    ) -> Result<Arc<TcpStream>, Fault> {
        let mut fault = None;
        for (i, address) in addresses.iter().enumerate() {
            call.patience()?;
            let deadline = call.watch.deadline().min(call.connect_by.get().unwrap_or(call.watch.deadline()));
            let left = deadline.saturating_duration_since(Instant::now());
            let within = match addresses.len() - i {
                1 => left,
                others => ADDRESS_WAIT_MAX.min(left / others as u32),
            };
            match connect(SocketAddr::new(*address, port), within.max(Duration::from_millis(1)), call) {
                Ok(socket) => {
                    if addresses.len() > 1 {
                        self.resolver.works(host, *address);
                    }
                    return Ok(socket);
                }
                Err(failed) if failed.kind == FaultKind::Cut => return Err(failed),
                // A family that this box has no route for says less than a peer that refused.
                Err(failed) if failed.kind == FaultKind::Unreachable => fault = fault.or(Some(failed)),
                Err(failed) => fault = Some(failed),
            }
        }
        self.resolver.forget(host);
        Err(fault.unwrap_or_else(|| call.fault(FaultKind::Dns, "its name has no address")))
    }
}

fn peer_of(uri: &Uri, proxy: Option<&Proxy>) -> Peer {
    let tls = uri.scheme_str() == Some("https");
    Peer {
        tls,
        host: uri.host().unwrap_or_default().trim_matches(['[', ']']).into(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        proxy: proxy.map(|proxy| proxy.variable.as_str().into()),
    }
}

/// Connects one socket, which a cut shuts down also while it connects.
fn connect(address: SocketAddr, within: Duration, call: &Current) -> Result<Arc<TcpStream>, Fault> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .and_then(|socket| socket.set_tcp_nodelay(true).map(|()| socket))
        .map_err(|error| connect_fault(&error, call))?;
    let socket: Arc<TcpStream> = Arc::new(socket.into());
    call.hold(&socket)?;
    let connected = SockRef::from(&*socket).connect_timeout(&address.into(), within);
    // Without it the call waits as long as for an answer, which does no harm either.
    let _ = SockRef::from(&*socket).set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
    match connected {
        _ if call.cut.is_cut() => Err(call.cut_fault()),
        Ok(()) => Ok(socket),
        Err(error) => Err(connect_fault(&error, call)),
    }
}

fn connect_fault(error: &io::Error, call: &Current) -> Fault {
    use io::ErrorKind;
    match error.kind() {
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            call.fault(FaultKind::Exhausted, "this gateway has no descriptor left for a connection")
        }
        ErrorKind::ConnectionRefused => call.fault(FaultKind::Refused, "the connection was refused"),
        ErrorKind::TimedOut => call.timeout(),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => call.closed(),
        // No route, network down: the system's own words are short and hold no address.
        _ => call.fault(FaultKind::Unreachable, format!("no connection: {error}")),
    }
}

/// Asks the proxy for a way through to the peer (RFC 9110, 9.3.6).
fn tunnel(wire: &mut Wire, proxy: &Proxy, call: &Current) -> Result<(), Fault> {
    let place = format!("{}:{}", wire.peer.host_in_url(), wire.peer.port);
    let mut request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n");
    if let Some(authorization) = &proxy.authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization.expose());
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    wire.send(request.as_bytes(), call)?;
    let mut head = Vec::new();
    // The peer says nothing before TLS begins, so that what is read here is the proxy's.
    while memchr::memmem::find(&head, b"\r\n\r\n").is_none() {
        let mut piece = [0; 1024];
        let read = wire.receive(&mut piece, call)?;
        if read == 0 || head.len() + read > PROXY_HEAD_BYTES_MAX {
            return Err(call.fault(FaultKind::Proxy, "it gave no proper answer to CONNECT"));
        }
        head.extend_from_slice(&piece[..read]);
    }
    let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    match status {
        [b'2', ..] => Ok(()),
        b"407" => Err(call.fault(FaultKind::Proxy, "it wants other credentials")),
        _ => {
            let status = String::from_utf8_lossy(status.get(..3).unwrap_or(status)).into_owned();
            Err(call.fault(FaultKind::Proxy, format!("it answered CONNECT with {status:?}")))
        }
    }
}

/// A failure on the way to the proxy, or in it, is the proxy's, and says which one it is.
fn blame_proxy(fault: Fault, proxy: &Proxy, call: &Current) -> Fault {
    match fault.kind {
        FaultKind::Cut | FaultKind::BlockedAddress => fault,
        _ => call.fault(FaultKind::Proxy, format!("the proxy of {}: {}", proxy.variable, fault.message)),
    }
}
