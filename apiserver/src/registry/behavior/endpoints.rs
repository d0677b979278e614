//! Endpoints of a resource: what its handler answers beside its objects. Answers for the routes that upstream's
//! `APIInstaller` registers for built-in kinds, and for `crdHandler`.

use proto::Value;
use proto::resources::Resource;
use shared::status::{Status, field};

use super::built_in::BuiltIn;
use crate::crd::{self, CrdVersion};
use crate::registry::deprecation::deprecation_warning;
use crate::validation;

/// Endpoints of a resource and the errors they answer with.
pub trait ResourceEndpoints {
    /// Reports whether a request is routed by its path and method. Otherwise one handler takes all requests of the
    /// resource and looks at names itself.
    fn is_routed_by_path(&self) -> bool;

    /// The refusal of a verb that is not served.
    fn unserved_verb(&self, row: &Resource, verb: &str) -> Status;

    /// The refusal of a subresource that there is not.
    fn unknown_subresource(&self, row: &Resource, name: &str) -> Status;

    /// Reports whether a verb is served.
    fn serves(&self, row: &Resource, verb: &str) -> bool;

    /// The refusal of creates while the resource is going away.
    fn refuses_creates(&self) -> Option<Status>;

    /// Deprecation warning, with the release that removes the resource where that is known.
    fn deprecation(&self, row: &Resource) -> Option<(String, String)>;

    /// Reports whether clients are warned of a deprecated version before anything else is looked at.
    fn warns_first(&self) -> bool;

    /// Reports whether the resource may be gone while the server runs, so that its APIService is always kept in line.
    fn comes_and_goes(&self) -> bool;

    /// Reports whether `--watch-cache-sizes` says how many of the objects are cached.
    fn has_cache_size(&self) -> bool;

    /// Name of the objects in the refusal of an unconditional update.
    fn update_error_kind<'r>(&self, row: &'r Resource) -> &'r str;

    /// The refusal of an invalid object, which a row serves and another one stores.
    fn invalid(&self, rows: (&Resource, &Resource), object: &Value, name: &str, errors: Vec<field::Error>) -> Status;
}

impl ResourceEndpoints for BuiltIn {
    fn is_routed_by_path(&self) -> bool {
        true
    }

    fn unserved_verb(&self, _: &Resource, _: &str) -> Status {
        Status::generic_method_not_allowed()
    }

    fn unknown_subresource(&self, _: &Resource, _: &str) -> Status {
        Status::generic_not_found()
    }

    fn serves(&self, row: &Resource, verb: &str) -> bool {
        row.has_verb(verb)
    }

    fn refuses_creates(&self) -> Option<Status> {
        None
    }

    fn deprecation(&self, row: &Resource) -> Option<(String, String)> {
        deprecation_warning(row)
    }

    fn warns_first(&self) -> bool {
        false
    }

    fn comes_and_goes(&self) -> bool {
        false
    }

    fn has_cache_size(&self) -> bool {
        true
    }

    fn update_error_kind<'r>(&self, row: &'r Resource) -> &'r str {
        &row.kind
    }

    fn invalid(
        &self,
        (served, storage): (&Resource, &Resource),
        _: &Value,
        name: &str,
        errors: Vec<field::Error>,
    ) -> Status {
        let errors = match storage.schema() {
            Some(schema) => validation::in_order(schema, errors),
            None => errors,
        };
        Status::invalid(&served.group, &served.kind, name, errors)
    }
}

impl ResourceEndpoints for CrdVersion {
    fn is_routed_by_path(&self) -> bool {
        false
    }

    /// Says which verb of which resource it is.
    fn unserved_verb(&self, row: &Resource, verb: &str) -> Status {
        Status::method_not_supported(&row.group, &row.plural, verb)
    }

    fn unknown_subresource(&self, row: &Resource, name: &str) -> Status {
        Status::not_found(&row.group, &row.plural, name)
    }

    /// Objects of a definition in deletion can still be updated, so that their finalizers can be removed, though
    /// discovery does not list these verbs.
    fn serves(&self, row: &Resource, verb: &str) -> bool {
        row.has_verb(verb) || (self.terminating && matches!(verb, "update" | "patch"))
    }

    fn refuses_creates(&self) -> Option<Status> {
        self.terminating.then(|| {
            let mut status = Status::generic_method_not_allowed();
            status.message = "create not allowed while custom resource definition is terminating".to_owned();
            status
        })
    }

    fn deprecation(&self, _: &Resource) -> Option<(String, String)> {
        Some((self.warning.clone()?, String::new()))
    }

    fn warns_first(&self) -> bool {
        true
    }

    fn comes_and_goes(&self) -> bool {
        true
    }

    fn has_cache_size(&self) -> bool {
        false
    }

    /// Upstream names the resource where the kind is not compiled in.
    fn update_error_kind<'r>(&self, row: &'r Resource) -> &'r str {
        &row.plural
    }

    /// Names the kind and group that the object states, also where those are invalid.
    fn invalid(&self, _: (&Resource, &Resource), object: &Value, name: &str, errors: Vec<field::Error>) -> Status {
        let text = |key: &str| object[key].as_str().unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let errors = validation::in_order(crd::objects::open(), errors);
        Status::invalid(group, text("kind"), name, errors)
    }
}
