//! CBOR to JSON text.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;

use super::half::widened;
use super::{Error, MAX_DEPTH, MAX_ELEMENTS, tag};
use crate::{json, scalar};

/// Converts a request body to JSON text. Keys keep their order.
///
/// # Errors
/// [`Error`] with upstream's text.
pub fn to_json(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    read(bytes, MAX_ELEMENTS)
}

/// Converts a stored value, which may have more elements than a request body.
///
/// # Errors
/// [`Error`].
pub fn stored_to_json(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    read(bytes, usize::MAX)
}

fn read(bytes: &[u8], most: usize) -> Result<Vec<u8>, Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    let mut reader = CborReader { bytes, at: 0, most };
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
    reader.item(0, &mut out)?;
    match bytes.len() - reader.at {
        0 => Ok(out),
        left => Err(Error::Trailing(left, reader.at)),
    }
}

/// Types of items, as heads have them.
const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;

const NAMES: [&str; 8] =
    ["positive integer", "negative integer", "byte string", "UTF-8 text string", "array", "map", "tag", "primitives"];

/// Head of an item: its major type, the five bits beside it, and the number they encode; `None`: indefinite length.
#[derive(Clone, Copy)]
struct Head {
    major: u8,
    info: u8,
    number: Option<u64>,
}

impl Head {
    fn name(self) -> &'static str {
        NAMES[usize::from(self.major)]
    }
}

struct CborReader<'b> {
    bytes: &'b [u8],
    at: usize,
    most: usize,
}

impl<'b> CborReader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], Error> {
        let end = self.at.checked_add(count).ok_or(Error::Cut)?;
        let taken = self.bytes.get(self.at..end).ok_or(Error::Cut)?;
        self.at = end;
        Ok(taken)
    }

    fn head(&mut self) -> Result<Head, Error> {
        let first = self.take(1)?[0];
        let (major, info) = (first >> 5, first & 0x1f);
        let number = match info {
            0..=23 => Some(u64::from(info)),
            24..=27 => Some(self.take(1 << (info - 24))?.iter().fold(0, |n, b| n << 8 | u64::from(*b))),
            31 if matches!(major, BYTES..=MAP) => None,
            31 if major > TAG => return Err(Error::Malformed("unexpected \"break\" code".to_owned())),
            _ => {
                let name = NAMES[usize::from(major)];
                return Err(Error::Malformed(format!("invalid additional information {info} for type {name}")));
            }
        };
        Ok(Head { major, info, number })
    }

    fn item(&mut self, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        let head = self.head()?;
        self.after(head, depth, out)
    }

    /// The rest of an item.
    fn after(&mut self, head: Head, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        let depth = if matches!(head.major, ARRAY..=TAG) { deeper(depth)? } else { depth };
        match (head.major, head.number) {
            (UNSIGNED, Some(number)) => put_integer(head, i128::from(number), out)?,
            (NEGATIVE, Some(number)) => put_integer(head, -1 - i128::from(number), out)?,
            (BYTES | TEXT, _) => put_text(&self.text(head)?, out),
            (ARRAY, count) => self.array(count, depth, out)?,
            (MAP, count) => self.map(count, depth, out)?,
            (TAG, Some(number)) => self.tagged(number, depth, out)?,
            _ => primitive(head, out)?,
        }
        Ok(())
    }

    /// Reports whether another element follows in an array or map of which `read` were read.
    fn more(&mut self, count: Option<u64>, read: usize, what: &str) -> Result<bool, Error> {
        let more = match count {
            Some(count) => (read as u64) < count,
            None if self.bytes.get(self.at) == Some(&0xff) => {
                self.at += 1;
                false
            }
            None => true,
        };
        if more && read >= self.most || count.is_some_and(|count| count > self.most as u64) {
            return Err(Error::TooMany(what.replace('#', &self.most.to_string())));
        }
        Ok(more)
    }

    fn array(&mut self, count: Option<u64>, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        out.push(b'[');
        let mut read = 0;
        while self.more(count, read, "elements # for CBOR array")? {
            if read > 0 {
                out.push(b',');
            }
            self.item(depth, out)?;
            read += 1;
        }
        out.push(b']');
        Ok(())
    }

    fn map(&mut self, count: Option<u64>, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        out.push(b'{');
        let mut keys: HashSet<Vec<u8>> = HashSet::new();
        while self.more(count, keys.len(), "key-value pairs # for CBOR map")? {
            if !keys.is_empty() {
                out.push(b',');
            }
            let head = self.head()?;
            if !matches!(head.major, BYTES | TEXT) {
                return Err(Error::Type(head.name(), "string".to_owned()));
            }
            let key = self.text(head)?;
            put_text(&key, out);
            out.push(b':');
            let index = keys.len();
            if let Some(key) = keys.replace(key.to_vec()) {
                return Err(Error::Duplicate(String::from_utf8_lossy(&key).into_owned(), index));
            }
            self.item(depth, out)?;
        }
        out.push(b'}');
        Ok(())
    }

    /// The content of a text or byte string, in one piece or in many.
    fn text(&mut self, head: Head) -> Result<Cow<'b, [u8]>, Error> {
        let content = match head.number {
            Some(length) => Cow::Borrowed(self.take(usize::try_from(length).map_err(|_| Error::Cut)?)?),
            None => {
                let mut whole = Vec::new();
                while self.bytes.get(self.at) != Some(&0xff) {
                    let piece = self.head()?;
                    let (true, Some(length)) = (piece.major == head.major, piece.number) else {
                        let why = format!("wrong element type {} for indefinite-length {}", piece.name(), head.name());
                        return Err(Error::Malformed(why));
                    };
                    whole.extend_from_slice(self.take(usize::try_from(length).map_err(|_| Error::Cut)?)?);
                }
                self.at += 1;
                Cow::Owned(whole)
            }
        };
        if head.major == TEXT && std::str::from_utf8(&content).is_err() {
            return Err(Error::Utf8);
        }
        Ok(content)
    }

    fn tagged(&mut self, number: u64, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        let head = self.head()?;
        match (number, head.major) {
            (tag::BIG_POSITIVE | tag::BIG_NEGATIVE, _) => Err(Error::Unacceptable("tag", "bignum".to_owned())),
            (tag::LATER_BASE64_URL, BYTES) => {
                let content = URL_SAFE_NO_PAD.encode(self.text(head)?);
                put_text(content.as_bytes(), out);
                Ok(())
            }
            (tag::LATER_BASE64, BYTES) => {
                let content = STANDARD.encode(self.text(head)?);
                put_text(content.as_bytes(), out);
                Ok(())
            }
            (tag::LATER_HEX, BYTES) => {
                let content: String = self.text(head)?.iter().map(|b| format!("{b:02x}")).collect();
                put_text(content.as_bytes(), out);
                Ok(())
            }
            (tag::TIME_TEXT, TEXT) => self.after(head, depth, out),
            (tag::TIME_NUMBER, _) => {
                let mut seconds = Vec::new();
                self.after(head, depth, &mut seconds)?;
                let seconds = std::str::from_utf8(&seconds).ok().and_then(|t| t.parse().ok());
                let time =
                    seconds.and_then(scalar::unix_time).ok_or_else(|| inadmissible(number, "integer or float"))?;
                put_text(time.as_bytes(), out);
                Ok(())
            }
            (tag::TIME_TEXT, _) => Err(inadmissible(number, "text string")),
            _ => self.after(head, depth, out),
        }
    }
}

fn deeper(depth: usize) -> Result<usize, Error> {
    if depth >= MAX_DEPTH { Err(Error::TooDeep) } else { Ok(depth + 1) }
}

fn inadmissible(number: u64, wanted: &str) -> Error {
    Error::Malformed(format!("tag number {number} must be followed by {wanted}"))
}

fn put_text(bytes: &[u8], out: &mut Vec<u8>) {
    json::encode_text(&String::from_utf8_lossy(bytes), out);
}

fn put_integer(head: Head, number: i128, out: &mut Vec<u8>) -> Result<(), Error> {
    let fits = i64::try_from(number);
    let fits = fits.map_err(|_| Error::Type(head.name(), format!("int64 ({number} overflows Go's int64)")))?;
    json::encode_any(&Value::from(fits), out);
    Ok(())
}

fn primitive(head: Head, out: &mut Vec<u8>) -> Result<(), Error> {
    let number = head.number.unwrap_or_default();
    let unacceptable = |why: String| Err(Error::Unacceptable(NAMES[7], why));
    let bits = |n: u64| u32::try_from(n).unwrap_or_default();
    let float = match head.info {
        20 | 21 => {
            out.extend_from_slice(if head.info == 20 { b"false" } else { b"true" });
            return Ok(());
        }
        22 => {
            out.extend_from_slice(b"null");
            return Ok(());
        }
        25 => widened(u16::try_from(number).unwrap_or_default()),
        26 => f64::from(f32::from_bits(bits(number))),
        27 => f64::from_bits(number),
        24 if number < 32 => {
            return Err(Error::Malformed(format!("invalid simple value {number} for type primitives")));
        }
        _ => return unacceptable(format!("simple value {number} is not recognized")),
    };
    if float.is_nan() {
        return unacceptable("floating-point NaN".to_owned());
    }
    if float.is_infinite() {
        return unacceptable("floating-point infinity".to_owned());
    }
    // Not in Go's form, which would make an integer of it.
    out.extend_from_slice(serde_json::to_string(&float).unwrap_or_default().as_bytes());
    Ok(())
}
