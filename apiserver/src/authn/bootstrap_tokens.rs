//! `--enable-bootstrap-token-auth`: tokens kept as secrets in `kube-system`, with which new nodes introduce themselves.
//! Answers for upstream's `plugin/pkg/auth/authenticator/token/bootstrap`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use serde_json::Value;
use shared::authn::{AuthnError, Identity, UserInfo};

use super::{TokenAuthenticator, constant_time_eq};
use crate::api::Reader;
use crate::machinery::tree;
use crate::registry::core::secret::SECRETS;

const GROUP: &str = "system:bootstrappers";
const TYPE: &str = "bootstrap.kubernetes.io/token";

/// Time that a token waits for the secrets of a server that has just started.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The authenticator.
pub struct BootstrapTokens {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl TokenAuthenticator for BootstrapTokens {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<Identity>, AuthnError> {
        let Some((id, secret)) = split(token) else { return Ok(None) };
        // A cache is read when it is first asked for, and until then it knows no token.
        if !self.reader.synced(SECRETS) {
            tokio::time::timeout(READ_LIMIT, self.reader.changed(SECRETS, 0)).await.ok();
        }
        let stored = self.reader.get(SECRETS, "kube-system", &format!("bootstrap-token-{id}"));
        let now = jiff::Timestamp::now();
        Ok(stored.and_then(|stored| identify(&stored, id, secret, now)).map(Identity::from))
    }
}

/// `abcdef.0123456789abcdef`
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

/// Reports whether bootstrap tokens may authenticate as a member of a group.
fn fits(group: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let rest = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')).unwrap_or_default().as_bytes();
    let middle = |(last, before): (&u8, &[u8])| {
        plain(*last) && before.len() <= 255 && before.iter().all(|b| plain(*b) || matches!(b, b':' | b'-'))
    };
    rest.split_last().is_some_and(middle)
}

/// The user of a token; `None` when the secret is not the right one, too old, or of another sort.
fn identify(stored: &Value, id: &str, secret: &str, now: jiff::Timestamp) -> Option<UserInfo> {
    let data = |key: &str| {
        let encoded = tree::text(stored, &format!("/data/{key}"));
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    if tree::has(stored, "/metadata/deletionTimestamp") || tree::text(stored, "/type") != TYPE {
        return None;
    }
    let expiration = data("expiration");
    let expired = !expiration.is_empty() && expiration.parse::<jiff::Timestamp>().is_ok_and(|at| at <= now);
    let good = constant_time_eq(data("token-secret").as_bytes(), secret.as_bytes())
        && data("token-id") == id
        && data("usage-bootstrap-authentication") == "true"
        && !expired
        && (expiration.is_empty() || expiration.parse::<jiff::Timestamp>().is_ok());
    if !good {
        return None;
    }
    let mut groups = BTreeSet::from([GROUP.to_owned()]);
    let more = data("auth-extra-groups");
    if !more.is_empty() {
        // One bad group spoils the token, as upstream has it.
        let more: Option<Vec<String>> = more.split(',').map(|g| fits(g).then(|| g.to_owned())).collect();
        groups.extend(more?);
    }
    let groups = groups.into_iter().collect();
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::future::BoxFuture;
    use serde_json::json;

    use super::*;
    use crate::api::{Source, Stored};
    use crate::machinery::GroupResource;

    fn secret(pairs: &[(&str, &str)]) -> Value {
        let mut data = serde_json::Map::new();
        let base =
            [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-authentication", "true")];
        for (key, value) in base.iter().chain(pairs) {
            data.insert((*key).into(), json!(base64::engine::general_purpose::STANDARD.encode(value)));
        }
        json!({"type": TYPE, "data": data})
    }

    fn groups(stored: &Value) -> Option<Vec<String>> {
        let now = "2026-01-01T00:00:00Z".parse().expect("time");
        identify(stored, "abcdef", "0123456789abcdef", now).map(|u| u.groups)
    }

    #[test]
    fn a_token_must_be_right_and_valid() {
        let own = vec!["system:bootstrappers".to_owned()];
        let both =
            vec!["system:bootstrappers".to_owned(), "system:bootstrappers:kubeadm:default-node-token".to_owned()];
        for (pairs, want) in [
            (&[][..], Some(own.clone())),
            (&[("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token")], Some(both)),
            (&[("auth-extra-groups", "system:masters")], None),
            (&[("auth-extra-groups", "system:bootstrappers:")], None),
            (&[("auth-extra-groups", "system:bootstrappers:A")], None),
            (&[("auth-extra-groups", "system:bootstrappers:a\nb")], None),
            (&[("auth-extra-groups", "system:bootstrappers:a, system:bootstrappers:b")], None),
            (&[("token-secret", "0123456789abcdee")], None),
            (&[("usage-bootstrap-authentication", "false")], None),
            (&[("expiration", "2025-01-01T00:00:00Z")], None),
            (&[("expiration", "2027-01-01T00:00:00Z")], Some(own)),
            (&[("expiration", "soon")], None),
        ] {
            assert_eq!(groups(&secret(pairs)), want, "{pairs:?}");
        }
    }

    /// Secrets that nobody has asked for yet.
    struct Unread {
        secret: Value,
        read: AtomicBool,
    }

    impl Reader for Unread {
        fn get(&self, _: GroupResource<'_>, _: &str, _: &str) -> Option<Arc<Value>> {
            self.read.load(Ordering::SeqCst).then(|| Arc::new(self.secret.clone()))
        }

        fn list(&self, _: GroupResource<'_>, _: Option<&str>) -> Vec<Arc<Value>> {
            Vec::new()
        }

        fn version(&self, _: GroupResource<'_>) -> u64 {
            0
        }

        fn synced(&self, _: GroupResource<'_>) -> bool {
            self.read.load(Ordering::SeqCst)
        }

        fn source(&self, _: GroupResource<'_>) -> Option<Arc<dyn Source>> {
            None
        }

        fn changed<'a>(&'a self, _: GroupResource<'a>, _: u64) -> BoxFuture<'a, ()> {
            Box::pin(async { self.read.store(true, Ordering::SeqCst) })
        }

        fn stored(&self, _: GroupResource<'_>) -> Option<Stored> {
            None
        }
    }

    #[tokio::test]
    async fn the_first_token_waits_for_the_secrets() {
        let reader = Arc::new(Unread { secret: secret(&[]), read: AtomicBool::new(false) });
        let tokens = BootstrapTokens { reader };
        let known = tokens.token("abcdef.0123456789abcdef", &[]).await.expect("an answer");
        assert!(known.is_some());
    }

    #[test]
    fn the_form_of_a_token() {
        assert!(split("abcdef.0123456789abcdef").is_some());
        for bad in ["abcdef", "abcde.0123456789abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcde!"] {
            assert!(split(bad).is_none(), "{bad}");
        }
    }
}
