//! Stamps the build date, so that a box without a clock chip can tell that its clock is behind.
use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    // Not at every build: a stamp that moves would rebuild everything for nothing.
    println!("cargo:rerun-if-changed=Cargo.lock");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let stamp = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.trim().parse::<u64>().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("cargo:rustc-env=FREEWAY_BUILT_S={}", stamp.unwrap_or_else(now));
}
