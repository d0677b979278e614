//! ResourceSlice. Answers for upstream's `pkg/registry/resource/resourceslice`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::conversion::devices;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::text;
use crate::registry::strategy::{Strategy, WITH_GENERATION};
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::warnings;

pub(crate) const RESOURCE_SLICES: GroupResource<'static> = GroupResource::new("resource.k8s.io", "resourceslices");

/// Fields of devices that are bound late.
const BINDING: &[&str] =
    &["devices.*.bindsToNode", "devices.*.bindingConditions", "devices.*.bindingFailureConditions"];

pub(crate) static KIND: KindDefinition = KindDefinition::new(RESOURCE_SLICES)
    .converts(devices::convert_slice)
    .label_error(|version, kind, label| format!("field label not supported for {version}, Kind={kind}: {label}"))
    .gated(&[
        gated("DRADeviceTaints", "spec", &["devices.*.taints"]),
        gated(
            "DRAConsumableCapacity",
            "spec",
            &["devices.*.allowMultipleAllocations", "devices.*.capacity.*.requestPolicy"],
        ),
        gated("DRADeviceBindingConditions", "spec", BINDING),
        // Conditions are told in the status of the devices.
        gated("DRAResourceClaimDeviceStatus", "spec", BINDING),
        gated(
            "DRAPartitionableDevices",
            "spec",
            &[
                "perDeviceNodeSelection",
                "sharedCounters",
                "devices.*.consumesCounters",
                "devices.*.nodeName",
                "devices.*.nodeSelector",
                "devices.*.allNodes",
            ],
        ),
    ])
    .strategy(Strategy {
        prepare_create: Some(crate::registry::devices::create_slice),
        prepare_update: Some(crate::registry::devices::update_slice),
        ..WITH_GENERATION
    })
    .rules(rules(validation::devices::slice::slice).update_only(validation::devices::slice::update))
    .warns(|new, _, out| warnings::resource_slice(new, out))
    .cells(printers::cluster::resource_slice)
    .selectable(&[text("spec.driver", &["/spec/driver"]), text("spec.nodeName", &["/spec/nodeName"])]);
