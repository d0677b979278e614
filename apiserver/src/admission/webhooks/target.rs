//! Addresses of webhooks: a URL, or a service of the cluster.

use rand::seq::IndexedRandom as _;
use serde_json::Value;
use shared::host_port;
use shared::url::joined;

use crate::api::Reader;
use crate::egress::NetworkContext;
use crate::machinery::tree;
use crate::registry::core::service::SERVICES;
use crate::registry::discovery::endpoint_slice::ENDPOINT_SLICES;

/// A `clientConfig` or URL that names nobody who could be called.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// There is neither a service nor a URL.
    #[error("webhook configuration must have either service or URL")]
    Neither,
    /// The text is no URL.
    #[error("{url:?}: {source}")]
    Url {
        /// The text.
        url: String,
        /// Cause.
        source: http::uri::InvalidUri,
    },
    /// The URL is not one of HTTPS.
    #[error("{0:?}: an https URL is needed")]
    NotHttps(String),
}

/// A service without an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceAddressError {
    /// There is no service of this name.
    #[error("service {0:?} not found")]
    NoService(String),
    /// The service does not have the port.
    #[error("no service port {port} found for service {service:?}")]
    NoPort {
        /// Name of the service.
        service: String,
        /// The port.
        port: i64,
    },
    /// The service has no cluster IP.
    #[error("no cluster IP found for service {0:?}")]
    NoClusterIp(String),
    /// The service has no ready endpoint.
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
}

/// Address of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookAddress {
    /// The name its certificate must have.
    pub(crate) server: String,
    pub(super) port: String,
    /// The `Host` of the request.
    pub(super) host: String,
    pub(in super::super) path: String,
    /// The service to find it by.
    service: Option<Service>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Service {
    namespace: String,
    name: String,
    port: i64,
}

impl WebhookAddress {
    /// Reads a `clientConfig`.
    pub(super) fn read(client: &Value) -> Result<Self, TargetError> {
        let url = tree::text(client, "/url");
        if !url.is_empty() {
            let target = Self::at(url)?;
            return Ok(Self { path: clean(&target.path), ..target });
        }
        let of = |f: &str| tree::text(client, &format!("/service/{f}"));
        let (namespace, name) = (of("namespace"), of("name"));
        if name.is_empty() {
            return Err(TargetError::Neither);
        }
        let port = tree::int(client, "/service/port").unwrap_or(443);
        Ok(Self { path: clean(of("path")), ..Self::service(namespace, name, port) })
    }

    /// Behind a service.
    pub(crate) fn service(namespace: &str, name: &str, port: i64) -> Self {
        let server = format!("{name}.{namespace}.svc");
        let service = Service { namespace: namespace.to_owned(), name: name.to_owned(), port };
        Self {
            host: format!("{server}:{port}"),
            server,
            port: port.to_string(),
            path: "/".to_owned(),
            service: Some(service),
        }
    }

    /// At an https URL.
    pub(in super::super) fn at(url: &str) -> Result<Self, TargetError> {
        let uri: http::Uri = url.parse().map_err(|source| TargetError::Url { url: url.to_owned(), source })?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| TargetError::NotHttps(url.to_owned()))?;
        let port = uri.port_u16().unwrap_or(443);
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        Ok(Self {
            server: host_port::bare(host).to_owned(),
            port: port.to_string(),
            host: uri.authority().map(ToString::to_string).unwrap_or_default(),
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
            service: None,
        })
    }

    /// Target of a redirect. The certificate name of a service stays the same throughout.
    pub(super) fn elsewhere(&self, to: Self) -> Self {
        let server = if self.service.is_some() { self.server.clone() } else { to.server };
        Self { server, ..to }
    }

    /// Egress network of the target.
    pub(super) fn network(&self) -> NetworkContext {
        if self.service.is_some() { NetworkContext::Cluster } else { NetworkContext::ControlPlane }
    }

    /// Host and port to connect to. Services are found by their cluster IP, or directly by an endpoint.
    pub(crate) fn address(&self, reader: &dyn Reader, direct: bool) -> Result<String, ServiceAddressError> {
        let Some(service) = &self.service else { return Ok(host_port::join(&self.server, &self.port)) };
        let (name, port) = (&service.name, service.port);
        let found = reader.get(SERVICES, &service.namespace, name);
        let found = found.ok_or_else(|| ServiceAddressError::NoService(name.clone()))?;
        if tree::text(&found, "/spec/type") == "ExternalName" {
            return Ok(host_port::join(tree::text(&found, "/spec/externalName"), &self.port));
        }
        let own = tree::list(&found, "/spec/ports").iter().find(|p| tree::int(p, "/port") == Some(port));
        let own = own.ok_or_else(|| ServiceAddressError::NoPort { service: name.clone(), port })?;
        match tree::text(&found, "/spec/clusterIP") {
            ip if !direct && !matches!(ip, "" | "None") => Ok(host_port::join(ip, &self.port)),
            "" | "None" if !direct => Err(ServiceAddressError::NoClusterIp(name.clone())),
            _ => endpoint(reader, service, tree::name_field(own)),
        }
    }
}

/// A path as upstream's client makes it of what is configured: from the root, each slash once and none at the end.
/// Servers in Go would send whoever asks otherwise elsewhere.
fn clean(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    String::from_utf8_lossy(&joined(b"/", path.trim_end_matches('/').as_bytes())).into_owned()
}

/// One of the ready endpoints of a service port.
fn endpoint(reader: &dyn Reader, service: &Service, port: &str) -> Result<String, ServiceAddressError> {
    let mut all = Vec::new();
    for slice in reader.list(ENDPOINT_SLICES, Some(&service.namespace)) {
        if tree::label(&slice, "kubernetes.io/service-name") != Some(&service.name) {
            continue;
        }
        let number = tree::list(&slice, "/ports")
            .iter()
            .find(|p| tree::name_field(p) == port)
            .and_then(|p| tree::int(p, "/port"));
        let Some(number) = number else { continue };
        let ready =
            tree::list(&slice, "/endpoints").iter().filter(|e| tree::maybe_flag(e, "/conditions/ready") != Some(false));
        all.extend(ready.filter_map(|e| tree::strings(e, "/addresses").first().map(|a| host_port::join(a, number))));
    }
    all.choose(&mut rand::rng()).cloned().ok_or_else(|| ServiceAddressError::NoEndpoints(service.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use serde_json::json;

    #[test]
    fn paths_match_upstreams_client() {
        for (url, want) in
            [("", "/"), ("/", "/"), ("//failing", "/failing"), ("/a/", "/a"), ("/a/./b/../c?q=1", "/a/c")]
        {
            let at_url = WebhookAddress::read(&json!({"url": format!("https://a{url}")})).expect("a URL");
            let of_service = json!({"service": {"namespace": "n", "name": "hook", "path": url}});
            let of_service = WebhookAddress::read(&of_service).expect("a service");
            assert_eq!((at_url.path.as_str(), of_service.path.as_str()), (want, want), "{url}");
        }
    }

    #[test]
    fn addresses_of_webhooks() {
        let cluster = Fixed::default();
        let service = json!({"metadata": {"name": "hook", "namespace": "n"}, "spec": {"clusterIP": "10.0.0.7", "ports": [{"name": "web", "port": 443}]}});
        cluster.put("", "services", service);
        let slice = json!({"metadata": {"name": "hook-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "hook"}},
            "ports": [{"name": "web", "port": 9443}], "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": false}}, {"addresses": ["10.1.0.2"]}]});
        cluster.put("discovery.k8s.io", "endpointslices", slice);
        let client = |port: i64| json!({"service": {"namespace": "n", "name": "hook", "path": "/check", "port": port}});
        let target = WebhookAddress::read(&client(443)).expect("a target");
        assert_eq!(
            (target.server.as_str(), target.host.as_str(), target.path.as_str()),
            ("hook.n.svc", "hook.n.svc:443", "/check")
        );
        assert_eq!(target.address(&cluster, false).as_deref(), Ok("10.0.0.7:443"));
        assert_eq!(target.address(&cluster, true).as_deref(), Ok("10.1.0.2:9443"));
        let other = WebhookAddress::read(&client(8443)).expect("a target");
        assert_eq!(
            other.address(&cluster, false),
            Err(ServiceAddressError::NoPort { service: "hook".into(), port: 8443 })
        );
        cluster.remove("", "services", "n", "hook");
        assert_eq!(target.address(&cluster, false), Err(ServiceAddressError::NoService("hook".into())));
        let url = WebhookAddress::read(&json!({"url": "https://127.0.0.1:9443/x"})).expect("a URL");
        assert_eq!((url.address(&cluster, false).as_deref(), url.path.as_str()), (Ok("127.0.0.1:9443"), "/x"));
        assert!(WebhookAddress::read(&json!({"url": "http://a/x"})).is_err());
    }
}
