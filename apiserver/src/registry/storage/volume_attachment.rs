//! VolumeAttachment. Answers for upstream's `pkg/registry/storage/volumeattachment`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta};
use crate::validation::kind_rules::rules;

pub(crate) const VOLUME_ATTACHMENTS: GroupResource<'static> = GroupResource::new("storage.k8s.io", "volumeattachments");

pub(crate) static KIND: KindDefinition = KindDefinition::new(VOLUME_ATTACHMENTS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1", "v1alpha1"]))
    .gated(&[
        gated("MutableCSINodeAllocatableCount", "status", &["attachError.errorCode"]),
        gated("MutableCSINodeAllocatableCount", "status", &["detachError.errorCode"]),
    ])
    .strategy(Strategy { status_restores: METADATA, ..CONDITIONAL })
    .rules(
        rules(validation::storage::new_attachment)
            .update(validation::storage::attachment_update)
            .changed(&[ObjectMeta, Immutable])
            .status(validation::storage::attachment_update)
            .status_changed(&[ObjectMeta, Immutable]),
    )
    .cells(printers::cluster::volume_attachment);
