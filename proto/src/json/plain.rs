//! Search for the end of a string's plain text, eight bytes at a time: strings are most of what is read and written.
//!
//! Hot path.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
const WIDTH: usize = 8;

/// Marks the high bit of the first byte that is zero; bytes after it may be marked wrongly, bytes before it are not.
fn zero(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH
}

/// Marks the bytes of a word that equal `byte`, up to the first.
fn equal(word: u64, byte: u8) -> u64 {
    zero(word ^ (ONES * u64::from(byte)))
}

/// Marks the bytes of a word below a blank, up to the first; these are not valid in a JSON string.
fn control(word: u64) -> u64 {
    word.wrapping_sub(ONES * 0x20) & !word & HIGH
}

/// The number of bytes before the first that `marks` its bit in eight of them, or `one` by itself.
fn run(bytes: &[u8], marks: impl Fn(u64) -> u64, one: impl Fn(u8) -> bool) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<WIDTH>) {
        let found = marks(u64::from_le_bytes(*word));
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += WIDTH;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|b| one(*b)).unwrap_or(rest.len())
}

/// Bytes before the first quote, backslash or control character.
pub(super) fn until_special(bytes: &[u8]) -> usize {
    run(bytes, |word| equal(word, b'"') | equal(word, b'\\') | control(word), |b| b == b'"' || b == b'\\' || b < 0x20)
}

/// Bytes before the first that may need an escape as Go writes it: also `<`, `>`, `&` and what the line separators begin
/// with.
pub(super) fn until_escape(bytes: &[u8]) -> usize {
    let marks = |word| {
        let html = equal(word, b'<') | equal(word, b'>') | equal(word, b'&') | equal(word, 0xe2);
        equal(word, b'"') | equal(word, b'\\') | control(word) | html
    };
    run(bytes, marks, |b| matches!(b, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2) || b < 0x20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_place_is_told_from_the_others() {
        let special = |b: u8| b < 0x20 || b"\"\\".contains(&b);
        let escaped = |b: u8| special(b) || b"<>&\xe2".contains(&b);
        for byte in 0..=u8::MAX {
            for before in 0..20_usize {
                for (filler, after) in
                    [(b'a', 3), (0x7f, 0), (0x80, 9), (0xff, 17), (b'!', 1), (b'#', 8), (b'[', 8), (b' ', 8)]
                {
                    let mut text = vec![filler; before];
                    text.push(byte);
                    // What follows may hold more of it.
                    text.extend((0..after).map(|i| if i % 2 == 0 { byte } else { 0 }));
                    let first = |is: &dyn Fn(u8) -> bool| text.iter().position(|b| is(*b)).unwrap_or(text.len());
                    assert_eq!(until_special(&text), first(&special), "{text:?}");
                    assert_eq!(until_escape(&text), first(&escaped), "{text:?}");
                }
            }
        }
        assert_eq!((until_special(b""), until_escape(b"")), (0, 0));
    }
}
