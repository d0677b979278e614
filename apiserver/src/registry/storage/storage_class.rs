//! StorageClass. Answers for upstream's `pkg/registry/storage/storageclass`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::warnings;

pub(crate) const STORAGE_CLASSES: GroupResource<'static> = GroupResource::new("storage.k8s.io", "storageclasses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(STORAGE_CLASSES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .rules(rules(validation::storage::class).update(validation::storage::class_update).changed(CREATE_AND_UPDATE))
    .warns(|new, _, out| warnings::storage::class(new, out))
    .cells(printers::cluster::storage_class);
