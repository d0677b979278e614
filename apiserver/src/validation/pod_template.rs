//! Place of the pods that objects of a kind describe.

use proto::Value;

use super::tree::at;

/// Keys that lead to the template of a pod in an object; none where the object is the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodTemplate(&'static [&'static str]);

impl PodTemplate {
    /// The template at a path, such as `spec.template`.
    pub(crate) const fn at(keys: &'static [&'static str]) -> Self {
        Self(keys)
    }

    /// The template in an object, which has the pod's metadata and spec.
    pub(crate) fn of(self, object: &Value) -> &Value {
        at(object, self.0)
    }

    /// Keys that lead to a field of the template.
    pub(crate) fn keys(self, field: &'static str) -> Vec<&'static str> {
        self.0.iter().copied().chain([field]).collect()
    }

    /// JSON pointer to the template.
    pub(crate) fn pointer(self) -> String {
        self.0.iter().map(|key| format!("/{key}")).collect()
    }
}
