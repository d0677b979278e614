//! `--authentication-token-webhook-config-file`: a server that knows whom tokens stand for, asked by TokenReview.
//! Its answers are remembered for `--authentication-token-webhook-cache-ttl`, good or bad. Answers for upstream's
//! `plugin/pkg/authenticator/token/webhook` (`WebhookTokenAuthenticator`).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use shared::authn::{AuthnError, Identity, UserInfo};
use shared::client::{Remote, RemoteError};

use super::TokenAuthenticator;
use crate::backoff::Backoff;
use crate::machinery::tree;

/// For one try.
const DEADLINE: Duration = Duration::from_secs(30);
/// Tries, and the pause after the first.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// The authenticator.
pub struct TokenWebhook {
    remote: Remote,
    version: String,
    audiences: Vec<String>,
}

impl TokenWebhook {
    /// `version` is `v1` or `v1beta1`; `audiences` are this server's.
    pub fn new(remote: Remote, version: String, audiences: Vec<String>) -> Self {
        Self { remote, version, audiences }
    }

    async fn post_review(&self, body: Bytes) -> Result<Value, AuthnError> {
        let mut backoff = Backoff::of_webhook(PAUSE);
        for left in (0..TRIES).rev() {
            let (text, again) = match self.remote.post(body.clone(), DEADLINE).await {
                Ok(reply) if reply.is_success() => {
                    return serde_json::from_slice(&reply.body).map_err(|e| AuthnError(e.to_string()));
                }
                Ok(reply) => (reply.failure(), reply.may_pass()),
                Err(error) => (error.to_string(), matches!(error, RemoteError::Connection { reset: true, .. })),
            };
            if !again || left == 0 {
                tracing::error!(error = text, "Failed to make webhook authenticator request");
                return Err(AuthnError(text));
            }
            backoff.wait().await;
        }
        Err(AuthnError("no answer".to_owned()))
    }
}

#[async_trait]
impl TokenAuthenticator for TokenWebhook {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Identity>, AuthnError> {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token, "audiences": audiences},
        });
        let answer = self.post_review(Bytes::from(review.to_string())).await?;
        parse_review(&answer, audiences, &self.audiences)
    }
}

/// Reads an answered TokenReview. A webhook that sets no audiences speaks for this server's `own`.
fn parse_review(answer: &Value, wanted: &[String], own: &[String]) -> Result<Option<Identity>, AuthnError> {
    if !tree::flag(answer, "/status/authenticated") {
        return match tree::text(answer, "/status/error") {
            "" => Ok(None),
            error => Err(AuthnError(error.to_owned())),
        };
    }
    let said = tree::strings(answer, "/status/audiences");
    let meant: &[String] = if said.is_empty() { own } else { &said };
    let common: Vec<String> = wanted.iter().filter(|a| meant.contains(a)).cloned().collect();
    if !wanted.is_empty() && common.is_empty() {
        return Ok(None);
    }
    let user: UserInfo = serde_json::from_value(answer["status"]["user"].clone()).unwrap_or_default();
    if user.name.is_empty() {
        return Err(AuthnError("the webhook named nobody".to_owned()));
    }
    Ok(Some(Identity { user, audiences: common }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let own = ["api".to_owned()];
        let ask = |status: Value| {
            parse_review(&json!({ "status": status }), &own, &own)
                .map(|i| i.map(|i| (i.user.name, i.audiences)))
                .map_err(|e| e.0)
        };
        let jane = json!({"username": "jane", "groups": ["g"]});
        assert_eq!(ask(json!({"authenticated": true, "user": jane})), Ok(Some(("jane".into(), vec!["api".into()]))));
        assert_eq!(ask(json!({"authenticated": true, "user": jane, "audiences": ["other"]})), Ok(None));
        assert_eq!(ask(json!({"authenticated": false})), Ok(None));
        assert_eq!(ask(json!({})), Ok(None));
        assert_eq!(ask(json!({"error": "broken"})), Err("broken".into()));
        assert!(ask(json!({"authenticated": true})).is_err(), "nobody is not somebody");
    }
}
