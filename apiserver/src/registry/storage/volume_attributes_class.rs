//! VolumeAttributesClass. Answers for upstream's `pkg/registry/storage/volumeattributesclass`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::validation;
use crate::validation::kind_rules::{IMMUTABLE_FIRST, rules};

pub(crate) const VOLUME_ATTRIBUTES_CLASSES: GroupResource<'static> =
    GroupResource::new("storage.k8s.io", "volumeattributesclasses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(VOLUME_ATTRIBUTES_CLASSES)
    .life_cycle(LifeCycle::new().introduced(&[("v1", 34)]).fixed_storage().decodes(&["v1beta1", "v1alpha1"]))
    .rules(
        rules(validation::storage::attributes_class)
            .update(validation::storage::attributes_class_update)
            .changed(IMMUTABLE_FIRST),
    )
    .cells(printers::cluster::volume_attributes_class);
