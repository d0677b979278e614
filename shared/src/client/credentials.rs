//! Client credentials of a kubeconfig's user or a service account: a client certificate, a password, a token, a token
//! file, or an exec plugin.
//!
//! `kube` could do this too, with a YAML and a JSONPath parser that nothing else needs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::Config;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;

use super::plugin::Plugin;
use crate::cert::{self, PemPair, ReloadingKey, Trust};

/// Lifetime of a token read from a file; as in client-go.
const TOKEN_AGE: Duration = Duration::from_secs(60);

/// Credentials of requests.
pub(super) enum Credentials {
    /// By the connection's certificate, or not at all.
    Connection,
    Fixed(HeaderValue),
    File(TokenFile),
    Plugin(Box<Plugin>),
}

/// Credentials, the TLS configuration that goes with them, and the client certificate in it.
pub(super) type User = (Credentials, rustls::ClientConfig, Option<Arc<ReloadingKey>>);

/// A user who is known by `pair` alone; of `config` are the authorities.
///
/// # Errors
/// Authorities that cannot be read.
pub(super) fn of_pair(config: &Config, pair: Arc<ReloadingKey>) -> anyhow::Result<User> {
    Ok((Credentials::Connection, tls(config, Some(Arc::clone(&pair)))?, Some(pair)))
}

/// The user of `config`.
///
/// # Errors
/// Files that cannot be read, values that are no certificates or no header, a plugin that fails.
pub(super) fn resolve(config: &Config) -> anyhow::Result<User> {
    let user = &config.auth_info;
    let mut pair = certificate(user)?;
    let source = if let Some(path) = user.token_file.as_deref().filter(|path| !path.is_empty()) {
        Credentials::File(TokenFile::read(path)?)
    } else if let Some(token) = &user.token {
        Credentials::Fixed(bearer(token.expose_secret())?)
    } else if let (Some(name), Some(password)) = (&user.username, &user.password) {
        let encoded = STANDARD.encode(format!("{name}:{}", password.expose_secret()));
        Credentials::Fixed(secret(&format!("Basic {encoded}"))?)
    } else if let Some(exec) = &user.exec {
        let plugin = Plugin::start(exec)?;
        pair = plugin.pair().or(pair);
        Credentials::Plugin(Box::new(plugin))
    } else {
        Credentials::Connection
    };
    Ok((source, tls(config, pair.clone())?, pair))
}

fn tls(config: &Config, pair: Option<Arc<ReloadingKey>>) -> anyhow::Result<rustls::ClientConfig> {
    let trust = match (&config.root_cert_file, &config.root_cert) {
        _ if config.accept_invalid_certs => Trust::Anybody,
        (Some(path), _) => Trust::File(path.into()),
        (None, None) => Trust::System,
        (None, Some(all)) => {
            let all = all.iter().map(|der| der.clone().into()).collect();
            Trust::Authorities(cert::Authorities::new(all).context("certificate authority")?)
        }
    };
    Ok(cert::client_tls(trust, pair)?)
}

/// The user's client certificate. Data wins over files, as in client-go; files may change.
fn certificate(user: &AuthInfo) -> anyhow::Result<Option<Arc<ReloadingKey>>> {
    let key_data = user.client_key_data.as_ref().map(|data| data.expose_secret());
    let key = match (&user.client_certificate_data, key_data) {
        (Some(certificate), Some(key)) => {
            ReloadingKey::from_pem(&PemPair { certificate: decode(certificate)?, key: decode(key)? })?
        }
        (None, None) => match (&user.client_certificate, &user.client_key) {
            (Some(certificate), Some(key)) => ReloadingKey::from_files(certificate, key)?,
            (None, None) => return Ok(None),
            _ => anyhow::bail!("a user needs both a client certificate and its key, or neither"),
        },
        (certificate, key) => {
            let from_file = |path: &Option<String>| -> anyhow::Result<String> {
                let path = path.as_deref().context("a user needs both a client certificate and its key, or neither")?;
                Ok(String::from_utf8(cert::read(path)?)?)
            };
            let certificate = certificate.as_deref().map_or_else(|| from_file(&user.client_certificate), decode)?;
            ReloadingKey::from_pem(&PemPair {
                certificate,
                key: key.map_or_else(|| from_file(&user.client_key), decode)?,
            })?
        }
    };
    Ok(Some(Arc::new(key)))
}

fn decode(data: &str) -> anyhow::Result<String> {
    Ok(String::from_utf8(STANDARD.decode(data).context("illegal base64 data")?)?)
}

/// The header of a bearer token.
pub(super) fn bearer(token: &str) -> anyhow::Result<HeaderValue> {
    secret(&format!("Bearer {}", token.trim()))
}

fn secret(value: &str) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::try_from(value).context("credentials are no header")?;
    value.set_sensitive(true);
    Ok(value)
}

/// A token in a file that is read again once a minute.
pub struct TokenFile {
    path: String,
    /// Value and the time of reading it; `None` forces the next read.
    last: Mutex<(HeaderValue, Option<Instant>)>,
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl TokenFile {
    /// # Errors
    /// The file cannot be read now, or what it holds is no header.
    pub fn read(path: &str) -> anyhow::Result<Self> {
        let token = std::fs::read_to_string(path).with_context(|| format!("failed to read token file {path:?}"))?;
        let header = some(&token).with_context(|| format!("read empty token from file {path:?}"))?;
        Ok(Self { path: path.to_owned(), last: Mutex::new((bearer(header)?, Some(Instant::now()))) })
    }

    /// The token, as a header; the last good one when the file is gone, or is being written.
    pub fn header(&self) -> HeaderValue {
        let mut last = self.last.lock();
        if last.1.is_none_or(|read| read.elapsed() >= TOKEN_AGE) {
            let text = std::fs::read_to_string(&self.path).ok();
            let fresh = text.as_deref().and_then(some).and_then(|token| bearer(token).ok());
            *last = (fresh.unwrap_or_else(|| last.0.clone()), Some(Instant::now()));
        }
        last.0.clone()
    }

    /// The server did not believe the token of a request that was made then.
    fn refused(&self, then: Instant) {
        let mut last = self.last.lock();
        last.1 = last.1.filter(|read| *read >= then);
    }
}

fn some(token: &str) -> Option<&str> {
    Some(token.trim()).filter(|token| !token.is_empty())
}

impl Credentials {
    /// The value of `Authorization`.
    pub(super) async fn header(&self) -> anyhow::Result<Option<HeaderValue>> {
        Ok(match self {
            Self::Connection => None,
            Self::Fixed(value) => Some(value.clone()),
            Self::File(file) => Some(file.header()),
            Self::Plugin(plugin) => Box::pin(plugin.header()).await?,
        })
    }

    /// The server did not believe those of a request that was made then: the next one has fresh ones, where that can be.
    pub(super) async fn refused(&self, then: Instant) {
        match self {
            Self::Connection | Self::Fixed(_) => {}
            Self::File(file) => file.refused(then),
            Self::Plugin(plugin) => plugin.refused(then).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(user: AuthInfo) -> Config {
        let mut config = Config::new(http::Uri::from_static("https://127.0.0.1:6443"));
        config.auth_info = user;
        config
    }

    async fn header(user: AuthInfo) -> Option<String> {
        let (credentials, ..) = resolve(&config(user)).expect("good credentials");
        let value = credentials.header().await.expect("a header");
        value.map(|value| value.to_str().expect("text").to_owned())
    }

    #[tokio::test]
    async fn a_user_is_marked_as_its_fields_say() {
        let user = |value| serde_json::from_value::<AuthInfo>(value).expect("a user");
        assert_eq!(header(user(serde_json::json!({}))).await, None);
        assert_eq!(header(user(serde_json::json!({"token": "abc"}))).await.as_deref(), Some("Bearer abc"));
        let basic = serde_json::json!({"username": "me", "password": "pw"});
        assert_eq!(header(user(basic)).await.as_deref(), Some("Basic bWU6cHc="));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_file_is_read_again_and_the_last_good_token_stays() {
        let path = std::env::temp_dir().join(format!("token-{}", std::process::id()));
        std::fs::write(&path, "one\n").expect("written");
        let file = TokenFile::read(&path.to_string_lossy()).expect("a token");
        std::fs::write(&path, "two").expect("written");
        assert_eq!(file.header(), "Bearer one");
        tokio::time::advance(TOKEN_AGE).await;
        assert_eq!(file.header(), "Bearer two");
        for held_back in ["", " \n"] {
            std::fs::write(&path, held_back).expect("written");
            tokio::time::advance(TOKEN_AGE).await;
            assert_eq!(file.header(), "Bearer two", "who writes it has only begun");
        }
        assert!(TokenFile::read(&path.to_string_lossy()).is_err(), "nothing is no token");
        std::fs::write(&path, "three").expect("written");
        let file = Credentials::File(file);
        let header = async || file.header().await.expect("a header");
        file.refused(Instant::now() - TOKEN_AGE).await;
        assert_eq!(header().await, Some(HeaderValue::from_static("Bearer two")), "another one was refused");
        tokio::time::advance(TOKEN_AGE / 2).await;
        file.refused(Instant::now()).await;
        assert_eq!(header().await, Some(HeaderValue::from_static("Bearer three")), "it is of no use any more");
        std::fs::remove_file(&path).expect("removed");
        tokio::time::advance(TOKEN_AGE).await;
        assert_eq!(header().await, Some(HeaderValue::from_static("Bearer three")));
    }

    #[test]
    fn half_a_pair_is_refused() {
        let user = AuthInfo { client_certificate: Some("/nowhere/tls.crt".into()), ..AuthInfo::default() };
        assert!(resolve(&config(user)).is_err());
        let user = AuthInfo { client_certificate_data: Some("%%".into()), ..AuthInfo::default() };
        assert!(resolve(&config(user)).is_err());
    }
}
