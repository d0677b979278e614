//! `--encryption-provider-config`: an `EncryptionConfiguration`, read and checked as upstream does. Answers for
//! upstream's `pkg/server/options/encryptionconfig` (`LoadEncryptionConfig`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::resources::{self, Resource};
use serde::Deserialize;
use sha2::Digest as _;

use super::ciphers::{Aes, Cipher};
use super::kms::{Kms, Timeout};
use super::{Chain, NamedKey, Provider, Table, TransformerKind};
use crate::machinery::GroupResource;
use crate::registry::core::event::EVENTS;
use crate::registry::events::event::EVENTS as EVENTS_V1;
use crate::rows;

/// Errors of an encryption configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("error reading encryption provider configuration file {path:?}: open {path}: {why}")]
    Read {
        /// Path of the file.
        path: String,
        /// Error of the system.
        why: String,
    },
    /// Syntax of the file.
    #[error("error decoding encryption provider configuration file {path:?}: {why}")]
    Decode {
        /// Path of the file.
        path: String,
        /// Cause.
        why: String,
    },
    /// An invalid field.
    #[error("{field}: {why}")]
    Invalid {
        /// The field, such as `resources[0].providers[1].aescbc.keys[0].secret`.
        field: String,
        /// Cause.
        why: String,
    },
}

fn invalid(field: &str, why: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field: field.to_owned(), why: why.into() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<Resources>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<ProviderConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderConfig {
    aesgcm: Option<Keys>,
    aescbc: Option<Keys>,
    secretbox: Option<Keys>,
    identity: Option<Empty>,
    kms: Option<KmsConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(default)]
    keys: Vec<KeyConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyConfig {
    #[serde(default)]
    name: String,
    #[serde(default)]
    secret: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct KmsConfig {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    endpoint: String,
    /// Only version 1 has it.
    cachesize: Option<i64>,
    timeout: Option<String>,
}

/// Keys that a chain of transformers applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransformRule {
    /// Keys below these prefixes.
    Below(Vec<String>),
    /// All.
    All,
}

impl TransformRule {
    /// `tail` is a key below the store's prefix, with a slash in front.
    pub fn covers(&self, tail: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(prefixes) => prefixes.iter().any(|p| tail.starts_with(p.as_str())),
        }
    }

    /// From `secrets`, `deployments.apps`, `*.apps`, `*.` or `*.*`.
    fn parse(resource: &str) -> Self {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let tail = |row: &Resource| {
            let prefix = row.etcd_prefix.strip_prefix("/registry").unwrap_or(&row.etcd_prefix);
            (!prefix.is_empty()).then(|| format!("{prefix}/"))
        };
        match (plural, group) {
            ("*", "*") => Self::All,
            ("*", group) => {
                let every = resources::all().iter().chain(resources::optional());
                let rows = every.filter(|r| r.group == group);
                let mut prefixes: Vec<String> = rows.filter_map(tail).collect();
                if !group.is_empty() {
                    prefixes.push(format!("/{group}/"));
                }
                prefixes.sort_unstable();
                prefixes.dedup();
                Self::Below(prefixes)
            }
            (plural, group) => match rows::compiled(group, plural) {
                Some(row) => Self::Below(tail(row).into_iter().collect()),
                None => Self::Below(vec![format!("/{group}/{plural}/")]),
            },
        }
    }
}

/// Key lengths in bytes, by cipher.
const AES_KEYS: [usize; 3] = [16, 24, 32];
const BOX_KEYS: [usize; 1] = [32];

fn keys(
    field: &str,
    config: &Keys,
    sizes: &[usize],
    make: impl Fn(&[u8]) -> Option<Cipher>,
) -> Result<TransformerKind, ConfigError> {
    if config.keys.is_empty() {
        return Err(invalid(&format!("{field}.keys"), "Required value: at least one key is required"));
    }
    let mut keys: Vec<NamedKey> = Vec::new();
    for (i, key) in config.keys.iter().enumerate() {
        let at = format!("{field}.keys[{i}]");
        if key.name.is_empty() {
            return Err(invalid(&format!("{at}.name"), "Required value: key must have a name"));
        }
        if key.secret.is_empty() {
            return Err(invalid(&format!("{at}.secret"), "Required value: key must have a secret"));
        }
        let Ok(secret) = STANDARD.decode(key.secret.as_bytes()) else {
            return Err(invalid(&format!("{at}.secret"), "Invalid value: \"REDACTED\": secret must be base64 encoded"));
        };
        let Some(cipher) = make(&secret) else {
            let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            let why =
                format!("Invalid value: \"REDACTED\": expected 1 of the key sizes [{sizes}], got {}", secret.len());
            return Err(invalid(&format!("{at}.secret"), why));
        };
        let prefix = format!("{}:", key.name).into_bytes().into_boxed_slice();
        if keys.iter().any(|k| k.prefix == prefix) {
            return Err(invalid(&format!("{at}.name"), format!("Duplicate value: {:?}", key.name)));
        }
        keys.push(NamedKey { prefix, cipher });
    }
    Ok(TransformerKind::Keys(keys))
}

fn provider(
    field: &str,
    config: &ProviderConfig,
    made: &mut Vec<std::sync::Arc<Kms>>,
) -> Result<Provider, ConfigError> {
    let given = [
        config.aesgcm.is_some(),
        config.aescbc.is_some(),
        config.secretbox.is_some(),
        config.identity.is_some(),
        config.kms.is_some(),
    ];
    if given.iter().filter(|g| **g).count() != 1 {
        let why = if given.contains(&true) {
            "more than one provider specified in a single element, should split into different list elements"
        } else {
            "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"
        };
        return Err(invalid(field, why));
    }
    let (name, kind) = if let Some(k) = &config.aesgcm {
        ("aesgcm:v1:", keys(&format!("{field}.aesgcm"), k, &AES_KEYS, |s| Aes::new(s).map(Cipher::Gcm))?)
    } else if let Some(k) = &config.aescbc {
        ("aescbc:v1:", keys(&format!("{field}.aescbc"), k, &AES_KEYS, |s| Aes::new(s).map(Cipher::Cbc))?)
    } else if let Some(k) = &config.secretbox {
        ("secretbox:v1:", keys(&format!("{field}.secretbox"), k, &BOX_KEYS, Cipher::secretbox)?)
    } else if let Some(k) = &config.kms {
        let kms = kms(&format!("{field}.kms"), k, made)?;
        let prefix = format!("k8s:enc:kms:v2:{}:", k.name).into_bytes().into();
        return Ok(Provider { prefix, kind: TransformerKind::Kms(kms) });
    } else {
        return Ok(Provider { prefix: Box::default(), kind: TransformerKind::Identity });
    };
    Ok(Provider { prefix: format!("k8s:enc:{name}").into_bytes().into(), kind })
}

fn kms(
    field: &str,
    config: &KmsConfig,
    made: &mut Vec<std::sync::Arc<Kms>>,
) -> Result<std::sync::Arc<Kms>, ConfigError> {
    match config.api_version.as_str() {
        "v2" => {}
        "" | "v1" => {
            let why = "Invalid value: \"v1\": KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature.";
            return Err(invalid(&format!("{field}.apiVersion"), why));
        }
        other => {
            let why = format!(
                "Invalid value: {other:?}: unsupported apiVersion {other} for KMS provider, only v1 and v2 are supported"
            );
            return Err(invalid(&format!("{field}.apiVersion"), why));
        }
    }
    if config.name.is_empty() {
        return Err(invalid(&format!("{field}.name"), "Required value: provider name is required"));
    }
    if config.name.contains(':') {
        let why = format!(
            "Invalid value: {:?}: KMS provider name should not contain ':', cannot parse key id from provider name",
            config.name
        );
        return Err(invalid(&format!("{field}.name"), why));
    }
    if config.cachesize.is_some() {
        return Err(invalid(&format!("{field}.cachesize"), "Invalid value: cachesize is not supported in v2"));
    }
    let timeout = match config.timeout.as_deref() {
        None | Some("") => Timeout::default(),
        Some(text) => {
            shared::flags::parse_duration(text).ok().filter(|d| !d.is_zero()).map(Timeout).ok_or_else(|| {
                invalid(&format!("{field}.timeout"), "Invalid value: timeout should be a positive value")
            })?
        }
    };
    let path = config.endpoint.strip_prefix("unix://").unwrap_or("");
    if path.is_empty() {
        let why = if config.endpoint.is_empty() {
            "Required value: endpoint is required".to_owned()
        } else {
            format!("Invalid value: {:?}: endpoint scheme should be unix", config.endpoint)
        };
        return Err(invalid(&format!("{field}.endpoint"), why));
    }
    if made.iter().any(|k| k.name() == config.name) {
        return Err(invalid(
            &format!("{field}.name"),
            format!("Invalid value: {:?}: duplicate KMS provider name", config.name),
        ));
    }
    let made_now = std::sync::Arc::new(Kms::new(&config.name, path, timeout));
    made.push(made_now.clone());
    Ok(made_now)
}

/// Parsed configuration.
pub(super) struct Read {
    pub(super) table: Table,
    /// Services to be asked for their health.
    pub(super) services: Vec<std::sync::Arc<Kms>>,
    /// Of the file's bytes.
    pub(super) hash: [u8; 32],
}

/// Reads the text of a configuration.
pub(super) fn read(path: &str, text: &[u8]) -> Result<Read, ConfigError> {
    let decode = |why: String| ConfigError::Decode { path: path.to_owned(), why };
    let tree = proto::yaml::decode_any(text).map_err(|e| decode(e.to_string()))?;
    let file: File = serde_json::from_value(tree).map_err(|e| decode(e.to_string()))?;
    let known = file.api_version == "apiserver.config.k8s.io/v1" || file.api_version == "v1";
    if file.kind != "EncryptionConfiguration" || !known {
        return Err(decode(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version)));
    }
    if file.resources.is_empty() {
        return Err(invalid("resources", "Required value: encryption config must contain at least one resource"));
    }
    let mut rules: Vec<(TransformRule, Chain)> = Vec::new();
    let mut services = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (i, entry) in file.resources.iter().enumerate() {
        let at = format!("resources[{i}]");
        if entry.resources.is_empty() {
            return Err(invalid(&format!("{at}.resources"), "Required value: resources[].resources must be specified"));
        }
        if entry.providers.is_empty() {
            return Err(invalid(&format!("{at}.providers"), "Required value: at least one provider is required"));
        }
        let mut chain = Vec::new();
        for (j, config) in entry.providers.iter().enumerate() {
            chain.push(provider(&format!("{at}.providers[{j}]"), config, &mut services)?);
        }
        let chain: Chain = chain.into();
        for (j, resource) in entry.resources.iter().enumerate() {
            check_resource(&format!("{at}.resources[{j}]"), resource, &seen)?;
            seen.push(resource);
            rules.push((TransformRule::parse(resource), chain.clone()));
        }
    }
    Ok(Read { table: Table { rules }, services, hash: sha2::Sha256::digest(text).into() })
}

fn check_resource(field: &str, resource: &str, before: &[&str]) -> Result<(), ConfigError> {
    let bad = |why: &str| Err(invalid(field, format!("Invalid value: {resource:?}: {why}")));
    if resource.is_empty() {
        return bad("group resource is empty");
    }
    if resource.chars().any(char::is_uppercase) {
        return bad("resource should be lower case");
    }
    if resource == "*" {
        return bad("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources");
    }
    let wildcard = resource.starts_with('*');
    if resource.contains('*') && (!wildcard || !resource.starts_with("*.")) {
        return bad("resource name should not contain a wildcard besides '*.<group>' and '*.*'");
    }
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    match GroupResource::new(group, plural) {
        EVENTS => return Ok(()),
        EVENTS_V1 => return bad("resource is served from a different API group; use 'events'"),
        _ => {}
    }
    if before.contains(&resource) {
        return bad("the resource is specified more than once");
    }
    if before.contains(&"*.*") {
        return bad("masked by '*.*'");
    }
    let group = resource.split_once('.').map_or("", |(_, g)| g);
    if !wildcard && before.contains(&format!("*.{group}").as_str()) {
        return bad("masked by a wildcard of its group");
    }
    Ok(())
}
