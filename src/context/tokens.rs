//! Estimated tokens. No tokenizer is shared by all models, so characters are counted by how tokenizers treat them, and
//! a ratio per model is learned from what upstreams report.
use crate::wire::tally::Tally;
use crate::wire::usage::Usage;

/// Tokens in a thousand characters, by width in UTF-8: about four characters of English or code to a token, two of
/// Cyrillic or Arabic, one of Chinese or Thai, and two tokens to an emoji.
const PER_THOUSAND_ASCII: u64 = 250;
const PER_THOUSAND_NARROW: u64 = 500;
const PER_THOUSAND_WIDE: u64 = 1_000;
const PER_THOUSAND_ASTRAL: u64 = 2_000;
/// An image of common size.
const PER_IMAGE: u64 = 1_000;
/// The role and the marks around a message.
const PER_MESSAGE: u64 = 4;

/// A ratio outside this range is no property of a tokenizer but a fault of the count.
const RATIO_RANGE: (f64, f64) = (0.4, 3.0);
/// A smaller prompt says more about an upstream's own additions than about its tokenizer.
const LEARNED_FROM_TOKENS: u64 = 50;
/// Weight of one sample once there are many.
const LEARNING_RATE_MIN: f64 = 0.05;

/// Tokens by our own count; at least 1.
pub fn estimate(tally: &Tally) -> u64 {
    let text = tally.ascii * PER_THOUSAND_ASCII
        + tally.narrow * PER_THOUSAND_NARROW
        + tally.wide * PER_THOUSAND_WIDE
        + tally.astral * PER_THOUSAND_ASTRAL;
    (text.div_ceil(1_000) + tally.images * PER_IMAGE + tally.messages * PER_MESSAGE + tally.tokens).max(1)
}

/// Tokens as a model counts them, by its learned ratio.
pub fn estimate_for(tally: &Tally, ratio: Ratio) -> u64 {
    ((estimate(tally) as f64 * ratio.factor()).ceil() as u64).max(1)
}

/// What a call used where the upstream does not say. No output is no tokens.
pub fn estimated_usage(prompt_tokens: u64, output: &Tally) -> Usage {
    Usage::estimate(prompt_tokens, if output.is_empty() { 0 } else { estimate(output) })
}

/// How a model's tokenizer compares with our count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    factor: f64,
    samples: u32,
}

impl Ratio {
    /// One learned before, as [`Ratio::parts`] gave it; nothing is believed of numbers that cannot be.
    pub fn restored(factor: f64, samples: u32) -> Ratio {
        if (RATIO_RANGE.0..=RATIO_RANGE.1).contains(&factor) {
            Ratio { factor, samples }
        } else {
            Ratio::default()
        }
    }

    /// Factor and number of samples, to be stored.
    pub fn parts(self) -> (f64, u32) {
        (self.factor(), self.samples)
    }

    /// Multiplies our own count; 1 while nothing is known.
    pub fn factor(self) -> f64 {
        if self.samples == 0 { 1.0 } else { self.factor }
    }

    /// Learns from one call: our own count of its prompt, and the upstream's. Images are not text, so calls with images
    /// teach nothing.
    pub fn learn(&mut self, tally: &Tally, reported_tokens: u64) {
        let counted = estimate(tally);
        if tally.images > 0 || counted.min(reported_tokens) < LEARNED_FROM_TOKENS {
            return;
        }
        let seen = reported_tokens as f64 / counted as f64;
        if !(RATIO_RANGE.0..=RATIO_RANGE.1).contains(&seen) {
            return;
        }
        let weight = LEARNING_RATE_MIN.max(1.0 / (f64::from(self.samples) + 1.0));
        self.factor = self.factor() + weight * (seen - self.factor());
        self.samples = self.samples.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Tally {
        let mut tally = Tally::default();
        tally.text(text);
        tally
    }

    #[test]
    fn scripts_images_and_ids_weigh_by_their_kind() {
        let check = |tally: Tally, expected: u64| assert_eq!(estimate(&tally), expected, "{tally:?}");
        check(Tally::default(), 1);
        check(text("four"), 1);
        check(text("fours"), 2);
        check(text("漢字漢字"), 4);
        check(text("привет"), 3);
        check(text("😀"), 2);
        check(Tally { images: 2, messages: 3, ..text("hi") }, 2_013);
        check(Tally { tokens: 7, ..Tally::default() }, 7);
    }

    #[test]
    fn a_ratio_is_learned_slowly_and_only_from_what_can_be() {
        let prompt = text(&"word ".repeat(80));
        let mut ratio = Ratio::default();
        assert_eq!((ratio.factor(), estimate_for(&prompt, ratio)), (1.0, 100));
        ratio.learn(&prompt, 120);
        assert_eq!((ratio.parts(), estimate_for(&prompt, ratio)), ((1.2, 1), 120));
        ratio.learn(&prompt, 100);
        assert!((ratio.factor() - 1.1).abs() < 1e-9);
        for _ in 0..200 {
            ratio.learn(&prompt, 150);
        }
        assert!((ratio.factor() - 1.5).abs() < 0.01);
        let before = ratio;
        for (tally, reported) in [(prompt, 0), (prompt, 10), (prompt, 100_000), (text("hi"), 60)] {
            ratio.learn(&tally, reported);
        }
        ratio.learn(&Tally { images: 1, ..prompt }, 1_200);
        assert_eq!(ratio, before);
        for nonsense in [f64::NAN, -1.0, 0.0, 1e9] {
            assert_eq!(Ratio::restored(nonsense, 5), Ratio::default());
        }
        assert_eq!(Ratio::restored(1.2, 5).parts(), (1.2, 5));
    }

    #[test]
    fn usage_is_estimated_and_says_so() {
        assert_eq!(
            estimated_usage(9, &text("12345678")),
            Usage { prompt: 9, completion: 2, total: 11, estimated: true }
        );
        assert_eq!(estimated_usage(9, &Tally::default()).completion, 0);
    }
}
