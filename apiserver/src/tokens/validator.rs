//! Validation of service-account tokens: signature, issuer, times, audiences, and whether the account and the bound
//! object still exist with the same uid. Answers for upstream's `jwtTokenAuthenticator.AuthenticateToken`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::authn::{AuthnError, Identity, UserInfo};
use shared::metrics::Counter;

use super::{Bound, Claims, LegacyClaims, ServiceAccounts, user_name};
use crate::api::{Api, Reader};
use crate::authn::{TokenAuthenticator, constant_time_eq, jwt};
use crate::authz::rbac::quoted_list;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::core::node::NODES;
use crate::registry::core::pod::PODS;
use crate::registry::core::secret::SECRETS;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;

const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
const EXTRA: &str = "authentication.kubernetes.io/";
/// Seconds clocks may differ.
const LEEWAY: i64 = 60;
/// Seconds an object may be on its way out before tokens bound to it are refused.
const DELETION_GRACE: i64 = 60;
/// Word for a service account in messages.
const ACCOUNT: &str = "service account";
/// Error text of tokens whose object is gone.
const INVALIDATED: &str = "service account token has been invalidated";
/// Tokens whose signature is known to be good.
const KNOWN_LIMIT: usize = 4096;

/// Believes tokens.
pub struct Validator {
    accounts: Arc<ServiceAccounts>,
    reader: Arc<dyn Reader>,
    api: Api,
    /// By the token's hash: signatures are costly, everything else is checked every time.
    known: Mutex<KnownToken>,
}

/// Good for one generation of the keys.
#[derive(Default)]
struct KnownToken {
    generation: u64,
    claims: HashMap<[u8; 32], Arc<Value>>,
}

impl KnownToken {
    fn of(&mut self, generation: u64) -> &mut HashMap<[u8; 32], Arc<Value>> {
        if self.generation != generation {
            self.claims.clear();
            self.generation = generation;
        }
        &mut self.claims
    }
}

/// Says when a token kept in a secret was used last.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Set by the cleaner of tokens nobody uses.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Counters of token uses, with their help.
const USES: [(&str, &str); 6] = [
    ("serviceaccount_stale_tokens_total", "[ALPHA] Cumulative stale projected service account tokens used"),
    ("serviceaccount_valid_tokens_total", "[ALPHA] Cumulative valid projected service account tokens used"),
    (
        "serviceaccount_invalid_legacy_auto_token_uses_total",
        "[ALPHA] Cumulative invalid auto-generated legacy tokens used",
    ),
    ("serviceaccount_legacy_auto_token_uses_total", "[ALPHA] Cumulative auto-generated legacy tokens used"),
    ("serviceaccount_legacy_manual_token_uses_total", "[ALPHA] Cumulative manually created legacy tokens used"),
    ("serviceaccount_legacy_tokens_total", "[ALPHA] Cumulative legacy service account tokens used"),
];

/// The counter of a use.
fn uses(name: &str) -> Counter {
    let help = USES.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help);
    shared::metrics::counter(name, help, &[]).with_label_values::<&str>(&[])
}

fn count(name: &str) {
    uses(name).inc();
}

fn bad<T>(text: impl Into<String>) -> Result<T, AuthnError> {
    Err(AuthnError(text.into()))
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
        for (name, _) in USES {
            // Shown from the beginning.
            uses(name);
        }
        Self { accounts, reader, api, known: Mutex::default() }
    }

    /// Authenticates a token at a time (seconds). `None` for tokens of other issuers.
    pub async fn check(&self, token: &str, audiences: &[String], now: i64) -> Result<Option<Identity>, AuthnError> {
        let Some((message, signature)) = token.rsplit_once('.') else { return Ok(None) };
        let Some((header, payload)) = message.split_once('.').filter(|(_, p)| !p.contains('.')) else {
            return Ok(None);
        };
        let Some(claims) = jwt::part(payload) else { return Ok(None) };
        let issuer = tree::text(&claims, "/iss");
        if issuer != LEGACY_ISSUER && !self.accounts.config().issuers.iter().any(|i| i == issuer) {
            return Ok(None);
        }
        let legacy = issuer == LEGACY_ISSUER;
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let seen = self.known.lock().of(self.accounts.generation()).get(&hash).cloned();
        let claims = match seen {
            Some(claims) => claims,
            None => {
                let key = jwt::part(header).map(|h| tree::text(&h, "/kid").to_owned()).unwrap_or_default();
                let mut verified = self.accounts.verify(message, signature, &key);
                if !verified && self.accounts.is_external() {
                    // It may have been signed by a key that is newer than what we know.
                    if let Err(error) = self.accounts.refresh(false).await {
                        tracing::warn!(%error, "Failed to fetch public keys from the external signer");
                    }
                    verified = self.accounts.verify(message, signature, &key);
                }
                if !verified {
                    return bad("failed to verify signature: go-jose/go-jose: error in cryptographic primitive");
                }
                let claims = Arc::new(claims);
                let mut known = self.known.lock();
                let known = known.of(self.accounts.generation());
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
                quoted_list(meant),
                quoted_list(wanted)
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
        self.alive(SERVICE_ACCOUNTS, ACCOUNT, &k.namespace, account, now).await?;
        if let Some(secret) = &k.secret {
            self.alive(SECRETS, "secret", &k.namespace, secret, now).await?;
        }
        let mut extra = BTreeMap::new();
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                extra.insert(format!("{EXTRA}{key}"), vec![value.to_owned()]);
            }
        };
        if let Some(pod) = &k.pod {
            self.alive(PODS, "pod", &k.namespace, pod, now).await?;
            add("pod-name", &pod.name);
            add("pod-uid", &pod.uid);
        }
        if let Some(node) = &k.node {
            // A token bound to a pod lives by its pod; only one bound to a node alone dies with it.
            if k.pod.is_none() {
                self.alive(NODES, "node", "", node, now).await?;
            }
            add("node-name", &node.name);
            add("node-uid", &node.uid);
        }
        if !claims.jti.is_empty() {
            add("credential-id", &format!("JTI={}", claims.jti));
        }
        if k.warnafter.is_some_and(|at| now > at) {
            tracing::warn!(subject = claims.sub, "Stale service account token is in use");
            count("serviceaccount_stale_tokens_total");
        } else {
            count("serviceaccount_valid_tokens_total");
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
            let Some(stored) = self.find(SECRETS, namespace, secret).await else {
                return bad("Token has been invalidated");
            };
            let kept = base64::engine::general_purpose::STANDARD.decode(tree::text(&stored, "/data/token"));
            if tree::has(&stored, "/metadata/deletionTimestamp")
                || !kept.is_ok_and(|kept| constant_time_eq(&kept, token.as_bytes()))
            {
                return bad("Token has been invalidated");
            }
            let Some(owner) = self.find(SERVICE_ACCOUNTS, namespace, account).await else {
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
            self.track(&stored).await;
            if tree::label(&stored, INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
                count("serviceaccount_invalid_legacy_auto_token_uses_total");
                return bad(format!(
                    "the token in secret {namespace}/{secret} for service account {namespace}/{account} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
                ));
            }
            let generated = tree::list(&owner, "/secrets").iter().any(|s| tree::name_field(s) == secret);
            if generated {
                count("serviceaccount_legacy_auto_token_uses_total");
            } else {
                count("serviceaccount_legacy_manual_token_uses_total");
            }
        }
        count("serviceaccount_legacy_tokens_total");
        Ok(account_user(namespace, account, uid))
    }

    /// Notes on the secret that its token is in use: once a day, so that those nobody needs can be found.
    async fn track(&self, secret: &Value) {
        let today = jiff::Timestamp::now().to_string()[..10].to_owned();
        if tree::label(secret, LAST_USED) == Some(&today) {
            return;
        }
        let (namespace, name) = (tree::namespace(secret), tree::name(secret));
        let noted = async {
            let mut fresh = self.api.get(SECRETS, namespace, name).await?;
            if let Some(labels) = tree::map_mut(&mut fresh, &["metadata", "labels"]) {
                labels.insert(LAST_USED.to_owned(), today.into());
            }
            self.api.update(&crate::machinery::identity::server_user(), SECRETS, "", fresh).await
        };
        if let Err(error) = noted.await {
            tracing::warn!(namespace, name, %error, "Failed to label the secret of a legacy token as used");
        }
    }

    async fn alive(
        &self,
        resource: GroupResource<'_>,
        what: &str,
        namespace: &str,
        bound: &Bound,
        now: i64,
    ) -> Result<(), AuthnError> {
        let object = self.find(resource, namespace, &bound.name).await;
        match complaint(what, namespace, bound, object.as_deref(), now) {
            Some(why) => bad(why),
            None => Ok(()),
        }
    }

    /// From the cache; asks storage about what is not there.
    async fn find(&self, resource: GroupResource<'_>, namespace: &str, name: &str) -> Option<Arc<Value>> {
        if let Some(object) = self.reader.get(resource, namespace, name) {
            return Some(object);
        }
        self.api.get(resource, namespace, name).await.ok().map(Arc::new)
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

/// Explains why a bound token is no longer valid, given the bound object as it is now.
fn complaint(what: &str, namespace: &str, bound: &Bound, object: Option<&Value>, now: i64) -> Option<String> {
    let account = what == ACCOUNT;
    let Some(object) = object else {
        return Some(if account {
            format!("serviceaccounts {:?} not found", bound.name)
        } else {
            INVALIDATED.to_owned()
        });
    };
    let uid = tree::text(object, "/metadata/uid");
    if uid != bound.uid {
        let claim = if account { "claim".to_owned() } else { format!("service account {what} ref claim") };
        return Some(format!("{what} UID ({uid}) does not match {claim} ({})", bound.uid));
    }
    let deleted = tree::text(object, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
    deleted.is_ok_and(|at| at.as_second() + DELETION_GRACE < now).then(|| match account {
        true => format!("{what} {namespace}/{} has been deleted", bound.name),
        false => INVALIDATED.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::testing::Fixed;
    use crate::tokens::Config;
    use crate::tokens::keys::tests::RSA_PEM;

    #[test]
    fn token_validity_follows_bound_objects() {
        let object = |uid: &str, deleted: i64| {
            let at = jiff::Timestamp::from_second(deleted).map(|at| at.to_string()).unwrap_or_default();
            let mut object = json!({"metadata": {"name": "n", "uid": uid}});
            if deleted > 0 {
                object["metadata"]["deletionTimestamp"] = at.into();
            }
            Some(object)
        };
        let bound = Bound { name: "n".into(), uid: "u".into() };
        for (what, object, want) in [
            ("pod", object("u", 0), None),
            ("pod", object("u", 950), None),
            ("pod", object("u", 930), Some(INVALIDATED)),
            ("pod", None, Some(INVALIDATED)),
            ("secret", object("v", 930), Some("secret UID (v) does not match service account secret ref claim (u)")),
            (ACCOUNT, object("u", 930), Some("service account e/n has been deleted")),
            (ACCOUNT, object("v", 0), Some("service account UID (v) does not match claim (u)")),
            (ACCOUNT, None, Some("serviceaccounts \"n\" not found")),
        ] {
            assert_eq!(complaint(what, "e", &bound, object.as_ref(), 1000).as_deref(), want, "{what} {object:?}");
        }
    }

    #[tokio::test]
    async fn legacy_tokens_live_by_their_secret_and_are_tracked() {
        let config = Config { issuers: vec!["https://k".into()], lookup: true, ..Config::default() };
        let accounts = Arc::new(ServiceAccounts::with_key(RSA_PEM, config));
        let claims = json!({
            "iss": LEGACY_ISSUER, "sub": "system:serviceaccount:e:sa",
            "kubernetes.io/serviceaccount/namespace": "e",
            "kubernetes.io/serviceaccount/secret.name": "s",
            "kubernetes.io/serviceaccount/service-account.name": "sa",
            "kubernetes.io/serviceaccount/service-account.uid": "u",
        });
        let token = accounts.sign(&claims).await.expect("signed");
        let cluster = Arc::new(Fixed::default());
        cluster.put("", "serviceaccounts", json!({"metadata": {"name": "sa", "namespace": "e", "uid": "u"}}));
        let kept = base64::engine::general_purpose::STANDARD.encode(&token);
        let secret = |labels: Value| json!({"metadata": {"name": "s", "namespace": "e", "labels": labels}, "data": {"token": kept}});
        let validator = Validator::new(accounts, cluster.clone(), cluster.api());
        let ask = || async { validator.check(&token, &[], 0).await.map(|i| i.map(|i| i.user.name)).map_err(|e| e.0) };
        assert_eq!(ask().await, Err("Token has been invalidated".into()), "no secret, no token");
        cluster.put("", "secrets", secret(json!({})));
        assert_eq!(ask().await, Ok(Some("system:serviceaccount:e:sa".into())));
        use crate::api::Reader as _;
        let noted = cluster.get(GroupResource::new("", "secrets"), "e", "s").expect("there");
        let today = &jiff::Timestamp::now().to_string()[..10];
        assert_eq!(tree::label(&noted, LAST_USED), Some(today));
        cluster.put("", "secrets", secret(json!({INVALID_SINCE: "2026-01-01"})));
        let refused = ask().await.expect_err("marked");
        assert!(
            refused.starts_with("the token in secret e/s for service account e/sa has been marked invalid."),
            "{refused}"
        );
        cluster.put("", "secrets", json!({"metadata": {"name": "s", "namespace": "e"}, "data": {"token": "b3RoZXI="}}));
        assert_eq!(ask().await, Err("Token has been invalidated".into()), "another token is kept there now");
    }
}
