//! Errors of compiling and evaluating expressions, in upstream's words.

use thiserror::Error as ThisError;

use super::limits::{MAX_EXPRESSION, MAX_NESTING};
use crate::patterns::PatternError;

/// Errors of evaluation.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum Error {
    /// The expression fails on these values.
    #[error("{0}")]
    Failed(String),
    /// No function takes these values; the call, where upstream shows it.
    #[error("no such overload{}", .0.as_ref().map(|call| format!(": {call}")).unwrap_or_default())]
    NoOverload(Option<String>),
    /// The evaluation was cancelled.
    #[error("operation cancelled: actual cost limit exceeded")]
    Cancelled,
}

impl Error {
    pub(crate) fn new(message: impl ToString) -> Self {
        Self::Failed(message.to_string())
    }

    pub(super) fn overload() -> Self {
        Self::NoOverload(None)
    }

    pub(super) fn no_key(key: &str) -> Self {
        Self::new(format!("no such key: {key}"))
    }
}

/// Errors of compiling the text of an expression.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum CompileError {
    /// Syntax or type errors with their places, as `cel-go` prints them.
    #[error("{0}")]
    Report(String),
    /// The text is longer than [`MAX_EXPRESSION`]; these are its characters.
    #[error("ERROR: <input>:-1:0: expression code point size exceeds limit: size: {}, limit {}", .0, MAX_EXPRESSION)]
    TooLong(usize),
    /// Operators or selections follow each other without end.
    #[error("ERROR: <input>:-1:0: expression recursion limit exceeded: {}", MAX_NESTING)]
    TooDeep,
    /// The macros of the language cannot be set up.
    #[error("{0}")]
    Macros(String),
    /// The system gives no thread to compile on.
    #[error("compiler unavailable: {0}")]
    Unavailable(String),
    /// The compiler panicked.
    #[error("expression could not be compiled")]
    Panicked,
}

/// Errors of the constant parts of an expression.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum PlanError {
    /// A name of a type is used as a value and is none.
    #[error("reference to undefined type: {0}")]
    UndefinedType(String),
    /// A constant is no pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A constant part fails; this is its message.
    #[error("{0}")]
    Constant(String),
}

/// Errors of compiling an expression.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum Rejected {
    /// The text cannot be compiled.
    #[error("compilation failed: {0}")]
    Compilation(#[from] CompileError),
    /// A constant part fails.
    #[error("program instantiation failed: {0}")]
    Program(#[from] PlanError),
}
