//! The error of reading YAML.

use crate::json::DecodeError;

/// Error of reading a document, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Broken(pub(super) String);

impl Broken {
    /// A problem on a line; none is zero.
    pub(super) fn at(line: usize, problem: &str) -> Self {
        Self(if line == 0 { format!("yaml: {problem}") } else { format!("yaml: line {line}: {problem}") })
    }
}

impl From<Broken> for DecodeError {
    fn from(broken: Broken) -> Self {
        Self::Yaml(broken.0)
    }
}
