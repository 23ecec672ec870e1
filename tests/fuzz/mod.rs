//! Replays the corpus of the fuzz targets: what once was a finding, and what reaches most of their code.
mod targets;

use std::fs;
use std::path::Path;

use targets::TARGETS;

/// The corpus is read by people who clone the repository, too.
const CORPUS_BYTES_MAX: u64 = 100 * 1024;

#[test]
fn the_corpus_finds_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut bytes = 0;
    for target in TARGETS {
        let folder = corpus.join(target.name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut inputs = 0;
        for file in files {
            let path = file.expect("a folder can be listed").path();
            let input = fs::read(&path).expect("a file of the repository");
            bytes += input.len() as u64;
            inputs += 1;
            let fine = std::panic::catch_unwind(|| (target.run)(&input)).is_ok();
            assert!(fine, "{} fails the target {}", path.display(), target.name);
        }
        assert!(inputs > 0, "nothing in {}", folder.display());
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes are too many");
}

#[test]
fn short_inputs_of_every_byte_find_nothing() {
    for target in TARGETS {
        (target.run)(&[]);
        for a in 0..=u8::MAX {
            (target.run)(&[a]);
            for b in [0, b'\n', b'\r', b' ', b'"', b'0', b':', b'{', b'}', 0x80, 0xff] {
                (target.run)(&[a, b]);
                (target.run)(&[0, a, b, a]);
            }
        }
        assert!(target.bytes_max > 0);
    }
}
