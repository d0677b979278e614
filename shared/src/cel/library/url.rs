//! `url`, `isURL` and the parts of one.

use std::borrow::Cow;

use super::{Args, Entry, ONE, bool, function, method, opaque, text};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Text, Value};
use crate::url::{Url, UrlError, values};

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

/// Checks a text like Go's `url.ParseRequestURI`: an absolute URI or an absolute path is valid.
///
/// # Errors
/// Its words.
pub(super) fn check(text: &str) -> Result<(), UrlError> {
    Url::parse_request(text.as_bytes()).map(drop)
}

/// Parses a text that passes [`check`] like Go's `url.Parse`.
fn read(text: &str) -> Result<Url, UrlError> {
    check(text).and_then(|()| Url::parse(text.as_bytes()))
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

fn plain(part: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(part)
}

fn scheme<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(own(args)?.scheme.as_str())
}

fn host<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(plain(&own(args)?.host))
}

fn hostname<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(plain(own(args)?.hostname()))
}

fn port<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(plain(own(args)?.port()))
}

fn path<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(plain(&own(args)?.escaped_path()))
}

fn query<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let word = |part: Vec<u8>| plain(&part).into_owned();
    let found = values(&own(args)?.query).into_iter().map(|(name, all)| {
        let all = all.into_iter().map(|value| Value::text(word(value)));
        (Text::Shared(word(name).into()), Value::list(all))
    });
    Ok(Value::map(found))
}
