//! Estimated tokens. No tokenizer is shared by all models, so characters are counted by how tokenizers treat
//! them.
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

/// Tokens by our own count; at least 1.
pub fn estimate(tally: &Tally) -> u64 {
    weight(tally).div_ceil(1_000).max(1)
}

/// The same in thousandths of a token, so that the parts of a conversation add up to the whole.
pub fn weight(tally: &Tally) -> u64 {
    let text = tally.ascii * PER_THOUSAND_ASCII
        + tally.narrow * PER_THOUSAND_NARROW
        + tally.wide * PER_THOUSAND_WIDE
        + tally.astral * PER_THOUSAND_ASTRAL;
    text + 1_000 * (tally.images * PER_IMAGE + tally.messages * PER_MESSAGE + tally.tokens)
}

/// The weight of a plain text.
pub fn weight_of_text(text: &str) -> u64 {
    let mut tally = Tally::default();
    tally.text(text);
    weight(&tally)
}

/// The weight of one character of a text.
pub fn weight_of_character(character: char) -> u64 {
    match character.len_utf8() {
        1 => PER_THOUSAND_ASCII,
        2 => PER_THOUSAND_NARROW,
        3 => PER_THOUSAND_WIDE,
        _ => PER_THOUSAND_ASTRAL,
    }
}

/// What a call used where the upstream does not say. No output is no tokens.
pub fn estimated_usage(prompt_tokens: u64, output: &Tally) -> Usage {
    Usage::estimate(prompt_tokens, if output.is_empty() { 0 } else { estimate(output) })
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
    fn usage_is_estimated_and_says_so() {
        assert_eq!(
            estimated_usage(9, &text("12345678")),
            Usage { prompt: 9, completion: 2, total: 11, estimated: true }
        );
        assert_eq!(estimated_usage(9, &Tally::default()).completion, 0);
    }
}
