//! How a command of the terminal reaches the gateway that runs on the same data folder, whatever its port and keys: by a
//! small file in that folder, with an address and a word that opens the owner's routes for as long as the process lives.
//! Whoever can read the folder could read everything else in it, too.
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::base::rng::fill_random;
use crate::base::text::{Secret, hex};
use crate::catalog::boxfile;
use crate::catalog::env::read_bounded;
use crate::http::rights::{Doorkeeper, sha256};
use crate::http::sock::{self, FolderLock};
use crate::service::reachable;
use crate::store::glance;

/// The name of the file in the data folder.
const FILE: &str = "freeway.running";
const FILE_BYTES_MAX: u64 = 4_096;
const WORD_BYTES: usize = 32;
/// To connect, and for the whole answer: a backup to a slow server takes its time.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ANSWER_MAX: Duration = Duration::from_secs(1_000);
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The file of a running gateway; it goes when this is dropped.
pub struct Opened(PathBuf);

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lets commands in. A folder that cannot be written keeps them out, which they tell.
pub fn open(data: &Path, address: SocketAddr, keeper: &Doorkeeper) -> Option<Opened> {
    let mut word = [0; WORD_BYTES];
    fill_random(&mut word);
    let word = hex(&word);
    let path = data.join(FILE);
    let text = json!({"address": address.to_string(), "word": word}).to_string();
    // A new file, and not synced: nobody needs it after a power cut, and the start would wait for the card.
    let _ = std::fs::remove_file(&path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).ok()?;
    file.write_all(text.as_bytes()).ok()?;
    keeper.command.get_or_init(|| sha256(&word));
    Some(Opened(path))
}

/// Where the gateway of a data folder listens, and the word that opens its routes to commands; a process that was killed
/// leaves it behind.
pub fn door(data: &Path) -> Option<(SocketAddr, Secret)> {
    let text = read_bounded(&data.join(FILE), FILE_BYTES_MAX).ok().flatten()?;
    let known: Value = serde_json::from_str(&text).ok()?;
    let bound: SocketAddr = known["address"].as_str()?.parse().ok()?;
    let address = SocketAddr::new(reachable(bound.ip()), bound.port());
    Some((address, Secret::new(known["word"].as_str()?)))
}

/// Asks the gateway of this data folder; `None` when none runs.
///
/// # Errors
/// What it answers that is no success, for people.
pub fn ask(data: &Path, method: &str, path: &str) -> Option<Result<Value, String>> {
    let (address, word) = door(data)?;
    // A file that a killed process left behind names a port where nobody listens.
    let stream = TcpStream::connect_timeout(&address, CONNECT_MAX).ok()?;
    let answered = exchange(stream, address, Some(&word), method, path, ANSWER_MAX);
    let told = match answered {
        Ok(Reply { status: 200, body }) => Ok(body),
        Ok(reply) => Err(reply.error()),
        Err(error) => Err(error.to_string()),
    };
    Some(told.map_err(|error| format!("the gateway at {address}: {error}")))
}

/// Has the gateway of this data folder, if one runs, read all files again, so that the next command finds it changed. It
/// would see the change by itself within seconds, so one that does not answer is no fault.
pub fn read_again(data: &Path) {
    if let Some((address, word)) = door(data).filter(|_| glance::is_owned(data)) {
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX);
        let _ = stream.and_then(|it| exchange(it, address, Some(&word), "POST", "/api/reload", CONNECT_MAX));
    }
}

/// Waits for the turn to change files of a data folder, which is made where there is none: a gateway that runs on it and
/// other commands change them, too.
pub fn turn(data: &Path) -> FolderLock {
    // What cannot be made cannot be written either, which the change itself will tell.
    let _ = boxfile::make_folder(data);
    sock::lock_folder(data)
}

/// What a gateway answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// `Null` for what is no JSON.
    pub body: Value,
}

impl Reply {
    /// What an error says, and for who lacks the right, what to do.
    pub fn error(&self) -> String {
        if matches!(self.status, 401 | 403) {
            return "it wants its admin key; set FREEWAY_ADMIN_KEY here as it is set there".into();
        }
        let message = self.body["error"]["message"].as_str();
        message.map_or_else(
            || "it answers with something else; is it another program?".to_owned(),
            str::to_owned,
        )
    }
}

/// Gets `path` from what listens at `address`, which has to answer at once.
pub fn get(address: SocketAddr, path: &str, key: Option<&Secret>) -> io::Result<Reply> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
    exchange(stream, address, key, "GET", path, CONNECT_MAX)
}

fn exchange(
    mut stream: TcpStream,
    address: SocketAddr,
    key: Option<&Secret>,
    method: &str,
    path: &str,
    patience: Duration,
) -> io::Result<Reply> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(CONNECT_MAX))?;
    let key = key.map(|key| format!("authorization: Bearer {}\r\n", key.expose())).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{key}content-type: application/json\r\ncontent-length: 0\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::other("what listens there does not speak HTTP"))
}

/// Our own answers of JSON are neither chunked nor compressed.
fn parse(answer: &[u8]) -> Option<Reply> {
    let end = memchr::memmem::find(answer, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Reply { status, body: serde_json::from_slice(&answer[end + 4..]).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_and_others_are_not() {
        let reply = parse(b"HTTP/1.1 404 Not Found\r\nx: y\r\n\r\n{\"error\":{\"message\":\"no\"}}")
            .expect("it is HTTP");
        assert_eq!((reply.status, reply.error().as_str()), (404, "no"));
        let html = parse(b"HTTP/1.1 502 Bad\r\n\r\n<html>").expect("it is HTTP");
        assert!(html.error().contains("another program"));
        assert!(
            parse(b"HTTP/1.1 403 No\r\n\r\n{}")
                .is_some_and(|reply| reply.error().contains("FREEWAY_ADMIN_KEY"))
        );
        for other in [&b"SSH-2.0-x\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 many\r\n\r\n"] {
            assert!(parse(other).is_none());
        }
    }
}
