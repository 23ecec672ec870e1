//! Base64 with the standard alphabet and padding (RFC 4648). Credentials travel in it, and vectors.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` encoded.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    let digit = |word: u32, place: u32| ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
    let mut groups = bytes.chunks_exact(3);
    for group in &mut groups {
        let word = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        out.extend_from_slice(&[digit(word, 0), digit(word, 1), digit(word, 2), digit(word, 3)]);
    }
    match *groups.remainder() {
        [a] => {
            let word = u32::from_be_bytes([0, a, 0, 0]);
            out.extend_from_slice(&[digit(word, 0), digit(word, 1), b'=', b'=']);
        }
        [a, b] => {
            let word = u32::from_be_bytes([0, a, b, 0]);
            out.extend_from_slice(&[digit(word, 0), digit(word, 1), digit(word, 2), b'=']);
        }
        _ => {}
    }
}

/// Appends what `text` encodes; false, with part of it appended, when it is no Base64. Padding may be absent, since
/// some encoders leave it out.
#[must_use]
pub fn decode(text: &[u8], out: &mut Vec<u8>) -> bool {
    let padding = text.iter().rev().take(2).take_while(|&&byte| byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let whole = if padding == 0 { digits.len() % 4 != 1 } else { text.len() % 4 == 0 };
    if !whole {
        return false;
    }
    out.reserve(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut word = 0_u32;
        for place in 0..4 {
            let Some(value) = group.get(place).map_or(Some(0), |&byte| value(byte)) else { return false };
            word = word << 6 | value;
        }
        out.extend_from_slice(&word.to_be_bytes()[1..group.len()]);
    }
    true
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_there_and_back() {
        let check = |plain: &str, coded: &str| {
            let (mut out, mut back) = (Vec::new(), Vec::new());
            encode(plain.as_bytes(), &mut out);
            assert_eq!(out, coded.as_bytes(), "{plain}");
            assert!(decode(&out, &mut back) && back == plain.as_bytes(), "{coded}");
            back.clear();
            assert!(decode(coded.trim_end_matches('=').as_bytes(), &mut back) && back == plain.as_bytes());
        };
        check("", "");
        check("f", "Zg==");
        check("fo", "Zm8=");
        check("foo", "Zm9v");
        check("foob", "Zm9vYg==");
        check("fooba", "Zm9vYmE=");
        check("foobar", "Zm9vYmFy");
        check("\u{7ff}?>~", "378/Pn4=");
    }

    #[test]
    fn what_is_none_is_refused() {
        for odd in ["Z", "=", "==", "Z===", "Zg=", "Zg==Zg==", "Zm9vY", "Zm 9", "Zm9-", "Zm9_", "é"] {
            assert!(!decode(odd.as_bytes(), &mut Vec::new()), "{odd}");
        }
    }
}
