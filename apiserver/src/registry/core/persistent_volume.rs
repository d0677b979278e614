//! PersistentVolume. Answers for upstream's `pkg/registry/core/persistentvolume`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, Spec};
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("", "persistentvolumes")
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
