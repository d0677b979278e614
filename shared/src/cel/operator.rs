//! Functions that are one for all types of values.

/// Functions that answer by themselves for all that their names can be, and the types of the values that have them. What
/// comes of others is said by the name.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) names: &'static [&'static str],
    pub(super) of: &'static [&'static str],
}

static OPERATORS: [Operator; 9] = [
    Operator {
        names: &["_+_"],
        of: &[
            "bytes",
            "double",
            "google.protobuf.Duration",
            "int",
            "list",
            "string",
            "google.protobuf.Timestamp",
            "uint",
        ],
    },
    Operator {
        names: &["_-_"],
        of: &["double", "google.protobuf.Duration", "int", "google.protobuf.Timestamp", "uint"],
    },
    Operator { names: &["_*_", "_/_"], of: &["double", "int", "uint"] },
    Operator { names: &["_%_"], of: &["int", "uint"] },
    Operator {
        names: &["_<_", "_<=_", "_>_", "_>=_"],
        of: &[
            "bool",
            "bytes",
            "double",
            "google.protobuf.Duration",
            "int",
            "string",
            "google.protobuf.Timestamp",
            "uint",
        ],
    },
    Operator { names: &["-_"], of: &["bool", "double", "google.protobuf.Duration", "int"] },
    Operator { names: &["size"], of: &["bytes", "list", "map", "string"] },
    Operator { names: &["sort", "@sortByAssociatedKeys"], of: &["list"] },
    Operator {
        names: &["!_", "@in", "_==_", "_!=_", "contains", "startsWith", "endsWith", "matches", "type", "dyn"],
        of: &[],
    },
];

/// The operator of a name, if it is one.
pub(super) fn operator(name: &str) -> Option<&'static Operator> {
    OPERATORS.iter().find(|o| o.names.contains(&name))
}
