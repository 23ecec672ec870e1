//! How much of a model's window a conversation may take, and how small a conversation can be made.

/// What a request leaves behind when it is made smaller. Tokens of our count, fields beside the messages included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrink {
    /// Without stale tool results and old images.
    pub lean_tokens: u64,
    /// What always has to stay: system messages, the newest message of the user, running calls.
    pub core_tokens: u64,
    /// `context.reserveOutputTokens`: room for the answer, for a client that sets no limit on it.
    pub reserve_output: u64,
    /// `context.preferFit`.
    pub prefer_fit: bool,
}

/// A model's window, as far as known.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// As its file has it, in its own tokens.
    pub context: u64,
    /// The longest answer that it gives.
    pub max_output: Option<u64>,
    /// Its tokens for one of ours.
    pub ratio: f64,
}

/// What a prompt may take of a window, in tokens of our count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Beside it, there is room for the answer that is asked for.
    pub target: u64,
    /// Beside it, there is room for an answer. What has to stay may go up to here, so that a large `max_tokens` alone
    /// refuses nobody.
    pub hard: u64,
}

impl Window {
    /// The budget of a prompt whose answer the client limits to `max_output`, or does not limit.
    pub fn budget(&self, max_output: Option<u64>, reserve: u64) -> Budget {
        // No answer takes more than half of the window from the conversation.
        let most = self.max_output.unwrap_or(u64::MAX).min(self.context / 2);
        let asked = max_output.unwrap_or(reserve).min(most);
        let ours = |tokens: u64| (tokens as f64 / self.ratio) as u64;
        Budget { target: ours(self.context - asked), hard: ours(self.context - asked.min(reserve)) }
    }
}

impl Budget {
    /// The same where no more than `tokens` are taken, whatever the window is said to be.
    pub fn at_most(self, tokens: u64) -> Budget {
        Budget { target: self.target.min(tokens), hard: self.hard.min(tokens) }
    }

    /// Without any bound.
    pub const UNBOUNDED: Budget = Budget { target: u64::MAX, hard: u64::MAX };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_its_room_and_no_more_than_half() {
        let check = |context, model_max, ratio, asked, expected: (u64, u64)| {
            let window = Window { context, max_output: model_max, ratio };
            let Budget { target, hard } = window.budget(asked, 1_024);
            assert_eq!((target, hard), expected, "{window:?} {asked:?}");
        };
        check(8_192, None, 1.0, None, (7_168, 7_168));
        check(8_192, None, 1.0, Some(200), (7_992, 7_992));
        check(8_192, None, 1.0, Some(3_000), (5_192, 7_168));
        check(8_192, None, 1.0, Some(100_000), (4_096, 7_168));
        check(8_192, Some(2_000), 1.0, Some(100_000), (6_192, 7_168));
        check(8_192, Some(500), 1.0, None, (7_692, 7_692));
        check(8_192, None, 2.0, None, (3_584, 3_584));
        check(1_000, None, 1.0, None, (500, 500));
        check(0, None, 1.0, None, (0, 0));
    }
}
