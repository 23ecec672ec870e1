//! The page's files as browsers get them: those of `www/` in either encoding, unless the owner's folder has others.
use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::harness::*;

/// Each file of `www/`: where it is asked for, and what is in it.
fn files() -> Vec<(String, Vec<u8>)> {
    let www = Path::new(env!("CARGO_MANIFEST_DIR")).join("www");
    let parts = fs::read_dir(www.join("page")).expect("the folder is there").map(|entry| {
        let name = entry.expect("it can be listed").file_name();
        format!("/page/{}", name.to_string_lossy())
    });
    parts
        .chain(["/".to_owned()])
        .map(|path| {
            let name = if path == "/" { "index.html" } else { path.trim_start_matches('/') };
            let content = fs::read(www.join(name)).expect("it can be read");
            (path, content)
        })
        .collect()
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut content).expect("whole and sound");
    content
}

#[test]
fn what_is_served_is_what_lies_in_www_in_both_encodings() {
    let (_alpha, gateway) = gateway_over([]);
    let files = files();
    assert!(files.len() > 20, "{} files", files.len());
    for (path, content) in files {
        let whole = gateway.get(&path);
        assert_eq!((whole.status(), whole.header("content-encoding")), (200, None), "{path}");
        assert!(whole.body == content, "{path} is another file");
        let tag = whole.header("etag").expect("a tag").to_owned();
        assert!(tag.starts_with("W/"), "{path}: two encodings, one tag: {tag}");

        let packed = gateway.send(&Request::get(&path).header("accept-encoding", "gzip, deflate, br"));
        assert_eq!((packed.status(), packed.header("content-encoding")), (200, Some("gzip")), "{path}");
        assert!(unpacked(&packed.body) == content, "{path} is another file when packed");
        assert!(packed.body.len() < content.len(), "{path}: packing is to some end");
        assert_eq!(packed.header("etag"), Some(&*tag), "{path}");
        assert_eq!(packed.header("vary"), Some("accept-encoding"), "{path}");

        for coding in ["gzip", "identity"] {
            let known = Request::get(&path).header("if-none-match", &tag).header("accept-encoding", coding);
            let answer = gateway.send(&known);
            assert_eq!((answer.status(), answer.body.len()), (304, 0), "{path}, {coding}");
        }
    }
}

#[test]
fn a_file_of_the_owners_folder_takes_the_place_of_ours() {
    let alpha = mock("alpha");
    let builder = Gateway::builder().provider(provider(&alpha)).env("FREEWAY_WWW", "mine");
    let builder = builder.folder("mine").folder("mine/page");
    let gateway = builder.file("mine/page/theme.js", "// mine\n").start();
    let ask = |path: &str| gateway.send(&Request::get(path).header("accept-encoding", "gzip"));
    let mine = ask("/page/theme.js");
    assert_eq!((mine.text().as_str(), mine.header("content-encoding")), ("// mine\n", None));
    let tag = mine.header("etag").expect("a tag").to_owned();
    assert_eq!(ask("/page/app.js").header("content-encoding"), Some("gzip"), "the others stay ours");

    gateway.write("mine/page/theme.js", "// changed\n");
    let known = gateway.send(&Request::get("/page/theme.js").header("if-none-match", &tag));
    assert_eq!((known.status(), known.text().as_str()), (200, "// changed\n"), "read anew, with another tag");
    fs::remove_file(gateway.folder().join("mine/page/theme.js")).expect("it is there");
    assert!(unpacked(&ask("/page/theme.js").body).len() > 100, "ours is back");
    assert_eq!(ask("/page/none.js").status(), 404);
}
