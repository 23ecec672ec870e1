//! What is fuzzed: the first code that meets bytes of strangers, each with what must hold for any bytes whatever. Shared
//! by the fuzzer (`make fuzz`) and by the test that replays its corpus.
use std::collections::BTreeMap;

use freeway::base::clock::Now;
use freeway::catalog::pool::Fingerprints;
use freeway::catalog::settings::Settings;
use freeway::catalog::slots::Slots;
use freeway::catalog::spec::{self, Context};
use freeway::catalog::vault::Vault;
use freeway::http::chunked;
use freeway::http::head::{HEAD_BYTES_MAX, Length, Refusal, Scan, check_head, scan_head};
use freeway::quota::bench::BENCH_MAX_MS;
use freeway::route::waits::{self, WAIT_MIN_MS};
use freeway::wire::body::{Body, Edits};
use freeway::wire::chunk::{ChunkShaper, End, ShapeOptions};
use freeway::wire::exchange::Headers;
use freeway::wire::sse::{self, SseItem};
use freeway::wire::{json, upstream_error};

/// One of them.
pub struct Target {
    pub name: &'static str,
    /// Fails by a panic.
    pub run: fn(&[u8]),
    /// Longest input that the fuzzer tries.
    pub bytes_max: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "head", run: head, bytes_max: 4096 },
    Target { name: "chunked", run: chunked_body, bytes_max: 2048 },
    Target { name: "body", run: body, bytes_max: 4096 },
    Target { name: "sse", run: event_stream, bytes_max: 2048 },
    Target { name: "stream", run: stream, bytes_max: 4096 },
    Target { name: "provider", run: provider_file, bytes_max: 4096 },
    Target { name: "waits", run: rate_limit, bytes_max: 2048 },
];

/// How an input is cut into pieces, which the input itself decides: its first byte is the seed.
struct Pieces<'a> {
    rest: &'a [u8],
    state: u32,
}

impl<'a> Pieces<'a> {
    fn of(input: &'a [u8]) -> Option<(Pieces<'a>, &'a [u8])> {
        let (seed, rest) = input.split_first()?;
        Some((Pieces { rest, state: u32::from(*seed) + 1 }, rest))
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        // Mostly short ones, down to single bytes.
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let wanted = 1 + (self.state >> 24) as usize % 9;
        let (piece, rest) = self.rest.split_at(wanted.min(self.rest.len()));
        self.rest = rest;
        Some(piece).filter(|piece| !piece.is_empty())
    }
}

/// A head: what is decided does not depend on how it arrives, and what is let through is unambiguous.
fn head(input: &[u8]) {
    let Some((pieces, whole)) = Pieces::of(input) else { return };
    let at_once = scan_head(whole, 0);
    let mut seen = 0;
    let mut in_pieces = Scan::Partial;
    for piece in pieces {
        in_pieces = scan_head(&whole[..seen + piece.len()], seen);
        seen += piece.len();
        if in_pieces != Scan::Partial {
            break;
        }
    }
    if !whole.is_empty() {
        assert_eq!(at_once, in_pieces, "it depends on how the head arrives");
    }
    let Scan::Complete(end) = at_once else { return };
    assert!(end <= whole.len() && end <= HEAD_BYTES_MAX && whole[..end].ends_with(b"\r\n\r\n"));
    let Ok(head) = check_head(&whole[..end]) else { return };
    assert_eq!(head.wire_bytes, end);
    let named = |wanted: &str| head.fields().filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).count();
    assert!(named("content-length") + named("transfer-encoding") <= 1, "two lengths");
    assert!(named("host") <= 1, "two hosts");
    assert_eq!(named("transfer-encoding") == 1, head.length == Length::Chunked);
    for (name, value) in head.fields() {
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
        assert!(!value.contains(['\r', '\n', '\0']), "a value that goes on");
    }
    assert!(!head.target().contains(|c: char| c.is_ascii_control() || c == ' '));
    assert!(head.target().starts_with(head.path()));
    let _ = (head.query(), head.header("host"));
}

/// A chunked body: cut anywhere it gives the same, takes nothing behind its end, and never more than its limit.
fn chunked_body(input: &[u8]) {
    const BYTES_MAX: usize = 600;
    let Some((pieces, whole)) = Pieces::of(input) else { return };
    let decode = |pieces: &mut dyn Iterator<Item = &[u8]>| -> (Result<(usize, bool), Refusal>, Vec<u8>) {
        let (mut decoder, mut out, mut taken) = (chunked::Decoder::new(BYTES_MAX), Vec::new(), 0);
        for piece in pieces {
            match decoder.feed(piece, &mut out) {
                Ok(count) => {
                    assert!(count <= piece.len() && (count == piece.len() || decoder.is_done()));
                    taken += count;
                }
                Err(refusal) => return (Err(refusal), out),
            }
            if decoder.is_done() {
                break;
            }
        }
        (Ok((taken, decoder.is_done())), out)
    };
    let (at_once, body) = decode(&mut std::iter::once(whole));
    let (in_pieces, same) = decode(&mut pieces.into_iter());
    assert_eq!((&at_once, &body), (&in_pieces, &same), "it depends on how the body arrives");
    assert!(body.len() <= BYTES_MAX && body.len() <= whole.len());
    if let Ok((taken, true)) = at_once {
        assert!(whole[..taken].ends_with(b"\r\n"));
    }
}

/// A request body: its fields lie within it, edits leave it JSON, and what is not edited stays as it was.
fn body(input: &[u8]) {
    let valid = serde_json::from_slice::<BTreeMap<String, serde::de::IgnoredAny>>(input).is_ok();
    let body = match Body::parse(input.to_vec()) {
        Ok(body) => body,
        Err(error) => {
            assert_eq!(error.status, 400);
            return;
        }
    };
    // Two parsers that disagree are how requests are smuggled past a check: what ours takes, the other has to.
    let mended = body.bytes().to_vec();
    assert!(valid || serde_json::from_slice::<serde_json::Value>(&mended).is_ok() || too_odd(&mended));
    assert_eq!(body.spliced(&Edits::default()), mended, "nothing was to be changed");
    let names: Vec<String> = body.names().map(str::to_owned).collect();
    for name in &names {
        let raw = body.raw(name).expect("a field that is named is there");
        assert!(json::is_json(raw), "a field's value is JSON by itself");
        let _ = (body.text(name), json::whole(raw), json::count(raw), json::number(raw));
    }
    let mut edits = Edits::default();
    edits.set("model", br#""m""#.as_slice());
    edits.add("stream", b"true".as_slice());
    edits.remove("user");
    if let Some(first) = names.first() {
        edits.rename(first.as_str(), "renamed");
    }
    let edited = Body::parse(body.spliced(&edits)).expect("an edited body is a body");
    assert!(edited.raw("user").is_none());
    assert!(edited.raw("model").is_some() || names.first().is_some_and(|first| first == "model"));
    for name in
        names.iter().skip(1).filter(|name| !["model", "stream", "user", "renamed"].contains(&name.as_str()))
    {
        assert_eq!(edited.raw(name), body.raw(name), "a field that nobody touched");
    }
}

/// What the other parser refuses although the grammar allows it: numbers beyond its range.
fn too_odd(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes)
        .is_err_and(|error| error.to_string().contains("number out of range"))
}

/// An event stream: cut anywhere it gives the same items, and never more than came.
fn event_stream(input: &[u8]) {
    let Some((pieces, whole)) = Pieces::of(input) else { return };
    let decode = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut decoder, mut items) = (sse::Decoder::new(), Vec::new());
        let mut drain = |decoder: &mut sse::Decoder| {
            while let Some(item) = decoder.next() {
                items.push(match item {
                    SseItem::Data(data) => (0, data.to_vec()),
                    SseItem::Error(data) => (1, data.to_vec()),
                    SseItem::Comment => (2, Vec::new()),
                    SseItem::TooLong => (3, Vec::new()),
                });
            }
        };
        for piece in pieces {
            decoder.push(piece);
            drain(&mut decoder);
        }
        decoder.finish();
        drain(&mut decoder);
        items
    };
    let at_once = decode(&mut std::iter::once(whole));
    let in_pieces = decode(&mut pieces.into_iter());
    assert_eq!(at_once, in_pieces, "it depends on how the stream arrives");
    let data: usize = at_once.iter().map(|(_, data)| data.len()).sum();
    assert!(data <= whole.len(), "more than came");
    assert!(at_once.iter().all(|(kind, data)| (*kind < 2) != data.is_empty()), "data is never empty");
    let _ = sse::sniff(whole);
}

/// A whole stream, from an upstream's bytes to a client's frames: each frame is one line of JSON, and what it becomes is
/// no more than a bounded amount beside what came.
fn stream(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else { return };
    let options = || ShapeOptions {
        include_usage: first & 1 == 1,
        fallback_id: "chatcmpl-0".into(),
        created_s: 1_700_000_000,
        model: "m".into(),
        n: u32::from(first >> 1 & 3) + 1,
    };
    let (mut decoder, mut shaper, mut out) = (sse::Decoder::new(), ChunkShaper::new(options()), Vec::new());
    decoder.push(bytes);
    decoder.finish();
    while let Some(item) = decoder.next() {
        let _ = match item {
            SseItem::Data(data) => shaper.data(data, &mut out),
            SseItem::Error(data) => shaper.error(data),
            SseItem::Comment | SseItem::TooLong => continue,
        };
    }
    let before = out.len();
    let end = shaper.end(freeway::wire::usage::Usage::estimate(3, 5), &mut out);
    assert!(end == End::Complete || out.len() == before, "nothing is added to what is no answer");
    let text = std::str::from_utf8(&out).expect("frames are UTF-8");
    for frame in text.split_terminator("\n\n") {
        let data = frame.strip_prefix("data: ").expect("a frame is one line of data");
        let fine = data == "[DONE]"
            || serde_json::from_str::<serde_json::Value>(data).is_ok()
            || too_odd(data.as_bytes());
        assert!(fine, "a frame that is no JSON: {data}");
    }
    assert!(out.len() <= 64 * 1024 + bytes.len() * 64, "{} bytes became {}", bytes.len(), out.len());
}

/// A provider's file: any text gives a provider or says why not, and names the file.
fn provider_file(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let variables = BTreeMap::from([("TEST_KEY".to_owned(), "test-key-1,test-key-2".to_owned())]);
    let (settings, fingerprints, pasted) =
        (Settings::default(), Fingerprints::new(&[7; 32]), Vault::default());
    let mut slots = Slots::default();
    let mut context = Context {
        variables: &variables,
        settings: &settings,
        fingerprints: &fingerprints,
        pasted: &pasted,
        slots: &mut slots,
    };
    let (provider, issues) = spec::read("fuzz.json", &text, &mut context);
    assert!(provider.is_some() || !issues.is_empty(), "refused without a word");
    for issue in &issues {
        assert!(issue.file.contains("fuzz.json") && !issue.message.is_empty());
        assert!(!issue.message.contains("test-key-"), "a key in a message");
    }
    if let Some(provider) = provider {
        assert!(spec::is_provider_id(&provider.id));
    }
}

/// Headers and the body of a refusal: a wait is within its bounds, whatever it was written as.
fn rate_limit(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let headers: Headers = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let error = upstream_error::read(body.as_bytes());
    // In 1970, today, and as late as a broken clock can be.
    for now in [Now::at(3_600_000, 0), Now::at(4_000_000, 1_767_225_600_000), Now::at(1 << 50, 1 << 50)] {
        let bounds = WAIT_MIN_MS..=BENCH_MAX_MS;
        if let Some(wait) = waits::named(&headers, &error, now) {
            assert!(bounds.contains(&wait.ms), "{wait:?}");
        }
        if let Some(ms) = waits::exhausted(&headers, now) {
            assert!(bounds.contains(&ms), "{ms}");
        }
    }
    let _ = upstream_error::mask_ids(&text);
}
