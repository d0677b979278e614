//! `quantity`, `isQuantity` and what quantities do; also the comparisons that versions share.

use std::cmp::Ordering;

use proto::quantity::{Format, ParseError, Quantity};

use super::{Args, Entry, ONE, bool, function, int, method, opaque, semver};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};

/// An amount.
#[derive(Debug, PartialEq)]
struct Amount(Quantity);

opaque!(Amount, "kubernetes.Quantity", |_| None, |amount| amount.0.to_string());

const PARSE: Cost = Cost::Scan(1.0);

pub(super) const TABLE: &[Entry] = &[
    function("quantity", "string", "kubernetes.Quantity", PARSE, make),
    function("isQuantity", "string", "bool", PARSE, is_quantity),
    function("sign", "kubernetes.Quantity", "int", ONE, sign),
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
///
/// # Errors
/// Text that is no quantity.
pub fn quantity(text: &str) -> Result<Value<'static>, ParseError> {
    Quantity::parse(text).map(|q| Value::opaque(Amount(q)))
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

fn is_integer<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(own(args)?.as_i64().is_some())
}

fn as_integer<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    own(args)?.as_i64().map(Value::Int).ok_or_else(|| Error::new("cannot convert value to integer"))
}

fn as_float<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::Double(own(args)?.as_f64()))
}

fn other(args: &Args<'_, '_>) -> Result<Quantity, Error> {
    match args.get(1)? {
        Value::Int(n) => Ok(Quantity::from_int(*n, Format::DecimalSI)),
        _ => args.inside::<Amount>(1).map(|a| a.0.clone()),
    }
}

fn add<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let mut sum = own(args)?.clone();
    sum.add(&other(args)?);
    Ok(Value::opaque(Amount(sum)))
}

fn sub<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let mut rest = own(args)?.clone();
    rest.sub(&other(args)?);
    Ok(Value::opaque(Amount(rest)))
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
