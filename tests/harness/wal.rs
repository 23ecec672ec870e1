//! SQLite's write-ahead log as it lies on the disk. Its size tells that something is being written; only a commit frame
//! tells that it will be there after a kill.
use super::Gateway;

/// Header of the log, and of each frame in it (sqlite.org/fileformat2.html, 4.1).
const LOG_HEAD_BYTES: usize = 32;
const FRAME_HEAD_BYTES: usize = 24;

/// Bytes of the gateway's log up to the end of its last commit.
pub fn committed_bytes(gateway: &Gateway) -> usize {
    let log = std::fs::read(gateway.folder().join("data/freeway.db-wal")).unwrap_or_default();
    let number = |at: usize| {
        log.get(at..at + 4).map_or(0, |four| u32::from_be_bytes(four.try_into().expect("four bytes")))
    };
    let frame_bytes = FRAME_HEAD_BYTES + number(8) as usize;
    let salts = log.get(16..24);
    let frames = (LOG_HEAD_BYTES..).step_by(frame_bytes).take_while(|at| at + frame_bytes <= log.len());
    // Frames of an earlier round of the log have other salts. A commit frame says how large the database is by it.
    let current = frames.take_while(|at| log.get(at + 8..at + 16) == salts);
    current.filter(|at| number(at + 4) != 0).last().map_or(0, |at| at + frame_bytes)
}
