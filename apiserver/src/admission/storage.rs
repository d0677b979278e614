//! The storage plugins: DefaultStorageClass, StorageObjectInUseProtection and PersistentVolumeClaimResize. Answers for
//! upstream's `plugin/pkg/admission/storage`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::Status;
use shared::types::OLD_CLASS;

use super::{Attributes, Plugin, resource_list};
use crate::api::Reader;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::core::persistent_volume::PERSISTENT_VOLUMES;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::storage::storage_class::STORAGE_CLASSES;
use crate::registry::storage::volume_attributes_class::VOLUME_ATTRIBUTES_CLASSES;

const DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// The newest of several, the first by name among equals.
pub(super) fn newest(mut objects: Vec<Arc<Value>>) -> Option<Arc<Value>> {
    objects.sort_by(|a, b| {
        let time = |o: &Value| tree::text(o, "/metadata/creationTimestamp").to_owned();
        time(b).cmp(&time(a)).then_with(|| tree::name(a).cmp(tree::name(b)))
    });
    objects.into_iter().next()
}

/// Claims without a class get the default one.
pub(super) struct DefaultStorageClass {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for DefaultStorageClass {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(claim) = a.object.as_deref_mut() else { return Ok(()) };
        if tree::has(claim, "/spec/storageClassName") || tree::annotation(claim, OLD_CLASS).is_some() {
            return Ok(());
        }
        let mut classes = self.reader.list(STORAGE_CLASSES, None);
        classes.retain(|c| DEFAULT.iter().any(|key| tree::annotation(c, key) == Some("true")));
        if let Some(class) = newest(classes) {
            *tree::field(claim, &["spec", "storageClassName"]) = json!(tree::name(&class));
        }
        Ok(())
    }
}

/// Volumes, claims and attribute classes are kept while in use: they are born with a finalizer.
pub(super) struct StorageObjectInUseProtection;

const FINALIZERS: [(GroupResource<'static>, &str); 3] = [
    (PERSISTENT_VOLUME_CLAIMS, "kubernetes.io/pvc-protection"),
    (PERSISTENT_VOLUMES, "kubernetes.io/pv-protection"),
    (VOLUME_ATTRIBUTES_CLASSES, "kubernetes.io/vac-protection"),
];

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some((_, finalizer)) = FINALIZERS.iter().find(|(resource, _)| a.is(*resource)) else {
            return Ok(());
        };
        if let Some(object) = a.object.as_deref_mut()
            && let Some(finalizers) = tree::list_mut(object, &["metadata", "finalizers"])
            && !finalizers.iter().any(|f| f == finalizer)
        {
            finalizers.push(json!(finalizer));
        }
        Ok(())
    }
}

/// A claim grows only where its class lets it.
pub(super) struct PersistentVolumeClaimResize {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let (Some(new), Some(old)) = (a.object(), a.old_object) else { return Ok(()) };
        let size = |claim: &Value| resource_list::read(claim, "/spec/resources/requests").remove("storage");
        match (size(new), size(old)) {
            (Some(new), Some(old)) if new > old => {}
            _ => return Ok(()),
        }
        if tree::text(old, "/status/phase") != "Bound" {
            return Err(a.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = match tree::annotation(new, OLD_CLASS) {
            Some(class) => class,
            None => tree::text(new, "/spec/storageClassName"),
        };
        let grows = !class.is_empty()
            && self.reader.get(STORAGE_CLASSES, "", class).is_some_and(|c| tree::flag(&c, "/allowVolumeExpansion"));
        if grows {
            return Ok(());
        }
        Err(a.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}
