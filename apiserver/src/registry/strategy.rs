//! Strategy of a kind, as data: fields that clients may not set, `generation`, creation by PUT, graceful deletion.
//! Answers for upstream's `RESTCreateStrategy`, `RESTUpdateStrategy`.
//!
//! The generic pipeline asks [`of`] and never matches on kinds itself. A new kind is one row here, if that.

use proto::Value;
use proto::resources::Resource;
use serde_json::Map;
use shared::authn::UserInfo;

use super::conversion::autoscaler;
use super::{
    FieldGates, api_services, apiextensions, apps, batch, certificates, core, devices, discovery, resource_claim,
};

/// Rule for `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    None,
    /// Counts updates of the specification, starting from none.
    Changes,
    /// Always 1.
    First,
    /// With any change outside `metadata` and `status`.
    Spec,
    /// With any change outside `metadata`: where `status` is written separately, it does not change here.
    All,
    /// With any change outside `status` and the metadata other than annotations.
    SpecAndAnnotations,
    /// With any change outside `status` and the metadata other than labels.
    SpecAndLabels,
}

/// Treatment of `status` in writes of the object itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `status` is dropped on create and kept on update.
    Apart,
    /// `status` is initialized on create.
    AtCreation,
    /// `status` is written like any field.
    Open,
}

/// Facts a strategy function may need.
pub struct StrategyCx<'a> {
    /// User who writes.
    pub user: &'a UserInfo,
    /// Receives warnings for the client.
    pub warnings: &'a mut Vec<String>,
    /// Feature gates.
    pub gated: &'a FieldGates,
}

/// Strategy of a kind.
pub struct Strategy {
    /// See there.
    pub generation: Generation,
    /// PUT on a missing name creates.
    pub create_on_update: bool,
    /// PUT without a resourceVersion replaces whatever is there.
    pub unconditional_update: bool,
    /// See there.
    pub status: Status,
    /// A prefix that a name is to be made from gets a suffix.
    pub suffixes: bool,
    /// Metadata that a write of `status` does not change. (Of custom resources it changes none.)
    pub status_restores: &'static [&'static str],
    /// Runs after defaults and mutating admission, before validation.
    pub prepare_create: Option<fn(&mut Value, &mut StrategyCx<'_>)>,
    /// Hook for a PUT or PATCH of the main resource; the second argument is the stored object.
    pub prepare_update: Option<fn(&mut Value, &Value)>,
    /// Hook for a write of `status`; the second argument is the stored object.
    pub prepare_status: Option<fn(&mut Value, &Value)>,
    /// Seconds of grace of a delete that asks for `requested`; `None` when the kind has no grace.
    pub grace: Option<fn(&Value, requested: Option<i64>) -> i64>,
    /// Condition that holds a deleted object besides finalizers, such as a namespace's content.
    pub holds: Option<fn(&Value) -> bool>,
    /// Marks the object when its deletion begins.
    pub on_delete: Option<fn(&mut Value)>,
    /// A delete that does not say what happens to dependents leaves them alone.
    pub orphans_by_default: bool,
    /// Lives in etcd for `--event-ttl` only.
    pub expires: bool,
    /// Count to record once an update (new object, old object) is written.
    pub counts: Option<fn(&Value, &Value) -> Option<Count>>,
}

/// Counts what was written.
pub type Count = Box<dyn FnOnce() + Send>;

const PLAIN: Strategy = Strategy {
    generation: Generation::None,
    create_on_update: false,
    unconditional_update: true,
    status: Status::Apart,
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

/// Metadata fields that clients may write.
pub(in crate::registry) const METADATA: &[&str] =
    &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"];

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
            status: Status::AtCreation,
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
    ("networking.k8s.io", "servicecidrs", Strategy { status: Status::Open, status_restores: METADATA, ..PLAIN }),
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

impl Strategy {
    /// Drops or sets what a client may not decide at creation.
    pub fn create(&self, resource: &Resource, object: &mut Value, cx: &mut StrategyCx<'_>) {
        let status = has_status(resource);
        if let Some(map) = object.as_object_mut() {
            if status && self.status == Status::Apart {
                map.remove("status");
            }
            if let Some(meta) = map.entry("metadata").or_insert_with(|| Value::Object(Map::new())).as_object_mut() {
                meta.remove("generation");
                if !matches!(self.generation, Generation::None | Generation::Changes) {
                    meta.insert("generation".to_owned(), Value::from(1));
                }
            }
        }
        if let Some(f) = self.prepare_create {
            f(object, cx);
        }
    }

    /// Restores what a write of the main resource may not change, and moves the generation.
    pub fn update(&self, resource: &Resource, new: &mut Value, old: &Value) {
        if has_status(resource) && self.status != Status::Open {
            restore(new, old, "status");
        }
        if let Some(f) = self.prepare_update {
            f(new, old);
        }
        self.move_generation(new, old);
    }

    /// Counts the generation up when the specification changed.
    pub fn move_generation(&self, new: &mut Value, old: &Value) {
        let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
        let moves = !matches!(self.generation, Generation::None | Generation::First);
        let moved = moves && self.spec_changed(new, old);
        set_generation(new, generation + i64::from(moved));
    }

    /// A write of `status`: everything but status and, of some kinds, metadata is as stored.
    pub fn update_status(&self, new: &mut Value, old: &Value) {
        let Some(old_map) = old.as_object() else { return };
        if let Some(map) = new.as_object_mut() {
            map.retain(|k, _| matches!(k.as_str(), "status" | "metadata") || old_map.contains_key(k));
            for (k, v) in old_map {
                if !matches!(k.as_str(), "status" | "metadata") {
                    map.insert(k.clone(), v.clone());
                }
            }
        }
        set_generation(new, old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0));
        for field in self.status_restores {
            restore(&mut new["metadata"], &old["metadata"], field);
        }
        if let Some(f) = self.prepare_status {
            f(new, old);
        }
    }

    fn spec_changed(&self, new: &Value, old: &Value) -> bool {
        let extra = match self.generation {
            Generation::SpecAndAnnotations => Some("/metadata/annotations"),
            Generation::SpecAndLabels => Some("/metadata/labels"),
            _ => None,
        };
        if extra.is_some_and(|p| new.pointer(p) != old.pointer(p)) {
            return true;
        }
        let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
        let relevant = |k: &&String| match k.as_str() {
            "metadata" | "apiVersion" | "kind" => false,
            "status" => self.generation == Generation::All,
            _ => true,
        };
        new.keys().chain(old.keys()).filter(relevant).any(|k| new.get(k) != old.get(k))
    }
}

/// True for kinds with a `status` subresource.
pub fn has_status(resource: &Resource) -> bool {
    resource.subresources.iter().any(|s| s.name == "status")
}

/// Puts back a field as stored.
pub fn restore(new: &mut Value, old: &Value, field: &str) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(v) => map.insert(field.to_owned(), v.clone()),
        None => map.remove(field),
    };
}

fn set_generation(object: &mut Value, generation: i64) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        if generation == 0 {
            meta.remove("generation");
        } else {
            meta.insert("generation".to_owned(), Value::from(generation));
        }
    }
}
