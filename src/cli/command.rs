//! How a command of the terminal reaches the gateway that runs on the same data folder, whatever its port and keys: by a
//! small file in that folder, with an address and a word that opens the owner's routes for as long as the process lives.
//! Whoever can read the folder could read everything else in it, too.
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::running::exchange;
use crate::base::rng::fill_random;
use crate::base::text::{Secret, hex};
use crate::catalog::env::read_bounded;
use crate::http::rights::{Doorkeeper, sha256};
use crate::service::reachable;

/// The name of the file in the data folder.
const FILE: &str = "freeway.running";
const FILE_BYTES_MAX: u64 = 4_096;
const WORD_BYTES: usize = 32;
/// To connect, and for the whole answer: a backup to a slow server takes its time.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ANSWER_MAX: Duration = Duration::from_secs(1_000);

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

/// Asks the gateway of this data folder; `None` when none runs.
///
/// # Errors
/// What it answers that is no success, for people.
pub fn ask(data: &Path, method: &str, path: &str) -> Option<Result<Value, String>> {
    let text = read_bounded(&data.join(FILE), FILE_BYTES_MAX).ok().flatten()?;
    let known: Value = serde_json::from_str(&text).ok()?;
    let bound: SocketAddr = known["address"].as_str()?.parse().ok()?;
    let address = SocketAddr::new(reachable(bound.ip()), bound.port());
    // A file that a killed process left behind names a port where nobody listens.
    let stream = TcpStream::connect_timeout(&address, CONNECT_MAX).ok()?;
    let word = Secret::new(known["word"].as_str()?);
    let answered = match exchange(stream, method, path, Some(&word), ANSWER_MAX) {
        Ok(reply) if reply.status == 200 => Ok(reply.body),
        Ok(reply) => Err(reply.error()),
        Err(error) => Err(error.to_string()),
    };
    Some(answered.map_err(|error| format!("the gateway at {address}: {error}")))
}
