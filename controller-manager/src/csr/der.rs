//! Just enough DER to write a certificate.

/// Tag, length, content.
#[must_use]
pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        n @ 0..=127 => out.push(u8::try_from(n).unwrap_or(0)),
        n => {
            let bytes = n.to_be_bytes();
            let skip = bytes.iter().take_while(|b| **b == 0).count();
            out.push(0x80 | u8::try_from(bytes.len() - skip).unwrap_or(0));
            out.extend_from_slice(&bytes[skip..]);
        }
    }
    out.extend_from_slice(content);
    out
}

/// A SEQUENCE of encoded values.
#[must_use]
pub fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

/// A positive INTEGER.
#[must_use]
pub fn integer(bytes: &[u8]) -> Vec<u8> {
    let skip = bytes.iter().take_while(|b| **b == 0).count().min(bytes.len().saturating_sub(1));
    let mut content = bytes[skip..].to_vec();
    if content.first().is_some_and(|b| b & 0x80 != 0) {
        content.insert(0, 0);
    }
    tlv(0x02, &content)
}

/// An OBJECT IDENTIFIER.
#[must_use]
pub fn oid(parts: &[u64]) -> Vec<u8> {
    let mut content = Vec::new();
    let (first, rest) = match parts {
        [a, b, rest @ ..] => (a * 40 + b, rest),
        _ => (0, &[][..]),
    };
    for part in std::iter::once(first).chain(rest.iter().copied()) {
        let mut groups = vec![u8::try_from(part & 0x7f).unwrap_or(0)];
        let mut left = part >> 7;
        while left > 0 {
            groups.push(u8::try_from(left & 0x7f).unwrap_or(0) | 0x80);
            left >>= 7;
        }
        groups.reverse();
        content.extend(groups);
    }
    tlv(0x06, &content)
}

/// A BIT STRING of whole bytes.
#[must_use]
pub fn bits(bytes: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], bytes].concat())
}

/// A BIT STRING of named bits, without trailing zeros. Bit 0 is the first.
#[must_use]
pub fn named_bits(set: &[u8]) -> Vec<u8> {
    let Some(last) = set.iter().max().copied() else { return tlv(0x03, &[0]) };
    let mut bytes = vec![0u8; usize::from(last / 8) + 1];
    for bit in set {
        bytes[usize::from(bit / 8)] |= 0x80 >> (bit % 8);
    }
    let unused = 7 - last % 8;
    tlv(0x03, &[&[unused], bytes.as_slice()].concat())
}

/// A time as certificates write it: two digits of the year until 2049.
#[must_use]
pub fn time(at: jiff::Timestamp) -> Vec<u8> {
    let utc = at.to_zoned(jiff::tz::TimeZone::UTC);
    if utc.year() < 2050 {
        tlv(0x17, utc.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        tlv(0x18, utc.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        assert_eq!(integer(&[0, 0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[0]), [2, 1, 0]);
        assert_eq!(oid(&[1, 2, 840, 113_549]), [6, 6, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]);
        assert_eq!(named_bits(&[0, 2]), [3, 2, 5, 0xa0]);
        assert_eq!(tlv(4, &[7; 200])[..3], [4, 0x81, 200]);
        assert_eq!(time("2026-01-02T03:04:05Z".parse().expect("time")), *b"\x17\x0d260102030405Z");
    }
}
