//! Service accounts of pods as plugins of credentials are told of them (`tokenAttributes`): a token for the plugin's
//! audience, and the annotations that it wants. Answers for the `serviceAccountProvider` of upstream's
//! `pkg/credentialprovider/plugin`.

use crate::objects::ObjectSource;
use crate::pods;
use crate::volumes::tokens::Tokens;
use k8s_openapi::api::core::v1::Pod;
use proto::selector::format::qualified_name;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use shared::status::field::{Error, Path};
use std::collections::{BTreeMap, BTreeSet};

/// Feature gate of all of this.
pub(super) const GATE: &str = "KubeletServiceAccountTokenForCredentialProviders";
/// Version of plugins that take tokens.
const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";
/// Scopes in which answers are kept.
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];

/// `tokenAttributes`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TokenAttributes {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Vec<String>,
    optional_service_account_annotation_keys: Vec<String>,
}

/// Service account that credentials were had for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAccountSource {
    /// UID of the account.
    pub uid: String,
    /// Namespace of the account.
    pub namespace: String,
    /// Name of the account.
    pub name: String,
}

/// Account of a pod as a plugin is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountIdentity {
    pub(super) source: ServiceAccountSource,
    pub(super) token: String,
    pub(super) annotations: BTreeMap<String, String>,
    /// Tells answers of the plugin for this account, or for this token, from others.
    pub(super) cache_key: String,
}

/// Result of a look at a pod's account.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// The plugin is asked without one.
    None,
    /// The plugin is asked for this one.
    Some(Box<AccountIdentity>),
    /// The plugin is not asked.
    Skip,
}

impl TokenAttributes {
    /// Looks up what the plugin is to know of a pod.
    pub(super) async fn account(&self, objects: &dyn ObjectSource, tokens: &Tokens, pod: &Pod) -> Account {
        let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
        if name.is_empty() {
            return if self.require_service_account == Some(true) { Account::Skip } else { Account::None };
        }
        let namespace = pods::namespace(pod);
        let account = match objects.service_account(namespace, &name).await {
            Ok(account) => account,
            Err(error) => {
                tracing::error!(service_account = format!("{namespace}/{name}"), %error, "Failed to get service account");
                return Account::Skip;
            }
        };
        let found = account.metadata.annotations.clone().unwrap_or_default();
        let Some(annotations) = self.annotations(&found) else {
            tracing::debug!(
                service_account = format!("{namespace}/{name}"),
                "Service account lacks a required annotation"
            );
            return Account::Skip;
        };
        let token = match tokens.get(objects, pod, (&self.service_account_token_audience, None)).await {
            Ok(token) => token.text,
            Err(error) => {
                tracing::error!(
                    service_account = format!("{namespace}/{name}"),
                    %error,
                    "Error getting service account token"
                );
                return Account::Skip;
            }
        };
        let uid = account.metadata.uid.clone().unwrap_or_default();
        let source = ServiceAccountSource { uid, namespace: namespace.to_owned(), name };
        let cache_key = self.cache_key(&source, &annotations, &token);
        Account::Some(Box::new(AccountIdentity { source, token, annotations, cache_key }))
    }

    /// The annotations that the plugin wants; none where one that it needs is not there.
    fn annotations(&self, found: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
        let required = &self.required_service_account_annotation_keys;
        if !required.iter().all(|key| found.contains_key(key)) {
            return None;
        }
        let wanted = required.iter().chain(&self.optional_service_account_annotation_keys);
        Some(wanted.filter_map(|key| Some((key.clone(), found.get(key)?.clone()))).collect())
    }

    /// Each part with its length before it: no two accounts share a key.
    fn cache_key(&self, source: &ServiceAccountSource, annotations: &BTreeMap<String, String>, token: &str) -> String {
        let hash = match self.cache_type.as_str() {
            "Token" => Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect(),
            _ => String::new(),
        };
        let parts = [&source.namespace, &source.name, &source.uid, &hash].into_iter();
        let parts = parts.chain(annotations.iter().flat_map(|(key, value)| [key, value]));
        parts.map(|part| format!("{}:{part}", part.len())).collect()
    }

    /// Problems of the attributes of a plugin of `version`. Answers for the part of
    /// `validateCredentialProviderConfig` about them.
    pub(super) fn problems(&self, at: &Path, version: &str, is_enabled: bool) -> Vec<Error> {
        let mut all = Vec::new();
        if !is_enabled {
            let why = "tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled";
            all.push(Error::forbidden(at.clone(), why));
        }
        if self.service_account_token_audience.is_empty() {
            let at = at.child("serviceAccountTokenAudience");
            all.push(Error::required(at, "serviceAccountTokenAudience is required"));
        }
        if self.require_service_account.is_none() {
            all.push(Error::required(at.child("requireServiceAccount"), "requireServiceAccount is required"));
        }
        if version != VERSION {
            let why = format!("tokenAttributes is only supported for {VERSION} API version");
            all.push(Error::forbidden(at.clone(), &why));
        }
        let (required, optional) =
            (&self.required_service_account_annotation_keys, &self.optional_service_account_annotation_keys);
        let (required_at, optional_at) =
            (at.child("requiredServiceAccountAnnotationKeys"), at.child("optionalServiceAccountAnnotationKeys"));
        if self.require_service_account == Some(false) && !required.is_empty() {
            let why = "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set";
            all.push(Error::forbidden(required_at.clone(), why));
        }
        all.extend(keys(&required_at, required));
        all.extend(keys(&optional_at, optional));
        let both: BTreeSet<&String> = required.iter().filter(|key| optional.contains(key)).collect();
        if !both.is_empty() {
            let both: Vec<&String> = both.into_iter().collect();
            let why = "annotation keys cannot be both required and optional";
            all.push(Error::invalid(at.clone(), serde_json::json!(both), why));
        }
        let cache = at.child("cacheType");
        match self.cache_type.as_str() {
            "" => {
                let why = "cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token";
                all.push(Error::required(cache, why));
            }
            known if CACHE_TYPES.contains(&known) => {}
            other => all.push(Error::not_supported(cache, other, &CACHE_TYPES)),
        }
        all
    }
}

/// Problems of the keys of annotations.
fn keys(at: &Path, keys: &[String]) -> Vec<Error> {
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    for key in keys {
        let wrong = qualified_name(&key.to_lowercase());
        all.extend(wrong.iter().map(|why| Error::invalid(at.clone(), key.clone(), why)));
        if !seen.insert(key) {
            all.push(Error::duplicate(at.clone(), key.clone()));
        }
    }
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::objects::ObjectError;
    use async_trait::async_trait;
    use jiff::{SignedDuration, Timestamp};
    use k8s_openapi::api::authentication::v1::{TokenRequestSpec, TokenRequestStatus};
    use k8s_openapi::api::core::v1::ServiceAccount;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// An API server with the account `builder` alone; its tokens name pod and audience.
    pub(in crate::images) struct Accounts;

    #[async_trait]
    impl ObjectSource for Accounts {
        async fn service_account(&self, namespace: &str, name: &str) -> Result<Arc<ServiceAccount>, ObjectError> {
            if name != "builder" {
                return Err(ObjectError::NotFound { kind: "serviceaccounts", name: name.to_owned() });
            }
            let account = json!({"metadata": {"name": name, "namespace": namespace, "uid": "account",
                "annotations": {"r.io/role": "reader", "r.io/team": "a"}}});
            Ok(Arc::new(serde_json::from_value(account).expect("account")))
        }
        async fn token(&self, pod: &Pod, spec: TokenRequestSpec) -> Result<TokenRequestStatus, ObjectError> {
            let bound = spec.bound_object_ref.and_then(|bound| bound.uid);
            let end = Timestamp::now().checked_add(SignedDuration::from_hours(1)).expect("a time");
            let token = format!("{}-{}", spec.audiences.join(","), bound.unwrap_or_default());
            assert_eq!(pod.metadata.uid.as_deref().map(|uid| token.ends_with(uid)), Some(true));
            Ok(TokenRequestStatus { token, expiration_timestamp: Time(end) })
        }
    }

    pub(in crate::images) fn pod(uid: &str, account: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": uid},
            "spec": {"serviceAccountName": account, "containers": []}}))
        .expect("pod")
    }

    fn attributes(changes: Value) -> TokenAttributes {
        let mut value = json!({"serviceAccountTokenAudience": "r.io", "cacheType": "Token",
            "requireServiceAccount": true});
        value.as_object_mut().expect("object").extend(changes.as_object().expect("object").clone());
        serde_json::from_value(value).expect("attributes")
    }

    async fn told(changes: Value, pod: &Pod) -> Account {
        attributes(changes).account(&Accounts, &Tokens::default(), pod).await
    }

    #[tokio::test]
    async fn plugins_learn_of_the_accounts_that_they_want() {
        let wants = json!({"requiredServiceAccountAnnotationKeys": ["r.io/role"],
            "optionalServiceAccountAnnotationKeys": ["r.io/none"]});
        let Account::Some(found) = told(wants, &pod("u", "builder")).await else { panic!("not asked") };
        assert_eq!(found.token, "r.io-u");
        assert_eq!(found.annotations, BTreeMap::from([("r.io/role".to_owned(), "reader".to_owned())]));
        assert_eq!((found.source.uid.as_str(), found.source.namespace.as_str()), ("account", "n"));
        let lacks = json!({"requiredServiceAccountAnnotationKeys": ["r.io/none"]});
        assert_eq!(told(lacks, &pod("u", "builder")).await, Account::Skip);
        assert_eq!(told(json!({}), &pod("u", "other")).await, Account::Skip);
        assert_eq!(told(json!({}), &pod("u", "")).await, Account::Skip);
        assert_eq!(told(json!({"requireServiceAccount": false}), &pod("u", "")).await, Account::None);
    }

    #[tokio::test]
    async fn answers_are_for_a_token_or_for_an_account() {
        let mut keys = Vec::new();
        for (kind, uid) in [("Token", "a"), ("Token", "b"), ("ServiceAccount", "a"), ("ServiceAccount", "b")] {
            let Account::Some(found) = told(json!({"cacheType": kind}), &pod(uid, "builder")).await else {
                panic!("not asked")
            };
            keys.push(found.cache_key);
        }
        assert_ne!(keys[0], keys[1]);
        assert_eq!(keys[2], keys[3]);
        assert_ne!(keys[0], keys[2]);
    }

    #[test]
    fn unusable_attributes_are_refused() {
        let at = Path::new("providers").child("tokenAttributes");
        let problems = |changes: Value, version: &str, is_enabled: bool| -> Vec<String> {
            attributes(changes).problems(&at, version, is_enabled).iter().map(ToString::to_string).collect()
        };
        assert_eq!(problems(json!({}), VERSION, true), Vec::<String>::new());
        let of = "providers.tokenAttributes";
        for (changes, version, enabled, text) in [
            (json!({}), VERSION, false, "Forbidden: tokenAttributes is not supported when".to_owned()),
            (
                json!({"serviceAccountTokenAudience": ""}),
                VERSION,
                true,
                format!("{of}.serviceAccountTokenAudience: Required value: serviceAccountTokenAudience is required"),
            ),
            (
                json!({"requireServiceAccount": null}),
                VERSION,
                true,
                format!("{of}.requireServiceAccount: Required value: requireServiceAccount is required"),
            ),
            (
                json!({}),
                "credentialprovider.kubelet.k8s.io/v1beta1",
                true,
                format!("{of}: Forbidden: tokenAttributes is only supported for {VERSION} API version"),
            ),
            (
                json!({"requireServiceAccount": false, "requiredServiceAccountAnnotationKeys": ["a"]}),
                VERSION,
                true,
                "requireServiceAccount cannot be false when".to_owned(),
            ),
            (
                json!({"optionalServiceAccountAnnotationKeys": ["a b"]}),
                VERSION,
                true,
                "Invalid value: \"a b\"".to_owned(),
            ),
            (
                json!({"optionalServiceAccountAnnotationKeys": ["a", "a"]}),
                VERSION,
                true,
                "Duplicate value: \"a\"".to_owned(),
            ),
            (
                json!({"requiredServiceAccountAnnotationKeys": ["a"], "optionalServiceAccountAnnotationKeys": ["a"]}),
                VERSION,
                true,
                "annotation keys cannot be both required and optional".to_owned(),
            ),
            (json!({"cacheType": ""}), VERSION, true, "cacheType is required to be set".to_owned()),
            (json!({"cacheType": "Pod"}), VERSION, true, "Unsupported value: \"Pod\"".to_owned()),
        ] {
            let found = problems(changes, version, enabled).join("\n");
            assert!(found.contains(&text), "{found}: {text}");
        }
    }
}
