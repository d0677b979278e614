//! `EgressSelectorConfiguration` (apiserver.k8s.io/v1beta1): which network is reached through what. Answers for
//! upstream's `pkg/server/egressselector/config.go` (`ReadEgressSelectorConfiguration`).

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use shared::config::{self, Unknown};
use shared::status::field;

use super::http_connect::ProxyConfigError;
use super::{EgressTransport, NetworkContext, http_connect};

/// The networks that may be named.
pub(super) const NAMES: [(&str, NetworkContext); 3] = [
    ("cluster", NetworkContext::Cluster),
    ("controlplane", NetworkContext::ControlPlane),
    ("etcd", NetworkContext::Etcd),
];
const PROTOCOLS: &str = r#"supported values: "Direct", "HTTPConnect", "GRPC""#;
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
pub(super) fn read(text: &[u8]) -> anyhow::Result<Vec<(NetworkContext, EgressTransport)>> {
    let mut tree = config::decode(text, "EgressSelectorConfiguration", Unknown::Refuse)
        .context("failed to read egress selector config")?;
    if tree["egressSelections"].is_null() {
        tree["egressSelections"] = serde_json::json!([]);
    }
    let mut file: File = serde_json::from_value(tree).context("failed to read egress selector config")?;
    for selection in &mut file.egress_selections {
        // What it was called once.
        if selection.name == "master" {
            "controlplane".clone_into(&mut selection.name);
        }
        selection.name.make_ascii_lowercase();
    }
    let mut wrong: Vec<String> = file.egress_selections.iter().flat_map(|s| mistakes(&s.connection)).collect();
    wrong.extend(wrong_names(&file.egress_selections));
    anyhow::ensure!(wrong.is_empty(), "failed to validate egress selector configuration: {}", field::aggregate(&wrong));
    let ways = file.egress_selections.iter().filter_map(|selection| {
        let (_, to) = NAMES.iter().find(|(name, _)| *name == selection.name)?;
        let failed = |why: ProxyConfigError| {
            let name = &selection.name;
            anyhow::anyhow!(
                "failed to setup egress selector: failed to create dialer for egressSelection {name:?}: {why}"
            )
        };
        Some(way(&selection.connection).map(|way| (*to, way)).map_err(failed))
    });
    ways.collect()
}

fn wrong_names(selections: &[Selection]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (i, Selection { name, .. }) in selections.iter().enumerate() {
        if selections[..i].iter().any(|earlier| earlier.name == *name) {
            wrong.push(format!("{AT}[{i}]: Duplicate value: {name:?}"));
        } else if !NAMES.iter().any(|(known, _)| known == name) {
            wrong.push(format!(
                "{AT}: Unsupported value: {name:?}: supported values: \"cluster\", \"controlplane\", \"etcd\""
            ));
        }
    }
    wrong
}

/// Errors of a connection.
fn mistakes(connection: &Connection) -> Vec<String> {
    match (connection.proxy_protocol.as_str(), &connection.transport) {
        ("Direct", None) => vec![],
        ("Direct", Some(_)) => vec![invalid("transport", "direct", "config must be absent for direct connect")],
        (protocol @ ("HTTPConnect" | "GRPC"), None) => {
            vec![required("transport", &format!("transport must be set for {protocol}"))]
        }
        ("HTTPConnect", Some(Transport { tcp: Some(tcp), uds: Some(_) })) => {
            vec![format!("{AT}.tcp: Invalid value: {}: TCP and UDS cannot both be set", tcp.shown())]
        }
        ("HTTPConnect", Some(Transport { tcp: None, uds: None })) => {
            vec![required("tcp", "One of TCP or UDS must be set")]
        }
        ("HTTPConnect", Some(Transport { tcp: Some(tcp), uds: None })) => tcp.mistakes(),
        ("HTTPConnect" | "GRPC", Some(Transport { uds: Some(uds), .. })) => uds.mistakes(),
        ("GRPC", Some(Transport { uds: None, .. })) => vec![required("uds", "UDS must be set with GRPC")],
        (other, _) => vec![format!("{AT}.protocol: Unsupported value: {other:?}: {PROTOCOLS}")],
    }
}

impl Uds {
    fn mistakes(&self) -> Vec<String> {
        match self.uds_name.as_str() {
            "" => vec![invalid("udsName", "nil", "must be present for UDS connections")],
            _ => vec![],
        }
    }
}

impl Tcp {
    fn mistakes(&self) -> Vec<String> {
        let (plain, secure) = (self.url.starts_with("http://"), self.url.starts_with("https://"));
        match &self.tls_config {
            _ if !plain && !secure => {
                vec![invalid("url", &self.url, "supported connection protocols are http:// and https://")]
            }
            Some(_) if plain => vec![invalid("tlsConfig", "nil", "config must not be present when using HTTP")],
            None if secure => vec![required("tlsConfig", "TLSConfig must be present when using HTTPS")],
            None => vec![],
            Some(tls) => tls.mistakes(),
        }
    }

    /// Formats the structure as upstream's messages do.
    fn shown(&self) -> String {
        let text = |value: &str| serde_json::Value::from(value).to_string();
        let tls = self.tls_config.as_ref().map_or_else(
            || "null".to_owned(),
            |Tls { ca_bundle, client_key, client_cert }| {
                let [ca, key, certificate] = [ca_bundle, client_key, client_cert].map(|path| text(path));
                format!(r#"{{"CABundle":{ca},"ClientKey":{key},"ClientCert":{certificate}}}"#)
            },
        );
        format!(r#"{{"URL":{},"TLSConfig":{tls}}}"#, text(&self.url))
    }

    fn proxy(&self) -> Result<http_connect::Proxy, ProxyConfigError> {
        let address = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let address = address.split('/').next().unwrap_or(address).to_owned();
        let tls = self.tls_config.as_ref();
        let tls = tls.map(|tls| http_connect::client_tls(&tls.ca_bundle, &tls.client_cert, &tls.client_key));
        http_connect::Proxy::tcp(address, tls.transpose()?)
    }
}

impl Tls {
    fn mistakes(&self) -> Vec<String> {
        let files = [
            ("caBundle", &self.ca_bundle, "", "TLS config ca bundle does not exist"),
            ("clientCert", &self.client_cert, "Using TLS requires clientCert", "TLS client cert does not exist"),
            ("clientKey", &self.client_key, "Using TLS requires requires clientKey", "TLS client key does not exist"),
        ];
        let wrong = |(name, value, none, missing): (&str, &String, &str, &str)| {
            let name = format!("tlsConfig.{name}");
            match value.as_str() {
                "" => (!none.is_empty()).then(|| invalid(&name, "nil", none)),
                path => (!Path::new(path).exists()).then(|| invalid(&name, path, missing)),
            }
        };
        files.into_iter().filter_map(wrong).collect()
    }
}

/// The way of a connection without mistakes.
fn way(connection: &Connection) -> Result<EgressTransport, ProxyConfigError> {
    let grpc = connection.proxy_protocol == "GRPC";
    match &connection.transport {
        None => Ok(EgressTransport::Direct),
        Some(Transport { uds: Some(uds), .. }) if grpc => Ok(EgressTransport::Grpc(uds.uds_name.clone().into())),
        Some(Transport { uds: Some(uds), .. }) => {
            Ok(EgressTransport::HttpConnect(http_connect::Proxy::Uds(uds.uds_name.clone().into())))
        }
        Some(Transport { tcp: Some(tcp), .. }) => tcp.proxy().map(EgressTransport::HttpConnect),
        Some(Transport { tcp: None, uds: None }) => Err(ProxyConfigError::NoTransport),
    }
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{AT}.{field}: Invalid value: {value:?}: {why}")
}

fn required(field: &str, why: &str) -> String {
    format!("{AT}.{field}: Required value: {why}")
}
