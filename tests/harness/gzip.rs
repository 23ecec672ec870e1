//! Packed bodies, honest ones and bombs.
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A whole gzip file of these bytes.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("a Vec takes every write");
    encoder.finish().expect("a Vec takes every write")
}

/// The beginning of a gzip file that unpacks to `start` and then `filler`, `bytes` times; its end never comes.
pub fn gzip_bomb(start: &str, filler: u8, bytes: usize) -> Vec<u8> {
    const BLOCK_BYTES: usize = 64 * 1024;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let mut write = |piece: &[u8]| {
        encoder.write_all(piece).expect("a Vec takes every write");
        encoder.flush().expect("a Vec takes every write");
        encoder.get_ref().len()
    };
    write(start.as_bytes());
    // From the second block on each only says "what was before, again", so that they are all alike.
    let from = write(&[filler; BLOCK_BYTES]);
    let to = write(&[filler; BLOCK_BYTES]);
    let mut packed = encoder.get_ref().clone();
    for _ in 0..bytes / BLOCK_BYTES {
        packed.extend_from_within(from..to);
    }
    packed
}
