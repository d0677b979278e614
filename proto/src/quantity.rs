//! `resource.Quantity`: fixed-point numbers with SI, binary or exponent suffixes.
//!
//! Arithmetic is exact on an `i128` with a decimal scale of nano or coarser and saturates at the edges. Texts
//! and the odd overflow results follow upstream's `k8s.io/apimachinery/pkg/api/resource`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

const NANO: i32 = -9;
const FORMAT_WRONG: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const MAX_EXPONENT: i64 = 10_000;

/// Errors of parsing a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text has the wrong shape.
    #[error("{FORMAT_WRONG}")]
    Format,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Format of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `1500m`, `2k`.
    #[default]
    DecimalSI,
    /// `64Mi`.
    BinarySI,
    /// `12e6`.
    DecimalExponent,
}

/// A quantity. Equality and order are by value, not by text.
#[derive(Debug, Clone, Default)]
pub struct Quantity {
    value: i128,
    scale: i32,
    format: Format,
    wide: bool,
    text: Option<Box<str>>,
}

struct Parts<'a> {
    negative: bool,
    num: &'a str,
    denom: &'a str,
    suffix: &'a str,
}

fn split(s: &str) -> Result<Parts<'_>, ParseError> {
    let b = s.as_bytes();
    if b.is_empty() {
        return Err(ParseError::Format);
    }
    let mut i = 0;
    let negative = b[0] == b'-';
    if negative || b[0] == b'+' {
        i = 1;
    }
    while i < b.len() && b[i] == b'0' {
        i += 1;
    }
    let start = i;
    while i < b.len() && b[i].is_ascii_digit() {
        i += 1;
    }
    let num = if start == i { "0" } else { &s[start..i] };
    let mut denom = "";
    if i < b.len() && b[i] == b'.' {
        i += 1;
        let start = i;
        while i < b.len() && b[i].is_ascii_digit() {
            i += 1;
        }
        denom = &s[start..i];
    }
    let start = i;
    while i < b.len() && b"eEinumkKMGTP".contains(&b[i]) {
        i += 1;
    }
    if i < b.len() && matches!(b[i], b'+' | b'-') {
        i += 1;
    }
    while i < b.len() && b[i].is_ascii_digit() {
        i += 1;
    }
    if i < b.len() {
        return Err(ParseError::Format);
    }
    Ok(Parts { negative, num, denom, suffix: &s[start..] })
}

/// The multiplier of a suffix: base 10 or 2, exponent, format.
fn suffix(s: &str) -> Result<(bool, i32, Format), ParseError> {
    let dec = |e| Ok((false, e, Format::DecimalSI));
    let bin = |e| Ok((true, e, Format::BinarySI));
    match s {
        "n" => dec(-9),
        "u" => dec(-6),
        "m" => dec(-3),
        "" => dec(0),
        "k" => dec(3),
        "M" => dec(6),
        "G" => dec(9),
        "T" => dec(12),
        "P" => dec(15),
        "E" => dec(18),
        "Ki" => bin(10),
        "Mi" => bin(20),
        "Gi" => bin(30),
        "Ti" => bin(40),
        "Pi" => bin(50),
        "Ei" => bin(60),
        _ if s.starts_with(['e', 'E']) => {
            let e: i64 = s[1..].parse().map_err(|_| ParseError::Suffix)?;
            let e = e.clamp(-MAX_EXPONENT, MAX_EXPONENT);
            Ok((false, i32::try_from(e).unwrap_or(0), Format::DecimalExponent))
        }
        _ => Err(ParseError::Suffix),
    }
}

fn digits(parts: [&str; 2]) -> i128 {
    let mut v: i128 = 0;
    for b in parts.iter().flat_map(|p| p.bytes()) {
        v = v.saturating_mul(10).saturating_add(i128::from(b - b'0'));
    }
    v
}

fn pow10(n: u32) -> Option<i128> {
    10i128.checked_pow(n)
}

/// `v * 10^n`, saturating.
fn scale_up(v: i128, n: i32) -> i128 {
    if v == 0 || n <= 0 {
        return v;
    }
    let edge = if v < 0 { i128::MIN } else { i128::MAX };
    pow10(n.unsigned_abs()).and_then(|p| v.checked_mul(p)).unwrap_or(edge)
}

/// `v / 10^n`, rounded away from zero.
fn scale_down(v: i128, n: i32) -> i128 {
    if v == 0 || n <= 0 {
        return v;
    }
    match pow10(n.unsigned_abs()) {
        Some(p) => v / p + if v % p == 0 { 0 } else { v.signum() },
        None => v.signum(),
    }
}

impl Quantity {
    /// Reads a quantity.
    ///
    /// # Errors
    /// [`ParseError`] with upstream's text.
    pub fn parse(s: &str) -> Result<Self, ParseError> {
        let p = split(s)?;
        let (binary, exponent, format) = suffix(p.suffix)?;
        let len = i64::try_from(p.num.len() + p.denom.len()).unwrap_or(i64::MAX);
        let (mut scale, narrow) = if binary {
            let fits = p.denom.is_empty() && 14 - len - i64::from(exponent) * 3 / 10 >= 0;
            (0, fits)
        } else {
            (exponent, len <= 18)
        };
        scale = scale.saturating_sub(i32::try_from(p.denom.len()).unwrap_or(i32::MAX));
        let narrow = narrow && (scale >= NANO);
        let mut value = digits([p.num, p.denom]);
        let mut format = format;
        if binary {
            value = value.saturating_mul(1i128 << exponent);
        }
        if scale < NANO {
            value = scale_down(value, NANO.saturating_sub(scale));
            scale = NANO;
        }
        if !narrow && binary {
            let max = i128::from(i64::MAX);
            if scale_down(value, -scale) > max {
                (value, scale) = (max, 0);
            }
            if value > 0 && scale < 0 && value < scale_up(1, -scale) {
                format = Format::DecimalSI;
            }
        }
        if p.negative {
            value = -value;
        }
        let mut q = Self { value, scale, format, wide: !narrow, text: None };
        if narrow && p.denom.is_empty() && value != 0 {
            let canonical = q.canonical();
            let own = canonical.trim_start_matches('-');
            let head = own.bytes().take_while(u8::is_ascii_digit).count();
            if &own[..head] == p.num && canonical != s {
                q.text = Some(s.into());
            }
        }
        Ok(q)
    }

    /// A whole number.
    #[must_use]
    pub fn from_int(v: i64, format: Format) -> Self {
        Self { value: v.into(), scale: 0, format, wide: false, text: None }
    }

    /// Thousandths.
    #[must_use]
    pub fn from_milli(v: i64, format: Format) -> Self {
        Self { value: v.into(), scale: -3, format, wide: false, text: None }
    }

    /// Format of the quantity.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Is it zero?
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.value == 0
    }

    /// -1, 0 or 1.
    #[must_use]
    pub fn sign(&self) -> i32 {
        if self.value < 0 { -1 } else { i32::from(self.value > 0) }
    }

    fn scaled(&self, to: i32) -> i64 {
        let up = self.scale.saturating_sub(to);
        if up < 0 {
            let down = if self.wide && self.value < 0 {
                pow10(up.unsigned_abs()).map_or(0, |p| self.value / p)
            } else {
                scale_down(self.value, -up)
            };
            return low_bits(down);
        }
        if self.wide {
            let p = (0..up).fold(1i128, |p, _| p.wrapping_mul(10));
            return low_bits(self.value.wrapping_mul(p));
        }
        i64::try_from(scale_up(self.value, up)).unwrap_or(0)
    }

    /// Whole units, rounded up. Overflows as upstream does (see [`Quantity::saturating_value`]).
    #[must_use]
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// Thousandths, rounded up. Overflows as upstream does (see [`Quantity::saturating_milli_value`]).
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        self.scaled(-3)
    }

    /// Whole units, rounded up, clamped to the range of `i64`.
    #[must_use]
    pub fn saturating_value(&self) -> i64 {
        clamp(if self.scale < 0 { scale_down(self.value, -self.scale) } else { scale_up(self.value, self.scale) })
    }

    /// Thousandths, rounded up, clamped to the range of `i64`.
    #[must_use]
    pub fn saturating_milli_value(&self) -> i64 {
        let up = self.scale + 3;
        clamp(if up < 0 { scale_down(self.value, -up) } else { scale_up(self.value, up) })
    }

    /// The next whole amount of units, this one where it is whole.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        let up = Self::from_int(self.saturating_value(), self.format);
        if up == self { self } else { up }
    }

    /// Whole units, where upstream holds the quantity as an integer of them: not where it says thousandths, be they ever
    /// so many, nor where it has too many digits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        let power = 10_i64.checked_pow(u32::try_from(self.scale).ok()?)?;
        let value = i64::try_from(self.value).ok().filter(|_| !self.wide)?;
        value.checked_mul(power)
    }

    /// The nearest double.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a float is asked for")]
    pub fn as_f64(&self) -> f64 {
        self.value as f64 * 10f64.powi(self.scale)
    }

    fn combine(&mut self, other: &Self, f: impl Fn(i128, i128) -> i128) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.text = None;
        self.wide |= other.wide;
        let scale = match (self.value, other.value) {
            // What is held as an integer takes no finer scale from a zero.
            (_, 0) if !self.wide => return,
            (0, _) if !self.wide => other.scale,
            _ => self.scale.min(other.scale),
        };
        let a = scale_up(self.value, self.scale - scale);
        let b = scale_up(other.value, other.scale - scale);
        self.value = f(a, b);
        self.scale = scale;
        self.wide |= [a, b, self.value].into_iter().any(|v| i64::try_from(v).is_err());
    }

    /// Adds; a zero takes the other's format.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i128::saturating_add);
    }

    /// Subtracts; a zero takes the other's format.
    pub fn sub(&mut self, other: &Self) {
        self.combine(other, i128::saturating_sub);
    }

    /// The canonical text.
    #[must_use]
    pub fn canonical(&self) -> String {
        if self.value == 0 {
            return "0".to_owned();
        }
        if self.format == Format::BinarySI
            && let Some(v) = self.whole()
            && v.abs() >= 1024
        {
            let (mut v, mut step) = (v, 0);
            while v % 1024 == 0 && step < 6 {
                v /= 1024;
                step += 1;
            }
            return format!("{v}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]);
        }
        let (mut v, mut e) = (self.value, self.scale);
        while v % 10 == 0 {
            v /= 10;
            e += 1;
        }
        let cap = if self.format == Format::DecimalExponent { i32::MAX } else { 18 };
        let target = e.div_euclid(3).saturating_mul(3).min(cap);
        let zeros = "0".repeat(usize::try_from(e - target).unwrap_or(0));
        if self.format == Format::DecimalExponent {
            return if target == 0 { format!("{v}{zeros}") } else { format!("{v}{zeros}e{target}") };
        }
        let names = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let name = usize::try_from((target - NANO) / 3).ok().and_then(|i| names.get(i)).unwrap_or(&"");
        format!("{v}{zeros}{name}")
    }

    fn whole(&self) -> Option<i128> {
        if self.scale >= 0 {
            return Some(scale_up(self.value, self.scale));
        }
        let p = pow10(self.scale.unsigned_abs())?;
        (self.value % p == 0).then(|| self.value / p)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "wraps as Go's conversion does")]
fn low_bits(v: i128) -> i64 {
    v as i64
}

fn clamp(v: i128) -> i64 {
    i64::try_from(v).unwrap_or(if v < 0 { i64::MIN } else { i64::MAX })
}

/// The text upstream writes after reading `s`.
///
/// # Errors
/// [`ParseError`] with upstream's text.
pub fn canonicalize(s: &str) -> Result<Cow<'_, str>, ParseError> {
    let q = Quantity::parse(s)?;
    if q.text.is_some() {
        return Ok(Cow::Borrowed(s));
    }
    let c = q.canonical();
    Ok(if c == s { Cow::Borrowed(s) } else { Cow::Owned(c) })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(t) => f.write_str(t),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = ParseError;

    fn from_str(s: &str) -> Result<Self, ParseError> {
        Self::parse(s)
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        let scale = self.scale.min(other.scale);
        scale_up(self.value, self.scale - scale).cmp(&scale_up(other.value, other.scale - scale))
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_samples() {
        let all: serde_json::Value = serde_json::from_str(include_str!("../testdata/quantity.json")).unwrap();
        for (text, want) in all.as_object().unwrap() {
            match (Quantity::parse(text), want.get("error")) {
                (Err(e), Some(w)) => assert_eq!(e.to_string(), w.as_str().unwrap(), "{text}"),
                (Ok(q), None) => {
                    assert_eq!(q.to_string(), want["json"].as_str().unwrap(), "{text}");
                    assert_eq!(format!("{:?}", q.format()), want["format"].as_str().unwrap(), "{text}");
                    assert_eq!(q.value(), want["value"].as_i64().unwrap(), "{text} value");
                    assert_eq!(q.milli_value(), want["milliValue"].as_i64().unwrap(), "{text} milli");
                }
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
    }

    #[test]
    fn what_is_held_as_an_integer() {
        for (text, want) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("2k", Some(2000)),
            ("3e2", Some(300)),
            ("1.5k", Some(1500)),
            ("64Mi", Some(64 << 20)),
            ("1000m", None),
            ("1.0", None),
            ("0.5Gi", None),
            ("123456789012345678", Some(123_456_789_012_345_678)),
            ("1234567890123456789", None),
            ("10E", None),
            ("100Ti", None),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().as_i64(), want, "{text}");
        }
        let sum = |a: &str, b: &str| {
            let mut sum = Quantity::parse(a).unwrap();
            sum.add(&Quantity::parse(b).unwrap());
            sum.as_i64()
        };
        for (a, b, want) in [
            ("1", "2", Some(3)),
            ("1", "0m", Some(1)),
            ("0m", "1", Some(1)),
            ("500m", "500m", None),
            ("9E", "9E", None),
            ("10E", "-10E", Some(0)),
        ] {
            assert_eq!(sum(a, b), want, "{a} + {b}");
        }
    }

    #[test]
    fn arithmetic_and_order() {
        let q = |s| Quantity::parse(s).unwrap();
        let mut a = q("1500m");
        a.add(&q("1"));
        assert_eq!(a.to_string(), "2500m");
        a.sub(&q("3"));
        assert_eq!(a.to_string(), "-500m");
        let mut z = q("0");
        z.add(&q("1Gi"));
        assert_eq!(z.to_string(), "1Gi");
        assert!(q("1Ki") > q("1k"));
        assert_eq!(q("1000m"), q("1"));
        assert_eq!(Quantity::from_milli(100, Format::DecimalSI).to_string(), "100m");
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_is_stable(s in "[+-]?[0-9.]{0,45}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,5}") {
            if let Ok(q) = Quantity::parse(&s) {
                let mut sum = q.clone();
                sum.add(&q);
                sum.sub(&Quantity::from_int(1, Format::BinarySI));
                let _ = (sum.to_string(), q.value(), q.milli_value(), q.as_f64(), q.saturating_value(), q.saturating_milli_value());
                if !q.to_string().is_empty() {
                    proptest::prop_assert_eq!(Quantity::parse(&q.to_string()).is_ok(), true);
                }
            }
        }
    }
}
