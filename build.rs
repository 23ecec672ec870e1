//! Packs the files that are built in, and stamps the build date, so that a box without a clock chip can tell that its
//! clock is behind.
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

/// What is packed as it is: files, and all that lies below folders.
const PACKED: [&str; 3] = ["www", "providers/_schema.json", "deploy/freeway.service"];

fn main() {
    // Not at every build: a stamp that moves would rebuild everything for nothing.
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.lock");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let stamp = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.trim().parse::<u64>().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("cargo:rustc-env=FREEWAY_BUILT_S={}", stamp.unwrap_or_else(now));

    let out = &PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a folder"));
    for name in PACKED {
        pack_all(Path::new(name), out).unwrap_or_else(|error| panic!("{name} cannot be packed: {error}"));
    }
    let packed =
        providers(Path::new("providers")).and_then(|all| pack(Path::new("providers/all"), &all, out));
    packed.unwrap_or_else(|error| panic!("the provider files cannot be packed: {error}"));
}

/// The provider files in one, since they are much alike; `catalog::bundled` takes them apart.
fn providers(folder: &Path) -> io::Result<Vec<u8>> {
    println!("cargo:rerun-if-changed={}", folder.display());
    let paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    let mut ids: Vec<&str> =
        paths.iter().filter_map(|path| path.file_name()?.to_str()?.strip_suffix(".json")).collect();
    ids.retain(|id| !id.starts_with(['_', '.']));
    ids.sort();
    let mut all = Vec::new();
    for id in ids {
        let text = fs::read_to_string(folder.join(format!("{id}.json")))?;
        write!(all, "{id}.json\n{text}\0")?;
    }
    Ok(all)
}

/// Packs a file; of a folder all files.
fn pack_all(path: &Path, out: &Path) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", path.display());
    if path.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| pack_all(&entry?.path(), out));
    }
    pack(path, &fs::read(path)?, out)
}

/// Writes a file as `OUT_DIR/<its path>.gz`, and the hash of its content beside it.
fn pack(path: &Path, content: &[u8], out: &Path) -> io::Result<()> {
    let beside = |extension: &str| out.join(format!("{}.{extension}", path.display()));
    fs::create_dir_all(beside("gz").parent().expect("it lies below the folder"))?;
    // Without a date and a name: the same content is the same binary.
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    fs::write(beside("gz"), encoder.finish()?)?;
    let hash: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(beside("sha256"), hash)
}
