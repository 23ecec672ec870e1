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

/// What a call used: what the upstream told, where that can be. No prompt is empty, and no text comes of no tokens; such
/// a count was not told, or could not be believed.
pub fn usage(told: Option<Usage>, prompt_tokens: u64, output: &Tally) -> Usage {
    let ours = estimated_usage(prompt_tokens, output);
    let Some(told) = told else { return ours };
    let prompt = if told.prompt == 0 { ours.prompt } else { told.prompt };
    let completion = if told.completion == 0 { ours.completion } else { told.completion };
    let estimated = (prompt, completion) != (told.prompt, told.completion);
    Usage { prompt, completion, total: told.total.max(prompt.saturating_add(completion)), estimated }
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

    #[test]
    fn b17_what_cannot_be_is_estimated() {
        let told = |prompt, completion, total| Some(Usage { prompt, completion, total, estimated: false });
        let check = |told: Option<Usage>, output: &str, expected: (u64, u64, u64, bool)| {
            let Usage { prompt, completion, total, estimated } = usage(told, 9, &text(output));
            assert_eq!((prompt, completion, total, estimated), expected, "{told:?}");
        };
        check(told(5, 3, 8), "12345678", (5, 3, 8, false));
        check(told(5, 3, 80), "12345678", (5, 3, 80, false));
        check(told(0, 3, 3), "12345678", (9, 3, 12, true));
        check(told(5, 0, 5), "12345678", (5, 2, 7, true));
        check(told(5, 0, 5), "", (5, 0, 5, false));
        check(None, "12345678", (9, 2, 11, true));
    }
}
