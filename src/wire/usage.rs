//! Token counts as upstreams report them: in any chunk, in any spelling, partly, repeatedly, or wrongly.
use super::json::{self, Cursor};

/// No call uses as many tokens; a larger number is a fault of the upstream and is not believed.
const TOKENS_MAX: u64 = 100_000_000;

/// What one call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u64,
    pub completion: u64,
    /// At least the sum of the two; more where an upstream counts hidden reasoning here only.
    pub total: u64,
    /// Counted by us, because the upstream did not say.
    pub estimated: bool,
}

impl Usage {
    /// Our own estimate.
    pub fn estimate(prompt: u64, completion: u64) -> Usage {
        Usage { prompt, completion, total: prompt.saturating_add(completion), estimated: true }
    }
}

/// Gathers what an upstream says about usage. The last value of each count wins; a count that is left out later keeps
/// its value, since some upstreams repeat a running total and others name each count once.
#[derive(Debug, Default)]
pub struct UsageTap {
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    /// All members that are no counts of ours (`prompt_tokens_details`, ...), as `,"name":value` each.
    details: Vec<u8>,
}

impl UsageTap {
    /// Reads a `usage` object. Anything else is ignored, and so are counts that cannot be counts.
    pub fn read(&mut self, raw: &[u8]) {
        // Broken text was refused before; what could be read of it until then is kept.
        let _ = self.read_members(raw);
    }

    fn read_members(&mut self, raw: &[u8]) -> Result<(), json::Flaw> {
        let mut cursor = Cursor::new(raw);
        if !cursor.open(b'{')? {
            return Ok(());
        }
        let mut first_detail = true;
        while let Some(name) = cursor.member()? {
            let name_at = cursor.name_at();
            let value = cursor.skip()?;
            let slot = match name {
                b"prompt_tokens" | b"input_tokens" => &mut self.prompt,
                b"completion_tokens" | b"output_tokens" => &mut self.completion,
                b"total_tokens" => &mut self.total,
                _ => {
                    if std::mem::take(&mut first_detail) {
                        self.details.clear();
                    }
                    self.details.push(b',');
                    self.details.extend_from_slice(&raw[name_at..cursor.at()]);
                    continue;
                }
            };
            if let Some(count) = json::count(value).filter(|count| *count <= TOKENS_MAX) {
                *slot = Some(count);
            }
        }
        Ok(())
    }

    /// What was said so far; `None` when nothing was, or nothing but zeros.
    pub fn usage(&self) -> Option<Usage> {
        let completion = self.completion.unwrap_or(0);
        let total = self.total.unwrap_or(0);
        let prompt = self.prompt.unwrap_or_else(|| total.saturating_sub(completion));
        let total = total.max(prompt + completion);
        (total > 0).then_some(Usage { prompt, completion, total, estimated: false })
    }

    /// Appends a `usage` object with the counts of `usage`, and with all details the upstream gave.
    pub fn write(&self, usage: Usage, out: &mut Vec<u8>) {
        let Usage { prompt, completion, total, .. } = usage;
        let counts = format!(
            "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{total}"
        );
        out.extend_from_slice(counts.as_bytes());
        out.extend_from_slice(&self.details);
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tap(frames: &[&str]) -> UsageTap {
        let mut tap = UsageTap::default();
        frames.iter().for_each(|frame| tap.read(frame.as_bytes()));
        tap
    }

    fn check(frames: &[&str], expected: Option<(u64, u64, u64)>) {
        let expected =
            expected.map(|(prompt, completion, total)| Usage { prompt, completion, total, estimated: false });
        assert_eq!(tap(frames).usage(), expected, "{frames:?}");
    }

    #[test]
    fn sse_02_the_last_value_wins() {
        check(
            &[
                r#"{"prompt_tokens":8,"completion_tokens":7}"#,
                r#"{"prompt_tokens":8,"completion_tokens":311}"#,
            ],
            Some((8, 311, 319)),
        );
    }

    #[test]
    fn sse_23_a_count_left_out_keeps_its_value() {
        let frames = [
            r#"{"prompt_tokens":20,"completion_tokens":12}"#,
            r#"{"completion_tokens":40}"#,
            r#"{"completion_tokens":90,"prompt_tokens":null}"#,
        ];
        check(&frames, Some((20, 90, 110)));
    }

    #[test]
    fn b17_only_what_can_be_a_count_counts() {
        check(&[r#"{"prompt_tokens":1.0,"completion_tokens":2.9,"total_tokens":3}"#], Some((1, 2, 3)));
        check(&[r#"{"prompt_tokens":-5,"completion_tokens":3}"#], Some((0, 3, 3)));
        check(&[r#"{"prompt_tokens":1e300,"completion_tokens":"7","total_tokens":9}"#], Some((9, 0, 9)));
        check(&[r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":7}"#], Some((10, 5, 15)));
        check(&[r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}"#], Some((10, 5, 40)));
        check(&[r#"{"input_tokens":4,"output_tokens":2}"#], Some((4, 2, 6)));
        check(&[r#"{"prompt_tokens":4,"completion_tokens":999999999999}"#], Some((4, 0, 4)));
        for nothing in [
            r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#,
            "{}",
            "null",
            "[]",
            "7",
            "\"x\"",
        ] {
            check(&[nothing], None);
        }
    }

    #[test]
    fn sse_22_details_are_kept_even_zeros() {
        let tap = tap(&[
            r#"{"prompt_tokens":40,"completion_tokens":130,"total_tokens":170,"prompt_tokens_details":{"cached_tokens":0},"queue_time":0.50}"#,
            r#"{"completion_tokens":131}"#,
        ]);
        let mut out = Vec::new();
        tap.write(tap.usage().expect("counts were given"), &mut out);
        assert_eq!(
            String::from_utf8(out).expect("UTF-8"),
            r#"{"prompt_tokens":40,"completion_tokens":131,"total_tokens":171,"prompt_tokens_details":{"cached_tokens":0},"queue_time":0.50}"#
        );
    }
}
