//! The head of a request over HTTP/1, judged as Go's server does, which clients of upstream know: what it takes that the
//! HTTP library here does not is said in other words (a raw `<` in a path, a length said twice), and what it refuses is
//! refused with its code and text. Pure.

use crate::url::Url;

/// Header with the requested upgrade; see [`super::http1_filter`].
pub(super) const ASKED: &str = "x-ironclad-upgrade";
/// Header with the refusal of a head; see [`parse`].
pub(super) const REFUSED: &str = "x-ironclad-refused";

/// The longest head that is taken: Go's megabyte, and what it allows beyond.
pub(super) const LONGEST: usize = (1 << 20) + (4 << 10);
/// The longest head, and the most headers, that the library here takes. Of what is more it is told what it has to know.
const LONGEST_GIVEN: usize = (128 << 10) - 1;
const MOST_HEADERS: usize = 96;
/// The longest target that its type for targets holds. (Go has no limit of its own.)
const LONGEST_TARGET: usize = u16::MAX as usize - 1;
/// Headers that the library needs.
const KNOWN: [&str; 7] = ["host", "connection", "upgrade", "content-length", "transfer-encoding", ASKED, REFUSED];

/// Refusal of a request: code and text.
pub(super) type Refused = (u16, &'static str);

pub(super) const TOO_LARGE: Refused = (431, "431 Request Header Fields Too Large");
const BAD: Refused = (400, "400 Bad Request");
const NO_HOST: Refused = (400, "400 Bad Request: missing required Host header");
const BAD_HOST: Refused = (400, "400 Bad Request: malformed Host header");
const TARGET_TOO_LONG: Refused = (414, "414 Request URI Too Long");
const BAD_NAME: Refused = (400, "400 Bad Request: invalid header name");
const ENCODING: Refused = (501, "Unsupported transfer encoding");
const VERSION: Refused = (505, "505 HTTP Version Not Supported: unsupported protocol version");
const EXPECTATION: Refused = (417, "");

/// Framing of the body behind a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// So many bytes, and then the next head.
    Length(u64),
    /// Chunks, and then the next head.
    Chunks,
    /// No more heads: the connection changes its protocol, or is about to end.
    Rest,
}

/// The search for the end of a head that comes in pieces: nothing is looked at twice.
#[derive(Default)]
pub(super) struct Search {
    /// Offset at which the incomplete line starts.
    line: usize,
    seen: usize,
}

impl Search {
    /// Offset at which the head ends, if it is complete.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(at) = bytes.get(self.seen..)?.iter().position(|byte| *byte == b'\n') {
            let next = self.seen + at + 1;
            if trimmed(&bytes[self.line..next]).is_empty() {
                return Some(next);
            }
            (self.line, self.seen) = (next, next);
        }
        self.seen = bytes.len();
        None
    }

    /// Reports whether the request line is complete.
    pub(super) fn has_line(&self) -> bool {
        self.line > 0
    }
}

/// The first line of a request.
#[derive(Debug)]
pub(super) struct Line<'a> {
    method: &'a str,
    target: &'a [u8],
    /// The second number of HTTP/1's version.
    minor: u8,
}

fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl<'a> Line<'a> {
    /// Reads the line that `bytes` begin with.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Refused> {
        let line = trimmed(bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default());
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(BAD);
        };
        let method = std::str::from_utf8(method).map_err(|_| BAD)?;
        let minor = match version {
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'0'..=b'9'] => minor - b'0',
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(VERSION),
            _ => return Err(BAD),
        };
        let known = !method.is_empty() && method.bytes().all(is_token) && is_target(method, target);
        if known { Ok(Self { method, target, minor }) } else { Err(BAD) }
    }
}

pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Reports whether Go can parse the request target.
fn is_target(method: &str, target: &[u8]) -> bool {
    if target.is_empty() || target.iter().any(|byte| *byte < 0x20 || *byte == 0x7f) {
        return false;
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let escaped = |at: usize| path.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    match target[0] {
        b'/' => path.iter().enumerate().filter(|(_, byte)| **byte == b'%').all(|(at, _)| escaped(at)),
        // Only whoever takes this for a proxy says a scheme and a host.
        _ => target == b"*" || method == "CONNECT" || Url::parse_request(target).is_ok(),
    }
}

/// The path and the query of a target; nothing is at one that has no path.
fn origin_form(method: &str, target: &[u8]) -> Vec<u8> {
    if target.starts_with(b"/") || method == "CONNECT" {
        return target.to_vec();
    }
    let Ok(url) = Url::parse_request(target) else { return b"*".to_vec() };
    let path = url.escaped_path();
    if !path.starts_with(b"/") {
        return b"*".to_vec();
    }
    let query = if url.query.is_empty() { Vec::new() } else { [b"?", &url.query[..]].concat() };
    [path, query].concat()
}

/// The target as the library takes it.
fn encoded(target: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(target.len());
    let mut in_query = false;
    for byte in target {
        let plain = match in_query {
            true => !b"\"#<>".contains(byte) && *byte < 0x7f,
            false => byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/%?".contains(byte),
        };
        in_query |= *byte == b'?';
        if plain {
            out.push(*byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    out
}

pub(super) type Field = (String, Vec<u8>);
pub(super) type Fields = Vec<Field>;

/// The headers; what is folded over lines is one.
fn fields(lines: &[u8]) -> Result<Fields, Refused> {
    let mut fields = Fields::new();
    let mut odd = false;
    for line in lines.split_inclusive(|byte| *byte == b'\n').map(trimmed).filter(|line| !line.is_empty()) {
        if line.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
            return Err(BAD);
        }
        if matches!(line[0], b' ' | b'\t') {
            let (_, value) = fields.last_mut().ok_or(BAD)?;
            value.push(b' ');
            value.extend_from_slice(line.trim_ascii());
            continue;
        }
        let at = line.iter().position(|byte| *byte == b':').filter(|at| *at > 0).ok_or(BAD)?;
        let name = &line[..at];
        if !name.iter().all(|byte| is_token(*byte) || *byte == b' ') {
            return Err(BAD);
        }
        odd |= name.contains(&b' ');
        fields.push((String::from_utf8_lossy(name).into_owned(), line[at + 1..].trim_ascii().to_vec()));
    }
    if odd { Err(BAD_NAME) } else { Ok(fields) }
}

fn values<'a>(fields: &'a [Field], name: &str) -> Vec<&'a [u8]> {
    fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice()).collect()
}

/// Reports whether a comma-separated list contains a word.
fn names(values: &[&[u8]], word: &str) -> bool {
    let mut words = values.iter().flat_map(|value| value.split(|byte| *byte == b','));
    words.any(|one| one.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

fn drop_all(fields: &mut Fields, name: &str) {
    fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
}

fn check_host(line: &Line<'_>, fields: &[Field]) -> Result<(), Refused> {
    let valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"!$%&()*+,-.:;=['_]~".contains(byte);
    match values(fields, "host")[..] {
        [] if line.minor > 0 && line.method != "CONNECT" => Err(NO_HOST),
        [] => Ok(()),
        [host] if host.iter().all(valid) => Ok(()),
        [_] => Err(BAD_HOST),
        _ => Err(BAD),
    }
}

/// Determines the body's framing, and reduces its headers to one form.
fn length(line: &Line<'_>, fields: &mut Fields) -> Result<Body, Refused> {
    if line.minor == 0 {
        drop_all(fields, "transfer-encoding");
    }
    let said = values(fields, "content-length");
    let first = said.first().copied();
    if said.iter().any(|other| other.is_empty() || Some(*other) != first || !other.iter().all(u8::is_ascii_digit)) {
        return Err(BAD);
    }
    let encodings = values(fields, "transfer-encoding");
    if matches!(encodings[..], [encoding] if encoding.eq_ignore_ascii_case(b"chunked")) {
        let trailers = values(fields, "trailer");
        if ["transfer-encoding", "trailer", "content-length"].iter().any(|name| names(&trailers, name)) {
            return Err(BAD);
        }
        if first.is_some() {
            // Whoever stands between may believe the other word: after this request nothing is (RFC 9112 section 6.1).
            drop_all(fields, "content-length");
            drop_all(fields, "connection");
            fields.push(("Connection".to_owned(), b"close".to_vec()));
        }
        return Ok(Body::Chunks);
    }
    if !encodings.is_empty() {
        return Err(ENCODING);
    }
    let Some(first) = first else { return Ok(Body::Length(0)) };
    let length: i64 = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok()).ok_or(BAD)?;
    drop_all(fields, "content-length");
    fields.push(("Content-Length".to_owned(), length.to_string().into_bytes()));
    Ok(Body::Length(length.unsigned_abs()))
}

/// Handles `Expect`: returns the headers for a client that waits for `100 Continue` with a body. The library would send
/// that at once.
fn expectation(line: &Line<'_>, fields: &mut Fields, body: Body) -> Result<Fields, Refused> {
    let expected = values(fields, "expect");
    if !names(&expected, "100-continue") && expected.first().is_some_and(|expected| !expected.is_empty()) {
        return Err(EXPECTATION);
    }
    let expected = fields.extract_if(.., |(name, _)| name.eq_ignore_ascii_case("expect")).collect();
    Ok(if line.minor == 0 || body == Body::Length(0) { Fields::new() } else { expected })
}

/// Marks a change of protocol as one to WebSocket, the only one that the library knows. Whether there is one.
fn mark(fields: &mut Fields) -> bool {
    let asks = names(&values(fields, "connection"), "upgrade");
    let wanted = values(fields, "upgrade").first().map(|wanted| wanted.to_vec());
    let Some(wanted) = wanted.filter(|wanted| asks && !wanted.eq_ignore_ascii_case(b"h2c")) else {
        // Nobody here speaks HTTP/2 that way: it stays as it is.
        if named_in_vain(fields) {
            drop_all(fields, "upgrade");
            drop_all(fields, "connection");
        }
        return false;
    };
    if !wanted.eq_ignore_ascii_case(b"websocket") {
        drop_all(fields, "upgrade");
        fields.push(("Upgrade".to_owned(), b"websocket".to_vec()));
        fields.push((ASKED.to_owned(), wanted));
    }
    true
}

/// Reports whether `Upgrade` names a protocol and `Connection` does not say `close`.
fn named_in_vain(fields: &[Field]) -> bool {
    !values(fields, "upgrade").is_empty() && !names(&values(fields, "connection"), "close")
}

/// A head that is taken.
#[derive(Debug)]
pub(super) struct Head {
    /// Head for the library.
    pub(super) bytes: Vec<u8>,
    /// Framing of the body.
    pub(super) body: Body,
    /// No request comes after this one.
    pub(super) last: bool,
    /// The client waits to be told to go on.
    pub(super) expects: bool,
    /// Headers that the library is not given.
    pub(super) aside: Fields,
}

/// Validates a head.
pub(super) fn parse(head: &[u8]) -> Result<Head, Refused> {
    let line = Line::read(head)?;
    let after = head.iter().position(|byte| *byte == b'\n').map_or(head.len(), |at| at + 1);
    let mut fields = fields(&head[after..])?;
    drop_all(&mut fields, ASKED);
    drop_all(&mut fields, REFUSED);
    if values(&fields, "host").len() > 1 {
        return Err(BAD);
    }
    let mut body = length(&line, &mut fields)?;
    check_host(&line, &fields)?;
    let mut expected = expectation(&line, &mut fields, body)?;
    if line.method == "OPTIONS" && line.target == b"*" {
        return Err((200, ""));
    }
    if mark(&mut fields) || line.method == "CONNECT" {
        body = Body::Rest;
        expected.clear();
    } else if line.minor == 0 && body == Body::Length(0) {
        // The library wants to hear it.
        drop_all(&mut fields, "content-length");
        fields.push(("Content-Length".to_owned(), b"0".to_vec()));
    }
    let target = encoded(&origin_form(line.method, line.target));
    if target.len() > LONGEST_TARGET {
        return Err(TARGET_TOO_LONG);
    }
    let expects = !expected.is_empty();
    let mut aside = put_aside(&mut fields, target.len() + line.method.len());
    aside.extend(expected);
    let mut out = format!("{} ", line.method).into_bytes();
    out.extend_from_slice(&target);
    out.extend_from_slice(if line.minor == 0 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    for (name, value) in &fields {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
    // The library would read on, and then know no more of the first request that it was to be the last one.
    let last = names(&values(&fields, "connection"), "close");
    Ok(Head { bytes: out, body, last, expects, aside })
}

/// Of headers that are too much for the library those that it need not know.
fn put_aside(fields: &mut Fields, line: usize) -> Fields {
    let length: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    if fields.len() <= MOST_HEADERS && length + line + 64 <= LONGEST_GIVEN {
        return Fields::new();
    }
    let known = |name: &str| KNOWN.iter().any(|known| name.eq_ignore_ascii_case(known));
    let (given, aside) = fields.drain(..).partition(|(name, _)| known(name));
    *fields = given;
    aside
}

/// The request that takes the place of one that is refused: answers have to come in order, and this has its turn.
pub(super) fn in_place((code, text): Refused) -> Vec<u8> {
    let note = REFUSED;
    format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{note}: {code} {text}\r\n\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Validates a head; the result shows the end of a line as `|`.
    fn shown(head: &[u8]) -> Result<(String, Body), Refused> {
        parse(head).map(|head| (String::from_utf8_lossy(&head.bytes).replace("\r\n", "|"), head.body))
    }

    #[test]
    fn heads_go_takes_are_taken() {
        const NONE: Body = Body::Length(0);
        for (head, want, body) in [
            ("GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1|Host: h||", NONE),
            ("GET /a HTTP/1.1\nHost: h\n\n", "GET /a HTTP/1.1|Host: h||", NONE),
            ("GET /a HTTP/1.2\r\nHost:\r\n\r\n", "GET /a HTTP/1.1|Host: ||", NONE),
            ("GET /<é#{ HTTP/1.1\r\nHost: h\r\n\r\n", "GET /%3C%C3%A9%23%7B HTTP/1.1|Host: h||", NONE),
            ("GET /a?<é%zz|{ HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a?%3C%C3%A9%zz|{ HTTP/1.1|Host: h||", NONE),
            ("POST /a HTTP/1.0\r\n\r\n", "POST /a HTTP/1.0|Content-Length: 0||", NONE),
            ("FOO /a HTTP/1.1\r\nHost: h\r\nA: b\r\n  c\r\n\r\n", "FOO /a HTTP/1.1|Host: h|A: b c||", NONE),
            (
                "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n",
                "POST /a HTTP/1.1|Host: h|Content-Length: 2||",
                Body::Length(2),
            ),
            (
                "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: Chunked\r\n\r\n",
                "POST /a HTTP/1.1|Host: h|Transfer-Encoding: Chunked|Connection: close||",
                Body::Chunks,
            ),
            ("GET /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n", "GET /a HTTP/1.1|Host: h||", NONE),
            (
                "GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nx-Ironclad-Upgrade: lie\r\n\r\n",
                "GET /a HTTP/1.1|Host: h|Connection: Upgrade|Upgrade: websocket|x-ironclad-upgrade: SPDY/3.1||",
                Body::Rest,
            ),
            (
                "GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nx-ironclad-refused: 500\r\n\r\n",
                "GET /a HTTP/1.1|Host: h||",
                NONE,
            ),
            ("GET http://h/a%20b?c HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a%20b?c HTTP/1.1|Host: h||", NONE),
            ("GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1|Host: h||", NONE),
            ("GET http://h HTTP/1.1\r\nHost: h\r\n\r\n", "GET * HTTP/1.1|Host: h||", NONE),
            ("GET mailto:a HTTP/1.1\r\nHost: h\r\n\r\n", "GET * HTTP/1.1|Host: h||", NONE),
        ] {
            assert_eq!(shown(head.as_bytes()), Ok((want.to_owned(), body)), "{head:?}");
            assert_eq!(Search::default().end(head.as_bytes()), Some(head.len()), "{head:?}");
        }
    }

    #[test]
    fn what_is_too_much_for_the_library_is_put_aside() {
        for (more, aside) in
            [("A: b\r\n".repeat(94), 0), ("A: b\r\n".repeat(95), 95), (format!("A: {}\r\n", "a".repeat(200_000)), 1)]
        {
            let head = format!("POST /a HTTP/1.1\r\nHost: h\r\n{more}Content-Length: 2\r\n\r\n");
            let head = parse(head.as_bytes()).expect("taken");
            assert_eq!((head.aside.len(), head.body), (aside, Body::Length(2)));
            let given = String::from_utf8_lossy(&head.bytes).into_owned();
            assert!(aside == 0 || given == "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n", "{given}");
        }
    }

    #[test]
    fn heads_go_refuses_are_refused_in_its_words() {
        let host = |rest: &str| format!("GET /a HTTP/1.1\r\nHost: h\r\n{rest}\r\n\r\n");
        for (head, want) in [
            ("GET /a HTTP/1.1\r\n\r\n".to_owned(), NO_HOST),
            ("GET /a HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(), BAD_HOST),
            ("GET /a HTTP/1.1\r\nHost: é\r\n\r\n".to_owned(), BAD_HOST),
            (host("Host: h"), BAD),
            (host("Transfer-Encoding: gzip"), ENCODING),
            (host("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), ENCODING),
            (host("Content-Length: 1\r\nContent-Length: 2"), BAD),
            (host("Content-Length: +1"), BAD),
            (host("Content-Length:"), BAD),
            (host("Expect: x"), EXPECTATION),
            (host("a b: c"), BAD_NAME),
            (host("a(b: c"), BAD),
            (host("abc"), BAD),
            (host(": c"), BAD),
            (host("A: b\x01"), BAD),
            (host("Trailer: a, Content-Length\r\nTransfer-Encoding: chunked"), BAD),
            (host("Content-Length: x\r\nTransfer-Encoding: chunked"), BAD),
            ("GET http://h:x/a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("GET http://h%41/a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            (format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(70_000)), TARGET_TOO_LONG),
            ("GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("GET a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("GET  /a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("GET /a HTTP/1.1 \r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("G(T /a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("GET /a\r\n\r\n".to_owned(), BAD),
            ("\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), BAD),
            ("GET /a HTTP/2.0\r\nHost: h\r\n\r\n".to_owned(), VERSION),
            ("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), (200, "")),
        ] {
            assert_eq!(shown(head.as_bytes()), Err(want), "{head:?}");
        }
    }
}
