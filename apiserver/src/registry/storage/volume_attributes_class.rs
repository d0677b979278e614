//! VolumeAttributesClass. Answers for upstream's `pkg/registry/storage/volumeattributesclass`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::validation;
use crate::validation::kind_rules::{IMMUTABLE_FIRST, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storage.k8s.io", "volumeattributesclasses")
    .rules(
        rules(validation::storage::attributes_class)
            .update(validation::storage::attributes_class_update)
            .changed(IMMUTABLE_FIRST),
    )
    .cells(printers::cluster::volume_attributes_class);
