//! The plugins that are on, in upstream's order, and the two rounds every write goes through. Answers for upstream's
//! `chainAdmissionHandler`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shared::authn::SYSTEM_MASTERS;
use shared::status::Status;

use super::configuration::Configurations;
use super::plugins::{Declaration, Deps, PLUGINS, PluginDeps};
use super::policies;
use super::{Attributes, Error, Operation, Shared, measure};
use crate::api::Reader;
use crate::authz::Authorization;
use crate::authz::rbac::{self, check_escalation};
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::rows::Rows;

/// The plugins that are on, in order.
fn enabled(enable: &[String], disable: &[String]) -> Result<Vec<&'static Declaration>, Error> {
    let known = |name: &str| PLUGINS.iter().any(|p| p.name == name);
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
    Ok(PLUGINS.iter().filter(|p| has(enable, p.name) || (p.on && !has(disable, p.name))).collect())
}

/// The plugins that are on.
pub struct Chain {
    plugins: Vec<(&'static Declaration, Shared)>,
    authorization: Arc<Authorization>,
    reader: Arc<dyn Reader>,
    /// Resources whose watch caches plugins read, of those that are served.
    sources: Vec<GroupResource<'static>>,
    rows: Rows,
    ready: AtomicBool,
}

/// Longest wait of a first write for the caches that plugins read, and the interval of checks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

impl Chain {
    /// From `--enable-admission-plugins`, `--disable-admission-plugins` and the flags of single plugins.
    pub fn from_flags(deps: &Deps<'_>) -> Result<Self, Error> {
        let mut enable = deps.flags.list("enable-admission-plugins");
        // The older flag names exactly what is to be on.
        let exactly = deps.flags.list("admission-control");
        let mut disable = deps.flags.list("disable-admission-plugins");
        if !exactly.is_empty() {
            disable = PLUGINS.iter().map(|p| p.name.to_owned()).filter(|n| !exactly.contains(n)).collect();
            enable = exactly;
        }
        let configurations = Configurations::read(&deps.flags.string("admission-control-config-file"))?;
        let parts = PluginDeps::new(deps, &configurations);
        let mut plugins = Vec::new();
        for declaration in enabled(&enable, &disable)? {
            plugins.push((declaration, declaration.make(&parts)?));
        }
        let (authorization, reader) = (deps.authorization.clone(), deps.reader.clone());
        let rows = deps.api.rows().clone();
        let read = plugins.iter().flat_map(|(declaration, _)| declaration.reads).copied();
        let sources = read.filter(|resource| rows.storage(*resource).is_some()).collect();
        Ok(Self { plugins, authorization, reader, sources, rows, ready: AtomicBool::new(false) })
    }

    /// Waits until what plugins read has been read once. The server's own writes do not wait: some of them come first.
    async fn wait_ready(&self, a: &Attributes<'_>) -> Result<(), Status> {
        if self.ready.load(Ordering::Acquire) || a.user.name == crate::machinery::identity::SERVER {
            return Ok(());
        }
        let synced = async {
            // Asking starts all of them at once.
            while self.sources.iter().filter(|resource| !self.reader.synced(**resource)).count() > 0 {
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
        self.plugins.iter().filter(|(d, _)| d.mutates()).map(|(d, _)| d.name).collect()
    }

    /// The names of the plugins that validate, in order.
    pub fn validating(&self) -> Vec<&'static str> {
        self.plugins.iter().filter(|(d, _)| d.validates()).map(|(d, _)| d.name).collect()
    }

    /// Lets every mutating plugin change the object. When webhooks changed it, the plugins see it once more.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        self.wait_ready(attributes).await?;
        let since = Instant::now();
        let mut outcome = self.mutate(attributes).await;
        if outcome.is_ok() && attributes.reinvocation.begin_second() {
            outcome = self.mutate(attributes).await;
        }
        measure::step("admit", attributes.operation, since, outcome.is_err());
        outcome?;
        // Of what will be stored: plugins may have added rules.
        self.check_escalation(attributes).await
    }

    async fn mutate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        for (declaration, plugin) in self.plugins.iter().filter(|(d, _)| d.mutates()) {
            if !declaration.concerns(a) {
                continue;
            }
            let since = Instant::now();
            let outcome = plugin.admit(a).await;
            measure::plugin(declaration.name, "admit", a.operation, since, outcome.is_err());
            outcome?;
        }
        Ok(())
    }

    /// Lets every validating plugin judge the object.
    pub async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        policies::check_parameters(&self.authorization, &self.rows, self.reader.as_ref(), a).await?;
        let begin = Instant::now();
        let mut outcome = Ok(());
        for (declaration, plugin) in self.plugins.iter().filter(|(d, _)| d.validates()) {
            if !declaration.concerns(a) {
                continue;
            }
            let since = Instant::now();
            outcome = plugin.validate(a).await;
            measure::plugin(declaration.name, "validate", a.operation, since, outcome.is_err());
            if outcome.is_err() {
                break;
            }
        }
        measure::step("validate", a.operation, begin, outcome.is_err());
        outcome
    }

    /// Refuses privilege escalation: a user can grant only rights that he holds.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use crate::authz::Mode;
    use shared::flags::FlagSet;
    use shared::run::{Shutdown, TaskGroup};

    fn chain(args: &[&str]) -> Result<Chain, String> {
        let reader = Arc::new(Fixed::default());
        let flags = FlagSet::of("kube-apiserver", args).expect("flags");
        let authorization = Arc::new(Authorization::new(&[Mode::Rbac], reader.clone(), Vec::new()));
        let (tasks, answered) = (TaskGroup::new(), Shutdown::new());
        let egress = crate::egress::Egress::default();
        let (reader, api) = (reader.clone(), reader.api());
        let deps = Deps { flags: &flags, reader, api, authorization, tasks, answered, egress };
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
                "MutatingAdmissionPolicy",
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
                "NodeDeclaredFeatureValidator",
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
