//! `semver`, `isSemver`: semantic versions.

use std::cmp::Ordering;

use super::{Args, Entry, ONE, bool, function, int, method, opaque};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};
use crate::flags::{NumberError, NumberProblem};

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

/// Errors of reading a version, in the words of `blang/semver`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SemverError {
    /// No text.
    #[error("Version string empty")]
    Empty,
    /// Fewer than three numbers.
    #[error("No Major.Minor.Patch elements found")]
    NoElements,
    /// Something follows a version of fewer than three numbers.
    #[error("short version cannot contain PreRelease/Build meta data")]
    Short,
    /// A number begins with a zero.
    #[error("{name} number must not contain leading zeroes {text:?}")]
    LeadingZeroes {
        /// `Major`, `Minor` or `Patch`.
        name: &'static str,
        /// The number.
        text: String,
    },
    /// A number has other characters than digits.
    #[error("Invalid character(s) found in {} number {text:?}", .name.to_lowercase())]
    Digits {
        /// `Major`, `Minor` or `Patch`.
        name: &'static str,
        /// The number.
        text: String,
    },
    /// There is no number, or it is too large.
    #[error(transparent)]
    Number(#[from] NumberError),
    /// A part of the pre-release is empty.
    #[error("Prerelease is empty")]
    EmptyPrerelease,
    /// A part of the pre-release has characters that it must not have.
    #[error("Invalid character(s) found in prerelease {0:?}")]
    Prerelease(String),
    /// A number of the pre-release begins with a zero.
    #[error("Numeric PreRelease version must not contain leading zeroes {0:?}")]
    PrereleaseZeroes(String),
    /// A part of the build is empty.
    #[error("Build meta data is empty")]
    EmptyBuild,
    /// A part of the build has characters that it must not have.
    #[error("Invalid character(s) found in build meta data {0:?}")]
    Build(String),
}

/// A version as a value.
///
/// # Errors
/// Text that is no version.
pub fn semver(text: &str) -> Result<Value<'static>, SemverError> {
    parse(text).map(Value::opaque)
}

fn number(text: &str, name: &'static str) -> Result<u64, SemverError> {
    if text.len() > 1 && text.starts_with('0') {
        return Err(SemverError::LeadingZeroes { name, text: text.to_owned() });
    }
    if text.is_empty() {
        return Err(NumberError::new("ParseUint", text, NumberProblem::Syntax).into());
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(SemverError::Digits { name, text: text.to_owned() });
    }
    text.parse().map_err(|_| NumberError::new("ParseUint", text, NumberProblem::Range).into())
}

fn parse(text: &str) -> Result<Version, SemverError> {
    if text.is_empty() {
        return Err(SemverError::Empty);
    }
    let (rest, build) = text.split_once('+').map_or((text, None), |(r, b)| (r, Some(b)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(c, p)| (c, Some(p)));
    let parts: Vec<&str> = core.splitn(3, '.').collect();
    let [major, minor, patch] = parts.as_slice() else {
        return Err(SemverError::NoElements);
    };
    let pre: Vec<String> = pre.map(|p| p.split('.').map(str::to_owned).collect()).unwrap_or_default();
    let bad = |p: &str| p.is_empty() || !p.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    for part in &pre {
        if part.is_empty() {
            return Err(SemverError::EmptyPrerelease);
        }
        if bad(part) {
            return Err(SemverError::Prerelease(part.clone()));
        }
        if part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(SemverError::PrereleaseZeroes(part.clone()));
        }
    }
    for part in build.into_iter().flat_map(|b| b.split('.')) {
        if part.is_empty() {
            return Err(SemverError::EmptyBuild);
        }
        if bad(part) {
            return Err(SemverError::Build(part.to_owned()));
        }
    }
    Ok(Version { numbers: [number(major, "Major")?, number(minor, "Minor")?, number(patch, "Patch")?], pre })
}

/// `v1.2` is `1.2.0` when the caller asks for leniency.
fn normalized(text: &str) -> Result<String, SemverError> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(plain).collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err(SemverError::Short);
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
