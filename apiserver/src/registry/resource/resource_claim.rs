//! ResourceClaim. Answers for upstream's `pkg/registry/resource/resourceclaim`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{METADATA, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("resource.k8s.io", "resourceclaims")
    .strategy(Strategy {
        status_restores: METADATA,
        prepare_status: Some(crate::registry::resource_claim::prepare_status),
        ..PLAIN
    })
    .rules(
        rules(validation::devices::claim)
            .update(validation::devices::spec_stays)
            .changed(&[ObjectMeta, ObjectMetaUpdate, Immutable])
            .status(validation::devices::status::update),
    )
    .cells(printers::cluster::resource_claim);
