//! The front proxy: user names in headers, believed only when the client certificate is signed by the proxy's CA.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;

use super::x509::Verifier;
use super::{Authenticator, AuthnError, Credentials, Identity, UserInfo, unescaped_key};

/// The request-header authenticator (`--requestheader-*`).
pub struct RequestHeader {
    verifier: ArcSwap<Verifier>,
    allowed_names: Vec<String>,
    username: Vec<String>,
    uid: Vec<String>,
    group: Vec<String>,
    extra_prefixes: Vec<String>,
}

impl RequestHeader {
    /// `ca` is PEM; an empty `allowed_names` allows any common name. Header names are taken in order.
    pub fn new(
        ca: &[u8],
        allowed_names: Vec<String>,
        username: &[String],
        uid: &[String],
        group: &[String],
        extra_prefixes: &[String],
    ) -> Result<Self, AuthnError> {
        let lower = |names: &[String]| names.iter().map(|n| n.to_ascii_lowercase()).collect::<Vec<_>>();
        Ok(Self {
            verifier: ArcSwap::from_pointee(Verifier::new(ca)?),
            allowed_names,
            username: lower(username),
            uid: lower(uid),
            group: lower(group),
            extra_prefixes: lower(extra_prefixes),
        })
    }

    /// Takes over a changed CA file.
    pub fn replace(&self, ca: &[u8]) -> Result<(), AuthnError> {
        self.verifier.store(Arc::new(Verifier::new(ca)?));
        Ok(())
    }
}

#[async_trait]
impl Authenticator for RequestHeader {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        if request.certificates.is_empty() {
            return Ok(None);
        }
        let one = |names: &[String]| {
            let mut values = names.iter().filter_map(|h| request.headers.all(h).first().map(|v| v.trim().to_owned()));
            values.find(|value| !value.is_empty()).unwrap_or_default()
        };
        let name = one(&self.username);
        if name.is_empty() {
            return Ok(None);
        }
        let proxy = self.verifier.load().verify(request.certificates)?;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&proxy.name) {
            return Err(AuthnError(format!("x509: subject with cn={} is not in the allowed list", proxy.name)));
        }
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for header in request.headers.names() {
            let key = self.extra_prefixes.iter().find_map(|p| header.strip_prefix(p.as_str()));
            if let Some(key) = key {
                let values = request.headers.all(header).into_iter().map(Cow::into_owned);
                extra.entry(unescaped_key(key)).or_default().extend(values);
            }
        }
        let groups = self.group.iter().flat_map(|h| request.headers.all(h)).map(Cow::into_owned).collect();
        Ok(Some(UserInfo { name, uid: one(&self.uid), groups, extra }.into()))
    }
}
