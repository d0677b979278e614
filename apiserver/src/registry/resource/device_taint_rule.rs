//! DeviceTaintRule. Answers for upstream's `pkg/registry/resource/devicetaintrule`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::{METADATA, Strategy, WITH_GENERATION};
use crate::validation;
use crate::validation::kind_rules::rules;

pub(crate) const DEVICE_TAINT_RULES: GroupResource<'static> = GroupResource::new("resource.k8s.io", "devicetaintrules");

pub(crate) static KIND: KindDefinition = KindDefinition::new(DEVICE_TAINT_RULES)
    .life_cycle(LifeCycle::new().gate("DRADeviceTaintRules").introduced(&[("v1alpha3", 33)]).fixed_storage())
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
