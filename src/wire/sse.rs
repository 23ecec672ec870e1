//! Event streams, decoded as they arrive in pieces of any size, by the rules of the HTML standard (server-sent events):
//! LF, CRLF and CR end lines, one byte order mark may stand in front, data lines of one event are joined with LF.
//! What the data means is not known here.

/// Longest event, in bytes. An upstream that sends a longer one is broken or hostile.
pub const EVENT_MAX: usize = 4 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One thing that a stream said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseItem<'a> {
    /// The data of an event; never empty.
    Data(&'a [u8]),
    /// The data of an event that was named `error`; never empty.
    Error(&'a [u8]),
    /// A comment, or an event without data: a sign of life and no more. It is no first token and resets no stall timer.
    Comment,
    /// An event above [`EVENT_MAX`]; nothing comes after it.
    TooLong,
}

/// Turns bytes into [`SseItem`]s: [`Decoder::push`] what arrived, then call [`Decoder::next`] until it gives `None`.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where the line begins that is not read yet.
    line: usize,
    /// Up to here the line has no end.
    searched: usize,
    /// The joined data lines of the event not finished yet. Joining moves bytes forward within the buffer.
    data: Option<(usize, usize)>,
    event_is_error: bool,
    /// The last line ended with CR: an LF that comes next belongs to it.
    after_cr: bool,
    begun: bool,
    too_long: bool,
}

/// An item whose data stands at a place in the buffer.
enum Found {
    Data(usize, usize),
    Error(usize, usize),
    Comment,
    TooLong,
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Takes the next bytes of the stream, cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.forget_consumed();
        if !self.too_long {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The stream ended: an event that lacks its last line end or its blank line is given by [`Decoder::next`] still.
    ///
    /// Not to be called when the stream was cut by an error: half an event is no event.
    pub fn finish(&mut self) {
        self.push(b"\n\n");
    }

    /// The next item among the bytes pushed so far.
    #[expect(clippy::should_implement_trait, reason = "the items borrow from the decoder")]
    pub fn next(&mut self) -> Option<SseItem<'_>> {
        let found = self.read_lines()?;
        Some(match found {
            Found::Data(from, to) => SseItem::Data(&self.buffer[from..to]),
            Found::Error(from, to) => SseItem::Error(&self.buffer[from..to]),
            Found::Comment => SseItem::Comment,
            Found::TooLong => SseItem::TooLong,
        })
    }

    /// Drops what was given out already, so that the buffer holds one unfinished event at most.
    fn forget_consumed(&mut self) {
        let keep = self.data.map_or(self.line, |(from, _)| from);
        if keep > 0 {
            self.buffer.drain(..keep);
            self.line -= keep;
            self.searched = self.searched.saturating_sub(keep);
            self.data = self.data.map(|(from, to)| (from - keep, to - keep));
        }
    }

    fn read_lines(&mut self) -> Option<Found> {
        if self.too_long || !self.begin() {
            return None;
        }
        loop {
            if self.after_cr && self.line < self.buffer.len() {
                self.after_cr = false;
                if self.buffer[self.line] == b'\n' {
                    self.line += 1;
                }
            }
            let from = self.searched.max(self.line);
            let Some(length) = memchr::memchr2(b'\n', b'\r', &self.buffer[from..]) else {
                self.searched = self.buffer.len();
                let event = self.data.map_or(self.line, |(from, _)| from);
                self.too_long = self.buffer.len() - event > EVENT_MAX;
                return self.too_long.then_some(Found::TooLong);
            };
            let (start, end) = (self.line, from + length);
            self.after_cr = self.buffer[end] == b'\r';
            self.line = end + 1;
            if let Some(found) = self.read_line(start, end) {
                return Some(found);
            }
        }
    }

    /// Passes a byte order mark; false while it is not known whether there is one.
    fn begin(&mut self) -> bool {
        if !self.begun {
            if self.buffer.len() < BOM.len() && BOM.starts_with(&self.buffer) {
                return false;
            }
            self.begun = true;
            if self.buffer.starts_with(BOM) {
                self.line = BOM.len();
            }
        }
        true
    }

    /// Takes one line, given without its end; an item when the line completes one.
    fn read_line(&mut self, start: usize, end: usize) -> Option<Found> {
        let line = &self.buffer[start..end];
        match line {
            [] => self.dispatch(),
            [b':', ..] => Some(Found::Comment),
            [b'd', b'a', b't', b'a', b':', ..] => {
                let value = start + if line.get(5) == Some(&b' ') { 6 } else { 5 };
                self.add_data(value, end);
                None
            }
            b"data" => {
                self.add_data(end, end);
                None
            }
            [b'e', b'v', b'e', b'n', b't', b':', name @ ..] => {
                self.event_is_error = name.strip_prefix(b" ").unwrap_or(name) == b"error";
                None
            }
            _ => None,
        }
    }

    /// Joins a data line to those before it.
    fn add_data(&mut self, from: usize, to: usize) {
        self.data = Some(match self.data {
            None => (from, to),
            Some((start, end)) => {
                // The line ends and the field name between the two are longer than the LF that takes their place.
                self.buffer[end] = b'\n';
                self.buffer.copy_within(from..to, end + 1);
                (start, end + 1 + to - from)
            }
        });
    }

    /// A blank line: the event is whole.
    fn dispatch(&mut self) -> Option<Found> {
        let is_error = std::mem::take(&mut self.event_is_error);
        let (from, to) = self.data.take()?;
        if self.buffer[from..to].iter().all(u8::is_ascii_whitespace) {
            return Some(Found::Comment);
        }
        Some(if is_error { Found::Error(from, to) } else { Found::Data(from, to) })
    }
}

/// What a body is, whatever its label says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// Too few bytes to tell.
    Undecided,
    Events,
    Json,
    /// HTML or plain text.
    Other,
}

/// Judges the first bytes of a body. Streams come labelled as JSON or plain text, and plain JSON where a stream was
/// asked for; the bytes do not lie.
pub fn sniff(bytes: &[u8]) -> Sniffed {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes).trim_ascii_start();
    match bytes.first() {
        None | Some(0xef) => Sniffed::Undecided,
        Some(b'{' | b'[') => Sniffed::Json,
        Some(b':') => Sniffed::Events,
        Some(_) => {
            let fields: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];
            // A field may be all of its line.
            let ends = |rest: &[u8]| matches!(rest.first(), Some(b':' | b'\n' | b'\r'));
            if fields.iter().any(|field| bytes.strip_prefix(*field).is_some_and(ends)) {
                Sniffed::Events
            } else if fields.iter().any(|field| field.starts_with(bytes)) {
                Sniffed::Undecided
            } else {
                Sniffed::Other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every item, as text: `D:` data, `E:` error, `C` comment, `!` too long.
    fn drain(decoder: &mut Decoder, out: &mut Vec<String>) {
        while let Some(item) = decoder.next() {
            out.push(match item {
                SseItem::Data(data) => format!("D:{}", String::from_utf8_lossy(data)),
                SseItem::Error(data) => format!("E:{}", String::from_utf8_lossy(data)),
                SseItem::Comment => "C".into(),
                SseItem::TooLong => "!".into(),
            });
        }
    }

    fn decode(pieces: &[&[u8]]) -> Vec<String> {
        let (mut decoder, mut out) = (Decoder::new(), Vec::new());
        for piece in pieces {
            decoder.push(piece);
            drain(&mut decoder, &mut out);
        }
        decoder.finish();
        drain(&mut decoder, &mut out);
        out
    }

    /// The same items, however the stream is cut: in one piece, in every two, in single bytes.
    fn check(stream: &str, expected: &[&str]) {
        let bytes = stream.as_bytes();
        assert_eq!(decode(&[bytes]), expected, "{stream:?}");
        for cut in 0..=bytes.len() {
            assert_eq!(decode(&[&bytes[..cut], &bytes[cut..]]), expected, "{stream:?} cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode(&single), expected, "{stream:?} byte by byte");
    }

    #[test]
    fn sse_03_comments_are_comments() {
        check(": OPENROUTER PROCESSING\n\n: x\n\ndata: {}\n\n", &["C", "C", "D:{}"]);
        check("data: a\n: between\ndata: b\n\n", &["C", "D:a\nb"]);
    }

    #[test]
    fn sse_05_crlf_ends_lines() {
        check("data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n", &["D:{\"a\":1}", "D:[DONE]"]);
        check("event: x\r\ndata: 1\r\ndata: 2\r\n\r\n", &["D:1\n2"]);
    }

    #[test]
    fn sse_06_cr_ends_lines_also_when_cut() {
        check("data: x\r\rdata: [DONE]\r\r", &["D:x", "D:[DONE]"]);
        check("data: {\"delta\":\r\ndata: {}}\r\n\r\n", &["D:{\"delta\":\n{}}"]);
        check("data: a\n\r\ndata: b\r\n\n", &["D:a", "D:b"]);
        // The event is given as soon as its last CR is there.
        let mut decoder = Decoder::new();
        decoder.push(b"data: x\r\r");
        assert_eq!(decoder.next(), Some(SseItem::Data(b"x")));
        decoder.push(b"\n");
        assert_eq!(decoder.next(), None);
        decoder.push(b"data: y\n\n");
        assert_eq!(decoder.next(), Some(SseItem::Data(b"y")));
    }

    #[test]
    fn sse_07_one_optional_space() {
        check("data:{}\n\ndata:  two\n\nevent:error\ndata:{\"m\":1}\n\n", &["D:{}", "D: two", "E:{\"m\":1}"]);
        check("event: error\ndata: a\n\ndata: b\n\n", &["E:a", "D:b"]);
    }

    #[test]
    fn sse_08_data_lines_are_joined() {
        check("data: {\"a\":\ndata: 1,\r\ndata:\"b\":2}\n\n", &["D:{\"a\":\n1,\n\"b\":2}"]);
        check("data: a\ndata\ndata: b\nid: 7\nretry: 9\nother\n\n", &["D:a\n\nb"]);
    }

    #[test]
    fn sse_11_one_byte_order_mark_is_ignored() {
        check("\u{feff}data: first\n\ndata: second\n\n", &["D:first", "D:second"]);
        check("data: a\n\n\u{feff}data: lost\n\ndata: \u{feff}b\n\n", &["D:a", "D:\u{feff}b"]);
    }

    #[test]
    fn sse_12_a_line_without_a_field_name_is_no_data() {
        check("data:\n {\"choices\":[]}\n\ndata:\n {\"choices\":[]}\n\n", &["C", "C"]);
    }

    #[test]
    fn sse_30_empty_data_is_a_sign_of_life() {
        check("event: ping\ndata: \n\ndata: x\n\n\n\n", &["C", "D:x"]);
    }

    #[test]
    fn the_last_event_may_lack_its_line_ends() {
        check("data: a\n\ndata: b", &["D:a", "D:b"]);
        check("data: a\n\ndata: b\n", &["D:a", "D:b"]);
        check("data: a\n\ndata: b\r", &["D:a", "D:b"]);
        check("", &[]);
        check("\n\n: c", &["C"]);
    }

    #[test]
    fn b1_characters_survive_any_cut() {
        check("data: é漢😀\n\ndata: é\n\n", &["D:é漢😀", "D:é"]);
    }

    #[test]
    fn sse_28_half_an_event_is_none_without_a_clean_end() {
        let mut decoder = Decoder::new();
        decoder.push(b"data: whole\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"par");
        assert_eq!(decoder.next(), Some(SseItem::Data(b"whole")));
        assert_eq!(decoder.next(), None);
    }

    #[test]
    fn events_are_bounded() {
        let mut decoder = Decoder::new();
        decoder.push(b"data: ");
        let mut items = Vec::new();
        for _ in 0..5 {
            decoder.push(&vec![b'x'; 1 << 20]);
            drain(&mut decoder, &mut items);
        }
        assert_eq!(items, ["!"]);
        assert!(decoder.buffer.len() <= EVENT_MAX + (1 << 21));
        // Comments inside an event that never ends count as well.
        let (mut decoder, mut items) = (Decoder::new(), Vec::new());
        decoder.push(b"data: x\n");
        for _ in 0..50 {
            decoder.push(&b": keep-alive\n".repeat(10_000));
            drain(&mut decoder, &mut items);
        }
        assert_eq!(items.last().map(String::as_str), Some("!"));
    }

    #[test]
    fn many_events_leave_nothing_behind() {
        let (mut decoder, mut items) = (Decoder::new(), Vec::new());
        for _ in 0..1_000 {
            decoder.push(b"data: {\"a\":1}\n\n");
            drain(&mut decoder, &mut items);
        }
        assert_eq!(items.len(), 1_000);
        assert!(decoder.buffer.capacity() < 1_024);
    }

    #[test]
    fn sse_13_bodies_are_judged_by_their_bytes() {
        let judge = |text: &str, expected: Sniffed| assert_eq!(sniff(text.as_bytes()), expected, "{text:?}");
        judge("data: {}", Sniffed::Events);
        judge("\u{feff}event:x", Sniffed::Events);
        judge(": comment", Sniffed::Events);
        judge("data\n\n", Sniffed::Events);
        judge("id\r", Sniffed::Events);
        judge("\r\n\r\n{\"id\"", Sniffed::Json);
        judge("[{\"error\"", Sniffed::Json);
        judge("<!doctype", Sniffed::Other);
        judge("database error", Sniffed::Other);
        judge("error: x", Sniffed::Other);
        for undecided in ["", "\n ", "da", "even", "i", "retry"] {
            judge(undecided, Sniffed::Undecided);
        }
        assert_eq!(sniff(b"\xef\xbb"), Sniffed::Undecided);
    }
}
