//! PodSecurity: pods must satisfy the level their namespace's labels ask for; workloads that would make
//! forbidden pods are warned about. Answers for upstream's `k8s.io/pod-security-admission/admission` (`EvaluatePod`,
//! `ValidateNamespace`).

mod checks;
mod level;
mod meters;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use shared::status::Status;
use shared::status::field;

use super::{Attributes, Error, NOTHING, Operation, Plugin, namespaces};
use crate::api::{Api, Reader};
use crate::machinery::tree;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::core::pod::PODS;
use crate::registry::pod_template;
use checks::{describe, evaluate};
pub use level::PolicyConfigError;
use level::{LabelError, Level, LevelVersion, Policy};
use meters::Metrics;

/// Limits when the level of a namespace changes: pods evaluated, and warnings.
const NAMESPACE_PODS: usize = 3000;

/// The plugin.
pub(super) struct PodSecurity {
    reader: Arc<dyn Reader>,
    api: Api,
    defaults: Policy,
    exempt: Exempt,
    meters: Metrics,
}

/// Exemptions.
#[derive(Debug, Default)]
struct Exempt {
    users: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl PodSecurity {
    /// With the defaults and exemptions of its configuration.
    pub(super) fn new(reader: Arc<dyn Reader>, api: Api, configuration: &Value) -> Result<Self, Error> {
        let defaults = Policy::of_configuration(configuration.get("defaults").unwrap_or(NOTHING));
        let list = |field: &str| tree::strings(configuration, &format!("/exemptions/{field}"));
        Ok(Self {
            reader,
            api,
            defaults: defaults?,
            exempt: Exempt {
                users: list("usernames"),
                namespaces: list("namespaces"),
                runtime_classes: list("runtimeClasses"),
            },
            meters: Metrics::new(),
        })
    }

    /// Dimension by which a request (and its pod) is exempt.
    fn exemption(&self, a: &Attributes<'_>, spec: &Value) -> Option<&'static str> {
        let class = tree::text(spec, "/runtimeClassName");
        if self.exempt.namespaces.iter().any(|n| n == a.namespace) {
            Some("namespace")
        } else if self.exempt.users.contains(&a.user.name) {
            Some("user")
        } else if !class.is_empty() && self.exempt.runtime_classes.iter().any(|c| c == class) {
            Some("runtimeClass")
        } else {
            None
        }
    }
}

#[async_trait]
impl Plugin for PodSecurity {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if a.is(NAMESPACES) {
            return self.namespace(a);
        }
        if a.is(PODS) || (a.of(PODS) && a.subresource == "ephemeralcontainers") {
            return self.pod(a).await;
        }
        if let Some(template) = pod_template(a.resource).filter(|_| a.subresource.is_empty()) {
            self.workload(a, &template.pointer()).await;
        }
        Ok(())
    }
}

fn parts(pod: &Value) -> (&Value, &Value) {
    (pod.get("metadata").unwrap_or(NOTHING), pod.get("spec").unwrap_or(NOTHING))
}

fn complaints(errors: Vec<LabelError>) -> Vec<field::Error> {
    let labels = field::Path::of(&["metadata", "labels"]);
    errors.into_iter().map(|(key, value, must)| field::Error::invalid(labels.key(&key), value, must)).collect()
}

fn note(a: &mut Attributes<'_>, key: &str, value: String) {
    a.annotations.insert(format!("pod-security.kubernetes.io/{key}"), value);
}

impl PodSecurity {
    async fn policy(&self, namespace: &str) -> Result<(Policy, Vec<LabelError>), Status> {
        let found = namespaces::find(self.reader.as_ref(), &self.api, namespace).await?;
        Ok(Policy::of_namespace(&found, &self.defaults))
    }

    /// Says so where labels of the namespace make no sense; the strictest policy stands for them.
    fn misread(&self, a: &mut Attributes<'_>, errors: Vec<LabelError>) {
        if !errors.is_empty() {
            self.meters.misread(a);
            note(a, "error", format!("Failed to parse policy: {}", field::aggregate(&complaints(errors))));
        }
    }

    fn namespace(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(new) = a.object() else { return Ok(()) };
        let (policy, errors) = Policy::of_namespace(new, &self.defaults);
        let old = a.old_object.map(|old| Policy::of_namespace(old, &self.defaults));
        if !errors.is_empty() {
            // An update that leaves old mistakes alone is let through.
            if old.as_ref().is_some_and(|(_, before)| *before == errors) {
                return Ok(());
            }
            return Err(Status::invalid("", "Namespace", a.object_name(), complaints(errors)));
        }
        let Some((before, _)) = old else { return Ok(()) };
        if policy.enforce == before.enforce || policy.enforce.level == Level::Privileged {
            return Ok(());
        }
        let name = a.object_name().to_owned();
        if self.exempt.namespaces.contains(&name) {
            let text = format!(
                "namespace {name:?} is exempt from Pod Security, and the policy (enforce={}) will be ignored",
                policy.enforce
            );
            a.warnings.push(text);
            return Ok(());
        }
        let warnings = self.existing_pods(&name, policy.enforce);
        a.warnings.extend(warnings);
        Ok(())
    }

    /// `existing pods in namespace "x" violate …` and a line per pod, pods of one controller counted once.
    fn existing_pods(&self, namespace: &str, enforce: LevelVersion) -> Vec<String> {
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        let mut owners = std::collections::HashSet::new();
        for pod in self.reader.list(PODS, Some(namespace)).into_iter().take(NAMESPACE_PODS) {
            let owner = tree::list(&pod, "/metadata/ownerReferences")
                .iter()
                .find(|o| tree::flag(o, "/controller"))
                .map(|o| tree::text(o, "/uid").to_owned());
            if owner.is_some_and(|uid| !owners.insert(uid)) {
                continue;
            }
            let (metadata, spec) = parts(&pod);
            let violations = evaluate(enforce, metadata, spec);
            if violations.is_empty() {
                continue;
            }
            let text = violations.iter().map(checks::Violation::reason).collect::<Vec<_>>().join(", ");
            let name = tree::name(&pod).to_owned();
            match found.iter_mut().find(|(t, _)| *t == text) {
                Some((_, pods)) => pods.push(name),
                None => found.push((text, vec![name])),
            }
        }
        if found.is_empty() {
            return Vec::new();
        }
        let mut lines: Vec<String> = found
            .into_iter()
            .map(|(text, mut pods)| {
                pods.sort();
                match pods.len() {
                    1 => format!("{}: {text}", pods[0]),
                    2 => format!("{} (and 1 other pod): {text}", pods[0]),
                    n => format!("{} (and {} other pods): {text}", pods[0], n - 1),
                }
            })
            .collect();
        lines.sort();
        let title = format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level {:?}",
            enforce.to_string()
        );
        std::iter::once(title).chain(lines).collect()
    }

    async fn pod(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let spec = a.object().map_or(NOTHING, |pod| parts(pod).1);
        if let Some(why) = self.exemption(a, spec) {
            note(a, "exempt", why.to_owned());
            self.meters.exempted(a);
            return Ok(());
        }
        let (policy, errors) = self.policy(a.namespace).await.map_err(|why| {
            self.meters.failed(a);
            note(a, "error", format!("failed to lookup namespace {:?}: {}", a.namespace, why.message));
            Status::internal(&format!("failed to lookup namespace {:?}", a.namespace))
        })?;
        if errors.is_empty() && policy.is_privileged() {
            note(a, "enforce-policy", policy.enforce.to_string());
            self.meters.evaluated(a, policy.enforce, "enforce", true);
            return Ok(());
        }
        let Some(pod) = a.object() else { return Ok(()) };
        if a.operation == Operation::Update && !a.old_object.is_some_and(|old| matters(old, pod)) {
            return Ok(());
        }
        self.misread(a, errors);
        let Some(pod) = a.object() else { return Ok(()) };
        let (metadata, spec) = parts(pod);
        let refused = describe(&evaluate(policy.enforce, metadata, spec));
        let audited = describe(&evaluate(policy.audit, metadata, spec));
        let warned = describe(&evaluate(policy.warn, metadata, spec));
        note(a, "enforce-policy", policy.enforce.to_string());
        self.meters.evaluated(a, policy.enforce, "enforce", refused.is_empty());
        if !audited.is_empty() {
            self.meters.evaluated(a, policy.audit, "audit", false);
            note(a, "audit-violations", format!("would violate PodSecurity {:?}: {audited}", policy.audit.to_string()));
        }
        if !refused.is_empty() {
            return Err(a.forbidden(format!("violates PodSecurity {:?}: {refused}", policy.enforce.to_string())));
        }
        if !warned.is_empty() {
            self.meters.evaluated(a, policy.warn, "warn", false);
            a.warnings.push(format!("would violate PodSecurity {:?}: {warned}", policy.warn.to_string()));
        }
        Ok(())
    }

    async fn workload(&self, a: &mut Attributes<'_>, pointer: &str) {
        let (policy, errors) = match self.policy(a.namespace).await {
            Ok(known) => known,
            // A workload is not refused here in any case: its pods are.
            Err(why) => {
                self.meters.failed(a);
                note(a, "error", format!("failed to lookup namespace {:?}: {}", a.namespace, why.message));
                return;
            }
        };
        let privileged = policy.audit.level == Level::Privileged && policy.warn.level == Level::Privileged;
        if errors.is_empty() && privileged {
            return;
        }
        let Some(template) = a.object().and_then(|o| tree::find(o, pointer)) else { return };
        if let Some(why) = self.exemption(a, parts(template).1) {
            note(a, "exempt", why.to_owned());
            self.meters.exempted(a);
            return;
        }
        self.misread(a, errors);
        let Some(template) = a.object().and_then(|o| tree::find(o, pointer)) else { return };
        let (metadata, spec) = parts(template);
        let audited = describe(&evaluate(policy.audit, metadata, spec));
        let warned = describe(&evaluate(policy.warn, metadata, spec));
        if !audited.is_empty() {
            self.meters.evaluated(a, policy.audit, "audit", false);
            note(a, "audit-violations", format!("would violate PodSecurity {:?}: {audited}", policy.audit.to_string()));
        }
        if !warned.is_empty() {
            self.meters.evaluated(a, policy.warn, "warn", false);
            a.warnings.push(format!("would violate PodSecurity {:?}: {warned}", policy.warn.to_string()));
        }
    }
}

/// Reports whether an update changes fields that the checks read: container lists and images, seccomp and AppArmor
/// annotations.
fn matters(old: &Value, new: &Value) -> bool {
    let lists = ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"];
    let images = |pod: &Value, l: &str| -> Vec<String> {
        tree::list(pod, l).iter().map(|c| tree::text(c, "/image").to_owned()).collect()
    };
    let guarded = |pod: &Value| -> Vec<(String, Value)> {
        tree::map(pod, "/metadata/annotations")
            .into_iter()
            .flatten()
            .filter(|(k, _)| {
                k.starts_with("seccomp.security.alpha.kubernetes.io/")
                    || k.starts_with("container.seccomp.security.alpha.kubernetes.io/")
                    || k.starts_with("container.apparmor.security.beta.kubernetes.io/")
            })
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    lists.iter().any(|l| images(old, l) != images(new, l)) || guarded(old) != guarded(new)
}

#[cfg(test)]
mod tests;
