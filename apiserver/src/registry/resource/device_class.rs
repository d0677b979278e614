//! DeviceClass. Answers for upstream's `pkg/registry/resource/deviceclass`.

use crate::machinery::GroupResource;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::WITH_GENERATION;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;

pub(crate) const DEVICE_CLASSES: GroupResource<'static> = GroupResource::new("resource.k8s.io", "deviceclasses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(DEVICE_CLASSES)
    .gated(&[gated("DRAExtendedResource", "spec", &["extendedResourceName"])])
    .strategy(WITH_GENERATION)
    .rules(
        rules(validation::devices::class)
            .named(NameRule::WholeSubdomain)
            .update(validation::devices::class_update)
            .changed(&[ObjectMeta, ObjectMetaUpdate, Immutable]),
    );
