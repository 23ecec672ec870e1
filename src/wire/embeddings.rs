//! Embeddings: what a request asks for, and whether an answer is one.
use super::answer::{NoAnswer, Why, gives_reason, json_object};
use super::body::Body;
use super::chat::{bad, read_model, read_models};
use super::error::ApiError;
use super::json::{self, Cursor, Flaw};
use super::patch::{Patch, Track};
use super::tally::Tally;
use super::usage::{Usage, UsageTap};
use super::vector::{self, Form};

/// Most inputs of one request, as OpenAI has it.
const INPUTS_MAX: usize = 2_048;

/// Most bytes of vectors put into another form. An upstream whose own numbers take more is not listened to either.
const CONVERTED_BYTES_MAX: usize = 32 << 20;

/// What routing needs to know of an embeddings body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingFacts {
    /// As the client wrote it; `auto` when it named none.
    pub model: String,
    pub models: Vec<String>,
    /// How many vectors must come back.
    pub inputs: usize,
    /// Whether inputs are token ids, which only some upstreams take: the vocabulary is the model's own.
    pub token_ids: bool,
    /// The vector length asked for.
    pub dimensions: Option<u32>,
    /// The form of the vectors asked for.
    pub form: Form,
    pub tally: Tally,
    /// The longest of the inputs: each is read by itself, and has a window of its own.
    pub longest: Tally,
}

impl EmbeddingFacts {
    /// Reads and checks a body. Errors are 400 with `param`: `missing_input` when there is none, else `invalid_body`.
    pub fn read(body: &Body) -> Result<EmbeddingFacts, ApiError> {
        let missing = || {
            ApiError::bad_field(
                "missing_input",
                "input",
                "`input` must be a text, a list of texts or token ids",
            )
        };
        let mut input = Input::default();
        input.read(body.given("input").ok_or_else(missing)?)?;
        if input.inputs == 0 {
            return Err(missing());
        }
        let dimensions = match body.given("dimensions").map(json::whole) {
            None => None,
            Some(Some(length @ 1..=65_536)) => Some(length as u32),
            Some(_) => return Err(bad("dimensions", "`dimensions` must be a whole number from 1 to 65536")),
        };
        Ok(EmbeddingFacts {
            model: read_model(body)?,
            models: read_models(body)?,
            inputs: input.inputs,
            token_ids: input.tally.tokens > 0,
            dimensions,
            form: Form::named(body.text("encoding_format").as_deref()),
            tally: input.tally,
            longest: input.longest,
        })
    }
}

#[derive(Default)]
struct Input {
    inputs: usize,
    tally: Tally,
    longest: Tally,
}

impl Input {
    fn read(&mut self, raw: &[u8]) -> Result<(), ApiError> {
        if raw.starts_with(b"\"") {
            return self.text(raw, || "input".into());
        }
        let mut cursor = Cursor::new(raw);
        if !cursor.open(b'[')? {
            return Err(bad("input", "`input` must be a text or a list"));
        }
        // The first entry says what all of them are: texts, the ids of one input, or lists of ids.
        let first = cursor.peek();
        let mut at = 0;
        while cursor.item()? {
            let place = || format!("input[{at}]");
            match (first, cursor.peek()) {
                (Some(b'"'), Some(b'"')) => self.text(cursor.skip()?, place)?,
                (Some(b'['), Some(b'[')) => self.tokens(&mut cursor, place)?,
                (Some(b'0'..=b'9'), Some(b'0'..=b'9')) => {
                    self.token(cursor.skip()?, place)?;
                    (self.inputs, self.longest) = (1, self.tally);
                }
                _ => {
                    let place = place();
                    let message =
                        format!("`{place}` must be a text, a token id or a list of them, as the others");
                    return Err(bad(place, message));
                }
            }
            at += 1;
            if self.inputs > INPUTS_MAX {
                return Err(bad("input", format!("`input` has more than {INPUTS_MAX} entries")));
            }
        }
        Ok(())
    }

    /// `place` names the input, for an error.
    fn text(&mut self, raw: &[u8], place: impl Fn() -> String) -> Result<(), ApiError> {
        if raw == b"\"\"" {
            return Err(bad(place(), format!("`{}` is empty", place())));
        }
        let before = self.tally;
        self.tally.json(raw);
        self.ends(before);
        Ok(())
    }

    /// A list of token ids that is one input among several.
    fn tokens(&mut self, cursor: &mut Cursor<'_>, place: impl Fn() -> String) -> Result<(), ApiError> {
        let before = self.tally;
        cursor.open(b'[')?;
        while cursor.item()? {
            self.token(cursor.skip()?, &place)?;
        }
        if self.tally == before {
            return Err(bad(place(), format!("`{}` is empty", place())));
        }
        self.ends(before);
        Ok(())
    }

    /// One input ends here; so much had come before it.
    fn ends(&mut self, before: Tally) {
        let own = self.tally - before;
        // In bytes, which go with tokens within one request.
        let bytes = |tally: &Tally| {
            tally.ascii + 2 * tally.narrow + 3 * tally.wide + 4 * tally.astral + 4 * tally.tokens
        };
        if bytes(&own) > bytes(&self.longest) {
            self.longest = own;
        }
        self.inputs += 1;
    }

    fn token(&mut self, raw: &[u8], place: impl Fn() -> String) -> Result<(), ApiError> {
        if json::whole(raw).is_none() {
            return Err(bad(place(), format!("`{}` must be token ids", place())));
        }
        self.tally.tokens += 1;
        Ok(())
    }
}

/// A good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embeddings {
    /// What the client gets.
    pub body: Vec<u8>,
    pub usage: Option<Usage>,
    /// The length of the first vector; `None` when it came and went encoded.
    pub dimensions: Option<usize>,
}

/// Judges the body of a 200: a vector for every input, or it is no answer; half a batch is none. `object`, `model`, and
/// the `object` and `index` of each entry are added where they are missing. Vectors that came in the other form than the
/// client asked for are converted.
pub fn check(body: &[u8], facts: &EmbeddingFacts, model: &str) -> Result<Embeddings, NoAnswer> {
    let text = json_object(body)?;
    let (mut reading, mut patch) = (Reading { form: facts.form, ..Reading::default() }, Patch::default());
    // The grammar was checked; a flaw cannot be met any more.
    reading.read(&text, model, &mut patch).map_err(|_| Why::NotJson)?;
    let usage = reading.usage.usage();
    let no = |why: Why| Err(NoAnswer { why, usage });
    if reading.failed || (reading.entries == 0 && gives_reason(&text)) {
        return no(Why::Error(text.into_owned()));
    }
    if reading.entries == 0 {
        return no(Why::NoChoices);
    }
    if reading.too_long {
        return no(Why::TooLong);
    }
    if reading.entries != facts.inputs || reading.vectors != facts.inputs {
        return no(Why::Empty);
    }
    let mut out = Vec::with_capacity(text.len() + 64);
    patch.apply(&text, &mut out);
    if reading.disordered {
        if let Ok(Some(sorted)) = sorted(&out) {
            out = sorted;
        }
    }
    Ok(Embeddings { body: out, usage, dimensions: reading.dimensions })
}

/// The same answer with its entries in the order of their indexes, which many clients do not look at; `None` when these
/// name no order.
fn sorted(body: &[u8]) -> Result<Option<Vec<u8>>, Flaw> {
    let mut cursor = Cursor::new(body);
    cursor.open(b'{')?;
    while let Some(name) = cursor.member()? {
        if name != b"data" || !cursor.open(b'[')? {
            cursor.skip()?;
            continue;
        }
        let mut entries: Vec<(u64, &[u8])> = Vec::new();
        let (mut from, mut to) = (body.len(), 0);
        while cursor.item()? {
            let raw = cursor.skip()?;
            let Some(index) = json::member(raw, "index").and_then(json::whole) else { return Ok(None) };
            (from, to) = (from.min(cursor.at() - raw.len()), cursor.at());
            entries.push((index, raw));
        }
        entries.sort_by_key(|(index, _)| *index);
        if entries.iter().zip(0..).any(|((index, _), place)| *index != place) {
            return Ok(None);
        }
        let list: Vec<&[u8]> = entries.into_iter().map(|(_, raw)| raw).collect();
        return Ok(Some([&body[..from], &list.join(&b","[..]), &body[to..]].concat()));
    }
    Ok(None)
}

#[derive(Default)]
struct Reading {
    form: Form,
    /// The vector being converted; kept between vectors, so that all of them need one.
    packed: Vec<u8>,
    too_long: bool,
    usage: UsageTap,
    entries: usize,
    /// Entries that hold a vector.
    vectors: usize,
    /// Entries stand elsewhere than their indexes say.
    disordered: bool,
    dimensions: Option<usize>,
    failed: bool,
}

impl Reading {
    fn read(&mut self, text: &[u8], model: &str, patch: &mut Patch) -> Result<(), Flaw> {
        let mut cursor = Cursor::new(text);
        cursor.open(b'{')?;
        let mut top = Track::new(cursor.at());
        let (mut has_object, mut has_model) = (false, false);
        while let Some(name) = cursor.member()? {
            top.begin(cursor.name_at(), patch);
            if name == b"data" && cursor.open(b'[')? {
                while cursor.item()? {
                    self.entry(&mut cursor, patch)?;
                }
            } else {
                let raw = cursor.skip()?;
                match name {
                    b"usage" => self.usage.read(raw),
                    b"error" => self.failed |= !json::is_blank(Some(raw)) && raw != b"false",
                    b"object" => has_object = true,
                    b"model" => has_model = true,
                    _ => {}
                }
            }
            top.keep(cursor.at());
        }
        top.close(cursor.at() - 1, patch);
        if !has_object {
            top.add("object", b"\"list\"", patch);
        }
        if !has_model {
            top.add("model", &json::quoted(model), patch);
        }
        Ok(())
    }

    fn entry(&mut self, cursor: &mut Cursor<'_>, patch: &mut Patch) -> Result<(), Flaw> {
        let position = self.entries;
        self.entries += 1;
        if !cursor.open(b'{')? {
            cursor.skip()?;
            return Ok(());
        }
        let mut track = Track::new(cursor.at());
        let (mut has_object, mut has_index) = (false, false);
        while let Some(name) = cursor.member()? {
            track.begin(cursor.name_at(), patch);
            match name {
                b"embedding" => self.vector(cursor, patch)?,
                b"index" => {
                    has_index = true;
                    self.disordered |= json::whole(cursor.skip()?) != Some(position as u64);
                }
                _ => {
                    cursor.skip()?;
                    has_object |= name == b"object";
                }
            }
            track.keep(cursor.at());
        }
        track.close(cursor.at() - 1, patch);
        if !has_object {
            track.add("object", b"\"embedding\"", patch);
        }
        if !has_index {
            track.add("index", position.to_string().as_bytes(), patch);
        }
        Ok(())
    }

    /// Reads the vector that comes next, and notes its other form if that is the one asked for.
    fn vector(&mut self, cursor: &mut Cursor<'_>, patch: &mut Patch) -> Result<(), Flaw> {
        let is_list = cursor.peek() == Some(b'[');
        let (from, has_room) = (cursor.at(), patch.len() <= CONVERTED_BYTES_MAX);
        self.too_long |= !has_room;
        let packed = &mut self.packed;
        packed.clear();
        let length = match (is_list, self.form) {
            (true, Form::Base64) => {
                let length = vector::read_numbers(cursor, Some(packed))?;
                if length > 0 && has_room {
                    patch.replace_with(from..cursor.at(), |pool| vector::write_base64(packed, pool));
                }
                length
            }
            (true, _) => vector::read_numbers(cursor, None)?,
            (false, Form::Numbers) => {
                let text = json::text(cursor.skip()?).unwrap_or_default();
                let length = vector::read_base64(&text, packed);
                if length > 0 && has_room {
                    patch.replace_with(from..cursor.at(), |pool| vector::write_numbers(packed, pool));
                }
                length
            }
            (false, _) => {
                // As asked for; how many numbers it holds is not looked at.
                let raw = cursor.skip()?;
                self.vectors += usize::from(raw.starts_with(b"\"") && raw.len() > 2);
                return Ok(());
            }
        };
        self.vectors += usize::from(length > 0);
        self.dimensions = self.dimensions.or(Some(length));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<EmbeddingFacts, ApiError> {
        EmbeddingFacts::read(&Body::parse(format!("{{{fields}}}").into_bytes()).expect("valid JSON"))
    }

    /// An answer to so many inputs.
    fn judged(body: &str, inputs: usize, form: Form) -> Result<Embeddings, NoAnswer> {
        let facts = read(r#""input":"a""#).expect("fine");
        check(body.as_bytes(), &EmbeddingFacts { inputs, form, ..facts }, "m")
    }

    #[test]
    fn inputs_are_counted_in_every_form() {
        let check = |input: &str, inputs: usize, tally: Tally| {
            let facts = read(&format!("\"input\":{input}")).expect(input);
            assert_eq!(
                (facts.inputs, facts.tally, facts.token_ids),
                (inputs, tally, tally.tokens > 0),
                "{input}"
            );
        };
        let text = |ascii| Tally { ascii, ..Tally::default() };
        let ids = |tokens| Tally { tokens, ..Tally::default() };
        check("\"hello\"", 1, text(5));
        check(r#"["a","b\n"]"#, 2, text(3));
        check("[101,2023]", 1, ids(2));
        check("[[101],[2023,7]]", 2, ids(3));
    }

    #[test]
    fn vectors_are_put_in_the_order_of_their_indexes() {
        let entry =
            |index: u32| format!(r#"{{"object":"embedding", "index":{index},"embedding":[{index}.50]}}"#);
        let body = |order: [u32; 3]| {
            let list = order.map(entry).join(",");
            format!(
                r#"{{"object":"list","data":[{list}],"model":"m","usage":{{"prompt_tokens":1,"total_tokens":1}}}}"#
            )
        };
        let check = |given: [u32; 3], expected: [u32; 3]| {
            let out = judged(&body(given), 3, Form::Numbers).expect("an answer").body;
            assert_eq!(String::from_utf8(out).expect("UTF-8"), body(expected), "{given:?}");
        };
        check([0, 1, 2], [0, 1, 2]);
        check([2, 0, 1], [0, 1, 2]);
        // These name no order, so that of the list is all there is.
        check([0, 0, 0], [0, 0, 0]);
        check([1, 2, 3], [1, 2, 3]);
    }

    #[test]
    fn what_is_no_input_is_refused() {
        let check = |fields: &str, code: &str, param: &str| {
            let e = read(fields).expect_err(fields);
            assert_eq!((e.status, e.code.as_str(), e.param.as_deref()), (400, code, Some(param)), "{fields}");
        };
        check("", "missing_input", "input");
        check(r#""input":null"#, "missing_input", "input");
        check(r#""input":[]"#, "missing_input", "input");
        check(r#""input":7"#, "invalid_body", "input");
        check(r#""input":{}"#, "invalid_body", "input");
        check(r#""input":"""#, "invalid_body", "input");
        check(r#""input":["a",""]"#, "invalid_body", "input[1]");
        check(r#""input":["a",7]"#, "invalid_body", "input[1]");
        check(r#""input":[7,"a"]"#, "invalid_body", "input[1]");
        check(r#""input":["a",[7]]"#, "invalid_body", "input[1]");
        check(r#""input":[7,[7]]"#, "invalid_body", "input[1]");
        check(r#""input":[[7],7]"#, "invalid_body", "input[1]");
        check(r#""input":[[7],"a"]"#, "invalid_body", "input[1]");
        check(r#""input":[[7],[]]"#, "invalid_body", "input[1]");
        check(r#""input":[1.5]"#, "invalid_body", "input[0]");
        check(r#""input":[null]"#, "invalid_body", "input[0]");
        check(r#""input":"a","dimensions":0"#, "invalid_body", "dimensions");
        check(&format!(r#""input":[{}]"#, vec!["\"a\""; 3_000].join(",")), "invalid_body", "input");
        let facts = read(r#""input":"a","dimensions":256,"model":"e","models":["x"]"#).expect("fine");
        assert_eq!((facts.dimensions, facts.model.as_str(), facts.models.len()), (Some(256), "e", 1));
    }

    #[test]
    fn answers_are_judged_and_completed() {
        let good = |body: &str, inputs: usize| judged(body, inputs, Form::Other).expect(body);
        let body = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3]}],"model":"e","usage":{"prompt_tokens":3,"total_tokens":3}}"#;
        let answer = good(body, 1);
        assert_eq!((answer.body.as_slice(), answer.dimensions), (body.as_bytes(), Some(2)));
        assert_eq!(answer.usage.map(|usage| (usage.prompt, usage.total)), Some((3, 3)));
        let bare = good(r#"{"data":[{"embedding":[1]},{"embedding":"AACAPw=="}]}"#, 2);
        assert_eq!(
            String::from_utf8(bare.body).expect("UTF-8"),
            r#"{"data":[{"embedding":[1],"object":"embedding","index":0},{"embedding":"AACAPw==","object":"embedding","index":1}],"object":"list","model":"m"}"#
        );
    }

    #[test]
    fn emb_04_errors_and_half_batches_are_no_answer() {
        let no = |body: &str, why: Why| {
            assert_eq!(judged(body, 2, Form::Numbers).map_err(|no| no.why), Err(why), "{body}")
        };
        let error = r#"{"error":{"message":"HTTP 429: slow down, retry after 3 seconds","code":429}}"#;
        no(error, Why::Error(error.as_bytes().to_vec()));
        no("{}", Why::NoChoices);
        no(r#"{"data":[]}"#, Why::NoChoices);
        no(r#"{"data":[{"embedding":[1]}]}"#, Why::Empty);
        no(r#"{"data":[{"embedding":[1]},{"embedding":[]}]}"#, Why::Empty);
        no(r#"{"data":[{"embedding":[1]},{"embedding":[null]}]}"#, Why::Empty);
        no(r#"{"data":[{"embedding":[1]},null]}"#, Why::Empty);
        no(r#"{"data":[{"embedding":[1]},{"embedding":[1]},{"embedding":[1]}]}"#, Why::Empty);
        no("<html>", Why::Html);
        no(r#"{"data":[{"embedding":[1,"#, Why::Truncated);
    }

    #[test]
    fn vectors_come_in_the_form_that_was_asked_for() {
        let sent = |vector: &str, form: Form| {
            let body = format!(
                r#"{{"data":[{{"embedding": {vector} ,"index":0,"object":"o"}}],"model":"m","object":"l"}}"#
            );
            let answer = judged(&body, 1, form).map_err(|no| no.why)?;
            let answer: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
            Ok(answer["data"][0]["embedding"].to_string())
        };
        let (list, coded) = ("[0.5,-0.25,0.125]", r#""AAAAPwAAgL4AAAA+""#);
        for (form, expected) in [(Form::Numbers, list), (Form::Base64, coded)] {
            for came in [list, coded, r#""AAAAPwAAgL4AAAA\u002b""#] {
                let unchanged = form == Form::Base64 && came.contains('\\');
                let expected = if unchanged { coded } else { expected };
                assert_eq!(sent(came, form), Ok(expected.into()), "{came} for {form:?}");
            }
            assert_eq!(sent("[null]", form), Err(Why::Empty));
            assert_eq!(sent("\"\"", form), Err(Why::Empty));
        }
        assert_eq!(sent(list, Form::Other), Ok(list.into()));
        assert_eq!(sent(coded, Form::Other), Ok(coded.into()));
        assert_eq!(sent("\"no vector!\"", Form::Numbers), Err(Why::Empty));
        assert_eq!(sent("[1e39]", Form::Base64), Err(Why::Empty));
    }

    #[test]
    fn the_form_is_read() {
        let check = |fields: &str, form: Form| {
            let facts = read(&format!(r#""input":"a"{fields}"#)).expect(fields);
            assert_eq!(facts.form, form, "{fields}");
        };
        check("", Form::Numbers);
        check(r#","encoding_format":null"#, Form::Numbers);
        check(r#","encoding_format":"float""#, Form::Numbers);
        check(r#","encoding_format":"base64""#, Form::Base64);
        check(r#","encoding_format":"int8""#, Form::Other);
    }

    #[test]
    fn what_grows_too_long_is_no_answer() {
        let vector = "AACA/".repeat(1 << 18);
        let body = format!(
            r#"{{"data":[{}]}}"#,
            vec![format!(r#"{{"embedding":"{}"}}"#, &vector[..1 << 20]); 24].join(",")
        );
        assert_eq!(judged(&body, 24, Form::Numbers).map_err(|no| no.why), Err(Why::TooLong));
        assert!(judged(&body, 24, Form::Base64).is_ok());
    }
}
