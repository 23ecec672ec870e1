//! The sealed container of a backup: a short head in plain, then pieces under AES-256-GCM. Every piece is bound to the
//! head and to its place, and the last one says that it is the last, so that nothing can be changed, moved or cut off
//! unnoticed. Written and read piece by piece: no archive is ever in memory as a whole.
//!
//! The head: magic (8 bytes), format (2), schema of the database in it (2), date in milliseconds since 1970 (8), rounds
//! of PBKDF2 (4), salt (16), a check value by which a wrong key is told from damage (16); numbers big-endian.
use std::fmt;
use std::io::{self, Read, Write};
use std::num::NonZeroU32;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hmac, pbkdf2};

use crate::base::rng::fill_random;

const MAGIC: [u8; 8] = *b"FWBACKUP";
const FORMAT: u16 = 1;
const HEAD_BYTES: usize = 56;
const SALT: std::ops::Range<usize> = 24..40;
const CHECK: std::ops::Range<usize> = 40..56;
/// Plain bytes of every piece but the last, and what sealing adds to each.
const PIECE_BYTES: usize = 64 * 1024;
const TAG_BYTES: usize = 16;
const SEALED_BYTES: usize = PIECE_BYTES + TAG_BYTES;
/// Behind the last piece, so that an archive that was cut is told from one that was changed. Nothing depends on it.
const END: [u8; 8] = *b"FWB-END\n";
/// Rounds of PBKDF2: a fraction of a second on a small machine, once a day.
const ROUNDS: u32 = if cfg!(test) { 1_000 } else { 200_000 };
/// A head that asks for more is none of ours.
const ROUNDS_MAX: u32 = 10_000_000;

const TOO_LONG: &str = "it is longer than its content";

/// Why an archive cannot be read.
#[derive(Debug)]
pub enum Fault {
    NotAnArchive,
    /// Its format, or the database in it, is of a later version of this program.
    Newer,
    WrongKey,
    /// It ends too early.
    Cut,
    /// It was changed, or its content makes no sense.
    Damaged(String),
    Io(io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotAnArchive => f.write_str("this is no backup of Freeway"),
            Fault::Newer => f.write_str("it was made by a newer version of this program; install that one first"),
            Fault::WrongKey => f.write_str(
                "the key does not open it; set FREEWAY_BACKUP_KEY to the key or the recovery key that it was made with",
            ),
            Fault::Cut => f.write_str("it is cut short: take another copy, or an older backup"),
            Fault::Damaged(what) => write!(f, "it is damaged ({what}): take another copy, or an older backup"),
            Fault::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    /// What a reader of sealed pieces found travels as an error of I/O through what reads from it.
    fn from(error: io::Error) -> Fault {
        let is_ours = error.get_ref().is_some_and(|inner| inner.is::<Fault>());
        match error.into_inner() {
            Some(inner) if is_ours => inner.downcast().map_or(Fault::Cut, |fault| *fault),
            Some(inner) => Fault::Io(io::Error::other(inner)),
            None => Fault::Io(io::ErrorKind::Other.into()),
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

/// What stands in the head for everybody to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The version of the database's tables.
    pub schema: u16,
    /// Milliseconds since 1970.
    pub created_ms: u64,
}

/// Seals what is written to it. Only [`Sealing::finish`] makes it whole.
pub struct Sealing<W: Write> {
    out: W,
    head: [u8; HEAD_BYTES],
    key: LessSafeKey,
    /// Plain bytes that do not fill a piece yet.
    piece: Vec<u8>,
    pieces: u64,
}

impl<W: Write> Sealing<W> {
    /// Writes the head.
    pub fn new(mut out: W, head: Head, key: &str) -> io::Result<Sealing<W>> {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT.to_be_bytes());
        bytes[10..12].copy_from_slice(&head.schema.to_be_bytes());
        bytes[12..20].copy_from_slice(&head.created_ms.to_be_bytes());
        bytes[20..24].copy_from_slice(&ROUNDS.to_be_bytes());
        fill_random(&mut bytes[SALT]);
        let (key, check) = derived(key, &bytes[SALT], ROUNDS);
        bytes[CHECK].copy_from_slice(&check);
        out.write_all(&bytes)?;
        Ok(Sealing { out, head: bytes, key, piece: Vec::with_capacity(SEALED_BYTES), pieces: 0 })
    }

    fn seal(&mut self, last: bool) -> io::Result<()> {
        let nonce = nonce(self.pieces, last);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(&self.head), &mut self.piece)
            .map_err(|_| io::Error::other("a piece cannot be sealed"))?;
        self.pieces += 1;
        self.out.write_all(&self.piece)?;
        self.piece.clear();
        Ok(())
    }

    /// Seals the rest as the last piece.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal(true)?;
        self.out.write_all(&END)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() == PIECE_BYTES {
            self.seal(false)?;
        }
        let taken = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens what [`Sealing`] wrote. Its errors hold a [`Fault`].
pub struct Opening<R: Read> {
    from: R,
    head: [u8; HEAD_BYTES],
    key: LessSafeKey,
    /// Sealed bytes that were read already. What follows a piece tells whether it is the last.
    ahead: Vec<u8>,
    /// Plain bytes, and how many of them were handed out.
    plain: Vec<u8>,
    taken: usize,
    pieces: u64,
    ended: bool,
}

impl<R: Read> Opening<R> {
    /// Reads the head and the first piece, and so finds out whether the key fits and the database in it has a version that
    /// is known.
    pub fn new(mut from: R, key: &str, schema_max: u16) -> Result<(Opening<R>, Head), Fault> {
        let mut bytes = [0; HEAD_BYTES];
        let got = read_up_to(&mut from, &mut bytes)?;
        let known = got.min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] || got == 0 {
            return Err(Fault::NotAnArchive);
        }
        if got < HEAD_BYTES {
            return Err(Fault::Cut);
        }
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if number(8) > FORMAT {
            return Err(Fault::Newer);
        }
        let rounds = u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        if number(8) != FORMAT || rounds == 0 || rounds > ROUNDS_MAX {
            return Err(Fault::Damaged("its head makes no sense".into()));
        }
        let mut created = [0; 8];
        created.copy_from_slice(&bytes[12..20]);
        let head = Head { schema: number(10), created_ms: u64::from_be_bytes(created) };
        let (key, check) = derived(key, &bytes[SALT], rounds);
        if check != bytes[CHECK] {
            return Err(Fault::WrongKey);
        }
        if head.schema > schema_max {
            return Err(Fault::Newer);
        }
        let (ahead, plain) = (Vec::new(), Vec::new());
        let mut opening = Opening { from, head: bytes, key, ahead, plain, taken: 0, pieces: 0, ended: false };
        opening.open_next()?;
        Ok((opening, head))
    }

    fn open_next(&mut self) -> Result<(), Fault> {
        let held = self.ahead.len();
        self.ahead.resize(SEALED_BYTES + END.len() + 1, 0);
        let got = held + read_up_to(&mut self.from, &mut self.ahead[held..])?;
        self.ahead.truncate(got);
        let last = got <= SEALED_BYTES + END.len();
        if last && !self.ahead.ends_with(&END) {
            // A whole archive with more behind it is not short.
            let longer = self.ahead.windows(END.len()).any(|bytes| bytes == END);
            return Err(if longer { Fault::Damaged(TOO_LONG.into()) } else { Fault::Cut });
        }
        let length = if last { got - END.len() } else { SEALED_BYTES };
        let mut piece = std::mem::take(&mut self.plain);
        piece.clear();
        piece.extend(self.ahead.drain(..length));
        let plain = self.key.open_in_place(nonce(self.pieces, last), Aad::from(&self.head), &mut piece);
        self.pieces += 1;
        let length = plain.map_err(|_| Fault::Damaged(format!("piece {} does not open", self.pieces)))?.len();
        piece.truncate(length);
        (self.plain, self.taken, self.ended) = (piece, 0, last);
        Ok(())
    }

    /// Expects that everything was read.
    pub fn expect_end(mut self) -> Result<(), Fault> {
        match self.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Fault::Damaged(TOO_LONG.into())),
        }
    }
}

impl<R: Read> Read for Opening<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.plain.len() {
            if self.ended {
                return Ok(0);
            }
            self.open_next()?;
        }
        let count = into.len().min(self.plain.len() - self.taken);
        into[..count].copy_from_slice(&self.plain[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

/// Fills `into` as far as there is something.
fn read_up_to(from: &mut impl Read, into: &mut [u8]) -> Result<usize, Fault> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// The key of this archive and its check value. Every archive has a salt of its own, so no key ever meets a nonce twice.
fn derived(key: &str, salt: &[u8], rounds: u32) -> (LessSafeKey, [u8; 16]) {
    let rounds = NonZeroU32::new(rounds).unwrap_or(NonZeroU32::MIN);
    let mut root = [0; 32];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, key.as_bytes(), &mut root);
    let root = hmac::Key::new(hmac::HMAC_SHA256, &root);
    let part = |name: &str| hmac::sign(&root, name.as_bytes());
    let sealing = UnboundKey::new(&AES_256_GCM, part("freeway backup 1: pieces").as_ref());
    let mut check = [0; 16];
    check.copy_from_slice(&part("freeway backup 1: check").as_ref()[..16]);
    (LessSafeKey::new(sealing.expect("32 bytes are a key of AES-256")), check)
}

fn nonce(piece: u64, last: bool) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&piece.to_be_bytes());
    nonce[11] = u8::from(last);
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "correct horse battery";
    const HEAD: Head = Head { schema: 3, created_ms: 1_796_000_000_000 };

    fn sealed(bytes: &[u8]) -> Vec<u8> {
        let mut sealing = Sealing::new(Vec::new(), HEAD, KEY).expect("memory takes it");
        sealing.write_all(bytes).expect("memory takes it");
        sealing.finish().expect("memory takes it")
    }

    fn opened(archive: &[u8], key: &str) -> Result<Vec<u8>, Fault> {
        let (mut opening, head) = Opening::new(archive, key, 3)?;
        assert_eq!(head, HEAD);
        let mut bytes = Vec::new();
        opening.read_to_end(&mut bytes)?;
        opening.expect_end()?;
        Ok(bytes)
    }

    fn word(result: &Result<Vec<u8>, Fault>) -> &'static str {
        match result {
            Ok(_) => "whole",
            Err(Fault::NotAnArchive) => "no archive",
            Err(Fault::Newer) => "newer",
            Err(Fault::WrongKey) => "wrong key",
            Err(Fault::Cut) => "cut",
            Err(Fault::Damaged(_)) => "damaged",
            Err(Fault::Io(_)) => "i/o",
        }
    }

    #[test]
    fn what_was_sealed_opens_whatever_its_length() {
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 200_000] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
            let archive = sealed(&bytes);
            assert_eq!(opened(&archive, KEY).expect("its own key"), bytes, "{length}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_archive_is_told_apart() {
        let archive = sealed(&[7; 3 * PIECE_BYTES]);
        let check = |archive: &[u8], key: &str, expected: &str| {
            assert_eq!(word(&opened(archive, key)), expected, "{} bytes", archive.len());
        };
        check(&archive, "another key altogether", "wrong key");
        check(b"", KEY, "no archive");
        check(b"PK\x03\x04 is a zip file", KEY, "no archive");
        check(&archive[..5], KEY, "cut");
        // Within the head, within a piece, at the border of two, and at the very end.
        let border = HEAD_BYTES + SEALED_BYTES;
        for length in [55, HEAD_BYTES, 65, border, border + 40_000, border + SEALED_BYTES, archive.len() - 1]
        {
            check(&archive[..length], KEY, "cut");
        }
        let changed = |at: usize| {
            let mut bytes = archive.clone();
            bytes[at] ^= 1;
            bytes
        };
        check(&changed(HEAD_BYTES + 3), KEY, "damaged");
        check(&changed(archive.len() - 20), KEY, "damaged");
        check(&changed(13), KEY, "damaged");
        let mut newer = archive.clone();
        newer[9] = 2;
        check(&newer, KEY, "newer");
        let mut schema = archive.clone();
        schema[11] = 4;
        check(&schema, KEY, "newer");
        let mut swapped = archive.clone();
        let (first, second) = swapped[HEAD_BYTES..].split_at_mut(SEALED_BYTES);
        first.swap_with_slice(&mut second[..SEALED_BYTES]);
        check(&swapped, KEY, "damaged");
        let mut longer = archive.clone();
        longer.extend_from_slice(&archive[HEAD_BYTES..]);
        check(&longer, KEY, "damaged");
        for more in [1, 20, SEALED_BYTES - 1, SEALED_BYTES, 2 * SEALED_BYTES] {
            check(&[&archive[..], &vec![b'\n'; more]].concat(), KEY, "damaged");
        }
        let small = sealed(&[7; 100]);
        check(&[&small[..], b"\n"].concat(), KEY, "damaged");
    }

    #[test]
    fn two_archives_of_the_same_have_nothing_in_common() {
        let (first, second) = (sealed(&[7; 1_000]), sealed(&[7; 1_000]));
        assert_ne!(first[SALT], second[SALT]);
        assert_ne!(first[HEAD_BYTES..], second[HEAD_BYTES..]);
    }
}
