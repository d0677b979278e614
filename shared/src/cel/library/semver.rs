//! `semver`, `isSemver`: semantic versions.

use std::cmp::Ordering;

use super::{Args, Entry, ONE, bool, function, int, method, opaque};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};

/// A version; what it was built from does not count.
#[derive(Debug)]
pub(super) struct Version {
    numbers: [u64; 3],
    pre: Vec<String>,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers && self.pre == other.pre
    }
}

opaque!(Version, "kubernetes.Semver");

const PARSE: Cost = Cost::Scan(1.0);

pub(super) const TABLE: &[Entry] = &[
    function("semver", "string", "kubernetes.Semver", PARSE, make),
    function("semver", "string, bool", "kubernetes.Semver", PARSE, make),
    function("isSemver", "string", "bool", PARSE, is_semver),
    function("isSemver", "string, bool", "bool", PARSE, is_semver),
    method("major", "kubernetes.Semver", "int", ONE, major),
    method("minor", "kubernetes.Semver", "int", ONE, minor),
    method("patch", "kubernetes.Semver", "int", ONE, patch),
];

/// A version as a value.
pub fn semver(text: &str) -> Result<Value<'static>, String> {
    parse(text).map(Value::opaque)
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{what} number must not contain leading zeroes {text:?}"));
    }
    if text.is_empty() {
        return Err("strconv.ParseUint: parsing \"\": invalid syntax".to_owned());
    }
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(format!("Invalid character(s) found in {} number {text:?}", what.to_lowercase()));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}

fn parse(text: &str) -> Result<Version, String> {
    if text.is_empty() {
        return Err("Version string empty".to_owned());
    }
    let (rest, build) = text.split_once('+').map_or((text, None), |(r, b)| (r, Some(b)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(c, p)| (c, Some(p)));
    let parts: Vec<&str> = core.splitn(3, '.').collect();
    let [major, minor, patch] = parts.as_slice() else {
        return Err("No Major.Minor.Patch elements found".to_owned());
    };
    let pre: Vec<String> = pre.map(|p| p.split('.').map(str::to_owned).collect()).unwrap_or_default();
    let bad = |p: &str| p.is_empty() || !p.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    for part in &pre {
        if part.is_empty() {
            return Err("Prerelease is empty".to_owned());
        }
        if bad(part) {
            return Err(format!("Invalid character(s) found in prerelease {part:?}"));
        }
        if part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
        }
    }
    for part in build.into_iter().flat_map(|b| b.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".to_owned());
        }
        if bad(part) {
            return Err(format!("Invalid character(s) found in build meta data {part:?}"));
        }
    }
    Ok(Version { numbers: [number(major, "Major")?, number(minor, "Minor")?, number(patch, "Patch")?], pre })
}

/// `v1.2` is `1.2.0` when the caller asks for leniency.
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(plain).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

/// A number without the zeros before it.
fn plain(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|c: char| c.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") }
}

fn read(args: &Args<'_, '_>) -> Result<Version, Error> {
    let source = args.text(0)?;
    let lenient = args.len() > 1 && matches!(args.get(1)?, Value::Bool(true));
    if lenient { normalized(source).and_then(|text| parse(&text)) } else { parse(source) }.map_err(Error::new)
}

fn make<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    read(args).map(Value::opaque)
}

fn is_semver<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(read(args).is_ok())
}

fn part<'a>(args: &Args<'_, 'a>, i: usize) -> Answer<'a> {
    int(i64::try_from(args.inside::<Version>(0)?.numbers[i]).unwrap_or(i64::MAX))
}

fn major<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 0)
}

fn minor<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 1)
}

fn patch<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 2)
}

/// The order of two versions.
pub(super) fn order(a: &Version, b: &Version) -> Result<Ordering, Error> {
    Ok(a.numbers.cmp(&b.numbers).then_with(|| match (a.pre.is_empty(), b.pre.is_empty()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => pre(&a.pre, &b.pre),
    }))
}

fn pre(a: &[String], b: &[String]) -> Ordering {
    for (x, y) in a.iter().zip(b) {
        let order = match (x.parse::<u64>(), y.parse::<u64>()) {
            (Ok(x), Ok(y)) => x.cmp(&y),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => x.cmp(y),
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}
