//! `pods/proxy`, `services/proxy` and `nodes/proxy`: any request, to an address that the object names. The name in the
//! path may carry a scheme and a port: `https:web:8443`. Answers for upstream's `apimachinery/pkg/util/proxy`
//! (`UpgradeAwareHandler`), `ResourceLocation`.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::LOCATION;
use actix_web::http::{Uri, Version};
use proto::Value;
use rand::seq::SliceRandom as _;
use shared::cert;
use shared::status::Status;
use shared::upgrade::{self, RequestHead};
use shared::url::{escaped_path, joined};

use super::pages::{self, Links};
use super::transport::{Origin, body, host, sent_on};
use super::{Call, Connect, pods};
use crate::api::RequestInfo;
use crate::machinery::GroupResource;
use crate::registry::core::endpoints::ENDPOINTS;
use crate::registry::core::node::NODES;
use crate::registry::core::pod::PODS;
use crate::registry::core::service::SERVICES;

/// `[scheme:]name[:port]`.
#[derive(Debug, PartialEq, Eq)]
struct Name<'a> {
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

impl<'a> Name<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            [name] => Some(Self { scheme: "", name, port: "" }),
            [name, port] => Some(Self { scheme: "", name, port }),
            [scheme @ ("" | "http" | "https"), name, port] => Some(Self { scheme, name, port }),
            _ => None,
        }
    }
}

/// Backend of a proxied request.
struct Target {
    origin: Origin,
    /// Host as the backend's own links name it.
    host: String,
}

impl From<Origin> for Target {
    fn from(origin: Origin) -> Self {
        Self { host: origin.authority(), origin }
    }
}

impl Connect {
    /// Proxies one request.
    pub(super) async fn proxy(&self, call: Call<'_>) -> Result<HttpResponse, Status> {
        let invalid = || {
            Status::bad_request(&format!(
                "invalid {} request {:?}",
                call.info.resource.trim_end_matches('s'),
                call.info.name
            ))
        };
        let name = Name::parse(&call.info.name).filter(|name| !name.name.is_empty()).ok_or_else(invalid)?;
        let Target { origin, host: theirs } = match GroupResource::new(&call.info.api_group, &call.info.resource) {
            PODS => self.pod_target(&call, &name).await?,
            SERVICES => self.service_origin(&call, &name).await?.into(),
            _ => self.node_origin(&name).await?.into(),
        };
        permitted(&origin).await?;
        let path = inner_path(call.info);
        let target = String::from_utf8_lossy(&escaped_path(&path)).into_owned();
        let method = call.request.method().as_str();
        if upgrade::protocol(call.request).is_some() {
            // As upstream does, which forgets the query here.
            let headers = sent_on(call.request, true, &self.front_proxy);
            let path_and_query = if target.is_empty() { "/".to_owned() } else { target };
            let head = RequestHead { method: method.to_owned(), path_and_query, headers };
            return pods::relayed(call, &origin, head, self.limit).await;
        }
        let query = call.request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        if target.is_empty() && matches!(method, "GET" | "HEAD") {
            let location = format!("{}/{query}", call.info.path);
            return Ok(HttpResponse::MovedPermanently().insert_header((LOCATION, location)).finish());
        }
        let links = links(&call, theirs, &path);
        let target = if target.is_empty() { "/".to_owned() } else { target };
        let mut headers = sent_on(call.request, false, &self.front_proxy);
        pages::forward(&mut headers, &links, target.as_bytes());
        let packed = pages::ask_packed(method, &mut headers);
        let answered = origin.send(method, &format!("{target}{query}"), &headers, body(call.payload)).await;
        let response = answered
            .map_err(|e| Status::service_unavailable(&format!("error trying to reach service: {}", origin.why(&e))))?;
        pages::led_back(response, links, packed).await
    }

    async fn pod_target(&self, call: &Call<'_>, name: &Name<'_>) -> Result<Target, Status> {
        let pod = self.api.get(PODS, &call.info.namespace, name.name).await?;
        let ip = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or_default();
        if ip.is_empty() {
            return Err(Status::bad_request("address not allowed"));
        }
        let port = pod_port(&pod, name)?;
        let origin = self.origin(name.scheme, ip, port.unwrap_or(if name.scheme == "https" { 443 } else { 80 }))?;
        Ok(match port {
            Some(_) => origin.into(),
            None if ip.contains(':') => Target { origin, host: format!("[{ip}]") },
            None => Target { origin, host: ip.to_owned() },
        })
    }

    async fn service_origin(&self, call: &Call<'_>, name: &Name<'_>) -> Result<Origin, Status> {
        let namespace = call.info.namespace.as_str();
        let port_name = match name.port.parse() {
            Ok(number) => {
                let service = self.api.get(SERVICES, namespace, name.name).await?;
                service_port(&service, number, name.name)?
            }
            Err(_) => name.port.to_owned(),
        };
        let none = |what: &str| Status::service_unavailable(&format!("no endpoints available for service {what:?}"));
        let endpoints = self.api.get(ENDPOINTS, namespace, name.name).await;
        // Upstream speaks of the service.
        let endpoints =
            endpoints.map_err(|status| if status.is_not_found() { SERVICES.not_found(name.name) } else { status })?;
        if endpoints["subsets"].as_array().is_none_or(Vec::is_empty) {
            return Err(none(name.name));
        }
        let mut candidates = addresses(&endpoints, &port_name, namespace);
        candidates.shuffle(&mut rand::rng());
        for EndpointCandidate { ip, port, pod } in candidates {
            let found = self.api.get(PODS, namespace, pod).await;
            if found.is_ok_and(|pod| has_address(&pod, ip)) {
                return self.origin(name.scheme, ip, port);
            }
        }
        Err(none(&call.info.name))
    }

    async fn node_origin(&self, name: &Name<'_>) -> Result<Origin, Status> {
        let node = self.api.get(NODES, "", name.name).await?;
        let kubelet = self.kubelets.locate(&node)?;
        if name.port.is_empty() || name.port == kubelet.port.to_string() {
            return Ok(kubelet);
        }
        let port =
            name.port.parse().map_err(|_| Status::bad_request(&format!("invalid node request {:?}", name.name)))?;
        self.origin(name.scheme, &kubelet.host, port)
    }

    fn origin(&self, scheme: &str, host: &str, port: u16) -> Result<Origin, Status> {
        let tls = match scheme {
            "https" => Some(Arc::new(
                cert::client_tls(cert::Trust::Anybody, None).map_err(|error| Status::internal(&error.to_string()))?,
            )),
            _ => None,
        };
        Ok(Origin { host: host.to_owned(), port, tls, name: None, egress: self.kubelets.egress.clone() })
    }
}

/// Reports whether requests may be proxied to an address: not to this machine, nor to link-local or multicast
/// addresses, such as a cloud's metadata service.
fn proxyable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast()),
    }
}

/// Refuses an origin with an address that is not for proxying, whatever it is called.
async fn permitted(origin: &Origin) -> Result<(), Status> {
    let refused = || Status::bad_request("address not allowed");
    if let Ok(ip) = origin.host.parse::<IpAddr>() {
        return if proxyable(ip) { Ok(()) } else { Err(refused()) };
    }
    let found = tokio::net::lookup_host((origin.host.as_str(), origin.port)).await;
    let found: Vec<_> = found.map_err(|error| Status::bad_request(&error.to_string()))?.collect();
    if found.is_empty() {
        return Err(Status::bad_request("no addresses for hostname"));
    }
    if found.iter().all(|address| proxyable(address.ip())) { Ok(()) } else { Err(refused()) }
}

/// The port of a pod: the number, a named one, the first there is. Otherwise it is that of the scheme.
fn pod_port(pod: &Value, name: &Name<'_>) -> Result<Option<u16>, Status> {
    let wanted = name.port;
    if let Ok(port) = wanted.parse() {
        return Ok(Some(port));
    }
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let found = ports.find(|port| wanted.is_empty() || port["name"] == wanted);
    let number = found.and_then(|port| port["containerPort"].as_u64()).and_then(|port| u16::try_from(port).ok());
    match number {
        Some(port) => Ok(Some(port)),
        None if wanted.is_empty() => Ok(None),
        None => Err(Status::bad_request(&format!("invalid port name {wanted:?}"))),
    }
}

/// The name of the service's port of a number.
fn service_port(service: &Value, wanted: i64, name: &str) -> Result<String, Status> {
    let mut ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let missing = || Status::service_unavailable(&format!("no service port {wanted} found for service {name:?}"));
    let found = ports.find(|port| port["port"] == wanted).ok_or_else(missing)?;
    Ok(found["name"].as_str().unwrap_or_default().to_owned())
}

/// Endpoint of a service, if its pod has the address.
#[derive(Debug, PartialEq, Eq)]
struct EndpointCandidate<'a> {
    ip: &'a str,
    port: u16,
    pod: &'a str,
}

/// The ready addresses of a port. Anybody who writes endpoints could lead anywhere: only those of pods of the same
/// namespace count, and only while the pods say so themselves.
fn addresses<'a>(endpoints: &'a Value, port_name: &str, namespace: &str) -> Vec<EndpointCandidate<'a>> {
    let mut found = Vec::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let mut ports = subset["ports"].as_array().into_iter().flatten();
        let port = ports.find(|port| port["name"].as_str().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|port| u16::try_from(port["port"].as_u64()?).ok()) else { continue };
        let all = subset["addresses"].as_array().into_iter().flatten();
        let own = all.filter(|address| address["targetRef"]["namespace"] == namespace);
        found.extend(own.filter_map(|address| {
            let (ip, pod) = (address["ip"].as_str()?, address["targetRef"]["name"].as_str()?);
            Some(EndpointCandidate { ip, port, pod })
        }));
    }
    found
}

/// Reports whether a pod has an address.
fn has_address(pod: &Value, ip: &str) -> bool {
    pod["status"]["podIPs"].as_array().into_iter().flatten().any(|own| own["ip"] == ip)
}

/// The path behind `/proxy` without escapes, empty parts, `.` and `..`; nothing where nothing was said, not even a
/// slash.
fn inner_path(info: &RequestInfo) -> Vec<u8> {
    let mut path = info.parts.get(3..).unwrap_or_default().join("/");
    if !path.is_empty() && !path.starts_with('/') {
        path.insert(0, '/');
    }
    if info.path.ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    joined(b"", path.as_bytes())
}

/// Builds the rewriting of links for a response.
fn links(call: &Call<'_>, theirs: String, path: &[u8]) -> Links {
    // Over HTTP/2 every request names its host; otherwise another proxy wrote the line.
    let line = Some(call.request.uri()).filter(|_| call.request.version() != Version::HTTP_2);
    let asked = call.info.path.as_bytes();
    Links {
        scheme: line.and_then(Uri::scheme_str).unwrap_or_default().to_owned(),
        host: line.and_then(Uri::authority).map(|host| host.as_str().to_owned()).unwrap_or_default(),
        prefix: asked.strip_suffix(path).unwrap_or(asked).to_vec(),
        theirs: theirs.into_bytes(),
        asked: host(call.request).as_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Egress;
    use crate::machinery::query::Query;
    use crate::serve::info::request_info;
    use serde_json::json;

    #[tokio::test]
    async fn some_addresses_are_nobodys_business() {
        let at =
            |host: &str| Origin { host: host.to_owned(), port: 80, tls: None, name: None, egress: Egress::default() };
        for (host, open) in [
            ("10.0.0.1", true),
            ("192.168.1.1", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("fe80::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("localhost", false),
        ] {
            let refused = permitted(&at(host)).await.err().map(|status| (status.code, status.message));
            let wanted = (!open).then(|| (400, "address not allowed".to_owned()));
            assert_eq!(refused, wanted, "{host}");
        }
    }

    #[test]
    fn names_carry_schemes_and_ports() {
        let table = [
            ("web", Some(("", "web", ""))),
            ("web:80", Some(("", "web", "80"))),
            ("https:web:", Some(("https", "web", ""))),
            ("http:web:http", Some(("http", "web", "http"))),
            ("ftp:web:21", None),
            ("a:b:c:d", None),
        ];
        for (text, expected) in table {
            let found = Name::parse(text);
            assert_eq!(found, expected.map(|(scheme, name, port)| Name { scheme, name, port }), "{text}");
        }
    }

    #[test]
    fn ports_of_pods() {
        let open = json!({"spec": {"containers": [{}, {"ports": [{"name": "web", "containerPort": 8080}, {"name": "tls", "containerPort": 8443}]}]}});
        let closed = json!({"spec": {"containers": [{}]}});
        for (pod, text, want) in [
            (&open, "p", Ok(Some(8080))),
            (&open, "https:p:", Ok(Some(8080))),
            (&open, "https:p:tls", Ok(Some(8443))),
            (&open, "p:9", Ok(Some(9))),
            (&open, "p:x", Err("invalid port name \"x\"")),
            (&closed, "p", Ok(None)),
            (&closed, "https:p:", Ok(None)),
        ] {
            let name = Name::parse(text).expect("a name");
            let got = pod_port(pod, &name).map_err(|status| status.message);
            assert_eq!(got, want.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn proxied_request_line_and_headers() {
        for (path, want) in [
            ("/api/v1/namespaces/n/pods/p/proxy", ""),
            ("/api/v1/namespaces/n/pods/p/proxy/", "/"),
            ("/api/v1/namespaces/n/pods/p/proxy/a/b", "/a/b"),
            ("/api/v1/namespaces/n/pods/p/proxy//a/./b/../c/", "/a/c/"),
            ("/api/v1/namespaces/n/pods/p/proxy/../../x", "/x"),
            ("/api/v1/nodes/n/proxy/a b", "/a b"),
            ("//api/v1/nodes/n/proxy/a", "/a"),
        ] {
            let info = request_info("GET", path, &Query::parse(""));
            assert_eq!(String::from_utf8_lossy(&inner_path(&info)), want, "{path}");
        }
    }

    #[test]
    fn a_service_leads_to_its_ready_pods() {
        let service = json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "admin", "port": 81}]}});
        let port = |number| service_port(&service, number, "web").map_err(|status| status.message);
        assert_eq!(port(81), Ok("admin".to_owned()));
        assert_eq!(port(82), Err("no service port 82 found for service \"web\"".to_owned()));
        let pod = |namespace: &str| json!({"kind": "Pod", "namespace": namespace, "name": "p"});
        let endpoints = json!({"subsets": [{
            "addresses": [{"ip": "10.0.0.1", "targetRef": pod("n")}, {"ip": "10.0.0.3"}, {"ip": "10.0.0.4", "targetRef": pod("m")}],
            "notReadyAddresses": [{"ip": "10.0.0.2", "targetRef": pod("n")}],
            "ports": [{"name": "http", "port": 8080}]}]});
        assert_eq!(addresses(&endpoints, "http", "n"), [EndpointCandidate { ip: "10.0.0.1", port: 8080, pod: "p" }]);
        assert!(addresses(&endpoints, "", "n").is_empty(), "a port that has a name is asked for by it");
        let there = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        assert!(has_address(&there, "10.0.0.1") && !has_address(&there, "10.0.0.2"));
    }
}
