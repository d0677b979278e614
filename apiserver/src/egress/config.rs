//! `EgressSelectorConfiguration` (apiserver.k8s.io/v1beta1): which network is reached through what.

use std::path::Path;

use serde::Deserialize;
use shared::config::{self, Unknown};

use super::{To, Way, http_connect};

/// The networks that may be named.
const NAMES: [(&str, To); 3] = [("cluster", To::Cluster), ("controlplane", To::ControlPlane), ("etcd", To::Etcd)];
const PROTOCOLS: &str = r#"supported values: "Direct", "GRPC", "HTTPConnect""#;
/// The path that upstream's messages give for every selection.
const AT: &str = "service.connection";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    egress_selections: Vec<Selection>,
}

#[derive(Deserialize)]
struct Selection {
    #[serde(default)]
    name: String,
    #[serde(default)]
    connection: Connection,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Connection {
    #[serde(default)]
    proxy_protocol: String,
    transport: Option<Transport>,
}

#[derive(Deserialize)]
struct Transport {
    tcp: Option<Tcp>,
    uds: Option<Uds>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tcp {
    #[serde(default)]
    url: String,
    tls_config: Option<Tls>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Uds {
    #[serde(default)]
    uds_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tls {
    #[serde(default)]
    ca_bundle: String,
    #[serde(default)]
    client_key: String,
    #[serde(default)]
    client_cert: String,
}

/// Reads a file's text.
///
/// # Errors
/// Everything that is wrong with it, in upstream's words.
pub(super) fn read(text: &[u8]) -> anyhow::Result<Vec<(To, Way)>> {
    let mut tree = config::decode(text, "EgressSelectorConfiguration", Unknown::Refuse)?;
    if tree["egressSelections"].is_null() {
        tree["egressSelections"] = serde_json::json!([]);
    }
    let file: File = serde_json::from_value(tree)?;
    let (mut read, mut wrong) = (Vec::new(), Vec::new());
    let mut seen: Vec<String> = Vec::new();
    for (i, selection) in file.egress_selections.iter().enumerate() {
        let name = match selection.name.to_lowercase() {
            // What it was called once.
            old if old == "master" => "controlplane".to_owned(),
            name => name,
        };
        if seen.contains(&name) {
            wrong.push(format!("{AT}[{i}]: Duplicate value: {name:?}"));
            continue;
        }
        let known = NAMES.iter().find(|(n, _)| *n == name);
        match (known, way(&selection.connection)) {
            (Some((_, to)), Ok(way)) => read.push((*to, way)),
            (None, Ok(_)) => wrong.push(format!(
                "{AT}: Unsupported value: {name:?}: supported values: \"cluster\", \"controlplane\", \"etcd\""
            )),
            (_, Err(why)) => wrong.push(why),
        }
        seen.push(name);
    }
    match wrong.as_slice() {
        [] => Ok(read),
        [one] => anyhow::bail!("failed to validate egress selector configuration: {one}"),
        all => anyhow::bail!("failed to validate egress selector configuration: [{}]", all.join(", ")),
    }
}

fn way(connection: &Connection) -> Result<Way, String> {
    match (connection.proxy_protocol.as_str(), &connection.transport) {
        ("Direct", None) => Ok(Way::Direct),
        ("Direct", Some(_)) => {
            Err(invalid("transport", "direct", "Transport config should be absent for direct connect"))
        }
        ("HTTPConnect", None) => Err(required("transport", "transport must be set for HTTPConnect")),
        ("HTTPConnect", Some(Transport { tcp: Some(tcp), uds: Some(_) })) => {
            Err(invalid("tcp", &tcp.url, "TCP and UDS cannot both be set"))
        }
        ("HTTPConnect", Some(Transport { tcp: None, uds: None })) => {
            Err(required("tcp", "One of TCP or UDS must be set"))
        }
        ("HTTPConnect", Some(Transport { tcp: Some(tcp), uds: None })) => over_tcp(tcp).map(Way::HttpConnect),
        ("HTTPConnect", Some(Transport { tcp: None, uds: Some(uds) })) => {
            Ok(Way::HttpConnect(http_connect::Proxy::Uds(socket(uds)?.into())))
        }
        ("GRPC", None) => Err(required("transport", "transport must be set for GRPC")),
        ("GRPC", Some(Transport { uds: Some(uds), .. })) => Ok(Way::Grpc(socket(uds)?.into())),
        ("GRPC", Some(_)) => Err(required("uds", "UDS must be set with GRPC")),
        (other, _) => Err(format!("{AT}.protocol: Unsupported value: {other:?}: {PROTOCOLS}")),
    }
}

fn socket(uds: &Uds) -> Result<&str, String> {
    match uds.uds_name.as_str() {
        "" => Err(invalid("udsName", "nil", "UDSName should be present for UDS connections")),
        name => Ok(name),
    }
}

fn over_tcp(tcp: &Tcp) -> Result<http_connect::Proxy, String> {
    let (secure, address) = match (tcp.url.strip_prefix("http://"), tcp.url.strip_prefix("https://")) {
        (Some(address), _) => (false, address),
        (_, Some(address)) => (true, address),
        _ => return Err(invalid("url", &tcp.url, "supported connection protocols are http:// and https://")),
    };
    let address = address.trim_end_matches('/').to_owned();
    let tls = match (&tcp.tls_config, secure) {
        (None, false) => None,
        (Some(_), false) => {
            return Err(invalid("tlsConfig", "nil", "TLSConfig config should not be present when using HTTP"));
        }
        (None, true) => return Err(required("tlsConfig", "TLSConfig must be present when using HTTPS")),
        (Some(tls), true) => Some(over_tls(tls)?),
    };
    http_connect::Proxy::tcp(address, tls)
}

fn over_tls(tls: &Tls) -> Result<rustls::ClientConfig, String> {
    for (field, value, none, missing) in [
        ("caBundle", &tls.ca_bundle, "", "TLS config ca bundle does not exist"),
        ("clientCert", &tls.client_cert, "Using TLS requires clientCert", "TLS client cert does not exist"),
        ("clientKey", &tls.client_key, "Using TLS requires requires clientKey", "TLS client key does not exist"),
    ] {
        let field = format!("tlsConfig.{field}");
        if value.is_empty() && !none.is_empty() {
            return Err(invalid(&field, "nil", none));
        }
        if !value.is_empty() && !Path::new(value).exists() {
            return Err(invalid(&field, value, missing));
        }
    }
    http_connect::client_tls(&tls.ca_bundle, &tls.client_cert, &tls.client_key)
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{AT}.{field}: Invalid value: {value:?}: {why}")
}

fn required(field: &str, why: &str) -> String {
    format!("{AT}.{field}: Required value: {why}")
}
