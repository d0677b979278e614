//! Delegated authentication and authorization of components other than the API server: client certificates, the front
//! proxy, TokenReview and SubjectAccessReview.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;

use super::ServeError;
use crate::authn::{
    Anonymous, Authenticator, AuthnError, Credentials, GroupAdder, Identity, OrAnonymous, RequestHeader,
    TokenReviewAuthenticator, Union, X509,
};
use crate::authz::{self, Authorizer, PathAllowList, PrivilegedGroups, SubjectAccessReviewAuthorizer};
use crate::flags::FlagSet;
use crate::informer::{Event, Factory, Scope};
use crate::run::{Shutdown, TaskGroup};

const LOOKUP_NAMESPACE: &str = "kube-system";
const LOOKUP_NAME: &str = "extension-apiserver-authentication";
const LOOK_AT_FILES: Duration = Duration::from_secs(60);

/// The front proxy's headers and trust.
#[derive(Clone, Debug, Default)]
struct FrontProxy {
    ca: String,
    allowed_names: Vec<String>,
    username: Vec<String>,
    uid: Vec<String>,
    group: Vec<String>,
    extra_prefix: Vec<String>,
}

/// Options of delegated authentication and authorization.
#[derive(Clone)]
pub struct DelegatedOptions {
    /// PEM file of the CA that signs client certificates, or empty. Read again when it changes.
    pub client_ca_file: String,
    /// Asked about bearer tokens.
    pub token_review: Option<Client>,
    /// Lifetime of a cached authentication.
    pub token_ttl: Duration,
    /// Audiences a token must be for; empty means the API server's own.
    pub audiences: Vec<String>,
    /// Anonymous requests are allowed.
    pub anonymous: bool,
    /// Asked what a user may do.
    pub access_review: Option<Client>,
    /// Lifetime of a cached permission.
    pub allow_ttl: Duration,
    /// Lifetime of a cached denial.
    pub deny_ttl: Duration,
    /// Paths anybody may ask.
    pub always_allow_paths: Vec<String>,
    /// Client that reads the cluster's client and front-proxy CAs.
    pub lookup: Option<Client>,
    front_proxy: FrontProxy,
}

impl Default for DelegatedOptions {
    fn default() -> Self {
        let ttl = Duration::from_secs(10);
        Self {
            client_ca_file: String::new(),
            token_review: None,
            token_ttl: ttl,
            audiences: Vec::new(),
            anonymous: true,
            access_review: None,
            allow_ttl: ttl,
            deny_ttl: ttl,
            always_allow_paths: Vec::new(),
            lookup: None,
            front_proxy: FrontProxy::default(),
        }
    }
}

/// A component's gate.
#[derive(Clone)]
pub struct Delegated {
    /// Authenticator.
    pub authenticator: Arc<dyn Authenticator>,
    /// Authorizer.
    pub authorizer: Arc<dyn Authorizer>,
}

impl DelegatedOptions {
    /// From the `--authentication-*`, `--authorization-*`, `--client-ca-file` and `--requestheader-*` flags of the
    /// controller manager and the scheduler. Without a kubeconfig for reviews nobody is reviewed, as upstream.
    pub async fn from_flags(flags: &FlagSet) -> Result<Self, ServeError> {
        let reviews = |flag: &'static str| async move {
            let path = flags.string(flag);
            if path.is_empty() {
                tracing::warn!("No {flag} provided, so requests are not reviewed by the API server");
                return Ok(None);
            }
            let options = crate::client::Options {
                kubeconfig: path,
                qps: 200.0,
                burst: 400,
                user_agent: crate::client::user_agent(flags.component()),
                ..Default::default()
            };
            crate::client::new(&options).await.map(Some).map_err(|e| ServeError::Setup(format!("{e:#}")))
        };
        let authentication = reviews("authentication-kubeconfig").await?;
        let same = flags.string("authentication-kubeconfig") == flags.string("authorization-kubeconfig");
        let access_review = match &authentication {
            Some(client) if same => Some(client.clone()),
            _ => reviews("authorization-kubeconfig").await?,
        };
        let ca = flags.string("requestheader-client-ca-file");
        let read = |path: &str| crate::cert::read(path).map(|b| String::from_utf8_lossy(&b).into_owned());
        let skip_lookup = flags.boolean("authentication-skip-lookup");
        // Lookups are retried in the background, so a failure is tolerated in any case.
        let _ = flags.boolean("authentication-tolerate-lookup-failure");
        Ok(Self {
            client_ca_file: flags.string("client-ca-file"),
            lookup: authentication.clone().filter(|_| !skip_lookup),
            token_review: authentication,
            token_ttl: flags.duration("authentication-token-webhook-cache-ttl"),
            access_review,
            allow_ttl: flags.duration("authorization-webhook-cache-authorized-ttl"),
            deny_ttl: flags.duration("authorization-webhook-cache-unauthorized-ttl"),
            always_allow_paths: flags.list("authorization-always-allow-paths"),
            front_proxy: FrontProxy {
                ca: if ca.is_empty() { ca } else { read(&ca)? },
                allowed_names: flags.list("requestheader-allowed-names"),
                username: flags.list("requestheader-username-headers"),
                uid: flags.list("requestheader-uid-headers"),
                group: flags.list("requestheader-group-headers"),
                extra_prefix: flags.list("requestheader-extra-headers-prefix"),
            },
            ..Self::default()
        })
    }

    /// Puts the gate together and starts what keeps its trust fresh.
    pub fn build(self, tasks: &TaskGroup, shutdown: &Shutdown) -> Result<Delegated, ServeError> {
        let given = Arc::new(DynamicX509::default());
        if !self.client_ca_file.is_empty() {
            given.set(&crate::cert::read(&self.client_ca_file)?)?;
            keep_fresh(self.client_ca_file.clone(), Arc::clone(&given), tasks, shutdown);
        }
        let looked_up = Arc::new(DynamicX509::default());
        let proxy = Arc::new(DynamicFrontProxy::default());
        if !self.front_proxy.ca.is_empty() {
            proxy.set(&self.front_proxy)?;
        }
        if let Some(client) = self.lookup {
            let want_proxy = self.front_proxy.ca.is_empty();
            look_up(client, Arc::clone(&looked_up), want_proxy.then(|| Arc::clone(&proxy)), tasks, shutdown);
        }
        let mut members: Vec<Arc<dyn Authenticator>> = vec![proxy, given, looked_up];
        if let Some(client) = self.token_review {
            members.push(Arc::new(TokenReviewAuthenticator::new(client, self.audiences, self.token_ttl)));
        }
        let known = GroupAdder(Union::new(members));
        let authenticator: Arc<dyn Authenticator> =
            if self.anonymous { Arc::new(OrAnonymous { chain: known, paths: Vec::new() }) } else { Arc::new(known) };
        let mut members: Vec<Arc<dyn Authorizer>> = vec![
            Arc::new(PrivilegedGroups(vec![crate::authn::SYSTEM_MASTERS.to_owned()])),
            Arc::new(PathAllowList::new(&self.always_allow_paths)),
        ];
        if let Some(client) = self.access_review {
            members.push(Arc::new(SubjectAccessReviewAuthorizer::new(client, self.allow_ttl, self.deny_ttl)));
        }
        Ok(Delegated { authenticator, authorizer: Arc::new(authz::Union::new(members)) })
    }
}

impl Delegated {
    /// Everybody may do everything, as anonymous.
    pub fn open() -> Self {
        Self { authenticator: Arc::new(Anonymous), authorizer: Arc::new(authz::AlwaysAllow) }
    }
}

/// Client certificates under roots that may come later or change.
#[derive(Default)]
struct DynamicX509(ArcSwapOption<X509>);

impl DynamicX509 {
    fn set(&self, pem: &[u8]) -> Result<(), AuthnError> {
        self.0.store(Some(Arc::new(X509::new(pem)?)));
        Ok(())
    }
}

#[async_trait]
impl Authenticator for DynamicX509 {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        match self.0.load_full() {
            Some(x509) => x509.authenticate(request).await,
            None => Ok(None),
        }
    }
}

#[derive(Default)]
struct DynamicFrontProxy(ArcSwapOption<RequestHeader>);

impl DynamicFrontProxy {
    fn set(&self, p: &FrontProxy) -> Result<(), AuthnError> {
        let names = p.allowed_names.clone();
        let headers = RequestHeader::new(p.ca.as_bytes(), names, &p.username, &p.uid, &p.group, &p.extra_prefix)?;
        self.0.store(Some(Arc::new(headers)));
        Ok(())
    }
}

#[async_trait]
impl Authenticator for DynamicFrontProxy {
    async fn authenticate(&self, request: &Credentials<'_>) -> Result<Option<Identity>, AuthnError> {
        match self.0.load_full() {
            Some(headers) => headers.authenticate(request).await,
            None => Ok(None),
        }
    }
}

fn keep_fresh(path: String, x509: Arc<DynamicX509>, tasks: &TaskGroup, shutdown: &Shutdown) {
    let shutdown = shutdown.clone();
    tasks.spawn("client-ca", async move {
        let changed = |path: &str| std::fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut seen = changed(&path);
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(LOOK_AT_FILES) => {}
            }
            let now = changed(&path);
            if now == seen {
                continue;
            }
            let set = crate::cert::read(&path).map_err(|e| e.to_string());
            match set.and_then(|pem| x509.set(&pem).map_err(|e| e.to_string())) {
                Ok(()) => seen = now,
                Err(e) => tracing::warn!(err = e, path = path.as_str(), "Keeping the previous client CA"),
            }
        }
    });
}

/// Follows the ConfigMap in which the API server publishes its client CA and its front proxy's.
fn look_up(
    client: Client,
    x509: Arc<DynamicX509>,
    proxy: Option<Arc<DynamicFrontProxy>>,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) {
    let factory = Factory::new(client, tasks.clone(), shutdown.clone());
    let scope = Scope {
        namespace: Some(LOOKUP_NAMESPACE.to_owned()),
        fields: Some(format!("metadata.name={LOOKUP_NAME}")),
        ..Scope::default()
    };
    factory.informer_in::<ConfigMap>(scope).add_handler(move |event| {
        if matches!(event, Event::Deleted(_)) {
            return;
        }
        if let Err(e) = take_over(event.object(), &x509, proxy.as_deref()) {
            tracing::warn!(err = %e, configmap = LOOKUP_NAME, "Keeping the previous trust in clients");
        }
    });
    factory.start();
}

fn take_over(map: &ConfigMap, x509: &DynamicX509, proxy: Option<&DynamicFrontProxy>) -> Result<(), AuthnError> {
    let data = map.data.clone().unwrap_or_default();
    let text = |key: &str| data.get(key).map_or("", String::as_str);
    // An empty list of names is every name: one that cannot be read is not empty.
    let list = |key: &str| match text(key) {
        "" => Ok(Vec::new()),
        text => serde_json::from_str::<Vec<String>>(text).map_err(|e| AuthnError(format!("{key}: {e}"))),
    };
    if !text("client-ca-file").is_empty() {
        x509.set(text("client-ca-file").as_bytes())?;
    }
    let ca = text("requestheader-client-ca-file");
    if let (Some(proxy), false) = (proxy, ca.is_empty()) {
        proxy.set(&FrontProxy {
            ca: ca.to_owned(),
            allowed_names: list("requestheader-allowed-names")?,
            username: list("requestheader-username-headers")?,
            uid: list("requestheader-uid-headers")?,
            group: list("requestheader-group-headers")?,
            extra_prefix: list("requestheader-extra-headers-prefix")?,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_read_let_nobody_in() {
        let ca = crate::cert::self_signed("front", &[], &[]).expect("a pair").certificate;
        let map = |names: &str| {
            let data = [("requestheader-client-ca-file", ca.as_str()), ("requestheader-allowed-names", names)];
            let data = data.into_iter().map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
            ConfigMap { data: Some(data), ..ConfigMap::default() }
        };
        let (x509, proxy) = (DynamicX509::default(), DynamicFrontProxy::default());
        assert!(take_over(&map("[\"front-proxy\""), &x509, Some(&proxy)).is_err());
        assert!(proxy.0.load().is_none());
        assert!(take_over(&map("[\"front-proxy\"]"), &x509, Some(&proxy)).is_ok());
        assert!(proxy.0.load().is_some());
    }
}
