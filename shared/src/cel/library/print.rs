//! `format`: texts with values in them.

use super::convert::print_double;
use super::{Args, Entry, method, text};
use crate::cel::cost::Cost;
use crate::cel::printed;
use crate::cel::value::{Answer, Value};
use crate::cel::{Error, Fuel};
use crate::flags::{NumberError, NumberProblem};
use crate::status::go_quote;

pub(super) const TABLE: &[Entry] = &[method("format", "string, list(dyn)", "string", Cost::Format, format)];

/// Digits behind the point when none are asked for.
const DIGITS: usize = 6;
/// So many digits can be asked for; more are counted from the beginning again.
const ROUND: usize = 256;
/// The widest that a power is printed.
const WIDEST: usize = 1_000;
/// Fractions that can be asked for by their names.
const NAMES: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
const SUPERSCRIPT: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

/// Formatting clause: the types it accepts, and the error for others.
struct Clause {
    letters: &'static str,
    of: &'static [&'static str],
    complaint: &'static str,
}

const fn clause(letters: &'static str, of: &'static [&'static str], complaint: &'static str) -> Clause {
    Clause { letters, of, complaint }
}

const CLAUSES: [Clause; 7] = [
    clause(
        "s",
        &[
            "list",
            "map",
            "int",
            "uint",
            "double",
            "bool",
            "string",
            "google.protobuf.Timestamp",
            "bytes",
            "google.protobuf.Duration",
            "type",
            "null_type",
        ],
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps",
    ),
    clause("d", &["int", "uint"], "decimal clause can only be used on integers"),
    clause("f", &["double", "string"], "fixed-point clause can only be used on doubles"),
    clause("e", &["double", "string"], "scientific clause can only be used on doubles"),
    clause("b", &["int", "uint", "bool"], "only integers and bools can be formatted as binary"),
    clause(
        "xX",
        &["int", "uint", "string", "bytes"],
        "only integers, byte buffers, and strings can be formatted as hex",
    ),
    clause("o", &["int", "uint"], "octal clause can only be used on integers"),
];

/// A piece of a template.
pub(in crate::cel) enum Piece<'t> {
    /// Literal text.
    Text(&'t str),
    /// The place of a value: which one, by which clause, and with how many digits.
    Value(usize, char, Option<usize>),
}

/// Goes over the pieces of a template that is given so many values; how many there are places for.
pub(in crate::cel) fn pieces<'t>(
    template: &'t str,
    values: usize,
    mut with: impl FnMut(Piece<'t>) -> Result<(), Error>,
) -> Result<usize, Error> {
    let (mut rest, mut next) = (template, 0);
    while let Some(at) = rest.find('%') {
        with(Piece::Text(&rest[..at]))?;
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            with(Piece::Text("%"))?;
            rest = behind;
            continue;
        }
        if next >= values {
            return Err(Error::new(format!("index {next} out of range")));
        }
        if rest.is_empty() {
            return Err(Error::new("unexpected end of string"));
        }
        let (digits, behind) =
            precision(rest).map_err(|why| unread(&format!("error while parsing precision: {why}")))?;
        let mut letters = behind.chars();
        let letter = letters.next().unwrap_or_default();
        if !CLAUSES.iter().any(|clause| clause.letters.contains(letter)) {
            // Upstream looks at bytes.
            let shown = behind.bytes().next().map(char::from).unwrap_or_default();
            return Err(unread(&format!("unrecognized formatting clause \"{shown}\"")));
        }
        with(Piece::Value(next, letter, digits))?;
        (rest, next) = (letters.as_str(), next + 1);
    }
    with(Piece::Text(rest))?;
    Ok(next)
}

fn unread(why: &str) -> Error {
    Error::new(format!("could not parse formatting clause: {why}"))
}

/// Errors of reading a precision, in the words of `cel-go`.
#[derive(Debug, thiserror::Error)]
enum PrecisionError {
    #[error("could not find end of precision specifier")]
    NoEnd,
    #[error("error while converting precision to integer: {0}")]
    Number(#[from] NumberError),
}

/// The number of digits that is asked for, and what follows.
fn precision(text: &str) -> Result<(Option<usize>, &str), PrecisionError> {
    let Some(digits) = text.strip_prefix('.') else { return Ok((None, text)) };
    let end = digits.find(|c: char| !c.is_ascii_digit()).ok_or(PrecisionError::NoEnd)?;
    let (digits, behind) = digits.split_at(end);
    let number = digits.parse().map_err(|_| {
        let problem = if digits.is_empty() { NumberProblem::Syntax } else { NumberProblem::Range };
        NumberError::new("Atoi", digits, problem)
    })?;
    Ok((Some(number), behind))
}

/// Error of formatting a value of this type by a clause; `None` when it can be.
pub(in crate::cel) fn unfit(letter: char, of: &str) -> Option<Error> {
    let clause = CLAUSES.iter().find(|clause| clause.letters.contains(letter))?;
    let fits = clause.of.contains(&of);
    (!fits).then(|| Error::new(format!("error during formatting: {}, was given {of}", clause.complaint)))
}

fn format<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (values, mut made) = (args.list(1)?, String::new());
    let Value::String(template) = args.take(0) else { return Err(Error::overload()) };
    let fuel = &mut args.tools.fuel;
    pieces(&template, values.len(), |piece| {
        match piece {
            Piece::Text(plain) => made.push_str(plain),
            Piece::Value(at, letter, digits) => {
                fuel.burn(1)?;
                let value = values.get(at).ok_or_else(Error::overload)?;
                made.push_str(&one(letter, value, digits, fuel)?);
            }
        }
        Ok(())
    })?;
    text(made)
}

fn one(letter: char, value: &Value<'_>, digits: Option<usize>, fuel: &mut Fuel) -> Result<String, Error> {
    let wrong = || unfit(letter, value.type_name()).unwrap_or_else(|| named(letter));
    match (letter, value) {
        ('s', v) => shown(v, fuel),
        ('d', Value::Int(n)) => Ok(n.to_string()),
        ('d', Value::UInt(n)) => Ok(n.to_string()),
        ('f', v) => fraction(v).map(|n| fixed(n, digits.unwrap_or(DIGITS))).ok_or_else(wrong),
        ('e', v) => fraction(v).map(|n| powered(n, digits.unwrap_or(DIGITS))).ok_or_else(wrong),
        ('b', Value::Bool(b)) => Ok(u8::from(*b).to_string()),
        ('b', v) => signed(v, |n| format!("{n:b}")).ok_or_else(wrong),
        ('o', v) => signed(v, |n| format!("{n:o}")).ok_or_else(wrong),
        ('x' | 'X', Value::String(s)) => Ok(hex(s.as_bytes(), letter == 'X')),
        ('x' | 'X', Value::Bytes(b)) => Ok(hex(b, letter == 'X')),
        ('x', v) => signed(v, |n| format!("{n:x}")).ok_or_else(wrong),
        ('X', v) => signed(v, |n| format!("{n:X}")).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// A text is no fraction, unless it is one of the [`NAMES`].
fn named(letter: char) -> Error {
    let complaint = CLAUSES.iter().find(|clause| clause.letters.contains(letter)).map_or("", |clause| clause.complaint);
    Error::new(format!("error during formatting: {complaint}, was given string"))
}

fn fraction(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(n) => Some(*n),
        Value::String(s) if NAMES.contains(&&**s) => s.parse().ok(),
        _ => None,
    }
}

/// The sign of what is less than nothing, and what stands for fractions that have no digits.
fn apart(n: f64) -> (&'static str, Option<&'static str>) {
    let sign = if n < 0.0 { "-" } else { "" };
    let word = if n.is_nan() { Some("NaN") } else { Some("∞").filter(|_| n.is_infinite()) };
    (sign, word)
}

/// With a point, and a comma at each thousand: as English has it.
fn fixed(n: f64, digits: usize) -> String {
    let (sign, word) = apart(n);
    if let Some(word) = word {
        return format!("{sign}{word}");
    }
    let shown = format!("{:.*}", digits % ROUND, n.abs());
    let (whole, behind) = shown.split_once('.').map_or((shown.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut made = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            made.push(',');
        }
        made.push(digit);
    }
    if let Some(behind) = behind {
        made.push('.');
        made.push_str(behind);
    }
    made
}

/// With a power of ten. Upstream takes the number of digits for the width of it all.
fn powered(n: f64, width: usize) -> String {
    let (sign, word) = apart(n);
    let shown = match word {
        Some(word) => format!("{sign}{word}"),
        None => {
            let shown = format!("{:.DIGITS$e}", n.abs());
            let (head, power) = shown.split_once('e').unwrap_or((&shown, "0"));
            let (below, power) = power.strip_prefix('-').map_or(("", power), |power| ("⁻", power));
            let raised = |digit: char| digit.to_digit(10).and_then(|d| SUPERSCRIPT.get(d as usize)).copied();
            let power: String = format!("{power:0>2}").chars().filter_map(raised).collect();
            format!("{sign}{head}×10{below}{power}")
        }
    };
    format!("{shown:>width$}", width = width.min(WIDEST))
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
        Value::Timestamp(t) => printed::print_time(t),
        Value::Duration(n) => printed::print_span(*n),
        Value::Type(name) => name.to_string(),
        Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Null => value.shown(),
        other => match (other.items(), other.entries()) {
            (Some(items), _) => {
                let parts = items.iter().map(|v| part(v, fuel)).collect::<Result<Vec<_>, _>>()?;
                format!("[{}]", parts.join(", "))
            }
            (None, Some(entries)) => {
                let mut parts = Vec::with_capacity(entries.len());
                for (k, v) in entries {
                    parts.push((part(&k, fuel)?, part(&v, fuel)?));
                }
                parts.sort();
                let parts: Vec<String> = parts.into_iter().map(|(k, v)| format!("{k}:{v}")).collect();
                format!("{{{}}}", parts.join(", "))
            }
            _ => return Err(unfit('s', other.type_name()).unwrap_or_else(Error::overload)),
        },
    })
}

/// A part of a list or a map: as an expression would have it.
fn part(value: &Value<'_>, fuel: &mut Fuel) -> Result<String, Error> {
    let plain = match value {
        Value::Double(n) if n.is_finite() => return Ok(format!("{n:.DIGITS$}")),
        other => shown(other, fuel)?,
    };
    Ok(match value {
        Value::String(_) | Value::Double(_) => go_quote(&plain),
        Value::Bytes(_) => format!("b{}", go_quote(&plain)),
        Value::Timestamp(_) => format!("timestamp({})", go_quote(&plain)),
        Value::Duration(_) => format!("duration({})", go_quote(&plain)),
        _ => plain,
    })
}
