//! One upstream chat stream, put into the form that our clients can rely on: every chunk whole and on one line, with
//! one id; one finish for each choice; usage only for who asked, once; `[DONE]` once. A chunk that is in order already
//! is copied, never rebuilt; the others get the few changes they need.
use super::answer::says_error;
use super::choice::{Choices, Found, Reading};
use super::head::{self, Fallback, Head, Present};
use super::json::{self, Cursor, Flaw};
use super::mould::Mould;
use super::patch::{Patch, Track};
use super::tally::Tally;
use super::usage::{Usage, UsageTap};

/// Most lines of one event that are tried as events of their own.
const FUSED_MAX: usize = 4_096;

/// What the shaper has to know of the request.
#[derive(Clone, Debug)]
pub struct ShapeOptions {
    /// Whether the client asked for a usage chunk.
    pub include_usage: bool,
    /// Used when the upstream gives no id.
    pub fallback_id: String,
    /// Used when the upstream gives no time, in seconds since 1970.
    pub created_s: u64,
    /// The upstream's model id, used when the chunks name none.
    pub model: String,
    /// Choices asked for.
    pub n: u32,
}

/// What one event brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No first token: nothing at all, a role, a usage preview, an event that cannot be read.
    Nothing,
    /// Output: text, reasoning, a tool call, a refusal.
    Delta,
    /// Every choice asked for has finished. A usage chunk may follow shortly; wait a short grace for it.
    Finished,
    /// `[DONE]`: nothing of interest follows.
    Done,
    /// The upstream says that it failed; its error as it came. Nothing was appended for it.
    Failed(Vec<u8>),
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An answer; its last frames were appended.
    Complete,
    /// It stopped before it was finished; nothing was appended.
    Truncated,
    /// It finished without saying anything, which is no answer; nothing was appended.
    Empty,
    /// It finished with fewer choices than were asked for, which is no answer; nothing was appended.
    FewerChoices,
}

/// Shapes one stream of one attempt. Frames go to a buffer of the caller's, who holds them back until the first that
/// is an answer ([`ChunkShaper::is_answer`]).
pub struct ChunkShaper {
    include_usage: bool,
    n: usize,
    head: Head,
    choices: Choices,
    usage: UsageTap,
    patch: Patch,
    /// Of the last chunk, if it was text and went out as it came.
    mould: Mould,
    done: bool,
    end: Option<End>,
    malformed: u32,
}

impl ChunkShaper {
    /// A shaper for a stream of which nothing has come.
    pub fn new(options: ShapeOptions) -> ChunkShaper {
        let ShapeOptions { include_usage, fallback_id: id, created_s, model, n } = options;
        ChunkShaper {
            include_usage,
            n: n as usize,
            choices: Choices::new(&id),
            head: Head::new(head::CHUNK, Fallback { id, created_s, model }),
            usage: UsageTap::default(),
            patch: Patch::default(),
            mould: Mould::default(),
            done: false,
            end: None,
            malformed: 0,
        }
    }

    /// Takes the data of one event and appends the frames that the client gets for it, each whole.
    pub fn data(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Step {
        if self.done || self.end.is_some() {
            return Step::Nothing;
        }
        let payload = payload.trim_ascii();
        if payload == b"[DONE]" {
            self.done = true;
            return Step::Done;
        }
        if let Some(string) = self.mould.string(payload) {
            // All else was found in order in the chunk before.
            self.choices.output.json(string);
            self.copy(payload, out);
            return Step::Delta;
        }
        let Ok(text) = std::str::from_utf8(payload) else {
            // By the rules of event streams broken UTF-8 is decoded with U+FFFD in its place.
            let mended = String::from_utf8_lossy(payload).into_owned();
            return self.data(mended.as_bytes(), out);
        };
        // The grammar is checked before anything is believed, so that half an event leaves no trace.
        let mut cursor = Cursor::new(payload);
        if cursor.skip().and_then(|_| cursor.end()).is_err() {
            return self.unreadable(text, out);
        }
        if cursor.saw_lone_surrogate() {
            let mut mended = payload.to_vec();
            json::mend_surrogates(&mut mended);
            return self.shape(&mended, out).unwrap_or(Step::Nothing);
        }
        self.shape(payload, out).unwrap_or(Step::Nothing)
    }

    /// Takes the data of an event that was named `error`.
    pub fn error(&mut self, payload: &[u8]) -> Step {
        if self.done || self.end.is_some() {
            Step::Nothing
        } else {
            Step::Failed(payload.trim_ascii().to_vec())
        }
    }

    /// The stream is over: `[DONE]` came, or the connection ended, or the grace after the last finish has passed.
    /// Appends what is missing: the finish of choices that have none (after `[DONE]` only), the usage chunk if the
    /// client asked, and `[DONE]`. `estimate` is used when the upstream gave no usage. Further calls append nothing.
    pub fn end(&mut self, estimate: Usage, out: &mut Vec<u8>) -> End {
        if let Some(end) = self.end {
            return end;
        }
        let seen = self.choices.list.len();
        let finished = seen > 0 && self.choices.finished() == seen;
        let end = match (self.done || finished, self.choices.answer) {
            (false, _) => End::Truncated,
            (true, false) => End::Empty,
            (true, true) if seen < self.n => End::FewerChoices,
            (true, true) => End::Complete,
        };
        self.end = Some(end);
        if end == End::Complete {
            for at in 0..seen {
                self.finish_choice(at, out);
            }
            if self.include_usage {
                self.usage_frame(self.usage.usage().unwrap_or(estimate), out);
            }
            out.extend_from_slice(b"data: [DONE]\n\n");
        }
        end
    }

    /// Whether what came is an answer, so that its frames may go to the client: output, or a finish that explains why
    /// there is none (`length`, `content_filter`).
    pub fn is_answer(&self) -> bool {
        self.choices.answer
    }

    /// Whether every choice asked for has shown itself, so that there will not be too few.
    pub fn has_all_choices(&self) -> bool {
        self.choices.list.len() >= self.n
    }

    /// What the upstream said about usage.
    pub fn usage(&self) -> Option<Usage> {
        self.usage.usage()
    }

    /// A `usage` object with the counts of `usage`, and with all details that the upstream gave.
    pub fn usage_object(&self, usage: Usage) -> Vec<u8> {
        let mut object = Vec::new();
        self.usage.write(usage, &mut object);
        object
    }

    /// All output so far, for an estimate.
    pub fn output(&self) -> &Tally {
        &self.choices.output
    }

    /// The finish reason of the first choice.
    pub fn finish_reason(&self) -> Option<&str> {
        self.choices.list.first().and_then(|choice| choice.finish.as_deref())
    }

    /// How many events could not be read.
    pub fn malformed(&self) -> u32 {
        self.malformed
    }

    /// Reads the next chunk as if none had come before that looks like it.
    #[cfg(test)]
    pub(super) fn forget_form(&mut self) {
        self.mould.clear();
    }

    /// An event that is not JSON: several events that lack their blank lines, an error in plain words, or a loss.
    fn unreadable(&mut self, text: &str, out: &mut Vec<u8>) -> Step {
        let lines = || text.split('\n').map(str::trim).filter(|line| !line.is_empty());
        let is_event =
            |line: &str| line == "[DONE]" || (line.starts_with('{') && json::is_json(line.as_bytes()));
        if text.contains('\n') && lines().count() <= FUSED_MAX && lines().all(is_event) {
            let mut last = Step::Nothing;
            for line in lines() {
                match self.data(line.as_bytes(), out) {
                    Step::Nothing => {}
                    failed @ Step::Failed(_) => return failed,
                    step => last = step,
                }
            }
            return last;
        }
        if text.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("error:")) {
            return Step::Failed(text.as_bytes().to_vec());
        }
        self.malformed += 1;
        Step::Nothing
    }

    /// Reads one valid JSON payload, and appends it with the changes it needs.
    fn shape(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<Step, Flaw> {
        let mut cursor = Cursor::new(payload);
        if !cursor.open(b'{')? {
            return Ok(if says_error(payload) { Step::Failed(payload.to_vec()) } else { Step::Nothing });
        }
        self.patch.clear();
        self.mould.clear();
        let (mut top, mut present, mut failed) = (Track::new(cursor.at()), Present::default(), false);
        let mut reading = Reading {
            choices: &mut self.choices,
            patch: &mut self.patch,
            usage: &mut self.usage,
            found: Found::default(),
        };
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            top.begin(name_at, reading.patch);
            if name == b"choices" && cursor.open(b'[')? {
                reading.read(&mut cursor)?;
                top.keep(cursor.at());
                continue;
            }
            let raw = cursor.skip()?;
            match name {
                // Usage goes to the client in a chunk of its own, and `error: null` says nothing.
                b"usage" | b"error" => {
                    if name == b"usage" {
                        reading.usage.read(raw);
                    } else {
                        failed |= !json::is_blank(Some(raw)) && raw != b"false";
                    }
                    top.remove(name_at, cursor.at(), reading.patch);
                    continue;
                }
                b"x_groq" => reading.usage.read(json::member(raw, "usage").unwrap_or_default()),
                _ => {
                    let span = cursor.at() - raw.len()..cursor.at();
                    self.head.read(name, raw, span, &mut present, reading.patch);
                }
            }
            top.keep(cursor.at());
        }
        let found = reading.found;
        if failed || found.failed || (!found.any && says_error(payload)) {
            return Ok(Step::Failed(payload.to_vec()));
        }
        if !found.any || !found.news {
            return Ok(Step::Nothing);
        }
        top.close(cursor.at() - 1, &mut self.patch);
        self.head.complete(&present, &mut top, &mut self.patch);
        self.choices.answer |= found.output;
        if found.held && !found.output && found.finished.is_empty() {
            return Ok(Step::Nothing);
        }
        self.emit(payload, &found, out);
        let as_it_came = self.patch.is_empty() && memchr::memchr2(b'\n', b'\r', payload).is_none();
        if let Some(string) = found.only_text().filter(|_| as_it_came) {
            self.mould.take(payload, string);
        }
        Ok(if !found.finished.is_empty() && self.choices.finished() >= self.n {
            Step::Finished
        } else if found.output {
            Step::Delta
        } else {
            Step::Nothing
        })
    }

    /// Appends a chunk as it came.
    fn copy(&self, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\n\n");
    }

    /// Appends the chunk. A choice that finishes while calls are still to be completed gets those first.
    fn emit(&mut self, payload: &[u8], found: &Found, out: &mut Vec<u8>) {
        let mut late = Vec::new();
        for finish in &found.finished {
            let mut entries = Vec::new();
            let owes_calls = self.choices.flush_calls(finish.choice, &mut entries);
            if found.output && (owes_calls || found.whole) {
                // The chunk may open calls itself: its finish has to wait. A whole answer becomes two chunks.
                self.patch.replace(finish.span.clone(), b"null");
                late.push((finish.choice, entries));
                continue;
            }
            if owes_calls {
                self.calls_frame(finish.choice, &entries, out);
            }
            if finish.reworded {
                let reason = self.choices.list[finish.choice].finish.as_deref().unwrap_or("stop");
                self.patch.replace_with(finish.span.clone(), |pool| json::quote(reason, pool));
            }
        }
        out.extend_from_slice(b"data: ");
        let start = out.len();
        if self.patch.is_empty() {
            out.extend_from_slice(payload);
        } else {
            self.patch.apply(payload, out);
        }
        // An event of several lines goes out as one. Line ends stand between tokens only, never inside a string.
        let mut at = start;
        while let Some(found) = memchr::memchr2(b'\n', b'\r', &out[at..]) {
            at += found;
            out[at] = b' ';
        }
        out.extend_from_slice(b"\n\n");
        for (choice, entries) in late {
            if !entries.is_empty() {
                self.calls_frame(choice, &entries, out);
            }
            self.finish_frame(choice, out);
        }
    }

    /// Ends a choice that has no finish, since the upstream said that it is done.
    fn finish_choice(&mut self, at: usize, out: &mut Vec<u8>) {
        if self.choices.list[at].finish.is_some() {
            return;
        }
        let mut entries = Vec::new();
        if self.choices.flush_calls(at, &mut entries) {
            self.calls_frame(at, &entries, out);
        }
        let choice = &mut self.choices.list[at];
        let reason = match (choice.calls.any(), choice.older_call) {
            (true, _) => "tool_calls",
            (false, true) => "function_call",
            (false, false) => "stop",
        };
        choice.finish = Some(reason.into());
        self.finish_frame(at, out);
    }

    fn calls_frame(&mut self, at: usize, entries: &[u8], out: &mut Vec<u8>) {
        self.open_frame(out);
        let head = format!("{{\"index\":{},\"delta\":{{\"tool_calls\":[", self.choices.list[at].index);
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(entries);
        out.extend_from_slice(b"]},\"finish_reason\":null}]}\n\n");
    }

    fn finish_frame(&mut self, at: usize, out: &mut Vec<u8>) {
        self.open_frame(out);
        let choice = &self.choices.list[at];
        out.extend_from_slice(
            format!("{{\"index\":{},\"delta\":{{}},\"finish_reason\":", choice.index).as_bytes(),
        );
        json::quote(choice.finish.as_deref().unwrap_or("stop"), out);
        out.extend_from_slice(b"}]}\n\n");
    }

    fn open_frame(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        self.head.open(out);
    }

    fn usage_frame(&mut self, usage: Usage, out: &mut Vec<u8>) {
        self.open_frame(out);
        out.extend_from_slice(b"],\"usage\":");
        self.usage.write(usage, out);
        out.extend_from_slice(b"}\n\n");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::wire::sse::{Decoder, SseItem};

    const T_A: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    const FIN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn t(text: &str) -> String {
        T_A.replace("\"a\"", &serde_json::to_string(text).expect("text"))
    }

    fn options(include_usage: bool, n: u32) -> ShapeOptions {
        ShapeOptions { include_usage, fallback_id: "chatcmpl-1".into(), created_s: 7, model: "m".into(), n }
    }

    /// Everything that can be seen of one stream.
    #[derive(Debug, PartialEq, Eq)]
    struct Seen {
        /// The payloads of the frames, `[DONE]` included.
        frames: Vec<String>,
        end: Option<End>,
        failed: Option<String>,
        answer: bool,
        usage: Option<(u64, u64)>,
        malformed: u32,
    }

    impl Seen {
        fn json(&self) -> Vec<Value> {
            let frames = self.frames.iter().filter(|frame| *frame != "[DONE]");
            frames.map(|frame| serde_json::from_str(frame).expect("every frame parses on its own")).collect()
        }

        /// The joined text of choice 0.
        fn text(&self) -> String {
            self.choices(0).iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect()
        }

        fn choices(&self, index: u64) -> Vec<Value> {
            let all = self.json();
            let of = all.iter().flat_map(|frame| frame["choices"].as_array().cloned().unwrap_or_default());
            of.filter(|choice| choice["index"] == index).collect()
        }

        fn finishes(&self, index: u64) -> Vec<String> {
            let choices = self.choices(index);
            choices.iter().filter_map(|choice| choice["finish_reason"].as_str()).map(str::to_owned).collect()
        }
    }

    fn feed(pieces: &[&[u8]], options: ShapeOptions) -> Seen {
        let (mut decoder, mut shaper, mut out) = (Decoder::new(), ChunkShaper::new(options), Vec::new());
        let mut failed = None;
        let mut take = |decoder: &mut Decoder, shaper: &mut ChunkShaper, out: &mut Vec<u8>| {
            while let Some(item) = decoder.next() {
                let step = match item {
                    SseItem::Data(data) => shaper.data(data, out),
                    SseItem::Error(data) => shaper.error(data),
                    SseItem::Comment => Step::Nothing,
                    SseItem::TooLong => panic!("no test stream is that long"),
                };
                if let Step::Failed(body) = step {
                    failed.get_or_insert(String::from_utf8(body).expect("UTF-8"));
                }
            }
        };
        for piece in pieces {
            decoder.push(piece);
            take(&mut decoder, &mut shaper, &mut out);
        }
        decoder.finish();
        take(&mut decoder, &mut shaper, &mut out);
        let end = failed.is_none().then(|| shaper.end(Usage::estimate(100, 50), &mut out));
        let length = out.len();
        if end.is_some() {
            assert_eq!(Some(shaper.end(Usage::default(), &mut out)), end);
        }
        assert_eq!(out.len(), length, "the end is said once");
        let out = String::from_utf8(out).expect("UTF-8");
        assert!(out.is_empty() || out.ends_with("\n\n"));
        let frames = out.split("\n\n").filter(|frame| !frame.is_empty()).map(|frame| {
            assert!(!frame.contains('\n'), "one line: {frame}");
            frame.strip_prefix("data: ").expect("a data field").to_owned()
        });
        Seen {
            frames: frames.collect(),
            end,
            failed,
            answer: shaper.is_answer(),
            usage: shaper.usage().map(|usage| (usage.prompt, usage.completion)),
            malformed: shaper.malformed(),
        }
    }

    /// What comes of a stream, which is the same however it is cut.
    fn run_with(stream: &str, options: ShapeOptions) -> Seen {
        let bytes = stream.as_bytes();
        let whole = feed(&[bytes], options.clone());
        for cut in 1..bytes.len() {
            assert_eq!(
                feed(&[&bytes[..cut], &bytes[cut..]], options.clone()),
                whole,
                "cut at {cut}: {stream}"
            );
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(feed(&single, options), whole, "byte by byte: {stream}");
        for frame in whole.json() {
            for member in ["id", "object", "created", "model", "choices"] {
                assert!(frame.get(member).is_some(), "{member} in {frame}");
            }
            assert_eq!(frame["object"], "chat.completion.chunk");
            assert!(frame["created"].is_u64(), "{frame}");
            for choice in frame["choices"].as_array().expect("a list") {
                assert!(choice["index"].is_u64() && choice["delta"].is_object(), "{choice}");
                let finish = choice.get("finish_reason").expect("always there");
                assert!(finish.is_null() || finish.as_str().is_some_and(|word| !word.is_empty()), "{choice}");
            }
        }
        whole
    }

    fn run(stream: &str) -> Seen {
        run_with(stream, options(false, 1))
    }

    /// A stream that ends well with this text, this finish and one `[DONE]`.
    fn complete(stream: &str, text: &str, finish: &str) -> Seen {
        let seen = run(stream);
        assert_eq!((seen.end, seen.answer, &seen.failed), (Some(End::Complete), true, &None), "{stream}");
        assert_eq!((seen.text().as_str(), seen.finishes(0)), (text, vec![finish.to_owned()]), "{stream}");
        assert_eq!(seen.frames.iter().filter(|frame| *frame == "[DONE]").count(), 1);
        assert_eq!(seen.frames.last().map(String::as_str), Some("[DONE]"));
        seen
    }

    fn steps(payloads: &[&str]) -> Vec<Step> {
        let (mut shaper, mut out) = (ChunkShaper::new(options(false, 1)), Vec::new());
        payloads.iter().map(|payload| shaper.data(payload.as_bytes(), &mut out)).collect()
    }

    #[test]
    fn a_chunk_in_order_is_copied_byte_for_byte() {
        let chunk = |rest: &str| {
            format!(
                r#"{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"é","choices":[{{"index":0,{rest}}}]}}"#
            )
        };
        let chunks = [
            chunk(r#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#),
            chunk(r#""delta":{"content":"\u00e9 1.0e2"},"finish_reason": null"#),
            chunk(
                r#""delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":null"#,
            ),
            chunk(r#""delta":{},"finish_reason":"tool_calls""#),
        ];
        let stream: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        let seen = run(&(stream + DONE));
        assert_eq!(seen.frames[..4], chunks);
        assert_eq!(seen.frames[4..], ["[DONE]"]);
    }

    #[test]
    fn chunks_that_differ_in_their_text_only_come_out_as_if_each_were_read() {
        let chunk = |text: &str| {
            format!(
                r#"{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"content":{text}}},"finish_reason":null}}]}}"#
            )
        };
        let texts = [
            r#""a""#,
            r#""b\n\"\\ \u00e9é""#,
            r#""""#,
            r#""🦊""#,
            r#"" \ud83e\udd8a""#,
            r#""\ud83e""#,
            r#""z""#,
        ];
        let mut shaper = ChunkShaper::new(options(false, 1));
        let (mut out, mut expected) = (Vec::new(), String::new());
        let mut output = Tally::default();
        for text in texts {
            shaper.data(chunk(text).as_bytes(), &mut out);
            // Alone, each is read from front to back.
            let (mut alone, mut frames) = (ChunkShaper::new(options(false, 1)), Vec::new());
            alone.data(chunk(text).as_bytes(), &mut frames);
            expected += std::str::from_utf8(&frames).expect("UTF-8");
            output += *alone.output();
        }
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
        assert_eq!(*shaper.output(), output);
        // What does not continue the form is judged as ever.
        let mut out = Vec::new();
        assert_eq!(
            shaper.data(br#"{"error":{"message":"no"}}"#, &mut out),
            Step::Failed(br#"{"error":{"message":"no"}}"#.to_vec())
        );
        assert_eq!(shaper.data(chunk(r#""open"#).as_bytes(), &mut out), Step::Nothing);
        assert_eq!((shaper.malformed(), out.len()), (1, 0));
        let last = chunk(r#""""#).replace(r#""finish_reason":null"#, r#""finish_reason":"stop""#);
        assert_eq!(shaper.data(last.as_bytes(), &mut out), Step::Finished);
        assert_eq!(shaper.data(chunk(r#""late""#).as_bytes(), &mut out), Step::Delta);
    }

    #[test]
    fn sse_01_chunks_without_choices_are_neither_first_token_nor_end() {
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
        assert_eq!(steps(&[r#"{"choices":[]}"#, usage]), [Step::Nothing, Step::Nothing]);
        let seen =
            complete(&format!("data: {{\"choices\":[]}}\n\n{T_A}{FIN}data: {usage}\n\n{DONE}"), "a", "stop");
        assert_eq!((seen.usage, seen.frames.len()), (Some((3, 1)), 3));
    }

    #[test]
    fn sse_02_a_usage_preview_is_overwritten_by_the_last_value() {
        let usage = |n: u32| {
            format!(
                "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":8,\"completion_tokens\":{n}}}}}\n\n"
            )
        };
        let seen =
            complete(&format!("{}{}{}{FIN}{}{DONE}", usage(7), t("a"), t("b"), usage(311)), "ab", "stop");
        assert_eq!(seen.usage, Some((8, 311)));
    }

    #[test]
    fn sse_03_05_06_07_08_09_11_30_framing_does_not_matter() {
        for stream in [
            format!(": OPENROUTER PROCESSING\n\n{T_A}{FIN}{DONE}"),
            format!("{T_A}{FIN}{DONE}").replace('\n', "\r\n"),
            format!("{T_A}{FIN}{DONE}").replace('\n', "\r"),
            format!("{T_A}{FIN}{DONE}").replace("data: ", "data:"),
            format!("\u{feff}{T_A}{FIN}{DONE}"),
            format!("event: ping\ndata: \n\n{T_A}{FIN}{DONE}"),
            format!("{T_A}{FIN}data: [DONE]"),
            format!(
                "data: {{\"choices\":[{{\"index\":0,\ndata: \"delta\":{{\"content\":\"a\"}},\ndata: \"finish_reason\":\"stop\"}}]}}\n\n{DONE}"
            ),
            format!("{}{}{DONE}", T_A.trim_end_matches('\n').to_owned() + "\n", FIN),
            format!(
                "{}{}{DONE}",
                T_A.trim_end_matches('\n').to_owned() + "\n",
                FIN.trim_end_matches('\n').to_owned() + "\n"
            ),
        ] {
            complete(&stream, "a", "stop");
        }
    }

    #[test]
    fn sse_12_events_without_data_are_no_answer() {
        let stream = "data:\n {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n".repeat(5);
        let seen = run(&stream);
        assert_eq!((seen.end, seen.answer, seen.frames.len()), (Some(End::Truncated), false, 0));
    }

    #[test]
    fn sse_16_the_end_is_said_once_with_or_without_the_upstream() {
        complete(&format!("{T_A}{FIN}"), "a", "stop");
        complete(&format!("{T_A}{FIN}{DONE}{DONE}"), "a", "stop");
        assert_eq!(
            steps(&[&T_A[6..], &FIN[6..], "[DONE]", "[DONE]"]),
            [Step::Delta, Step::Finished, Step::Done, Step::Nothing]
        );
    }

    #[test]
    fn sse_18_done_without_a_finish_is_a_finish() {
        complete(&format!("{}{DONE}", t("done text")), "done text", "stop");
        let call = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}"#;
        complete(&format!("data: {call}\n\n{DONE}"), "", "tool_calls");
        let older = r#"{"choices":[{"index":0,"delta":{"function_call":{"name":"f","arguments":"{}"}}}]}"#;
        complete(&format!("data: {older}\n\n{DONE}"), "", "function_call");
        let none = r#"{"choices":[{"index":0,"delta":{"content":"a","function_call":null}}]}"#;
        complete(&format!("data: {none}\n\n{DONE}"), "a", "stop");
    }

    #[test]
    fn req_09_a_stream_of_fewer_choices_is_no_answer() {
        for end in [FIN.to_owned(), format!("{FIN}{DONE}"), DONE.to_owned()] {
            let seen = run_with(&format!("{T_A}{end}"), options(true, 2));
            assert_eq!(seen.end, Some(End::FewerChoices), "{end:?}");
            assert!(seen.frames.iter().all(|frame| frame != "[DONE]"), "{seen:?}");
        }
        let mut shaper = ChunkShaper::new(options(false, 2));
        let mut out = Vec::new();
        let role = r#"{"choices":[{"index":1,"delta":{"role":"assistant"}}]}"#;
        for (payload, all) in [(&T_A[6..], false), (&FIN[6..], false), (role, true)] {
            shaper.data(payload.as_bytes(), &mut out);
            assert_eq!(shaper.has_all_choices(), all, "{payload}");
        }
    }

    #[test]
    fn sse_19_an_empty_finish_is_none() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"\"}]}\n\n\
                      data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n";
        complete(&(stream.to_owned() + DONE), "x", "tool_calls");
    }

    #[test]
    fn sse_20_every_chunk_is_whole_and_has_one_id() {
        let seen = complete(
            &format!(
                "{T_A}data: {{\"id\":\"late\",\"object\":\"\",\"created\":9.5,\"model\":\"\",\"choices\":[{{\"delta\":{{\"content\":\"b\"}}}}]}}\n\n{FIN}{DONE}"
            ),
            "ab",
            "stop",
        );
        for frame in seen.json() {
            assert_eq!(
                (&frame["id"], &frame["model"], &frame["created"]),
                (&"chatcmpl-1".into(), &"m".into(), &7.into())
            );
        }
        let first = r#"{"id":"one","created":1744105600.37,"model":"up","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
        let seen = complete(
            &format!("data: {first}\n\ndata: {}\n\n{FIN}{DONE}", first.replace("one", "two")),
            "aa",
            "stop",
        );
        for frame in seen.json() {
            assert_eq!(
                (&frame["id"], &frame["model"], &frame["created"]),
                (&"one".into(), &"up".into(), &1_744_105_600.into())
            );
        }
    }

    #[test]
    fn sse_22_usage_is_read_wherever_it_stands_and_sent_in_its_own_chunk() {
        let usage = r#"{"prompt_tokens":40,"completion_tokens":130,"total_tokens":170,"prompt_tokens_details":{"cached_tokens":0}}"#;
        for end in [
            format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"usage":{usage}}}"#),
            format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop","usage":{usage}}}]}}"#),
            format!(
                r#"{{"usage":{usage},"choices":[{{"usage":{usage},"index":0,"delta":{{}},"finish_reason":"stop"}}]}}"#
            ),
            format!(
                r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"x_groq":{{"id":"r","usage":{usage}}}}}"#
            ),
        ] {
            let seen = run_with(&format!("{T_A}data: {end}\n\n{DONE}"), options(true, 1));
            assert_eq!(seen.usage, Some((40, 130)), "{end}");
            let frames = seen.json();
            let with_usage: Vec<&Value> =
                frames.iter().filter(|frame| frame.get("usage").is_some()).collect();
            assert_eq!(with_usage.len(), 1, "{end}");
            assert_eq!(with_usage[0]["choices"], serde_json::json!([]));
            assert_eq!(with_usage[0]["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
            assert!(seen.choices(0).iter().all(|choice| choice.get("usage").is_none()));
            assert_eq!(seen.finishes(0), ["stop"]);
        }
    }

    #[test]
    fn sse_23_running_totals_are_not_added_up() {
        let chunk = |n: u32| {
            format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}],\"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":{n}}}}}\n\n"
            )
        };
        let seen = complete(&format!("{}{}{}{FIN}{DONE}", chunk(12), chunk(40), chunk(90)), "aaa", "stop");
        assert_eq!(seen.usage, Some((20, 90)));
        assert!(seen.json().iter().all(|frame| frame.get("usage").is_none()));
    }

    #[test]
    fn sse_24_usage_goes_only_to_who_asked_and_once() {
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}\n\n";
        let null = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\n";
        let stream = format!("{null}{FIN}{usage}{usage}{DONE}");
        let seen = complete(&stream, "a", "stop");
        assert!(seen.frames.iter().all(|frame| !frame.contains("usage")));
        let seen = run_with(&stream, options(true, 1));
        let frames = seen.json();
        let last = frames.last().expect("frames");
        assert_eq!(
            last["usage"],
            serde_json::json!({"prompt_tokens":1,"completion_tokens":1,"total_tokens":2})
        );
        assert_eq!(frames.iter().filter(|frame| frame.get("usage").is_some()).count(), 1);
        // A usage chunk that repeats an empty choice (OpenRouter) is no further chunk.
        let odd = usage
            .replace("[]", r#"[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]"#);
        let seen = complete(&format!("{T_A}{FIN}{odd}{DONE}"), "a", "stop");
        assert_eq!((seen.frames.len(), seen.usage), (3, Some((1, 1))));
    }

    #[test]
    fn sse_25_who_asked_gets_an_estimate_when_the_upstream_is_silent() {
        let seen = run_with(&format!("{T_A}{FIN}{DONE}"), options(true, 1));
        assert_eq!(seen.usage, None);
        assert_eq!(
            seen.json().last().expect("frames")["usage"],
            serde_json::json!({"prompt_tokens":100,"completion_tokens":50,"total_tokens":150})
        );
    }

    #[test]
    fn sse_27_errors_are_told_from_null_and_from_text() {
        let ok =
            "data: {\"error\":null,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ok so far\"}}]}\n\n";
        let seen = complete(&format!("{ok}{FIN}{DONE}"), "ok so far", "stop");
        assert!(seen.frames.iter().all(|frame| !frame.contains("error")));
        let fails = |event: &str, body: &str| {
            for (before, answer) in [("", false), (ok, true)] {
                let seen = run(&format!("{before}{event}\n\n"));
                assert_eq!((seen.failed.as_deref(), seen.answer), (Some(body), answer), "{event}");
                assert_eq!(seen.frames.len(), usize::from(answer));
            }
        };
        fails("data: error: engine died", "error: engine died");
        fails("event: error\ndata: {\"message\":\"m\"}", r#"{"message":"m"}"#);
        for body in [
            r#"{"error":{"message":"slow down","code":429}}"#,
            r#"{"error":"busy"}"#,
            r#"{"object":"error","message":"x","code":40001}"#,
            r#"{"detail":"Not Found"}"#,
            r#"[{"error":{"code":503,"message":"x"}}]"#,
            r#"{"success":false,"errors":[{"code":7003}],"result":null}"#,
            r#"{"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":502,"message":"x"}}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#,
        ] {
            fails(&format!("data: {body}"), body);
        }
    }

    #[test]
    fn b2_a_stream_without_its_end_is_cut_short() {
        for stream in
            [T_A.to_owned(), format!("{T_A}data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"par")]
        {
            let seen = run(&stream);
            assert_eq!(
                (seen.end, seen.answer, seen.frames.len()),
                (Some(End::Truncated), true, 1),
                "{stream}"
            );
            assert!(seen.finishes(0).is_empty());
        }
        assert_eq!(run("").end, Some(End::Truncated));
        assert_eq!(run(DONE).end, Some(End::Empty));
    }

    #[test]
    fn sse_29_a_broken_event_is_skipped_and_leaves_no_trace() {
        let broken = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\",\"usage\":{\"prompt_tokens\":9}\n\n";
        let seen = complete(&format!("{}{broken}{}{FIN}{DONE}", t("a"), t("c")), "ac", "stop");
        assert_eq!((seen.malformed, seen.usage), (1, None));
        let seen = run(broken);
        assert_eq!((seen.end, seen.answer, seen.frames.len()), (Some(End::Truncated), false, 0));
        for odd in [
            "7",
            "null",
            "\"text\"",
            "[]",
            "{}",
            "{\"choices\":null}",
            "{\"choices\":[null,7]}",
            "{\"type\":\"ping\"}",
        ] {
            complete(&format!("{T_A}data: {odd}\n\n{FIN}{DONE}"), "a", "stop");
        }
    }

    #[test]
    fn sse_32_33_reasoning_is_output_and_stays_apart() {
        for member in ["reasoning_content", "reasoning"] {
            let chunk = format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"{member}\":\"hm\"}}}}]}}");
            assert_eq!(steps(&[&chunk]), [Step::Delta]);
            let seen = complete(&format!("data: {chunk}\n\n{}{FIN}{DONE}", t("42")), "42", "stop");
            assert_eq!(seen.choices(0)[0]["delta"][member], "hm");
        }
        let details = r#"{"choices":[{"index":0,"delta":{"content":"","reasoning_details":[{"type":"reasoning.text","text":"x"}]}}]}"#;
        assert_eq!(steps(&[details]), [Step::Delta]);
        // Mistral's thoughts come as content parts.
        let parts = r#"{"choices":[{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"4"},"2"]}}]}"#;
        let seen = complete(&format!("data: {parts}\n\n{FIN}{DONE}"), "42", "stop");
        assert_eq!(seen.choices(0)[0]["delta"]["reasoning_content"], "hm");
    }

    #[test]
    fn first_tokens_are_told_from_preludes() {
        for nothing in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null,"tool_calls":null}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"","tool_calls":[]}}]}"#,
            r#"{"choices":[{"index":0,"delta":null}]}"#,
        ] {
            assert_eq!(steps(&[nothing]), [Step::Nothing], "{nothing}");
        }
        for output in [
            r#"{"choices":[{"index":0,"delta":{"refusal":"no"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"function_call":{"name":"f"}}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f"}}]}}]}"#,
            r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}"#,
        ] {
            assert_eq!(steps(&[output]), [Step::Delta], "{output}");
        }
    }

    #[test]
    fn fo_07_nothing_but_a_length_finish_is_an_answer() {
        let finish = |reason: &str| FIN.replace("stop", reason);
        complete(&format!("{}{DONE}", finish("length")), "", "length");
        complete(&format!("{}{DONE}", finish("content_filter")), "", "content_filter");
        complete(&format!("{}{DONE}", finish("MAX_TOKENS")), "", "length");
    }

    #[test]
    fn fo_08_a_finish_without_any_output_is_no_answer() {
        let seen = run(&format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}}}]}}\n\n{FIN}{DONE}"
        ));
        assert_eq!((seen.end, seen.answer), (Some(End::Empty), false));
        assert!(!seen.frames.contains(&"[DONE]".to_owned()));
    }

    #[test]
    fn finish_words_are_openais() {
        for (theirs, ours) in
            [("end_turn", "stop"), ("tool_use", "tool_calls"), ("model_length", "length"), ("odd", "odd")]
        {
            complete(&format!("{T_A}{}{DONE}", FIN.replace("stop", theirs)), "a", ours);
        }
    }

    #[test]
    fn req_09_each_choice_ends_by_its_own_finish() {
        let chunk =
            |index: u32, rest: &str| format!("data: {{\"choices\":[{{\"index\":{index},{rest}}}]}}\n\n");
        let text = |index, text: &str| chunk(index, &format!("\"delta\":{{\"content\":\"{text}\"}}"));
        let end = |index| chunk(index, "\"delta\":{},\"finish_reason\":\"stop\"");
        let stream = format!("{}{}{}{}{}{DONE}", text(0, "a"), text(1, "b"), end(0), text(1, "c"), end(1));
        let seen = run_with(&stream, options(false, 2));
        assert_eq!((seen.finishes(0).len(), seen.finishes(1).len(), seen.end), (1, 1, Some(End::Complete)));
        let of_one: String = seen.choices(1).iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
        assert_eq!(of_one, "bc");
        let mut shaper = ChunkShaper::new(options(false, 2));
        let mut out = Vec::new();
        let mut step = |event: String| shaper.data(&event.as_bytes()[6..], &mut out);
        assert_eq!(step(text(0, "a")), Step::Delta);
        assert_eq!(step(end(0)), Step::Nothing);
        assert_eq!(step(text(1, "b")), Step::Delta);
        assert_eq!(step(end(1)), Step::Finished);
        // One choice still open and no `[DONE]`: cut short.
        let seen = run_with(&format!("{}{}{}", text(0, "a"), text(1, "b"), end(0)), options(false, 2));
        assert_eq!(seen.end, Some(End::Truncated));
    }

    /// The calls of choice 0 as a client adds them up: (id, name, arguments).
    fn calls(seen: &Seen) -> Vec<(String, String, String)> {
        let mut calls: Vec<(String, String, String)> = Vec::new();
        for choice in seen.choices(0) {
            for entry in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let index = entry["index"].as_u64().expect("an index") as usize;
                calls.resize(calls.len().max(index + 1), Default::default());
                let call = &mut calls[index];
                call.0 += entry["id"].as_str().unwrap_or_default();
                call.1 += entry["function"]["name"].as_str().unwrap_or_default();
                call.2 += entry["function"]["arguments"].as_str().unwrap_or_default();
            }
        }
        calls
    }

    #[test]
    fn tool_01_03_04_06_07_calls_add_up() {
        let delta = |entries: &str| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{entries}]}}}}]}}\n\n")
        };
        let finish = FIN.replace("stop", "tool_calls");
        let check = |stream: &str, expected: (&str, &str, &str)| {
            let seen = complete(stream, "", "tool_calls");
            let expected = vec![(expected.0.into(), expected.1.into(), expected.2.into())];
            assert_eq!(calls(&seen), expected, "{stream}");
            let last = seen.choices(0).last().expect("chunks").clone();
            assert_eq!(last["finish_reason"], "tool_calls", "the finish comes last");
        };
        let gemini = r#"{"id":"c1","type":"function","function":{"name":"get","arguments":"{\"a\":1}"}}"#;
        check(&format!("{}{finish}{DONE}", delta(gemini)), ("c1", "get", "{\"a\":1}"));
        let object =
            r#"{"index":0,"id":"c1","type":"function","function":{"name":"w","arguments":{"p":"a.txt"}}}"#;
        check(&format!("{}{finish}{DONE}", delta(object)), ("c1", "w", "{\"p\":\"a.txt\"}"));
        let none = r#"{"index":0,"id":"c1","type":"function","function":{"name":"now","arguments":""}}"#;
        check(&format!("{}{finish}{DONE}", delta(none)), ("c1", "now", "{}"));
        check(&format!("{}{DONE}", delta(none)), ("c1", "now", "{}"));
        // Everything in one chunk, the finish included and in other words.
        let one = format!(
            "data: {{\"choices\":[{{\"finish_reason\":\"tool_use\",\"delta\":{{\"tool_calls\":[{none}]}},\"index\":0}}]}}\n\n{DONE}"
        );
        check(&one, ("c1", "now", "{}"));
        let again = r#"{"index":0,"id":"c1","type":"function","function":{"name":"now","arguments":"{}"}}"#;
        check(&format!("{}{}{finish}{DONE}", delta(none), delta(again)), ("c1", "now", "{}"));
        let nameless = r#"{"index":0,"id":"c1","function":{"arguments":"{}"}}"#;
        let name = r#"{"index":0,"function":{"name":"f"}}"#;
        check(&format!("{}{}{finish}{DONE}", delta(nameless), delta(name)), ("c1", "f", "{}"));
        check(&format!("{}{finish}{DONE}", delta(nameless)), ("c1", "", "{}"));
        assert_eq!(
            steps(&[delta(nameless)[6..].trim(), delta(name)[6..].trim()]),
            [Step::Nothing, Step::Delta]
        );
    }

    #[test]
    fn broken_characters_never_reach_a_client() {
        let mut shaper = ChunkShaper::new(options(false, 1));
        let mut out = Vec::new();
        assert_eq!(
            shaper.data(b"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\xc3\"}}]}", &mut out),
            Step::Delta
        );
        assert_eq!(
            shaper.data(br#"{"choices":[{"index":0,"delta":{"content":"\ud83d"}}]}"#, &mut out),
            Step::Delta
        );
        let out = String::from_utf8(out).expect("UTF-8");
        assert!(out.contains("a\u{fffd}") && out.contains("\\ufffd"), "{out}");
    }

    #[test]
    fn req_16_a_deep_chunk_is_skipped() {
        let deep = format!("{{\"choices\":[],\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        complete(&format!("{T_A}data: {}\n\n{FIN}{DONE}", &deep[..500]), "a", "stop");
        let seen = feed(&[format!("{T_A}data: {deep}\n\n{FIN}{DONE}").as_bytes()], options(false, 1));
        assert_eq!((seen.end, seen.malformed), (Some(End::Complete), 1));
    }
}
