//! The strategies of the kinds that are not plain.

use proto::resources::Resource;

use super::{Generation, METADATA, StatusTreatment, Strategy};
use crate::registry::conversion::autoscaler;
use crate::registry::{
    api_services, apiextensions, apps, batch, certificates, core, devices, discovery, resource_claim,
};

const PLAIN: Strategy = Strategy {
    generation: Generation::None,
    create_on_update: false,
    unconditional_update: true,
    status: StatusTreatment::Apart,
    suffixes: true,
    status_restores: &[],
    prepare_create: None,
    prepare_update: None,
    prepare_status: None,
    grace: None,
    holds: None,
    on_delete: None,
    orphans_by_default: false,
    expires: false,
    counts: None,
};

const WITH_GENERATION: Strategy = Strategy { generation: Generation::Spec, ..PLAIN };
const CONDITIONAL: Strategy = Strategy { unconditional_update: false, ..PLAIN };
const CONDITIONAL_GENERATION: Strategy = Strategy { unconditional_update: false, ..WITH_GENERATION };
const CREATES_ON_PUT: Strategy = Strategy { create_on_update: true, ..PLAIN };
const CONDITIONAL_CREATES: Strategy = Strategy { create_on_update: true, ..CONDITIONAL };

static PLAIN_ROW: Strategy = PLAIN;
/// Custom resources.
static CUSTOM: Strategy =
    Strategy { prepare_status: Some(crate::crd::objects::prepare_status), generation: Generation::All, ..CONDITIONAL };

/// By group and plural. Absent kinds are plain: no generation, unconditional PUT, no grace.
static ROWS: &[(&str, &str, Strategy)] = &[
    (
        "",
        "pods",
        Strategy {
            prepare_create: Some(core::pod::prepare_create),
            prepare_update: Some(core::pod::prepare_update),
            prepare_status: Some(core::pod::prepare_status),
            status_restores: &["deletionTimestamp", "ownerReferences"],
            grace: Some(core::pod::grace),
            ..WITH_GENERATION
        },
    ),
    (
        "",
        "namespaces",
        Strategy {
            prepare_create: Some(core::namespace::prepare_create),
            prepare_update: Some(core::namespace::prepare_update),
            prepare_status: Some(core::namespace::prepare_status),
            holds: Some(core::namespace::is_held),
            on_delete: Some(core::namespace::terminate),
            ..PLAIN
        },
    ),
    (
        "",
        "nodes",
        Strategy {
            status: StatusTreatment::AtCreation,
            prepare_create: Some(core::node::prepare_create),
            prepare_update: Some(core::node::prepare_update),
            prepare_status: Some(core::node::prepare_status),
            ..PLAIN
        },
    ),
    (
        "",
        "serviceaccounts",
        Strategy {
            prepare_create: Some(core::service_account::prepare_create),
            prepare_update: Some(core::service_account::prepare_update),
            ..PLAIN
        },
    ),
    ("", "services", Strategy { create_on_update: true, prepare_update: Some(core::service_update::prepare), ..PLAIN }),
    ("", "endpoints", CREATES_ON_PUT),
    ("", "events", Strategy { expires: true, ..CREATES_ON_PUT }),
    ("", "limitranges", Strategy { prepare_create: Some(core::limit_range::prepare_create), ..CREATES_ON_PUT }),
    ("", "podtemplates", WITH_GENERATION),
    ("", "secrets", Strategy { prepare_update: Some(core::secret::prepare_update), ..PLAIN }),
    (
        "",
        "persistentvolumes",
        Strategy {
            prepare_create: Some(core::volume::prepare_create_volume),
            prepare_status: Some(core::volume::prepare_volume_status),
            ..PLAIN
        },
    ),
    (
        "",
        "persistentvolumeclaims",
        Strategy {
            prepare_create: Some(core::volume::prepare_create),
            prepare_update: Some(core::volume::prepare_update),
            ..PLAIN
        },
    ),
    ("", "replicationcontrollers", Strategy { orphans_by_default: true, ..WITH_GENERATION }),
    (
        "apps",
        "deployments",
        Strategy { generation: Generation::SpecAndAnnotations, status_restores: &["labels"], ..PLAIN },
    ),
    ("apps", "replicasets", WITH_GENERATION),
    (
        "apps",
        "daemonsets",
        Strategy {
            prepare_create: Some(apps::daemon_set::prepare_create),
            prepare_update: Some(apps::daemon_set::prepare_update),
            ..WITH_GENERATION
        },
    ),
    ("apps", "statefulsets", WITH_GENERATION),
    (
        "autoscaling",
        "horizontalpodautoscalers",
        Strategy {
            prepare_create: Some(autoscaler::prepare_create),
            prepare_update: Some(autoscaler::prepare_update),
            prepare_status: Some(autoscaler::prepare_update),
            ..PLAIN
        },
    ),
    (
        "batch",
        "jobs",
        Strategy { prepare_create: Some(batch::job::prepare_create), orphans_by_default: true, ..WITH_GENERATION },
    ),
    ("batch", "cronjobs", WITH_GENERATION),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        Strategy {
            prepare_create: Some(certificates::prepare_create),
            prepare_update: Some(certificates::prepare_update),
            prepare_status: Some(certificates::prepare_status),
            counts: Some(certificates::issued),
            ..PLAIN
        },
    ),
    ("certificates.k8s.io", "clustertrustbundles", CONDITIONAL),
    (
        "certificates.k8s.io",
        "podcertificaterequests",
        Strategy { status_restores: METADATA, prepare_status: Some(certificates::prepare_pod_status), ..CONDITIONAL },
    ),
    ("policy", "poddisruptionbudgets", CONDITIONAL_GENERATION),
    ("networking.k8s.io", "ingresses", WITH_GENERATION),
    ("networking.k8s.io", "ingressclasses", WITH_GENERATION),
    ("networking.k8s.io", "networkpolicies", WITH_GENERATION),
    ("networking.k8s.io", "ipaddresses", Strategy { suffixes: false, ..PLAIN }),
    (
        "networking.k8s.io",
        "servicecidrs",
        Strategy { status: StatusTreatment::Open, status_restores: METADATA, ..PLAIN },
    ),
    (
        "discovery.k8s.io",
        "endpointslices",
        Strategy {
            generation: Generation::SpecAndLabels,
            prepare_create: Some(discovery::prepare_create),
            prepare_update: Some(discovery::prepare_update),
            ..PLAIN
        },
    ),
    ("coordination.k8s.io", "leases", CONDITIONAL_CREATES),
    ("coordination.k8s.io", "leasecandidates", CONDITIONAL_CREATES),
    ("rbac.authorization.k8s.io", "roles", CREATES_ON_PUT),
    ("rbac.authorization.k8s.io", "rolebindings", CREATES_ON_PUT),
    ("rbac.authorization.k8s.io", "clusterroles", CREATES_ON_PUT),
    ("rbac.authorization.k8s.io", "clusterrolebindings", CREATES_ON_PUT),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", CONDITIONAL_GENERATION),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", CONDITIONAL_GENERATION),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", CONDITIONAL_GENERATION),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", CONDITIONAL_GENERATION),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        Strategy { status_restores: METADATA, ..CONDITIONAL_GENERATION },
    ),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", CONDITIONAL_GENERATION),
    ("flowcontrol.apiserver.k8s.io", "flowschemas", Strategy { status_restores: METADATA, ..WITH_GENERATION }),
    (
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
        Strategy { status_restores: METADATA, ..WITH_GENERATION },
    ),
    (
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        Strategy {
            prepare_create: Some(apiextensions::prepare_create),
            prepare_update: Some(apiextensions::prepare_update),
            holds: Some(apiextensions::is_held),
            on_delete: Some(apiextensions::terminate),
            ..CONDITIONAL_GENERATION
        },
    ),
    (
        "apiregistration.k8s.io",
        "apiservices",
        Strategy { status_restores: METADATA, prepare_create: Some(api_services::prepare_create), ..CONDITIONAL },
    ),
    ("internal.apiserver.k8s.io", "storageversions", Strategy { status_restores: METADATA, ..CONDITIONAL }),
    ("storagemigration.k8s.io", "storageversionmigrations", Strategy { status_restores: METADATA, ..CONDITIONAL }),
    ("node.k8s.io", "runtimeclasses", CONDITIONAL_CREATES),
    ("scheduling.k8s.io", "priorityclasses", Strategy { generation: Generation::First, ..PLAIN }),
    ("resource.k8s.io", "deviceclasses", WITH_GENERATION),
    (
        "resource.k8s.io",
        "resourceslices",
        Strategy {
            prepare_create: Some(devices::create_slice),
            prepare_update: Some(devices::update_slice),
            ..WITH_GENERATION
        },
    ),
    (
        "resource.k8s.io",
        "resourceclaims",
        Strategy { status_restores: METADATA, prepare_status: Some(resource_claim::prepare_status), ..PLAIN },
    ),
    (
        "resource.k8s.io",
        "devicetaintrules",
        Strategy {
            status_restores: METADATA,
            prepare_create: Some(devices::create_rule),
            prepare_update: Some(devices::update_rule),
            ..WITH_GENERATION
        },
    ),
    ("storage.k8s.io", "csidrivers", Strategy { generation: Generation::Changes, ..CONDITIONAL }),
    ("storage.k8s.io", "csinodes", CONDITIONAL),
    ("storage.k8s.io", "volumeattachments", Strategy { status_restores: METADATA, ..CONDITIONAL }),
    ("storage.k8s.io", "csistoragecapacities", CONDITIONAL),
];

/// The strategy of a resource.
pub fn strategy_of(resource: &Resource) -> &'static Strategy {
    if resource.custom.is_some() {
        return &CUSTOM;
    }
    let group = if resource.plural == "events" { "" } else { &*resource.group };
    ROWS.iter().find(|(g, p, _)| *g == group && *p == resource.plural).map_or(&PLAIN_ROW, |(_, _, s)| s)
}
