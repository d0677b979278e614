//! Flag values: which texts a type takes, and how Go words a refusal.

use std::net::{IpAddr, SocketAddr};

use super::duration::parse_nanos;
use super::table::FlagType;
use crate::status::go_quote;

/// Go's `strconv.ParseBool`.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {}: invalid syntax", go_quote(text))),
    }
}

/// Go's `strconv.ParseInt` with base 10.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_decimal(text: &str) -> Result<i64, String> {
    signed("ParseInt", text)
}

/// Go's `strconv.Atoi`.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_integer(text: &str) -> Result<i64, String> {
    signed("Atoi", text)
}

fn signed(function: &str, text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    text.parse().map_err(|_| undecimal(function, text, digits))
}

/// Go's `strconv.ParseUint` with base 10.
///
/// # Errors
/// Go's words for a text that is none.
pub fn parse_unsigned_decimal(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ => Err(undecimal("ParseUint", text, text)),
    }
}

fn undecimal(function: &str, text: &str, digits: &str) -> String {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    format!("strconv.{function}: parsing {}: {why}", go_quote(text))
}

/// Go's `strconv.ParseInt` with base 0.
pub(super) fn parse_int(text: &str, bits: u32) -> Result<i64, String> {
    let fail = |what: &str| format!("strconv.ParseInt: parsing {}: {what}", go_quote(text));
    let (negative, body) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = magnitude(body).map_err(fail)?;
    let value = i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| fail("value out of range"))?;
    if bits == 32 && i32::try_from(value).is_err() {
        return Err(fail("value out of range"));
    }
    Ok(value)
}

fn parse_uint(text: &str) -> Result<u64, String> {
    let fail = |what: &str| format!("strconv.ParseUint: parsing {}: {what}", go_quote(text));
    u64::try_from(magnitude(text).map_err(fail)?).map_err(|_| fail("value out of range"))
}

fn magnitude(body: &str) -> Result<i128, &'static str> {
    let lower = body.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err("invalid syntax");
    }
    i128::from_str_radix(digits, radix).map_err(|_| "value out of range")
}

pub(super) fn parse_float(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("strconv.ParseFloat: parsing {}: invalid syntax", go_quote(text)))
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

/// `a=b,c=d` as pairs; `what` names the right-hand side in the error.
pub(super) fn pairs(text: &str, what: &str) -> Result<Vec<(String, String)>, String> {
    let parts = text.split(',').filter(|p| !p.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((k, v)) => Ok((k.trim().to_owned(), v.trim().to_owned())),
            None => Err(format!("malformed pair, expect string={what}")),
        })
        .collect()
}

/// `a=b,c=d` as pairs, of which each may stand in quotes. A single one may have commas on both sides.
pub(super) fn string_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let parts = match text.matches('=').count() {
        1 => vec![text.trim_matches('"').to_owned()],
        _ => split_csv(text),
    };
    let pair = |part: &String| part.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    parts.iter().map(|part| pair(part).ok_or_else(|| format!("{part} must be formatted as key=value"))).collect()
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
pub(super) fn thresholds(text: &str) -> Result<Vec<(String, String)>, String> {
    let parts = text.split(',').filter(|p| !p.is_empty());
    parts
        .map(|part| match part.split_once('<') {
            Some((k, v)) => Ok((k.trim().to_owned(), v.trim().to_owned())),
            None => Err("malformed pair, expect string<string".to_owned()),
        })
        .collect()
}

/// Validates `text` as a value of this type; the error is the part after `invalid argument … for … flag: `.
pub(super) fn check(kind: FlagType, text: &str) -> Result<(), String> {
    match kind {
        FlagType::Text | FlagType::List | FlagType::Array | FlagType::Gates | FlagType::Configuration => Ok(()),
        FlagType::Bool => parse_bool(text).map(drop),
        FlagType::Version => {
            if text == "raw" || text.starts_with('v') {
                Ok(())
            } else {
                parse_bool(text).map(drop)
            }
        }
        FlagType::Int { bits } => parse_int(text, bits).map(drop),
        FlagType::Level => text
            .parse::<i32>()
            .map(drop)
            .map_err(|_| format!("strconv.ParseInt: parsing {}: invalid syntax", go_quote(text))),
        FlagType::Uint => parse_uint(text).map(drop),
        FlagType::Float { .. } => parse_float(text).map(drop),
        FlagType::Duration => parse_nanos(text).map(drop).map_err(|e| e.to_string()),
        FlagType::Map => pairs(text, "string").map(drop),
        FlagType::Headers => text.split(',').filter(|p| !p.is_empty()).try_for_each(|pair| {
            if pair.contains(':') { Ok(()) } else { Err("malformed pair, expect string:string".to_owned()) }
        }),
        FlagType::Thresholds => thresholds(text).map(drop),
        FlagType::Pairs => string_pairs(text).map(drop),
        FlagType::BoolMap => pairs(text, "bool")?
            .iter()
            .try_for_each(|(k, v)| parse_bool(v).map(drop).map_err(|e| format!("invalid value of {k}: {v}, err: {e}"))),
        FlagType::Address => match text.trim().parse::<IpAddr>() {
            Ok(_) => Ok(()),
            Err(_) if text.is_empty() => Ok(()),
            Err(_) => Err(format!("failed to parse IP: {}", go_quote(text))),
        },
        FlagType::AddressPort => address_port(text),
        FlagType::PortRange => port_range(text).map(drop),
        FlagType::Quantity => proto::quantity::Quantity::parse(text).map(drop).map_err(|e| e.to_string()),
        FlagType::NamedKeys => named_keys(text).map(drop),
        FlagType::Patterns => text.split(',').filter(|p| !p.is_empty()).try_for_each(|p| match p.split_once('=') {
            Some((pattern, level)) if !pattern.is_empty() && level.parse::<u32>().is_ok() => Ok(()),
            _ => Err("syntax error: expect comma-separated list of filename=N".to_owned()),
        }),
    }
}

fn address_port(text: &str) -> Result<(), String> {
    if text.is_empty() || text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_err() => {
            Err(format!("{} is not a valid port: {}", go_quote(port), if host.is_empty() { "no host" } else { host }))
        }
        _ => Err(format!("{} is not a valid IP address", go_quote(text))),
    }
}

/// `30000-32767`, `30000+100` or a single port, as (base, size).
pub(super) fn port_range(text: &str) -> Result<(u16, u32), String> {
    let text = text.trim();
    let bad = || format!("unable to parse port range: {text}");
    let number = |t: &str| t.trim().parse::<u16>().map_err(|_| bad());
    if text.is_empty() {
        return Ok((0, 0));
    }
    if let Some((low, high)) = text.split_once('-') {
        let (low, high) = (number(low)?, number(high)?);
        if high < low {
            return Err(format!("end port cannot be less than start port: {text}"));
        }
        return Ok((low, u32::from(high - low) + 1));
    }
    if let Some((low, count)) = text.split_once('+') {
        let (low, count) = (number(low)?, number(count)?);
        if u32::from(low) + u32::from(count) > 65_535 {
            return Err(format!("the port range cannot be greater than 65535: {text}"));
        }
        return Ok((low, u32::from(count) + 1));
    }
    Ok((number(text)?, 1))
}

/// One `cert,key[:names]` of `--tls-sni-cert-key`.
pub(super) fn named_keys(text: &str) -> Result<(String, String, Vec<String>), String> {
    let (files, names) = text.split_once(':').unwrap_or((text, ""));
    let parts: Vec<&str> = files.split(',').collect();
    match parts.as_slice() {
        [cert, key] if !cert.is_empty() && !key.is_empty() => {
            Ok(((*cert).into(), (*key).into(), names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()))
        }
        _ => Err("expected comma separated certificate and key file paths".to_owned()),
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
        assert_eq!(parse_int("x", 64), Err(r#"strconv.ParseInt: parsing "x": invalid syntax"#.into()));
        assert_eq!(
            parse_int("3000000000", 32),
            Err(r#"strconv.ParseInt: parsing "3000000000": value out of range"#.into())
        );
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
