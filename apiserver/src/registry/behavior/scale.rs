//! The Scale of a resource's objects. Answers for the `ScaleREST` of upstream's built-in kinds, and for that of
//! `apiextensions-apiserver`.

use proto::Value;
use proto::resources::Resource;
use proto::selector::Selector;
use shared::status::{Status, field};

use super::built_in::BuiltIn;
use super::objects::ResourceObjects as _;
use crate::crd::{self, CrdVersion};
use crate::machinery::table::Column;
use crate::printers;
use crate::validation;

/// Replicas and selector of an object, as its Scale shows them.
pub struct ScaleParts {
    /// Replicas asked for; null when the object has none.
    pub spec: Value,
    /// Replicas there are.
    pub status: Value,
    /// Selector, as text.
    pub selector: Option<String>,
}

/// The `scale` subresource of a resource.
pub trait ResourceScale {
    /// Replicas and selector of an object.
    fn scale_parts(&self, object: &Value) -> ScaleParts;

    /// Path of the replicas in an object.
    fn replicas_path(&self) -> Vec<String>;

    /// Path of the replicas that an object lacks though it must have them to be scaled; `None` when it has them.
    fn missing_replicas(&self, object: &Value) -> Option<String>;

    /// Validates a Scale by itself, before the object that it is written to is.
    fn validate_scale(&self, row: &Resource, scale: &Value) -> Vec<field::Error>;

    /// Reports whether a Scale without a revision is written to the object that was read.
    fn scales_without_revision(&self) -> bool;

    /// Columns and cells of a Scale.
    fn scale_table<'r>(&'r self, row: &'r Resource, scale: &Value) -> (&'r [Column], Vec<Value>);

    /// The refusal of a body that is no Scale, given what was wrong with it.
    fn no_scale(&self, why: Status) -> Status;
}

impl ResourceScale for BuiltIn {
    fn scale_parts(&self, object: &Value) -> ScaleParts {
        let selector = match &object["spec"]["selector"] {
            Value::Object(m) if m.contains_key("matchLabels") || m.contains_key("matchExpressions") => {
                Selector::from_object(Some(&object["spec"]["selector"]))
            }
            Value::Object(m) => Selector::from_map(m),
            _ => Ok(Selector::everything()),
        };
        ScaleParts {
            spec: object["spec"]["replicas"].clone(),
            status: object["status"]["replicas"].clone(),
            selector: selector.ok().map(|s| s.to_string()),
        }
    }

    fn replicas_path(&self) -> Vec<String> {
        ["spec", "replicas"].map(str::to_owned).into()
    }

    fn missing_replicas(&self, _: &Value) -> Option<String> {
        None
    }

    fn validate_scale(&self, row: &Resource, scale: &Value) -> Vec<field::Error> {
        let mut errors = validation::scale_metadata(row, scale);
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let path = field::Path::of(&["spec", "replicas"]);
            errors.push(field::Error::invalid(path, replicas, "must be greater than or equal to 0"));
        }
        errors
    }

    fn scales_without_revision(&self) -> bool {
        false
    }

    fn scale_table<'r>(&'r self, _: &'r Resource, scale: &Value) -> (&'r [Column], Vec<Value>) {
        (printers::scale_columns(), printers::scale(scale))
    }

    fn no_scale(&self, why: Status) -> Status {
        why
    }
}

impl ResourceScale for CrdVersion {
    fn scale_parts(&self, object: &Value) -> ScaleParts {
        let Some(scale) = &self.scale else { return BuiltIn.scale_parts(object) };
        let at = |path: &[String]| crd::objects::value_at(object, path).cloned().unwrap_or_default();
        let selector = scale.selector.as_ref().and_then(|path| at(path).as_str().map(str::to_owned));
        ScaleParts { spec: at(&scale.spec), status: at(&scale.status), selector }
    }

    fn replicas_path(&self) -> Vec<String> {
        self.scale.as_ref().map_or_else(|| BuiltIn.replicas_path(), |scale| scale.spec.clone())
    }

    fn missing_replicas(&self, object: &Value) -> Option<String> {
        let scale = self.scale.as_ref()?;
        crd::objects::value_at(object, &scale.spec).is_none().then(|| format!(".{}", scale.spec.join(".")))
    }

    /// Replicas are validated with the object; nobody validates the metadata beside them.
    fn validate_scale(&self, _: &Resource, _: &Value) -> Vec<field::Error> {
        Vec::new()
    }

    fn scales_without_revision(&self) -> bool {
        true
    }

    /// The columns are those of the object whatever is shown of it.
    fn scale_table<'r>(&'r self, row: &'r Resource, scale: &Value) -> (&'r [Column], Vec<Value>) {
        (self.columns(row), self.cells(row, scale, jiff::Timestamp::now()))
    }

    /// Upstream looks for the kind in a scheme that has only the definitions' own.
    fn no_scale(&self, why: Status) -> Status {
        if why.code != 400 {
            return why;
        }
        Status::bad_request("no kind is registered for the type v1.Scale in scheme \"pkg/runtime/scheme.go:111\"")
    }
}
