//! `isSorted`, `sum`, `min`, `max`, `indexOf`, `lastIndexOf`, and `sets.*`.

use std::cmp::Ordering;

use ::cel::Value;

use super::{ANY, Answer, Entry, LIST, entry, overload};

pub(super) const TABLE: &[Entry] = &[
    entry!("isSorted", true, [LIST], is_sorted),
    entry!("sum", true, [LIST], sum),
    entry!("min", true, [LIST], min),
    entry!("max", true, [LIST], max),
    entry!("indexOf", true, [LIST, ANY], index_of),
    entry!("lastIndexOf", true, [LIST, ANY], last_index_of),
    entry!("sets.contains", false, [LIST, LIST], contains),
    entry!("sets.equivalent", false, [LIST, LIST], equivalent),
    entry!("sets.intersects", false, [LIST, LIST], intersects),
];

fn list(args: &[Value], i: usize) -> Result<&[Value], String> {
    match args.get(i) {
        Some(Value::List(l)) => Ok(l),
        _ => Err(overload("list expected")),
    }
}

fn order(a: &Value, b: &Value) -> Result<Ordering, String> {
    a.partial_cmp(b).ok_or_else(|| overload("values are not comparable"))
}

fn is_sorted(args: &[Value]) -> Answer {
    for pair in list(args, 0)?.windows(2) {
        if order(&pair[0], &pair[1])? == Ordering::Greater {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn sum(args: &[Value]) -> Answer {
    let mut total: Option<Value> = None;
    for v in list(args, 0)? {
        total = Some(match (total, v) {
            (None, v) => v.clone(),
            (Some(Value::Int(a)), Value::Int(b)) => Value::Int(a.checked_add(*b).ok_or("integer overflow")?),
            (Some(Value::UInt(a)), Value::UInt(b)) => {
                Value::UInt(a.checked_add(*b).ok_or("unsigned integer overflow")?)
            }
            (Some(Value::Float(a)), Value::Float(b)) => Value::Float(a + b),
            (Some(Value::Duration(a)), Value::Duration(b)) => {
                Value::Duration(a.checked_add(b).ok_or("duration overflow")?)
            }
            _ => return Err(overload("sum")),
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}

fn extreme(args: &[Value], name: &str, wanted: Ordering) -> Answer {
    let mut items = list(args, 0)?.iter();
    let mut best = items.next().ok_or_else(|| format!("{name} called on empty list"))?;
    for v in items {
        if order(v, best)? == wanted {
            best = v;
        }
    }
    Ok(best.clone())
}

fn min(args: &[Value]) -> Answer {
    extreme(args, "min", Ordering::Less)
}

fn max(args: &[Value]) -> Answer {
    extreme(args, "max", Ordering::Greater)
}

fn index(found: Option<usize>) -> Answer {
    Ok(Value::Int(found.and_then(|i| i64::try_from(i).ok()).unwrap_or(-1)))
}

fn index_of(args: &[Value]) -> Answer {
    index(list(args, 0)?.iter().position(|v| v == &args[1]))
}

fn last_index_of(args: &[Value]) -> Answer {
    index(list(args, 0)?.iter().rposition(|v| v == &args[1]))
}

fn holds(all: &[Value], some: &[Value]) -> bool {
    some.iter().all(|v| all.contains(v))
}

fn contains(args: &[Value]) -> Answer {
    Ok(Value::Bool(holds(list(args, 0)?, list(args, 1)?)))
}

fn equivalent(args: &[Value]) -> Answer {
    let (a, b) = (list(args, 0)?, list(args, 1)?);
    Ok(Value::Bool(holds(a, b) && holds(b, a)))
}

fn intersects(args: &[Value]) -> Answer {
    let b = list(args, 1)?;
    Ok(Value::Bool(list(args, 0)?.iter().any(|v| b.contains(v))))
}
