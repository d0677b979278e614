//! `quantity`, `isQuantity` and what quantities do; also the comparisons that versions share.

use std::cmp::Ordering;

use proto::quantity::{Format, Quantity};

use super::{Args, Entry, ONE, bool, function, int, method, opaque, semver};
use crate::cel::Error;
use crate::cel::cost::{CHARACTER, Cost};
use crate::cel::value::{Answer, Value};

/// An amount, and how upstream holds it where that is a whole number: only then is it an integer.
#[derive(Debug)]
struct Amount(Quantity, Option<Whole>);

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

opaque!(Amount, "kubernetes.Quantity");

/// A number times a power of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole {
    number: i64,
    power: i32,
}

/// Digits of decimal and of binary quantities that are held so.
const DECIMAL_DIGITS: usize = 18;
const BINARY_DIGITS: usize = 14;
const NANO: i32 = -9;

impl Whole {
    /// What a good quantity is held as.
    fn read(text: &str) -> Option<Self> {
        let (sign, bare) = text.strip_prefix('-').map_or((1, text), |bare| (-1, bare));
        let bare = bare.strip_prefix('+').unwrap_or(bare);
        let end = bare.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(bare.len());
        let (digits, suffix) = bare.split_at(end);
        let (before, behind) = digits.split_once('.').unwrap_or((digits, ""));
        let before = Some(before.trim_start_matches('0')).filter(|b| !b.is_empty()).unwrap_or("0");
        let count = before.len() + behind.len();
        let number: i64 = format!("{before}{behind}").parse().ok()?;
        if let Some(unit) = suffix.strip_suffix('i') {
            let bits = 10 * u32::try_from("KMGTPE".find(unit)? + 1).ok()?;
            let fits = behind.is_empty() && count + bits as usize * 3 / 10 <= BINARY_DIGITS;
            return fits.then_some(Self { number: sign * number.checked_shl(bits)?, power: 0 });
        }
        let power = match suffix {
            "" => 0,
            "n" => -9,
            "u" => -6,
            "m" => -3,
            "k" => 3,
            "M" => 6,
            "G" => 9,
            "T" => 12,
            "P" => 15,
            "E" => 18,
            exponent => exponent.get(1..)?.parse().ok()?,
        };
        let power = i32::try_from(behind.len()).ok().and_then(|places| i32::checked_sub(power, places))?;
        (count <= DECIMAL_DIGITS && power >= NANO).then_some(Self { number: sign * number, power })
    }

    fn add(self, other: Self) -> Option<Self> {
        if other.number == 0 {
            return Some(self);
        }
        if self.number == 0 {
            return Some(other);
        }
        let power = self.power.min(other.power);
        let number = self.at(power)?.checked_add(other.at(power)?)?;
        Some(Self { number, power })
    }

    /// The number that stands before a power of ten which is not larger.
    fn at(self, power: i32) -> Option<i64> {
        let more = u32::try_from(self.power.checked_sub(power)?).ok()?;
        self.number.checked_mul(10_i64.checked_pow(more)?)
    }

    fn negated(self) -> Option<Self> {
        Some(Self { number: self.number.checked_neg()?, ..self })
    }
}

const PARSE: Cost = Cost::Parse(CHARACTER);

pub(super) const TABLE: &[Entry] = &[
    function("quantity", "string", "kubernetes.Quantity", PARSE, make),
    function("isQuantity", "string", "bool", PARSE, is_quantity),
    method("sign", "kubernetes.Quantity", "int", ONE, sign),
    method("isInteger", "kubernetes.Quantity", "bool", ONE, is_integer),
    method("asInteger", "kubernetes.Quantity", "int", ONE, as_integer),
    method("asApproximateFloat", "kubernetes.Quantity", "double", ONE, as_float),
    method("add", "kubernetes.Quantity, kubernetes.Quantity", "kubernetes.Quantity", ONE, add),
    method("add", "kubernetes.Quantity, int", "kubernetes.Quantity", ONE, add),
    method("sub", "kubernetes.Quantity, kubernetes.Quantity", "kubernetes.Quantity", ONE, sub),
    method("sub", "kubernetes.Quantity, int", "kubernetes.Quantity", ONE, sub),
    method("isLessThan", "kubernetes.Quantity, kubernetes.Quantity", "bool", ONE, less),
    method("isGreaterThan", "kubernetes.Quantity, kubernetes.Quantity", "bool", ONE, greater),
    method("compareTo", "kubernetes.Quantity, kubernetes.Quantity", "int", ONE, compare_to),
    method("isLessThan", "kubernetes.Semver, kubernetes.Semver", "bool", ONE, less),
    method("isGreaterThan", "kubernetes.Semver, kubernetes.Semver", "bool", ONE, greater),
    method("compareTo", "kubernetes.Semver, kubernetes.Semver", "int", ONE, compare_to),
];

/// A quantity as a value.
pub fn quantity(text: &str) -> Result<Value<'static>, String> {
    Quantity::parse(text).map(|q| Value::opaque(Amount(q, Whole::read(text)))).map_err(|e| e.to_string())
}

fn make<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    quantity(args.text(0)?).map_err(Error::new)
}

fn is_quantity<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(Quantity::parse(args.text(0)?).is_ok())
}

fn own<'v>(args: &'v Args<'_, '_>) -> Result<&'v Quantity, Error> {
    args.inside::<Amount>(0).map(|a| &a.0)
}

fn sign<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(own(args)?.sign().into())
}

fn whole(args: &Args<'_, '_>) -> Result<Option<i64>, Error> {
    Ok(args.inside::<Amount>(0)?.1.and_then(|whole| whole.at(0)))
}

fn is_integer<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(whole(args)?.is_some())
}

fn as_integer<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    whole(args)?.map(Value::Int).ok_or_else(|| Error::new("cannot convert value to integer"))
}

fn as_float<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::Double(own(args)?.as_f64()))
}

fn other(args: &Args<'_, '_>) -> Result<Amount, Error> {
    match args.get(1)? {
        Value::Int(n) => Ok(Amount(Quantity::from_int(*n, Format::DecimalSI), Some(Whole { number: *n, power: 0 }))),
        _ => args.inside::<Amount>(1).map(|a| Amount(a.0.clone(), a.1)),
    }
}

fn add<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (own, other) = (args.inside::<Amount>(0)?, other(args)?);
    let mut sum = own.0.clone();
    sum.add(&other.0);
    let whole = own.1.zip(other.1).and_then(|(a, b)| a.add(b));
    Ok(Value::opaque(Amount(sum, whole)))
}

fn sub<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (own, other) = (args.inside::<Amount>(0)?, other(args)?);
    let mut rest = own.0.clone();
    rest.sub(&other.0);
    let whole = own.1.zip(other.1).and_then(|(a, b)| a.add(b.negated()?));
    Ok(Value::opaque(Amount(rest, whole)))
}

fn order(args: &Args<'_, '_>) -> Result<Ordering, Error> {
    if let (Ok(a), Ok(b)) = (args.inside::<Amount>(0), args.inside::<Amount>(1)) {
        return Ok(a.0.cmp(&b.0));
    }
    semver::order(args.inside(0)?, args.inside(1)?)
}

fn less<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(order(args)?.is_lt())
}

fn greater<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(order(args)?.is_gt())
}

fn compare_to<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(order(args)? as i64)
}
