//! Dispatch of calls: selects the overload by the arguments' values, or reports that none matches.

use serde_json::Value as Tree;

use super::Error;
use super::library::Entry;
use super::node::OverloadCandidate;
use super::operator::Operator;
use super::types::Type;
use super::value::Value;

/// Values that answer for themselves what they cannot do: without its name.
const RECEIVERS: [&str; 3] = ["string", "google.protobuf.Duration", "google.protobuf.Timestamp"];

/// The function for these values. `quiet`: what does not fit is not shown.
pub(super) fn choose(
    (name, operator): (&str, Option<&Operator>),
    candidates: &[OverloadCandidate],
    values: &[Value<'_>],
    quiet: bool,
) -> Result<&'static Entry, Error> {
    if let Some(operator) = operator {
        let of = values.first().map_or("", Value::type_name);
        if !operator.of.is_empty() && !operator.of.contains(&of) {
            let plain = RECEIVERS.contains(&of);
            return Err(Error::NoOverload((!plain).then(|| name.to_owned())));
        }
        return Ok(candidates[0].entry);
    }
    let fits = |c: &&OverloadCandidate| c.arguments.iter().zip(values).all(|(t, v)| suits(t, v));
    let found = candidates.iter().find(fits).map(|c| c.entry);
    found.ok_or_else(|| {
        if quiet {
            return Error::overload();
        }
        let types: Vec<&str> = values.iter().map(Value::type_name).collect();
        Error::NoOverload(Some(format!("{name}({})", types.join(", "))))
    })
}

/// Reports whether a value is of a declared type, judged by itself and its first element.
fn suits(of: &Type, value: &Value<'_>) -> bool {
    match (of, value) {
        (Type::Dyn | Type::Any | Type::Param(_), _)
        | (Type::Null, Value::Null)
        | (Type::Bool, Value::Bool(_))
        | (Type::Int, Value::Int(_))
        | (Type::UInt, Value::UInt(_))
        | (Type::Double, Value::Double(_))
        | (Type::String, Value::String(_))
        | (Type::Bytes, Value::Bytes(_))
        | (Type::Timestamp, Value::Timestamp(_))
        | (Type::Duration, Value::Duration(_))
        | (Type::Type(_), Value::Type(_))
        | (Type::Optional(_), Value::Optional(_)) => true,
        (Type::List(of), Value::List(_) | Value::Tree(Tree::Array(_))) => {
            value.element(0).is_none_or(|first| suits(of, &first))
        }
        (Type::Map(of), Value::Map(_) | Value::Tree(Tree::Object(_))) => {
            value.first_entry().is_none_or(|(k, v)| suits(&of.0, &k) && suits(&of.1, &v))
        }
        (Type::Opaque(name), Value::Opaque(o)) => o.type_name() == *name,
        _ => false,
    }
}

/// Go type of a value in cel-go, which some messages show.
pub(super) fn go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::UInt(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::List(_) | Value::Tree(Tree::Array(_)) => "*types.baseList",
        Value::Map(_) | Value::Tree(_) => "*types.baseMap",
        Value::Made(_) => "*dynamic.ObjectVal",
        Value::Type(_) => "*types.Type",
        Value::Optional(_) => "*types.Optional",
        Value::Opaque(o) => match o.type_name() {
            "kubernetes.Quantity" => "cel.Quantity",
            "kubernetes.URL" => "cel.URL",
            "kubernetes.Semver" => "cel.Semver",
            "net.IP" => "cel.IP",
            "net.CIDR" => "cel.CIDR",
            "kubernetes.NamedFormat" => "*cel.Format",
            "kubernetes.authorization.Authorizer" => "library.authorizerVal",
            "kubernetes.authorization.PathCheck" => "library.pathCheckVal",
            "kubernetes.authorization.GroupCheck" => "library.groupCheckVal",
            "kubernetes.authorization.ResourceCheck" => "library.resourceCheckVal",
            _ => "library.decisionVal",
        },
    }
}
