//! References of static pods to objects of the API server, which they may not have: the API server may be one of them. Pure.
//! Answers for upstream's `HasAPIObjectReference`.

use crate::env;
use k8s_openapi::api::core::v1::{PodSpec, Volume};

/// Objects of the API server that a static pod refers to; upstream's texts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// An object of this resource.
    #[error("static pods may not reference {0}")]
    Resource(&'static str),
    /// Bundles of trust anchors.
    #[error("static pods may not use ClusterTrustBundle projected volume sources")]
    TrustBundle,
    /// Claims of devices.
    #[error("static pods may not use ResourceClaims")]
    ResourceClaims,
}

/// Refuses a static pod that refers to objects of the API server. With `PreventStaticPodAPIReferences` off
/// only those references are refused that no static pod ever had.
pub(super) fn check(spec: &PodSpec, prevents: bool) -> Result<(), ReferenceError> {
    if prevents {
        return resource(spec).map_or(Ok(()), |resource| Err(ReferenceError::Resource(resource)));
    }
    let volumes = spec.volumes.iter().flatten();
    let mut sources = volumes.flat_map(|volume| volume.projected.iter().flat_map(|all| all.sources.iter().flatten()));
    if sources.any(|source| source.cluster_trust_bundle.is_some()) {
        return Err(ReferenceError::TrustBundle);
    }
    match spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        true => Err(ReferenceError::ResourceClaims),
        false => Ok(()),
    }
}

/// The first kind of object that a pod refers to, by the name of its resource.
fn resource(spec: &PodSpec) -> Option<&'static str> {
    let is_set = |name: &Option<String>| name.as_deref().is_some_and(|name| !name.is_empty());
    if is_set(&spec.service_account_name) || is_set(&spec.service_account) {
        return Some("serviceaccounts");
    }
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let volumes = || spec.volumes.iter().flatten();
    let pulls = spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty());
    if pulls
        || containers().any(|container| !env::references(container).secrets.is_empty())
        || volumes().any(has_secret)
    {
        return Some("secrets");
    }
    if containers().any(|container| !env::references(container).config_maps.is_empty()) || volumes().any(has_config_map)
    {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    volumes().find_map(of_volume)
}

/// Reports whether a volume is a secret, or needs one. Upstream's `VisitPodSecretNames`.
fn has_secret(volume: &Volume) -> bool {
    let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    volume.secret.is_some()
        || projected.into_iter().any(|source| source.secret.is_some())
        || volume.azure_file.as_ref().is_some_and(|file| !file.secret_name.is_empty())
        || volume.cephfs.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.cinder.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.flex_volume.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.rbd.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.scale_io.is_some()
        || volume.iscsi.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.storageos.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.csi.as_ref().is_some_and(|source| source.node_publish_secret_ref.is_some())
}

fn has_config_map(volume: &Volume) -> bool {
    let mut projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    volume.config_map.is_some() || projected.any(|source| source.config_map.is_some())
}

/// Objects that a volume needs besides secrets and config maps.
fn of_volume(volume: &Volume) -> Option<&'static str> {
    match volume {
        Volume { csi: Some(_), .. } => Some("csidrivers (via CSI volumes)"),
        Volume { glusterfs: Some(_), .. } => Some("endpoints (via glusterFS volumes)"),
        Volume { persistent_volume_claim: Some(_), .. } => Some("persistentvolumeclaims"),
        Volume { ephemeral: Some(_), .. } => Some("persistentvolumeclaims (via ephemeral volumes)"),
        Volume { azure_file: Some(_), .. } => Some("secrets (via azureFile volumes)"),
        Volume { projected: Some(projected), .. } => {
            projected.sources.iter().flatten().find_map(|source| match source {
                source if source.service_account_token.is_some() => Some("serviceaccounts (via projected volumes)"),
                source if source.cluster_trust_bundle.is_some() => Some("clustertrustbundles"),
                source if source.pod_certificate.is_some() => Some("podcertificates"),
                _ => None,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(source: Value) -> Value {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().expect("an object").extend(source.as_object().expect("an object").clone());
        json!({"volumes": [volume]})
    }

    fn projected(source: Value) -> Value {
        volume(json!({"projected": {"sources": [source]}}))
    }

    #[test]
    fn static_pods_have_nothing_of_the_api_server() {
        let container = |part: Value| {
            let mut container = json!({"name": "c", "image": "i"});
            container.as_object_mut().expect("an object").extend(part.as_object().expect("an object").clone());
            json!({"containers": [container]})
        };
        let key = |kind: &str| json!({"env": [{"name": "E", "valueFrom": {kind: {"name": "o", "key": "k"}}}]});
        let bundle = json!({"clusterTrustBundle": {"name": "o", "path": "p"}});
        let claims = json!({"resourceClaims": [{"name": "r", "resourceClaimName": "o"}]});
        for (spec, expected) in [
            (json!({}), None),
            (volume(json!({"hostPath": {"path": "/etc"}})), None),
            (volume(json!({"emptyDir": {}})), None),
            (volume(json!({"downwardAPI": {}})), None),
            (projected(json!({"downwardAPI": {}})), None),
            (json!({"serviceAccountName": "a"}), Some("serviceaccounts")),
            (json!({"serviceAccount": "a"}), Some("serviceaccounts")),
            (json!({"imagePullSecrets": [{"name": "s"}]}), Some("secrets")),
            (container(key("secretKeyRef")), Some("secrets")),
            (container(json!({"envFrom": [{"configMapRef": {"name": "m"}}]})), Some("configmaps")),
            (container(key("configMapKeyRef")), Some("configmaps")),
            (volume(json!({"secret": {"secretName": "s"}})), Some("secrets")),
            (projected(json!({"secret": {"name": "s"}})), Some("secrets")),
            (volume(json!({"configMap": {"name": "m"}})), Some("configmaps")),
            (projected(json!({"configMap": {"name": "m"}})), Some("configmaps")),
            (claims.clone(), Some("resourceclaims")),
            (volume(json!({"csi": {"driver": "d"}})), Some("csidrivers (via CSI volumes)")),
            (volume(json!({"persistentVolumeClaim": {"claimName": "c"}})), Some("persistentvolumeclaims")),
            (volume(json!({"ephemeral": {}})), Some("persistentvolumeclaims (via ephemeral volumes)")),
            (projected(json!({"serviceAccountToken": {"path": "t"}})), Some("serviceaccounts (via projected volumes)")),
            (projected(bundle.clone()), Some("clustertrustbundles")),
        ] {
            let mut whole = json!({"containers": [{"name": "c", "image": "i"}]});
            whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
            let read: PodSpec = serde_json::from_value(whole).expect("a spec");
            let expected = expected.map(|resource| format!("static pods may not reference {resource}"));
            assert_eq!(check(&read, true).err().map(|error| error.to_string()), expected, "{spec}");
            let off = match &spec {
                spec if *spec == projected(bundle.clone()) => {
                    Some("static pods may not use ClusterTrustBundle projected volume sources")
                }
                spec if *spec == claims => Some("static pods may not use ResourceClaims"),
                _ => None,
            };
            let refused = check(&read, false).err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), off, "{spec} with the gate off");
        }
    }
}
