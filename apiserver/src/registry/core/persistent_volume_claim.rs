//! PersistentVolumeClaim. Answers for upstream's `pkg/registry/core/persistentvolumeclaim`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::{CREATE_WITHIN_UPDATE, rules};
use crate::validation::warnings;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("", "persistentvolumeclaims")
    .strategy(Strategy {
        prepare_create: Some(crate::registry::core::volume::prepare_create),
        prepare_update: Some(crate::registry::core::volume::prepare_update),
        ..PLAIN
    })
    .rules(
        rules(validation::volume::claim::claim)
            .update(validation::volume::claim::update)
            .changed(CREATE_WITHIN_UPDATE)
            .status(validation::volume::claim::status),
    )
    .warns(|new, _, out| warnings::storage::claim(new, out))
    .cells(printers::cluster::claim);
