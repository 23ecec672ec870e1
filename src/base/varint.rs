//! Whole numbers of seven bits a byte, the lowest first; the highest bit says that more follow. Small numbers, as most
//! are, take one byte.

/// Appends a number.
pub fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number off the front; `None` where there is none, as in a damaged file.
pub fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(7 * place)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_damage_is_noticed() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| push_number(&mut bytes, *number));
        let mut rest = bytes.as_slice();
        assert!(numbers.iter().all(|number| take_number(&mut rest) == Some(*number)));
        assert_eq!(take_number(&mut rest), None);
        assert_eq!(take_number(&mut &bytes[bytes.len() - 10..bytes.len() - 1]), None);
        assert_eq!(take_number(&mut [0xff; 12].as_slice()), None);
    }
}
