//! VolumeAttachment. Answers for upstream's `pkg/registry/storage/volumeattachment`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("storage.k8s.io", "volumeattachments")
    .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL })
    .rules(
        rules(validation::storage::new_attachment)
            .update(validation::storage::attachment_update)
            .changed(&[ObjectMeta, Immutable])
            .status(validation::storage::attachment_update)
            .status_changed(&[ObjectMeta, Immutable]),
    )
    .cells(printers::cluster::volume_attachment);
