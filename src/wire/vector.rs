//! One vector of an embeddings answer in its two forms: a JSON list of numbers, and the Base64 of its 32-bit floats,
//! little end first. Upstreams do not always send the form that was asked for, and a client that asked for Base64
//! decodes whatever comes as Base64.
use std::io::Write as _;

use super::json::{Cursor, Flaw};
use crate::base::base64;

/// Bytes of one number in packed form.
const NUMBER_BYTES: usize = 4;

/// The form that vectors are wanted in (`encoding_format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A list of numbers, also when the client said nothing.
    #[default]
    Numbers,
    Base64,
    /// A form that only the upstream knows: what comes is passed on as it is.
    Other,
}

impl Form {
    /// Reads an `encoding_format`.
    pub fn named(name: Option<&str>) -> Form {
        match name {
            None | Some("float") => Form::Numbers,
            Some("base64") => Form::Base64,
            Some(_) => Form::Other,
        }
    }
}

/// Reads the list of numbers that comes next and gives its length; 0 if not all of it is numbers, or one is beyond
/// what 32 bits hold. With `packed`, its bytes are appended there.
pub fn read_numbers(cursor: &mut Cursor<'_>, mut packed: Option<&mut Vec<u8>>) -> Result<usize, Flaw> {
    cursor.open(b'[')?;
    let (mut length, mut numbers) = (0, 0);
    while cursor.item()? {
        let raw = cursor.skip()?;
        length += 1;
        let is_number = raw.first().is_some_and(|b| *b == b'-' || b.is_ascii_digit());
        numbers += usize::from(match &mut packed {
            None => is_number,
            Some(packed) => is_number && pack(raw, packed),
        });
    }
    Ok(if length == numbers { length } else { 0 })
}

fn pack(raw: &[u8], packed: &mut Vec<u8>) -> bool {
    let number = std::str::from_utf8(raw).ok().and_then(|text| text.parse::<f32>().ok());
    let Some(number) = number.filter(|number| number.is_finite()) else { return false };
    packed.extend_from_slice(&number.to_le_bytes());
    true
}

/// Decodes Base64 into `packed` and gives the length of the vector; 0 if it is none.
pub fn read_base64(text: &str, packed: &mut Vec<u8>) -> usize {
    packed.clear();
    let whole = base64::decode(text.as_bytes(), packed) && packed.len() % NUMBER_BYTES == 0;
    if whole && numbers(packed).all(f32::is_finite) { packed.len() / NUMBER_BYTES } else { 0 }
}

/// Appends a packed vector as a JSON string.
pub fn write_base64(packed: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    base64::encode(packed, out);
    out.push(b'"');
}

/// Appends a packed vector as a JSON list, each number with as many digits as tell it from its neighbours.
pub fn write_numbers(packed: &[u8], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, number) in numbers(packed).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write!(out, "{number:?}").expect("a Vec takes every write");
    }
    out.push(b']');
}

fn numbers(packed: &[u8]) -> impl Iterator<Item = f32> + '_ {
    packed
        .chunks_exact(NUMBER_BYTES)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("the chunks have the length of a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packed form of a list, or `None` if it is no vector.
    fn packed(list: &str) -> Option<Vec<u8>> {
        let mut packed = Vec::new();
        let length = read_numbers(&mut Cursor::new(list.as_bytes()), Some(&mut packed)).expect(list);
        (length > 0).then_some(packed)
    }

    #[test]
    fn both_forms_say_the_same() {
        let check = |list: &str, coded: &str| {
            let bytes = packed(list).expect(list);
            let (mut out, mut back) = (Vec::new(), Vec::new());
            write_base64(&bytes, &mut out);
            assert_eq!(out, format!("\"{coded}\"").as_bytes(), "{list}");
            assert_eq!((read_base64(coded, &mut back) * NUMBER_BYTES, &back), (bytes.len(), &bytes));
            out.clear();
            write_numbers(&back, &mut out);
            assert_eq!(packed(std::str::from_utf8(&out).expect("ASCII")), Some(bytes), "{list}");
        };
        check("[1]", "AACAPw==");
        check("[0.5, -0.25 ,0.125]", "AAAAPwAAgL4AAAA+");
        check("[0.1,-0.0,3.4e38,1e-45,16777217]", "zczMPQAAAICeyX9/AQAAAAAAgEs=");
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        let mut out = Vec::new();
        write_numbers(&packed("[0.1,1,-2.5e-9,1e20]").expect("a vector"), &mut out);
        assert_eq!(out, b"[0.1,1.0,-2.5e-9,1e20]");
    }

    #[test]
    fn what_is_no_vector_has_no_length() {
        for list in ["[]", "[null]", "[1,\"2\"]", "[1e39]", "[[1]]"] {
            assert_eq!(packed(list), None, "{list}");
        }
        let length = |text: &str| read_base64(text, &mut Vec::new());
        // The last two are an infinity and no number at all.
        for text in ["", "AAA=", "AACAPwA=", "!!!!", "AACAfw==", "AADAfw=="] {
            assert_eq!(length(text), 0, "{text}");
        }
        assert_eq!(length("AACAPw=="), 1);
    }
}
