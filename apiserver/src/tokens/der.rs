//! DER for key files: reading and writing tag, length and value.

/// Reads elements one after the other.
#[derive(Clone, Copy)]
pub(super) struct Der<'a>(&'a [u8]);

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;

impl<'a> Der<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next element, whatever it is.
    pub(super) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 || rest.len() < count {
                return None;
            }
            let (digits, rest) = rest.split_at(count);
            (digits.iter().fold(0, |n, d| n << 8 | usize::from(*d)), rest)
        };
        if rest.len() < length {
            return None;
        }
        let (value, rest) = rest.split_at(length);
        self.0 = rest;
        Some((tag, value))
    }

    /// The next element's content, if it has the tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(t, _)| *t == tag).map(|(_, value)| value)
    }

    /// Goes into the next element, a sequence.
    pub(super) fn enter(&mut self) -> Option<Der<'a>> {
        self.take(SEQUENCE).map(Der)
    }

    /// The next element, an integer, without leading zeros.
    pub(super) fn unsigned(&mut self) -> Option<&'a [u8]> {
        let value = self.take(INTEGER)?;
        let zeros = value.iter().take_while(|b| **b == 0).count();
        Some(&value[zeros.min(value.len().saturating_sub(1))..])
    }
}

/// One element.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let digits: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|b| *b == 0).collect();
            out.push(0x80 | u8::try_from(digits.len()).unwrap_or(8));
            out.extend(digits);
        }
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

/// A non-negative integer.
pub(super) fn unsigned(value: &[u8]) -> Vec<u8> {
    let high = value.first().is_some_and(|b| *b >= 0x80);
    if high { element(INTEGER, &[&[0], value]) } else { element(INTEGER, &[value]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_round_trips() {
        let long = vec![0xab; 300];
        let bytes = element(SEQUENCE, &[&unsigned(&[0x80, 1]), &element(OCTET_STRING, &[&long])]);
        let mut sequence = Der::new(&bytes).enter().expect("a sequence");
        assert_eq!(sequence.unsigned(), Some(&[0x80, 1][..]));
        assert_eq!(sequence.take(OCTET_STRING), Some(&long[..]));
        assert!(sequence.next().is_none());
    }

    #[test]
    fn short_input_is_no_panic() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x85, 1, 1, 1, 1, 1], &[0x30, 0x05, 1], &[0x02, 0x00]] {
            let mut der = Der::new(bytes);
            let _ = der.unsigned();
            assert!(Der::new(bytes).enter().is_none());
        }
    }
}
