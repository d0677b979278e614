//! Wire primitives.

use super::error::Error;
use crate::scalar;

pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED64: u8 = 1;
pub(crate) const LENGTH: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED32: u8 = 5;
/// Deepest nesting of (long obsolete) groups that are skipped.
const MAX_GROUPS: usize = 100;

#[expect(clippy::cast_possible_truncation, reason = "seven bits a byte")]
pub(crate) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn tag(number: u32, wire_type: u8, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | u64::from(wire_type), out);
}

/// Writes a text, bytes or a message.
pub fn bytes(number: u32, value: &[u8], out: &mut Vec<u8>) {
    out.reserve(value.len() + 2);
    length(number, value.len(), out);
    out.extend_from_slice(value);
}

/// Writes what stands in front of a text, bytes or a message of a length.
#[expect(clippy::cast_possible_truncation, reason = "both are below 128")]
#[inline]
pub fn length(number: u32, length: usize, out: &mut Vec<u8>) {
    if let (..16, ..0x80) = (number, length) {
        // Nearly all.
        out.extend_from_slice(&[(number << 3) as u8 | LENGTH, length as u8]);
        return;
    }
    tag(number, LENGTH, out);
    varint(length as u64, out);
}

/// Writes a whole number or a boolean.
pub fn number(field: u32, value: i64, out: &mut Vec<u8>) {
    tag(field, VARINT, out);
    varint(value.cast_unsigned(), out);
}

/// Writes a length-delimited field whose content `write` appends.
#[expect(clippy::cast_possible_truncation, reason = "seven bits a byte")]
pub fn nested(number: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    tag(number, LENGTH, out);
    let at = out.len();
    out.push(0);
    write(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
        return;
    }
    // The content moves up for the other bytes of its length.
    let more = (len.ilog2() / 7) as usize;
    out.resize(out.len() + more, 0);
    out.copy_within(at + 1..at + 1 + len, at + 1 + more);
    let mut left = len;
    for byte in &mut out[at..at + more] {
        *byte = (left & 0x7f) as u8 | 0x80;
        left >>= 7;
    }
    out[at + more] = left as u8;
}

/// One value as found on the wire.
#[derive(Debug, Clone, Copy)]
pub enum Wire<'a> {
    /// Whole numbers, booleans, enums.
    Varint(u64),
    /// Eight bytes, of a double say.
    Fixed64(u64),
    /// Four bytes, which no type of the API uses.
    Fixed32,
    /// Texts, bytes and messages.
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn wire_type(self) -> u8 {
        match self {
            Self::Varint(_) => VARINT,
            Self::Fixed64(_) => FIXED64,
            Self::Fixed32 => FIXED32,
            Self::Bytes(_) => LENGTH,
        }
    }

    pub(crate) fn wrong<T>(self, field: &str) -> Result<T, Error> {
        let mut name = field.to_owned();
        if let Some(first) = name.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        Err(Error::WrongWireType(self.wire_type(), name))
    }

    /// Texts and messages.
    ///
    /// # Errors
    /// [`Error::WrongWireType`] for anything else; `field` names it there.
    pub fn bytes(self, field: &str) -> Result<&'a [u8], Error> {
        match self {
            Self::Bytes(b) => Ok(b),
            other => other.wrong(field),
        }
    }

    /// Text; what is not UTF-8 is replaced.
    ///
    /// # Errors
    /// As [`Wire::bytes`].
    pub fn text(self, field: &str) -> Result<String, Error> {
        Ok(scalar::text(self.bytes(field)?).into_owned())
    }

    /// A whole number.
    ///
    /// # Errors
    /// As [`Wire::bytes`].
    pub fn int(self, field: &str) -> Result<i64, Error> {
        match self {
            Self::Varint(v) => Ok(v.cast_signed()),
            other => other.wrong(field),
        }
    }
}

impl Wire<'_> {
    /// Adds the value to a signature, with its length and where it comes from. What has the same signature was read from
    /// the same values at the same places.
    pub fn sign(self, place: u32, signature: &mut Vec<u8>) {
        let whole;
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::Varint(n) | Self::Fixed64(n) => {
                whole = n.to_le_bytes();
                &whole
            }
            Self::Fixed32 => &[],
        };
        signature.extend_from_slice(&place.to_le_bytes());
        signature.extend_from_slice(&bytes.len().to_le_bytes());
        signature.extend_from_slice(bytes);
    }
}

/// Adds the wanted fields of a message to a signature, and where the message comes from.
///
/// # Errors
/// Bytes that are no message.
pub fn sign_parts(message: &[u8], place: u32, wanted: &[u32], signature: &mut Vec<u8>) -> Result<(), Error> {
    Wire::Bytes(b"").sign(place, signature);
    for field in fields(message) {
        let (number, value) = field?;
        if wanted.contains(&number) {
            value.sign(number, signature);
        }
    }
    Ok(())
}

/// The fields of one message in the order of its bytes, for those who look for a few of them. Ends with the first error.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields(Reader::new(message))
}

/// See [`fields`]. A type of its own, so that the loop is made here, where it is made fast.
#[derive(Clone, Debug)]
pub struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    /// Returns the unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.0.data
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Wire<'a>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.0.next();
        if next.is_err() {
            self.0.data = &[];
        }
        next.transpose()
    }
}

/// [`fields`] for those who have read the message before, and so know that it is one.
pub fn known_fields(message: &[u8]) -> KnownFields<'_> {
    KnownFields(Reader::new(message))
}

/// See [`known_fields`].
#[derive(Clone, Debug)]
pub struct KnownFields<'a>(Reader<'a>);

impl<'a> Iterator for KnownFields<'a> {
    type Item = (u32, Wire<'a>);

    fn next(&mut self) -> Option<(u32, Wire<'a>)> {
        if let Ok(next) = self.0.next() {
            return next;
        }
        self.0.data = &[];
        None
    }
}

/// The texts, bytes or messages that are one field of a message that was read before.
pub fn values(message: &[u8], wanted: u32) -> Values<'_> {
    Values { fields: known_fields(message), wanted }
}

/// See [`values`].
#[derive(Clone, Debug)]
pub struct Values<'a> {
    fields: KnownFields<'a>,
    wanted: u32,
}

impl<'a> Iterator for Values<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            // What is passed over on the way is not made into fields first.
            let (number, value) = match usual(self.fields.0.data) {
                Some((number, value, rest)) => {
                    self.fields.0.data = rest;
                    (number, value)
                }
                None => self.fields.next()?,
            };
            if let Wire::Bytes(value) = value
                && number == self.wanted
            {
                return Some(value);
            }
        }
    }
}

/// The first field and what follows it, where it is what nearly all are: a tag of one byte, with a number or a length of at
/// most two.
#[inline]
fn usual(data: &[u8]) -> Option<(u32, Wire<'_>, &[u8])> {
    let [tag @ 8..0x80, rest @ ..] = data else { return None };
    let (value, rest) = match rest {
        [low @ ..0x80, rest @ ..] => (usize::from(*low), rest),
        [low, high @ ..0x80, rest @ ..] => (usize::from(low & 0x7f) | usize::from(*high) << 7, rest),
        _ => return None,
    };
    let number = u32::from(tag >> 3);
    match tag & 7 {
        VARINT => Some((number, Wire::Varint(value as u64), rest)),
        LENGTH => rest.split_at_checked(value).map(|(bytes, rest)| (number, Wire::Bytes(bytes), rest)),
        _ => None,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    data: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [b, rest @ ..] = self.data else { return Err(Error::UnexpectedEof) };
            self.data = rest;
            value |= u64::from(b & 0x7f) << shift;
            if *b < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::Overflow)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.data.split_at_checked(len) else { return Err(Error::UnexpectedEof) };
        self.data = rest;
        Ok(taken)
    }

    pub(crate) fn fixed64(&mut self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// The next field; None at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Error> {
        // Most of decoding is this line: what it finds is not moved through results that errors find room in.
        if let Some((number, value, rest)) = usual(self.data) {
            self.data = rest;
            return Ok(Some((number, value)));
        }
        self.any()
    }

    fn any(&mut self) -> Result<Option<(u32, Wire<'a>)>, Error> {
        loop {
            if self.data.is_empty() {
                return Ok(None);
            }
            let key = self.varint()?;
            let wire_type = (key & 7) as u8;
            #[expect(clippy::cast_possible_truncation, reason = "Go keeps the number in 32 bits")]
            let number = (key >> 3) as u32;
            if wire_type == END_GROUP {
                return Err(Error::UnexpectedEndOfGroup);
            }
            if number.cast_signed() <= 0 {
                return Err(Error::IllegalTag(i64::from(number.cast_signed()), wire_type));
            }
            if wire_type == START_GROUP {
                self.group()?;
                continue;
            }
            return Ok(Some((number, self.value(wire_type)?)));
        }
    }

    fn value(&mut self, wire_type: u8) -> Result<Wire<'a>, Error> {
        Ok(match wire_type {
            VARINT => Wire::Varint(self.varint()?),
            FIXED64 => Wire::Fixed64(self.fixed64()?),
            LENGTH => {
                let len = self.varint()?;
                if len.cast_signed() < 0 {
                    return Err(Error::NegativeLength);
                }
                Wire::Bytes(self.take(usize::try_from(len).map_err(|_| Error::UnexpectedEof)?)?)
            }
            FIXED32 => {
                self.take(4)?;
                Wire::Fixed32
            }
            other => return Err(Error::IllegalWireType(other)),
        })
    }

    fn group(&mut self) -> Result<(), Error> {
        let mut open = 1_usize;
        while open > 0 {
            let wire_type = (self.varint()? & 7) as u8;
            match wire_type {
                START_GROUP if open >= MAX_GROUPS => return Err(Error::Depth),
                START_GROUP => open += 1,
                END_GROUP => open -= 1,
                other => {
                    self.value(other)?;
                }
            }
        }
        Ok(())
    }
}
