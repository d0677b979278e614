//! The plugins in upstream's order, and which of them are on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use shared::authn::SYSTEM_MASTERS;
use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};
use shared::status::Status;

use super::always::{
    AlwaysAdmit, AlwaysDeny, AlwaysPullImages, ExtendedResourceToleration, LimitPodHardAntiAffinityTopology,
};
use super::certificates::{CertificateSubjectRestriction, SignerPermission};
use super::default_toleration_seconds::DefaultTolerationSeconds;
use super::ingress_class::DefaultIngressClass;
use super::limit_ranger::LimitRanger;
use super::namespace_exists::{NamespaceAutoProvision, NamespaceExists};
use super::namespace_lifecycle::NamespaceLifecycle;
use super::node_restriction::NodeRestriction;
use super::owner_references::OwnerReferencesPermissionEnforcement;
use super::pod_node_selector::PodNodeSelector;
use super::pod_security::PodSecurity;
use super::pod_tolerations::PodTolerationRestriction;
use super::pod_topology_labels::PodTopologyLabels;
use super::policies::ValidatingPolicies;
use super::priority::Priority;
use super::resource_quota::ResourceQuota;
use super::runtime_class::RuntimeClass;
use super::service_account::ServiceAccount;
use super::service_external_ips::DenyServiceExternalIPs;
use super::storage::{DefaultStorageClass, PersistentVolumeClaimResize, StorageObjectInUseProtection};
use super::taint_nodes_by_condition::TaintNodesByCondition;
use super::webhooks::{Caller, MutatingWebhooks, ValidatingWebhooks};
use super::{Attributes, Error, Operation, Shared};
use crate::access::tree;
use crate::api::{Api, Reader};
use crate::authz::Authorization;
use crate::authz::rbac::{self, check_escalation};

/// What plugins may need.
pub struct Deps<'a> {
    /// The command line.
    pub flags: &'a FlagSet,
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads and writes.
    pub api: Api,
    /// The authorisers.
    pub authorization: Arc<Authorization>,
    /// Where connections to webhooks are kept going.
    pub tasks: TaskGroup,
    /// Ends them.
    pub shutdown: Shutdown,
}

/// All of upstream's plugins in its order, with those on by default.
const ORDER: [(&str, bool); 37] = [
    ("AlwaysAdmit", false),
    ("NamespaceAutoProvision", false),
    ("NamespaceLifecycle", true),
    ("NamespaceExists", false),
    ("LimitPodHardAntiAffinityTopology", false),
    ("LimitRanger", true),
    ("ServiceAccount", true),
    ("NodeRestriction", false),
    ("TaintNodesByCondition", true),
    ("AlwaysPullImages", false),
    ("ImagePolicyWebhook", false),
    ("PodSecurity", true),
    ("PodNodeSelector", false),
    ("Priority", true),
    ("DefaultTolerationSeconds", true),
    ("PodTolerationRestriction", false),
    ("EventRateLimit", false),
    ("ExtendedResourceToleration", false),
    ("DefaultStorageClass", true),
    ("StorageObjectInUseProtection", true),
    ("OwnerReferencesPermissionEnforcement", false),
    ("PersistentVolumeClaimResize", true),
    ("RuntimeClass", true),
    ("CertificateApproval", true),
    ("CertificateSigning", true),
    ("ClusterTrustBundleAttest", true),
    ("CertificateSubjectRestriction", true),
    ("DefaultIngressClass", true),
    ("DenyServiceExternalIPs", false),
    ("PodTopologyLabels", true),
    ("NodeDeclaredFeatureValidator", true),
    ("MutatingAdmissionPolicy", true),
    ("MutatingAdmissionWebhook", true),
    ("ValidatingAdmissionPolicy", true),
    ("ValidatingAdmissionWebhook", true),
    ("ResourceQuota", true),
    ("AlwaysDeny", false),
];

/// The names that are on, in order.
fn enabled(enable: &[String], disable: &[String]) -> Result<Vec<&'static str>, Error> {
    let known = |name: &str| ORDER.iter().any(|(n, _)| *n == name);
    for (flag, names) in [("enable-admission-plugins", enable), ("disable-admission-plugins", disable)] {
        if let Some(name) = names.iter().find(|n| !known(n)) {
            return Err(Error::Unknown { flag, name: name.clone() });
        }
    }
    let both: Vec<&str> = enable.iter().filter(|n| disable.contains(n)).map(String::as_str).collect();
    if !both.is_empty() {
        return Err(Error::Overlap(both.join(" ")));
    }
    let has = |list: &[String], name: &str| list.iter().any(|n| n == name);
    let on = ORDER.iter().filter(|(n, default)| has(enable, n) || (*default && !has(disable, n)));
    Ok(on.map(|(n, _)| *n).collect())
}

fn make(name: &str, deps: &Deps<'_>, caller: &Arc<Caller>) -> Option<Shared> {
    let (reader, api, authorization) = (|| deps.reader.clone(), || deps.api.clone(), || deps.authorization.clone());
    Some(match name {
        "AlwaysAdmit" => Arc::new(AlwaysAdmit),
        "AlwaysDeny" => Arc::new(AlwaysDeny),
        "AlwaysPullImages" => Arc::new(AlwaysPullImages),
        "CertificateApproval" => Arc::new(SignerPermission::approval(authorization())),
        "CertificateSigning" => Arc::new(SignerPermission::signing(authorization())),
        "CertificateSubjectRestriction" => Arc::new(CertificateSubjectRestriction),
        "ClusterTrustBundleAttest" => Arc::new(SignerPermission::attest(authorization())),
        "DefaultIngressClass" => Arc::new(DefaultIngressClass { reader: reader() }),
        "DefaultStorageClass" => Arc::new(DefaultStorageClass { reader: reader() }),
        "DefaultTolerationSeconds" => Arc::new(DefaultTolerationSeconds {
            not_ready: deps.flags.integer("default-not-ready-toleration-seconds"),
            unreachable: deps.flags.integer("default-unreachable-toleration-seconds"),
        }),
        "DenyServiceExternalIPs" => Arc::new(DenyServiceExternalIPs),
        "ExtendedResourceToleration" => Arc::new(ExtendedResourceToleration),
        "LimitPodHardAntiAffinityTopology" => Arc::new(LimitPodHardAntiAffinityTopology),
        "LimitRanger" => Arc::new(LimitRanger { reader: reader() }),
        "MutatingAdmissionWebhook" => Arc::new(MutatingWebhooks::new(reader(), caller.clone(), authorization())),
        "NamespaceAutoProvision" => Arc::new(NamespaceAutoProvision { reader: reader(), api: api() }),
        "NamespaceExists" => Arc::new(NamespaceExists { reader: reader(), api: api() }),
        "NamespaceLifecycle" => Arc::new(NamespaceLifecycle { reader: reader(), api: api() }),
        "NodeRestriction" => Arc::new(NodeRestriction { reader: reader(), api: api() }),
        "OwnerReferencesPermissionEnforcement" => {
            Arc::new(OwnerReferencesPermissionEnforcement { authorization: authorization() })
        }
        "PersistentVolumeClaimResize" => Arc::new(PersistentVolumeClaimResize { reader: reader() }),
        "PodNodeSelector" => Arc::new(PodNodeSelector { reader: reader() }),
        "PodSecurity" => Arc::new(PodSecurity { reader: reader() }),
        "PodTolerationRestriction" => Arc::new(PodTolerationRestriction { reader: reader() }),
        "PodTopologyLabels" => Arc::new(PodTopologyLabels { reader: reader() }),
        "Priority" => Arc::new(Priority { reader: reader(), api: api() }),
        "ResourceQuota" => Arc::new(ResourceQuota::new(reader(), api())),
        "RuntimeClass" => Arc::new(RuntimeClass { reader: reader(), api: api() }),
        "ServiceAccount" => Arc::new(ServiceAccount { reader: reader(), api: api() }),
        "StorageObjectInUseProtection" => Arc::new(StorageObjectInUseProtection),
        "TaintNodesByCondition" => Arc::new(TaintNodesByCondition),
        "ValidatingAdmissionPolicy" => Arc::new(ValidatingPolicies { reader: reader() }),
        "ValidatingAdmissionWebhook" => Arc::new(ValidatingWebhooks::new(reader(), caller.clone(), authorization())),
        _ => return None,
    })
}

/// The plugins that are on.
pub struct Chain {
    plugins: Vec<Shared>,
    authorization: Arc<Authorization>,
    reader: Arc<dyn Reader>,
    ready: AtomicBool,
}

/// How long a first write waits for what plugins read, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// What plugins judge by: a cache that has not been read yet must not look like "no limits".
fn sources(plugin: &str) -> &'static [(&'static str, &'static str)] {
    const WEBHOOKS: &str = "admissionregistration.k8s.io";
    match plugin {
        "LimitRanger" => &[("", "limitranges")],
        "ResourceQuota" => &[("", "resourcequotas")],
        "PodSecurity" | "PodNodeSelector" | "PodTolerationRestriction" => &[("", "namespaces")],
        "Priority" => &[("scheduling.k8s.io", "priorityclasses")],
        "DefaultStorageClass" | "PersistentVolumeClaimResize" => &[("storage.k8s.io", "storageclasses")],
        "DefaultIngressClass" => &[("networking.k8s.io", "ingressclasses")],
        "PodTopologyLabels" => &[("", "nodes")],
        "MutatingAdmissionWebhook" => &[(WEBHOOKS, "mutatingwebhookconfigurations"), ("", "namespaces")],
        "ValidatingAdmissionPolicy" => &[
            (WEBHOOKS, "validatingadmissionpolicies"),
            (WEBHOOKS, "validatingadmissionpolicybindings"),
            ("", "namespaces"),
        ],
        "ValidatingAdmissionWebhook" => &[(WEBHOOKS, "validatingwebhookconfigurations"), ("", "namespaces")],
        _ => &[],
    }
}

impl Chain {
    /// From `--enable-admission-plugins`, `--disable-admission-plugins` and the flags of single plugins.
    pub fn from_flags(deps: &Deps<'_>) -> Result<Self, Error> {
        let mut enable = deps.flags.list("enable-admission-plugins");
        // The older flag names exactly what is to be on.
        let exactly = deps.flags.list("admission-control");
        let mut disable = deps.flags.list("disable-admission-plugins");
        if !exactly.is_empty() {
            disable = ORDER.iter().map(|(n, _)| (*n).to_owned()).filter(|n| !exactly.contains(n)).collect();
            enable = exactly;
        }
        let caller = Arc::new(Caller::new(deps.reader.clone(), deps.tasks.clone(), deps.shutdown.clone()));
        let mut plugins = Vec::new();
        for name in enabled(&enable, &disable)? {
            match make(name, deps, &caller) {
                Some(plugin) => plugins.push(plugin),
                None if enable.iter().any(|n| n == name) => {
                    tracing::warn!(plugin = name, "this admission plugin has no effect yet");
                }
                None => {}
            }
        }
        let (authorization, reader) = (deps.authorization.clone(), deps.reader.clone());
        Ok(Self { plugins, authorization, reader, ready: AtomicBool::new(false) })
    }

    /// Waits until what plugins read has been read once. The server's own writes do not wait: some of them come first.
    async fn wait_ready(&self, a: &Attributes<'_>) -> Result<(), Status> {
        if self.ready.load(Ordering::Acquire) || a.user.name == crate::bootstrap::SERVER {
            return Ok(());
        }
        let sources: Vec<_> = self.plugins.iter().flat_map(|p| sources(p.name())).collect();
        let synced = async {
            // Asking starts all of them at once.
            while sources.iter().filter(|(group, plural)| !self.reader.synced(group, plural)).count() > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        match tokio::time::timeout(PATIENCE, synced).await {
            Ok(()) => {
                self.ready.store(true, Ordering::Release);
                Ok(())
            }
            Err(_) => Err(a.forbidden("not yet ready to handle request")),
        }
    }

    /// The names of the plugins that mutate, in order.
    pub fn mutating(&self) -> Vec<&'static str> {
        self.plugins.iter().filter(|p| p.mutates()).map(|p| p.name()).collect()
    }

    /// The names of the plugins that validate, in order.
    pub fn validating(&self) -> Vec<&'static str> {
        self.plugins.iter().filter(|p| p.validates()).map(|p| p.name()).collect()
    }

    /// Lets every mutating plugin change the object. When webhooks changed it, the plugins before them see it once more.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        self.wait_ready(attributes).await?;
        self.check_escalation(attributes).await?;
        let operation = attributes.operation;
        for plugin in self.plugins.iter().filter(|p| p.mutates() && p.handles(operation)) {
            let webhooks = plugin.name() == "MutatingAdmissionWebhook";
            let before = webhooks.then(|| attributes.object().cloned());
            plugin.admit(attributes).await?;
            if before.is_some_and(|before| before.as_ref() != attributes.object()) {
                self.again(attributes).await?;
            }
        }
        Ok(())
    }

    async fn again(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let operation = attributes.operation;
        let mutating = self.plugins.iter().filter(|p| p.mutates() && p.handles(operation));
        for plugin in mutating.filter(|p| p.name() != "MutatingAdmissionWebhook") {
            plugin.admit(attributes).await?;
        }
        Ok(())
    }

    /// Lets every validating plugin judge the object.
    pub async fn validate(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let operation = attributes.operation;
        for plugin in self.plugins.iter().filter(|p| p.validates() && p.handles(operation)) {
            plugin.validate(attributes).await?;
        }
        Ok(())
    }

    /// Nobody grants what he does not hold.
    async fn check_escalation(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || a.resource.group != rbac::GROUP || !a.subresource.is_empty() || a.user.in_group(SYSTEM_MASTERS) {
            return Ok(());
        }
        let (Some(index), Some(new)) = (self.authorization.rbac(), a.object()) else { return Ok(()) };
        let name = if a.name.is_empty() { tree::name(new) } else { a.name };
        let write = rbac::Write {
            user: a.user,
            plural: &a.resource.plural,
            namespace: a.namespace,
            name,
            new,
            old: a.old_object,
        };
        let Some(question) = rbac::escalation_question(&write) else { return Ok(()) };
        if self.authorization.allows(&question).await {
            return Ok(());
        }
        check_escalation(&index.read(), &write)
    }
}

/// The object a chain works on when there is none (deletes).
pub(super) const NOTHING: &Value = &Value::Null;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use crate::authz::Mode;

    fn chain(args: &[&str]) -> Result<Chain, String> {
        let reader = Arc::new(Fixed::default());
        let flags = FlagSet::of("kube-apiserver", args).expect("flags");
        let authorization = Arc::new(Authorization::new(&[Mode::Rbac], reader.clone(), Vec::new()));
        let (tasks, shutdown) = (TaskGroup::new(), Shutdown::new());
        let deps = Deps { flags: &flags, reader: reader.clone(), api: reader.api(), authorization, tasks, shutdown };
        Chain::from_flags(&deps).map_err(|e| e.to_string())
    }

    #[test]
    fn upstreams_order() {
        let chain = chain(&["--enable-admission-plugins=NodeRestriction"]).expect("a chain");
        assert_eq!(
            chain.mutating(),
            [
                "NamespaceLifecycle",
                "LimitRanger",
                "ServiceAccount",
                "NodeRestriction",
                "TaintNodesByCondition",
                "Priority",
                "DefaultTolerationSeconds",
                "DefaultStorageClass",
                "StorageObjectInUseProtection",
                "RuntimeClass",
                "DefaultIngressClass",
                "PodTopologyLabels",
                "MutatingAdmissionWebhook"
            ]
        );
        assert_eq!(
            chain.validating(),
            [
                "LimitRanger",
                "ServiceAccount",
                "PodSecurity",
                "Priority",
                "PersistentVolumeClaimResize",
                "RuntimeClass",
                "CertificateApproval",
                "CertificateSigning",
                "ClusterTrustBundleAttest",
                "CertificateSubjectRestriction",
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionWebhook",
                "ResourceQuota"
            ]
        );
    }

    #[test]
    fn names_are_checked() {
        let unknown = chain(&["--enable-admission-plugins=Nope"]).err();
        assert_eq!(unknown.as_deref(), Some("enable-admission-plugins plugin \"Nope\" is unknown"));
        let both = chain(&["--enable-admission-plugins=Priority", "--disable-admission-plugins=Priority"]).err();
        assert_eq!(
            both.as_deref(),
            Some("[Priority] in enable-admission-plugins and disable-admission-plugins overlapped")
        );
        let less = chain(&["--disable-admission-plugins=ServiceAccount,LimitRanger"]).expect("a chain");
        assert!(!less.mutating().contains(&"ServiceAccount"));
    }
}
