//! Files that are built in as gzip, since they are rarely read or go out as they are. `build.rs` packs them.
use std::io::Read;

use flate2::bufread::GzDecoder;

/// A built-in file.
pub struct Packed {
    /// The file as gzip.
    pub gzip: &'static [u8],
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: &'static str,
}

/// The built-in file of a path; `build.rs` must know it.
macro_rules! packed {
    ($path:expr) => {
        $crate::base::packed::Packed {
            gzip: include_bytes!(concat!(env!("OUT_DIR"), "/", $path, ".gz")),
            sha256: include_str!(concat!(env!("OUT_DIR"), "/", $path, ".sha256")),
        }
    };
}
pub(crate) use packed;

impl Packed {
    /// How many bytes come out.
    pub fn length(&self) -> usize {
        // They end every gzip.
        self.gzip.last_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize)
    }

    /// The content.
    pub fn unpack(&self) -> Vec<u8> {
        let length = self.length();
        let mut content = Vec::with_capacity(length);
        // One more, so that it comes to the end and looks at the checksum.
        let unpacked = GzDecoder::new(self.gzip).take(length as u64 + 1).read_to_end(&mut content);
        unpacked.expect("what the build packed can be unpacked");
        content
    }

    /// The content of a text.
    pub fn text(&self) -> String {
        String::from_utf8(self.unpack()).expect("it is a text")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::base::text::hex;

    #[test]
    fn what_comes_out_is_what_the_build_put_in() {
        for (path, packed) in [
            ("www/page/app.js", packed!("www/page/app.js")),
            ("providers/_schema.json", packed!("providers/_schema.json")),
            ("deploy/freeway.service", packed!("deploy/freeway.service")),
        ] {
            let file = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the file is there");
            assert_eq!(packed.unpack(), file, "{path}");
            assert_eq!(packed.text().into_bytes(), file, "{path}");
            assert_eq!(packed.length(), file.len(), "{path}");
            assert_eq!(
                packed.sha256,
                hex(ring::digest::digest(&ring::digest::SHA256, &file).as_ref()),
                "{path}"
            );
            // No name, no date, of no system: two builds are one.
            assert_eq!(packed.gzip[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255], "{path}");
        }
    }
}
