//! PersistentVolume. Answers for upstream's `pkg/registry/core/persistentvolume`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, Spec};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const PERSISTENT_VOLUMES: GroupResource<'static> = GroupResource::new("", "persistentvolumes");

pub(crate) static KIND: KindDefinition = KindDefinition::new(PERSISTENT_VOLUMES)
    .gated(&[gated("VolumeAttributesClass", "spec", &["volumeAttributesClassName"])])
    .keeps(&[kept(
        ValidationOption::InvalidLabelValueInRequiredNodeAffinity,
        &["spec"],
        validation::pod::stored::has_invalid_node_affinity,
    )])
    .strategy(Strategy {
        prepare_create: Some(crate::registry::core::volume::prepare_create_volume),
        prepare_status: Some(crate::registry::core::volume::prepare_volume_status),
        ..PLAIN
    })
    .rules(
        rules(validation::volume::persistent::new_volume)
            .update(validation::volume::persistent::volume_update)
            .changed(&[ObjectMeta, Spec, ObjectMeta, Immutable]),
    )
    .warns(|new, _, out| warnings::storage::volume(new, out))
    .cells(printers::cluster::volume);
