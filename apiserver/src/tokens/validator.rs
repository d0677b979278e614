//! Whether a service-account token is to be believed: signature, issuer, times, audiences, and whether the account
//! and what the token is bound to still exist and are the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::authn::{AuthnError, Identity, UserInfo};

use super::{Bound, Claims, LegacyClaims, ServiceAccounts, user_name};
use crate::access::tree;
use crate::api::{Api, Reader};
use crate::authn::TokenAuthenticator;

const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
const EXTRA: &str = "authentication.kubernetes.io/";
/// Seconds clocks may differ.
const LEEWAY: i64 = 60;
/// Seconds an object may be on its way out before tokens bound to it are refused.
const DELETION_GRACE: i64 = 60;
/// Tokens whose signature is known to be good.
const KNOWN_LIMIT: usize = 4096;

/// Believes tokens.
pub struct Validator {
    accounts: Arc<ServiceAccounts>,
    reader: Arc<dyn Reader>,
    api: Api,
    /// By the token's hash: signatures are costly, everything else is checked every time.
    known: Mutex<HashMap<[u8; 32], Arc<Value>>>,
}

fn bad<T>(text: impl Into<String>) -> Result<T, AuthnError> {
    Err(AuthnError(text.into()))
}

fn json_part(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[async_trait]
impl TokenAuthenticator for Validator {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Identity>, AuthnError> {
        self.check(token, audiences, jiff::Timestamp::now().as_second()).await
    }
}

impl Validator {
    /// With the keys to believe and where the accounts are found.
    pub fn new(accounts: Arc<ServiceAccounts>, reader: Arc<dyn Reader>, api: Api) -> Self {
        Self { accounts, reader, api, known: Mutex::default() }
    }

    /// Whom a token stands for, at a time. `None` for tokens of other issuers.
    pub async fn check(&self, token: &str, audiences: &[String], now: i64) -> Result<Option<Identity>, AuthnError> {
        let Some((message, signature)) = token.rsplit_once('.') else { return Ok(None) };
        let Some((header, payload)) = message.split_once('.').filter(|(_, p)| !p.contains('.')) else {
            return Ok(None);
        };
        let Some(claims) = json_part(payload) else { return Ok(None) };
        let issuer = tree::text(&claims, "/iss");
        if issuer != LEGACY_ISSUER && !self.accounts.config().issuers.iter().any(|i| i == issuer) {
            return Ok(None);
        }
        let legacy = issuer == LEGACY_ISSUER;
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let seen = self.known.lock().get(&hash).cloned();
        let claims = match seen {
            Some(claims) => claims,
            None => {
                let key = json_part(header).map(|h| tree::text(&h, "/kid").to_owned()).unwrap_or_default();
                if !self.accounts.verify(message, signature, &key) {
                    return bad("failed to verify signature: go-jose/go-jose: error in cryptographic primitive");
                }
                let claims = Arc::new(claims);
                let mut known = self.known.lock();
                if known.len() >= KNOWN_LIMIT {
                    known.clear();
                }
                known.insert(hash, claims.clone());
                claims
            }
        };
        let own = &self.accounts.config().audiences;
        let said: Vec<String> = match claims.get("aud") {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(many)) => many.iter().filter_map(|a| a.as_str().map(str::to_owned)).collect(),
            _ => Vec::new(),
        };
        // Tokens that name no audience are meant for this server.
        let meant = if said.is_empty() { own } else { &said };
        let wanted = if audiences.is_empty() { own.as_slice() } else { audiences };
        let common: Vec<String> = wanted.iter().filter(|a| meant.contains(a)).cloned().collect();
        if common.is_empty() {
            return bad(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(meant),
                quoted(wanted)
            ));
        }
        let user = if legacy { self.legacy(&claims, token).await? } else { self.bound(&claims, now).await? };
        Ok(Some(Identity { user, audiences: common }))
    }

    async fn bound(&self, claims: &Value, now: i64) -> Result<UserInfo, AuthnError> {
        let claims: Claims = serde_json::from_value(claims.clone()).map_err(|e| AuthnError(e.to_string()))?;
        if claims.nbf.is_some_and(|at| now + LEEWAY < at) {
            return bad("service account token is not valid yet");
        }
        if claims.exp.is_none_or(|at| now - LEEWAY > at) {
            return bad("service account token has expired");
        }
        let k = &claims.kubernetes;
        let account = &k.serviceaccount;
        if claims.sub != user_name(&k.namespace, &account.name) || account.name.is_empty() || k.namespace.is_empty() {
            return bad("token subject does not match its service account");
        }
        self.alive("serviceaccounts", "service account", &k.namespace, account, now).await?;
        if let Some(secret) = &k.secret {
            self.alive("secrets", "secret", &k.namespace, secret, now).await?;
        }
        let mut extra = BTreeMap::new();
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                extra.insert(format!("{EXTRA}{key}"), vec![value.to_owned()]);
            }
        };
        if let Some(pod) = &k.pod {
            self.alive("pods", "pod", &k.namespace, pod, now).await?;
            add("pod-name", &pod.name);
            add("pod-uid", &pod.uid);
        }
        if let Some(node) = &k.node {
            // A token bound to a pod lives by its pod; only one bound to a node alone dies with it.
            if k.pod.is_none() {
                self.alive("nodes", "node", "", node, now).await?;
            }
            add("node-name", &node.name);
            add("node-uid", &node.uid);
        }
        if !claims.jti.is_empty() {
            add("credential-id", &format!("JTI={}", claims.jti));
        }
        if k.warnafter.is_some_and(|at| now > at) {
            tracing::warn!(subject = claims.sub, "a stale service account token is in use");
        }
        Ok(UserInfo { extra, ..account_user(&k.namespace, &account.name, &account.uid) })
    }

    async fn legacy(&self, claims: &Value, token: &str) -> Result<UserInfo, AuthnError> {
        let claims: LegacyClaims = serde_json::from_value(claims.clone()).map_err(|e| AuthnError(e.to_string()))?;
        let LegacyClaims { namespace, secret, account, uid, sub } = &claims;
        if [namespace, secret, account, uid].iter().any(|v| v.is_empty()) || *sub != user_name(namespace, account) {
            return bad("could not parse private claims");
        }
        if self.accounts.config().lookup {
            let Some(stored) = self.find("secrets", namespace, secret).await else {
                return bad("Token has been invalidated");
            };
            let kept = base64::engine::general_purpose::STANDARD.decode(tree::text(&stored, "/data/token"));
            if tree::has(&stored, "/metadata/deletionTimestamp") || kept.is_ok_and(|kept| kept != token.as_bytes()) {
                return bad("Token has been invalidated");
            }
            let Some(owner) = self.find("serviceaccounts", namespace, account).await else {
                return bad(format!("serviceaccounts {account:?} not found"));
            };
            if tree::has(&owner, "/metadata/deletionTimestamp") {
                return bad(format!("ServiceAccount {namespace}/{account} has been deleted"));
            }
            if tree::text(&owner, "/metadata/uid") != uid {
                return bad(format!(
                    "ServiceAccount UID ({}) does not match claim ({uid})",
                    tree::text(&owner, "/metadata/uid")
                ));
            }
        }
        Ok(account_user(namespace, account, uid))
    }

    async fn alive(
        &self,
        plural: &str,
        what: &str,
        namespace: &str,
        bound: &Bound,
        now: i64,
    ) -> Result<(), AuthnError> {
        let Some(object) = self.find(plural, namespace, &bound.name).await else {
            return bad(format!("{what} {namespace}/{} has been deleted", bound.name));
        };
        let uid = tree::text(&object, "/metadata/uid");
        if uid != bound.uid {
            return bad(format!("the {what} UID ({uid}) does not match the claim's ({})", bound.uid));
        }
        let deleted = tree::text(&object, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
        if deleted.is_ok_and(|at| at.as_second() + DELETION_GRACE < now) {
            return bad(format!("{what} {namespace}/{} has been deleted", bound.name));
        }
        Ok(())
    }

    /// From the cache; asks storage about what is not there.
    async fn find(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        if let Some(object) = self.reader.get("", plural, namespace, name) {
            return Some(object);
        }
        self.api.get("", plural, namespace, name).await.ok().map(Arc::new)
    }
}

fn account_user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    UserInfo {
        name: user_name(namespace, name),
        uid: uid.to_owned(),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
        extra: BTreeMap::new(),
    }
}

fn quoted(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", quoted.join(" "))
}
