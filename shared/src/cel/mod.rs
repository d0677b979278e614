//! CEL: the one environment expressions run in, wherever they stand: rules of custom resources, admission policies, match
//! conditions, authentication and authorisation configuration, device selectors.
//!
//! In come the text of an expression and the variables it may name with their types ([`Declared`]); out comes a
//! [`Program`], or a report in upstream's words. A program runs on values ([`Scope`]) under a cost limit that upstream
//! counts the same way. Synchronous and pure: no expression can reach out of the values it is given, and none runs
//! without a bound. The parser is that of the `cel` crate; types, functions, evaluation and cost are here. Nothing is made
//! before the first expression is compiled. Answers for `k8s.io/apiserver/pkg/cel` and `cel-go`.

pub mod admission;
mod check;
mod cost;
pub mod device;
mod dispatch;
mod environment;
mod error;
mod estimate;
mod eval;
mod fuel;
mod library;
mod limits;
mod named_format;
mod node;
mod opaque;
mod operator;
mod parse;
mod paths;
mod plan;
mod printed;
mod program;
mod range;
mod tools;
mod types;
mod value;
mod words;

pub use environment::{Declared, Extras};
pub use error::{CompileError, Error, PlanError, Rejected};
pub use estimate::{Estimate, EstimatePlace, MAX_ELEMENT_BYTES};
pub use fuel::Fuel;
pub use library::authorizer::{Authorities, Decision, authorizer};
pub use library::format::fits as format_problems;
pub use library::quantity::quantity;
pub use library::semver::{SemverError, semver};
pub use library::{duration, timestamp};
pub use limits::{Budget, MATCH_CONDITIONS_BUDGET, MAX_EXPRESSION, MAX_MESSAGE, PER_CALL_LIMIT, RUNTIME_BUDGET};
pub use program::{Program, Scope};
pub use types::{Fields, Shape, Type};
pub use value::{Answer, Key, Made, Map, Opaque, Text, Value};
pub use words::{RESERVED, escape, is_identifier};

#[cfg(test)]
mod tests;
