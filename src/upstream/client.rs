//! One call to one provider: builds the request, sends it, hands out the answer piece by piece.
//!
//! Says what happened, never what it means: statuses, retries at other providers and benches are judged elsewhere.
//! The one retry made here is silent: an idle connection that its peer has closed meanwhile.
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::net::TcpStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ureq::SendBody;
use ureq::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ureq::http::{self, Request, Response, Uri};

use super::cut::Cut;
use super::dial::{Dialer, Unresolved};
use super::gunzip::Gunzip;
use super::idle::Idle;
use super::proxy::Proxies;
use super::resolve::Resolver;
use super::transport::HEAD_BYTES_MAX;
use super::watch::{Current, Freshness, Look, Looking, Watch, enter};
use super::{tls, url};
use crate::catalog::provider::{Auth, Key, Provider};
use crate::wire::exchange::{Fault, FaultKind, Headers, Phase};

/// Longest whole answer, decoded.
pub const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// As much of an error answer as is read.
pub const ERROR_BYTES_MAX: usize = 64 * 1024;
/// How much is read at a time.
const PIECE_BYTES: usize = 16 * 1024;
/// Room for a common answer, and the least that a further read is worth.
const FIRST_BYTES: usize = 2 * 1024;
const SPARE_BYTES_MIN: usize = 256;
const USER_AGENT: &str = concat!("freeway/", env!("CARGO_PKG_VERSION"));

/// Headers that belong to the exchange itself. A provider file cannot set them.
const OWN_HEADERS: [HeaderName; 6] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::EXPECT,
    header::UPGRADE,
];

/// What a [`Client`] needs to know of its surroundings.
#[derive(Clone, Debug, Default)]
pub struct ClientConfig {
    /// Further authorities that may sign an upstream's certificate, PEM (`FREEWAY_CA_FILE`).
    pub ca_file: Option<PathBuf>,
    pub proxies: Proxies,
}

impl ClientConfig {
    /// What the variables say.
    pub fn from_variables(variables: &BTreeMap<String, String>) -> ClientConfig {
        let ca_file = variables.get("FREEWAY_CA_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        ClientConfig { ca_file, proxies: Proxies::from_env(variables) }
    }
}

/// Calls providers. One per process; its connections, names and TLS sessions are shared by all threads.
#[derive(Debug)]
pub struct Client {
    pub(super) agent: ureq::Agent,
    idle: Arc<Idle>,
    pub(super) proxies: Proxies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

/// One request to one provider.
#[derive(Debug)]
pub struct Call<'a> {
    pub provider: &'a Provider,
    pub key: &'a Key,
    pub method: Method,
    /// Below the provider's base URL; may hold a query.
    pub path: &'a str,
    /// JSON, in pieces that are sent one after another; ignored by [`Method::Get`].
    pub body: &'a [&'a [u8]],
    pub accept: Accept,
    pub cut: &'a Arc<Cut>,
    pub watch: &'a Rc<Watch>,
}

/// The kind of answer that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    Json,
    EventStream,
}

/// The head of an answer, whatever its status, and the way to its body.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// As sent: those about length, framing and coding describe the wire and not the decoded body.
    pub headers: Headers,
    pub body: ReplyBody,
}

impl Client {
    /// The error says what is wrong with the CA file.
    pub fn new(config: ClientConfig) -> Result<Client, String> {
        Client::resolving_by(Resolver::system(), config)
    }

    /// A client that asks `resolver` for addresses.
    pub(super) fn resolving_by(resolver: Resolver, config: ClientConfig) -> Result<Client, String> {
        let idle = Arc::new(Idle::default());
        let tls = tls::config(config.ca_file.as_deref())?;
        let dialer = Dialer { idle: Arc::clone(&idle), resolver, tls, looked_ms: AtomicU64::new(0) };
        let agent_config = ureq::config::Config::builder()
            .http_status_as_error(false)
            // A redirect would carry the key and the prompt to a place that nobody configured.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .max_response_header_size(HEAD_BYTES_MAX)
            .max_idle_connections(0)
            .user_agent(USER_AGENT)
            .accept_encoding("identity")
            .build();
        let agent = ureq::Agent::with_parts(agent_config, dialer, Unresolved);
        Ok(Client { agent, idle, proxies: config.proxies })
    }

    /// Sends a request and waits for the head of its answer, under the watch's deadline.
    pub fn send(&self, call: &Call<'_>) -> Result<Reply, Fault> {
        let uri = request_uri(call)?;
        let proxy = match call.provider.local {
            true => None,
            false => self.proxies.choose(&uri).cloned(),
        };
        let within = Duration::from_millis(call.provider.timeouts.connect_ms);
        let current = |freshness| Current::new(call.cut, call.watch, freshness, within, proxy.clone());
        let first = current(Freshness::Any);
        match self.exchange(call, uri.clone(), &first) {
            Err(fault) if died_idle(&first, &fault) => {
                drop(first);
                self.exchange(call, uri, &current(Freshness::New))
            }
            outcome => outcome,
        }
    }

    fn exchange(&self, call: &Call<'_>, uri: Uri, current: &Rc<Current>) -> Result<Reply, Fault> {
        let mut headers = request_headers(call, &uri, current)?;
        let entered = enter(current);
        let answered = match call.method {
            Method::Get => self.agent.run(request(http::Method::GET, uri, headers, ())),
            Method::Post => {
                let bytes: usize = call.body.iter().map(|piece| piece.len()).sum();
                headers.insert(header::CONTENT_LENGTH, bytes.into());
                let mut pieces = Pieces { piece: &[], rest: call.body };
                let body = SendBody::from_reader(&mut pieces);
                self.agent.run(request(http::Method::POST, uri, headers, body))
            }
        };
        drop(entered);
        let reply = answered.map_err(|error| fault_of(&error, current))?;
        if call.accept == Accept::Json {
            current.watch.set_phase(Phase::Stream);
        }
        Ok(Reply::new(reply, current))
    }

    /// Closes connections that have been idle for 50 s, and those that their peers have closed. To be called now and
    /// then; calls themselves only look at the connections that they take.
    pub fn close_idle(&self) {
        self.idle.sweep(Instant::now());
    }

    /// How many connections wait for a call.
    pub fn idle_connections(&self) -> usize {
        self.idle.len()
    }
}

/// A body in pieces, read as one.
struct Pieces<'a> {
    /// What is left of the piece being read.
    piece: &'a [u8],
    rest: &'a [&'a [u8]],
}

impl Read for Pieces<'_> {
    /// Gives as much as there is room for, so that short pieces do not become short writes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            if self.piece.is_empty() {
                let Some((next, rest)) = self.rest.split_first() else { break };
                (self.piece, self.rest) = (next, rest);
            }
            let count = self.piece.len().min(into.len() - filled);
            let (now, later) = self.piece.split_at(count);
            into[filled..filled + count].copy_from_slice(now);
            (self.piece, filled) = (later, filled + count);
        }
        Ok(filled)
    }
}

pub(super) fn request<B>(method: http::Method, uri: Uri, headers: HeaderMap, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}

fn request_uri(call: &Call<'_>) -> Result<Uri, Fault> {
    let auth = match &call.provider.auth {
        Auth::Query { param } => Some((param.as_str(), call.key.secret.expose())),
        _ => None,
    };
    let joined = url::join(&call.provider.base_url, call.path, auth.filter(|(_, secret)| !secret.is_empty()));
    let uri: Option<Uri> = joined.parse().ok();
    uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && has_sound_port(uri))
        .ok_or_else(|| unsendable("its base URL and path are no http:// or https:// URL"))
}

/// Whether there is a host, and behind it no port or one that is a port; `Uri` lets others pass as none.
pub(super) fn has_sound_port(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else { return false };
    let host = authority.host();
    !host.is_empty() && (authority.port_u16().is_some() || authority.as_str().ends_with(host))
}

fn request_headers(call: &Call<'_>, uri: &Uri, current: &Current) -> Result<HeaderMap, Fault> {
    let mut headers = HeaderMap::with_capacity(8);
    let accept = match call.accept {
        Accept::Json => "application/json",
        Accept::EventStream => "text/event-stream, application/json",
    };
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    if call.method == Method::Post {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in &call.provider.headers {
        let name = header_name(name)?;
        if !OWN_HEADERS.contains(&name) {
            headers.insert(name, header_value(value)?);
        }
    }
    let secret = call.key.secret.expose();
    match &call.provider.auth {
        _ if secret.is_empty() => {}
        Auth::Bearer { prefix } => {
            headers.insert(header::AUTHORIZATION, header_value(&format!("{prefix}{secret}"))?);
        }
        Auth::Header { name, prefix } => {
            headers.insert(header_name(name)?, header_value(&format!("{prefix}{secret}"))?);
        }
        Auth::Query { .. } | Auth::None => {}
    }
    let proxy = current.proxy.as_ref().filter(|_| uri.scheme_str() == Some("http"));
    if let Some(authorization) = proxy.and_then(|proxy| proxy.authorization.as_ref()) {
        headers.insert(header::PROXY_AUTHORIZATION, header_value(authorization.expose())?);
    }
    Ok(headers)
}

fn header_name(name: &str) -> Result<HeaderName, Fault> {
    name.parse().map_err(|_| unsendable("a header name of its file is not one"))
}

/// Faults never repeat the value: it may be a key.
fn header_value(value: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_str(value)
        .map_err(|_| unsendable("a header value or key holds characters that cannot be sent"))
}

/// A request that cannot be made from what the provider's file says.
fn unsendable(message: &str) -> Fault {
    Fault { phase: Phase::Resolve, kind: FaultKind::Protocol, message: message.into(), request_sent: false }
}

/// Whether the call met an idle connection that its peer had closed: no byte of an answer came, so it is asked again
/// on a new one. After the first byte the request may have been served, and nothing is repeated.
fn died_idle(current: &Current, fault: &Fault) -> bool {
    current.reused.get() && !current.answered.get() && fault.kind == FaultKind::Closed
}

/// What an error of ureq means; the transport knows better if the cause lies below HTTP.
pub(super) fn fault_of(error: &ureq::Error, current: &Current) -> Fault {
    if let Some(fault) = current.take_fault() {
        return fault;
    }
    match error {
        ureq::Error::LargeResponseHeader(..) => {
            current.fault(FaultKind::TooLarge, "the head of its answer is too long")
        }
        _ if current.ended.get() => current.closed(),
        _ => current.fault(FaultKind::Protocol, "what it sends is not HTTP/1.1"),
    }
}

impl Reply {
    pub(super) fn new(response: Response<ureq::Body>, call: &Rc<Current>) -> Reply {
        call.barren_bytes.set(0);
        let (parts, body) = response.into_parts();
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut headers = Headers::with_capacity(parts.headers.len());
        for (name, value) in &parts.headers {
            headers.push(name.as_str(), &String::from_utf8_lossy(value.as_bytes()));
        }
        let coding = parts.headers.get(header::CONTENT_ENCODING).map(text).unwrap_or_default();
        Reply {
            status: parts.status.as_u16(),
            headers,
            body: ReplyBody {
                reader: Some(body.into_reader()),
                call: Rc::clone(call),
                coding: Coding::named(coding.trim()),
                late: None,
            },
        }
    }
}

/// The body of an answer, decoded. Dropping it before its end closes the connection.
pub struct ReplyBody {
    /// Away while it is lent.
    reader: Option<ureq::BodyReader<'static>>,
    call: Rc<Current>,
    coding: Coding,
    /// What went wrong while it was lent.
    late: Option<io::Error>,
}

const HERE: &str = "a body is not read while its reader is lent";

enum Coding {
    Plain,
    /// We do not ask for it, and get it anyway.
    Gzip(Box<Inbound>),
    /// The status and headers are still worth having, so this fails only when the body is read.
    Unknown,
}

/// Bytes on their way into the decoder.
struct Inbound {
    gunzip: Gunzip,
    piece: Vec<u8>,
    start: usize,
    end: usize,
}

impl Coding {
    fn named(name: &str) -> Coding {
        if name.is_empty() || name.eq_ignore_ascii_case("identity") {
            Coding::Plain
        } else if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
            let piece = vec![0; PIECE_BYTES];
            Coding::Gzip(Box::new(Inbound { gunzip: Gunzip::new(), piece, start: 0, end: 0 }))
        } else {
            Coding::Unknown
        }
    }
}

impl ReplyBody {
    /// Reads what there is, blocking until there is something; 0 is the end of a whole body.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        if let Some(error) = self.late.take() {
            return Err(read_fault(&error, &self.call));
        }
        let _entered = enter(&self.call);
        let reader = self.reader.as_mut().expect(HERE);
        let packed = match &mut self.coding {
            Coding::Plain => return read_plain(reader, into, &self.call),
            Coding::Unknown => {
                let message = "its answer is compressed in a way that nobody asked for";
                return Err(self.call.fault(FaultKind::Protocol, message));
            }
            Coding::Gzip(packed) => packed,
        };
        loop {
            let (taken, made) = packed
                .gunzip
                .decode(&packed.piece[packed.start..packed.end], into)
                .map_err(|_| self.call.fault(FaultKind::Protocol, "its answer is damaged gzip"))?;
            packed.start += taken;
            if made > 0 || into.is_empty() {
                return Ok(made);
            }
            if packed.start == packed.end {
                (packed.start, packed.end) = (0, read_plain(reader, &mut packed.piece, &self.call)?);
                if packed.end == 0 {
                    let whole = packed.gunzip.is_whole();
                    return if whole { Ok(0) } else { Err(self.call.closed()) };
                }
            }
        }
    }

    /// Lends the way to the body to a thread that cannot wait for it. `None` when only the call itself can read on: its
    /// answer is packed, or it was cut.
    pub fn lend(&mut self) -> Option<Inflow> {
        let socket = self.call.cut.socket().filter(|_| matches!(self.coding, Coding::Plain))?;
        socket.set_nonblocking(true).ok()?;
        Some(Inflow { reader: self.reader.take()?, socket, late: None, barren_looks: 0 })
    }

    /// Takes back what was lent.
    pub fn take_back(&mut self, inflow: Inflow) {
        let Inflow { reader, socket, late, .. } = inflow;
        // Fails only for a socket that is no more, on which no read waits.
        let _ = socket.set_nonblocking(false);
        (self.reader, self.late) = (Some(reader), late);
    }

    /// The whole body; a fault if it is longer than `max_bytes` or not whole.
    pub fn read_all(&mut self, max_bytes: usize) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        let ended = self.append(&mut body, max_bytes.saturating_add(1))?;
        if ended { Ok(body) } else { Err(self.call.fault(FaultKind::TooLarge, "its answer is too long")) }
    }

    /// As much of the body as comes, up to `max_bytes`: for errors, where a part is better than nothing. The watch's
    /// deadline ends it, and so does whatever is wrong with the rest.
    pub fn read_some(&mut self, max_bytes: usize) -> Vec<u8> {
        let mut body = Vec::new();
        let _incomplete = self.append(&mut body, max_bytes);
        body
    }

    /// Reads until the end (true) or until `body` has `max_bytes` (false).
    fn append(&mut self, body: &mut Vec<u8>, max_bytes: usize) -> Result<bool, Fault> {
        loop {
            let known = body.len();
            if body.capacity() - known < SPARE_BYTES_MIN {
                // Grows with the body, so that a common answer costs one small allocation.
                body.reserve(known.clamp(FIRST_BYTES, PIECE_BYTES));
            }
            let room = (body.capacity() - known).min(PIECE_BYTES).min(max_bytes - known);
            if room == 0 {
                return Ok(false);
            }
            body.resize(known + room, 0);
            let read = self.read(&mut body[known..]);
            body.truncate(known + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Ok(true);
            }
        }
    }
}

/// The way to the body of an answer, lent to a thread that makes no call and never waits.
pub struct Inflow {
    reader: ureq::BodyReader<'static>,
    socket: Arc<TcpStream>,
    late: Option<io::Error>,
    /// Looks in a row at which something came, and none of it was of the body: parts of its framing.
    barren_looks: u32,
}

/// More of them, one after another, are no framing of an ordinary body.
const BARREN_LOOKS_MAX: u32 = 16;

/// What a look at a body showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    Bytes(usize),
    /// Nothing more has come.
    Nothing,
    /// The body has ended or broken off, or what came is no part of it: the call has to read on.
    Unclear,
}

impl Inflow {
    /// Reads what has come already. Looks at the socket at most once, and only if it `may_look`: what comes later shows
    /// there.
    pub fn read(&mut self, into: &mut [u8], may_look: bool) -> Glance {
        let _looking = Looking::begin(may_look);
        match self.reader.read(into) {
            Ok(count) if count > 0 => {
                self.barren_looks = 0;
                Glance::Bytes(count)
            }
            Ok(_) => Glance::Unclear,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                self.late = Some(error);
                Glance::Unclear
            }
            Err(_) if Look::now() == Look::Came => {
                self.barren_looks += 1;
                // The call counts what comes without being part of the body, and gives up on what has no end.
                if self.barren_looks > BARREN_LOOKS_MAX { Glance::Unclear } else { Glance::Nothing }
            }
            Err(_) if Look::now() == Look::Unclear => Glance::Unclear,
            Err(_) => Glance::Nothing,
        }
    }

    /// What further input shows on.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

fn read_plain(reader: &mut impl Read, into: &mut [u8], call: &Current) -> Result<usize, Fault> {
    let count = reader.read(into).map_err(|error| read_fault(&error, call))?;
    call.barren_bytes.set(0);
    Ok(count)
}

fn read_fault(error: &io::Error, call: &Current) -> Fault {
    match call.take_fault() {
        Some(fault) => fault,
        None if call.ended.get() => call.closed(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => call.closed(),
        None => call.fault(FaultKind::Protocol, "the framing of its answer is broken"),
    }
}

impl fmt::Debug for ReplyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyBody").finish_non_exhaustive()
    }
}
