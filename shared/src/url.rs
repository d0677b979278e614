//! URLs as Go's `net/url` takes them apart and puts them together again, which is byte by byte: a text need not be UTF-8.

mod error;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::status::go_quote;

pub use error::{UrlError, UrlProblem};

/// User info of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    name: Vec<u8>,
    password: Option<Vec<u8>>,
}

/// The parts of a URL, without escapes where a part of that form has a name of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    /// In lower case.
    pub scheme: String,
    /// Opaque part behind a scheme.
    pub opaque: Vec<u8>,
    /// User info.
    pub user: Option<User>,
    /// With its port.
    pub host: Vec<u8>,
    /// Without escapes.
    pub path: Vec<u8>,
    /// Path as written, where the canonical encoding differs.
    written_path: Vec<u8>,
    /// Query as written.
    pub query: Vec<u8>,
    /// A question mark without anything behind it.
    asks_nothing: bool,
    /// Without escapes.
    pub fragment: Vec<u8>,
    /// Fragment as written, where the canonical encoding differs.
    written_fragment: Vec<u8>,
    /// A scheme and a path, and no host between them.
    hostless: bool,
}

/// Component of a URL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlPart {
    Host,
    Zone,
    User,
    Path,
    Query,
    Fragment,
}

impl UrlPart {
    /// Reports whether a byte is percent-encoded.
    fn escapes(self, byte: u8) -> bool {
        let plain: &[u8] = match self {
            Self::Host | Self::Zone => b"!$&'()*+,;=:[]<>\"",
            Self::User => b"$&+,;=",
            Self::Path => b"$&+,/:;=@",
            Self::Query => b"",
            Self::Fragment => b"$&+,/:;=?@!()*",
        };
        !(byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || plain.contains(&byte))
    }

    /// Reports whether a text is a valid encoding, if not the canonical one.
    fn may_be_written(self, text: &[u8]) -> bool {
        text.iter().all(|byte| b"!$&'()*+,;=:@[]%".contains(byte) || !self.escapes(*byte))
    }
}

impl Url {
    /// Takes a text apart.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(text: &[u8]) -> Result<Self, UrlError> {
        let (before, fragment) = cut(text, b'#');
        let wrong = |of: &[u8], problem| UrlError { text: quoted(of), problem };
        let mut url = Self::parts(before, false).map_err(|why| wrong(before, why))?;
        url.fragment = unescaped(fragment, UrlPart::Fragment).map_err(|why| wrong(text, why))?;
        url.written_fragment = odd(fragment, &url.fragment, UrlPart::Fragment);
        Ok(url)
    }

    /// Parses a request's URL like Go's `ParseRequestURI`: an absolute URI or an absolute path, with `#` as a part of
    /// it.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse_request(text: &[u8]) -> Result<Self, UrlError> {
        Self::parts(text, true).map_err(|problem| UrlError { text: quoted(text), problem })
    }

    fn parts(text: &[u8], request: bool) -> Result<Self, UrlProblem> {
        if text.iter().any(|byte| byte.is_ascii_control()) {
            return Err(UrlProblem::ControlCharacter);
        }
        if text.is_empty() && request {
            return Err(UrlProblem::Empty);
        }
        let mut url = Self::default();
        if text == b"*" {
            url.path = text.to_vec();
            return Ok(url);
        }
        let (scheme, rest) = scheme(text)?;
        url.scheme = String::from_utf8_lossy(scheme).to_ascii_lowercase();
        url.asks_nothing = rest.iter().position(|byte| *byte == b'?') == rest.len().checked_sub(1) && !rest.is_empty();
        let (rest, query) = cut(rest, b'?');
        url.query = query.to_vec();
        if !rest.starts_with(b"/") {
            if !url.scheme.is_empty() {
                url.opaque = rest.to_vec();
                return Ok(url);
            }
            if request {
                return Err(UrlProblem::NotForRequests);
            }
            if cut(rest, b'/').0.contains(&b':') {
                return Err(UrlProblem::FirstSegment);
            }
        }
        let path = match rest.strip_prefix(b"//") {
            Some(inside) if !url.scheme.is_empty() || !(request || inside.starts_with(b"/")) => {
                let (authority, path) = inside.split_at(find(inside, b'/').unwrap_or(inside.len()));
                (url.user, url.host) = self::authority(authority)?;
                path
            }
            _ => {
                url.hostless = !url.scheme.is_empty();
                rest
            }
        };
        url.path = unescaped(path, UrlPart::Path)?;
        url.written_path = odd(path, &url.path, UrlPart::Path);
        Ok(url)
    }

    /// The path as it is written.
    #[must_use]
    pub fn escaped_path(&self) -> Vec<u8> {
        if self.path == b"*" { self.path.clone() } else { written(&self.path, &self.written_path, UrlPart::Path) }
    }

    /// The host without its port, and without the brackets of an address.
    #[must_use]
    pub fn hostname(&self) -> &[u8] {
        let name = &self.host[..self.host.len() - self.port_part().len()];
        name.strip_prefix(b"[").and_then(|name| name.strip_suffix(b"]")).unwrap_or(name)
    }

    /// The port, if one is named.
    #[must_use]
    pub fn port(&self) -> &[u8] {
        self.port_part().strip_prefix(b":").unwrap_or_default()
    }

    fn port_part(&self) -> &[u8] {
        let part = self.host.iter().rposition(|byte| *byte == b':').map_or(&[][..], |colon| &self.host[colon..]);
        if judge_port(part).is_ok() { part } else { &[] }
    }

    /// Writes the URL.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.scheme.is_empty() {
            out.extend_from_slice(self.scheme.as_bytes());
            out.push(b':');
        }
        if self.opaque.is_empty() {
            self.write_place(&mut out);
        } else {
            out.extend_from_slice(&self.opaque);
        }
        if self.asks_nothing || !self.query.is_empty() {
            out.push(b'?');
            out.extend_from_slice(&self.query);
        }
        if !self.fragment.is_empty() {
            out.push(b'#');
            out.extend(written(&self.fragment, &self.written_fragment, UrlPart::Fragment));
        }
        out
    }

    fn write_place(&self, out: &mut Vec<u8>) {
        let somewhere = !self.host.is_empty() || self.user.is_some();
        let named = somewhere || (!self.scheme.is_empty() && !self.hostless);
        if named && (somewhere || !self.path.is_empty()) {
            out.extend_from_slice(b"//");
        }
        if let Some(user) = &self.user {
            out.extend(user.write());
            out.push(b'@');
        }
        out.extend(escaped(&self.host, UrlPart::Host));
        let path = self.escaped_path();
        if !path.is_empty() && !path.starts_with(b"/") && !self.host.is_empty() {
            out.push(b'/');
        }
        // A path that would be read as a scheme.
        if out.is_empty() && cut(&path, b'/').0.contains(&b':') {
            out.extend_from_slice(b"./");
        }
        out.extend(path);
    }
}

impl User {
    /// Writes the user info as it stands before `@`.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = escaped(&self.name, UrlPart::User);
        if let Some(password) = &self.password {
            out.push(b':');
            out.extend(escaped(password, UrlPart::User));
        }
        out
    }
}

/// Parses a query into values by name, without pairs that cannot be decoded.
#[must_use]
pub fn values(query: &[u8]) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let word = |text: &[u8]| {
        let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        unescaped(&spaced, UrlPart::Query).ok()
    };
    let mut values: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty() && !pair.contains(&b';')) {
        let (name, value) = cut(pair, b'=');
        if let (Some(name), Some(value)) = (word(name), word(value)) {
            values.entry(name).or_default().push(value);
        }
    }
    values
}

/// A query as Go writes one that it has read.
#[must_use]
pub fn sorted_query(query: &[u8]) -> Vec<u8> {
    let write = |text: &[u8]| {
        let parts: Vec<Vec<u8>> = text.split(|byte| *byte == b' ').map(|part| escaped(part, UrlPart::Query)).collect();
        parts.join(&b'+')
    };
    let values = values(query);
    let pairs = values.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    let pairs: Vec<Vec<u8>> = pairs.map(|(name, value)| [write(name), write(value)].join(&b'=')).collect();
    pairs.join(&b'&')
}

/// A path as it is written by itself.
#[must_use]
pub fn escaped_path(path: &[u8]) -> Vec<u8> {
    escaped(path, UrlPart::Path)
}

/// Two paths as one, without empty parts, `.` and `..`; a slash at the end stays.
#[must_use]
pub fn joined(before: &[u8], path: &[u8]) -> Vec<u8> {
    let rooted = if before.is_empty() { path.starts_with(b"/") } else { before.starts_with(b"/") };
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in before.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." if parts.last().is_some_and(|last| *last != b"..") => drop(parts.pop()),
            b".." if rooted => {}
            part => parts.push(part),
        }
    }
    let mut out = if rooted { b"/".to_vec() } else { Vec::new() };
    out.extend(parts.join(&b'/'));
    if path.ends_with(b"/") && !out.ends_with(b"/") {
        out.push(b'/');
    }
    out
}

fn find(text: &[u8], mark: u8) -> Option<usize> {
    text.iter().position(|byte| *byte == mark)
}

/// Splits a text at a mark.
fn cut(text: &[u8], mark: u8) -> (&[u8], &[u8]) {
    find(text, mark).map_or((text, &[]), |at| (&text[..at], &text[at + 1..]))
}

fn quoted(text: &[u8]) -> String {
    go_quote(&String::from_utf8_lossy(text))
}

fn scheme(text: &[u8]) -> Result<(&[u8], &[u8]), UrlProblem> {
    let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte));
    match end.filter(|end| text[*end] == b':') {
        Some(0) => Err(UrlProblem::NoScheme),
        Some(end) if text[0].is_ascii_alphabetic() => Ok((&text[..end], &text[end + 1..])),
        _ => Ok((&[], text)),
    }
}

fn authority(text: &[u8]) -> Result<(Option<User>, Vec<u8>), UrlProblem> {
    let Some(at) = text.iter().rposition(|byte| *byte == b'@') else { return Ok((None, host(text)?)) };
    let (user, host) = (&text[..at], host(&text[at + 1..])?);
    if !user.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(byte)) {
        return Err(UrlProblem::UserInfo);
    }
    let (name, password) = cut(user, b':');
    let password = user.contains(&b':').then(|| unescaped(password, UrlPart::User)).transpose()?;
    Ok((Some(User { name: unescaped(name, UrlPart::User)?, password }), host))
}

fn host(text: &[u8]) -> Result<Vec<u8>, UrlProblem> {
    match text.iter().rposition(|byte| *byte == b'[') {
        Some(0) => literal(text),
        Some(_) => Err(UrlProblem::IpLiteral),
        None => {
            judge_port(text.iter().rposition(|byte| *byte == b':').map_or(&[][..], |colon| &text[colon..]))?;
            unescaped(text, UrlPart::Host)
        }
    }
}

/// An IPv6 address in brackets, and maybe a port.
fn literal(text: &[u8]) -> Result<Vec<u8>, UrlProblem> {
    let end = text.iter().rposition(|byte| *byte == b']').ok_or(UrlProblem::OpenLiteral)?;
    judge_port(&text[end + 1..])?;
    let inside = &text[1..end];
    let zone = inside.windows(3).position(|three| three == b"%25").unwrap_or(inside.len());
    let mut host = unescaped(&inside[..zone], UrlPart::Host)?;
    host.extend(unescaped(&inside[zone..], UrlPart::Zone)?);
    let shown = String::from_utf8_lossy(&host).into_owned();
    let (address, zone) = shown.split_once('%').map_or((shown.as_str(), None), |(address, zone)| (address, Some(zone)));
    if zone == Some("") || address.parse::<Ipv6Addr>().is_err() {
        if address.parse::<std::net::Ipv4Addr>().is_ok() {
            return Err(UrlProblem::IpLiteral);
        }
        return Err(UrlProblem::Address(go_quote(&shown)));
    }
    Ok([b"[", host.as_slice(), b"]", &text[end + 1..]].concat())
}

/// Validates a port: empty, or a colon and digits, or the colon alone.
fn judge_port(text: &[u8]) -> Result<(), UrlProblem> {
    let fits = text.is_empty() || (text[0] == b':' && text[1..].iter().all(u8::is_ascii_digit));
    if fits { Ok(()) } else { Err(UrlProblem::Port(quoted(text))) }
}

/// Returns the text as written where the canonical encoding differs, else nothing.
fn odd(text: &[u8], plain: &[u8], part: UrlPart) -> Vec<u8> {
    if escaped(plain, part) == text { Vec::new() } else { text.to_vec() }
}

/// A text as it was written, where that may be and still says the same.
fn written(plain: &[u8], before: &[u8], part: UrlPart) -> Vec<u8> {
    let same = || unescaped(before, part).is_ok_and(|text| text == plain);
    if !before.is_empty() && part.may_be_written(before) && same() { before.to_vec() } else { escaped(plain, part) }
}

fn escaped(text: &[u8], part: UrlPart) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        if part.escapes(*byte) {
            out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        } else {
            out.push(*byte);
        }
    }
    out
}

fn unescaped(text: &[u8], part: UrlPart) -> Result<Vec<u8>, UrlProblem> {
    let host = matches!(part, UrlPart::Host | UrlPart::Zone);
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut out, mut i) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(i) {
        if *byte != b'%' {
            if host && byte.is_ascii() && part.escapes(*byte) {
                return Err(UrlProblem::HostCharacter(quoted(&[*byte])));
            }
            out.push(*byte);
            i += 1;
            continue;
        }
        let escape = &text[i..text.len().min(i + 3)];
        let wrong = || UrlProblem::Escape(quoted(escape));
        let (high, low) = digit(i + 1).zip(digit(i + 2)).ok_or_else(wrong)?;
        let plain = high << 4 | low;
        let forbidden = match part {
            // Of a host only what is not ASCII may be written so, and the mark itself.
            UrlPart::Host => high < 8 && escape != b"%25",
            UrlPart::Zone => escape != b"%25" && plain != b' ' && UrlPart::Host.escapes(plain),
            _ => false,
        };
        if forbidden {
            return Err(wrong());
        }
        out.push(plain);
        i += 3;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let url = Url::parse(b"HTTPS://u:p@[::1]:80/a%20b?c=d#e").expect("a URL");
        let user = User { name: b"u".to_vec(), password: Some(b"p".to_vec()) };
        let want = Url {
            scheme: "https".to_owned(),
            user: Some(user),
            host: b"[::1]:80".to_vec(),
            path: b"/a b".to_vec(),
            query: b"c=d".to_vec(),
            fragment: b"e".to_vec(),
            ..Url::default()
        };
        assert_eq!(url, want);
        assert_eq!(Url::parse(b"").expect("nothing"), Url::default());
    }

    /// Writing matches Go 1.25's `url.Parse` and `String`.
    #[test]
    fn what_is_written_again() {
        for (text, want) in [
            ("a b/c", "a%20b/c"),
            ("/a%2fb!'()*", "/a%2fb!'()*"),
            ("/a%2fb c", "/a/b%20c"),
            ("?", "?"),
            ("a??", "a??"),
            ("#", ""),
            ("#a b!", "#a%20b!"),
            ("MAILTO:a b@c", "mailto:a b@c"),
            ("javascript:alert(\"x\")", "javascript:alert(\"x\")"),
            ("///a", "///a"),
            ("//u@h", "//u@h"),
            ("file:///a", "file:///a"),
            ("http:/a", "http:/a"),
            ("http://", "http:"),
            ("./a:b", "./a:b"),
            ("%61:b", "ERROR"),
            ("a%3ab", "a%3ab"),
            ("//[fe80::1%25en0]/x", "//[fe80::1%25en0]/x"),
            ("http://\u{e4}.example/\u{e4}", "http://%C3%A4.example/%C3%A4"),
            ("*", "*"),
        ] {
            let got = Url::parse(text.as_bytes())
                .map_or("ERROR".to_owned(), |url| String::from_utf8(url.write()).expect("ASCII"));
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn queries_are_sorted() {
        for (query, want) in [
            ("b=2&a=1&b=1&c", "a=1&b=2&b=1&c="),
            ("a=%2f+x%20y&%zz=1&d;e=1&&=v", "=v&a=%2F+x+y"),
            ("a==&~._-*=\u{e4}", "a=%3D&~._-%2A=%C3%A4"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8_lossy(&sorted_query(query.as_bytes())), want, "{query}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        for (text, name, port) in [
            ("http://a:80/x", "a", "80"),
            ("http://[::1]:80", "::1", "80"),
            ("http://[::1]", "::1", ""),
            ("http://a:", "a", ""),
            ("/a", "", ""),
        ] {
            let url = Url::parse(text.as_bytes()).expect("a URL");
            assert_eq!((url.hostname(), url.port()), (name.as_bytes(), port.as_bytes()), "{text}");
        }
    }

    /// Parsing matches Go 1.25's `url.ParseRequestURI`.
    #[test]
    fn what_is_asked_for() {
        for (text, want) in [
            ("", Err("empty url")),
            ("a", Err("invalid URI for request")),
            ("1:2", Err("invalid URI for request")),
            ("mailto:a", Ok("")),
            ("//a/b", Ok("//a/b")),
            ("/a#b", Ok("/a#b")),
            ("http://a/b", Ok("/b")),
        ] {
            let got = Url::parse_request(text.as_bytes()).map(|url| String::from_utf8(url.path).expect("ASCII"));
            let got = got.map_err(|e| e.to_string());
            let want = want.map(str::to_owned).map_err(|why| format!("parse {}: {why}", go_quote(text)));
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn what_is_no_url() {
        for (text, want) in [
            ("://", "missing protocol scheme"),
            ("1:2", "first path segment in URL cannot contain colon"),
            ("https://x:y", "invalid port \":y\" after host"),
            ("https://x y", "invalid character \" \" in host name"),
            ("https://[::1", "missing ']' in host"),
            ("https://[1.2.3.4]", "invalid IP-literal"),
            ("https://x.y/%zz", "invalid URL escape \"%zz\""),
            ("https://a b@x", "net/url: invalid userinfo"),
            ("https://x\n", "net/url: invalid control character in URL"),
        ] {
            let why = Url::parse(text.as_bytes()).expect_err(text).to_string();
            assert_eq!(why, format!("parse {}: {want}", go_quote(text)));
        }
    }
}
