//! The table: which fields of a pod's spec go with which gate, in all kinds that describe pods.

use crate::registry::gated_fields::{GatedFields, gated};

const SPEC: &str = "";

pub(super) static OF_PODS: &[GatedFields] = &[
    gated("UserNamespacesSupport", SPEC, &["hostUsers"]),
    gated("PodLevelResources", SPEC, &["resources"]),
    gated("HostnameOverride", SPEC, &["hostnameOverride"]),
    gated("SELinuxChangePolicy", SPEC, &["securityContext.seLinuxChangePolicy"]),
    gated("MatchLabelKeysInPodTopologySpread", SPEC, &["topologySpreadConstraints.*.matchLabelKeys"]),
    gated(
        "EnvFiles",
        SPEC,
        &[
            "containers.*.env.*.valueFrom.fileKeyRef",
            "initContainers.*.env.*.valueFrom.fileKeyRef",
            "ephemeralContainers.*.env.*.valueFrom.fileKeyRef",
        ],
    ),
    gated("ClusterTrustBundleProjection", SPEC, &["volumes.*.projected.sources.*.clusterTrustBundle"]),
    gated("PodCertificateRequest", SPEC, &["volumes.*.projected.sources.*.podCertificate"]),
    gated(
        "ContainerStopSignals",
        SPEC,
        &[
            "containers.*.lifecycle?.stopSignal",
            "initContainers.*.lifecycle?.stopSignal",
            "ephemeralContainers.*.lifecycle?.stopSignal",
        ],
    ),
    gated("GenericWorkload", SPEC, &["workloadRef"]),
];
