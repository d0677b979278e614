//! Chunked bodies (RFC 9112 section 7.1), judged as Go's server does: what it takes is given to the library in its plainest
//! form, without extensions and trailers, and what it refuses is refused in its words. Pure.

use bytes::{Bytes, BytesMut};

use super::request_head::is_token;
use crate::status::go_quote;

/// The longest line of a size, and the longest trailer.
const LONGEST: usize = 4 << 10;
/// Overhead allowed beside the data: bytes for each chunk, and bytes in all.
const BESIDE_CHUNK: u64 = 16;
const BESIDE: u64 = 16 << 10;

/// Error text of a malformed body.
pub(super) type Wrong = String;

/// Decoder of a chunked body.
#[derive(Default)]
pub(super) struct ChunkedBody {
    at: At,
    /// Overhead beyond what the chunks need, in bytes.
    beside: u64,
}

#[derive(Clone, Copy, Default)]
enum At {
    #[default]
    Size,
    /// So much of the chunk is left.
    Data(u64),
    DataEnd,
    Trailer,
    Over,
}

impl ChunkedBody {
    /// Takes what comes next off `bytes`, and returns what the library is given for it: none, if more has to come first.
    pub(super) fn take(&mut self, bytes: &mut BytesMut) -> Result<Option<Bytes>, Wrong> {
        match self.at {
            At::Size => {
                let Some(line) = line(bytes)? else { return Ok(None) };
                let size = size(&line)?;
                let needed = size.saturating_mul(2).saturating_add(BESIDE_CHUNK);
                self.beside = (self.beside + line.len() as u64 + 2).saturating_sub(needed);
                if self.beside > BESIDE {
                    return Err("chunked encoding contains too much non-data".to_owned());
                }
                if size == 0 {
                    self.at = At::Trailer;
                    return self.take(bytes);
                }
                self.at = At::Data(size);
                Ok(Some(format!("{size:x}\r\n").into()))
            }
            At::Data(left) => {
                let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - count as u64;
                self.at = if left == 0 { At::DataEnd } else { At::Data(left) };
                Ok((count > 0).then(|| bytes.split_to(count).freeze()))
            }
            At::DataEnd if bytes.len() < 2 => Ok(None),
            At::DataEnd => {
                let end = bytes.split_to(2);
                if end != "\r\n" {
                    return Err("malformed chunked encoding".to_owned());
                }
                self.at = At::Size;
                Ok(Some(end.freeze()))
            }
            At::Trailer => Ok(trailer(bytes)?.then(|| {
                self.at = At::Over;
                Bytes::from_static(b"0\r\n\r\n")
            })),
            At::Over => Ok(None),
        }
    }

    pub(super) fn over(&self) -> bool {
        matches!(self.at, At::Over)
    }
}

/// A line, without its end.
fn line(bytes: &mut BytesMut) -> Result<Option<BytesMut>, Wrong> {
    let Some(end) = bytes.iter().take(LONGEST).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LONGEST { Ok(None) } else { Err("header line too long".to_owned()) };
    };
    let mut line = bytes.split_to(end + 1);
    match line.iter().position(|byte| *byte == b'\r') {
        None => return Err("chunked line ends with bare LF".to_owned()),
        Some(at) if at + 1 != end => return Err("invalid CR in chunked line".to_owned()),
        Some(at) => line.truncate(at),
    }
    Ok(Some(line))
}

/// The size that a line says. What follows a semicolon is nobody's.
fn size(line: &[u8]) -> Result<u64, Wrong> {
    let text = line.trim_ascii_end().split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = &text[..text.len().min(16)];
    let mut size = 0;
    for digit in digits {
        let digit = char::from(*digit).to_digit(16).ok_or("invalid byte in chunk length")?;
        size = size << 4 | u64::from(digit);
    }
    match text.len() {
        0 => Err("empty hex number for chunk length".to_owned()),
        17.. => Err("http chunk length too large".to_owned()),
        _ => Ok(size),
    }
}

/// Takes the trailer, which nobody asks for. Whether it is complete.
fn trailer(bytes: &mut BytesMut) -> Result<bool, Wrong> {
    if bytes.len() < 2 {
        return Ok(false);
    }
    if bytes.starts_with(b"\r\n") {
        let _ = bytes.split_to(2);
        return Ok(true);
    }
    let Some(end) = bytes.windows(4).take(LONGEST).position(|four| four == b"\r\n\r\n") else {
        let long = bytes.len() >= LONGEST;
        return if long { Err("http: suspiciously long trailer after chunked body".to_owned()) } else { Ok(false) };
    };
    let fields = bytes.split_to(end + 4);
    for field in fields[..end].split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        let wrong = |why: &str, field: &str| Err(format!("malformed MIME header{why}: {field}"));
        let text = String::from_utf8_lossy(field);
        let Some(at) = field.iter().position(|byte| *byte == b':') else {
            return wrong(": missing colon", &go_quote(&text));
        };
        if at == 0 || !field[..at].iter().all(|byte| is_token(*byte)) {
            return wrong(" line", &text);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that arrives in pieces; returns the data and the rest.
    fn given(body: &str, piece: usize) -> Result<(String, String), Wrong> {
        let (mut chunks, mut ahead, mut out) = (ChunkedBody::default(), BytesMut::new(), Vec::new());
        for piece in body.as_bytes().chunks(piece) {
            ahead.extend_from_slice(piece);
            while let Some(given) = chunks.take(&mut ahead)? {
                out.extend_from_slice(&given);
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\r\n", "|");
        Ok((text(&out), text(&ahead)))
    }

    /// By execution of k8s.io/apiserver 0.35.4.
    #[test]
    fn bodies_are_judged_as_go_does() {
        let long = |count: usize| "e".repeat(count);
        let many = |extension: usize| format!("1;{}\r\na\r\n", long(extension)).repeat(200);
        let ok = |given: &str, left: &str| Ok((given.to_owned(), left.to_owned()));
        for (body, want) in [
            ("3\r\nabc\r\n0\r\n\r\nGET".to_owned(), ok("3|abc|0||", "GET")),
            ("3;a=b;c=\"d\"\r\nabc\r\n0;x\r\n\r\n".to_owned(), ok("3|abc|0||", "")),
            ("0003 \t\r\nabc\r\n00\r\nA: b\r\nC: \r\n\r\nrest".to_owned(), ok("3|abc|0||", "rest")),
            ("A\r\n0123456789\r\n0\r\n\r\n".to_owned(), ok("a|0123456789|0||", "")),
            (format!("{}0\r\n\r\n", many(70)), ok(&format!("{}0||", "1|a|".repeat(200)), "")),
            (many(120), Err("chunked encoding contains too much non-data")),
            ("3\nabc\n0\n\n".to_owned(), Err("chunked line ends with bare LF")),
            ("3;\ra\r\nabc".to_owned(), Err("invalid CR in chunked line")),
            ("3 ;a=b\r\nabc".to_owned(), Err("invalid byte in chunk length")),
            ("0x3\r\nabc".to_owned(), Err("invalid byte in chunk length")),
            ("-3\r\nabc".to_owned(), Err("invalid byte in chunk length")),
            ("\r\nabc".to_owned(), Err("empty hex number for chunk length")),
            ("00000000000000003\r\nabc".to_owned(), Err("http chunk length too large")),
            ("3\r\nabcXX0\r\n".to_owned(), Err("malformed chunked encoding")),
            (format!("3;{}\r\nabc", long(5000)), Err("header line too long")),
            (format!("0\r\nA: {}\r\n\r\n", long(5000)), Err("http: suspiciously long trailer after chunked body")),
            ("0\r\nA b\r\n\r\n".to_owned(), Err("malformed MIME header: missing colon: \"A b\"")),
        ] {
            for piece in [1, 7, 1 << 20] {
                assert_eq!(given(&body, piece), want.clone().map_err(str::to_owned), "{piece}: {body:?}");
            }
        }
    }
}
