//! Objects of a resource: how bodies are completed, validated, read from storage and printed.

use jiff::Timestamp;
use proto::Value;
use proto::resources::Resource;
use shared::status::{Status, field};

use super::built_in::BuiltIn;
use super::versions::ResourceVersions as _;
use crate::crd::{self, CrdVersion};
use crate::machinery::table::Column;
use crate::printers;
use crate::registry::conversion;
use crate::registry::kinds::kind_of;
use crate::rules::meta;
use crate::rules::names::NameRule;
use crate::rules::options::Warnings;
use crate::validation::kind_rules::{GENERIC, KindRules};
use crate::validation::{self, ValidationOptions};

/// Operations on objects of a resource.
pub trait ResourceObjects {
    /// Completes a decoded body that was sent to a row: prunes and defaults it. Returns the names of unknown fields.
    ///
    /// # Errors
    /// Something inside the object is not what its schema says.
    fn complete_body(&self, row: &Resource, object: &mut Value) -> Result<Vec<String>, field::Error>;

    /// Explains why a completed body is not one of the row's version.
    fn misfit(&self, row: &Resource, object: &Value) -> Option<String>;

    /// Fills in defaults.
    ///
    /// # Errors
    /// `400` when something inside the object is not what its schema says.
    fn default(&self, row: &Resource, object: &mut Value) -> Result<(), Status>;

    /// Fills in the defaults of the result of an apply.
    ///
    /// # Errors
    /// As [`default`](Self::default).
    fn default_applied(&self, row: &Resource, object: &mut Value) -> Result<(), Status>;

    /// Fills in the defaults that a read fills in, in an object that was written.
    fn default_written(&self, object: &mut Value);

    /// Completes an object that admission changed, shown in a version (`shown`) of the request's own (`own`). `before` is
    /// the object as it was.
    fn complete_admitted(&self, shown: &Resource, own: &Resource, object: &mut Value, before: &Value);

    /// Completes an object that admission changed and that was converted back to the request's version.
    fn complete_converted(&self, row: &Resource, object: &mut Value);

    /// Completes an object that was read from etcd as a tree.
    fn complete_stored(&self, row: &Resource, object: &mut Value);

    /// Validates a new object, which is written through a row and stored as another.
    fn validate_create(
        &self,
        options: ValidationOptions,
        rows: (&Resource, &Resource),
        object: &Value,
    ) -> Vec<field::Error>;

    /// Validates an updated object.
    fn validate_update(
        &self,
        options: ValidationOptions,
        rows: (&Resource, &Resource),
        objects: (&Value, &Value),
    ) -> Vec<field::Error>;

    /// Validates an object that is updated through a subresource.
    fn validate_subresource(
        &self,
        options: ValidationOptions,
        row: &Resource,
        subresource: &str,
        objects: (&Value, &Value),
    ) -> Vec<field::Error>;

    /// Warnings about an object that is accepted, new or updated from `old` through a subresource.
    fn warnings(
        &self,
        options: ValidationOptions,
        row: &Resource,
        subresource: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Vec<String>;

    /// Columns of tables.
    fn columns<'r>(&'r self, row: &'r Resource) -> &'r [Column];

    /// Cells of an object, one for each column; ages are counted up to `now`.
    fn cells(&self, row: &Resource, object: &Value, now: Timestamp) -> Vec<Value>;
}

fn bad_request(error: field::Error) -> Status {
    Status::bad_request(&error.to_string())
}

impl ResourceObjects for BuiltIn {
    /// Unknown fields were found when the body was decoded by its type.
    fn complete_body(&self, row: &Resource, object: &mut Value) -> Result<Vec<String>, field::Error> {
        if let Some(schema) = row.schema() {
            proto::defaulting::apply(schema, object);
        }
        Ok(Vec::new())
    }

    fn misfit(&self, row: &Resource, object: &Value) -> Option<String> {
        conversion::unreadable(row, object)
    }

    fn default(&self, row: &Resource, object: &mut Value) -> Result<(), Status> {
        let schema = row.schema().ok_or_else(|| Status::internal(&format!("no kind {:?} is known", row.kind)))?;
        proto::defaulting::apply(schema, object);
        Ok(())
    }

    fn default_applied(&self, row: &Resource, object: &mut Value) -> Result<(), Status> {
        self.default(row, object)
    }

    fn default_written(&self, _: &mut Value) {}

    fn complete_admitted(&self, shown: &Resource, _: &Resource, object: &mut Value, before: &Value) {
        if object["kind"] == before["kind"] {
            object["apiVersion"] = before["apiVersion"].clone();
        }
        complete_by_type(shown, object);
    }

    fn complete_converted(&self, _: &Resource, _: &mut Value) {}

    fn complete_stored(&self, row: &Resource, object: &mut Value) {
        if let Some(schema) = row.schema() {
            proto::defaulting::apply(schema, object);
        }
    }

    fn validate_create(
        &self,
        options: ValidationOptions,
        (served, row): (&Resource, &Resource),
        object: &Value,
    ) -> Vec<field::Error> {
        validation::validate_create(options, rules_of(served, row), row, object)
    }

    fn validate_update(
        &self,
        options: ValidationOptions,
        (served, row): (&Resource, &Resource),
        (new, old): (&Value, &Value),
    ) -> Vec<field::Error> {
        validation::validate_update(options, rules_of(served, row), row, new, old)
    }

    fn validate_subresource(
        &self,
        options: ValidationOptions,
        row: &Resource,
        subresource: &str,
        (new, old): (&Value, &Value),
    ) -> Vec<field::Error> {
        validation::validate_subresource(options, rules_of(row, row), row, subresource, new, old)
    }

    fn warnings(
        &self,
        options: ValidationOptions,
        row: &Resource,
        subresource: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Vec<String> {
        let mut out = Warnings::new(options);
        let warns = kind_of(row).and_then(|kind| match subresource {
            "" => kind.warns,
            "status" => kind.warns_of_status,
            _ => None,
        });
        if let Some(warns) = warns {
            warns(object, old, &mut out);
        }
        out.into_vec()
    }

    fn columns<'r>(&'r self, row: &'r Resource) -> &'r [Column] {
        printers::columns(row)
    }

    fn cells(&self, row: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
        printers::cells(kind_of(row).and_then(|kind| kind.cells), row, object, now)
    }
}

/// The validation rules of a kind, which may depend on the API it is written through.
fn rules_of(served: &Resource, storage: &Resource) -> &'static KindRules {
    let rules = |row: &Resource| kind_of(row)?.rules.as_ref();
    rules(served).or_else(|| rules(storage)).unwrap_or(&GENERIC)
}

/// Defaults an object by the type that it says it is of, or by that of its row.
fn complete_by_type(row: &Resource, object: &mut Value) {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let own = proto::schema::kind_of(text("apiVersion"), text("kind"));
    if let Some(schema) = own.or_else(|| row.schema()) {
        proto::defaulting::apply(schema, object);
    }
}

/// Reports whether an object is of a row's kind: a subresource may have a kind of its own.
fn is_of_kind(row: &Resource, object: &Value) -> bool {
    object["kind"].as_str() == Some(&row.kind)
}

impl ResourceObjects for CrdVersion {
    fn complete_body(&self, row: &Resource, object: &mut Value) -> Result<Vec<String>, field::Error> {
        crd::objects::prune_and_default_sent(row, self, object)
    }

    fn misfit(&self, row: &Resource, object: &Value) -> Option<String> {
        let (there, version) = (object["apiVersion"].as_str().unwrap_or_default(), row.api_version());
        let why = "does not match the expected API version";
        (there != version).then(|| format!("the API version in the data ({there}) {why} ({version})"))
    }

    fn default(&self, _: &Resource, object: &mut Value) -> Result<(), Status> {
        crd::objects::prune_and_default(self, object).map(drop).map_err(bad_request)
    }

    fn default_applied(&self, _: &Resource, object: &mut Value) -> Result<(), Status> {
        crd::objects::prune_and_default_applied(self, object).map_err(bad_request)
    }

    /// Nulls that were applied are stored, and not shown.
    fn default_written(&self, object: &mut Value) {
        crd::objects::default(self, object);
    }

    fn complete_admitted(&self, shown: &Resource, own: &Resource, object: &mut Value, before: &Value) {
        if !is_of_kind(shown, object) {
            BuiltIn.complete_admitted(shown, own, object, before);
        } else if shown.version == own.version {
            // What is wrong with it is found when it is validated.
            let _ = crd::objects::prune_and_default(self, object);
        } else {
            // What its schema does not know may come from a conversion, and may go back by one.
            crd::objects::default(self, object);
        }
    }

    fn complete_converted(&self, row: &Resource, object: &mut Value) {
        if is_of_kind(row, object) {
            // What is wrong with it is found when it is validated.
            let _ = crd::objects::prune_and_default(self, object);
        }
    }

    /// Leaves objects that a webhook converts as they are until they are asked for.
    fn complete_stored(&self, row: &Resource, object: &mut Value) {
        crd::objects::read(self, object);
        if !self.converts_by_webhook() && object["apiVersion"] != row.api_version() {
            crd::objects::present(row, self, object);
        }
    }

    fn validate_create(
        &self,
        _: ValidationOptions,
        (_, row): (&Resource, &Resource),
        object: &Value,
    ) -> Vec<field::Error> {
        let mut wrong = Vec::new();
        meta::any(object, NameRule::Subdomain, row, &field::Path::new("metadata"), &mut wrong);
        crd::objects::create(row, self, object, wrong)
    }

    fn validate_update(
        &self,
        options: ValidationOptions,
        (_, row): (&Resource, &Resource),
        objects: (&Value, &Value),
    ) -> Vec<field::Error> {
        self.validate_subresource(options, row, "", objects)
    }

    /// The metadata is validated once more beside what it was.
    fn validate_subresource(
        &self,
        options: ValidationOptions,
        row: &Resource,
        subresource: &str,
        (new, old): (&Value, &Value),
    ) -> Vec<field::Error> {
        let mut out = validation::validate_metadata_update(options, row, new, old);
        let mut beside = Vec::new();
        meta::update(new, old, &field::Path::new("metadata"), &mut beside);
        out.extend(crd::objects::update(row, self, subresource, (new, old), &beside));
        out
    }

    fn warnings(&self, _: ValidationOptions, _: &Resource, _: &str, _: &Value, _: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    fn columns<'r>(&'r self, _: &'r Resource) -> &'r [Column] {
        &self.columns
    }

    fn cells(&self, _: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
        crd::objects::cells(self, object, now)
    }
}
