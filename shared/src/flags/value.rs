//! Flag values: which texts a type takes, and how Go words a refusal.

use std::net::{IpAddr, SocketAddr};

use proto::quantity::{ParseError, Quantity};
use thiserror::Error;

use super::duration::{DurationError, parse_nanos};
use super::table::FlagType;
use crate::status::go_quote;

/// Text that a function of Go's `strconv` refuses, in its words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("strconv.{function}: parsing {}: {problem}", go_quote(.text))]
pub struct NumberError {
    function: &'static str,
    text: String,
    #[source]
    problem: NumberProblem,
}

/// Problems of a text that is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NumberProblem {
    /// Another form.
    #[error("invalid syntax")]
    Syntax,
    /// Too small or too large.
    #[error("value out of range")]
    Range,
}

impl NumberError {
    pub(crate) fn new(function: &'static str, text: &str, problem: NumberProblem) -> Self {
        Self { function, text: text.to_owned(), problem }
    }

    /// Returns the problem of the text.
    #[must_use]
    pub fn problem(&self) -> NumberProblem {
        self.problem
    }
}

/// Errors of flag values: the part after `invalid argument … for … flag: `.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ValueError {
    #[error(transparent)]
    Number(#[from] NumberError),
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Quantity(#[from] ParseError),
    /// A pair that should look like this.
    #[error("malformed pair, expect {0}")]
    Pair(&'static str),
    #[error("{0} must be formatted as key=value")]
    KeyValue(String),
    #[error("invalid value of {key}: {value}, err: {source}")]
    PairValue { key: String, value: String, source: NumberError },
    #[error("failed to parse IP: {}", go_quote(.0))]
    Address(String),
    #[error("{} is not a valid port: {}", go_quote(.port), named_host(.host))]
    Port { port: String, host: String },
    #[error("{} is not a valid IP address", go_quote(.0))]
    AddressPort(String),
    #[error("unable to parse port range: {0}")]
    PortRange(String),
    #[error("end port cannot be less than start port: {0}")]
    PortOrder(String),
    #[error("the port range cannot be greater than 65535: {0}")]
    PortCount(String),
    #[error("expected comma separated certificate and key file paths")]
    KeyFiles,
    #[error("syntax error: expect comma-separated list of filename=N")]
    Patterns,
}

/// Form of the pairs of most flags.
pub(super) const STRING_PAIR: &str = "string=string";

/// Go's `strconv.ParseBool`.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_bool(text: &str) -> Result<bool, NumberError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(NumberError::new("ParseBool", text, NumberProblem::Syntax)),
    }
}

/// Go's `strconv.ParseInt` with base 10.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_decimal(text: &str) -> Result<i64, NumberError> {
    signed("ParseInt", text)
}

/// Go's `strconv.Atoi`.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_integer(text: &str) -> Result<i64, NumberError> {
    signed("Atoi", text)
}

fn signed(function: &'static str, text: &str) -> Result<i64, NumberError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    text.parse().map_err(|_| undecimal(function, text, digits))
}

/// Go's `strconv.ParseUint` with base 10.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_unsigned_decimal(text: &str) -> Result<u64, NumberError> {
    match text.parse() {
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ => Err(undecimal("ParseUint", text, text)),
    }
}

fn undecimal(function: &'static str, text: &str, digits: &str) -> NumberError {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    NumberError::new(function, text, if is_number { NumberProblem::Range } else { NumberProblem::Syntax })
}

/// Go's `strconv.ParseInt` with base 0.
pub(super) fn parse_int(text: &str, bits: u32) -> Result<i64, NumberError> {
    let fail = |problem| NumberError::new("ParseInt", text, problem);
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = magnitude(body).map_err(fail)?;
    let value = i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| fail(NumberProblem::Range))?;
    if bits == 32 && i32::try_from(value).is_err() {
        return Err(fail(NumberProblem::Range));
    }
    Ok(value)
}

fn parse_uint(text: &str) -> Result<u64, NumberError> {
    let fail = |problem| NumberError::new("ParseUint", text, problem);
    u64::try_from(magnitude(text).map_err(fail)?).map_err(|_| fail(NumberProblem::Range))
}

fn magnitude(body: &str) -> Result<i128, NumberProblem> {
    let lower = body.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(NumberProblem::Syntax);
    }
    i128::from_str_radix(digits, radix).map_err(|_| NumberProblem::Range)
}

pub(super) fn parse_float(text: &str) -> Result<f64, NumberError> {
    text.parse().map_err(|_| NumberError::new("ParseFloat", text, NumberProblem::Syntax))
}

/// One line of comma-separated values, with quotes as in CSV files.
pub(super) fn split_csv(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let (mut out, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if field.is_empty() => quoted = true,
            ',' if !quoted => out.push(std::mem::take(&mut field)),
            other => field.push(other),
        }
    }
    out.push(field);
    out
}

/// `a=b,c=d` as pairs; `form` is what the error says of them.
pub(super) fn pairs(text: &str, form: &'static str) -> Result<Vec<(String, String)>, ValueError> {
    let parts = text.split(',').filter(|p| !p.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((k, v)) => Ok((k.trim().to_owned(), v.trim().to_owned())),
            None => Err(ValueError::Pair(form)),
        })
        .collect()
}

/// `a=b,c=d` as pairs, of which each may stand in quotes. A single one may have commas on both sides.
pub(super) fn string_pairs(text: &str) -> Result<Vec<(String, String)>, ValueError> {
    let parts = match text.matches('=').count() {
        1 => vec![text.trim_matches('"').to_owned()],
        _ => split_csv(text),
    };
    let pair = |part: &String| part.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    parts.iter().map(|part| pair(part).ok_or_else(|| ValueError::KeyValue(part.clone()))).collect()
}

/// `a=b,c` as pairs; what is no pair is a key without a value.
pub(super) fn configuration(text: &str) -> Vec<(String, String)> {
    let parts = text.split(',').filter(|p| !p.is_empty());
    parts
        .map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = if value.contains('=') { "" } else { value };
            (key.trim().to_owned(), value.trim().to_owned())
        })
        .collect()
}

/// `a<b,c<d` as pairs.
pub(super) fn thresholds(text: &str) -> Result<Vec<(String, String)>, ValueError> {
    let parts = text.split(',').filter(|p| !p.is_empty());
    parts
        .map(|part| match part.split_once('<') {
            Some((k, v)) => Ok((k.trim().to_owned(), v.trim().to_owned())),
            None => Err(ValueError::Pair("string<string")),
        })
        .collect()
}

/// Validates `text` as a value of this type.
pub(super) fn check(kind: FlagType, text: &str) -> Result<(), ValueError> {
    match kind {
        FlagType::Text | FlagType::List | FlagType::Array | FlagType::Gates | FlagType::Configuration => Ok(()),
        FlagType::Bool => Ok(parse_bool(text).map(drop)?),
        FlagType::Version => {
            if text == "raw" || text.starts_with('v') {
                Ok(())
            } else {
                Ok(parse_bool(text).map(drop)?)
            }
        }
        FlagType::Int { bits } => Ok(parse_int(text, bits).map(drop)?),
        FlagType::Level => match text.parse::<i32>() {
            Ok(_) => Ok(()),
            Err(_) => Err(NumberError::new("ParseInt", text, NumberProblem::Syntax).into()),
        },
        FlagType::Uint => Ok(parse_uint(text).map(drop)?),
        FlagType::Float { .. } => Ok(parse_float(text).map(drop)?),
        FlagType::Duration => Ok(parse_nanos(text).map(drop)?),
        FlagType::Map => pairs(text, STRING_PAIR).map(drop),
        FlagType::Headers => text
            .split(',')
            .filter(|p| !p.is_empty())
            .try_for_each(|pair| if pair.contains(':') { Ok(()) } else { Err(ValueError::Pair("string:string")) }),
        FlagType::Thresholds => thresholds(text).map(drop),
        FlagType::Pairs => string_pairs(text).map(drop),
        FlagType::BoolMap => pairs(text, "string=bool")?.into_iter().try_for_each(|(key, value)| {
            parse_bool(&value).map(drop).map_err(|source| ValueError::PairValue { key, value, source })
        }),
        FlagType::Address => match text.trim().parse::<IpAddr>() {
            Ok(_) => Ok(()),
            Err(_) if text.is_empty() => Ok(()),
            Err(_) => Err(ValueError::Address(text.to_owned())),
        },
        FlagType::AddressPort => address_port(text),
        FlagType::PortRange => port_range(text).map(drop),
        FlagType::Quantity => Ok(Quantity::parse(text).map(drop)?),
        FlagType::NamedKeys => named_keys(text).map(drop),
        FlagType::Patterns => text.split(',').filter(|p| !p.is_empty()).try_for_each(|p| match p.split_once('=') {
            Some((pattern, level)) if !pattern.is_empty() && level.parse::<u32>().is_ok() => Ok(()),
            _ => Err(ValueError::Patterns),
        }),
    }
}

fn named_host(host: &str) -> &str {
    if host.is_empty() { "no host" } else { host }
}

fn address_port(text: &str) -> Result<(), ValueError> {
    if text.is_empty() || text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_err() => {
            Err(ValueError::Port { port: port.to_owned(), host: host.to_owned() })
        }
        _ => Err(ValueError::AddressPort(text.to_owned())),
    }
}

/// `30000-32767`, `30000+100` or a single port, as (base, size).
pub(super) fn port_range(text: &str) -> Result<(u16, u32), ValueError> {
    let text = text.trim();
    let bad = || ValueError::PortRange(text.to_owned());
    let number = |t: &str| t.trim().parse::<u16>().map_err(|_| bad());
    if text.is_empty() {
        return Ok((0, 0));
    }
    if let Some((low, high)) = text.split_once('-') {
        let (low, high) = (number(low)?, number(high)?);
        if high < low {
            return Err(ValueError::PortOrder(text.to_owned()));
        }
        return Ok((low, u32::from(high - low) + 1));
    }
    if let Some((low, count)) = text.split_once('+') {
        let (low, count) = (number(low)?, number(count)?);
        if u32::from(low) + u32::from(count) > 65_535 {
            return Err(ValueError::PortCount(text.to_owned()));
        }
        return Ok((low, u32::from(count) + 1));
    }
    Ok((number(text)?, 1))
}

/// One `cert,key[:names]` of `--tls-sni-cert-key`.
pub(super) fn named_keys(text: &str) -> Result<(String, String, Vec<String>), ValueError> {
    let (files, names) = text.split_once(':').unwrap_or((text, ""));
    let parts: Vec<&str> = files.split(',').collect();
    match parts.as_slice() {
        [cert, key] if !cert.is_empty() && !key.is_empty() => {
            Ok(((*cert).into(), (*key).into(), names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()))
        }
        _ => Err(ValueError::KeyFiles),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_as_go_reads_them() {
        for (text, want) in [("10", 10), ("-1", -1), ("0x10", 16), ("010", 8), ("0", 0)] {
            assert_eq!(parse_int(text, 64), Ok(want), "{text}");
        }
        for (text, bits, why) in [
            ("x", 64, r#"strconv.ParseInt: parsing "x": invalid syntax"#),
            ("3000000000", 32, r#"strconv.ParseInt: parsing "3000000000": value out of range"#),
        ] {
            assert_eq!(parse_int(text, bits).expect_err(text).to_string(), why);
        }
    }

    #[test]
    fn lists() {
        assert_eq!(split_csv(r#"a,"b,c",d"#), ["a", "b,c", "d"]);
        assert_eq!(split_csv(""), Vec::<String>::new());
    }

    #[test]
    fn ranges() {
        assert_eq!(port_range("30000-32767"), Ok((30000, 2768)));
        assert_eq!(port_range("80"), Ok((80, 1)));
        assert_eq!(port_range("30000+10"), Ok((30000, 11)));
        assert!(port_range("x").is_err());
    }
}
