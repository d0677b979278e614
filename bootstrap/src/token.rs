//! Bootstrap tokens.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use rand::Rng as _;
use serde_json::{Value, json};

/// The group that the tokens of `kubeadm token create` are in, and that its roles are bound to.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const CHARACTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// A token that nobody has yet.
#[must_use]
pub fn generate() -> String {
    let mut random = rand::rng();
    let mut part = |length: usize| -> String {
        (0..length).map(|_| char::from(CHARACTERS[random.random_range(0..CHARACTERS.len())])).collect()
    };
    format!("{}.{}", part(ID_LENGTH), part(SECRET_LENGTH))
}

/// The name of the Secret that a token is.
///
/// # Errors
/// When it is no token.
pub fn secret_name(token: &str) -> Result<String> {
    let (id, _) = token.split_once('.').context("a bootstrap token has two parts")?;
    Ok(format!("bootstrap-token-{id}"))
}

/// The Secret of a token, valid for `ttl` from now; for ever when that is zero.
///
/// # Errors
/// When it is no token.
pub fn secret(token: &str, now: Timestamp, ttl: Duration) -> Result<Value> {
    let (id, secret) = token.split_once('.').context("a bootstrap token has two parts")?;
    let mut data = json!({
        "token-id": id,
        "token-secret": secret,
        "description": "Made by the chart control-plane, for nodes that join.",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": GROUP,
    });
    if !ttl.is_zero() {
        let end = now.checked_add(ttl)?;
        data["expiration"] = Timestamp::from_second(end.as_second())?.to_string().into();
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": secret_name(token)?, "namespace": "kube-system"},
        "stringData": data,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_that_kubeadm_asks_for() {
        let token = generate();
        let (id, secret) = token.split_once('.').expect("two parts");
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert!(token.bytes().all(|byte| byte == b'.' || CHARACTERS.contains(&byte)), "{token}");
        assert_ne!(token, generate());
    }

    #[test]
    fn tokens_end_when_they_are_told_to() {
        let now: Timestamp = "2026-01-01T00:00:00.5Z".parse().expect("a time");
        let of = |hours: u64| secret("abcdef.0123456789abcdef", now, Duration::from_hours(hours)).expect("a Secret");
        assert_eq!(of(24)["stringData"]["expiration"], "2026-01-02T00:00:00Z");
        assert_eq!(of(24)["metadata"]["name"], "bootstrap-token-abcdef");
        assert!(of(0)["stringData"].get("expiration").is_none());
    }
}
