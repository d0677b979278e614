//! A selectable field of a kind, beyond name and namespace. Answers for upstream's `ToSelectableFields` in
//! `pkg/registry/*/*`.

/// A selectable field: its label in each API group that serves the resource, and where its value is.
pub struct Selectable {
    /// Label in a field selector.
    pub label: &'static str,
    /// JSON pointers into the storage version; the first that holds something counts.
    pub pointers: &'static [&'static str],
    /// Value of an absent field.
    pub absent: &'static str,
}

/// A text field that is empty where it is absent.
pub(crate) const fn text(label: &'static str, pointer: &'static [&'static str]) -> Selectable {
    Selectable { label, pointers: pointer, absent: "" }
}

/// Text for an unknown label of an API version (`group/version`) and kind.
pub(crate) type LabelError = fn(api_version: &str, kind: &str, label: &str) -> String;
