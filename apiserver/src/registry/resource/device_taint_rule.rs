//! DeviceTaintRule. Answers for upstream's `pkg/registry/resource/devicetaintrule`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{METADATA, Strategy, WITH_GENERATION};
use crate::validation;
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("resource.k8s.io", "devicetaintrules")
    .strategy(Strategy {
        status_restores: METADATA,
        prepare_create: Some(crate::registry::devices::create_rule),
        prepare_update: Some(crate::registry::devices::update_rule),
        ..WITH_GENERATION
    })
    .rules(
        rules(validation::devices::taint_rule::rule)
            .update_only(validation::devices::taint_rule::update)
            .status(validation::devices::taint_rule::status),
    )
    .cells(printers::cluster::device_taint_rule);
