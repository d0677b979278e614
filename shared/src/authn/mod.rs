//! Authentication as a chain: a request's headers and client certificate in, a [`UserInfo`] out.
//!
//! Service-account tokens are verified in the apiserver; here are the trait, its combinators, client certificates,
//! front-proxy headers, the anonymous user and the delegated (TokenReview) authenticator.

mod delegated;
mod front_proxy;
mod x509;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::status::field::aggregate;

pub use delegated::TokenReviewAuthenticator;
pub(crate) use delegated::{code, count};
pub use front_proxy::RequestHeader;
pub use x509::{X509, common_name, user_of_certificate};

/// `system:authenticated`
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// `system:unauthenticated`
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// `system:anonymous`
pub const ANONYMOUS: &str = "system:anonymous";
/// `system:masters`
pub const SYSTEM_MASTERS: &str = "system:masters";

/// User of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// User name.
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Stable id or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Anything else the authenticator knows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The user of requests without credentials.
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec![ALL_UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// True when the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// The headers of a request, whichever server it came through. Names are lower case.
pub trait Headers: Sync {
    /// First value, where it is plain text.
    fn first(&self, name: &str) -> Option<&str>;
    /// All values. What is not UTF-8 in them is replaced: whoever is named by it is not nobody.
    fn all(&self, name: &str) -> Vec<Cow<'_, str>>;
    /// All header names.
    fn names(&self) -> Vec<&str>;
}

impl Headers for http::HeaderMap {
    fn first(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|v| v.to_str().ok())
    }
    fn all(&self, name: &str) -> Vec<Cow<'_, str>> {
        self.get_all(name).iter().map(|v| String::from_utf8_lossy(v.as_bytes())).collect()
    }
    fn names(&self) -> Vec<&str> {
        self.keys().map(http::HeaderName::as_str).collect()
    }
}

impl Headers for actix_web::http::header::HeaderMap {
    fn first(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|v| v.to_str().ok())
    }
    fn all(&self, name: &str) -> Vec<Cow<'_, str>> {
        self.get_all(name).map(|v| String::from_utf8_lossy(v.as_bytes())).collect()
    }
    fn names(&self) -> Vec<&str> {
        self.keys().map(actix_web::http::header::HeaderName::as_str).collect()
    }
}

/// The key that the rest of a header's name stands for: percent-decoded, where that makes sense.
pub fn unescaped_key(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return text.to_owned() };
        out.extend(u8::try_from(high << 4 | low));
        rest = &after[2..];
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// Credentials of a request, as authenticators see them.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// Request headers.
    pub headers: &'a dyn Headers,
    /// The client's certificate chain, leaf first, unverified; empty without one.
    pub certificates: &'a [CertificateDer<'static>],
    /// The path asked for, without the query.
    pub path: &'a str,
}

impl Credentials<'_> {
    /// The bearer token, if the Authorization header holds one.
    pub fn bearer(&self) -> Option<&str> {
        let value = self.headers.first("authorization")?.trim();
        let (scheme, token) = value.split_once(' ')?;
        let token = token.split(' ').next().unwrap_or("");
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }
}

/// A successful authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: UserInfo,
    /// Audiences the credential is good for; empty when the question does not arise.
    pub audiences: Vec<String>,
}

impl From<UserInfo> for Identity {
    fn from(user: UserInfo) -> Self {
        Self { user, audiences: Vec::new() }
    }
}

/// A credential was offered and is bad, or could not be checked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct AuthnError(pub String);

/// Finds out who asks.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// `None` when there is no credential of this authenticator's sort.
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError>;
}

/// Asks each member in turn; the first identity wins, errors count only if nobody knows the user.
#[derive(Clone, Default)]
pub struct Union(Vec<Arc<dyn Authenticator>>);

impl Union {
    /// In the order asked.
    pub fn new(members: Vec<Arc<dyn Authenticator>>) -> Self {
        Self(members)
    }
}

#[async_trait]
impl Authenticator for Union {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        let mut errors = Vec::new();
        for member in &self.0 {
            match member.authenticate(request).await {
                Ok(Some(identity)) => return Ok(Some(identity)),
                Ok(None) => {}
                Err(e) => errors.push(e.0),
            }
        }
        if errors.is_empty() { Ok(None) } else { Err(AuthnError(aggregate(&errors))) }
    }
}

/// Adds `system:authenticated` to whoever the inner authenticator knows, unless anonymous.
pub struct GroupAdder<A>(pub A);

#[async_trait]
impl<A: Authenticator> Authenticator for GroupAdder<A> {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        let Some(mut identity) = self.0.authenticate(request).await? else { return Ok(None) };
        let user = &mut identity.user;
        if user.name != ANONYMOUS && !user.in_group(ALL_AUTHENTICATED) && !user.in_group(ALL_UNAUTHENTICATED) {
            user.groups.push(ALL_AUTHENTICATED.into());
        }
        Ok(Some(identity))
    }
}

/// Everybody is `system:anonymous`: the last member of a chain.
pub struct Anonymous;

#[async_trait]
impl Authenticator for Anonymous {
    async fn authenticate(&self, _: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        Ok(Some(UserInfo::anonymous().into()))
    }
}

/// Runs `chain`, and answers with the anonymous user when nobody offered a credential (never when one was bad).
pub struct OrAnonymous<A> {
    /// Authenticators in their order.
    pub chain: A,
    /// The only paths that may be asked for so; all when empty.
    pub paths: Vec<String>,
}

#[async_trait]
impl<A: Authenticator> Authenticator for OrAnonymous<A> {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        let known = self.chain.authenticate(request).await?;
        let open = self.paths.is_empty() || self.paths.iter().any(|p| p == request.path);
        Ok(known.or_else(|| open.then(|| UserInfo::anonymous().into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn some_paths_are_open() {
        let headers = http::HeaderMap::new();
        let chain = OrAnonymous { chain: Union::default(), paths: vec!["/livez".into()] };
        for (path, known) in [("/livez", true), ("/livez/etcd", false), ("/api", false)] {
            let request = Credentials { headers: &headers, certificates: &[], path };
            assert_eq!(chain.authenticate(&request).await.expect("no error").is_some(), known, "{path}");
        }
    }

    #[test]
    fn names_of_people_are_not_ascii() {
        let mut headers = http::HeaderMap::new();
        for bytes in [&b"m\xc3\xbcller"[..], b"m\xfcller"] {
            headers.append("x-remote-user", http::HeaderValue::from_bytes(bytes).expect("a header"));
        }
        assert_eq!(headers.all("x-remote-user"), ["m\u{fc}ller", "m\u{fffd}ller"]);
    }

    #[test]
    fn keys_are_percent_decoded() {
        for (name, key) in [
            ("example.com%2fkey", "example.com/key"),
            ("a%25%2Fb", "a%/b"),
            ("a%zz%2f", "a%zz%2f"),
            ("a%+f", "a%+f"),
            ("a%2", "a%2"),
            ("a%ff", "a%ff"),
        ] {
            assert_eq!(unescaped_key(name), key);
        }
    }

    #[test]
    fn bearer_header() {
        for (value, want) in
            [("Bearer abc", Some("abc")), ("bearer abc x", Some("abc")), ("Basic abc", None), ("Bearer ", None)]
        {
            let mut headers = http::HeaderMap::new();
            headers.insert("authorization", http::HeaderValue::from_str(value).expect("header"));
            let credentials = Credentials { headers: &headers, certificates: &[], path: "/" };
            assert_eq!(credentials.bearer(), want, "{value}");
        }
    }
}
