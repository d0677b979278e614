//! `semver`, `isSemver`: semantic versions.

use std::cmp::Ordering;

use ::cel::Value;
use ::cel::objects::Opaque;

use super::{ANY, Answer, Entry, TEXT, entry, inside, opaque, overload, text};

#[derive(Debug, PartialEq, Eq, Clone)]
struct Version {
    numbers: [u64; 3],
    pre: Vec<String>,
    build: String,
}

impl Opaque for Version {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Semver"
    }
}

pub(super) const TABLE: &[Entry] = &[
    entry!("semver", false, [TEXT], semver),
    entry!("semver", false, [TEXT, super::Kind::Bool], semver),
    entry!("isSemver", false, [TEXT], is_semver),
    entry!("isSemver", false, [TEXT, super::Kind::Bool], is_semver),
    entry!("major", true, [ANY], major),
    entry!("minor", true, [ANY], minor),
    entry!("patch", true, [ANY], patch),
];

fn number(text: &str, what: &str) -> Result<u64, String> {
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{what} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| format!("Invalid character(s) found in {what} number {text:?}"))
}

fn parse(text: &str) -> Result<Version, String> {
    let (rest, build) = text.split_once('+').unwrap_or((text, ""));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(c, p)| (c, Some(p)));
    let parts: Vec<&str> = core.split('.').collect();
    let [major, minor, patch] = parts.as_slice() else {
        return Err("No Major.Minor.Patch elements found".to_owned());
    };
    let pre: Vec<String> = pre.map(|p| p.split('.').map(str::to_owned).collect()).unwrap_or_default();
    let bad = |p: &String| p.is_empty() || !p.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if let Some(p) = pre.iter().find(|p| bad(p)) {
        return Err(format!("Invalid character(s) found in prerelease {p:?}"));
    }
    Ok(Version {
        numbers: [number(major, "Major")?, number(minor, "Minor")?, number(patch, "Patch")?],
        pre,
        build: build.to_owned(),
    })
}

/// `v1.2` is `1.2.0` when the caller asks for leniency.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (core, rest) = text.split_at(end);
    let mut parts: Vec<&str> = core
        .split('.')
        .map(|p| match p.trim_start_matches('0') {
            "" => "0",
            t => t,
        })
        .collect();
    while parts.len() < 3 {
        parts.push("0");
    }
    format!("{}{rest}", parts.join("."))
}

fn read(args: &[Value]) -> Result<Version, String> {
    let source = text(args, 0)?;
    if matches!(args.get(1), Some(Value::Bool(true))) { parse(&normalized(source)) } else { parse(source) }
}

fn semver(args: &[Value]) -> Answer {
    read(args).map(opaque)
}

fn is_semver(args: &[Value]) -> Answer {
    Ok(Value::Bool(read(args).is_ok()))
}

fn part(args: &[Value], i: usize) -> Answer {
    let version = inside::<Version>(args, 0).ok_or_else(|| overload("major"))?;
    i64::try_from(version.numbers[i]).map(Value::Int).map_err(|e| e.to_string())
}

fn major(args: &[Value]) -> Answer {
    part(args, 0)
}

fn minor(args: &[Value]) -> Answer {
    part(args, 1)
}

fn patch(args: &[Value]) -> Answer {
    part(args, 2)
}

/// The order of two versions; `None` when they are something else.
pub(super) fn compare(args: &[Value]) -> Option<Ordering> {
    let (a, b) = (inside::<Version>(args, 0)?, inside::<Version>(args, 1)?);
    Some(a.numbers.cmp(&b.numbers).then_with(|| match (a.pre.is_empty(), b.pre.is_empty()) {
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
