//! `url`, `isURL` and the parts of one.

use std::collections::BTreeMap;

use super::{Args, Entry, ONE, bool, function, method, opaque, text};
use crate::cel::Error;
use crate::cel::cost::{CHARACTER, Cost};
use crate::cel::value::{Answer, Text, Value};

#[derive(Debug, PartialEq, Eq, Default)]
struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
}

opaque!(Url, "kubernetes.URL");

pub(super) const TABLE: &[Entry] = &[
    function("url", "string", "kubernetes.URL", Cost::Scan(0, CHARACTER), url),
    function("isURL", "string", "bool", ONE, is_url),
    method("getScheme", "kubernetes.URL", "string", ONE, scheme),
    method("getHost", "kubernetes.URL", "string", ONE, host),
    method("getHostname", "kubernetes.URL", "string", ONE, hostname),
    method("getPort", "kubernetes.URL", "string", ONE, port),
    method("getEscapedPath", "kubernetes.URL", "string", ONE, path),
    method("getQuery", "kubernetes.URL", "map(string, list(string))", ONE, query),
];

/// An absolute URI or an absolute path, as Go's `url.ParseRequestURI` takes them.
fn parse(text: &str) -> Result<Url, String> {
    let bad = |why: &str| format!("URL parse error during conversion from string: parse {text:?}: {why}");
    if text.is_empty() || text.chars().any(|c| c.is_control()) {
        return Err(bad("empty url"));
    }
    let (head, query) = text.split_once('?').unwrap_or((text, ""));
    if head.starts_with('/') {
        let path = escaped(head).ok_or_else(|| bad("invalid URL escape"))?;
        return Ok(Url { path, query: query.to_owned(), ..Url::default() });
    }
    let (scheme, rest) = head.split_once(':').ok_or_else(|| bad("invalid URI for request"))?;
    let first = scheme.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    if !first || !scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) {
        return Err(bad("invalid URI for request"));
    }
    let Some(rest) = rest.strip_prefix("//") else {
        return if rest.starts_with('/') {
            Ok(Url { scheme: scheme.to_lowercase(), path: rest.to_owned(), query: query.to_owned(), ..Url::default() })
        } else {
            Err(bad("invalid URI for request"))
        };
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |i| rest.split_at(i));
    let host = authority.rsplit('@').next().unwrap_or("");
    if host.contains([' ', '<', '>', '"', '%']) {
        return Err(bad("invalid character in host name"));
    }
    if split_port(host).1.chars().any(|c| !c.is_ascii_digit()) {
        return Err(bad("invalid port after host"));
    }
    let path = escaped(path).ok_or_else(|| bad("invalid URL escape"))?;
    Ok(Url { scheme: scheme.to_lowercase(), host: host.to_owned(), path, query: query.to_owned() })
}

/// A path with what must not stand in it escaped; `None` for broken escapes.
fn escaped(path: &str) -> Option<String> {
    let mut out = String::new();
    let bytes = path.as_bytes();
    for (i, b) in bytes.iter().enumerate() {
        match b {
            b'%' => {
                let digits = bytes.get(i + 1..i + 3)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                out.push('%');
            }
            b if b.is_ascii_alphanumeric() || b"-_.~/$&+,:;=@!*'()[]".contains(b) => out.push(char::from(*b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    Some(out)
}

fn split_port(host: &str) -> (&str, &str) {
    if let Some(rest) = host.strip_prefix('[') {
        let (name, tail) = rest.split_once(']').unwrap_or((rest, ""));
        return (name, tail.trim_start_matches(':'));
    }
    host.rsplit_once(':').unwrap_or((host, ""))
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let hex = |n: usize| bytes.get(n).and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        match (bytes[i], hex(i + 1), hex(i + 2)) {
            (b'%', Some(h), Some(l)) => {
                out.push(h << 4 | l);
                i += 2;
            }
            (b'+', ..) => out.push(b' '),
            (b, ..) => out.push(b),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn url<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    parse(args.text(0)?).map(Value::opaque).map_err(Error::new)
}

fn is_url<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(parse(args.text(0)?).is_ok())
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
    for pair in own(args)?.query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        found.entry(unescaped(key)).or_default().push(Value::text(unescaped(value)));
    }
    Ok(Value::map(found.into_iter().map(|(k, v)| (Text::Shared(k.into()), Value::list(v)))))
}

/// Whether a text is an absolute URI or an absolute path.
pub(super) fn is_uri(text: &str) -> bool {
    parse(text).is_ok()
}
