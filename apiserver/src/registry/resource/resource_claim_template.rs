//! ResourceClaimTemplate. Answers for upstream's `pkg/registry/resource/resourceclaimtemplate`.

use crate::machinery::GroupResource;
use crate::registry::conversion::devices;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::resource_claim::request_fields;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const RESOURCE_CLAIM_TEMPLATES: GroupResource<'static> =
    GroupResource::new("resource.k8s.io", "resourceclaimtemplates");

pub(crate) static KIND: KindDefinition = KindDefinition::new(RESOURCE_CLAIM_TEMPLATES)
    .converts(devices::convert_template)
    .gated(&[
        gated("DRAAdminAccess", "spec.spec.devices", request_fields::ADMIN_ACCESS),
        gated("DRADeviceTaints", "spec.spec.devices", request_fields::TOLERATIONS),
        gated("DRAConsumableCapacity", "spec.spec.devices", request_fields::CAPACITY),
        gated("DRAPrioritizedList", "spec.spec.devices", request_fields::ALTERNATIVES),
    ])
    .admin_access(validation::devices::admin::of_template)
    .rules(rules(validation::devices::template).update(validation::devices::spec_stays).changed(CREATE_AND_UPDATE));
