//! Service-account tokens of pods, kept until it is time to renew them.

use crate::objects::{ObjectError, ObjectSource};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::BTreeMap;

const DEFAULT_LIFETIME_SECONDS: i64 = 3600;
/// Even a long-lived token is renewed once a day.
const LONGEST_USE_SECONDS: i64 = 24 * 3600;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TokenKey {
    pod_uid: String,
    audience: String,
    lifetime: i64,
}

/// A token that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("failed to fetch token: {0}")]
pub struct TokenError(#[from] ObjectError);

/// A token, and when it ends.
#[derive(Clone, Debug)]
pub(crate) struct VolumeToken {
    pub(crate) text: String,
    pub(crate) expires: Timestamp,
}

struct CachedToken {
    token: VolumeToken,
    renew_at: Timestamp,
}

/// The tokens of all pods of the node.
#[derive(Default)]
pub(crate) struct Tokens {
    entries: Mutex<BTreeMap<TokenKey, CachedToken>>,
}

impl Tokens {
    /// The pod's token for an audience, empty for the API server's own, and a lifetime. A token that cannot be renewed stays in use: it is
    /// valid for at least another fifth of its lifetime.
    pub(crate) async fn get(
        &self,
        objects: &dyn ObjectSource,
        pod: &Pod,
        (audience, seconds): (&str, Option<i64>),
    ) -> Result<VolumeToken, TokenError> {
        let key = TokenKey {
            pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
            audience: audience.to_owned(),
            lifetime: seconds.unwrap_or(DEFAULT_LIFETIME_SECONDS),
        };
        let now = Timestamp::now();
        let known = self.entries.lock().get(&key).map(|entry| (entry.token.clone(), entry.renew_at));
        if let Some((token, renew_at)) = &known
            && now < *renew_at
        {
            return Ok(token.clone());
        }
        match (objects.token(pod, request(pod, &key)).await, known) {
            (Ok(status), _) => {
                let expires = status.expiration_timestamp.0;
                let token = VolumeToken { text: status.token, expires };
                let entry = CachedToken { token: token.clone(), renew_at: renew_at(now, expires) };
                self.entries.lock().insert(key, entry);
                Ok(token)
            }
            (Err(error), Some((token, _))) => {
                tracing::warn!(%error, "Couldn't update token");
                Ok(token)
            }
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Forgets a pod's tokens.
    pub(crate) fn forget(&self, pod_uid: &str) {
        self.entries.lock().retain(|key, _| key.pod_uid != pod_uid);
    }
}

fn request(pod: &Pod, key: &TokenKey) -> TokenRequestSpec {
    TokenRequestSpec {
        audiences: if key.audience.is_empty() { Vec::new() } else { vec![key.audience.clone()] },
        expiration_seconds: Some(key.lifetime),
        bound_object_ref: Some(BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        }),
    }
}

/// After four fifths of the lifetime, or a day.
fn renew_at(now: Timestamp, expires: Timestamp) -> Timestamp {
    let lifetime = expires.duration_since(now).as_secs().max(0);
    let seconds = (lifetime * 4 / 5).min(LONGEST_USE_SECONDS);
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_comes_at_four_fifths_or_after_a_day() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |seconds: i64| Timestamp::from_second(seconds).expect("time");
        assert_eq!(renew_at(now, after(1000)), after(800));
        assert_eq!(renew_at(now, after(10 * LONGEST_USE_SECONDS)), after(LONGEST_USE_SECONDS));
        assert_eq!(renew_at(after(50), after(10)), after(50), "an expired token is renewed at once");
    }
}
