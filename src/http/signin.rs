//! Who has signed in to the page: a key is presented once, and a random cookie stands for it from then on, so that no
//! script ever holds the key. Only hashes are kept, in memory: a restart signs everybody out.
use std::collections::VecDeque;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::head::Head;
use crate::base::rng::fill_random;
use crate::base::text::hex;

/// The name of the cookie.
const COOKIE: &str = "freeway_session";
/// How long a sign-in holds.
pub const LASTS_S: u64 = 12 * 3_600;
const LASTS_MS: u64 = LASTS_S * 1000;
/// Sign-ins at once; the oldest makes room.
const SIGN_INS_MAX: usize = 64;
/// Cookies of our name that are looked at in one request: other paths and hosts may have set some as well.
const COOKIES_MAX: usize = 4;

/// SHA-256 of something secret.
type Hash = [u8; 32];

/// Everybody who has signed in.
#[derive(Debug, Default)]
pub struct SignIns(Mutex<VecDeque<SignIn>>);

/// One browser that has.
#[derive(Clone, Debug)]
pub struct SignIn {
    token: Hash,
    /// Of the key that was presented. What it allows is found out at each use, so that a key that is changed or
    /// revoked takes its sign-ins along.
    pub key: Hash,
    /// Monotonic.
    ends_ms: u64,
}

impl SignIn {
    /// How long it still holds.
    pub fn left_s(&self, now_ms: u64) -> u64 {
        self.ends_ms.saturating_sub(now_ms) / 1000
    }
}

impl SignIns {
    /// Signs in who presented the key of this hash; the value of `Set-Cookie`.
    pub fn add(&self, key: Hash, now_ms: u64) -> String {
        let mut random = [0; 32];
        fill_random(&mut random);
        let token = hex(&random);
        let mut all = self.0.lock();
        all.retain(|known| known.ends_ms > now_ms);
        if all.len() == SIGN_INS_MAX {
            all.pop_front();
        }
        all.push_back(SignIn { token: Sha256::digest(&token).into(), key, ends_ms: now_ms + LASTS_MS });
        set_cookie(&token, LASTS_S)
    }

    /// The sign-in that the request's cookie stands for.
    pub fn of(&self, head: &Head, now_ms: u64) -> Option<SignIn> {
        let mut tokens = tokens(head).peekable();
        tokens.peek()?;
        let all = self.0.lock();
        tokens.find_map(|token| {
            let hash: Hash = Sha256::digest(token).into();
            all.iter().find(|known| known.token == hash && known.ends_ms > now_ms).cloned()
        })
    }

    /// Signs out; the value of `Set-Cookie` that makes the browser forget.
    pub fn remove(&self, head: &Head) -> String {
        for token in tokens(head) {
            let hash: Hash = Sha256::digest(token).into();
            self.0.lock().retain(|known| known.token != hash);
        }
        set_cookie("", 0)
    }
}

/// `Secure` is left out: at home the page is served without TLS.
fn set_cookie(value: &str, max_age_s: u64) -> String {
    format!("{COOKIE}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age_s}")
}

fn tokens(head: &Head) -> impl Iterator<Item = &str> {
    head.fields()
        .filter(|(name, _)| name.eq_ignore_ascii_case("cookie"))
        .flat_map(|(_, value)| value.split(';'))
        .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
        .filter(|token| !token.is_empty())
        .take(COOKIES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::check_head;

    fn head(cookie: &str) -> Head {
        let text = format!("GET / HTTP/1.1\r\nhost: g\r\ncookie: {cookie}\r\n\r\n");
        check_head(text.as_bytes()).expect("well formed")
    }

    fn pair(set_cookie: &str) -> &str {
        set_cookie.split(';').next().expect("a first part")
    }

    #[test]
    fn a_cookie_stands_for_a_key_until_its_time_is_over() {
        let all = SignIns::default();
        let cookie = all.add([7; 32], 1_000);
        assert!(cookie.contains("; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200"), "{cookie}");
        let with = head(&format!("theme=dark; {}; other=1", pair(&cookie)));
        assert_eq!(
            all.of(&with, 1_000).map(|found| (found.key, found.left_s(1_000))),
            Some(([7; 32], 43_200))
        );
        assert!(all.of(&with, 1_000 + LASTS_MS).is_none());
        assert!(all.of(&head("freeway_session=nonsense"), 1_000).is_none());
        assert!(all.of(&head("xfreeway_session=1"), 1_000).is_none());
        assert!(pair(&all.remove(&with)).ends_with('='));
        assert!(all.of(&with, 1_000).is_none());
    }

    #[test]
    fn sign_ins_are_bounded() {
        let all = SignIns::default();
        let first = all.add([1; 32], 0);
        for _ in 0..SIGN_INS_MAX {
            all.add([2; 32], 0);
        }
        assert_eq!(all.0.lock().len(), SIGN_INS_MAX);
        assert!(all.of(&head(pair(&first)), 0).is_none());
    }
}
