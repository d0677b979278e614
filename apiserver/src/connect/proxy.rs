//! `pods/proxy`, `services/proxy` and `nodes/proxy`: any request, to an address that the object names. The name in the
//! path may carry a scheme and a port: `https:web:8443`.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::{HeaderName, HeaderValue, LOCATION};
use proto::Value;
use rand::seq::SliceRandom as _;
use shared::cert;
use shared::status::Status;
use shared::upgrade::{self, RequestHead};

use super::transport::{Origin, body, host, sent_on};
use super::{Call, Connect, pods};

/// What the other side says of pages of other origins is not for it to say.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

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
        let origin = match call.info.resource.as_str() {
            "pods" => self.pod_origin(&call, &name).await?,
            "services" => self.service_origin(&call, &name).await?,
            _ => self.node_origin(&name).await?,
        };
        permitted(&origin).await?;
        let uri = call.request.uri();
        let (prefix, rest) = split(uri.path(), !call.info.namespace.is_empty()).ok_or_else(invalid)?;
        let method = call.request.method().as_str();
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = if rest.is_empty() { format!("/{query}") } else { format!("{rest}{query}") };
        if upgrade::protocol(call.request).is_some() {
            let headers = sent_on(call.request, true, &self.front_proxy);
            let head = RequestHead { method: method.to_owned(), path_and_query: target, headers };
            return pods::relayed(call, &origin, head, self.limit).await;
        }
        if rest.is_empty() && matches!(method, "GET" | "HEAD") {
            let location = format!("{prefix}/{query}");
            return Ok(HttpResponse::MovedPermanently().insert_header((LOCATION, location)).finish());
        }
        let mut headers = sent_on(call.request, false, &self.front_proxy);
        if let Ok(path) = HeaderValue::from_str(uri.path()) {
            headers.insert(HeaderName::from_static("x-forwarded-uri"), path);
        }
        let answered = origin.send(method, &target, &headers, body(call.payload)).await;
        let mut response = answered
            .map_err(|e| Status::service_unavailable(&format!("error trying to reach service: {}", origin.why(&e))))?;
        for name in CORS {
            response.headers_mut().remove(name);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.and_then(|to| relocated(to, prefix, [&origin.authority(), host(call.request)]));
        if let Some(Ok(location)) = location.map(|to| HeaderValue::from_str(&to)) {
            response.headers_mut().insert(LOCATION, location);
        }
        Ok(response)
    }

    async fn pod_origin(&self, call: &Call<'_>, name: &Name<'_>) -> Result<Origin, Status> {
        let pod = self.api.get("", "pods", &call.info.namespace, name.name).await?;
        let ip = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or_default();
        if ip.is_empty() {
            return Err(Status::bad_request("address not allowed"));
        }
        self.origin(name.scheme, ip, pod_port(&pod, name)?)
    }

    async fn service_origin(&self, call: &Call<'_>, name: &Name<'_>) -> Result<Origin, Status> {
        let namespace = call.info.namespace.as_str();
        let port_name = match name.port.parse() {
            Ok(number) => {
                let service = self.api.get("", "services", namespace, name.name).await?;
                service_port(&service, number, name.name)?
            }
            Err(_) => name.port.to_owned(),
        };
        let none = |what: &str| Status::service_unavailable(&format!("no endpoints available for service {what:?}"));
        let endpoints = self.api.get("", "endpoints", namespace, name.name).await;
        // Upstream speaks of the service.
        let endpoints = endpoints.map_err(|status| {
            if status.is_not_found() { Status::not_found("", "services", name.name) } else { status }
        })?;
        if endpoints["subsets"].as_array().is_none_or(Vec::is_empty) {
            return Err(none(name.name));
        }
        let mut candidates = addresses(&endpoints, &port_name, namespace);
        candidates.shuffle(&mut rand::rng());
        for Candidate { ip, port, pod } in candidates {
            let found = self.api.get("", "pods", namespace, pod).await;
            if found.is_ok_and(|pod| has_address(&pod, ip)) {
                return self.origin(name.scheme, ip, port);
            }
        }
        Err(none(&call.info.name))
    }

    async fn node_origin(&self, name: &Name<'_>) -> Result<Origin, Status> {
        let node = self.api.get("", "nodes", "", name.name).await?;
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

/// Whether somebody who may proxy may be led to an address: never to this machine itself, nor to what only machines on
/// the same wire should reach, such as a cloud's metadata.
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

/// The port of a pod: the number, a named one, the first there is, or that of the scheme.
fn pod_port(pod: &Value, name: &Name<'_>) -> Result<u16, Status> {
    let wanted = name.port;
    if let Ok(port) = wanted.parse() {
        return Ok(port);
    }
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let found = ports.find(|port| wanted.is_empty() || port["name"] == wanted);
    let number = found.and_then(|port| port["containerPort"].as_u64()).and_then(|port| u16::try_from(port).ok());
    match number {
        Some(port) => Ok(port),
        None if wanted.is_empty() => Ok(if name.scheme == "https" { 443 } else { 80 }),
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

/// Where a service may be, if a pod is there.
#[derive(Debug, PartialEq, Eq)]
struct Candidate<'a> {
    ip: &'a str,
    port: u16,
    pod: &'a str,
}

/// The ready addresses of a port. Anybody who writes endpoints could lead anywhere: only those of pods of the same
/// namespace count, and only while the pods say so themselves.
fn addresses<'a>(endpoints: &'a Value, port_name: &str, namespace: &str) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let mut ports = subset["ports"].as_array().into_iter().flatten();
        let port = ports.find(|port| port["name"].as_str().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|port| u16::try_from(port["port"].as_u64()?).ok()) else { continue };
        let all = subset["addresses"].as_array().into_iter().flatten();
        let own = all.filter(|address| address["targetRef"]["namespace"] == namespace);
        found.extend(own.filter_map(|address| {
            let (ip, pod) = (address["ip"].as_str()?, address["targetRef"]["name"].as_str()?);
            Some(Candidate { ip, port, pod })
        }));
    }
    found
}

/// Whether a pod has an address.
fn has_address(pod: &Value, ip: &str) -> bool {
    pod["status"]["podIPs"].as_array().into_iter().flatten().any(|own| own["ip"] == ip)
}

/// The part of a path up to `/proxy`, and what comes after it; `None` for one in which it cannot be told where that is.
fn split(path: &str, namespaced: bool) -> Option<(&str, &str)> {
    // "/api/v1/namespaces/NS/pods/NAME/proxy" or "/api/v1/nodes/NAME/proxy"; slashes may stand there twice.
    let mut at = 0;
    for _ in 0..if namespaced { 7 } else { 5 } {
        let slashes = path[at..].bytes().take_while(|byte| *byte == b'/').count();
        at += slashes + path[at + slashes..].find('/').unwrap_or(path.len() - at - slashes);
    }
    let (prefix, rest) = path.split_at(at);
    (!prefix.to_ascii_lowercase().contains("%2f")).then_some((prefix, rest))
}

/// A redirect of the other side, so that it leads through the proxy again; `None` for one that stays as it is. The other
/// side's host may be called by its address, or as the client calls this server.
fn relocated(to: &str, prefix: &str, [theirs, ours]: [&str; 2]) -> Option<String> {
    let begins = match to.find("://") {
        Some(at) if to[..at].bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) => at + 3,
        _ if to.starts_with("//") => 2,
        _ => 0,
    };
    let inside = &to[begins..];
    let (host, rest) = match begins {
        0 => ("", inside),
        _ => inside.split_at(inside.find(['/', '?', '#']).unwrap_or(inside.len())),
    };
    let (path, after) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    if !(host.is_empty() || host == theirs || host == ours) || !path.starts_with('/') {
        return None;
    }
    let kept = if !host.is_empty() && host == ours { &to[..begins + host.len()] } else { "" };
    if path.starts_with(prefix) {
        return Some(format!("{kept}{path}{after}"));
    }
    let slash = if path.ends_with('/') { "/" } else { "" };
    Some(format!("{kept}{}{slash}{after}", clean(&format!("{prefix}{path}"))))
}

/// A path without empty parts, `.` and `..`.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Egress;
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
    fn redirects_lead_through_the_proxy_again() {
        for (to, want) in [
            ("/other?x=1", Some("/p/proxy/other?x=1")),
            ("/a//b/../c/", Some("/p/proxy/a/c/")),
            ("http://10.0.0.1:80/a#b", Some("/p/proxy/a#b")),
            ("https://10.0.0.1:80/", Some("/p/proxy/")),
            ("//10.0.0.1:80/a", Some("/p/proxy/a")),
            ("https://api:6443/a", Some("https://api:6443/p/proxy/a")),
            ("/p/proxy/a", Some("/p/proxy/a")),
            ("https://example.com/a", None),
            ("a/b", None),
            ("http://10.0.0.1:80", None),
        ] {
            let got = relocated(to, "/p/proxy", ["10.0.0.1:80", "api:6443"]);
            assert_eq!(got.as_deref(), want, "{to}");
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
            (&open, "p", Ok(8080)),
            (&open, "https:p:", Ok(8080)),
            (&open, "https:p:tls", Ok(8443)),
            (&open, "p:9", Ok(9)),
            (&open, "p:x", Err("invalid port name \"x\"")),
            (&closed, "p", Ok(80)),
            (&closed, "http:p:", Ok(80)),
            (&closed, "https:p:", Ok(443)),
        ] {
            let name = Name::parse(text).expect("a name");
            let got = pod_port(pod, &name).map_err(|status| status.message);
            assert_eq!(got, want.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn paths_are_split_behind_proxy() {
        let of_pod = "/api/v1/namespaces/n/pods/p/proxy";
        assert_eq!(split("/api/v1/namespaces/n/pods/p/proxy/a/b", true), Some((of_pod, "/a/b")));
        assert_eq!(split("/api/v1/namespaces/n/pods/p/proxy/a%2fb", true), Some((of_pod, "/a%2fb")));
        assert_eq!(split(of_pod, true), Some((of_pod, "")));
        assert_eq!(split("/api/v1/nodes/n/proxy/", false), Some(("/api/v1/nodes/n/proxy", "/")));
        assert_eq!(split("//api/v1//nodes/n/proxy//a", false), Some(("//api/v1//nodes/n/proxy", "//a")));
        assert_eq!(split("/api/v1/nodes/n%2Fproxy%2Fa/b", false), None);
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
        assert_eq!(addresses(&endpoints, "http", "n"), [Candidate { ip: "10.0.0.1", port: 8080, pod: "p" }]);
        assert!(addresses(&endpoints, "", "n").is_empty(), "a port that has a name is asked for by it");
        let there = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        assert!(has_address(&there, "10.0.0.1") && !has_address(&there, "10.0.0.2"));
    }
}
