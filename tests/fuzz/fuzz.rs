//! The fuzzer: libFuzzer around one of the targets, which the variable `FUZZ_TARGET` names.
#![no_main]
mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| {
            // `run.py` asks for the list in this way.
            for target in TARGETS {
                println!("{} {}", target.name, target.bytes_max);
            }
            std::process::exit(0)
        })
    })
}

fuzz_target!(init: { target(); }, |input: &[u8]| (target().run)(input));
