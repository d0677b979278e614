//! Contents of a token secret.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use serde_json::json;

use super::jwt::TokenSigner;
use crate::engine::action::Action;
use crate::engine::object;

type Data = std::collections::BTreeMap<String, ByteString>;

/// The type of such secrets.
pub const TYPE: &str = "kubernetes.io/service-account-token";
/// The annotation with the account's name.
pub const ACCOUNT: &str = "kubernetes.io/service-account.name";
/// The annotation with the account's uid.
pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// The claims of a token that lives as long as its secret.
#[must_use]
pub fn claims(account: &ServiceAccount, secret: &Secret) -> serde_json::Value {
    let (namespace, name) = (object::namespace(&account.metadata), object::name(&account.metadata));
    json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": object::name(&secret.metadata),
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": object::uid(&account.metadata),
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    })
}

/// Complete the secret, or delete it when its account is gone (or another of that name).
#[must_use]
pub fn plan(
    secret: &Secret,
    account: Option<&ServiceAccount>,
    root_ca: Option<&[u8]>,
    signer: &TokenSigner,
) -> Option<Action> {
    if object::deleting(&secret.metadata) || secret.type_.as_deref() != Some(TYPE) {
        return None;
    }
    let uid = object::annotation(&secret.metadata, ACCOUNT_UID).filter(|u| !u.is_empty());
    let Some(account) = account.filter(|a| uid.is_none_or(|u| u == object::uid(&a.metadata))) else {
        return Some(Action::delete::<Secret>(&secret.metadata));
    };
    let mut copy = secret.clone();
    let data = copy.data.get_or_insert_default();
    let empty = |data: &Data, key: &str| data.get(key).is_none_or(|value| value.0.is_empty());
    if let Some(ca) = root_ca.filter(|ca| !ca.is_empty()) {
        data.insert("ca.crt".into(), ByteString(ca.to_vec()));
    }
    if empty(data, "namespace") {
        data.insert("namespace".into(), ByteString(object::namespace(&secret.metadata).as_bytes().to_vec()));
    }
    if empty(data, "token") {
        let token = signer.sign(&claims(account, secret)).ok()?;
        data.insert("token".into(), ByteString(token.into_bytes()));
    }
    if secret.data.as_ref() == Some(data) {
        return None;
    }
    let notes = copy.metadata.annotations.get_or_insert_default();
    notes.insert(ACCOUNT.into(), object::name(&account.metadata).to_owned());
    notes.insert(ACCOUNT_UID.into(), object::uid(&account.metadata).to_owned());
    Some(Action::update(&copy))
}

/// The account without its reference to a token secret that is gone; none if there is nothing to change. An empty `uid`
/// is any account's.
#[must_use]
pub fn without(account: &ServiceAccount, uid: &str, secret: &str) -> Option<ServiceAccount> {
    let named = account.secrets.iter().flatten().any(|r| r.name.as_deref() == Some(secret));
    if !named || !(uid.is_empty() || uid == object::uid(&account.metadata)) {
        return None;
    }
    let mut copy = account.clone();
    copy.secrets.get_or_insert_default().retain(|r| r.name.as_deref() != Some(secret));
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_completed_and_removed() {
        let signer =
            TokenSigner::new(rcgen::KeyPair::generate().expect("key").serialize_pem().as_bytes()).expect("signer");
        let secret: Secret = serde_json::from_value(
            json!({"metadata": {"name": "s", "namespace": "ns", "annotations": {ACCOUNT: "a"}}, "type": TYPE}),
        )
        .expect("secret");
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u"}})).expect("account");
        let Some(Action::Update { body, .. }) = plan(&secret, Some(&account), Some(b"PEM"), &signer) else {
            panic!("no update")
        };
        let full: Secret = serde_json::from_value(body).expect("secret");
        assert_eq!(full.data.as_ref().expect("data").keys().collect::<Vec<_>>(), ["ca.crt", "namespace", "token"]);
        assert_eq!(plan(&full, Some(&account), Some(b"PEM"), &signer), None);
        assert!(matches!(plan(&full, None, None, &signer), Some(Action::Delete { .. })));
        let anew: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "ns", "uid": "other"}}))
                .expect("account");
        assert!(matches!(plan(&full, Some(&anew), None, &signer), Some(Action::Delete { .. })));
    }

    #[test]
    fn what_is_there_is_left_alone() {
        let signer =
            TokenSigner::new(rcgen::KeyPair::generate().expect("key").serialize_pem().as_bytes()).expect("signer");
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u"}})).expect("account");
        let enc = |s: &str| json!(ByteString(s.as_bytes().to_vec()));
        let full = json!({"ca.crt": enc("PEM"), "namespace": enc("another"), "token": enc("t")});
        for (key, value, changed) in [
            ("extra", enc("x"), false),
            ("ca.crt", enc("OLD"), true),
            ("namespace", enc(""), true),
            ("token", enc(""), true),
        ] {
            let mut data = full.clone();
            data[key] = value;
            let secret: Secret = serde_json::from_value(
                json!({"metadata": {"name": "s", "namespace": "ns", "annotations": {ACCOUNT: "a"}}, "type": TYPE, "data": data}),
            )
            .expect("secret");
            let got = plan(&secret, Some(&account), Some(b"PEM"), &signer);
            assert_eq!(got.is_some(), changed, "{key}");
            if let Some(Action::Update { body, .. }) = got {
                assert_eq!(body["metadata"]["annotations"][ACCOUNT_UID], "u");
            }
        }
    }

    #[test]
    fn references_to_secrets_that_are_gone() {
        let account: ServiceAccount = serde_json::from_value(
            json!({"metadata": {"name": "a", "uid": "u"}, "secrets": [{"name": "s"}, {"name": "other"}]}),
        )
        .expect("account");
        for (uid, secret, want) in
            [("u", "s", Some(vec!["other"])), ("", "other", Some(vec!["s"])), ("v", "s", None), ("u", "t", None)]
        {
            let got = without(&account, uid, secret);
            let left = got.as_ref().map(|a| a.secrets.iter().flatten().filter_map(|r| r.name.as_deref()).collect());
            assert_eq!(left, want, "{uid} {secret}");
        }
    }
}
