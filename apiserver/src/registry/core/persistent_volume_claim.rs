//! PersistentVolumeClaim. Answers for upstream's `pkg/registry/core/persistentvolumeclaim`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::{CREATE_WITHIN_UPDATE, rules};
use crate::validation::warnings;

pub(crate) const PERSISTENT_VOLUME_CLAIMS: GroupResource<'static> = GroupResource::new("", "persistentvolumeclaims");

pub(crate) static KIND: KindDefinition = KindDefinition::new(PERSISTENT_VOLUME_CLAIMS)
    .gated(&[
        gated("CrossNamespaceVolumeDataSource", "spec", &["dataSourceRef!.namespace"]).used_by(&["spec.dataSourceRef"]),
        gated("VolumeAttributesClass", "spec", &["volumeAttributesClassName"]),
        gated("VolumeAttributesClass", "status", &["currentVolumeAttributesClassName"]),
        gated("VolumeAttributesClass", "status", &["modifyVolumeStatus"]),
    ])
    .keeps(&[
        kept(
            ValidationOption::InvalidLabelValueInClaimSelector,
            &["spec"],
            validation::volume::claim::has_invalid_selector,
        ),
        kept(ValidationOption::InvalidApiGroupInDataSourceOrRef, &["spec"], validation::volume::claim::has_groups),
    ])
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
