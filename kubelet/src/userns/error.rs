//! Failures of user namespaces, in upstream's words.

use std::io;
use std::num::ParseIntError;

/// Reasons why the node gives no user namespaces.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// The size of a range is no multiple of the unit.
    #[error("kubelet user namespace length {length} is not a multiple of {unit}")]
    Length {
        /// Size of a range.
        length: u32,
        /// The unit.
        unit: u32,
    },
    /// The first id begins no range.
    #[error("kubelet user assigned ID {first} is not a multiple of {length}")]
    First {
        /// The first id.
        first: u32,
        /// Size of a range.
        length: u32,
    },
    /// The first range is the node's own.
    #[error("kubelet user assigned ID {first} must be greater or equal to {length}")]
    FirstRange {
        /// The first id.
        first: u32,
        /// Size of a range.
        length: u32,
    },
    /// The ids do not fill the last range.
    #[error("kubelet user assigned IDs length {ids} is not a multiple of {length}")]
    Last {
        /// Number of ids.
        ids: u32,
        /// Size of a range.
        length: u32,
    },
    /// Fewer ranges than pods may be.
    #[error("kubelet user assigned IDs are not enough to support {0} pods")]
    TooFew(i64),
    /// A pod on the disk has a range that cannot be its own.
    #[error("record pod mappings for existing pod {uid:?}: {cause}")]
    Existing {
        /// Uid of the pod.
        uid: String,
        /// Cause.
        #[source]
        cause: MappingError,
    },
}

/// Ranges of pods that cannot be theirs, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The file is large.
    #[error("user namespace mappings file is too large")]
    TooLarge,
    /// The file cannot be read, or is no such document.
    #[error("invalid user namespace mappings file: {0}")]
    File(io::Error),
    /// Several ranges.
    #[error("invalid user namespace configuration: no more than one mapping allowed.")]
    Several,
    /// Other ranges, or another number of them, for groups than for users.
    #[error("invalid user namespace configuration: GID and UID mappings should be identical.")]
    SeveralGroups,
    /// Another range for groups than for users.
    #[error("invalid user namespace configuration: GID and UID mapping should be identical")]
    Groups,
    /// Root of the namespace is nobody.
    #[error("invalid user namespace configuration: UID 0 must be mapped")]
    NoRoot,
    /// The range has another size than the node's.
    #[error("wrong user namespace length {0}")]
    Length(u32),
    /// The range begins within one of the node's.
    #[error("wrong user namespace offset specified {0}")]
    Offset(u32),
    /// The pod has another range.
    #[error("different user namespace range already used by pod {0:?}")]
    Other(String),
    /// The range is not the node's to give.
    #[error("id {0} is out of range")]
    Foreign(u32),
    /// Another pod has the range.
    #[error("range picked for pod {0:?} already taken")]
    Taken(String),
}

/// Reasons why a pod gets no user namespace.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The feature is off.
    #[error("the feature gate {0:?} is disabled: can't set spec.HostUsers")]
    Disabled(&'static str),
    /// The runtime's handler has none.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// The file of the pod's range cannot be read.
    #[error(transparent)]
    Read(MappingError),
    /// The range that the pod has cannot be its own.
    #[error("user namespace: {0}")]
    Mapping(MappingError),
    /// All ranges are taken.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    NoneFree,
    /// The range cannot be written down.
    #[error("create user namespace: {0}")]
    Write(io::Error),
}

/// Handlers of the runtime that have no user namespaces.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// The runtime has not told of its handlers.
    #[error("{}: runtime handlers are not set", refused(.0))]
    NotTold(String),
    /// The handler has none.
    #[error("{}", refused(.0))]
    Unable(String),
    /// The runtime has no such handler.
    #[error("{}: the handler {:?} is not known", refused(.0), .0)]
    Unknown(String),
}

fn refused(handler: &str) -> String {
    let what = "can't set `spec.hostUsers: false`";
    match handler {
        "" => format!("{what}, runtime does not support user namespaces"),
        _ => format!("{what}, RuntimeClass handler {handler:?} does not support user namespaces"),
    }
}

/// Reasons why the ids of the node cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// The users of the node cannot be read.
    #[error("open {file}: {cause}")]
    Users {
        /// The file.
        file: &'static str,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// The program failed.
    #[error("error retrieving additional {what} for user {user:?}")]
    Program {
        /// `ids` or `gids`.
        what: &'static str,
        /// The user.
        user: &'static str,
    },
    /// Users and groups have other ids.
    #[error("mismatched subuids and subgids for user {0:?}")]
    Mismatch(&'static str),
    /// The program prints several ranges.
    #[error("error parsing line {0:?}: it must contain only one line")]
    Lines(String),
    /// The program prints something else.
    #[error("invalid line {0:?}")]
    Line(String),
    /// The program prints a number that is none.
    #[error("error parsing line {line:?}: strconv.ParseUint: parsing {part:?}: {cause}")]
    Number {
        /// The line.
        line: String,
        /// The number.
        part: String,
        /// Cause.
        #[source]
        cause: ParseIntError,
    },
}
