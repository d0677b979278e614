//! Conversions between types.

use super::{Args, Entry, ONE, bool, function, int, text, time};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::printed;
use crate::cel::value::{Answer, Text, Value};
use crate::flags::parse_bool;

pub(super) const TABLE: &[Entry] = &[
    function("int", "int", "int", ONE, to_int),
    function("int", "uint", "int", ONE, to_int),
    function("int", "double", "int", ONE, to_int),
    function("int", "string", "int", ONE, to_int),
    function("int", "timestamp", "int", ONE, to_int),
    function("int", "duration", "int", ONE, to_int),
    function("uint", "uint", "uint", ONE, to_uint),
    function("uint", "int", "uint", ONE, to_uint),
    function("uint", "double", "uint", ONE, to_uint),
    function("uint", "string", "uint", ONE, to_uint),
    function("double", "double", "double", ONE, to_double),
    function("double", "int", "double", ONE, to_double),
    function("double", "uint", "double", ONE, to_double),
    function("double", "string", "double", ONE, to_double),
    function("bool", "bool", "bool", ONE, to_bool),
    function("bool", "string", "bool", ONE, to_bool),
    function("string", "string", "string", ONE, to_text),
    function("string", "bool", "string", ONE, to_text),
    function("string", "int", "string", ONE, to_text),
    function("string", "uint", "string", ONE, to_text),
    function("string", "double", "string", ONE, to_text),
    function("string", "bytes", "string", Cost::Decode, to_text),
    function("string", "timestamp", "string", ONE, to_text),
    function("string", "duration", "string", ONE, to_text),
    function("bytes", "bytes", "bytes", ONE, to_bytes),
    function("bytes", "string", "bytes", Cost::Encode, to_bytes),
    function("dyn", "A", "dyn", ONE, to_dyn),
    function("type", "A", "type(A)", ONE, type_of),
];

fn range(of: &str) -> Error {
    Error::new(format!("{of} overflow"))
}

/// A text is nothing of that type.
pub(super) fn unreadable(of: &str) -> Error {
    Error::new(format!("type conversion error from 'string' to '{of}'"))
}

/// The first fraction that is too large for an integer; its opposite is too small, as upstream has it.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

fn to_int<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Int(n) => int(*n),
        Value::UInt(n) => i64::try_from(*n).map(Value::Int).map_err(|_| range("integer")),
        #[expect(clippy::cast_possible_truncation, reason = "the guard holds the range")]
        Value::Double(n) if *n > -TWO_TO_63 && *n < TWO_TO_63 => int(*n as i64),
        Value::Double(_) => Err(range("integer")),
        Value::String(s) => s.parse().map(Value::Int).map_err(|_| unreadable("int")),
        Value::Timestamp(t) => int(time::seconds_of(t)),
        Value::Duration(n) => int(*n),
        _ => Err(Error::overload()),
    }
}

fn to_uint<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::UInt(n) => Ok(Value::UInt(*n)),
        Value::Int(n) => u64::try_from(*n).map(Value::UInt).map_err(|_| range("unsigned integer")),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the guard holds the range")]
        Value::Double(n) if *n >= 0.0 && *n < 2.0 * TWO_TO_63 => Ok(Value::UInt(*n as u64)),
        Value::Double(_) => Err(range("unsigned integer")),
        // What has no sign has none of either kind.
        Value::String(s) => {
            let read = Some(s).filter(|s| !s.starts_with('+')).and_then(|s| s.parse().ok());
            read.map(Value::UInt).ok_or_else(|| unreadable("uint"))
        }
        _ => Err(Error::overload()),
    }
}

fn to_double<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    #[expect(clippy::cast_precision_loss, reason = "CEL's double() rounds")]
    match args.get(0)? {
        Value::Double(n) => Ok(Value::Double(*n)),
        Value::Int(n) => Ok(Value::Double(*n as f64)),
        Value::UInt(n) => Ok(Value::Double(*n as f64)),
        Value::String(s) => s.parse().map(Value::Double).map_err(|_| unreadable("double")),
        _ => Err(Error::overload()),
    }
}

fn to_bool<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Bool(b) => bool(*b),
        Value::String(s) => parse_bool(s).map_or_else(|_| Err(unreadable("bool")), bool),
        _ => Err(Error::overload()),
    }
}

/// The powers of ten of fractions that are printed without one.
const PLAIN: std::ops::Range<i32> = -4..6;

/// A fraction as Go prints it: as short as can be, with an exponent when it is far from 1.
pub(super) fn print_double(n: f64) -> String {
    if n.is_nan() {
        return "NaN".to_owned();
    }
    if n.is_infinite() {
        return if n > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let shown = format!("{n:e}");
    let (digits, power) = shown.split_once('e').unwrap_or((&shown, "0"));
    if power.parse().is_ok_and(|power: i32| PLAIN.contains(&power)) {
        return n.to_string();
    }
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |p| ('-', p));
    format!("{digits}e{sign}{power:0>2}")
}

fn to_text<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.take(0) {
        Value::String(s) => Ok(Value::String(s)),
        Value::Bool(b) => text(b.to_string()),
        Value::Int(n) => text(n.to_string()),
        Value::UInt(n) => text(n.to_string()),
        Value::Double(n) => text(print_double(n)),
        Value::Bytes(b) => match std::str::from_utf8(&b) {
            Ok(s) => text(s),
            Err(_) => Err(Error::new("invalid UTF-8 in bytes, cannot convert to string")),
        },
        Value::Timestamp(t) => text(printed::print_time(&t)),
        Value::Duration(n) => text(printed::print_span(n)),
        _ => Err(Error::overload()),
    }
}

fn to_bytes<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.take(0) {
        Value::Bytes(b) => Ok(Value::Bytes(b)),
        Value::String(s) => Ok(Value::Bytes(s.as_bytes().into())),
        _ => Err(Error::overload()),
    }
}

fn to_dyn<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(args.take(0))
}

fn type_of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::Type(Text::Shared(args.get(0)?.type_name().into())))
}
