//! Reading bootstrap token secrets, and the signatures made with them. Answers for upstream's
//! `ComputeDetachedSignature`, `validateSecretForSigning`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::engine::action::Action;
use crate::engine::object;

/// The type of such secrets.
pub const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
const ID_LENGTH: usize = 6;
const SIGNATURE: &str = "jws-kubeconfig-";
const BLOCK: usize = 64;

fn field<'a>(secret: &'a Secret, name: &str) -> Option<&'a str> {
    std::str::from_utf8(&secret.data.as_ref()?.get(name)?.0).ok().filter(|v| !v.is_empty())
}

/// Returns the time that the token has left; None when it does not expire. One whose expiration cannot be read is
/// expired.
#[must_use]
pub fn left(secret: &Secret, now: Timestamp) -> Option<Duration> {
    let text = field(secret, "expiration")?;
    let at: Timestamp = text.parse().unwrap_or(now);
    Some(Duration::from_secs(u64::try_from(at.as_second() - now.as_second()).unwrap_or(0)))
}

/// Id and secret of a token that may sign.
fn signing(secret: &Secret, now: Timestamp) -> Option<(&str, &str)> {
    let (id, key) = (field(secret, "token-id")?, field(secret, "token-secret")?);
    let named = object::name(&secret.metadata).strip_prefix(PREFIX) == Some(id) && is_id(id);
    let alive = left(secret, now).is_none_or(|d| !d.is_zero());
    (named && alive && field(secret, "usage-bootstrap-signing") == Some("true")).then_some((id, key))
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LENGTH && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// HMAC with SHA-256.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0u8; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|b| b ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|b| b ^ 0x5c)).chain_update(inner).finalize().into()
}

/// A signature detached from what it signs: HS256 with the token's secret, without its id (`ComputeDetachedSignature`).
#[must_use]
pub fn detached(content: &str, id: &str, key: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let signature = hmac(key.as_bytes(), text.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Bring the signatures in the cluster information up to date.
#[must_use]
pub fn sign(map: &ConfigMap, secrets: &[Arc<Secret>], now: Timestamp) -> Option<Action> {
    let mut data: BTreeMap<String, String> = map.data.clone().unwrap_or_default();
    let content = data.get("kubeconfig")?.clone();
    data.retain(|k, _| !k.starts_with(SIGNATURE));
    for (id, key) in secrets.iter().filter_map(|s| signing(s, now)) {
        data.insert(format!("{SIGNATURE}{id}"), detached(&content, id, key));
    }
    if map.data.as_ref() == Some(&data) {
        return None;
    }
    Some(Action::update(&ConfigMap { data: Some(data), ..map.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(id: &str, expiration: &str) -> Arc<Secret> {
        let enc = |s: &str| base64::engine::general_purpose::STANDARD.encode(s);
        Arc::new(serde_json::from_value(json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": TYPE, "data": {
            "token-id": enc(id), "token-secret": enc("0123456789abcdef"), "usage-bootstrap-signing": enc("true"), "expiration": enc(expiration)}}))
        .expect("secret"))
    }

    #[test]
    fn known_hmac() {
        let hex: String =
            hmac(b"key", b"The quick brown fox jumps over the lazy dog").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8");
    }

    /// Signatures of `k8s.io/cluster-bootstrap/token/jws`.
    #[test]
    fn signatures_are_those_that_kubeadm_expects() {
        let want = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..1aSmWQ8qI2kvFNOp1y4ORVTgvutw0Y5Y93MxMR3Qf2o";
        assert_eq!(detached("kubeconfig", "abcdef", "0123456789abcdef"), want);
    }

    #[test]
    fn which_tokens_sign() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("time");
        let enc = |s: &str| serde_json::json!(base64::engine::general_purpose::STANDARD.encode(s));
        let with = |name: &str, key: &str, value: &str| -> Secret {
            let mut v = serde_json::to_value(&*secret("abcdef", "")).expect("json");
            v["metadata"]["name"] = json!(name);
            v["data"][key] = enc(value);
            serde_json::from_value(v).expect("secret")
        };
        let named = "bootstrap-token-abcdef";
        for (why, secret, want) in [
            ("good", with(named, "expiration", ""), true),
            ("another name", with("bootstrap-token-ghijkl", "expiration", ""), false),
            ("too short an id", with("bootstrap-token-abc", "token-id", "abc"), false),
            ("capitals", with("bootstrap-token-ABCDEF", "token-id", "ABCDEF"), false),
            ("no secret", with(named, "token-secret", ""), false),
            ("not for this", with(named, "usage-bootstrap-signing", "yes"), false),
            ("no time", with(named, "expiration", "soon"), false),
            ("over", with(named, "expiration", "2025-12-31T23:59:59Z"), false),
        ] {
            assert_eq!(signing(&secret, now).is_some(), want, "{why}");
        }
    }

    #[test]
    fn signatures_come_and_go() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("time");
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": "k", "jws-kubeconfig-old": "x"}}))
            .expect("map");
        let (good, dead) = (secret("abcdef", "2026-01-02T00:00:00Z"), secret("zzzzzz", "2025-01-02T00:00:00Z"));
        let Some(Action::Update { body, .. }) = sign(&map, &[good.clone(), dead.clone()], now) else {
            panic!("no update")
        };
        let data = body["data"].as_object().expect("data");
        assert_eq!(data.keys().collect::<Vec<_>>(), ["jws-kubeconfig-abcdef", "kubeconfig"]);
        let signed: ConfigMap = serde_json::from_value(body).expect("map");
        assert_eq!(sign(&signed, std::slice::from_ref(&good), now), None);
        assert_eq!(left(&good, now), Some(Duration::from_hours(24)));
        assert_eq!(left(&dead, now), Some(Duration::ZERO));
    }
}
