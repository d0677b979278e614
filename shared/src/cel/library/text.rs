//! Functions on texts. Places count characters, not bytes.

use super::{Args, Entry, ONE, bool, function, int, method, text};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};

pub(super) const TABLE: &[Entry] = &[
    method("contains", "string, string", "bool", Cost::Contains, contains),
    method("startsWith", "string, string", "bool", Cost::Prefix, starts_with),
    method("endsWith", "string, string", "bool", Cost::Prefix, ends_with),
    method("charAt", "string, int", "string", ONE, char_at),
    method("indexOf", "string, string", "int", Cost::Walk, index_of),
    method("indexOf", "string, string, int", "int", Cost::Walk, index_of),
    method("lastIndexOf", "string, string", "int", Cost::Walk, last_index_of),
    method("lastIndexOf", "string, string, int", "int", Cost::Walk, last_index_of),
    method("lowerAscii", "string", "string", Cost::Keep, lower),
    method("upperAscii", "string", "string", Cost::Keep, upper),
    method("trim", "string", "string", Cost::Keep, trim),
    method("substring", "string, int", "string", Cost::Keep, substring),
    method("substring", "string, int, int", "string", Cost::Keep, substring),
    method("replace", "string, string, string", "string", Cost::Replace, replace),
    method("replace", "string, string, string, int", "string", Cost::Replace, replace),
    method("split", "string, string", "list(string)", Cost::Split, split),
    method("split", "string, string, int", "list(string)", Cost::Split, split),
    method("join", "list(string)", "string", Cost::Join, join),
    method("join", "list(string), string", "string", Cost::Join, join),
    function("strings.quote", "string", "string", Cost::Quote, quote),
];

fn contains<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(args.text(0)?.contains(args.text(1)?))
}

fn starts_with<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(args.text(0)?.starts_with(args.text(1)?))
}

fn ends_with<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(args.text(0)?.ends_with(args.text(1)?))
}

fn out_of_range(n: i64) -> Error {
    Error::new(format!("index out of range: {n}"))
}

/// The byte at which a character begins; the place after the last is one too.
fn place(text: &str, n: i64) -> Result<usize, Error> {
    let wanted = usize::try_from(n).map_err(|_| out_of_range(n))?;
    text.char_indices().map(|(i, _)| i).chain([text.len()]).nth(wanted).ok_or_else(|| out_of_range(n))
}

fn char_at<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (s, n) = (args.text(0)?, args.int(1)?);
    let rest = &s[place(s, n)?..];
    text(rest.chars().next().map(String::from).unwrap_or_default())
}

/// The place a search begins at; none behind the end, where there is nothing to find.
fn begin(text: &str, n: i64) -> Result<Option<usize>, Error> {
    match usize::try_from(n) {
        Ok(wanted) => Ok(text.char_indices().nth(wanted).map(|(at, _)| at)),
        Err(_) => Err(out_of_range(n)),
    }
}

fn counted<'a>(text: &str, bytes: Option<usize>) -> Answer<'a> {
    int(bytes.map_or(-1, |b| i64::try_from(text[..b].chars().count()).unwrap_or(i64::MAX)))
}

fn index_of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (s, wanted) = (args.text(0)?, args.text(1)?);
    let from = if args.len() > 2 { args.int(2)? } else { 0 };
    if wanted.is_empty() {
        return int(from);
    }
    counted(s, begin(s, from)?.and_then(|from| s[from..].find(wanted).map(|i| i + from)))
}

fn last_index_of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (s, wanted) = (args.text(0)?, args.text(1)?);
    if args.len() <= 2 {
        return counted(s, s.rfind(wanted));
    }
    let last = args.int(2)?;
    if wanted.is_empty() {
        return int(last);
    }
    let Some(last) = begin(s, last)? else { return int(-1) };
    // What begins there at the latest has its end by then.
    let end = s.floor_char_boundary(last.saturating_add(wanted.len()));
    counted(s, s[..end].rfind(wanted))
}

fn lower<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(args.text(0)?.to_ascii_lowercase())
}

fn upper<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(args.text(0)?.to_ascii_uppercase())
}

fn trim<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    text(args.text(0)?.trim())
}

fn substring<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (s, start) = (args.text(0)?, args.int(1)?);
    if args.len() <= 2 {
        return text(&s[place(s, start)?..]);
    }
    let end = args.int(2)?;
    if start > end {
        return Err(Error::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    text(&s[place(s, start)?..place(s, end)?])
}

fn replace<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (s, old, new) = (args.text(0)?, args.text(1)?, args.text(2)?);
    let limit = if args.len() > 3 { args.int(3)? } else { -1 };
    // The result is no longer than what the cost limit lets an expression make by hand.
    let parts = if old.is_empty() { s.chars().count() + 1 } else { s.len() / old.len() };
    let parts = usize::try_from(limit).map_or(parts, |l| parts.min(l));
    args_fuel(parts.saturating_mul(new.len()))?;
    text(usize::try_from(limit).map_or_else(|_| s.replace(old, new), |n| s.replacen(old, new, n)))
}

/// Bytes one function may make.
const MAX_MADE: usize = 10 << 20;

fn args_fuel(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_MADE { Err(Error::Cancelled) } else { Ok(()) }
}

fn split<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (s, by) = (args.text(0)?, args.text(1)?);
    let limit = if args.len() > 2 { args.int(2)? } else { -1 };
    let limit = match limit {
        0 => return Ok(Value::list([])),
        n => usize::try_from(n).unwrap_or(usize::MAX),
    };
    let own = |parts: &mut dyn Iterator<Item = &str>| Ok(Value::list(parts.map(Value::text)));
    if !by.is_empty() {
        return own(&mut s.splitn(limit, by));
    }
    // Between all characters.
    let mut places: Vec<usize> = s.char_indices().map(|(i, _)| i).take(limit).collect();
    places.push(s.len());
    own(&mut places.windows(2).map(|w| &s[w[0]..w[1]]))
}

fn join<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let items = args.list(0)?;
    let by = if args.len() > 1 { args.text(1)? } else { "" };
    let (mut made, mut first) = (String::new(), true);
    for item in items.iter() {
        let Value::String(s) = item else { return Err(Error::overload()) };
        if !std::mem::take(&mut first) {
            made.push_str(by);
        }
        made.push_str(s);
        args_fuel(made.len())?;
    }
    text(made)
}

/// `strings.quote`: writes a text as a literal.
fn quote<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let mut out = String::from("\"");
    for c in args.text(0)?.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            plain => out.push(plain),
        }
    }
    out.push('"');
    text(out)
}
