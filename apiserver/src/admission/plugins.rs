//! All of upstream's plugins in its order: what each is about, what it reads, and how it is made. The chain asks a
//! plugin about nothing that its line does not name. Answers for upstream's `AllOrderedPlugins`,
//! `RegisterAllAdmissionPlugins`.

use std::sync::Arc;

use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};

use super::always::{
    AlwaysAdmit, AlwaysDeny, AlwaysPullImages, ExtendedResourceToleration, LimitPodHardAntiAffinityTopology,
};
use super::certificates::{CertificateSubjectRestriction, SignerPermission};
use super::configuration::Configurations;
use super::default_toleration_seconds::DefaultTolerationSeconds;
use super::event_rate_limit::EventRateLimit;
use super::image_policy::ImagePolicyWebhook;
use super::ingress_class::DefaultIngressClass;
use super::limit_ranger::LimitRanger;
use super::namespace_exists::{NamespaceAutoProvision, NamespaceExists};
use super::namespace_lifecycle::{NamespaceLifecycle, RecentlyDeleted};
use super::node_declared_features::NodeDeclaredFeatureValidator;
use super::node_restriction::NodeRestriction;
use super::owner_references::OwnerReferencesPermissionEnforcement;
use super::pod_node_selector::PodNodeSelector;
use super::pod_security::PodSecurity;
use super::pod_tolerations::PodTolerationRestriction;
use super::pod_topology_labels::PodTopologyLabels;
use super::policies::{MutatingPolicies, ValidatingPolicies};
use super::priority::Priority;
use super::resource_quota::ResourceQuota;
use super::runtime_class::RuntimeClass;
use super::service_account::ServiceAccount;
use super::service_external_ips::DenyServiceExternalIPs;
use super::storage::{DefaultStorageClass, PersistentVolumeClaimResize, StorageObjectInUseProtection};
use super::taint_nodes_by_condition::TaintNodesByCondition;
use super::webhooks::{Caller, MutatingWebhooks, ValidatingWebhooks, WebhookDeps};
use super::{Attributes, Error, Operation, Shared};
use crate::api::{Api, Reader};
use crate::authz::Authorization;
use crate::egress::Egress;
use crate::machinery::GroupResource;
use crate::registry::admissionregistration::mutating_admission_policy::MUTATING_ADMISSION_POLICIES;
use crate::registry::admissionregistration::mutating_admission_policy_binding::MUTATING_ADMISSION_POLICY_BINDINGS;
use crate::registry::admissionregistration::mutating_webhook_configuration::MUTATING_WEBHOOK_CONFIGURATIONS;
use crate::registry::admissionregistration::validating_admission_policy::VALIDATING_ADMISSION_POLICIES;
use crate::registry::admissionregistration::validating_admission_policy_binding::VALIDATING_ADMISSION_POLICY_BINDINGS;
use crate::registry::admissionregistration::validating_webhook_configuration::VALIDATING_WEBHOOK_CONFIGURATIONS;
use crate::registry::certificates::certificate_signing_request::CERTIFICATE_SIGNING_REQUESTS;
use crate::registry::certificates::cluster_trust_bundle::CLUSTER_TRUST_BUNDLES;
use crate::registry::certificates::pod_certificate_request::POD_CERTIFICATE_REQUESTS;
use crate::registry::core::binding::BINDINGS;
use crate::registry::core::event::EVENTS;
use crate::registry::core::limit_range::LIMIT_RANGES;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::core::node::NODES;
use crate::registry::core::persistent_volume::PERSISTENT_VOLUMES;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::core::pod::PODS;
use crate::registry::core::resource_quota::RESOURCE_QUOTAS;
use crate::registry::core::service::SERVICES;
use crate::registry::networking::ingress::INGRESSES;
use crate::registry::networking::ingress_class::INGRESS_CLASSES;
use crate::registry::scheduling::priority_class::PRIORITY_CLASSES;
use crate::registry::storage::storage_class::STORAGE_CLASSES;
use crate::registry::storage::volume_attributes_class::VOLUME_ATTRIBUTES_CLASSES;
use crate::rows::Rows;

/// Dependencies of plugins.
pub struct Deps<'a> {
    /// The command line.
    pub flags: &'a FlagSet,
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads and writes.
    pub api: Api,
    /// The authorisers.
    pub authorization: Arc<Authorization>,
    /// Group of the tasks that drive connections to webhooks.
    pub tasks: TaskGroup,
    /// Ends them.
    pub answered: Shutdown,
    /// The way to webhooks.
    pub egress: Egress,
}

/// Arguments of the plugins' constructors.
pub(super) struct PluginDeps<'a> {
    deps: &'a Deps<'a>,
    caller: Arc<Caller>,
    configurations: &'a Configurations,
}

impl<'a> PluginDeps<'a> {
    pub(super) fn new(deps: &'a Deps<'a>, configurations: &'a Configurations) -> Self {
        let direct = deps.flags.boolean("enable-aggregator-routing");
        let (tasks, answered) = (deps.tasks.clone(), deps.answered.clone());
        let caller = Caller::new(deps.reader.clone(), tasks, answered, direct, deps.egress.clone());
        Self { deps, caller: Arc::new(caller), configurations }
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.deps.reader.clone()
    }

    fn api(&self) -> Api {
        self.deps.api.clone()
    }

    fn rows(&self) -> Rows {
        self.deps.api.rows().clone()
    }

    fn authorization(&self) -> Arc<Authorization> {
        self.deps.authorization.clone()
    }

    /// Dependencies of webhook calls.
    fn means(&self) -> WebhookDeps {
        WebhookDeps {
            reader: self.reader(),
            rows: self.rows(),
            authorization: self.authorization(),
            caller: self.caller.clone(),
            api: self.deps.api.clone(),
        }
    }

    fn seconds(&self, flag: &str) -> i64 {
        self.deps.flags.integer(flag)
    }
}

/// In which of the two rounds a plugin takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Mutates,
    Validates,
    Both,
}

/// A resource, and a subresource of it or an empty text for the resource itself.
type Target = (GroupResource<'static>, &'static str);

/// A line of the table.
pub(super) struct Declaration {
    pub(super) name: &'static str,
    /// On unless it is disabled.
    pub(super) on: bool,
    phase: Phase,
    operations: &'static [Operation],
    /// None for everything.
    resources: &'static [Target],
    /// Resources that the plugin reads: a cache that is not filled yet must not look like "no limits".
    pub(super) reads: &'static [GroupResource<'static>],
    make: fn(&PluginDeps<'_>) -> Result<Shared, Error>,
}

impl Declaration {
    pub(super) fn mutates(&self) -> bool {
        self.phase != Phase::Validates
    }

    pub(super) fn validates(&self) -> bool {
        self.phase != Phase::Mutates
    }

    pub(super) fn make(&self, parts: &PluginDeps<'_>) -> Result<Shared, Error> {
        (self.make)(parts)
    }

    /// Reports whether the plugin handles a write.
    pub(super) fn concerns(&self, a: &Attributes<'_>) -> bool {
        let named = |(resource, subresource): &Target| a.of(*resource) && *subresource == a.subresource;
        self.operations.contains(&a.operation) && (self.resources.is_empty() || self.resources.iter().any(named))
    }
}

const ALL: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
const CHANGES: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete];
const WRITES: &[Operation] = &[Operation::Create, Operation::Update];
const CREATE: &[Operation] = &[Operation::Create];
const UPDATE: &[Operation] = &[Operation::Update];

const EVERYTHING: &[Target] = &[];
/// Pods, and none of their subresources.
const WHOLE_PODS: &[Target] = &[(PODS, "")];
const OF_NAMESPACES: &[GroupResource<'static>] = &[NAMESPACES];

use Phase::{Both, Mutates, Validates};

/// The table.
pub(super) const PLUGINS: &[Declaration] = &[
    row("AlwaysAdmit", false, Both, ALL, EVERYTHING, &[], |_| Ok(Arc::new(AlwaysAdmit))),
    row("NamespaceAutoProvision", false, Mutates, CREATE, EVERYTHING, &[], |p| {
        Ok(Arc::new(NamespaceAutoProvision { reader: p.reader(), api: p.api() }))
    }),
    row("NamespaceLifecycle", true, Mutates, CHANGES, EVERYTHING, &[], |p| {
        Ok(Arc::new(NamespaceLifecycle { reader: p.reader(), api: p.api(), doubted: RecentlyDeleted::default() }))
    }),
    row("NamespaceExists", false, Validates, CHANGES, EVERYTHING, &[], |p| {
        Ok(Arc::new(NamespaceExists { reader: p.reader(), api: p.api() }))
    }),
    row("LimitPodHardAntiAffinityTopology", false, Validates, WRITES, WHOLE_PODS, &[], |_| {
        Ok(Arc::new(LimitPodHardAntiAffinityTopology))
    }),
    row(
        "LimitRanger",
        true,
        Both,
        WRITES,
        &[(PODS, ""), (PODS, "resize"), (PERSISTENT_VOLUME_CLAIMS, "")],
        &[LIMIT_RANGES],
        |p| Ok(Arc::new(LimitRanger { reader: p.reader() })),
    ),
    row("ServiceAccount", true, Both, WRITES, &[(PODS, ""), (PODS, "ephemeralcontainers")], &[], |p| {
        Ok(Arc::new(ServiceAccount { reader: p.reader(), api: p.api() }))
    }),
    row("NodeRestriction", false, Mutates, CHANGES, EVERYTHING, &[], |p| {
        let flags = p.deps.flags;
        Ok(Arc::new(NodeRestriction {
            reader: p.reader(),
            api: p.api(),
            authorization: p.deps.authorization.clone(),
            audiences: flags.enabled("ServiceAccountNodeAudienceRestriction"),
            requests: !flags.enabled("AllowInsecureKubeletCertificateSigningRequests"),
        }))
    }),
    row("TaintNodesByCondition", true, Mutates, CREATE, &[(NODES, "")], &[], |_| Ok(Arc::new(TaintNodesByCondition))),
    row("AlwaysPullImages", false, Both, WRITES, &[(PODS, ""), (PODS, "ephemeralcontainers")], &[], |_| {
        Ok(Arc::new(AlwaysPullImages))
    }),
    row("ImagePolicyWebhook", false, Validates, WRITES, &[(PODS, ""), (PODS, "ephemeralcontainers")], &[], |p| {
        Ok(Arc::new(ImagePolicyWebhook::new(p.configurations.get("ImagePolicyWebhook"), p.caller.clone())?))
    }),
    row("PodSecurity", true, Validates, WRITES, EVERYTHING, OF_NAMESPACES, |p| {
        Ok(Arc::new(PodSecurity::new(p.reader(), p.api(), p.configurations.get("PodSecurity"))?))
    }),
    row("PodNodeSelector", false, Both, CREATE, WHOLE_PODS, OF_NAMESPACES, |p| {
        Ok(Arc::new(PodNodeSelector::new(p.reader(), p.api(), p.configurations.get("PodNodeSelector"))))
    }),
    row("Priority", true, Both, CHANGES, &[(PODS, ""), (PRIORITY_CLASSES, "")], &[PRIORITY_CLASSES], |p| {
        Ok(Arc::new(Priority { reader: p.reader(), api: p.api() }))
    }),
    row("DefaultTolerationSeconds", true, Mutates, WRITES, WHOLE_PODS, &[], |p| {
        Ok(Arc::new(DefaultTolerationSeconds {
            not_ready: p.seconds("default-not-ready-toleration-seconds"),
            unreachable: p.seconds("default-unreachable-toleration-seconds"),
        }))
    }),
    row("PodTolerationRestriction", false, Both, WRITES, WHOLE_PODS, OF_NAMESPACES, |p| {
        let configuration = p.configurations.get("PodTolerationRestriction");
        Ok(Arc::new(PodTolerationRestriction::new(p.reader(), p.api(), configuration)))
    }),
    row("EventRateLimit", false, Validates, WRITES, &[(EVENTS, "")], &[], |p| {
        Ok(Arc::new(EventRateLimit::new(p.configurations.get("EventRateLimit"))?))
    }),
    row("ExtendedResourceToleration", false, Mutates, WRITES, WHOLE_PODS, &[], |_| {
        Ok(Arc::new(ExtendedResourceToleration))
    }),
    row("DefaultStorageClass", true, Mutates, CREATE, &[(PERSISTENT_VOLUME_CLAIMS, "")], &[STORAGE_CLASSES], |p| {
        Ok(Arc::new(DefaultStorageClass { reader: p.reader() }))
    }),
    row(
        "StorageObjectInUseProtection",
        true,
        Mutates,
        CREATE,
        &[(PERSISTENT_VOLUME_CLAIMS, ""), (PERSISTENT_VOLUMES, ""), (VOLUME_ATTRIBUTES_CLASSES, "")],
        &[],
        |_| Ok(Arc::new(StorageObjectInUseProtection)),
    ),
    row("OwnerReferencesPermissionEnforcement", false, Validates, WRITES, EVERYTHING, &[], |p| {
        Ok(Arc::new(OwnerReferencesPermissionEnforcement { authorization: p.authorization(), rows: p.rows() }))
    }),
    row(
        "PersistentVolumeClaimResize",
        true,
        Validates,
        UPDATE,
        &[(PERSISTENT_VOLUME_CLAIMS, "")],
        &[STORAGE_CLASSES],
        |p| Ok(Arc::new(PersistentVolumeClaimResize { reader: p.reader() })),
    ),
    row("RuntimeClass", true, Both, CREATE, WHOLE_PODS, &[], |p| {
        Ok(Arc::new(RuntimeClass { reader: p.reader(), api: p.api() }))
    }),
    row("CertificateApproval", true, Validates, UPDATE, &[(CERTIFICATE_SIGNING_REQUESTS, "approval")], &[], |p| {
        Ok(Arc::new(SignerPermission::approval(p.authorization())))
    }),
    row(
        "CertificateSigning",
        true,
        Validates,
        UPDATE,
        &[(CERTIFICATE_SIGNING_REQUESTS, "status"), (POD_CERTIFICATE_REQUESTS, "status")],
        &[],
        |p| Ok(Arc::new(SignerPermission::signing(p.authorization()))),
    ),
    row("ClusterTrustBundleAttest", true, Validates, WRITES, &[(CLUSTER_TRUST_BUNDLES, "")], &[], |p| {
        Ok(Arc::new(SignerPermission::attest(p.authorization())))
    }),
    row("CertificateSubjectRestriction", true, Validates, CREATE, &[(CERTIFICATE_SIGNING_REQUESTS, "")], &[], |_| {
        Ok(Arc::new(CertificateSubjectRestriction))
    }),
    row("DefaultIngressClass", true, Mutates, CREATE, &[(INGRESSES, "")], &[INGRESS_CLASSES], |p| {
        Ok(Arc::new(DefaultIngressClass { reader: p.reader() }))
    }),
    row("DenyServiceExternalIPs", false, Validates, WRITES, &[(SERVICES, "")], &[], |_| {
        Ok(Arc::new(DenyServiceExternalIPs))
    }),
    row("PodTopologyLabels", true, Mutates, CREATE, &[(PODS, ""), (PODS, "binding"), (BINDINGS, "")], &[NODES], |p| {
        match p.deps.flags.enabled("PodTopologyLabelsAdmission") {
            true => Ok(Arc::new(PodTopologyLabels { reader: p.reader() })),
            false => Ok(Arc::new(AlwaysAdmit)),
        }
    }),
    row(
        "NodeDeclaredFeatureValidator",
        true,
        Validates,
        UPDATE,
        &[(PODS, ""), (PODS, "resize")],
        &[NODES],
        |p| match p.deps.flags.enabled(shared::declared_features::GATE) {
            true => Ok(Arc::new(NodeDeclaredFeatureValidator { reader: p.reader() })),
            false => Ok(Arc::new(AlwaysAdmit)),
        },
    ),
    row(
        "MutatingAdmissionPolicy",
        true,
        Mutates,
        // What is deleted is not sent: there is nothing to change.
        &[Operation::Create, Operation::Update, Operation::Connect],
        EVERYTHING,
        &[MUTATING_ADMISSION_POLICIES, MUTATING_ADMISSION_POLICY_BINDINGS, NAMESPACES],
        |p| Ok(Arc::new(MutatingPolicies::new(p.means()))),
    ),
    row(
        "MutatingAdmissionWebhook",
        true,
        Mutates,
        ALL,
        EVERYTHING,
        &[MUTATING_WEBHOOK_CONFIGURATIONS, NAMESPACES],
        |p| Ok(Arc::new(MutatingWebhooks::new(p.means(), p.configurations.get("MutatingAdmissionWebhook"))?)),
    ),
    row(
        "ValidatingAdmissionPolicy",
        true,
        Validates,
        ALL,
        EVERYTHING,
        &[VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS, NAMESPACES],
        |p| Ok(Arc::new(ValidatingPolicies::new(p.means()))),
    ),
    row(
        "ValidatingAdmissionWebhook",
        true,
        Validates,
        ALL,
        EVERYTHING,
        &[VALIDATING_WEBHOOK_CONFIGURATIONS, NAMESPACES],
        |p| Ok(Arc::new(ValidatingWebhooks::new(p.means(), p.configurations.get("ValidatingAdmissionWebhook"))?)),
    ),
    row("ResourceQuota", true, Validates, WRITES, EVERYTHING, &[RESOURCE_QUOTAS], |p| {
        Ok(Arc::new(ResourceQuota::new(p.reader(), p.api(), p.configurations.get("ResourceQuota"))?))
    }),
    row("AlwaysDeny", false, Both, ALL, EVERYTHING, &[], |_| Ok(Arc::new(AlwaysDeny))),
];

#[allow(clippy::too_many_arguments, reason = "one row of a table a call")]
const fn row(
    name: &'static str,
    on: bool,
    phase: Phase,
    operations: &'static [Operation],
    resources: &'static [Target],
    reads: &'static [GroupResource<'static>],
    make: fn(&PluginDeps<'_>) -> Result<Shared, Error>,
) -> Declaration {
    Declaration { name, on, phase, operations, resources, reads, make }
}
