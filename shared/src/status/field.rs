//! Field paths and field errors: what validation reports, with upstream's texts.

use serde_json::Value;

use super::go_quote;

/// A path such as `spec.containers[0].image` or `metadata.labels[a/b]`. Cheap enough to build as validation descends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// A root element; empty prints as `<nil>` in errors.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// A root of several names.
    pub fn of(names: &[&str]) -> Self {
        Self(names.join("."))
    }

    /// `self.name`.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { self.with(&[".", name]) }
    }

    /// `self[i]`.
    #[must_use]
    pub fn index(&self, i: usize) -> Self {
        self.with(&["[", &i.to_string(), "]"])
    }

    /// `self[key]`.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(&["[", key, "]"])
    }

    fn with(&self, more: &[&str]) -> Self {
        let mut text = String::with_capacity(self.0.len() + more.iter().map(|part| part.len()).sum::<usize>());
        text.push_str(&self.0);
        more.iter().for_each(|part| text.push_str(part));
        Self(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<&Path> for Path {
    fn from(path: &Path) -> Self {
        path.clone()
    }
}

/// The kind of a field error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// `Not found`
    NotFound,
    /// `Required value`
    Required,
    /// `Duplicate value`
    Duplicate,
    /// `Invalid value`
    Invalid,
    /// `Unsupported value`
    NotSupported,
    /// `Forbidden`
    Forbidden,
    /// `Too long`
    TooLong,
    /// `Too many`
    TooMany,
    /// `Internal error`
    Internal,
    /// `Invalid value`, for the wrong type
    TypeInvalid,
}

impl ErrorKind {
    /// The cause's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// The words a message starts with.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

/// One field error. Fields are public so that callers may word the rare exceptions themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// Type of the error.
    pub kind: ErrorKind,
    /// Path of the field; `<nil>` for no path.
    pub field: String,
    /// The offending value; printed for the kinds that print one.
    pub value: Value,
    /// The rest of the sentence.
    pub detail: String,
    /// The value as it is printed, where its own order is not the one clients see.
    pub shown: Option<String>,
}

impl Error {
    fn make(kind: ErrorKind, field: impl Into<Path>, value: Value, detail: impl Into<String>) -> Self {
        Self { kind, field: field.into().to_string(), value, detail: detail.into(), shown: None }
    }

    /// `Required value: detail`.
    pub fn required(field: impl Into<Path>, detail: &str) -> Self {
        Self::make(ErrorKind::Required, field, Value::Null, detail)
    }

    /// `Invalid value: value: detail`.
    pub fn invalid(field: impl Into<Path>, value: impl Into<Value>, detail: &str) -> Self {
        Self::make(ErrorKind::Invalid, field, value.into(), detail)
    }

    /// `Invalid value: detail`, where the value is not worth showing.
    pub fn unfit(field: impl Into<Path>, detail: &str) -> Self {
        Self { shown: Some(String::new()), ..Self::make(ErrorKind::Invalid, field, Value::Null, detail) }
    }

    /// `Invalid value: value: detail` with the reason for wrong types.
    pub fn type_invalid(field: impl Into<Path>, value: impl Into<Value>, detail: &str) -> Self {
        Self::make(ErrorKind::TypeInvalid, field, value.into(), detail)
    }

    /// `Duplicate value: value`.
    pub fn duplicate(field: impl Into<Path>, value: impl Into<Value>) -> Self {
        Self::make(ErrorKind::Duplicate, field, value.into(), "")
    }

    /// `Unsupported value: value: supported values: "a", "b"`, in the order given.
    pub fn not_supported<S: AsRef<str>>(field: impl Into<Path>, value: impl Into<Value>, supported: &[S]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<String> = supported.iter().map(|s| go_quote(s.as_ref())).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::make(ErrorKind::NotSupported, field, value.into(), detail)
    }

    /// `Forbidden: detail`.
    pub fn forbidden(field: impl Into<Path>, detail: &str) -> Self {
        Self::make(ErrorKind::Forbidden, field, Value::Null, detail)
    }

    /// `Not found: value`.
    pub fn not_found(field: impl Into<Path>, value: impl Into<Value>) -> Self {
        Self::make(ErrorKind::NotFound, field, value.into(), "")
    }

    /// `Too long: may not be more than N bytes`.
    pub fn too_long(field: impl Into<Path>, max: usize) -> Self {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        Self::make(ErrorKind::TooLong, field, Value::Null, format!("may not be more than {max} {bytes}"))
    }

    /// `Too many: actual: must have at most N items`.
    pub fn too_many(field: impl Into<Path>, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::make(ErrorKind::TooMany, field, Value::from(actual), format!("must have at most {max} {items}"))
    }

    /// `Internal error: detail`.
    pub fn internal(field: impl Into<Path>, detail: &str) -> Self {
        Self::make(ErrorKind::Internal, field, Value::Null, detail)
    }

    /// The message without the field.
    pub fn body(&self) -> String {
        let words = self.kind.words();
        let mut text = match self.kind {
            ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::Internal => words.to_owned(),
            _ => match &self.shown {
                Some(text) if text.is_empty() => words.to_owned(),
                Some(text) => format!("{words}: {text}"),
                None => format!("{words}: {}", show(&self.value)),
            },
        };
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

/// A value as messages print it: strings quoted, everything else as JSON.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => go_quote(text),
        other => proto::merge::go_number(other),
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for Error {}

/// One error as it is, several as `[a, b]`, equal texts once.
pub fn aggregate<E: std::fmt::Display>(errors: &[E]) -> String {
    let mut texts: Vec<String> = Vec::with_capacity(errors.len());
    for e in errors {
        let text = e.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_say_everything_once() {
        for (errors, want) in
            [(&["a"][..], "a"), (&["a", "a"], "a"), (&["a", "b", "a"], "[a, b]"), (&["b", "a", "c"], "[b, a, c]")]
        {
            assert_eq!(aggregate(errors), want);
        }
    }

    #[test]
    fn texts() {
        let p = Path::new("spec").child("containers").index(1);
        let table = [
            (Error::required(p.child("image"), ""), "spec.containers[1].image: Required value"),
            (Error::duplicate(p.child("name"), "c"), r#"spec.containers[1].name: Duplicate value: "c""#),
            (
                Error::not_supported(p.child("imagePullPolicy"), "X", &["Always", "IfNotPresent", "Never"]),
                r#"spec.containers[1].imagePullPolicy: Unsupported value: "X": supported values: "Always", "IfNotPresent", "Never""#,
            ),
            (
                Error::forbidden(
                    Path::of(&["spec", "volumes"]).index(0).child("hostPath"),
                    "may not specify more than 1 volume type",
                ),
                "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            ),
            (Error::too_long(Path::new("data"), 1048576), "data: Too long: may not be more than 1048576 bytes"),
            (Error::invalid(Path::default(), Value::Null, "x"), "<nil>: Invalid value: null: x"),
            (
                Error::invalid(
                    Path::new("metadata").child("annotations").key("a.b/c"),
                    serde_json::json!({"a": "c"}),
                    "bad",
                ),
                r#"metadata.annotations[a.b/c]: Invalid value: {"a":"c"}: bad"#,
            ),
            (Error::too_many(Path::new("x"), 3, 2), "x: Too many: 3: must have at most 2 items"),
            (Error::unfit(Path::new("x"), "cannot be"), "x: Invalid value: cannot be"),
        ];
        for (error, want) in table {
            assert_eq!(error.to_string(), want);
        }
    }
}
