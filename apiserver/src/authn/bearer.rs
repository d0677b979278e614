//! Bearer tokens: who authenticates one ([`TokenAuthenticator`]), and all of them in order ([`Tokens`]). Answers for
//! upstream's `authenticator.Token`, `bearertoken`, `token/union`.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use shared::authn::{Authenticator, AuthnError, Credentials, Identity};
use shared::status::field::aggregate;

/// Compares two secrets in constant time for equal lengths.
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Finds out whom a bearer token stands for.
#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// `None` when the token is of another sort. `audiences`: the token must be good for one of them.
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Identity>, AuthnError>;
}

/// All sorts of tokens, asked in order.
#[derive(Clone)]
pub struct Tokens {
    members: Arc<[Arc<dyn TokenAuthenticator>]>,
    audiences: Arc<[String]>,
}

const INVALID: &str = "invalid bearer token";
/// Prefix of a WebSocket subprotocol that carries a bearer token.
pub const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

#[async_trait]
impl<A: TokenAuthenticator + ?Sized> TokenAuthenticator for Arc<A> {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Identity>, AuthnError> {
        self.as_ref().token(token, audiences).await
    }
}

impl Tokens {
    /// `audiences` are those of this server.
    pub fn new(members: Vec<Arc<dyn TokenAuthenticator>>, audiences: Vec<String>) -> Self {
        Self { members: members.into(), audiences: audiences.into() }
    }

    /// The server's own audiences.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Authenticates a token; an error when no authenticator knows it.
    pub async fn identify(&self, token: &str, audiences: &[String]) -> Result<Identity, AuthnError> {
        let mut errors = Vec::new();
        for member in self.members.iter() {
            match member.token(token, audiences).await {
                Ok(Some(identity)) => return Ok(identity),
                Ok(None) => {}
                Err(error) => errors.push(error.0),
            }
        }
        if errors.is_empty() {
            return Err(AuthnError(INVALID.to_owned()));
        }
        errors.insert(0, INVALID.to_owned());
        Err(AuthnError(aggregate(&errors)))
    }
}

#[async_trait]
impl Authenticator for Tokens {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        let from_protocol;
        let token = match request.bearer() {
            Some(token) => token,
            None => match websocket_token(request)? {
                Some(token) => {
                    from_protocol = token;
                    &from_protocol
                }
                None => return Ok(None),
            },
        };
        self.identify(token, &self.audiences).await.map(Some)
    }
}

/// Browsers cannot set headers on WebSockets: the token comes as a subprotocol, beside the one that will be spoken.
fn websocket_token(request: &Credentials<'_>) -> Result<Option<String>, AuthnError> {
    let upgrades = request.headers.first("upgrade").is_some_and(|u| u.eq_ignore_ascii_case("websocket"));
    if !upgrades {
        return Ok(None);
    }
    let bad = |why: &str| Err(AuthnError(why.to_owned()));
    let protocols = request.headers.all("sec-websocket-protocol");
    let offered = protocols.iter().flat_map(|p| p.split(',')).map(str::trim);
    let (tokens, others): (Vec<&str>, Vec<&str>) = offered.partition(|p| p.starts_with(TOKEN_PROTOCOL));
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [one] => one.strip_prefix(TOKEN_PROTOCOL).unwrap_or_default(),
        _ => return bad("multiple base64.bearer.authorization tokens specified"),
    };
    let Ok(bytes) = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(encoded) else {
        return bad("invalid base64.bearer.authorization token encoding");
    };
    let Ok(token) = String::from_utf8(bytes) else { return bad("invalid base64.bearer.authorization token") };
    if !token.is_empty() && others.is_empty() {
        return bad("missing additional subprotocol");
    }
    Ok((!token.is_empty()).then_some(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::authn::UserInfo;

    struct Only(&'static str, Result<&'static str, &'static str>);

    #[async_trait]
    impl TokenAuthenticator for Only {
        async fn token(&self, token: &str, _: &[String]) -> Result<Option<Identity>, AuthnError> {
            if token != self.0 {
                return Ok(None);
            }
            match self.1 {
                Ok(name) => Ok(Some(UserInfo { name: name.into(), ..UserInfo::default() }.into())),
                Err(text) => Err(AuthnError(text.into())),
            }
        }
    }

    async fn ask(headers: &[(&'static str, &'static str)]) -> Result<Option<String>, String> {
        let tokens = Tokens::new(vec![Arc::new(Only("a", Ok("alice"))), Arc::new(Only("x", Err("expired")))], vec![]);
        let mut map = http::HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        let credentials = Credentials { headers: &map, certificates: &[], path: "/" };
        tokens.authenticate(&credentials).await.map(|i| i.map(|i| i.user.name)).map_err(|e| e.0)
    }

    #[tokio::test]
    async fn a_token_is_somebodys_or_bad() {
        assert_eq!(ask(&[]).await, Ok(None));
        assert_eq!(ask(&[("authorization", "Bearer a")]).await, Ok(Some("alice".into())));
        assert_eq!(ask(&[("authorization", "Bearer b")]).await, Err("invalid bearer token".into()));
        assert_eq!(ask(&[("authorization", "Bearer x")]).await, Err("[invalid bearer token, expired]".into()));
        assert_eq!(ask(&[("authorization", "Basic b")]).await, Ok(None));
    }

    #[tokio::test]
    async fn a_websocket_may_bring_its_token_as_a_protocol() {
        let protocol = ("sec-websocket-protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YQ");
        assert_eq!(ask(&[("upgrade", "websocket"), protocol]).await, Ok(Some("alice".into())));
        assert_eq!(ask(&[protocol]).await, Ok(None));
        let of = async |offered| ask(&[("upgrade", "websocket"), ("sec-websocket-protocol", offered)]).await;
        let bad = |why: &str| Err::<Option<String>, _>(why.to_owned());
        let alone = "base64url.bearer.authorization.k8s.io.YQ";
        assert_eq!(of(alone).await, bad("missing additional subprotocol"));
        let twice = "x, base64url.bearer.authorization.k8s.io.YQ, base64url.bearer.authorization.k8s.io.YQ";
        assert_eq!(of(twice).await, bad("multiple base64.bearer.authorization tokens specified"));
        let broken = "x, base64url.bearer.authorization.k8s.io.?";
        assert_eq!(of(broken).await, bad("invalid base64.bearer.authorization token encoding"));
    }
}
