//! Distributed claims: a claim that is not in the token but in another one, which is fetched from where the token says
//! (OpenID Connect Core, section 5.6.2). The other token may be of another issuer, whose keys are kept. Answers for
//! upstream's `plugin/pkg/authenticator/token/oidc` (`claimResolver`).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::error::{DistributedError, IssuerError};
use super::keys::Keys;
use super::source::IssuerClient;
use super::{IssuerProvider, Token};
use crate::machinery::tree;

/// Most issuers of other tokens.
const ISSUERS: usize = 16;

/// Source of a distributed claim.
#[derive(Debug, PartialEq, Eq)]
struct Endpoint {
    url: String,
    /// Bearer token for the source.
    token: Option<String>,
}

/// Finds the source of a claim that is not in the token; `None` where there is nothing to fetch.
fn endpoint(claims: &Value, claim: &str) -> Result<Option<Endpoint>, DistributedError> {
    if claims.get(claim).is_some() {
        return Ok(None);
    }
    let Some(names) = claims.get("_claim_names") else { return Ok(None) };
    let texts = |map: &Value| map.as_object().is_some_and(|map| map.values().all(Value::is_string));
    if !texts(names) {
        return Err(DistributedError::Names);
    }
    let sources = claims.get("_claim_sources").ok_or(DistributedError::NoSources)?;
    if !sources.as_object().is_some_and(|all| all.values().all(texts)) {
        return Err(DistributedError::Sources);
    }
    let Some(name) = names.get(claim).and_then(Value::as_str) else { return Ok(None) };
    let source = sources.get(name).ok_or_else(|| DistributedError::NoSource(name.to_owned()))?;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let token = some(tree::text(source, "/access_token"));
    // Without an endpoint the claims are said to be in the source itself, which upstream does not read.
    Ok(some(tree::text(source, "/endpoint")).map(|url| Endpoint { url, token }))
}

/// Resolver of distributed claims.
pub(super) struct Distributed {
    source: IssuerClient,
    issuers: Mutex<HashMap<String, Arc<Keys>>>,
}

impl Distributed {
    pub(super) fn new(source: IssuerClient) -> Self {
        Self { source, issuers: Mutex::default() }
    }

    async fn fetch(&self, url: &str, token: Option<&str>) -> Result<String, IssuerError> {
        let reply = self.source.get(&self.source.remote(url)?, token).await?;
        if !reply.is_success() {
            let code = http::StatusCode::from_u16(reply.code).map(|code| code.to_string()).unwrap_or_default();
            return Err(IssuerError::DistributedClaim(code));
        }
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// The keys of an issuer, once it has been reached.
    async fn keys(&self, issuer: &str) -> Result<Arc<Keys>, DistributedError> {
        let keys = {
            let mut issuers = self.issuers.lock();
            if issuers.len() >= ISSUERS && !issuers.contains_key(issuer) {
                return Err(DistributedError::TooManyIssuers(issuer.to_owned()));
            }
            let new = || Arc::new(Keys::new(issuer, None, self.source.clone(), None));
            issuers.entry(issuer.to_owned()).or_insert_with(new).clone()
        };
        keys.try_discover().await;
        if keys.is_known() {
            return Ok(keys);
        }
        Err(DistributedError::Uninitialized(issuer.to_owned()))
    }
}

impl IssuerProvider {
    /// Adds a claim that is elsewhere.
    pub(super) async fn complete(&self, claims: &mut Value, claim: &str, now: f64) -> Result<(), DistributedError> {
        let Some(Endpoint { url, token }) = endpoint(claims, claim)? else { return Ok(()) };
        let fetched = self.distributed.fetch(&url, token.as_deref()).await;
        let text = fetched.map_err(|source| DistributedError::Fetch { claim: claim.to_owned(), source })?;
        let Some(token) = Token::read(text.trim()) else {
            return Err(DistributedError::Malformed { claim: claim.to_owned(), url });
        };
        let keys = self.distributed.keys(token.issuer()).await?;
        self.verify(&keys, &token, now).await.map_err(DistributedError::Token)?;
        let Some(value) = token.claims.get(claim) else {
            return Err(DistributedError::Absent { claim: claim.to_owned(), url });
        };
        claims[claim] = value.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn source_of_a_distributed_claim() {
        let names = json!({"groups": "src"});
        let at = |source: Value| json!({"_claim_names": names, "_claim_sources": {"src": source}});
        let found = |url: &str, token: Option<&str>| {
            Ok(Some(Endpoint { url: url.to_owned(), token: token.map(str::to_owned) }))
        };
        for (claims, want) in [
            (json!({}), Ok(None)),
            (json!({"groups": [], "_claim_names": 7}), Ok(None)),
            (json!({"_claim_names": {"roles": "src"}, "_claim_sources": {}}), Ok(None)),
            (at(json!({"JWT": "a.b.c"})), Ok(None)),
            (at(json!({"endpoint": "https://c/groups"})), found("https://c/groups", None)),
            (at(json!({"endpoint": "https://c", "access_token": "t"})), found("https://c", Some("t"))),
            (json!({"_claim_names": names}), Err("oidc: no claim sources")),
            (
                json!({"_claim_names": ["groups"], "_claim_sources": {}}),
                Err("oidc: error parsing distributed claim names: not a map of strings"),
            ),
            (
                json!({"_claim_names": names, "_claim_sources": {"src": "x"}}),
                Err("oidc: could not parse claim sources: not a map of sources"),
            ),
            (
                json!({"_claim_names": names, "_claim_sources": {}}),
                Err("id token _claim_names contained a source src missing in _claims_sources"),
            ),
        ] {
            let got = endpoint(&claims, "groups").map_err(|e| e.to_string());
            assert_eq!(got, want.map_err(str::to_owned), "{claims}");
        }
    }
}
