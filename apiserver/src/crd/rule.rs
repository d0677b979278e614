//! A CEL rule as a schema says it, with what it is compiled to when it is first needed. Answers for upstream's
//! `ValidationRule`.

use std::sync::OnceLock;

use proto::Value;
use shared::cel::{Program, Rejected};
use shared::status::field::ErrorKind;

/// Error of compiling a rule or its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleCompileError {
    /// The expression cannot be compiled.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The schema has no types for expressions.
    #[error("unable to convert structural schema to CEL declarations")]
    NoTypes,
    /// A rule is neither true nor false.
    #[error("cel expression must evaluate to a bool")]
    NotBool,
    /// A message is no text.
    #[error("must evaluate to a string")]
    NotText,
}

/// Validation rule of a schema, compiled.
#[derive(Debug)]
pub struct Rule {
    pub(super) text: String,
    pub(super) message: String,
    pub(super) message_expression: String,
    pub(super) reason: ErrorKind,
    pub(super) field_path: Option<String>,
    pub(super) optional_old: bool,
    pub(super) program: OnceLock<Result<Program, RuleCompileError>>,
    pub(super) message_program: OnceLock<Option<Program>>,
}

/// Reads the rules of a place.
pub(super) fn compile(list: Option<&Value>) -> Box<[Rule]> {
    let text = |v: &Value, key: &str| v[key].as_str().unwrap_or("").to_owned();
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|v| Rule {
            text: text(v, "rule"),
            message: text(v, "message"),
            message_expression: text(v, "messageExpression"),
            reason: match text(v, "reason").as_str() {
                "FieldValueForbidden" => ErrorKind::Forbidden,
                "FieldValueRequired" => ErrorKind::Required,
                "FieldValueDuplicate" => ErrorKind::Duplicate,
                _ => ErrorKind::Invalid,
            },
            field_path: Some(text(v, "fieldPath")).filter(|p| !p.is_empty()),
            optional_old: v["optionalOldSelf"] == true,
            program: OnceLock::new(),
            message_program: OnceLock::new(),
        })
        .collect()
}
