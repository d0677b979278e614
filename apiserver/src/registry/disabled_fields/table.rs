//! The table: which fields go with which gate.

use crate::validation::PODS;

/// The fields of a gate in some resources, which stay together where one of them is in use. In a path `*` stands for
/// all elements of a list or map; a part with `?` at its end goes with its last field, one with `!` with the field that
/// follows.
pub(super) struct Gate {
    pub(super) name: &'static str,
    /// Kinds with the fields: `plural.group`, and the prefix of their paths.
    pub(super) within: &'static [(&'static str, &'static str)],
    pub(super) fields: &'static [&'static str],
    /// Other fields whose use counts as use of the gate.
    pub(super) used_by: &'static [&'static str],
    /// The fields are dropped even when in use.
    pub(super) always: bool,
}

const fn gate(
    name: &'static str,
    within: &'static [(&'static str, &'static str)],
    fields: &'static [&'static str],
) -> Gate {
    Gate { name, within, fields, used_by: &[], always: false }
}

const POD_STATUS: &[(&str, &str)] = &[("pods", "status")];
const CLAIMS: &[(&str, &str)] = &[
    ("resourceclaims.resource.k8s.io", "spec.devices"),
    ("resourceclaimtemplates.resource.k8s.io", "spec.spec.devices"),
];
const CLAIM_STATUS: &[(&str, &str)] = &[("resourceclaims.resource.k8s.io", "status")];
const SLICES: &[(&str, &str)] = &[("resourceslices.resource.k8s.io", "spec")];

const BINDING: &[&str] =
    &["devices.*.bindsToNode", "devices.*.bindingConditions", "devices.*.bindingFailureConditions"];

const DRIVERS: &[(&str, &str)] = &[("csidrivers.storage.k8s.io", "spec")];
const ATTACHMENTS: &[(&str, &str)] = &[("volumeattachments.storage.k8s.io", "status")];
const STATUS_OF_CLAIMS: &[(&str, &str)] = &[("persistentvolumeclaims", "status")];

pub(super) static GATES: &[Gate] = &[
    gate("UserNamespacesSupport", PODS, &["hostUsers"]),
    gate("PodLevelResources", PODS, &["resources"]),
    gate("HostnameOverride", PODS, &["hostnameOverride"]),
    gate("SELinuxChangePolicy", PODS, &["securityContext.seLinuxChangePolicy"]),
    gate("MatchLabelKeysInPodTopologySpread", PODS, &["topologySpreadConstraints.*.matchLabelKeys"]),
    gate(
        "EnvFiles",
        PODS,
        &[
            "containers.*.env.*.valueFrom.fileKeyRef",
            "initContainers.*.env.*.valueFrom.fileKeyRef",
            "ephemeralContainers.*.env.*.valueFrom.fileKeyRef",
        ],
    ),
    gate("ClusterTrustBundleProjection", PODS, &["volumes.*.projected.sources.*.clusterTrustBundle"]),
    gate("PodCertificateRequest", PODS, &["volumes.*.projected.sources.*.podCertificate"]),
    gate(
        "ContainerStopSignals",
        PODS,
        &[
            "containers.*.lifecycle?.stopSignal",
            "initContainers.*.lifecycle?.stopSignal",
            "ephemeralContainers.*.lifecycle?.stopSignal",
        ],
    ),
    gate("GenericWorkload", PODS, &["workloadRef"]),
    Gate {
        used_by: &["spec.dataSourceRef"],
        ..gate("CrossNamespaceVolumeDataSource", &[("persistentvolumeclaims", "spec")], &["dataSourceRef!.namespace"])
    },
    Gate {
        always: true,
        ..gate(
            "ResourceHealthStatus",
            POD_STATUS,
            &[
                "containerStatuses.*.allocatedResourcesStatus",
                "initContainerStatuses.*.allocatedResourcesStatus",
                "ephemeralContainerStatuses.*.allocatedResourcesStatus",
            ],
        )
    },
    gate("InPlacePodLevelResourcesVerticalScaling", POD_STATUS, &["resources", "allocatedResources"]),
    gate("DRAExtendedResource", POD_STATUS, &["extendedResourceClaimStatus"]),
    gate("DRAExtendedResource", &[("deviceclasses.resource.k8s.io", "spec")], &["extendedResourceName"]),
    gate("DRAAdminAccess", CLAIMS, &["requests.*.exactly.adminAccess"]),
    Gate {
        used_by: &["spec.devices.requests.*.exactly.adminAccess"],
        ..gate("DRAAdminAccess", CLAIM_STATUS, &["allocation.devices.results.*.adminAccess"])
    },
    gate("DRADeviceTaints", CLAIMS, &["requests.*.exactly.tolerations", "requests.*.firstAvailable.*.tolerations"]),
    gate("DRADeviceTaints", SLICES, &["devices.*.taints"]),
    gate(
        "DRAConsumableCapacity",
        CLAIMS,
        &["requests.*.exactly.capacity", "requests.*.firstAvailable.*.capacity", "constraints.*.distinctAttribute"],
    ),
    Gate {
        used_by: &[
            "spec.devices.requests.*.exactly.capacity",
            "spec.devices.requests.*.firstAvailable.*.capacity",
            "spec.devices.constraints.*.distinctAttribute",
        ],
        ..gate(
            "DRAConsumableCapacity",
            CLAIM_STATUS,
            &[
                "allocation.devices.results.*.consumedCapacity",
                "allocation.devices.results.*.shareID",
                "devices.*.shareID",
            ],
        )
    },
    gate(
        "DRAConsumableCapacity",
        SLICES,
        &["devices.*.allowMultipleAllocations", "devices.*.capacity.*.requestPolicy"],
    ),
    gate(
        "DRADeviceBindingConditions",
        CLAIM_STATUS,
        &["allocation.devices.results.*.bindingConditions", "allocation.devices.results.*.bindingFailureConditions"],
    ),
    gate("DRADeviceBindingConditions", SLICES, BINDING),
    // Conditions are told in the status of the devices.
    gate("DRAResourceClaimDeviceStatus", SLICES, BINDING),
    gate(
        "DRAPartitionableDevices",
        SLICES,
        &[
            "perDeviceNodeSelection",
            "sharedCounters",
            "devices.*.consumesCounters",
            "devices.*.nodeName",
            "devices.*.nodeSelector",
            "devices.*.allNodes",
        ],
    ),
    gate("NodeDeclaredFeatures", &[("nodes", "status")], &["declaredFeatures"]),
    gate(
        "MaxUnavailableStatefulSet",
        &[("statefulsets.apps", "spec.updateStrategy")],
        &["rollingUpdate.maxUnavailable"],
    ),
    gate("CoordinatedLeaderElection", &[("leases.coordination.k8s.io", "spec")], &["strategy", "preferredHolder"]),
    gate(
        "CRDObservedGenerationTracking",
        &[("customresourcedefinitions.apiextensions.k8s.io", "status")],
        &["observedGeneration", "conditions.*.observedGeneration"],
    ),
    gate("DRAPrioritizedList", CLAIMS, &["requests.*.firstAvailable"]),
    gate("DRAResourceClaimDeviceStatus", CLAIM_STATUS, &["devices"]),
    gate(
        "DeploymentReplicaSetTerminatingReplicas",
        &[("deployments.apps", "status"), ("replicasets.apps", "status")],
        &["terminatingReplicas"],
    ),
    gate(
        "HPAConfigurableTolerance",
        &[("horizontalpodautoscalers.autoscaling", "spec.behavior")],
        &["scaleUp.tolerance", "scaleDown.tolerance"],
    ),
    gate("SELinuxMountReadWriteOncePod", DRIVERS, &["seLinuxMount"]),
    gate("CSIServiceAccountTokenSecrets", DRIVERS, &["serviceAccountTokenInSecrets"]),
    gate("MutableCSINodeAllocatableCount", DRIVERS, &["nodeAllocatableUpdatePeriodSeconds"]),
    gate("MutableCSINodeAllocatableCount", ATTACHMENTS, &["attachError.errorCode"]),
    gate("MutableCSINodeAllocatableCount", ATTACHMENTS, &["detachError.errorCode"]),
    gate(
        "VolumeAttributesClass",
        &[("persistentvolumes", "spec"), ("persistentvolumeclaims", "spec")],
        &["volumeAttributesClassName"],
    ),
    gate("VolumeAttributesClass", STATUS_OF_CLAIMS, &["currentVolumeAttributesClassName"]),
    gate("VolumeAttributesClass", STATUS_OF_CLAIMS, &["modifyVolumeStatus"]),
];
