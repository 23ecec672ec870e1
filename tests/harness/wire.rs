//! A raw HTTP/1.1 client: it sends exactly the bytes it is given, and sees each piece of the answer with the moment
//! of its arrival. It forgives nothing, since it stands for every client there is.
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::answer::{Answer, Event, Piece};
use super::request::Request;

/// How long any one wait may take before the test fails. Generous, because test machines are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The first lines of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub version: String,
    pub status: u16,
    /// Names in lower case, in order of arrival.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The first value under `name`, given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// How much of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing.
    Done,
    Bytes(u64),
    /// Chunks, until the empty one.
    Chunks,
    /// All until the peer closes.
    UntilClose,
    /// The peer closed or reset before the body was whole.
    Broken,
}

/// One connection.
pub struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    rest: Rest,
    /// Whether the last request was a `HEAD`, whose answer has no body.
    head_only: bool,
    asked_at: Instant,
}

impl Wire {
    pub fn connect(addr: SocketAddr) -> Wire {
        Wire::over(TcpStream::connect_timeout(&addr, PATIENCE).expect("the server accepts connections"))
    }

    /// The same from another address of this machine.
    pub fn connect_from(own: IpAddr, addr: SocketAddr) -> Wire {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::new(own, 0).into()).expect("the address is one of this machine");
        socket.connect_timeout(&addr.into(), PATIENCE).expect("the server accepts connections");
        Wire::over(socket.into())
    }

    fn over(stream: TcpStream) -> Wire {
        stream.set_nodelay(true).expect("a connected socket takes options");
        stream.set_read_timeout(Some(PATIENCE)).expect("a connected socket takes options");
        stream.set_write_timeout(Some(PATIENCE)).expect("a connected socket takes options");
        Wire { stream, unread: Vec::new(), rest: Rest::Done, head_only: false, asked_at: Instant::now() }
    }

    /// Sends these bytes and nothing else, in one write.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the server takes the request");
    }

    /// The same where the server may be gone.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        let bytes = bytes.as_ref();
        self.head_only = bytes.starts_with(b"HEAD ");
        self.asked_at = Instant::now();
        self.stream.write_all(bytes)
    }

    /// Sends a request and reads its whole answer.
    pub fn ask(&mut self, request: &Request) -> Answer {
        self.send(request.bytes());
        self.answer()
    }

    /// Ends our side of the connection; the other side stays open.
    pub fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("an open socket can be shut");
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
    }

    /// Reads the next answer whole, also when it breaks off. Interim answers (1xx) are passed over.
    pub fn answer(&mut self) -> Answer {
        let mut head = self.head();
        while head.status < 200 {
            head = self.head();
        }
        self.finish(head, Vec::new(), Vec::new())
    }

    /// Reads the next answer while `send` is called again and again on a thread of its own, until it fails or the
    /// answer is whole.
    pub fn answer_while(
        &mut self,
        mut send: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send,
    ) -> Answer {
        let mut hand = self.stream.try_clone().expect("a socket can be held twice");
        let answered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !answered.load(Ordering::SeqCst) {
                    if send(&mut hand).is_err() {
                        break;
                    }
                }
            });
            let answer = std::panic::catch_unwind(AssertUnwindSafe(|| self.answer()));
            answered.store(true, Ordering::SeqCst);
            answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Reads the head of the next answer; the body is for [`Wire::piece`].
    pub fn head(&mut self) -> Head {
        self.try_head()
            .unwrap_or_else(|| panic!("closed before a whole head; came: {:?}", lossy(&self.unread)))
    }

    /// The same; `None` when the peer closes first.
    pub fn try_head(&mut self) -> Option<Head> {
        let end = loop {
            if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                break at;
            }
            if !self.fill() {
                return None;
            }
        };
        let bytes: Vec<u8> = self.unread.drain(..end + 4).collect();
        let head = parse_head(&bytes[..end]);
        let length =
            head.header("content-length").map(|value| value.parse().expect("content-length is a number"));
        self.rest = match (head.header("transfer-encoding"), length) {
            (Some(_), Some(_)) => panic!("both framings in one head: {head:?}"),
            _ if self.head_only || head.status < 200 || head.status == 204 || head.status == 304 => {
                Rest::Done
            }
            (Some("chunked"), None) => Rest::Chunks,
            (Some(other), None) => panic!("transfer-encoding {other}"),
            (None, Some(0)) => Rest::Done,
            (None, Some(length)) => Rest::Bytes(length),
            (None, None) => Rest::UntilClose,
        };
        Some(head)
    }

    /// The next piece of the body: one chunk, or what one read brought. `None` at its end.
    pub fn piece(&mut self) -> Option<Vec<u8>> {
        match self.rest {
            Rest::Done | Rest::Broken => None,
            Rest::Chunks => self.chunk(),
            Rest::Bytes(left) => {
                let piece = self.some_bytes(usize::try_from(left).expect("test bodies fit in memory"));
                let left = left - piece.len() as u64;
                self.rest = match (left, piece.is_empty()) {
                    (0, _) => Rest::Done,
                    (_, true) => Rest::Broken,
                    (left, false) => Rest::Bytes(left),
                };
                (!piece.is_empty()).then_some(piece)
            }
            Rest::UntilClose => {
                let piece = self.some_bytes(usize::MAX);
                self.rest = if piece.is_empty() { Rest::Done } else { Rest::UntilClose };
                (!piece.is_empty()).then_some(piece)
            }
        }
    }

    /// Everything until the peer closes, without looking at it.
    pub fn until_close(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.unread)
    }

    /// Fails unless the peer closes now, without sending more.
    pub fn expect_closed(&mut self) {
        let more = self.until_close();
        assert!(more.is_empty(), "bytes where the end should be: {:?}", lossy(&more));
    }

    fn finish(&mut self, head: Head, mut body: Vec<u8>, mut pieces: Vec<Piece>) -> Answer {
        while let Some(piece) = self.piece() {
            body.extend_from_slice(&piece);
            pieces.push(Piece { end: body.len(), at: Instant::now() });
        }
        Answer { head, body, pieces, asked_at: self.asked_at, whole: self.rest == Rest::Done }
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let Some(line) = self.line() else {
            self.rest = Rest::Broken;
            return None;
        };
        let length =
            usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("not a chunk size: {line:?}"));
        while self.unread.len() < length + 2 {
            if !self.fill() {
                self.rest = Rest::Broken;
                return None;
            }
        }
        let mut piece: Vec<u8> = self.unread.drain(..length + 2).collect();
        assert!(piece.ends_with(b"\r\n"), "a chunk ends with a line end");
        piece.truncate(length);
        if piece.is_empty() {
            self.rest = Rest::Done;
            return None;
        }
        Some(piece)
    }

    fn line(&mut self) -> Option<String> {
        let end = loop {
            if let Some(at) = find(&self.unread, b"\r\n") {
                break at;
            }
            if !self.fill() {
                return None;
            }
        };
        let line: Vec<u8> = self.unread.drain(..end + 2).take(end).collect();
        Some(lossy(&line))
    }

    fn some_bytes(&mut self, most: usize) -> Vec<u8> {
        if self.unread.is_empty() {
            self.fill();
        }
        let count = self.unread.len().min(most);
        self.unread.drain(..count).collect()
    }

    /// Reads once; `false` at the end of the connection, orderly or not.
    fn fill(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.unread.extend_from_slice(&buffer[..count]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("nothing came for {PATIENCE:?}; unread: {:?}", lossy(&self.unread))
                }
                Err(_) => return false,
            }
        }
    }
}

/// An answer that is read while it comes. Dropping it is a client that leaves.
pub struct Live {
    wire: Wire,
    pub head: Head,
    body: Vec<u8>,
    pieces: Vec<Piece>,
    /// Where in `body` the next event begins.
    read_to: usize,
}

impl Live {
    /// Sends a request on a connection of its own and reads the head of the answer.
    pub fn open(mut wire: Wire, request: &Request) -> Live {
        wire.send(request.bytes());
        let head = wire.head();
        Live { wire, head, body: Vec::new(), pieces: Vec::new(), read_to: 0 }
    }

    /// The next event or comment; `None` at the end of the stream.
    pub fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(length) = find(&self.body[self.read_to..], b"\n\n") {
                let at = self.pieces.last().map_or(self.wire.asked_at, |piece| piece.at);
                let event = Event::parse(&self.body[self.read_to..self.read_to + length], at);
                self.read_to += length + 2;
                return Some(event);
            }
            let piece = self.wire.piece()?;
            self.body.extend_from_slice(&piece);
            self.pieces.push(Piece { end: self.body.len(), at: Instant::now() });
        }
    }

    /// Reads on until some text has come, and gives it.
    pub fn first_text(&mut self) -> String {
        loop {
            let event = self.event().expect("the stream brings text before it ends");
            let text = event.text();
            if !text.is_empty() {
                return text;
            }
        }
    }

    /// Reads the rest.
    pub fn finish(self) -> Answer {
        let Live { mut wire, head, body, pieces, .. } = self;
        wire.finish(head, body, pieces)
    }

    /// Goes away without a word.
    pub fn leave(self) {}

    /// Goes away with a reset.
    pub fn reset(self) {
        self.wire.reset();
    }
}

fn parse_head(bytes: &[u8]) -> Head {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|_| panic!("a head is text: {:?}", lossy(bytes)));
    let mut lines = text.split("\r\n");
    let status_line = lines.next().expect("split gives at least one");
    let mut words = status_line.splitn(3, ' ');
    let version = words.next().expect("split gives at least one").to_owned();
    assert!(version == "HTTP/1.1" || version == "HTTP/1.0", "status line {status_line:?}");
    let status = words.next().and_then(|word| word.parse().ok());
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("header line {line:?}"));
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers = lines.map(header).collect();
    Head { version, status: status.unwrap_or_else(|| panic!("status line {status_line:?}")), headers }
}

pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
