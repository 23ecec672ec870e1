//! The page and the other files that browsers fetch: built in, each replaceable by one of the owner's folder.
//!
//! Nothing here knows what the page does. It says what the page may do: load what this gateway serves, and talk to it.
use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ring::digest::{SHA256, digest};

use super::answer::Answer;
use super::conn::Admission;
use super::head::Head;
use super::routes::Visit;
use crate::base::packed::{Packed, packed};
use crate::base::text::hex;
use crate::wire::error::ApiError;

/// What the page may do: run and show what we serve, and ask us. No markup can bring a script or a style of its own,
/// and nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Largest file that is taken from the owner's folder, in bytes.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// A built-in file.
struct Asset {
    /// Its path below `www/`.
    name: &'static str,
    /// Nearly every browser takes it as it is.
    packed: Packed,
}

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        [$(Asset { name: $name, packed: packed!(concat!("www/", $name)) }),*]
    };
}

/// Every file of `www/`, by name.
static ASSETS: [Asset; ASSET_COUNT] = assets![
    "index.html",
    "page/api.js",
    "page/app.js",
    "page/benches.js",
    "page/cache.js",
    "page/chart.js",
    "page/clients.js",
    "page/dom.js",
    "page/feed.js",
    "page/format.js",
    "page/gate.js",
    "page/guide.js",
    "page/icon.svg",
    "page/keys.js",
    "page/models.js",
    "page/overview.js",
    "page/page.css",
    "page/parts.js",
    "page/playground.js",
    "page/providers.js",
    "page/requests.js",
    "page/sessions.js",
    "page/settings.js",
    "page/snippets.js",
    "page/stream.js",
    "page/theme.js",
    "page/usage.js",
];
const ASSET_COUNT: usize = 27;

/// `GET /`.
pub fn index(visit: Visit<'_>) -> Admission {
    file(visit, "index.html")
}

/// `GET /page/*`: the page's scripts and styles.
pub fn part(visit: Visit<'_>) -> Admission {
    let name = format!("page/{}", visit.rest);
    file(visit, &name)
}

fn file(visit: Visit<'_>, name: &str) -> Admission {
    let snapshot = visit.gateway.snapshot();
    let own = snapshot.paths.www.as_deref().and_then(|folder| from_folder(folder, name)).map(Content::Own);
    let built_in =
        || ASSETS.iter().find(|asset| asset.name == name).map(|asset| Content::BuiltIn(&asset.packed));
    let answer = match own.or_else(built_in) {
        Some(content) => answer(visit.head, name, content),
        None => Answer::error(&ApiError::new(404, "not_found", "the page has no such file")),
    };
    visit.answer(answer)
}

/// What a name stands for.
enum Content {
    BuiltIn(&'static Packed),
    /// A file of the owner's folder.
    Own(Vec<u8>),
}

impl Content {
    /// Weak, since the same content goes out in two encodings.
    fn etag(&self) -> String {
        let hash = match self {
            Content::BuiltIn(packed) => packed.sha256.into(),
            Content::Own(bytes) => Cow::from(hex(digest(&SHA256, bytes).as_ref())),
        };
        format!("W/\"{hash:.16}\"")
    }
}

fn answer(head: &Head, name: &str, content: Content) -> Answer {
    let etag = content.etag();
    let known =
        head.header("if-none-match").is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag));
    let of_type = |body: Cow<'static, [u8]>| Answer::of_type(200, content_type(name), body);
    let base = match content {
        _ if known => Answer::empty(304),
        Content::BuiltIn(packed) if takes_gzip(head) => {
            of_type(packed.gzip.into()).header("content-encoding", "gzip")
        }
        Content::BuiltIn(packed) => of_type(packed.unpack().into()),
        Content::Own(bytes) => of_type(bytes.into()),
    };
    base.header("etag", etag)
        .header("vary", "accept-encoding")
        .header("cache-control", "no-cache")
        .header("content-security-policy", POLICY)
        .header("x-content-type-options", "nosniff")
        .header("x-frame-options", "DENY")
        .header("referrer-policy", "no-referrer")
        .header("cross-origin-opener-policy", "same-origin")
        .header("cross-origin-resource-policy", "same-origin")
}

/// Whether the client names gzip without refusing it.
fn takes_gzip(head: &Head) -> bool {
    head.header("accept-encoding").is_some_and(|codings| {
        codings.split(',').any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
            let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
            name.trim().eq_ignore_ascii_case("gzip") && weight != Some(0.0)
        })
    })
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        _ => "text/plain; charset=utf-8",
    }
}

/// A file of the owner's folder. Names are plain (letters, digits, `-`, `_`, `.` not at the beginning), so that none
/// leads out of it.
fn from_folder(folder: &Path, name: &str) -> Option<Vec<u8>> {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    if !name.split('/').all(plain) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(folder.join(name)).ok()?.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= FILE_MAX_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::http::head::check_head;

    /// What the page may weigh, all files together and uncompressed.
    const PAGE_MAX_BYTES: usize = 120 * 1024;

    fn head(fields: &str) -> Head {
        check_head(format!("GET / HTTP/1.1\r\nhost: g\r\n{fields}\r\n").as_bytes()).expect("well formed")
    }

    #[test]
    fn every_file_of_the_folder_is_built_in() {
        let www = Path::new(env!("CARGO_MANIFEST_DIR")).join("www");
        let mut found = BTreeSet::new();
        for folder in ["", "page"] {
            for entry in fs::read_dir(www.join(folder)).expect("the folder is there") {
                let path = entry.expect("it can be listed").path();
                if path.is_file() {
                    found.insert(path.strip_prefix(&www).map(PathBuf::from).expect("below www"));
                }
            }
        }
        assert_eq!(found, ASSETS.iter().map(|asset| PathBuf::from(asset.name)).collect());
    }

    #[test]
    fn the_page_is_small_and_brings_everything_itself() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.packed.length()).sum();
        assert!(bytes < PAGE_MAX_BYTES, "the page weighs {bytes} bytes");
        for asset in &ASSETS {
            let text = asset.packed.text();
            for banned in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(
                    !text.contains(banned),
                    "{}: {banned} could turn words of others into markup",
                    asset.name
                );
            }
            for begin in ["src=\"http", "href=\"http", "url(http", "@import", "src=\"//"] {
                assert!(!text.contains(begin), "{}: {begin} would fetch from elsewhere", asset.name);
            }
        }
    }

    #[test]
    fn what_the_browser_has_is_not_sent_again() {
        let asset = ASSETS.iter().find(|asset| asset.name == "page/icon.svg").expect("it is built in");
        let (whole, packed) = (asset.packed.length(), asset.packed.gzip.len());
        let own = || Content::Own(asset.packed.unpack());
        let tag = Content::BuiltIn(&asset.packed).etag();
        assert_eq!(own().etag(), tag, "the same content has the same tag, wherever it comes from");
        assert_ne!(Content::Own(b"another".into()).etag(), tag);
        let check = |content: Content, fields: &str, expected: (u16, Option<&str>, usize)| {
            let answer = answer(&head(fields), asset.name, content);
            let get =
                |name| answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value);
            assert_eq!((answer.status, get("content-encoding"), answer.body.len()), expected, "{fields}");
            assert_eq!(get("etag"), Some(&*tag), "{fields}");
        };
        let has = format!("if-none-match: W/\"0\", {tag}\r\naccept-encoding: gzip\r\n");
        for (fields, status, is_packed) in [
            ("", 200, false),
            ("accept-encoding: br, gzip\r\n", 200, true),
            ("accept-encoding: gzip;q=0\r\n", 200, false),
            (&has, 304, false),
            ("if-none-match: W/\"0\"\r\n", 200, false),
        ] {
            let (coding, bytes) = if is_packed { (Some("gzip"), packed) } else { (None, whole) };
            let length = |bytes| if status == 304 { 0 } else { bytes };
            check(Content::BuiltIn(&asset.packed), fields, (status, coding, length(bytes)));
            check(own(), fields, (status, None, length(whole)));
        }
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("www");
        assert!(from_folder(&folder, "index.html").is_some());
        for name in
            ["../Cargo.toml", "page/../../Cargo.toml", "/etc/hostname", "", ".hidden", "page", "%2e%2e/x"]
        {
            assert!(from_folder(&folder, name).is_none(), "{name}");
        }
    }
}
