//! From the command line to the chain.

use std::sync::Arc;
use std::time::Duration;

use shared::authn::{Authenticator, AuthnError, GroupAdder, OrAnonymous, RequestHeader, Union, X509};
use shared::flags::FlagSet;
use shared::run::Shutdown;

use super::{Access, Limits, Reviews};
use crate::admission;
use crate::api::Context;
use crate::authn::{BootstrapTokens, StaticTokens, TokenAuthenticator, TokenFileError, Tokens};
use crate::authz::{Authorization, Mode};
use crate::bootstrap;
use crate::tokens::{self, Issuer, ServiceAccounts, Validator};

/// How often CA files are looked at.
const LOOK: Duration = Duration::from_secs(60);

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
    /// A word of `--authorization-mode`.
    #[error("authorization-mode {0:?} is not a valid mode")]
    Mode(String),
    /// A word twice.
    #[error("authorization-mode {0:?} has mode specified more than once")]
    ModeTwice(String),
    /// A mode that is not there yet.
    #[error("authorization-mode {0:?} is not supported")]
    ModeUnsupported(String),
}

fn modes(flags: &FlagSet) -> Result<Vec<Mode>, Error> {
    let words = flags.list("authorization-mode");
    if words.is_empty() {
        return Ok(vec![Mode::AlwaysAllow]);
    }
    let mut modes = Vec::new();
    for word in words {
        let Some(mode) = Mode::parse(&word) else {
            let known = matches!(word.as_str(), "ABAC" | "Webhook");
            return Err(if known { Error::ModeUnsupported(word) } else { Error::Mode(word) });
        };
        if modes.contains(&mode) {
            return Err(Error::ModeTwice(word));
        }
        modes.push(mode);
    }
    Ok(modes)
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
        let proxy = RequestHeader::new(
            &shared::cert::read(&proxy_ca)?,
            flags.list("requestheader-allowed-names"),
            &flags.list("requestheader-username-headers"),
            &flags.list("requestheader-uid-headers"),
            &flags.list("requestheader-group-headers"),
            &flags.list("requestheader-extra-headers-prefix"),
        );
        members.push(Arc::new(proxy.map_err(Error::Authority)?));
    }
    let client_ca = flags.string("client-ca-file");
    if !client_ca.is_empty() {
        let pem = shared::cert::read(&client_ca)?;
        let certificates = Arc::new(X509::new(&pem).map_err(Error::Authority)?);
        members.push(certificates.clone());
        cx.tasks.spawn("client-ca", follow_authority(client_ca, pem, certificates, cx.shutdown.clone()));
    }
    members.push(Arc::new(tokens.clone()));
    let known = GroupAdder(Union::new(members));
    if anonymous { Ok(Arc::new(OrAnonymous(known))) } else { Ok(Arc::new(known)) }
}

/// Takes over a CA file that has changed.
async fn follow_authority(path: String, mut known: Vec<u8>, certificates: Arc<X509>, shutdown: Shutdown) {
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let Ok(pem) = shared::cert::read(&path) else { continue };
        if pem == known {
            continue;
        }
        match certificates.replace(&pem) {
            Ok(()) => tracing::info!(path, "Loaded a new client CA bundle"),
            Err(error) => tracing::error!(path, %error, "The client CA bundle is unusable, the old one stays"),
        }
        known = pem;
    }
}

impl Access {
    /// Reads the flags and the files they name.
    pub fn new(cx: &Context) -> Result<Arc<Self>, Error> {
        let flags = &cx.flags;
        let modes = modes(flags)?;
        let authorization = Arc::new(Authorization::new(&modes, cx.reader.clone(), bootstrap::node_rules()));
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
        if anonymous && modes.contains(&Mode::AlwaysAllow) {
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
            rbac: modes.contains(&Mode::Rbac),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Vec<Mode>, String> {
        modes(&FlagSet::of("kube-apiserver", args).expect("flags")).map_err(|e| e.to_string())
    }

    #[test]
    fn authorization_modes() {
        assert_eq!(parse(&[]), Ok(vec![Mode::AlwaysAllow]));
        assert_eq!(parse(&["--authorization-mode=Node,RBAC"]), Ok(vec![Mode::Node, Mode::Rbac]));
        assert_eq!(
            parse(&["--authorization-mode=Magic"]),
            Err("authorization-mode \"Magic\" is not a valid mode".into())
        );
        assert_eq!(
            parse(&["--authorization-mode=RBAC,RBAC"]),
            Err("authorization-mode \"RBAC\" has mode specified more than once".into())
        );
    }
}
