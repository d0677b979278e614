//! Validation of defaults against the schemas they are for.
//!
//! Answers for upstream's `structural-schema` package `defaulting`, as far as it judges schemas. Pure.

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path, aggregate};

use super::schema::{MAX_DEPTH, Schema};
use super::schema_options::{SchemaOptions, has_default, is_unpruned};
use super::{check, embedded, rules};

/// Validates the defaults of a structural schema.
pub(super) fn validate_defaults(text: &Value, schema: &Schema, path: &Path, options: SchemaOptions) -> Vec<Error> {
    let mut out = Vec::new();
    if has_default(text) {
        let around = DefaultContext { root: schema, steps: Vec::new(), meta: false };
        Defaults { options, out: &mut out }.at(text, schema, path, around, 0);
    }
    out
}

/// The object that a place belongs to.
#[derive(Clone)]
struct DefaultContext<'s> {
    root: &'s Schema,
    /// The fields that lead to the place; `None` is an element.
    steps: Vec<Option<&'s str>>,
    /// The place is one of those that every object has.
    meta: bool,
}

impl<'s> DefaultContext<'s> {
    fn step(&self, step: Option<&'s str>, meta: bool) -> Self {
        let mut next = Self { meta: self.meta || meta, ..self.clone() };
        next.steps.push(step);
        next
    }

    /// An object that has nothing but a value at the place, and says what it is.
    fn object(&self, value: &Value) -> Value {
        let mut object = self.steps.iter().rev().fold(value.clone(), |inner, step| match step {
            Some(name) => json!({ *name: inner }),
            None => json!([inner]),
        });
        for (key, value) in [("kind", "Validation"), ("apiVersion", "validation/v1")] {
            if object.get(key).is_none() {
                object[key] = value.into();
            }
        }
        object
    }
}

struct Defaults<'o> {
    options: SchemaOptions,
    out: &'o mut Vec<Error>,
}

impl Defaults<'_> {
    fn at<'s>(&mut self, text: &Value, schema: &'s Schema, path: &Path, mut around: DefaultContext<'s>, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        let whole = depth == 0 || schema.embedded;
        if whole {
            around = DefaultContext { root: schema, steps: Vec::new(), meta: false };
        }
        if let Some(default) = &schema.default {
            self.one(text, (schema, default), &path.child("default"), whole, &around);
        }
        if let Some(inner) = &schema.items {
            self.at(&text["items"], inner, &path.child("items"), around.step(None, false), depth + 1);
        }
        for (key, inner) in &schema.properties {
            let meta = whole && matches!(&**key, "metadata" | "apiVersion" | "kind");
            let (path, around) = (path.child("properties").key(key), around.step(Some(&**key), meta));
            self.at(&text["properties"][&**key], inner, &path, around, depth + 1);
        }
    }

    fn one(
        &mut self,
        text: &Value,
        (schema, default): (&Schema, &Value),
        at: &Path,
        whole: bool,
        around: &DefaultContext<'_>,
    ) {
        if around.meta {
            let wrong = embedded::validate_embedded(&mut around.object(default), around.root, true, &Path::default());
            if !wrong.is_empty() {
                let message = format!("must result in valid metadata: {}", aggregate(&wrong));
                self.out.push(Error::invalid(at, default.clone(), &message));
                return;
            }
        } else {
            // Upstream shows it as it is after the metadata in it was read.
            let mut read = default.clone();
            let wrong = embedded::validate_embedded(&mut read, schema, whole, at);
            if !self.options.defaults && is_unpruned(default, schema, whole) {
                self.out.push(Error::invalid(at, read, "must not have unknown fields"));
            }
            if !wrong.is_empty() {
                self.out.extend(wrong);
                return;
            }
        }
        let wrong = check::check(default, None, &Schema::compile(&plain(text, 0)));
        if wrong.is_empty() {
            self.out.extend(rules::check_at(schema, default, whole, at));
        }
        for mut error in wrong {
            let below = if error.field == "<nil>" { String::new() } else { format!(".{}", error.field) };
            error.field = format!("{at}{below}");
            // The place itself has no name here.
            if error.detail.starts_with("in body") {
                error.detail.insert(0, ' ');
            }
            self.out.push(error);
        }
    }
}

/// A schema whose places for integers or texts may hold anything: upstream does not look at their types here.
fn plain(text: &Value, depth: usize) -> Value {
    let mut plain = text.clone();
    let Some(map) = plain.as_object_mut().filter(|_| depth <= MAX_DEPTH) else { return plain };
    map.remove("x-kubernetes-int-or-string");
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key).filter(|inner| inner.is_object()) {
            *inner = self::plain(inner, depth + 1);
        }
    }
    for (_, inner) in map.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        *inner = self::plain(inner, depth + 1);
    }
    plain
}
