//! Functions on lists and `sets.*`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Args, Entry, ONE, bool, function, int, method};
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Value};
use crate::cel::{Error, Fuel};

/// Rows of one function, by the element type and whether it is text.
macro_rules! row {
    (sorted $of:literal $texts:literal) => {
        method("isSorted", concat!("list(", $of, ")"), "bool", Cost::Walk, is_sorted)
    };
    (min $of:literal $texts:literal) => {
        method("min", concat!("list(", $of, ")"), $of, Cost::Walk, min)
    };
    (max $of:literal $texts:literal) => {
        method("max", concat!("list(", $of, ")"), $of, Cost::Walk, max)
    };
    (sort $of:literal $texts:literal) => {
        method("sort", concat!("list(", $of, ")"), concat!("list(", $of, ")"), Cost::Sort(0, $texts), sort)
    };
    (by $of:literal $texts:literal) => {
        method(
            "@sortByAssociatedKeys",
            concat!("list(A), list(", $of, ")"),
            "list(A)",
            Cost::Sort(1, $texts),
            sort_by_keys,
        )
    };
}

/// Rows of a method, one for each type that has an order.
macro_rules! ordered {
    ($row:ident) => {
        [
            row!($row "int" false),
            row!($row "uint" false),
            row!($row "double" false),
            row!($row "bool" false),
            row!($row "duration" false),
            row!($row "timestamp" false),
            row!($row "string" true),
            row!($row "bytes" true),
        ]
    };
}

const IS_SORTED: [Entry; 8] = ordered!(sorted);
const MIN: [Entry; 8] = ordered!(min);
const MAX: [Entry; 8] = ordered!(max);
const SORT: [Entry; 8] = ordered!(sort);
const SORT_BY: [Entry; 8] = ordered!(by);
const PLAIN: &[Entry] = &[
    method("sum", "list(int)", "int", Cost::Walk, |args| sum(args, Value::Int(0))),
    method("sum", "list(uint)", "uint", Cost::Walk, |args| sum(args, Value::UInt(0))),
    method("sum", "list(double)", "double", Cost::Walk, |args| sum(args, Value::Double(0.0))),
    method("sum", "list(duration)", "duration", Cost::Walk, |args| sum(args, Value::Duration(0))),
    method("indexOf", "list(A), A", "int", Cost::Walk, index_of),
    method("lastIndexOf", "list(A), A", "int", Cost::Walk, last_index_of),
    method("slice", "list(A), int, int", "list(A)", Cost::Slice, slice),
    method("flatten", "list(list(A))", "list(A)", Cost::Flatten, flatten),
    method("flatten", "list(dyn), int", "list(dyn)", Cost::Flatten, flatten),
    method("distinct", "list(A)", "list(A)", Cost::Distinct, distinct),
    method("reverse", "list(A)", "list(A)", Cost::Reverse, reverse),
    method("first", "list(A)", "optional(A)", ONE, first),
    method("last", "list(A)", "optional(A)", ONE, last),
    function("lists.range", "int", "list(int)", Cost::Range, range),
    function("sets.contains", "list(A), list(A)", "bool", Cost::Sets(1.0), contains),
    function("sets.equivalent", "list(A), list(A)", "bool", Cost::Sets(2.0), equivalent),
    function("sets.intersects", "list(A), list(A)", "bool", Cost::Sets(1.0), intersects),
];

pub(super) const TABLES: [&[Entry]; 6] = [&IS_SORTED, &MIN, &MAX, &SORT, &SORT_BY, PLAIN];

/// Elements one function may make.
const MAX_MADE: usize = 1_000_000;

/// Checks that all values can be ordered.
fn comparable(items: &[Value<'_>]) -> Result<(), Error> {
    let ordered = items.iter().all(|v| v.order(v).is_some() || matches!(v, Value::Double(_)));
    if ordered { Ok(()) } else { Err(Error::overload()) }
}

fn is_sorted<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let items = args.list(0)?;
    comparable(&items)?;
    bool(!items.windows(2).any(|pair| pair[0].order(&pair[1]) == Some(Ordering::Greater)))
}

fn sum<'a>(args: &mut Args<'_, 'a>, nothing: Value<'a>) -> Answer<'a> {
    let mut total = nothing;
    for v in args.list(0)?.iter() {
        total = match (total, v) {
            (Value::Int(a), Value::Int(b)) => {
                Value::Int(a.checked_add(*b).ok_or_else(|| Error::new("integer overflow"))?)
            }
            (Value::UInt(a), Value::UInt(b)) => {
                Value::UInt(a.checked_add(*b).ok_or_else(|| Error::new("unsigned integer overflow"))?)
            }
            (Value::Double(a), Value::Double(b)) => Value::Double(a + b),
            (Value::Duration(a), Value::Duration(b)) => {
                Value::Duration(a.checked_add(*b).ok_or_else(|| Error::new("integer overflow"))?)
            }
            _ => return Err(Error::overload()),
        };
    }
    Ok(total)
}

fn extreme<'a>(args: &mut Args<'_, 'a>, name: &str, wanted: Ordering) -> Answer<'a> {
    let items = args.list(0)?;
    comparable(&items)?;
    let mut best = items.first().ok_or_else(|| Error::new(format!("{name} called on empty list")))?;
    for v in &items[1..] {
        if v.order(best) == Some(wanted) {
            best = v;
        }
    }
    Ok(best.clone())
}

fn min<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    extreme(args, "min", Ordering::Less)
}

fn max<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    extreme(args, "max", Ordering::Greater)
}

/// The place of the first of these that is the value.
fn place<'v, 'a: 'v>(
    items: impl Iterator<Item = (usize, &'v Value<'a>)>,
    wanted: &Value<'a>,
    fuel: &mut Fuel,
) -> Result<i64, Error> {
    for (i, item) in items {
        if item.equals(wanted, fuel)? {
            return Ok(i64::try_from(i).unwrap_or(i64::MAX));
        }
    }
    Ok(-1)
}

fn index_of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (items, wanted) = (args.list(0)?, args.take(1));
    int(place(items.iter().enumerate(), &wanted, &mut args.tools.fuel)?)
}

fn last_index_of<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (items, wanted) = (args.list(0)?, args.take(1));
    int(place(items.iter().enumerate().rev(), &wanted, &mut args.tools.fuel)?)
}

fn slice<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (items, start, end) = (args.list(0)?, args.int(1)?, args.int(2)?);
    if start < 0 || end < 0 {
        return Err(Error::new(format!("cannot slice({start}, {end}), negative indexes not supported")));
    }
    if start > end {
        return Err(Error::new(format!(
            "cannot slice({start}, {end}), start index must be less than or equal to end index"
        )));
    }
    let at = |n: i64| usize::try_from(n).ok().filter(|n| *n <= items.len());
    match (at(start), at(end)) {
        (Some(start), Some(end)) => Ok(Value::list(items[start..end].iter().cloned())),
        _ => Err(Error::new(format!("cannot slice({start}, {end}), list is length {}", items.len()))),
    }
}

fn flatten<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (items, depth) = (args.list(0)?, if args.len() > 1 { args.int(1)? } else { 1 });
    if depth < 0 {
        return Err(Error::new("level must be non-negative"));
    }
    let mut out = Vec::new();
    flattened(&items, depth, &mut out, &mut args.tools.fuel)?;
    Ok(Value::List(Arc::new(out)))
}

fn flattened<'a>(items: &[Value<'a>], depth: i64, out: &mut Vec<Value<'a>>, fuel: &mut Fuel) -> Result<(), Error> {
    for item in items {
        fuel.burn(1)?;
        match item.items().filter(|_| depth > 0) {
            Some(inner) => flattened(&inner, depth - 1, out, fuel)?,
            None if out.len() < MAX_MADE => out.push(item.clone()),
            None => return Err(Error::Cancelled),
        }
    }
    Ok(())
}

fn distinct<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let mut out: Vec<Value<'a>> = Vec::new();
    for item in args.list(0)?.iter() {
        if place(out.iter().enumerate(), item, &mut args.tools.fuel)? < 0 {
            out.push(item.clone());
        }
    }
    Ok(Value::List(Arc::new(out)))
}

fn reverse<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    Ok(Value::list(args.list(0)?.iter().rev().cloned()))
}

/// By keys of one comparable type.
fn sorted<'a>(items: &[Value<'a>], keys: &[Value<'a>]) -> Answer<'a> {
    if items.len() != keys.len() {
        return Err(Error::new("@sortByAssociatedKeys() expected a list of the same size as the associated keys list"));
    }
    let comparable = |v: &Value<'_>| {
        matches!(
            v,
            Value::Int(_)
                | Value::UInt(_)
                | Value::Double(_)
                | Value::Bool(_)
                | Value::Duration(_)
                | Value::Timestamp(_)
                | Value::String(_)
                | Value::Bytes(_)
        )
    };
    if let Some(first) = keys.first() {
        if !comparable(first) {
            return Err(Error::new("list elements must be comparable"));
        }
        if keys.iter().any(|k| std::mem::discriminant(k) != std::mem::discriminant(first)) {
            return Err(Error::new("list elements must have the same type"));
        }
    }
    let mut places: Vec<usize> = (0..items.len()).collect();
    places.sort_by(|a, b| total_order(&keys[*a], &keys[*b]));
    Ok(Value::list(places.into_iter().map(|i| items[i].clone())))
}

/// Order of keys of one type; NaN, which is in no order with other numbers, comes behind them.
fn total_order(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    let is_nan = |value: &Value<'_>| matches!(value, Value::Double(number) if number.is_nan());
    a.order(b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

fn sort<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let items = args.list(0)?;
    sorted(&items, &items)
}

fn sort_by_keys<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    sorted(&args.list(0)?, &args.list(1)?)
}

/// The element at a place of a list that has any.
fn at<'a>(args: &Args<'_, 'a>, place: fn(u64) -> u64) -> Answer<'a> {
    let list = args.get(0)?;
    match list.size().ok_or_else(Error::overload)? {
        0 => Ok(Value::Optional(None)),
        size => list.at(&Value::UInt(place(size))).map(Value::some),
    }
}

fn first<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    at(args, |_| 0)
}

fn last<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    at(args, |size| size - 1)
}

fn range<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let n = args.int(0)?;
    if usize::try_from(n).unwrap_or(0) > MAX_MADE {
        return Err(Error::Cancelled);
    }
    Ok(Value::list((0..n).map(Value::Int)))
}

/// Reports whether a list contains a value.
fn has<'a>(all: &[Value<'a>], value: &Value<'a>, fuel: &mut Fuel) -> Result<bool, Error> {
    place(all.iter().enumerate(), value, fuel).map(|at| at >= 0)
}

fn holds<'a>(all: &[Value<'a>], some: &[Value<'a>], fuel: &mut Fuel) -> Result<bool, Error> {
    for value in some {
        if !has(all, value, fuel)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (a, b) = (args.list(0)?, args.list(1)?);
    bool(holds(&a, &b, &mut args.tools.fuel)?)
}

fn equivalent<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (a, b) = (args.list(0)?, args.list(1)?);
    let fuel = &mut args.tools.fuel;
    bool(holds(&a, &b, fuel)? && holds(&b, &a, fuel)?)
}

fn intersects<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (a, b) = (args.list(0)?, args.list(1)?);
    for value in a.iter() {
        if has(&b, value, &mut args.tools.fuel)? {
            return bool(true);
        }
    }
    bool(false)
}
