//! Errors of evaluating policies, and their kinds in metrics.

use proto::merge::apply::ConfigureError;
use proto::merge::json_patch;
use shared::cel;

use crate::expressions::{EvaluationError, ExpressionError};

/// Error of a policy on a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PolicyEvaluationError {
    /// An expression cannot be evaluated.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// The messages of its validations cannot be computed.
    #[error("failed messageExpression: {0}")]
    Message(#[source] EvaluationError),
    /// A mutation makes objects whose names are not those of the fields that they stand in: an explanation of each.
    #[error("type mismatch: {}", .0.join("\n"))]
    TypeNames(Vec<String>),
    /// A mutation makes an object with a map whose keys are not texts.
    #[error("invalid return type: *dynamic.ObjectVal")]
    Keys,
    /// A patch holds a value that JSON has not.
    #[error("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {0}")]
    PatchValue(#[source] cel::Error),
    /// A configuration holds a value that JSON has not.
    #[error(transparent)]
    ConfigurationValue(cel::Error),
    /// A configuration cannot be merged into the object.
    #[error("error applying patch: {0}")]
    Configuration(#[source] ConfigureError),
    /// A patch cannot be applied to the object.
    #[error("JSON Patch: {0}")]
    Patch(#[source] json_patch::Error),
}

impl PolicyEvaluationError {
    /// Kind of a validation that says no, and of all errors that have no kind of their own.
    pub(super) const INVALID: &'static str = "invalid_error";

    /// Returns the kind of the error in metrics.
    pub(super) fn error_type(&self) -> &'static str {
        match self {
            Self::Evaluation(EvaluationError::Exhausted) => "out_of_budget",
            Self::Evaluation(
                EvaluationError::Compilation(_)
                | EvaluationError::Unusable(ExpressionError::Rejected(cel::Rejected::Compilation(_))),
            ) => "compile_error",
            _ => Self::INVALID,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_in_metrics() {
        let rejected = || {
            let rejected = cel::Program::compile_with("(", &cel::Declared::new(), cel::Extras::default());
            ExpressionError::Rejected(rejected.map(drop).expect_err("no expression"))
        };
        let of_type = || ExpressionError::ResultType { wanted: "bool", found: "int".to_owned() };
        for (error, want) in [
            (EvaluationError::Exhausted, "out_of_budget"),
            (EvaluationError::Unusable(rejected()), "compile_error"),
            (EvaluationError::Compilation(rejected()), "compile_error"),
            (EvaluationError::Compilation(of_type()), "compile_error"),
            (EvaluationError::Unusable(of_type()), "invalid_error"),
            (EvaluationError::NotBool("1".to_owned()), "invalid_error"),
        ] {
            assert_eq!(PolicyEvaluationError::Message(error.clone()).error_type(), "invalid_error", "{error}");
            assert_eq!(PolicyEvaluationError::from(error.clone()).error_type(), want, "{error}");
        }
    }
}
