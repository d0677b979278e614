//! Contents of config-map, secret, downward-API and projected volumes. The objects come from an [`ObjectSource`];
//! everything else is computed.

use super::tokens::{TokenError, Tokens};
use super::trust::{self, TrustError};
use super::writer::{Payload, Projection};
use crate::env::{EnvError, fields};
use crate::facts::PodFacts;
use crate::objects::{CertificateError, ObjectError, ObjectSource};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, PodSpec, Secret, Volume, VolumeProjection,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reasons why a volume's content cannot be had, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// An object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object does not have a key that the volume names.
    #[error("{missing} key: {key}")]
    NoKey {
        /// Beginning of upstream's text.
        missing: &'static str,
        /// The key.
        key: String,
    },
    /// The pod has no container of this name.
    #[error("container {0} not found")]
    NoContainer(String),
    /// A field of the pod cannot be shown.
    #[error(transparent)]
    Field(#[from] EnvError),
    /// A token cannot be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Trust anchors cannot be had.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A certificate cannot be had.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

const DEFAULT_MODE: i32 = 0o644;
/// Beginnings of upstream's texts on keys that are not there.
const CONFIG_KEY: &str = "configmap references non-existent config";
const SECRET_KEY: &str = "references non-existent secret";

/// Inputs of the contents.
pub(super) struct ContentInputs<'a> {
    pub(super) pod: &'a Pod,
    pub(super) facts: &'a PodFacts,
    pub(super) objects: &'a dyn ObjectSource,
    pub(super) tokens: &'a Tokens,
}

/// The files of a volume; `None` for kinds of volume whose files are not the kubelet's.
pub(super) async fn payload(context: &ContentInputs<'_>, volume: &Volume) -> Result<Option<Payload>, ContentError> {
    let mut payload = Payload::new();
    if let Some(source) = &volume.config_map {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        context.add_config_map(&mut payload, &source.name, source.items.as_deref(), mode, source.optional).await?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        context.add_secret(&mut payload, name, source.items.as_deref(), mode, source.optional).await?;
    } else if let Some(source) = &volume.downward_api {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        context.add_downward(&mut payload, source.items.as_deref().unwrap_or_default(), mode)?;
    } else if let Some(source) = &volume.projected {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        for (at, projection) in source.sources.iter().flatten().enumerate() {
            context.add_projection(&mut payload, (&volume.name, at), projection, mode).await?;
        }
    } else {
        return Ok(None);
    }
    Ok(Some(payload))
}

impl ContentInputs<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Adds a source of a projected volume, which is known by the volume's name and the source's position.
    async fn add_projection(
        &self,
        payload: &mut Payload,
        (volume, position): (&str, usize),
        source: &VolumeProjection,
        mode: i32,
    ) -> Result<(), ContentError> {
        if let Some(map) = &source.config_map {
            self.add_config_map(payload, &map.name, map.items.as_deref(), mode, map.optional).await?;
        }
        if let Some(secret) = &source.secret {
            self.add_secret(payload, &secret.name, secret.items.as_deref(), mode, secret.optional).await?;
        }
        if let Some(downward) = &source.downward_api {
            self.add_downward(payload, downward.items.as_deref().unwrap_or_default(), mode)?;
        }
        if let Some(token) = &source.service_account_token {
            let wanted = (token.audience.as_deref().unwrap_or_default(), token.expiration_seconds);
            let text = self.tokens.get(self.objects, self.pod, wanted).await?.text;
            let (mode, uid) = self.private(mode);
            payload.insert(token.path.clone(), Projection { data: text.into_bytes(), mode, uid });
        }
        if let Some(source) = &source.cluster_trust_bundle {
            let bundles = self.objects.trust_bundles().await?;
            let data = trust::anchors(&bundles, source)?;
            let (mode, uid) = self.private(mode);
            payload.insert(source.path.clone(), Projection { data, mode, uid });
        }
        if let Some(certificate) = &source.pod_certificate {
            let (key, chain) = self.objects.pod_certificate(self.pod, volume, position)?;
            let bundle = format!("{key}{chain}");
            let (mode, uid) = self.private(mode);
            for (path, text) in [
                (&certificate.credential_bundle_path, bundle),
                (&certificate.key_path, key),
                (&certificate.certificate_chain_path, chain),
            ] {
                if let Some(path) = path.as_ref().filter(|path| !path.is_empty()) {
                    payload.insert(path.clone(), Projection { data: text.into_bytes(), mode, uid });
                }
            }
        }
        Ok(())
    }

    /// Mode and owner of a file that is for the pod's user alone, where it has one, or a group.
    fn private(&self, mode: i32) -> (u32, Option<u32>) {
        let owner = self.pod.spec.as_ref().and_then(common_user);
        let is_private = owner.is_some() || self.fs_group().is_some();
        // Root has every file anyway.
        (bits(if is_private { 0o600 } else { mode }), owner.filter(|uid| *uid != 0))
    }

    fn fs_group(&self) -> Option<i64> {
        self.pod.spec.as_ref()?.security_context.as_ref()?.fs_group
    }

    async fn add_config_map(
        &self,
        payload: &mut Payload,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<(), ContentError> {
        let optional = optional.unwrap_or(false);
        let map = allow_missing(self.objects.config_map(self.namespace(), name).await, optional)?;
        let data = map.map(|map| config_map_data(&map)).unwrap_or_default();
        select(payload, data, items, mode, optional, CONFIG_KEY)
    }

    async fn add_secret(
        &self,
        payload: &mut Payload,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<(), ContentError> {
        let optional = optional.unwrap_or(false);
        let secret = allow_missing(self.objects.secret(self.namespace(), name).await, optional)?;
        let data = secret.map(|secret| secret_data(&secret)).unwrap_or_default();
        select(payload, data, items, mode, optional, SECRET_KEY)
    }

    fn add_downward(
        &self,
        payload: &mut Payload,
        items: &[DownwardAPIVolumeFile],
        mode: i32,
    ) -> Result<(), ContentError> {
        for item in items {
            let text = if let Some(field) = &item.field_ref {
                fields::field(self.pod, self.facts, &field.field_path)
            } else if let Some(resource) = &item.resource_field_ref {
                let name = resource.container_name.as_deref().unwrap_or_default();
                let container =
                    fields::container(self.pod, name).ok_or_else(|| ContentError::NoContainer(name.to_owned()))?;
                fields::resource(resource, container, self.facts)
            } else {
                continue;
            };
            let data = text?.into_bytes();
            payload.insert(item.path.clone(), Projection { data, mode: bits(item.mode.unwrap_or(mode)), uid: None });
        }
        Ok(())
    }
}

fn bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or_default() & 0o777
}

/// The user that every container of the pod runs as, if it is one.
fn common_user(spec: &PodSpec) -> Option<u32> {
    let default = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let of = |own: Option<i64>| own.or(default);
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut users = containers.map(|c| of(c.security_context.as_ref().and_then(|context| context.run_as_user)));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

fn allow_missing<K>(result: Result<Arc<K>, ObjectError>, optional: bool) -> Result<Option<Arc<K>>, ObjectError> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(ObjectError::NotFound { .. }) if optional => Ok(None),
        Err(error) => Err(error),
    }
}

fn config_map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    text.chain(binary).collect()
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

/// All keys, or those that `items` names at the paths it gives them. `missing` begins upstream's text on a key that is not
/// there.
fn select(
    payload: &mut Payload,
    data: BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
    missing: &'static str,
) -> Result<(), ContentError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let file = |data| Projection { data, mode: bits(mode), uid: None };
        payload.extend(data.into_iter().map(|(key, data)| (key, file(data))));
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(data) => {
                let file = Projection { data: data.clone(), mode: bits(item.mode.unwrap_or(mode)), uid: None };
                payload.insert(item.path.clone(), file);
            }
            None if optional => {}
            None => return Err(ContentError::NoKey { missing, key: item.key.clone() }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_there_are_named_as_upstream_names_them() {
        let item = |key: &str| KeyToPath { key: key.to_owned(), path: "p".to_owned(), mode: None };
        let chosen = |items: &[KeyToPath], optional: bool, missing: &'static str| {
            let (mut payload, data) = (Payload::new(), BTreeMap::from([("k".to_owned(), b"v".to_vec())]));
            select(&mut payload, data, Some(items), 0o644, optional, missing)
                .map(|()| payload.len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(chosen(&[item("k")], false, ""), Ok(1));
        assert_eq!(chosen(&[item("x")], true, ""), Ok(0));
        let told = chosen(&[item("x")], false, CONFIG_KEY).expect_err("no such key");
        assert_eq!(told, "configmap references non-existent config key: x");
        let told = chosen(&[item("x")], false, SECRET_KEY).expect_err("no such key");
        assert_eq!(told, "references non-existent secret key: x");
    }
}
