//! TokenRequest: a token for a service account, perhaps bound to a pod, a secret or a node. Answers for upstream's
//! `pkg/registry/core/serviceaccount/storage/token.go` (`TokenREST.Create`).

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::{Status, field};

use super::claims::Kubernetes;
use super::{Bound, Claims, ServiceAccounts, user_name};
use crate::api::{Api, IssuedToken, Reader, TokenIssuer};
use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::core::node::NODES;
use crate::registry::core::pod::PODS;
use crate::registry::core::secret::SECRETS;

const GROUP: &str = "authentication.k8s.io";
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;
/// The life a kubelet asks for in the volume every pod gets; such tokens live longer, but their use is warned about.
const DEFAULT_VOLUME_SECONDS: i64 = 60 * 60 + 7;
const EXTENDED_SECONDS: i64 = 365 * 24 * 60 * 60;

/// Issues tokens.
pub struct Issuer {
    /// Keys.
    pub accounts: Arc<ServiceAccounts>,
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads, for what the cache has not heard of.
    pub api: Api,
}

#[async_trait]
impl TokenIssuer for Issuer {
    fn complete(&self, account: &Value, request: &mut Value) -> Result<(), Status> {
        let (asked, uid) = (tree::text(request, "/metadata/uid").to_owned(), tree::text(account, "/metadata/uid"));
        if !asked.is_empty() && asked != uid && !self.accounts.config().any_uid {
            let why =
                format!("the UID in the token request ({asked}) does not match the UID of the service account ({uid})");
            return Err(Status::conflict(GROUP, "TokenRequest", tree::name(account), &why));
        }
        if tree::strings(request, "/spec/audiences").is_empty() {
            *tree::field(request, &["spec", "audiences"]) = json!(self.accounts.config().audiences);
        }
        for key in ["name", "namespace"] {
            *tree::field(request, &["metadata", key]) = account["metadata"][key].clone();
        }
        if asked.is_empty() {
            *tree::field(request, &["metadata", "uid"]) = json!(uid);
        }
        *tree::field(request, &["metadata", "creationTimestamp"]) = json!(meta::now());
        *tree::field(request, &["status"]) = json!({"token": "", "expirationTimestamp": null});
        check_expiration(wanted(request))
    }

    async fn issue(&self, account: &Value, request: Value) -> Result<IssuedToken, Status> {
        let now = jiff::Timestamp::now();
        self.answer(account, request, now, uuid::Uuid::new_v4().to_string()).await
    }
}

/// Requested lifetime of a token in seconds.
fn wanted(request: &Value) -> i64 {
    tree::int(request, "/spec/expirationSeconds").unwrap_or(3600)
}

/// Warnings for a request that names the uid of another service account, where that is allowed.
fn of_another(request: &Value, account: &Value) -> Vec<String> {
    let [asked, uid] = [request, account].map(|object| tree::text(object, "/metadata/uid"));
    if asked.is_empty() || asked == uid {
        return Vec::new();
    }
    vec![format!(
        "the UID in the token request ({asked}) does not match the UID of the service account ({uid}) but TokenRequestServiceAccountUIDValidation is not enabled. In the future, this will return a conflict error"
    )]
}

/// Group and version of something that a token is to be bound to; what is no version is none.
fn group_version(text: &str) -> (&str, &str) {
    match text.split('/').collect::<Vec<_>>()[..] {
        [version] => ("", version),
        [group, version] => (group, version),
        _ => ("", ""),
    }
}

impl Issuer {
    async fn answer(
        &self,
        account: &Value,
        mut request: Value,
        now: jiff::Timestamp,
        id: String,
    ) -> Result<IssuedToken, Status> {
        let (namespace, name) = (tree::namespace(account).to_owned(), tree::name(account).to_owned());
        let config = self.accounts.config();
        let audiences = tree::strings(&request, "/spec/audiences");
        let mut kubernetes = Kubernetes {
            namespace: namespace.clone(),
            serviceaccount: Bound { name: name.clone(), uid: tree::text(account, "/metadata/uid").to_owned() },
            ..Kubernetes::default()
        };
        if tree::has(&request, "/spec/boundObjectRef") {
            self.bind(&request, &namespace, &name, &mut kubernetes).await?;
        }
        let (mut seconds, mut warnings) = (wanted(&request), of_another(&request, account));
        if config.max_expiration > 0 && seconds > config.max_expiration {
            let most = config.max_expiration;
            warnings.push(format!("requested expiration of {seconds} seconds shortened to {most} seconds"));
            seconds = most;
        }
        let issued = now.as_second();
        let own = audiences.iter().all(|a| config.audiences.contains(a));
        let extend = config.extend_expiration && own && kubernetes.pod.is_some() && seconds == DEFAULT_VOLUME_SECONDS;
        if extend {
            kubernetes.warnafter = Some(issued + seconds);
        }
        let claims = Claims {
            aud: audiences,
            exp: Some(
                issued
                    + if extend { EXTENDED_SECONDS.min(config.longest_extended.unwrap_or(i64::MAX)) } else { seconds },
            ),
            iat: Some(issued),
            iss: config.issuers.first().cloned().unwrap_or_default(),
            jti: id.clone(),
            kubernetes,
            nbf: Some(issued),
            sub: user_name(&namespace, &name),
        };
        let claims = serde_json::to_value(&claims).map_err(|e| Status::internal(&e.to_string()))?;
        let token = self
            .accounts
            .sign(&claims)
            .await
            .map_err(|e| Status::internal(&format!("failed to generate token: {e}")))?;
        let time = |second: i64| jiff::Timestamp::from_second(second).map(|t| t.to_string()).unwrap_or_default();
        *tree::field(&mut request, &["spec", "expirationSeconds"]) = json!(seconds);
        *tree::field(&mut request, &["status"]) =
            json!({"token": token, "expirationTimestamp": time(issued + seconds)});
        Ok(IssuedToken { object: request, warnings, credential: format!("JTI={id}") })
    }

    async fn bind(
        &self,
        request: &Value,
        namespace: &str,
        account: &str,
        claims: &mut Kubernetes,
    ) -> Result<(), Status> {
        let of = |f: &str| tree::text(request, &format!("/spec/boundObjectRef/{f}")).to_owned();
        let (version, kind, name, uid) = (of("apiVersion"), of("kind"), of("name"), of("uid"));
        let (group, version) = group_version(&version);
        let (resource, scope) = match (group, kind.as_str()) {
            ("", "Pod") => (PODS, namespace),
            ("", "Secret") => (SECRETS, namespace),
            ("", "Node") => (NODES, ""),
            _ => {
                let text = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
                return Err(Status::bad_request(&text));
            }
        };
        let object = self.find(resource, scope, &name).await?;
        if resource == PODS && tree::text(&object, "/spec/serviceAccountName") != account {
            let text = format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
            );
            return Err(Status::bad_request(&text));
        }
        let found = tree::text(&object, "/metadata/uid");
        if !uid.is_empty() && uid != found {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(Status::conflict("", &kind, &name, &why));
        }
        let bound = Bound { name, uid: found.to_owned() };
        match resource {
            SECRETS => claims.secret = Some(bound),
            NODES => claims.node = Some(bound),
            _ => {
                claims.pod = Some(bound);
                let node = tree::text(&object, "/spec/nodeName");
                if !node.is_empty() {
                    let uid = self.find(NODES, "", node).await.ok();
                    let uid = uid.map(|n| tree::text(&n, "/metadata/uid").to_owned()).unwrap_or_default();
                    claims.node = Some(Bound { name: node.to_owned(), uid });
                }
            }
        }
        Ok(())
    }

    /// From the cache; asks storage about what is not there.
    async fn find(&self, resource: GroupResource<'_>, namespace: &str, name: &str) -> Result<Arc<Value>, Status> {
        if let Some(object) = self.reader.get(resource, namespace, name) {
            return Ok(object);
        }
        self.api.get(resource, namespace, name).await.map(Arc::new)
    }
}

fn check_expiration(seconds: i64) -> Result<(), Status> {
    let text = if seconds < SHORTEST {
        "may not specify a duration less than 10 minutes"
    } else if seconds > LONGEST {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let path = field::Path::new("spec").child("expirationSeconds");
    Err(Status::invalid(GROUP, "TokenRequest", "", vec![field::Error::invalid(path, Value::from(seconds), text)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use crate::tokens::keys::tests::RSA_PEM;
    use crate::tokens::{Config, Validator};

    fn issuer(reader: &Arc<Fixed>) -> Issuer {
        let config =
            Config { issuers: vec!["https://k".into()], extend_expiration: true, lookup: true, ..Config::default() };
        Issuer {
            accounts: Arc::new(ServiceAccounts::with_key(RSA_PEM, config)),
            reader: reader.clone(),
            api: reader.api(),
        }
    }

    fn cluster() -> Arc<Fixed> {
        let reader = Arc::new(Fixed::default());
        reader.put("", "serviceaccounts", account());
        reader.put("", "nodes", json!({"metadata": {"name": "n1", "uid": "u-n1"}}));
        reader.put(
            "",
            "pods",
            json!({"metadata": {"name": "p", "namespace": "e", "uid": "u-p"}, "spec": {"serviceAccountName": "sa", "nodeName": "n1"}}),
        );
        reader
    }

    fn account() -> Value {
        json!({"metadata": {"name": "sa", "namespace": "e", "uid": "u-sa"}})
    }

    async fn request(reader: &Arc<Fixed>, mut object: Value) -> Result<Value, Status> {
        let issuer = issuer(reader);
        issuer.complete(&account(), &mut object)?;
        issuer.issue(&account(), object).await.map(|issued| issued.object)
    }

    async fn ask(reader: &Arc<Fixed>, spec: Value) -> Result<Value, Status> {
        request(reader, json!({"spec": spec})).await
    }

    #[tokio::test]
    async fn refusals() {
        let reader = cluster();
        let table = [
            (
                json!({"expirationSeconds": 1}),
                422,
                "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
            ),
            (
                json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "zz"}}),
                404,
                "pods \"zz\" not found",
            ),
            // Versions do not matter.
            (json!({"boundObjectRef": {"kind": "Secret", "name": "zz"}}), 404, "secrets \"zz\" not found"),
            (
                json!({"boundObjectRef": {"apiVersion": "apps/v1", "kind": "Pod", "name": "zz"}}),
                400,
                "cannot bind token to object of type apps/v1, Kind=Pod",
            ),
            (
                json!({"boundObjectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "zz"}}),
                400,
                "cannot bind token to object of type /v1, Kind=ConfigMap",
            ),
            (
                json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "other"}}),
                409,
                "Operation cannot be fulfilled on Pod \"p\": the UID in the bound object reference (other) does not match the UID in record. The object might have been deleted and then recreated",
            ),
        ];
        for (spec, code, message) in table {
            let status = ask(&reader, spec.clone()).await.expect_err("refused");
            assert_eq!((status.code, status.message.as_str()), (code, message), "{spec}");
        }
        let another = request(&reader, json!({"metadata": {"uid": "u"}, "spec": {}})).await.expect_err("another");
        assert_eq!(
            another.message,
            "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"sa\": the UID in the token request (u) does not match the UID of the service account (u-sa)"
        );
    }

    #[tokio::test]
    async fn token_request_status_has_the_capped_expiration() {
        let reader = cluster();
        let answer = ask(&reader, json!({})).await.expect("a token");
        assert_eq!(answer["metadata"]["uid"], "u-sa");
        let mut issuer = issuer(&reader);
        let config = Config { issuers: vec!["https://k".into()], max_expiration: 900, ..Config::default() };
        issuer.accounts = Arc::new(ServiceAccounts::with_key(RSA_PEM, config));
        let issued = issuer.issue(&account(), json!({"spec": {"expirationSeconds": 1000}})).await.expect("a token");
        assert_eq!(issued.warnings, ["requested expiration of 1000 seconds shortened to 900 seconds"]);
        // Where it is let pass that another account is meant.
        let config = Config { issuers: vec!["https://k".into()], any_uid: true, ..Config::default() };
        issuer.accounts = Arc::new(ServiceAccounts::with_key(RSA_PEM, config));
        let mut another = json!({"metadata": {"uid": "u"}, "spec": {}});
        issuer.complete(&account(), &mut another).expect("let pass");
        let issued = issuer.issue(&account(), another).await.expect("a token");
        assert_eq!(issued.object["metadata"]["uid"], "u");
        assert_eq!(
            issued.warnings,
            [
                "the UID in the token request (u) does not match the UID of the service account (u-sa) but TokenRequestServiceAccountUIDValidation is not enabled. In the future, this will return a conflict error"
            ]
        );
    }

    #[tokio::test]
    async fn bound_token_is_valid_while_its_object_exists() {
        let reader = cluster();
        let spec = json!({"expirationSeconds": 3607, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-p"}});
        let answer = ask(&reader, spec).await.expect("a token");
        assert_eq!(answer["spec"]["audiences"], json!(["https://k"]));
        let token = tree::text(&answer, "/status/token").to_owned();
        let validator = Validator::new(issuer(&reader).accounts, reader.clone(), reader.api());
        let now = jiff::Timestamp::now().as_second();
        let audiences = vec!["https://k".to_owned()];
        let identity = validator.check(&token, &audiences, now).await.expect("good").expect("ours");
        assert_eq!(identity.user.name, "system:serviceaccount:e:sa");
        assert_eq!(identity.user.groups, ["system:serviceaccounts", "system:serviceaccounts:e"]);
        let extra: Vec<&str> = identity.user.extra.keys().map(String::as_str).collect();
        assert_eq!(
            extra,
            [
                "authentication.kubernetes.io/credential-id",
                "authentication.kubernetes.io/node-name",
                "authentication.kubernetes.io/node-uid",
                "authentication.kubernetes.io/pod-name",
                "authentication.kubernetes.io/pod-uid"
            ]
        );
        // An hour passes (the token is only worth a warning then), a year passes.
        assert!(validator.check(&token, &audiences, now + 4000).await.is_ok());
        let late = validator.check(&token, &audiences, now + 366 * 86_400).await.expect_err("late");
        assert_eq!(late.0, "service account token has expired");
        let other = validator.check(&token, &["vault".to_owned()], now).await.expect_err("not for us");
        assert_eq!(other.0, "token audiences [\"https://k\"] is invalid for the target audiences [\"vault\"]");
        let mut forged = token.clone();
        forged.replace_range(token.len() - 8.., "AAAAAAAA");
        assert!(validator.check(&forged, &audiences, now).await.is_err());
        reader.remove("", "pods", "e", "p");
        assert!(validator.check(&token, &audiences, now).await.is_err(), "the pod is gone");
    }
}
