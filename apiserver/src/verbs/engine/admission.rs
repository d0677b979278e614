//! Admission of a write: mutating and validating, with the rules that need more than the object.

use std::collections::BTreeMap;

use proto::Value;
use proto::resources::Row;
use shared::status::{Status, field};

use super::super::scale;
use super::{Engine, WriteTarget};
use crate::admission::{Attributes, Operation, Reinvocation};
use crate::api::NotPermitted;
use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::registry::behavior;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::core::pod::PODS;
use crate::registry::{admin_access, pod_template};
use crate::validation;

/// The rounds of admission.
#[derive(Clone, Copy)]
enum AdmissionPhase {
    Mutating,
    Validating,
}

impl Engine {
    /// Mutating admission.
    pub async fn admit(
        &self,
        t: &mut WriteTarget<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.run_admission(AdmissionPhase::Mutating, t, operation, object, old).await
    }

    /// Validating admission.
    pub async fn validate_admission(
        &self,
        t: &mut WriteTarget<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.run_admission(AdmissionPhase::Validating, t, operation, object, old).await
    }

    /// Runs validating admission of a create; asks for the right to create first where the request was not a create.
    pub(super) async fn validate_creation(&self, t: &mut WriteTarget<'_>, object: &mut Value) -> Result<(), Status> {
        if let Some(question) = &t.creation {
            let refused = |why: NotPermitted| Status::forbidden(&t.row.group, &t.row.plural, t.name, &why.reason);
            self.permits.ask(question).await.map_err(refused)?;
        }
        self.validate_admission(t, Operation::Create, Some(object), None).await
    }

    /// Mutating admission of a change.
    pub(super) async fn admit_change(
        &self,
        t: &mut WriteTarget<'_>,
        new: &mut Value,
        old: &Value,
    ) -> Result<(), Status> {
        if t.subresource != "scale" {
            return self.admit(t, Operation::Update, Some(new), Some(old)).await;
        }
        // It is about the Scale, not the object behind it.
        let (mut scale, before) = (scale::owned(t.row, new), scale::owned(t.row, old));
        let sent = scale.clone();
        self.admit(t, Operation::Update, Some(&mut scale), Some(&before)).await?;
        if scale != sent { scale::put_back(t.row, new, &scale) } else { Ok(()) }
    }

    /// Validating admission of a change.
    pub(super) async fn validate_change(
        &self,
        t: &mut WriteTarget<'_>,
        new: &mut Value,
        old: &Value,
    ) -> Result<(), Status> {
        if t.subresource != "scale" {
            return self.validate_admission(t, Operation::Update, Some(new), Some(old)).await;
        }
        let (mut scale, before) = (scale::scale_of(t.row, new), scale::scale_of(t.row, old));
        self.validate_admission(t, Operation::Update, Some(&mut scale), Some(&before)).await
    }

    /// Both rounds, where nothing comes between them.
    pub async fn admit_and_validate(
        &self,
        t: &mut WriteTarget<'_>,
        operation: Operation,
        mut object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.admit(t, operation, object.as_deref_mut(), old).await?;
        self.validate_admission(t, operation, object, old).await
    }

    async fn run_admission(
        &self,
        round: AdmissionPhase,
        t: &mut WriteTarget<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if t.admitted {
            return Ok(());
        }
        let mut annotations = BTreeMap::new();
        let mut asked = attributes(t, operation, object, old, &mut annotations);
        let outcome = match round {
            AdmissionPhase::Mutating => self.admission.admit(&mut asked).await,
            AdmissionPhase::Validating => self.admission.validate(&mut asked).await,
        };
        t.recorder.annotate(annotations);
        outcome
    }

    /// Devices are administered only from namespaces that are labelled for it.
    pub(super) async fn check_admin_access(
        &self,
        t: &WriteTarget<'_>,
        storage: &Row,
        object: &Value,
        old: Option<&Value>,
    ) -> Vec<field::Error> {
        let Some(path) = admin_access(storage, t.subresource, object, old) else { return Vec::new() };
        let Some(namespaces) = self.rows.storage(NAMESPACES) else { return Vec::new() };
        match self.read(&namespaces, "", t.namespace).await {
            Ok(namespace) => {
                validation::may_administer(namespace.as_ref().map(|(n, _)| n), path).err().into_iter().collect()
            }
            Err(why) => {
                let text = format!("could not retrieve namespace to verify admin access: {}", why.message);
                vec![field::Error::internal(path, &text)]
            }
        }
    }

    /// The answer to an object with errors, its own and those of what the operator allows.
    pub(super) fn refuse(
        &self,
        t: &WriteTarget<'_>,
        storage: &Row,
        object: &Value,
        is_new: bool,
        mut errors: Vec<field::Error>,
    ) -> Result<(), Status> {
        // Containers of a pod do not become privileged later; templates are judged again with every change.
        let judged = t.subresource.is_empty() && (is_new || GroupResource::of(storage) != PODS);
        if judged && !self.policy.allow_privileged {
            errors.extend(validation::privileged(pod_template(storage), object));
        }
        if errors.is_empty() {
            return Ok(());
        }
        let name = meta::text(object, "name");
        Err(behavior(storage).invalid((t.row, storage), object, name, errors))
    }
}

fn attributes<'a>(
    t: &'a mut WriteTarget<'_>,
    operation: Operation,
    object: Option<&'a mut Value>,
    old_object: Option<&'a Value>,
    annotations: &'a mut BTreeMap<String, String>,
) -> Attributes<'a> {
    Attributes {
        resource: t.row,
        subresource: t.subresource,
        namespace: t.namespace,
        name: if t.of_collection { "" } else { t.name },
        operation,
        user: t.user,
        object,
        old_object,
        options: &t.options_object,
        dry_run: t.options.dry_run,
        warnings: &mut t.warnings,
        annotations,
        reinvocation: Reinvocation::default(),
    }
}
