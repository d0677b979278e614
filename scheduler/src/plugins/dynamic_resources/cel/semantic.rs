//! Semantic versions in expressions: `semver('1.2.3')` and what can be done with them. Build metadata does not count.

use std::any::Any;
use std::cmp::Ordering;

use cel::common::types::{CelBool, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use semver::Version;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A version.
#[derive(Debug, Clone)]
pub(super) struct Semver(pub(super) Version);

impl Val for Semver {
    fn get_type(&self) -> &Type {
        Self::cel_type()
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|o| o.0.cmp_precedence(&self.0) == Ordering::Equal)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Semver {}

/// Adds the functions.
pub(super) fn library(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    add_overload!(env, fn parse: (CelString) -> Result<Semver>, name = "semver")?;
    add_overload!(env, fn parse_loose: (CelString, CelBool) -> Result<Semver>, name = "semver")?;
    add_overload!(env, fn is_semver: (CelString) -> CelBool)?;
    add_overload!(env, fn is_semver_loose: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    add_member_overload!(env, fn major: (Semver) -> Result<CelInt>)?;
    add_member_overload!(env, fn minor: (Semver) -> Result<CelInt>)?;
    add_member_overload!(env, fn patch: (Semver) -> Result<CelInt>)?;
    add_member_overload!(env, fn compare_to: (Semver, Semver) -> CelInt)?;
    add_member_overload!(env, fn is_greater_than: (Semver, Semver) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Semver, Semver) -> CelBool)?;
    Ok(())
}

/// A version written with a `v`, with parts missing or with leading zeros, in its proper form.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let mut parts: Vec<&str> = numbers
        .split('.')
        .map(|p| match p.trim_start_matches('0') {
            "" if !p.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    while parts.len() < 3 && rest.is_empty() {
        parts.push("0");
    }
    parts.join(".") + rest
}

fn loose(text: &str, normalize: bool) -> Result<Semver, semver::Error> {
    if normalize { Version::parse(&normalized(text)) } else { Version::parse(text) }.map(Semver)
}

fn parse(text: &CelString<'_>) -> Result<Semver, ExecutionError> {
    loose(text.inner(), false).map_err(|e| ExecutionError::function_error("semver", e))
}

fn parse_loose(text: &CelString<'_>, normalize: &CelBool) -> Result<Semver, ExecutionError> {
    loose(text.inner(), *normalize.inner()).map_err(|e| ExecutionError::function_error("semver", e))
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    loose(text.inner(), false).is_ok().into()
}

fn is_semver_loose(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
    loose(text.inner(), *normalize.inner()).is_ok().into()
}

fn number(part: u64) -> Result<CelInt, ExecutionError> {
    i64::try_from(part).map(CelInt::from).map_err(|e| ExecutionError::function_error("semver", e))
}

fn major(v: &Semver) -> Result<CelInt, ExecutionError> {
    number(v.0.major)
}

fn minor(v: &Semver) -> Result<CelInt, ExecutionError> {
    number(v.0.minor)
}

fn patch(v: &Semver) -> Result<CelInt, ExecutionError> {
    number(v.0.patch)
}

fn compare_to(a: &Semver, b: &Semver) -> CelInt {
    (a.0.cmp_precedence(&b.0) as i64).into()
}

fn is_greater_than(a: &Semver, b: &Semver) -> CelBool {
    (a.0.cmp_precedence(&b.0) == Ordering::Greater).into()
}

fn is_less_than(a: &Semver, b: &Semver) -> CelBool {
    (a.0.cmp_precedence(&b.0) == Ordering::Less).into()
}
