//! Values that may be missing.

use std::sync::Arc;

use super::{Args, Entry, ONE, bool, function, method};
use crate::cel::Error;
use crate::cel::value::{Answer, Value};

pub(super) const TABLE: &[Entry] = &[
    function("optional.of", "A", "optional(A)", ONE, of),
    function("optional.ofNonZeroValue", "A", "optional(A)", ONE, of_non_zero),
    function("optional.none", "", "optional(A)", ONE, none),
    function("optional.unwrap", "list(optional(A))", "list(A)", ONE, unwrap),
    method("unwrapOpt", "list(optional(A))", "list(A)", ONE, unwrap),
    method("hasValue", "optional(A)", "bool", ONE, has_value),
    method("value", "optional(A)", "A", ONE, value),
    method("or", "optional(A), optional(A)", "optional(A)", ONE, or),
    method("orValue", "optional(A), A", "A", ONE, or_value),
];

fn of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::some(args.take(0)))
}

/// `optional.ofNonZeroValue`: no value for an empty or zero one.
fn of_non_zero<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let value = args.take(0);
    let zero = match &value {
        Value::Null | Value::Bool(false) | Value::Int(0) | Value::UInt(0) | Value::Duration(0) => true,
        Value::Double(n) => *n == 0.0,
        other => other.size() == Some(0),
    };
    Ok(if zero { Value::Optional(None) } else { Value::some(value) })
}

fn none<'a>(_: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::Optional(None))
}

fn unwrap<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let mut out = Vec::new();
    for item in args.list(0)?.iter() {
        match item {
            Value::Optional(inner) => out.extend(inner.as_deref().cloned()),
            _ => return Err(Error::overload()),
        }
    }
    Ok(Value::List(Arc::new(out)))
}

fn inner<'v, 'a>(args: &'v Args<'_, 'a>) -> Result<Option<&'v Value<'a>>, Error> {
    match args.get(0)? {
        Value::Optional(inner) => Ok(inner.as_deref()),
        _ => Err(Error::overload()),
    }
}

fn has_value<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(inner(args)?.is_some())
}

fn value<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    inner(args)?.cloned().ok_or_else(|| Error::new("optional.none() dereference"))
}

fn or<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let first = inner(args)?.is_some();
    Ok(args.take(usize::from(!first)))
}

fn or_value<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match inner(args)? {
        Some(value) => Ok(value.clone()),
        None => Ok(args.take(1)),
    }
}
