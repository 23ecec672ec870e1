//! A web server that keeps what is PUT to it, gives it again, and lets it be removed: as plain as backups need it.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What it was asked, and what it keeps by path.
#[derive(Default)]
struct Kept {
    files: BTreeMap<String, Vec<u8>>,
    /// Method, path, and `Authorization`.
    asked: Vec<(String, String, Option<String>)>,
    /// Answers everything with this instead.
    refusing: Option<u16>,
}

/// A running server. Its threads end with the process.
pub struct Shelf {
    kept: Arc<Mutex<Kept>>,
    addr: SocketAddr,
}

impl Shelf {
    pub fn start() -> Shelf {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("its address");
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let shared = Arc::clone(&kept);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up is the client's own affair.
                let _ = serve(stream, &shared);
            }
        });
        Shelf { kept, addr }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An address below which files can be put, with these credentials.
    pub fn url(&self, credentials: &str) -> String {
        format!("http://{credentials}{}/b", self.addr)
    }

    /// The names of all files, in order.
    pub fn names(&self) -> Vec<String> {
        self.kept().files.keys().cloned().collect()
    }

    pub fn file(&self, name: &str) -> Vec<u8> {
        self.kept().files.get(name).unwrap_or_else(|| panic!("no {name}")).clone()
    }

    pub fn asked(&self) -> Vec<(String, String, Option<String>)> {
        self.kept().asked.clone()
    }

    /// Answers everything with this status from now on; `None` mends it.
    pub fn refuse(&self, status: Option<u16>) {
        self.kept().refusing = status;
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Kept>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let field = |name: &str| {
        let found = head.iter().filter_map(|line| line.split_once(": "));
        found.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let mut words = head.first().map_or("", String::as_str).split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
    let mut body = vec![0; field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let (status, answer) = {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.asked.push((method.to_owned(), path.clone(), field("authorization")));
        match (kept.refusing, method) {
            (Some(status), _) => (status, Vec::new()),
            (None, "PUT") => {
                kept.files.insert(path, body);
                (201, Vec::new())
            }
            (None, "DELETE") => (if kept.files.remove(&path).is_some() { 204 } else { 404 }, Vec::new()),
            (None, _) => kept.files.get(&path).map_or((404, Vec::new()), |file| (200, file.clone())),
        }
    };
    let length = answer.len();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let stream = reader.get_mut();
    stream.write_all(head.as_bytes())?;
    stream.write_all(&answer)
}
