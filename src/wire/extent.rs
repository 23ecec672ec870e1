//! How small a conversation could be made, found out while it is read: without noise, and down to what always has to
//! stay. `context::refit` does it; planning only has to know which models are worth trying.
use super::tally::Tally;

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    System,
    User,
    Assistant,
    /// The result of a tool call.
    Result,
}

/// A conversation, smaller than it is; fields beside the messages included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// What remains when noise goes: results that were read already, images before the newest message of the user.
    pub lean: Tally,
    /// The system messages, the newest message of the user, and the calls behind it with the beginnings of their results.
    pub core: Tally,
}

/// The extent of a conversation that is being read.
#[derive(Debug, Default)]
pub struct Growing {
    lean: Tally,
    system: Tally,
    newest: Tally,
    /// The last message of the assistant and its results, once shortened and once whole.
    running_short: Tally,
    running_results: Tally,
    running_results_cleared: Tally,
    newest_images: u64,
}

/// Characters that stay of a result at least, and those of the mark where one was.
const SHORT_CHARACTERS: u64 = 160;
const MARK_CHARACTERS: u64 = 34;

impl Growing {
    /// The next message, and what it adds to the tally of everything.
    pub fn add(&mut self, speaker: Speaker, message: Tally) {
        if speaker != Speaker::Result {
            // Another message has come, so what was running before it is read.
            self.lean += std::mem::take(&mut self.running_results_cleared);
            self.running_results = Tally::default();
        }
        match speaker {
            Speaker::System => {
                self.system += message;
                self.lean += message;
            }
            Speaker::User => {
                let old = Tally { ascii: self.newest_images * MARK_CHARACTERS, ..Tally::default() };
                self.lean += old;
                self.lean += Tally { images: 0, ..message };
                self.newest_images = message.images;
                (self.newest, self.running_short) = (message, Tally::default());
            }
            Speaker::Assistant => {
                self.lean += message;
                self.running_short = message;
            }
            Speaker::Result => {
                self.running_short += at_most(message, SHORT_CHARACTERS);
                self.running_results += message;
                self.running_results_cleared += at_most(message, MARK_CHARACTERS);
            }
        }
    }

    /// The conversation has ended; `fields` is what counts beside its messages.
    pub fn end(&self, fields: Tally) -> Extent {
        let images = Tally { images: self.newest_images, ..Tally::default() };
        let sum = |parts: &[Tally]| {
            parts.iter().fold(fields, |mut sum, part| {
                sum += *part;
                sum
            })
        };
        Extent {
            lean: sum(&[self.lean, self.running_results, images]),
            core: sum(&[self.system, self.newest, self.running_short]),
        }
    }
}

/// A message of at most so many characters.
fn at_most(message: Tally, characters: u64) -> Tally {
    let longer = message.ascii + message.narrow + message.wide + message.astral > characters;
    if longer || message.images > 0 {
        Tally { ascii: characters, messages: message.messages, ..Tally::default() }
    } else {
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ascii: u64, images: u64) -> Tally {
        Tally { ascii, images, messages: 1, ..Tally::default() }
    }

    #[test]
    fn what_was_read_is_noise_and_what_runs_is_not() {
        let mut growing = Growing::default();
        growing.add(Speaker::System, said(10, 0));
        growing.add(Speaker::User, said(100, 2));
        growing.add(Speaker::Assistant, said(20, 0));
        growing.add(Speaker::Result, said(5_000, 1));
        growing.add(Speaker::Assistant, said(30, 0));
        growing.add(Speaker::User, said(200, 1));
        growing.add(Speaker::Assistant, said(40, 0));
        growing.add(Speaker::Result, said(7_000, 0));
        growing.add(Speaker::Result, said(3, 0));
        let extent = growing.end(Tally { ascii: 1, ..Tally::default() });
        assert_eq!(
            extent.lean,
            Tally {
                ascii: 10 + 100 + 68 + 20 + 34 + 30 + 200 + 40 + 7_003 + 1,
                images: 1,
                messages: 9,
                ..Tally::default()
            }
        );
        assert_eq!(
            extent.core,
            Tally { ascii: 10 + 200 + 40 + 160 + 3 + 1, images: 1, messages: 5, ..Tally::default() }
        );
    }
}
