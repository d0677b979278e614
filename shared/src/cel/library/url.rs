//! `url`, `isURL` and the parts of one.

use std::collections::BTreeMap;

use super::{Args, Entry, ONE, bool, function, method, opaque, text};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Text, Value};
use crate::status::go_quote;

#[derive(Debug, PartialEq, Eq, Default)]
struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
}

opaque!(Url, "kubernetes.URL");

pub(super) const TABLE: &[Entry] = &[
    function("url", "string", "kubernetes.URL", Cost::Keep, url),
    function("isURL", "string", "bool", ONE, is_url),
    method("getScheme", "kubernetes.URL", "string", ONE, scheme),
    method("getHost", "kubernetes.URL", "string", ONE, host),
    method("getHostname", "kubernetes.URL", "string", ONE, hostname),
    method("getPort", "kubernetes.URL", "string", ONE, port),
    method("getEscapedPath", "kubernetes.URL", "string", ONE, path),
    method("getQuery", "kubernetes.URL", "map(string, list(string))", ONE, query),
];

/// What stands in a part of a URL as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Host,
    Path,
    Query,
}

impl Part {
    /// Whether a byte has to be escaped when it is written.
    fn escapes(self, b: u8) -> bool {
        let plain: &[u8] = match self {
            Self::Host => b"-_.~!$&'()*+,;=:[]<>\"",
            Self::Path => b"-_.~$&+,/:;=@",
            Self::Query => b"-_.~",
        };
        !b.is_ascii_alphanumeric() && !plain.contains(&b)
    }
}

/// What Go's `url.ParseRequestURI` says of a text: an absolute URI or an absolute path is one.
///
/// # Errors
/// Its words.
pub(super) fn check(text: &str) -> Result<(), String> {
    parse(text, text, true).map(drop)
}

/// As Go's `url.Parse` takes apart what passes [`check`]: without a fragment.
fn read(text: &str) -> Result<Url, String> {
    check(text).and_then(|()| parse(text.split_once('#').map_or(text, |(before, _)| before), text, false))
}

fn parse(text: &str, shown: &str, request: bool) -> Result<Url, String> {
    let parsed = parts(text, request);
    parsed.map_err(|why| format!("parse {}: {why}", go_quote(if request { shown } else { text })))
}

fn parts(text: &str, request: bool) -> Result<Url, String> {
    if text.bytes().any(|b| b.is_ascii_control()) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text.is_empty() && request {
        return Err("empty url".to_owned());
    }
    let (scheme, rest) = scheme_of(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, query) = (scheme.to_lowercase(), query.to_owned());
    if !rest.starts_with('/') && (text == "*" || !scheme.is_empty()) {
        // What follows a scheme is nothing that has parts.
        let path = text.strip_prefix('*').map(|_| "*".to_owned()).unwrap_or_default();
        return Ok(Url { scheme, path, query, ..Url::default() });
    }
    if !rest.starts_with('/') && request {
        return Err("invalid URI for request".to_owned());
    }
    let authority = if scheme.is_empty() { !request && !rest.starts_with("///") } else { true };
    let (authority, path) = match rest.strip_prefix("//").filter(|_| authority) {
        Some(rest) => rest.find('/').map_or((rest, ""), |i| rest.split_at(i)),
        None => ("", rest),
    };
    let host = host_of(authority)?;
    Ok(Url { scheme, host, path: escaped(path)?, query })
}

/// The scheme, if there is one, and what follows.
fn scheme_of(text: &str) -> Result<(&str, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    match end.filter(|end| text[*end..].starts_with(':')) {
        Some(0) => Err("missing protocol scheme".to_owned()),
        Some(end) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => Ok((&text[..end], &text[end + 1..])),
        _ => Ok(("", text)),
    }
}

fn host_of(authority: &str) -> Result<String, String> {
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let odd = |b: u8| !b.is_ascii_alphanumeric() && !b"-._:~!$&'()*+,;=%@".contains(&b);
    if user.is_some_and(|user| user.bytes().any(odd)) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    let port = match host.strip_prefix('[') {
        Some(_) => &host[host.rfind(']').ok_or("missing ']' in host")? + 1..],
        None => host.rfind(':').map_or("", |colon| &host[colon..]),
    };
    if !is_port(port) {
        return Err(format!("invalid port {} after host", go_quote(port)));
    }
    unescaped(host, Part::Host)
}

/// Nothing, or a colon and digits, or the colon alone.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}

/// A path with what must not stand in it escaped.
fn escaped(path: &str) -> Result<String, String> {
    let plain = unescaped_bytes(path, Part::Path)?;
    if path.bytes().all(|b| b"!'()*[]%".contains(&b) || !Part::Path.escapes(b)) {
        return Ok(path.to_owned());
    }
    let mut out = String::new();
    for b in plain {
        if Part::Path.escapes(b) {
            out.push_str(&format!("%{b:02X}"));
        } else {
            out.push(char::from(b));
        }
    }
    Ok(out)
}

fn split_port(host: &str) -> (&str, &str) {
    let colon = host.rfind(':').filter(|colon| is_port(&host[*colon..]));
    let (name, port) = colon.map_or((host, ""), |colon| (&host[..colon], &host[colon + 1..]));
    (name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name), port)
}

fn unescaped(text: &str, part: Part) -> Result<String, String> {
    unescaped_bytes(text, part).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn unescaped_bytes(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let (mut out, bytes, mut i) = (Vec::new(), text.as_bytes(), 0);
    let hex = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    while let Some(b) = bytes.get(i) {
        i += 1;
        match b {
            b'%' => {
                let escape = String::from_utf8_lossy(&bytes[i - 1..bytes.len().min(i + 2)]);
                let wrong = || format!("invalid URL escape {}", go_quote(&escape));
                let (high, low) = hex(i).zip(hex(i + 1)).ok_or_else(wrong)?;
                // Of a host only what is not ASCII may be written so, and the mark itself.
                if part == Part::Host && high < 8 && escape != "%25" {
                    return Err(wrong());
                }
                out.push(high << 4 | low);
                i += 2;
            }
            b'+' if part == Part::Query => out.push(b' '),
            b if part == Part::Host && b.is_ascii() && part.escapes(*b) => {
                let odd = char::from(*b).to_string();
                return Err(format!("invalid character {} in host name", go_quote(&odd)));
            }
            b => out.push(*b),
        }
    }
    Ok(out)
}

fn url<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let wrong = |why| Error::new(format!("URL parse error during conversion from string: {why}"));
    read(args.text(0)?).map(Value::opaque).map_err(wrong)
}

fn is_url<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(check(args.text(0)?).is_ok())
}

fn own<'v>(args: &'v Args<'_, '_>) -> Result<&'v Url, Error> {
    args.inside::<Url>(0)
}

fn scheme<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(own(args)?.scheme.as_str())
}

fn host<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(own(args)?.host.as_str())
}

fn hostname<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(split_port(&own(args)?.host).0)
}

fn port<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(split_port(&own(args)?.host).1)
}

fn path<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(own(args)?.path.as_str())
}

fn query<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    // What cannot be read is left out.
    for pair in own(args)?.query.split('&').filter(|p| !p.is_empty() && !p.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Ok(key), Ok(value)) = (unescaped(key, Part::Query), unescaped(value, Part::Query)) {
            found.entry(key).or_default().push(Value::text(value));
        }
    }
    Ok(Value::map(found.into_iter().map(|(k, v)| (Text::Shared(k.into()), Value::list(v)))))
}
