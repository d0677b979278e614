//! ResourceClaim. Answers for upstream's `pkg/registry/resource/resourceclaim`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::conversion::devices;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::resource_claim::request_fields;
use crate::registry::strategy::{METADATA, PLAIN, Strategy};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;

pub(crate) const RESOURCE_CLAIMS: GroupResource<'static> = GroupResource::new("resource.k8s.io", "resourceclaims");

pub(crate) static KIND: KindDefinition = KindDefinition::new(RESOURCE_CLAIMS)
    .converts(devices::convert_claim)
    .gated(&[
        gated("DRAAdminAccess", "spec.devices", request_fields::ADMIN_ACCESS),
        gated("DRADeviceTaints", "spec.devices", request_fields::TOLERATIONS),
        gated("DRAConsumableCapacity", "spec.devices", request_fields::CAPACITY),
        gated("DRAPrioritizedList", "spec.devices", request_fields::ALTERNATIVES),
        gated("DRAAdminAccess", "status", &["allocation.devices.results.*.adminAccess"])
            .used_by(&["spec.devices.requests.*.exactly.adminAccess"]),
        gated(
            "DRAConsumableCapacity",
            "status",
            &[
                "allocation.devices.results.*.consumedCapacity",
                "allocation.devices.results.*.shareID",
                "devices.*.shareID",
            ],
        )
        .used_by(&[
            "spec.devices.requests.*.exactly.capacity",
            "spec.devices.requests.*.firstAvailable.*.capacity",
            "spec.devices.constraints.*.distinctAttribute",
        ]),
        gated(
            "DRADeviceBindingConditions",
            "status",
            &[
                "allocation.devices.results.*.bindingConditions",
                "allocation.devices.results.*.bindingFailureConditions",
            ],
        ),
        gated("DRAResourceClaimDeviceStatus", "status", &["devices"]),
    ])
    .admin_access(validation::devices::admin::of_claim)
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
