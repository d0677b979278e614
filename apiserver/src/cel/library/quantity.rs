//! `quantity`, `isQuantity` and what quantities do; also the comparisons that versions share.

use std::cmp::Ordering;

use ::cel::Value;
use ::cel::objects::Opaque;
use proto::quantity::{Format, Quantity};

use super::{ANY, Answer, Entry, TEXT, entry, inside, opaque, ordering, overload, text};

#[derive(Debug, PartialEq, Eq)]
struct Amount(Quantity);

impl Opaque for Amount {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Quantity"
    }
}

pub(super) const TABLE: &[Entry] = &[
    entry!("quantity", false, [TEXT], quantity),
    entry!("isQuantity", false, [TEXT], is_quantity),
    entry!("sign", true, [ANY], sign),
    entry!("isInteger", true, [ANY], is_integer),
    entry!("asInteger", true, [ANY], as_integer),
    entry!("asApproximateFloat", true, [ANY], as_float),
    entry!("add", true, [ANY, ANY], add),
    entry!("sub", true, [ANY, ANY], sub),
    entry!("isLessThan", true, [ANY, ANY], less),
    entry!("isGreaterThan", true, [ANY, ANY], greater),
    entry!("compareTo", true, [ANY, ANY], compare_to),
];

fn parse(text: &str) -> Result<Quantity, String> {
    Quantity::parse(text).map_err(|e| e.to_string())
}

fn quantity(args: &[Value]) -> Answer {
    parse(text(args, 0)?).map(|q| opaque(Amount(q)))
}

fn is_quantity(args: &[Value]) -> Answer {
    Ok(Value::Bool(parse(text(args, 0)?).is_ok()))
}

fn own<'v>(args: &'v [Value], name: &str) -> Result<&'v Quantity, String> {
    inside::<Amount>(args, 0).map(|a| &a.0).ok_or_else(|| overload(name))
}

fn sign(args: &[Value]) -> Answer {
    Ok(Value::Int(i64::from(own(args, "sign")?.sign())))
}

fn whole(q: &Quantity) -> Option<i64> {
    let value = q.value();
    (Quantity::from_int(value, q.format()) == *q).then_some(value)
}

fn is_integer(args: &[Value]) -> Answer {
    Ok(Value::Bool(whole(own(args, "isInteger")?).is_some()))
}

fn as_integer(args: &[Value]) -> Answer {
    whole(own(args, "asInteger")?).map(Value::Int).ok_or_else(|| "cannot convert value to integer".to_owned())
}

fn as_float(args: &[Value]) -> Answer {
    Ok(Value::Float(own(args, "asApproximateFloat")?.as_f64()))
}

fn other(args: &[Value], name: &str) -> Result<Quantity, String> {
    match args.get(1) {
        Some(Value::Int(n)) => Ok(Quantity::from_int(*n, Format::DecimalSI)),
        _ => inside::<Amount>(args, 1).map(|a| a.0.clone()).ok_or_else(|| overload(name)),
    }
}

fn add(args: &[Value]) -> Answer {
    let mut q = own(args, "add")?.clone();
    q.add(&other(args, "add")?);
    Ok(opaque(Amount(q)))
}

fn sub(args: &[Value]) -> Answer {
    let mut q = own(args, "sub")?.clone();
    q.sub(&other(args, "sub")?);
    Ok(opaque(Amount(q)))
}

/// The order of two quantities; `None` when they are something else.
pub(super) fn compare(args: &[Value]) -> Option<Ordering> {
    Some(inside::<Amount>(args, 0)?.0.cmp(&inside::<Amount>(args, 1)?.0))
}

fn less(args: &[Value]) -> Answer {
    Ok(Value::Bool(ordering(args)? == Ordering::Less))
}

fn greater(args: &[Value]) -> Answer {
    Ok(Value::Bool(ordering(args)? == Ordering::Greater))
}

fn compare_to(args: &[Value]) -> Answer {
    Ok(Value::Int(ordering(args)? as i64))
}
