//! StorageClass. Answers for upstream's `pkg/registry/storage/storageclass`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storage.k8s.io", "storageclasses")
    .rules(rules(validation::storage::class).update(validation::storage::class_update).changed(CREATE_AND_UPDATE))
    .warns(|new, _, out| warnings::storage::class(new, out))
    .cells(printers::cluster::storage_class);
