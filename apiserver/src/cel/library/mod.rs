//! Kubernetes' functions: regular expressions, lists, URLs, quantities, addresses, versions, formats, sets.
//!
//! A function takes its receiver as first argument. What is of no CEL type is opaque: only these functions see inside.

mod address;
mod format;
mod lists;
mod quantity;
mod regex;
mod semver;
mod url;

use std::sync::Arc;

use cel::common::functions::Function;
use cel::common::types::{BOOL_TYPE, DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE, Type};
use cel::common::value::CowVal;
use cel::objects::Opaque;
use cel::{DeclarationError, Env, ExecutionError, Value};

type Answer = Result<Value, String>;

/// One function: its name, the types of its arguments, what it does. Members have their receiver first.
struct Entry {
    name: &'static str,
    member: bool,
    arguments: &'static [Kind],
    run: Function,
}

/// Adds them all.
pub(super) fn add(env: &mut Env) -> Result<(), DeclarationError> {
    let tables =
        [regex::TABLE, lists::TABLE, url::TABLE, quantity::TABLE, address::TABLE, semver::TABLE, format::TABLE];
    for entry in tables.into_iter().flatten() {
        let id = format!("kubernetes.{}.{}.{}", entry.name, entry.member, entry.arguments.len());
        if entry.member {
            let mut rest = entry.arguments.iter().map(Kind::declared);
            let target = rest.next().unwrap_or(DYN_TYPE);
            env.add_member_overload(entry.name, &id, target, rest.collect(), entry.run)?;
        } else {
            env.add_overload(entry.name, &id, entry.arguments.iter().map(Kind::declared).collect(), entry.run)?;
        }
    }
    Ok(())
}

/// The type of an argument.
#[derive(Clone, Copy)]
enum Kind {
    Any,
    Text,
    List,
    Int,
    Bool,
}

impl Kind {
    fn declared(&self) -> Type {
        match self {
            Self::Any => DYN_TYPE,
            Self::Text => STRING_TYPE,
            Self::List => LIST_TYPE,
            Self::Int => INT_TYPE,
            Self::Bool => BOOL_TYPE,
        }
    }
}

const ANY: Kind = Kind::Any;
const TEXT: Kind = Kind::Text;
const LIST: Kind = Kind::List;

/// An entry for a function over values.
macro_rules! entry {
    ($name:literal, $member:literal, [$($argument:expr),*], $run:path) => {{
        fn call<'b, 'v>(
            args: Vec<cel::common::value::CowVal<'b, 'v>>,
        ) -> Result<cel::common::value::CowVal<'b, 'v>, cel::ExecutionError> {
            $crate::cel::library::apply($name, $run, &args)
        }
        $crate::cel::library::Entry { name: $name, member: $member, arguments: &[$($argument),*], run: call }
    }};
}
use entry;

fn apply<'b, 'v>(
    name: &str,
    run: fn(&[Value]) -> Answer,
    args: &[CowVal<'b, 'v>],
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let values = args.iter().map(|a| Value::try_from(a.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let answer = run(&values).map_err(|e| ExecutionError::function_error(name, e))?;
    Ok(CowVal::Owned(answer.try_into()?))
}

fn overload(name: &str) -> String {
    format!("no such overload: {name}")
}

fn text(args: &[Value], i: usize) -> Result<&str, String> {
    match args.get(i) {
        Some(Value::String(s)) => Ok(s),
        _ => Err(overload("string expected")),
    }
}

fn string(text: impl Into<String>) -> Value {
    Value::String(Arc::new(text.into()))
}

fn opaque<T: Opaque>(value: T) -> Value {
    Value::Opaque(Arc::new(value))
}

fn inside<T: 'static>(args: &[Value], i: usize) -> Option<&T> {
    match args.get(i) {
        Some(Value::Opaque(o)) => o.downcast_ref::<T>(),
        _ => None,
    }
}

/// `isLessThan`, `isGreaterThan` and `compareTo` are the same for all that is ordered.
fn ordering(args: &[Value]) -> Result<std::cmp::Ordering, String> {
    quantity::compare(args).or_else(|| semver::compare(args)).ok_or_else(|| overload("compareTo"))
}
