//! Regular expressions: `matches`, `find`, `findAll`. Time is linear in the text, whatever the pattern.

use std::borrow::Cow;

use regex::Regex;

use super::{Args, Entry, ONE, bool, function, method, text};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};

pub(super) const TABLE: &[Entry] = &[
    function("matches", "string, string", "bool", ONE, matches),
    method("matches", "string, string", "bool", Cost::Matches, matches),
    method("find", "string, string", "string", Cost::Find, find),
    method("findAll", "string, string", "list(string)", Cost::Find, find_all),
    method("findAll", "string, string, int", "list(string)", Cost::Find, find_all),
];

fn compiled<'r>(args: &mut Args<'r, '_>) -> Result<Cow<'r, Regex>, Error> {
    if let Some(known) = args.pattern {
        return Ok(Cow::Borrowed(known));
    }
    let text = args.text(1)?.to_owned();
    args.tools.pattern(&text).map(Cow::Owned)
}

fn matches<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let pattern = compiled(args)?;
    bool(pattern.is_match(args.text(0)?))
}

fn find<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let pattern = compiled(args)?;
    text(pattern.find(args.text(0)?).map_or("", |m| m.as_str()))
}

fn find_all<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let pattern = compiled(args)?;
    let limit = if args.len() > 2 { usize::try_from(args.int(2)?).unwrap_or(usize::MAX) } else { usize::MAX };
    let found = pattern.find_iter(args.text(0)?).take(limit).map(|m| Value::text(m.as_str()));
    Ok(Value::list(found.collect::<Vec<_>>()))
}
