//! ServiceAccount: every pod runs as a service account that exists, and finds that account's token, the
//! cluster's CA and its namespace in `/var/run/secrets/kubernetes.io/serviceaccount`. Answers for upstream's
//! `plugin/pkg/admission/serviceaccount`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::flags::parse_bool;
use shared::status::Status;
use shared::types::MIRROR;

use super::{Attributes, Operation, Plugin};
use crate::api::{Api, Reader};
use crate::authz::node::{pod_config_maps, pod_secrets};
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::core::pod::PODS;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
const TOKEN_SECONDS: i64 = 60 * 60 + 7;

/// The plugin.
pub(super) struct ServiceAccount {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads, for an account so new that the cache has not heard of it.
    pub api: Api,
}

#[async_trait]
impl Plugin for ServiceAccount {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if a.operation != Operation::Create
            || !a.is(PODS)
            || a.object().is_none_or(|pod| tree::annotation(pod, MIRROR).is_some())
        {
            return Ok(());
        }
        if let Some(pod) = a.object.as_deref_mut()
            && tree::text(pod, "/spec/serviceAccountName").is_empty()
        {
            *tree::field(pod, &["spec", "serviceAccountName"]) = json!("default");
        }
        let account = self.account(a).await?;
        if let Some(pod) = a.object.as_deref_mut() {
            let name = tree::find(pod, "/spec/serviceAccountName").cloned().unwrap_or_default();
            *tree::field(pod, &["spec", "serviceAccount"]) = name;
            equip(pod, &account, || format!("{VOLUME_PREFIX}{}", meta::suffix()));
        }
        Ok(())
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object() else { return Ok(()) };
        if a.operation == Operation::Update {
            return self.validate_ephemeral_containers(a).await;
        }
        if tree::annotation(pod, MIRROR).is_some() {
            return mirror_problem(pod).map_or(Ok(()), |text| Err(a.forbidden(text)));
        }
        if tree::text(pod, "/spec/serviceAccountName").is_empty() {
            return Err(a.forbidden(format!(
                "no service account specified for pod {}/{}",
                a.namespace,
                a.object_name()
            )));
        }
        let account = self.account(a).await?;
        if enforces_mountable_secrets(&account) {
            let pod = a.object().unwrap_or(&Value::Null);
            if let Some(text) = unlisted_secret(pod, &account) {
                return Err(a.forbidden(text));
            }
        }
        Ok(())
    }
}

impl ServiceAccount {
    /// Holds ephemeral containers to the secrets that the account lists; nothing else of a pod can gain references.
    /// `limitEphemeralContainerSecretReferences` in upstream.
    async fn validate_ephemeral_containers(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object().filter(|_| a.subresource == "ephemeralcontainers") else { return Ok(()) };
        let containers = tree::list(pod, "/spec/ephemeralContainers");
        if containers.is_empty() || tree::annotation(pod, MIRROR).is_some() {
            return Ok(());
        }
        let added = json!({"spec": {"ephemeralContainers": containers}});
        let account = self.account(a).await?;
        match unlisted_secret(&added, &account).filter(|_| enforces_mountable_secrets(&account)) {
            Some(text) => Err(a.forbidden(text)),
            None => Ok(()),
        }
    }

    async fn account(&self, a: &Attributes<'_>) -> Result<Arc<Value>, Status> {
        let name = a.object().map_or("", |pod| tree::text(pod, "/spec/serviceAccountName"));
        if let Some(account) = self.reader.get(SERVICE_ACCOUNTS, a.namespace, name) {
            return Ok(account);
        }
        match self.api.get(SERVICE_ACCOUNTS, a.namespace, name).await {
            Ok(account) => Ok(Arc::new(account)),
            Err(status) => {
                let why =
                    if status.code == 404 { format!("serviceaccount {name:?} not found") } else { status.message };
                Err(a.forbidden(format!("error looking up service account {}/{name}: {why}", a.namespace)))
            }
        }
    }
}

fn enforces_mountable_secrets(account: &Value) -> bool {
    let enforced = tree::annotation(account, "kubernetes.io/enforce-mountable-secrets");
    enforced.and_then(|v| parse_bool(v).ok()) == Some(true)
}

/// Gives a pod its account's pull secrets and the token volume with its mounts.
fn equip(pod: &mut Value, account: &Value, volume_name: impl Fn() -> String) {
    let automount = tree::maybe_flag(pod, "/spec/automountServiceAccountToken")
        .or_else(|| tree::maybe_flag(account, "/automountServiceAccountToken"))
        .unwrap_or(true);
    if automount {
        mount_token(pod, volume_name);
    }
    if tree::list(pod, "/spec/imagePullSecrets").is_empty() {
        let secrets: Vec<Value> =
            tree::list(account, "/imagePullSecrets").iter().map(|s| json!({"name": tree::text(s, "/name")})).collect();
        if !secrets.is_empty() {
            *tree::field(pod, &["spec", "imagePullSecrets"]) = Value::Array(secrets);
        }
    }
}

fn mount_token(pod: &mut Value, volume_name: impl Fn() -> String) {
    let existing = tree::list(pod, "/spec/volumes")
        .iter()
        .map(|v| tree::text(v, "/name"))
        .find(|n| n.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let name = existing.clone().unwrap_or_else(|| {
        let taken = |n: &String| tree::list(pod, "/spec/volumes").iter().any(|v| tree::text(v, "/name") == n);
        std::iter::repeat_with(&volume_name).find(|n| !taken(n)).unwrap_or_default()
    });
    let mut mounted = false;
    for list in ["/spec/initContainers", "/spec/containers"] {
        for container in tree::existing_list_mut(pod, list).into_iter().flatten() {
            if tree::list(container, "/volumeMounts").iter().any(|m| tree::text(m, "/mountPath") == MOUNT_PATH) {
                continue;
            }
            if let Some(mounts) = tree::list_mut(container, &["volumeMounts"]) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                mounted = true;
            }
        }
    }
    if mounted
        && existing.is_none()
        && let Some(volumes) = tree::list_mut(pod, &["spec", "volumes"])
    {
        volumes.push(json!({"name": name, "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}}));
    }
}

/// A mirror pod stands for a static pod of a kubelet and may lean on nothing in the API.
fn mirror_problem(pod: &Value) -> Option<&'static str> {
    if !tree::text(pod, "/spec/serviceAccountName").is_empty() {
        return Some("a mirror pod may not reference service accounts");
    }
    if !pod_secrets(pod).is_empty() {
        return Some("a mirror pod may not reference secrets");
    }
    if !pod_config_maps(pod).is_empty() {
        return Some("a mirror pod may not reference configmaps");
    }
    let mut sources = tree::list(pod, "/spec/volumes").iter().flat_map(|v| tree::list(v, "/projected/sources"));
    if sources.clone().any(|s| tree::has(s, "/serviceAccountToken")) {
        return Some("a mirror pod may not use ServiceAccountToken volume projections");
    }
    if sources.any(|s| tree::has(s, "/clusterTrustBundle")) {
        return Some("a mirror pod may not use ClusterTrustBundle volume projections");
    }
    tree::list(pod, "/spec/volumes")
        .iter()
        .any(|v| tree::has(v, "/persistentVolumeClaim"))
        .then_some("a mirror pod may not reference persistentvolumeclaims")
}

fn unlisted_secret(pod: &Value, account: &Value) -> Option<String> {
    let listed = |list: &str, name: &str| tree::list(account, list).iter().any(|s| tree::text(s, "/name") == name);
    let who = tree::name(account);
    for volume in tree::list(pod, "/spec/volumes") {
        let secret = tree::text(volume, "/secret/secretName");
        if !secret.is_empty() && !listed("/secrets", secret) {
            return Some(format!(
                "volume with secret.secretName={secret:?} is not allowed because service account {who} does not reference that secret"
            ));
        }
    }
    for (list, prefix) in [
        ("/spec/initContainers", "init container"),
        ("/spec/containers", "container"),
        ("/spec/ephemeralContainers", "ephemeral container"),
    ] {
        for container in tree::list(pod, list) {
            let name = tree::text(container, "/name");
            for env in tree::list(container, "/env") {
                let secret = tree::text(env, "/valueFrom/secretKeyRef/name");
                if !secret.is_empty() && !listed("/secrets", secret) {
                    return Some(format!(
                        "{prefix} {name} with envVar {} referencing secret.secretName={secret:?} is not allowed because service account {who} does not reference that secret",
                        tree::text(env, "/name")
                    ));
                }
            }
            for source in tree::list(container, "/envFrom") {
                let secret = tree::text(source, "/secretRef/name");
                if !secret.is_empty() && !listed("/secrets", secret) {
                    return Some(format!(
                        "{prefix} {name} with envFrom referencing secret.secretName={secret:?} is not allowed because service account {who} does not reference that secret"
                    ));
                }
            }
        }
    }
    for (at, pull) in tree::list(pod, "/spec/imagePullSecrets").iter().enumerate() {
        let secret = tree::text(pull, "/name");
        if !listed("/imagePullSecrets", secret) {
            return Some(format!(
                "imagePullSecrets[{at}].name={secret:?} is not allowed because service account {who} does not reference that imagePullSecret"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equipped(mut pod: Value, account: Value) -> Value {
        equip(&mut pod, &account, || "kube-api-access-abcde".to_owned());
        pod
    }

    #[test]
    fn a_pod_gets_the_token_volume_in_every_container() {
        let pod = equipped(
            json!({"spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}}),
            json!({"imagePullSecrets": [{"name": "pull"}]}),
        );
        let mount = json!({"name": "kube-api-access-abcde", "readOnly": true, "mountPath": MOUNT_PATH});
        assert_eq!(pod["spec"]["initContainers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][1], mount);
        let sources = &pod["spec"]["volumes"][0]["projected"]["sources"];
        assert_eq!(sources[0]["serviceAccountToken"], json!({"path": "token", "expirationSeconds": 3607}));
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    }

    #[test]
    fn token_is_not_mounted_when_disabled() {
        let asked_not = json!({"spec": {"automountServiceAccountToken": false, "containers": [{"name": "c"}]}});
        assert_eq!(equipped(asked_not.clone(), json!({})), asked_not);
        let plain = json!({"spec": {"containers": [{"name": "c"}]}});
        assert_eq!(equipped(plain.clone(), json!({"automountServiceAccountToken": false})), plain);
        let own =
            json!({"spec": {"containers": [{"name": "c", "volumeMounts": [{"name": "t", "mountPath": MOUNT_PATH}]}]}});
        assert_eq!(equipped(own.clone(), json!({})), own);
    }

    #[test]
    fn a_mirror_pod_may_not_lean_on_the_api() {
        assert_eq!(mirror_problem(&json!({"spec": {"containers": []}})), None);
        let sa = json!({"spec": {"serviceAccountName": "x"}});
        assert_eq!(mirror_problem(&sa), Some("a mirror pod may not reference service accounts"));
        let secret = json!({"spec": {"volumes": [{"secret": {"secretName": "x"}}]}});
        assert_eq!(mirror_problem(&secret), Some("a mirror pod may not reference secrets"));
    }
}
