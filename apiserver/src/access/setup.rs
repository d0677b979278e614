//! From the command line to the chain.

use std::sync::Arc;

use shared::authn::{Authenticator, AuthnError, GroupAdder, OrAnonymous, RequestHeader, Union, X509};

use super::counters::Counters;
use super::{Access, Limits, Reviews, files, identity};
use crate::admission;
use crate::api::Context;
use crate::authn::{BootstrapTokens, StaticTokens, TokenAuthenticator, TokenFileError, Tokens};
use crate::authz::config::{self, ConfigError, Configured};
use crate::authz::{Authorization, Mode};
use crate::bootstrap;
use crate::tokens::{self, Issuer, ServiceAccounts, Validator};

/// Why the chain cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Service-account keys.
    #[error("{0}")]
    Tokens(#[from] tokens::Error),
    /// The static token file.
    #[error("{0}")]
    TokenFile(#[from] TokenFileError),
    /// A CA bundle.
    #[error("unable to load client CA provider: {0}")]
    Authority(AuthnError),
    /// A certificate file.
    #[error("{0}")]
    Certificates(#[from] shared::cert::CertError),
    /// The authorisers.
    #[error("{0}")]
    Authorization(#[from] ConfigError),
}

fn account_config(cx: &Context) -> tokens::Config {
    let flags = &cx.flags;
    let mut key_files = flags.list("service-account-key-file");
    let tls_key = flags.string("tls-private-key-file");
    if key_files.is_empty() && !tls_key.is_empty() {
        key_files.push(tls_key);
    }
    let host = match flags.string("external-hostname") {
        host if host.is_empty() => cx.advertise_address.to_string(),
        host => host,
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let longest = flags.duration("service-account-max-token-expiration").as_secs();
    tokens::Config {
        issuers: flags.list("service-account-issuer"),
        key_files,
        signing_key_file: flags.string("service-account-signing-key-file"),
        audiences: flags.list("api-audiences"),
        jwks_uri: flags.string("service-account-jwks-uri"),
        default_jwks_uri: format!("https://{host}:{}/openid/v1/jwks", cx.secure_port),
        max_expiration: i64::try_from(longest).unwrap_or(i64::MAX),
        extend_expiration: flags.boolean("service-account-extend-token-expiration"),
        lookup: flags.boolean("service-account-lookup"),
    }
}

fn authenticator(cx: &Context, tokens: &Tokens, anonymous: bool) -> Result<Arc<dyn Authenticator>, Error> {
    let flags = &cx.flags;
    let mut members: Vec<Arc<dyn Authenticator>> = Vec::new();
    let proxy_ca = flags.string("requestheader-client-ca-file");
    if !proxy_ca.is_empty() {
        let pem = shared::cert::read(&proxy_ca)?;
        let proxy = RequestHeader::new(
            &pem,
            flags.list("requestheader-allowed-names"),
            &flags.list("requestheader-username-headers"),
            &flags.list("requestheader-uid-headers"),
            &flags.list("requestheader-group-headers"),
            &flags.list("requestheader-extra-headers-prefix"),
        );
        let proxy = Arc::new(proxy.map_err(Error::Authority)?);
        members.push(proxy.clone());
        follow_authority(cx, proxy_ca, pem, move |pem| proxy.replace(pem));
    }
    let client_ca = flags.string("client-ca-file");
    if !client_ca.is_empty() {
        let pem = shared::cert::read(&client_ca)?;
        let certificates = Arc::new(X509::new(&pem).map_err(Error::Authority)?);
        members.push(certificates.clone());
        follow_authority(cx, client_ca, pem, move |pem| certificates.replace(pem));
    }
    members.push(Arc::new(tokens.clone()));
    let known = GroupAdder(Union::new(members));
    if anonymous { Ok(Arc::new(OrAnonymous(known))) } else { Ok(Arc::new(known)) }
}

/// Takes over a CA file that has changed.
fn follow_authority(
    cx: &Context,
    path: String,
    pem: Vec<u8>,
    replace: impl Fn(&[u8]) -> Result<(), AuthnError> + Send + Sync + 'static,
) {
    let shown = path.clone();
    let work = files::follow(path, pem, cx.shutdown.clone(), async move |pem: &[u8]| match replace(pem) {
        Ok(()) => tracing::info!(path = shown, "Loaded a new CA bundle"),
        Err(error) => tracing::error!(path = shown, %error, "The CA bundle is unusable, the old one stays"),
    });
    cx.tasks.spawn("client-ca", work);
}

/// The authorisers, and the task that follows their configuration file.
async fn authorization(cx: &Context, configured: &[Configured]) -> Result<Arc<Authorization>, Error> {
    let parts = config::Parts {
        reader: cx.reader.clone(),
        node_rules: bootstrap::node_rules(),
        policy_file: cx.flags.string("authorization-policy-file"),
    };
    let authorization = Arc::new(config::build(configured, &parts).await?);
    let path = cx.flags.string("authorization-config");
    if path.is_empty() {
        return Ok(authorization);
    }
    let required: Vec<Mode> = configured.iter().map(|c| c.mode).filter(|m| *m != Mode::Webhook).collect();
    let content = std::fs::read(&path).unwrap_or_default();
    let reloads = files::Reloads::new("authorization", &identity::server_id());
    reloads.success(&content);
    let (chain, mut last) = (authorization.clone(), configured.to_vec());
    let work = files::follow(path, content, cx.shutdown.clone(), async move |content: &[u8]| {
        let fresh = match config::load(content, &required) {
            Ok(same) if same == last => return,
            Ok(fresh) => fresh,
            Err(error) => {
                tracing::error!(%error, "reloading authorization config");
                return reloads.failure();
            }
        };
        match config::rebuild(&fresh, &chain).await {
            Ok(members) => {
                chain.replace(members);
                last = fresh;
                reloads.success(content);
                tracing::info!("reloaded authz config");
            }
            Err(error) => {
                tracing::error!(%error, "reloading authorization config");
                reloads.failure();
            }
        }
    });
    cx.tasks.spawn("authorization-config", work);
    Ok(authorization)
}

impl Access {
    /// Reads the flags and the files they name.
    pub async fn new(cx: &Context) -> Result<Arc<Self>, Error> {
        let flags = &cx.flags;
        let configured = config::from_flags(flags)?;
        let authorization = authorization(cx, &configured).await?;
        let accounts = Arc::new(ServiceAccounts::load(account_config(cx))?);

        let mut members: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
        let token_file = flags.string("token-auth-file");
        if !token_file.is_empty() {
            members.push(Arc::new(StaticTokens::read(&token_file)?));
        }
        members.push(Arc::new(Validator::new(accounts.clone(), cx.reader.clone(), cx.api.clone())));
        if flags.boolean("enable-bootstrap-token-auth") {
            members.push(Arc::new(BootstrapTokens { reader: cx.reader.clone() }));
        }
        let tokens = Tokens::new(members, accounts.config().audiences.clone());

        let mut anonymous = flags.boolean("anonymous-auth");
        if anonymous && configured.iter().any(|c| c.mode == Mode::AlwaysAllow) {
            tracing::warn!(
                "AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should use a different authorizer"
            );
            anonymous = false;
        }
        let seats = |name: &str| usize::try_from(flags.integer(name)).unwrap_or(0);
        let limits = Limits::new(
            seats("max-requests-inflight"),
            seats("max-mutating-requests-inflight"),
            flags.boolean("enable-priority-and-fairness"),
        );
        let issuer = Issuer { accounts: accounts.clone(), reader: cx.reader.clone(), api: cx.api.clone() };
        let reviews = Reviews { authorization: authorization.clone(), tokens: tokens.clone() };
        Ok(Arc::new(Self {
            authenticator: authenticator(cx, &tokens, anonymous)?,
            authorization,
            limits,
            accounts,
            issuer: Arc::new(issuer),
            reviews: Arc::new(reviews),
            counters: Counters::new(),
            rbac: configured.iter().any(|c| c.mode == Mode::Rbac),
        }))
    }

    /// The admission chain of the flags.
    pub fn admission(&self, cx: &Context) -> Result<admission::Chain, admission::Error> {
        admission::Chain::from_flags(&admission::Deps {
            flags: &cx.flags,
            reader: cx.reader.clone(),
            api: cx.api.clone(),
            authorization: self.authorization.clone(),
            tasks: cx.tasks.clone(),
            shutdown: cx.shutdown.clone(),
        })
    }
}
