//! CEL environment of requests under admission: `object`, `oldObject`, `request`, `params`, `namespaceObject`,
//! `authorizer`.
//!
//! Objects are of any type where a policy is stored, and of a known one where its status is made.

use super::types::Type;
use super::{Declared, library::authorizer as names};

fn gvk() -> Type {
    Type::object("kubernetes.GroupVersionKind", ["group", "version", "kind"].map(|n| (n, Type::String)))
}

fn gvr() -> Type {
    Type::object("kubernetes.GroupVersionResource", ["group", "version", "resource"].map(|n| (n, Type::String)))
}

/// The type of a user: `request.userInfo`, and `user` in rules of authentication.
#[must_use]
pub fn user() -> Type {
    Type::object(
        "kubernetes.UserInfo",
        [
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
        ],
    )
}

/// The type of `request`.
#[must_use]
pub fn request() -> Type {
    Type::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", gvk()),
            ("resource", gvr()),
            ("subResource", Type::String),
            ("requestKind", gvk()),
            ("requestResource", gvr()),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user()),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

/// The type of `namespaceObject`: of a Namespace, what policies may rely on.
#[must_use]
pub fn namespace() -> Type {
    let texts = || Type::map(Type::String, Type::String);
    let metadata = Type::object(
        "kubernetes.NamespaceMetadata",
        [
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", texts()),
            ("annotations", texts()),
            ("UID", Type::String),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", Type::list(Type::String)),
        ],
    );
    let condition = Type::object(
        "kubernetes.NamespaceCondition",
        [
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    let status =
        Type::object("kubernetes.NamespaceStatus", [("conditions", Type::list(condition)), ("phase", Type::String)]);
    let spec = Type::object("kubernetes.NamespaceSpec", [("finalizers", Type::list(Type::String))]);
    Type::object("kubernetes.Namespace", [("metadata", metadata), ("spec", spec), ("status", status)])
}

/// The variables of an expression about a request for an object of this type; `params` when there are any.
#[must_use]
pub fn variables(object: &Type, params: Option<&Type>) -> Declared {
    let mut all = Declared::from([
        ("object".to_owned(), object.clone()),
        ("oldObject".to_owned(), object.clone()),
        ("request".to_owned(), request()),
        ("namespaceObject".to_owned(), namespace()),
        ("authorizer".to_owned(), Type::Opaque(names::AUTHORIZER)),
        ("authorizer.requestResource".to_owned(), Type::Opaque(names::RESOURCE)),
    ]);
    if let Some(params) = params {
        all.insert("params".to_owned(), params.clone());
    }
    all
}

/// Declares `variables.<name>`. Of its type no more is known than upstream's declarations say: plain values, lists and
/// maps of them.
pub fn declare(variables: &mut Declared, name: &str, of: &Type) {
    variables.insert(format!("variables.{name}"), plain(of));
}

fn plain(of: &Type) -> Type {
    match of {
        Type::Any
        | Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::UInt => of.clone(),
        Type::List(item) => Type::list(plain(item)),
        Type::Map(entry) => Type::map(plain(&entry.0), plain(&entry.1)),
        _ => Type::Dyn,
    }
}

/// Declares `variables`, so that what it does not have can be told.
pub fn declare_none(variables: &mut Declared) {
    variables.insert("variables".to_owned(), Type::object("kubernetes.variables", [] as [(&str, Type); 0]));
}
