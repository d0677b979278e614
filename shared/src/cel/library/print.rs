//! `format`: texts with values in them.

use super::convert::print_double;
use super::{Args, Entry, method, text, time};
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};
use crate::cel::{Error, Fuel};

pub(super) const TABLE: &[Entry] = &[method("format", "string, list(dyn)", "string", Cost::Format, format)];

/// Digits behind the point when none are asked for, and at most.
const DIGITS: usize = 6;
const MAX_DIGITS: usize = 1_000;

fn format<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (values, mut made) = (args.list(1)?, String::new());
    let (template, mut next) = (args.take(0), 0);
    let Value::String(template) = template else { return Err(Error::overload()) };
    let mut chars = template.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            made.push(c);
            continue;
        }
        let mut digits = None;
        if chars.peek() == Some(&'.') {
            chars.next();
            let mut number = String::new();
            while let Some(d) = chars.next_if(char::is_ascii_digit) {
                number.push(d);
            }
            digits =
                Some(number.parse::<usize>().map_err(|_| {
                    Error::new("error while parsing precision: could not find end of precision specifier")
                })?);
        }
        let clause = chars.next().ok_or_else(|| Error::new("unexpected end of string"))?;
        if clause == '%' {
            made.push('%');
            continue;
        }
        let value = values.get(next).ok_or_else(|| Error::new(format!("index {next} out of range")))?;
        next += 1;
        made.push_str(&one(clause, value, digits, &mut args.tools.fuel)?);
        args.tools.fuel.burn(1)?;
    }
    text(made)
}

fn wrong(clause: &str, value: &Value<'_>) -> Error {
    Error::new(format!("error during formatting: {clause} clause cannot be used on {}", value.type_name()))
}

fn one(clause: char, value: &Value<'_>, digits: Option<usize>, fuel: &mut Fuel) -> Result<String, Error> {
    let digits = digits.unwrap_or(DIGITS).min(MAX_DIGITS);
    match (clause, value) {
        ('s', v) => shown(v, fuel),
        ('d', Value::Int(n)) => Ok(n.to_string()),
        ('d', Value::UInt(n)) => Ok(n.to_string()),
        ('f' | 'e' | 'd', Value::Double(n)) if !n.is_finite() => {
            Ok(print_double(*n).replace("+Inf", "Infinity").replace("-Inf", "-Infinity"))
        }
        ('f', v) => number(v).map(|n| format!("{n:.digits$}")).ok_or_else(|| wrong("fixed-point", v)),
        ('e', v) => {
            let n = number(v).ok_or_else(|| wrong("scientific notation", v))?;
            let shown = format!("{n:.digits$e}");
            let (head, power) = shown.split_once('e').unwrap_or((&shown, "0"));
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |p| ('-', p));
            Ok(format!("{head}e{sign}{power:0>2}"))
        }
        ('b', Value::Bool(b)) => Ok(u8::from(*b).to_string()),
        ('b', v) => signed(v, |n| format!("{n:b}")).ok_or_else(|| wrong("binary", v)),
        ('o', v) => signed(v, |n| format!("{n:o}")).ok_or_else(|| wrong("octal", v)),
        ('x', Value::String(s)) => Ok(hex(s.as_bytes(), false)),
        ('X', Value::String(s)) => Ok(hex(s.as_bytes(), true)),
        ('x', Value::Bytes(b)) => Ok(hex(b, false)),
        ('X', Value::Bytes(b)) => Ok(hex(b, true)),
        ('x', v) => signed(v, |n| format!("{n:x}")).ok_or_else(|| wrong("hex", v)),
        ('X', v) => signed(v, |n| format!("{n:X}")).ok_or_else(|| wrong("hex", v)),
        ('d', v) => Err(wrong("decimal", v)),
        (other, _) => Err(Error::new(format!("unrecognized formatting clause \"{other}\""))),
    }
}

fn number(value: &Value<'_>) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)]
    match value {
        Value::Double(n) => Some(*n),
        Value::Int(n) => Some(*n as f64),
        Value::UInt(n) => Some(*n as f64),
        _ => None,
    }
}

fn signed(value: &Value<'_>, print: impl Fn(u64) -> String) -> Option<String> {
    match value {
        Value::Int(n) => Some(format!("{}{}", if *n < 0 { "-" } else { "" }, print(n.unsigned_abs()))),
        Value::UInt(n) => Some(print(*n)),
        _ => None,
    }
}

fn hex(bytes: &[u8], upper: bool) -> String {
    bytes.iter().map(|b| if upper { format!("{b:02X}") } else { format!("{b:02x}") }).collect()
}

/// Any value, as `%s` shows it.
fn shown(value: &Value<'_>, fuel: &mut Fuel) -> Result<String, Error> {
    fuel.burn(1)?;
    Ok(match value {
        Value::String(s) => {
            fuel.burn(s.len() as u64 / 8)?;
            s.to_string()
        }
        Value::Double(n) => print_double(*n),
        Value::Bytes(b) => String::from_utf8_lossy(b).into_owned(),
        Value::Timestamp(t) => time::print_time(t),
        Value::Duration(n) => time::print_span(*n),
        Value::Type(name) => name.to_string(),
        Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Null => value.shown(),
        other => match (other.items(), other.entries()) {
            (Some(items), _) => {
                let parts = items.iter().map(|v| shown(v, fuel)).collect::<Result<Vec<_>, _>>()?;
                format!("[{}]", parts.join(", "))
            }
            (None, Some(entries)) => {
                let mut parts = Vec::with_capacity(entries.len());
                for (k, v) in entries {
                    parts.push(format!("{}: {}", shown(&k, fuel)?, shown(&v, fuel)?));
                }
                format!("{{{}}}", parts.join(", "))
            }
            _ => return Err(wrong("string", other)),
        },
    })
}
