//! The filters of requests and the admission chain, from the command line.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shared::authn::{Authenticator, AuthnError, GroupAdder, OrAnonymous, RequestHeader, Union, X509};
use shared::client::{Remote, RemoteError};
use shared::host_port;
use tokio_util::sync::CancellationToken;

use super::files;
use crate::access::{Access, ConcurrencyLimiter, Limits, Parties, Reviews};
use crate::admission;
use crate::api::ServerContext;
use crate::authn::{
    BootstrapTokens, Cached, Jwt, StaticTokens, TokenAuthenticator, TokenFileError, TokenWebhook, Tokens, jwt,
};
use crate::authz::config::{self, ConfigError, Configured};
use crate::authz::{Authorization, Mode};
use crate::bootstrap;
use crate::egress::{EgressLookupError, NetworkContext};
use crate::flowcontrol::FlowControl;
use crate::reloads::{Reloads, hashed};
use crate::tokens::{self, Issuer, ServiceAccounts, Validator};

/// Errors of the setup of the filters.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
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
    /// The issuers of tokens.
    #[error(transparent)]
    Issuers(#[from] jwt::config::IssuersError),
    /// The network of an issuer.
    #[error("oidc: {0}")]
    IssuerEgress(#[from] EgressLookupError),
    /// A version of the token webhook that there is not.
    #[error(
        "failed to load authentication webhook: unsupported webhook authenticator version {0:?}, supported versions are v1, v1beta1"
    )]
    TokenWebhookVersion(String),
    /// The token webhook.
    #[error("failed to load authentication webhook: {0}")]
    TokenWebhook(#[source] RemoteError),
    /// Limits that leave no seat for flow control to share out.
    #[error(
        "invalid configuration: MaxRequestsInFlight={0} and MaxMutatingRequestsInFlight={1}; they must add up to something positive"
    )]
    NoSeats(i64, i64),
}

fn account_config(cx: &ServerContext) -> tokens::Config {
    let flags = &cx.flags;
    let mut key_files = flags.list("service-account-key-file");
    let tls_key = flags.string("tls-private-key-file");
    let signing_endpoint = flags.string("service-account-signing-endpoint");
    if key_files.is_empty() && !tls_key.is_empty() && signing_endpoint.is_empty() {
        key_files.push(tls_key);
    }
    let host = match flags.string("external-hostname") {
        host if host.is_empty() => cx.advertise_address.to_string(),
        host => host,
    };
    let longest = flags.duration("service-account-max-token-expiration").as_secs();
    tokens::Config {
        issuers: flags.list("service-account-issuer"),
        key_files,
        signing_key_file: flags.string("service-account-signing-key-file"),
        audiences: flags.list("api-audiences"),
        jwks_uri: flags.string("service-account-jwks-uri"),
        default_jwks_uri: format!("https://{}/openid/v1/jwks", host_port::join(&host, cx.secure_port)),
        max_expiration: i64::try_from(longest).unwrap_or(i64::MAX),
        extend_expiration: flags.boolean("service-account-extend-token-expiration"),
        lookup: flags.boolean("service-account-lookup"),
        any_uid: !flags.enabled("TokenRequestServiceAccountUIDValidation"),
        signing_endpoint,
        signs_elsewhere: flags.enabled("ExternalServiceAccountTokenSigner"),
        longest_extended: None,
    }
}

fn authenticator(
    cx: &ServerContext,
    tokens: &Tokens,
    anonymous: Option<Vec<String>>,
) -> Result<Arc<dyn Authenticator>, Error> {
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
        let uids = flags.enabled("AllowParsingUserUIDFromCertAuth");
        let certificates = Arc::new(X509::with_uids(&pem, uids).map_err(Error::Authority)?);
        members.push(certificates.clone());
        follow_authority(cx, client_ca, pem, move |pem| certificates.replace(pem));
    }
    members.push(Arc::new(tokens.clone()));
    let known = GroupAdder(Union::new(members));
    Ok(match anonymous {
        Some(paths) => Arc::new(OrAnonymous { chain: known, paths }),
        None => Arc::new(known),
    })
}

/// Takes over a CA file that has changed.
fn follow_authority(
    cx: &ServerContext,
    path: String,
    pem: Vec<u8>,
    replace: impl Fn(&[u8]) -> Result<(), AuthnError> + Send + Sync + 'static,
) {
    let shown = path.clone();
    let work = files::follow(path, pem, cx.shutdown.clone(), async move |pem: &[u8]| {
        match replace(pem) {
            Ok(()) => tracing::info!(path = shown, "Loaded a new CA bundle"),
            Err(error) => tracing::error!(path = shown, %error, "Failed to load CA bundle, keeping the previous one"),
        }
        true
    });
    cx.tasks.spawn("client-ca", work);
}

/// Until the external signer has said how often its keys change.
const REFRESH: Duration = Duration::from_secs(5);

/// Reads the keys of service-account tokens again when one of their files changes.
fn follow_keys(cx: &ServerContext, accounts: &Arc<ServiceAccounts>) {
    for path in accounts.files().cloned().collect::<BTreeSet<_>>() {
        let content = std::fs::read(&path).unwrap_or_default();
        let (accounts, shown) = (accounts.clone(), path.clone());
        let changed = async move |_: &[u8]| {
            match accounts.reload() {
                Ok(()) => tracing::info!(path = shown, "Loaded new service account keys"),
                Err(error) => {
                    tracing::error!(path = shown, %error, "Failed to load service account keys, keeping the previous ones")
                }
            }
            true
        };
        cx.tasks.spawn("service-account-keys", files::follow(path, content, cx.shutdown.clone(), changed));
    }
    if accounts.is_external() {
        let (accounts, shutdown) = (accounts.clone(), cx.shutdown.clone());
        cx.tasks.spawn("external-signer-keys", async move {
            let mut pause = REFRESH;
            loop {
                tokio::select! {
                    () = shutdown.wait() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                match accounts.refresh(true).await {
                    Ok(again) => pause = again.unwrap_or(REFRESH),
                    Err(error) => tracing::error!(%error, "Failed to fetch public keys from the external signer"),
                }
            }
        });
    }
}

/// Lifetime of a cached authentication; as upstream.
const BELIEVED: Duration = Duration::from_secs(10);
/// Longest wait for new issuers to be reached before the old ones are kept.
const REACHED_WITHIN: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);

/// The issuers of tokens, and the task that follows their configuration file.
fn issuers(
    cx: &ServerContext,
    configured: jwt::config::Configured,
    own: &[String],
) -> Result<Option<Arc<dyn TokenAuthenticator>>, Error> {
    let path = cx.flags.string("authentication-config");
    if path.is_empty() && configured.issuers.is_empty() {
        return Ok(None);
    }
    let parent = CancellationToken::new();
    let stop = parent.clone().drop_guard();
    let start = {
        let tasks = cx.tasks.clone();
        let egress = cx.egress.clone();
        let measured = cx.flags.enabled("StructuredAuthenticationConfigurationJWKSMetrics");
        move |issuers| jwt::Issuers::start(issuers, &egress, &parent, &tasks, measured)
    };
    let issuers = start(configured.issuers.clone())?;
    let issuers = Arc::new(Jwt::new(issuers));
    let egress = jwt::config::ConfigConditions::from_flags(&cx.flags, own).egress;
    let (known, shutdown, own) = (issuers.clone(), cx.shutdown.clone(), own.to_vec());
    let reloads = Reloads::new("authentication", "BETA");
    let content = std::fs::read(&path).unwrap_or_default();
    if !path.is_empty() {
        reloads.in_force(&hashed(&content));
    }
    let work = async move {
        let _stop = stop;
        if path.is_empty() {
            return shutdown.wait().await;
        }
        let ended = shutdown.clone();
        let changed = async move |content: &[u8]| {
            let refused = |error: &str, forever: bool| {
                tracing::error!(error, "reloading authentication config");
                reloads.failure();
                forever
            };
            let fresh = match jwt::config::load(content, jwt::config::ConfigConditions { own: &own, egress }) {
                Ok(fresh) if fresh.anonymous == configured.anonymous => fresh,
                Ok(_) => return refused("anonymous: Forbidden: changed from initial configuration file", true),
                Err(error) => return refused(&error.to_string(), true),
            };
            let issuers = match start(fresh.issuers) {
                Ok(issuers) => issuers,
                Err(error) => return refused(&format!("oidc: {error}"), false),
            };
            let reached = async {
                while !issuers.ready() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::select! {
                () = ended.wait() => return true,
                reached = tokio::time::timeout(REACHED_WITHIN, reached) => if reached.is_err() {
                    return refused("an issuer was not reached in time", false);
                },
            }
            known.replace(issuers);
            reloads.success(content);
            tracing::info!("reloaded authentication config");
            true
        };
        files::follow(path, content, shutdown, changed).await;
    };
    cx.tasks.spawn("authentication-config", work);
    Ok(Some(Arc::new(Cached::new(issuers, BELIEVED, Duration::ZERO))))
}

/// The server that knows tokens, when there is one.
async fn token_webhook(cx: &ServerContext, audiences: &[String]) -> Result<Option<Arc<dyn TokenAuthenticator>>, Error> {
    let path = cx.flags.string("authentication-token-webhook-config-file");
    if path.is_empty() {
        return Ok(None);
    }
    let version = cx.flags.string("authentication-token-webhook-version");
    if !matches!(version.as_str(), "v1" | "v1beta1") {
        return Err(Error::TokenWebhookVersion(version));
    }
    let remote = Remote::from_kubeconfig(&path, cx.egress.proxied(NetworkContext::ControlPlane))
        .await
        .map_err(Error::TokenWebhook)?;
    let ttl = cx.flags.duration("authentication-token-webhook-cache-ttl");
    let webhook = TokenWebhook::new(remote, version, audiences.to_vec());
    Ok(Some(Arc::new(Cached::new(webhook, ttl, ttl))))
}

/// The authorisers, and the task that follows their configuration file.
async fn authorization(cx: &ServerContext, configured: &[Configured]) -> Result<Arc<Authorization>, Error> {
    let parts = config::AuthorizerDeps {
        reader: cx.reader.clone(),
        node_rules: bootstrap::node_rules(&cx.flags.feature_gates()),
        policy_file: cx.flags.string("authorization-policy-file"),
        dialer: cx.egress.proxied(NetworkContext::ControlPlane),
    };
    let authorization = Arc::new(config::build(configured, &parts).await?);
    let path = cx.flags.string("authorization-config");
    if path.is_empty() {
        return Ok(authorization);
    }
    let required: Vec<Mode> = configured.iter().map(|c| c.mode).filter(|m| *m != Mode::Webhook).collect();
    let content = std::fs::read(&path).unwrap_or_default();
    let reloads = Reloads::new("authorization", "BETA");
    reloads.success(&content);
    let (chain, mut last) = (authorization.clone(), configured.to_vec());
    let work = files::follow(path, content, cx.shutdown.clone(), async move |content: &[u8]| {
        let fresh = match config::load(content, &required) {
            Ok(same) if same == last => return true,
            Ok(fresh) => fresh,
            Err(error) => {
                tracing::error!(%error, "reloading authorization config");
                reloads.failure();
                return true;
            }
        };
        match config::rebuild(&fresh, &chain, parts.dialer.clone()).await {
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
        true
    });
    cx.tasks.spawn("authorization-config", work);
    Ok(authorization)
}

/// Flow control, or limits alone.
fn gate(cx: &ServerContext) -> Result<ConcurrencyLimiter, Error> {
    let (reading, changing) =
        (cx.flags.integer("max-requests-inflight"), cx.flags.integer("max-mutating-requests-inflight"));
    if !cx.flags.boolean("enable-priority-and-fairness") {
        let places = |n: i64| usize::try_from(n).unwrap_or(0);
        return Ok(ConcurrencyLimiter::Counted(Limits::new(places(reading), places(changing))));
    }
    let total = u32::try_from(reading.saturating_add(changing)).unwrap_or(0);
    if total == 0 {
        return Err(Error::NoSeats(reading, changing));
    }
    let timeout = cx.flags.duration("request-timeout");
    Ok(ConcurrencyLimiter::Fair(FlowControl::new(
        total,
        timeout,
        cx.reader.clone(),
        cx.flags.enabled("SizeBasedListCostEstimate"),
    )))
}

/// Reads the flags and the files they name.
pub(super) async fn access(cx: &ServerContext) -> Result<Arc<Access>, Error> {
    let flags = &cx.flags;
    let configured = config::from_flags(flags)?;
    let authorization = authorization(cx, &configured).await?;
    let said = account_config(cx);
    let accounts = match said.signing_endpoint.is_empty() {
        true => ServiceAccounts::load(said)?,
        false => ServiceAccounts::connect(said).await?,
    };
    let accounts = Arc::new(accounts);
    follow_keys(cx, &accounts);

    let mut members: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    let token_file = flags.string("token-auth-file");
    if !token_file.is_empty() {
        members.push(Arc::new(StaticTokens::read(&token_file)?));
    }
    members.push(Arc::new(Validator::new(accounts.clone(), cx.reader.clone(), cx.api.clone())));
    if flags.boolean("enable-bootstrap-token-auth") {
        members.push(Arc::new(BootstrapTokens { reader: cx.reader.clone() }));
    }
    let audiences = accounts.config().audiences.clone();
    let said = jwt::config::from_flags(flags, &accounts.config().issuers)?;
    let anonymous = said.anonymous.clone();
    members.extend(issuers(cx, said, &accounts.config().issuers)?);
    members.extend(token_webhook(cx, &audiences).await?);
    let tokens = Tokens::new(members, audiences);

    let mut anonymous = match anonymous {
        Some(said) => said.enabled.then_some(said.paths),
        None => flags.boolean("anonymous-auth").then(Vec::new),
    };
    if anonymous.is_some() && configured.iter().any(|c| c.mode == Mode::AlwaysAllow) {
        tracing::warn!(
            "AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should use a different authorizer"
        );
        anonymous = None;
    }
    let issuer = Issuer { accounts: accounts.clone(), reader: cx.reader.clone(), api: cx.api.clone() };
    let reviews = Reviews { authorization: authorization.clone(), tokens: tokens.clone() };
    Ok(Arc::new(Access::new(Parties {
        authenticator: authenticator(cx, &tokens, anonymous)?,
        authorization,
        limiter: gate(cx)?,
        accounts,
        issuer: Arc::new(issuer),
        reviews: Arc::new(reviews),
        rbac: configured.iter().any(|c| c.mode == Mode::Rbac),
        constrained: flags.enabled("ConstrainedImpersonation"),
    })))
}

/// The admission chain of the flags.
pub(super) fn admission(access: &Access, cx: &ServerContext) -> Result<admission::Chain, admission::Error> {
    admission::Chain::from_flags(&admission::Deps {
        flags: &cx.flags,
        reader: cx.reader.clone(),
        api: cx.api.clone(),
        authorization: access.authorization().clone(),
        tasks: cx.tasks.clone(),
        answered: cx.answered.clone(),
        egress: cx.egress.clone(),
    })
}
