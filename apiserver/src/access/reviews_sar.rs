//! The question inside an access review: reading it, judging its form, turning it into what authorisers are asked.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shared::authn::UserInfo;
use shared::authz::Attributes;
use shared::status::field::{Error, Path};

use super::tree;

/// The spec of a review.
pub(super) struct Spec<'a> {
    spec: &'a Value,
    resource: Option<&'a Value>,
    other: Option<&'a Value>,
}

const NOTHING: &Value = &Value::Null;

impl<'a> Spec<'a> {
    pub(super) fn read(review: &'a Value) -> Self {
        let spec = review.get("spec").unwrap_or(NOTHING);
        let part = |name: &str| spec.get(name).filter(|v| !v.is_null());
        Self { spec, resource: part("resourceAttributes"), other: part("nonResourceAttributes") }
    }

    /// What is wrong with it; `about` a user given in it, or about the caller.
    pub(super) fn validate(&self, about: bool) -> Vec<Error> {
        let mut errors = Vec::new();
        let path = Path::new("spec");
        if let (Some(_), Some(other)) = (self.resource, self.other) {
            let shown = json!({"Path": tree::text(other, "/path"), "Verb": tree::text(other, "/verb")});
            let text = "cannot be specified in combination with resourceAttributes";
            errors.push(Error::invalid(path.child("nonResourceAttributes"), shown, text));
        }
        if self.resource.is_none() && self.other.is_none() {
            let text = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(Error::invalid(path.child("resourceAttributes"), Value::Null, text));
        }
        if about && tree::text(self.spec, "/user").is_empty() && tree::list(self.spec, "/groups").is_empty() {
            errors.push(Error::invalid(
                path.child("user"),
                Value::from(""),
                "at least one of user or group must be specified",
            ));
        }
        errors
    }

    /// The user it is about.
    pub(super) fn user(&self) -> UserInfo {
        let extra: BTreeMap<String, Vec<String>> = tree::map(self.spec, "/extra")
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.to_ascii_lowercase(), tree::strings(values, "")))
            .collect();
        UserInfo {
            name: tree::text(self.spec, "/user").to_owned(),
            uid: tree::text(self.spec, "/uid").to_owned(),
            groups: tree::strings(self.spec, "/groups"),
            extra,
        }
    }

    /// The question.
    pub(super) fn attributes(&self, user: UserInfo) -> Attributes {
        let Some(resource) = self.resource else {
            let other = self.other.unwrap_or(NOTHING);
            return Attributes {
                user,
                verb: tree::text(other, "/verb").to_owned(),
                path: tree::text(other, "/path").to_owned(),
                ..Attributes::default()
            };
        };
        let text = |field: &str| tree::text(resource, field).to_owned();
        let version = text("/version");
        Attributes {
            user,
            verb: text("/verb"),
            namespace: text("/namespace"),
            api_group: text("/group"),
            api_version: if version.is_empty() { "*".to_owned() } else { version },
            resource: text("/resource"),
            subresource: text("/subresource"),
            name: text("/name"),
            resource_request: true,
            field_selector: selector(resource, "/fieldSelector"),
            label_selector: selector(resource, "/labelSelector"),
            path: String::new(),
        }
    }
}

/// A selector as text: raw, or from its requirements as far as they can be said in a query.
fn selector(resource: &Value, pointer: &str) -> String {
    let raw = tree::text(resource, &format!("{pointer}/rawSelector"));
    if !raw.is_empty() {
        return raw.to_owned();
    }
    let terms = tree::list(resource, &format!("{pointer}/requirements")).iter().filter_map(|r| {
        let (key, values) = (tree::text(r, "/key"), tree::strings(r, "/values"));
        match (tree::text(r, "/operator"), values.as_slice()) {
            ("In", [one]) => Some(format!("{key}={one}")),
            ("NotIn", [one]) => Some(format!("{key}!={one}")),
            _ => None,
        }
    });
    terms.collect::<Vec<_>>().join(",")
}

/// What is wrong with a local review posted in a namespace.
pub(super) fn validate_local(review: &Value, namespace: &str) -> Vec<Error> {
    let path = Path::new("spec");
    let mut errors = Vec::new();
    if let Some(resource) = review.pointer("/spec/resourceAttributes").filter(|r| !r.is_null()) {
        let said = tree::text(resource, "/namespace");
        if said != namespace {
            let at = path.child("resourceAttributes").child("namespace");
            errors.push(Error::invalid(at, Value::from(said), "must match metadata.namespace"));
        }
    }
    if let Some(other) = review.pointer("/spec/nonResourceAttributes").filter(|r| !r.is_null()) {
        let shown = json!({"Path": tree::text(other, "/path"), "Verb": tree::text(other, "/verb")});
        errors.push(Error::invalid(path.child("nonResourceAttributes"), shown, "disallowed on this kind of request"));
    }
    errors
}
