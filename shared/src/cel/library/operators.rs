//! Operators, `size`, `in`, and what comprehensions are made of.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Args, Entry, ONE, bool, function, int, method};
use crate::cel::Error;
use crate::cel::cost::Cost;
use crate::cel::value::{Answer, Key, Map, Value};

macro_rules! ordered {
    ($name:literal, $run:path) => {
        [
            function($name, "bool, bool", "bool", ONE, $run),
            function($name, "int, int", "bool", ONE, $run),
            function($name, "uint, uint", "bool", ONE, $run),
            function($name, "double, double", "bool", ONE, $run),
            function($name, "string, string", "bool", Cost::Compare, $run),
            function($name, "bytes, bytes", "bool", Cost::Compare, $run),
            function($name, "timestamp, timestamp", "bool", ONE, $run),
            function($name, "duration, duration", "bool", ONE, $run),
            function($name, "int, uint", "bool", ONE, $run),
            function($name, "int, double", "bool", ONE, $run),
            function($name, "uint, int", "bool", ONE, $run),
            function($name, "uint, double", "bool", ONE, $run),
            function($name, "double, int", "bool", ONE, $run),
            function($name, "double, uint", "bool", ONE, $run),
        ]
    };
}

const LESS: [Entry; 14] = ordered!("_<_", less);
const LESS_EQUAL: [Entry; 14] = ordered!("_<=_", less_equal);
const GREATER: [Entry; 14] = ordered!("_>_", greater);
const GREATER_EQUAL: [Entry; 14] = ordered!("_>=_", greater_equal);
const ADD_NUMBERS: [Entry; 3] = [
    function("_+_", "int, int", "int", ONE, add),
    function("_+_", "uint, uint", "uint", ONE, add),
    function("_+_", "double, double", "double", ONE, add),
];
const SUBTRACT: [Entry; 6] = [
    function("_-_", "int, int", "int", ONE, subtract),
    function("_-_", "uint, uint", "uint", ONE, subtract),
    function("_-_", "double, double", "double", ONE, subtract),
    function("_-_", "duration, duration", "duration", ONE, subtract),
    function("_-_", "timestamp, duration", "timestamp", ONE, subtract),
    function("_-_", "timestamp, timestamp", "duration", ONE, subtract),
];
const MULTIPLY: [Entry; 3] = [
    function("_*_", "int, int", "int", ONE, multiply),
    function("_*_", "uint, uint", "uint", ONE, multiply),
    function("_*_", "double, double", "double", ONE, multiply),
];
const DIVIDE: [Entry; 3] = [
    function("_/_", "int, int", "int", ONE, divide),
    function("_/_", "uint, uint", "uint", ONE, divide),
    function("_/_", "double, double", "double", ONE, divide),
];
const REMAINDER: [Entry; 2] =
    [function("_%_", "int, int", "int", ONE, remainder), function("_%_", "uint, uint", "uint", ONE, remainder)];
const REST: [Entry; 29] = [
    function("_?_:_", "bool, A, A", "A", ONE, never),
    function("@not_strictly_false", "bool", "bool", ONE, never),
    function("_[_]", "list(A), int", "A", ONE, never),
    function("_[_]", "map(A, B), A", "B", ONE, never),
    function("_[_]", "optional(list(A)), int", "optional(A)", ONE, never),
    function("_[_]", "optional(map(A, B)), A", "optional(B)", ONE, never),
    function("_[?_]", "list(A), int", "optional(A)", ONE, never),
    function("_[?_]", "optional(list(A)), int", "optional(A)", ONE, never),
    function("_[?_]", "map(A, B), A", "optional(B)", ONE, never),
    function("_[?_]", "optional(map(A, B)), A", "optional(B)", ONE, never),
    function("_==_", "A, A", "bool", Cost::Equal, equal),
    function("_!=_", "A, A", "bool", Cost::Compare, unequal),
    function("!_", "bool", "bool", ONE, not),
    function("-_", "int", "int", ONE, negate),
    function("-_", "double", "double", ONE, negate),
    function("_+_", "string, string", "string", Cost::Concat, add),
    function("_+_", "bytes, bytes", "bytes", Cost::Concat, add),
    function("_+_", "list(A), list(A)", "list(A)", Cost::ConcatList, add),
    function("_+_", "timestamp, duration", "timestamp", ONE, add),
    function("_+_", "duration, timestamp", "timestamp", ONE, add),
    function("_+_", "duration, duration", "duration", ONE, add),
    function("@in", "A, list(A)", "bool", Cost::InList, within),
    function("@in", "A, map(A, B)", "bool", ONE, within),
    function("size", "string", "int", ONE, size),
    function("size", "bytes", "int", ONE, size),
    function("size", "list(A)", "int", ONE, size),
    function("size", "map(A, B)", "int", ONE, size),
    function("cel.@mapInsert", "map(A, B), A, B", "map(A, B)", ONE, insert),
    function("cel.@mapInsert", "map(A, B), map(A, B)", "map(A, B)", ONE, insert),
];
const MEMBERS: [Entry; 4] = [
    method("size", "string", "int", ONE, size),
    method("size", "bytes", "int", ONE, size),
    method("size", "list(A)", "int", ONE, size),
    method("size", "map(A, B)", "int", ONE, size),
];

pub(super) const TABLES: [&[Entry]; 11] = [
    &LESS,
    &LESS_EQUAL,
    &GREATER,
    &GREATER_EQUAL,
    &ADD_NUMBERS,
    &SUBTRACT,
    &MULTIPLY,
    &DIVIDE,
    &REMAINDER,
    &REST,
    &MEMBERS,
];

/// Implementation of operators that the evaluator handles itself: only their types are here.
fn never<'a>(_: &mut Args<'_, 'a>) -> Answer<'a> {
    Err(Error::overload())
}

fn equal<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(same(args)?)
}

fn unequal<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(!same(args)?)
}

fn same(args: &mut Args<'_, '_>) -> Result<bool, Error> {
    let [a, b] = [0, 1].map(|at| &args.values[at]);
    // Quantities, versions and the like compare themselves with their own kind only.
    if matches!(a, Value::Opaque(_)) && !matches!(b, Value::Null) && a.type_name() != b.type_name() {
        return Err(Error::overload());
    }
    a.equals(b, &mut args.tools.fuel)
}

fn not<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Bool(b) => bool(!b),
        _ => Err(Error::overload()),
    }
}

fn order(args: &Args<'_, '_>) -> Result<Ordering, Error> {
    let (a, b) = (args.get(0)?, args.get(1)?);
    let numbers = [a, b].iter().all(|v| matches!(v, Value::Int(_) | Value::UInt(_) | Value::Double(_)));
    let why = || if numbers { Error::new("NaN values cannot be ordered") } else { Error::overload() };
    a.order(b).ok_or_else(why)
}

fn less<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(order(args)?.is_lt())
}

fn less_equal<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(order(args)?.is_le())
}

fn greater<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(order(args)?.is_gt())
}

fn greater_equal<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    bool(order(args)?.is_ge())
}

fn whole<'a>(n: Option<i64>) -> Answer<'a> {
    n.map(Value::Int).ok_or_else(|| Error::new("integer overflow"))
}

fn unsigned<'a>(n: Option<u64>) -> Answer<'a> {
    n.map(Value::UInt).ok_or_else(|| Error::new("unsigned integer overflow"))
}

fn span<'a>(n: Option<i64>) -> Answer<'a> {
    n.map(Value::Duration).ok_or_else(|| Error::new("integer overflow"))
}

fn moment<'a>(t: Result<jiff::civil::DateTime, jiff::Error>) -> Answer<'a> {
    let t = t.ok().filter(super::time::exists);
    t.map(Value::Timestamp).ok_or_else(|| Error::new("timestamp overflow"))
}

fn add<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (a, b) = (args.take(0), args.take(1));
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => whole(a.checked_add(b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_add(b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => super::text([&*a, &*b].concat()),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes([&*a, &*b].concat().into())),
        (Value::Duration(a), Value::Duration(b)) => span(a.checked_add(b)),
        (Value::Timestamp(t), Value::Duration(d)) | (Value::Duration(d), Value::Timestamp(t)) => {
            moment(t.checked_add(jiff::SignedDuration::from_nanos(d)))
        }
        (a, b) => {
            let fuel = &mut args.tools.fuel;
            fuel.burn(b.size().unwrap_or(0))?;
            let (Some(mut a), Some(b)) = (a_list(a), b.items()) else { return Err(Error::overload()) };
            if Arc::get_mut(&mut a).is_none() {
                fuel.burn(a.len() as u64)?;
            }
            Arc::make_mut(&mut a).extend(b.iter().cloned());
            Ok(Value::List(a))
        }
    }
}

/// A list that is not shared stays in its place.
fn a_list(value: Value<'_>) -> Option<Arc<Vec<Value<'_>>>> {
    match value {
        Value::List(items) => Some(items),
        other => other.items(),
    }
}

fn subtract<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match (args.get(0)?, args.get(1)?) {
        (Value::Int(a), Value::Int(b)) => whole(a.checked_sub(*b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_sub(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => span(a.checked_sub(*b)),
        (Value::Timestamp(t), Value::Duration(d)) => moment(t.checked_sub(jiff::SignedDuration::from_nanos(*d))),
        (Value::Timestamp(a), Value::Timestamp(b)) => span(i64::try_from(a.duration_since(*b).as_nanos()).ok()),
        _ => Err(Error::overload()),
    }
}

fn multiply<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match (args.get(0)?, args.get(1)?) {
        (Value::Int(a), Value::Int(b)) => whole(a.checked_mul(*b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_mul(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        _ => Err(Error::overload()),
    }
}

fn divide<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match (args.get(0)?, args.get(1)?) {
        (Value::Int(_), Value::Int(0)) | (Value::UInt(_), Value::UInt(0)) => Err(Error::new("division by zero")),
        (Value::Int(a), Value::Int(b)) => whole(a.checked_div(*b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_div(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        _ => Err(Error::overload()),
    }
}

fn remainder<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match (args.get(0)?, args.get(1)?) {
        (Value::Int(_), Value::Int(0)) | (Value::UInt(_), Value::UInt(0)) => Err(Error::new("modulus by zero")),
        (Value::Int(a), Value::Int(b)) => whole(a.checked_rem(*b)),
        (Value::UInt(a), Value::UInt(b)) => unsigned(a.checked_rem(*b)),
        _ => Err(Error::overload()),
    }
}

fn negate<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Int(n) => whole(n.checked_neg()),
        Value::Double(n) => Ok(Value::Double(-n)),
        Value::Duration(n) => span(n.checked_neg()),
        _ => Err(Error::overload()),
    }
}

fn within<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let (value, all) = (args.take(0), args.take(1));
    if let Some(items) = all.items() {
        for item in items.iter() {
            if item.equals(&value, &mut args.tools.fuel)? {
                return bool(true);
            }
        }
        return bool(false);
    }
    match &all {
        // What is given for keys that are not there does not put them there.
        Value::Map(map) if map.otherwise.is_some() => {
            bool(Key::of(&value).is_some_and(|key| map.entries.contains_key(&key)))
        }
        Value::Map(_) | Value::Tree(_) => bool(all.at(&value).is_ok()),
        _ => Err(Error::overload()),
    }
}

fn size<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let size = args.get(0)?.size().ok_or_else(Error::overload)?;
    int(i64::try_from(size).unwrap_or(i64::MAX))
}

/// Adds an entry, or all entries of another map; a key is there once.
fn insert<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let map = args.take(0);
    let more = match args.len() {
        3 => vec![(args.take(1), args.take(2))],
        _ => args.get(1)?.entries().ok_or_else(Error::overload)?,
    };
    let mut map = match map {
        Value::Map(map) => map,
        other => {
            let entries = other.entries().ok_or_else(Error::overload)?;
            let entries = entries.into_iter().filter_map(|(k, v)| Some((Key::of(&k)?, v))).collect();
            Arc::new(Map { entries, otherwise: None })
        }
    };
    let entries = &mut Arc::make_mut(&mut map).entries;
    for (key, value) in more {
        let name = Key::of(&key).ok_or_else(Error::overload)?;
        if entries.insert(name, value).is_some() {
            return Err(Error::new(format!("insert failed: key '{}' already exists", key.shown())));
        }
    }
    Ok(Value::Map(map))
}
