//! The question inside an access review: reading it, judging its form, turning it into what authorisers are asked.
//! Answers for upstream's `ResourceAttributesFrom`, `AuthorizationAttributesFrom`.

use std::collections::BTreeMap;

use proto::selector::{FieldSelector, Selector};
use serde_json::{Value, json};
use shared::authn::UserInfo;
use shared::authz::Attributes;
use shared::status::field::{Error, Path};

use crate::machinery::tree;

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

    /// Validates the spec; `about` tells one that names a user from a self review.
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
        self.validate_selectors(&mut errors);
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
            field_selector: self.fields().0,
            label_selector: self.labels().0,
            path: String::new(),
        }
    }

    /// Lists the selectors that could not be parsed. They are ignored, which selects more and never allows more.
    pub(super) fn ignored(&self) -> Vec<String> {
        let said = |name: &str, (kept, failed): (String, bool)| {
            let how = if kept.is_empty() { "ignored" } else { "partially ignored" };
            failed.then(|| format!("spec.resourceAttributes.{name} {how} due to parse error"))
        };
        [said("fieldSelector", self.fields()), said("labelSelector", self.labels())].into_iter().flatten().collect()
    }

    /// The field selector as text, and whether some of it was lost.
    fn fields(&self) -> (String, bool) {
        self.selector(
            "/fieldSelector",
            |raw| FieldSelector::parse(raw).is_ok(),
            |key, operator, values| match (operator, values) {
                ("In", [one]) => Some(format!("{key}={}", escape(one))),
                ("NotIn", [one]) => Some(format!("{key}!={}", escape(one))),
                _ => None,
            },
        )
    }

    /// The label selector as text, and whether some of it was lost.
    fn labels(&self) -> (String, bool) {
        self.selector(
            "/labelSelector",
            |raw| Selector::parse(raw).is_ok(),
            |key, operator, values| {
                let term = match operator {
                    "In" => format!("{key} in ({})", values.join(",")),
                    "NotIn" => format!("{key} notin ({})", values.join(",")),
                    "Exists" if values.is_empty() => key.to_owned(),
                    "DoesNotExist" if values.is_empty() => format!("!{key}"),
                    _ => return None,
                };
                Selector::parse(&term).is_ok().then_some(term)
            },
        )
    }

    fn selector(
        &self,
        field: &str,
        parses: impl Fn(&str) -> bool,
        term: impl Fn(&str, &str, &[String]) -> Option<String>,
    ) -> (String, bool) {
        let Some(selector) = self.resource.and_then(|r| r.pointer(field)) else { return (String::new(), false) };
        let raw = tree::text(selector, "/rawSelector");
        if !raw.is_empty() {
            return if parses(raw) { (raw.to_owned(), false) } else { (String::new(), true) };
        }
        let wanted = tree::list(selector, "/requirements");
        let terms: Vec<String> = wanted
            .iter()
            .filter_map(|r| term(tree::text(r, "/key"), tree::text(r, "/operator"), &tree::strings(r, "/values")))
            .collect();
        (terms.join(","), terms.len() < wanted.len())
    }

    fn validate_selectors(&self, errors: &mut Vec<Error>) {
        let path = Path::new("spec").child("resourceAttributes");
        for name in ["fieldSelector", "labelSelector"] {
            let Some(selector) = self.resource.and_then(|r| r.get(name)).filter(|s| !s.is_null()) else { continue };
            let path = path.child(name);
            let raw = tree::text(selector, "/rawSelector");
            let wanted = tree::list(selector, "/requirements");
            if !raw.is_empty() && !wanted.is_empty() {
                let text = "may not specified at the same time as requirements";
                errors.push(Error::invalid(path.child("rawSelector"), raw, text));
            }
            if raw.is_empty() && wanted.is_empty() {
                let text = format!("when {} is specified, requirements or rawSelector is required", path.as_str());
                errors.push(Error::required(path.child("requirements"), &text));
            }
            for (at, requirement) in wanted.iter().enumerate() {
                check_requirement(requirement, &path.child("requirements").index(at), name == "labelSelector", errors);
            }
        }
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

/// Operators that are not known are let through: a newer server may have sent them.
fn check_requirement(requirement: &Value, path: &Path, label: bool, errors: &mut Vec<Error>) {
    let (key, operator) = (tree::text(requirement, "/key"), tree::text(requirement, "/operator"));
    let values = tree::strings(requirement, "/values");
    if !label && key.is_empty() {
        errors.push(Error::required(path.child("key"), "must be specified"));
    }
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(Error::required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(Error::forbidden(
                path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        _ => {}
    }
    if label {
        for complaint in proto::selector::format::label_key(key) {
            errors.push(Error::invalid(path.child("key"), key, &complaint));
        }
        for (at, value) in values.iter().enumerate() {
            for complaint in proto::selector::format::label_value(value) {
                errors.push(Error::invalid(path.child("values").index(at), value.as_str(), &complaint));
            }
        }
    }
}

/// Validates that a review has no metadata, which is not stored. `but` is an allowed field.
pub(super) fn validate_metadata(review: &Value, but: &str) -> Option<Error> {
    /// System fields of metadata.
    const SYSTEM: [&str; 6] =
        ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "managedFields", "selfLink", "uid"];
    let given = review.get("metadata").and_then(Value::as_object)?;
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        _ => true,
    };
    let kept = given.iter().filter(|(field, value)| !SYSTEM.contains(&field.as_str()) && says(value));
    let kept: serde_json::Map<String, Value> = kept.map(|(field, value)| (field.clone(), value.clone())).collect();
    let why = if but.is_empty() { "must be empty".to_owned() } else { format!("must be empty except for {but}") };
    kept.keys().any(|field| field != but).then(|| Error::invalid("metadata", Value::Object(kept), &why))
}

/// Validates a local review that was posted in a namespace.
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
