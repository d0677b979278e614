//! Addresses of kubelets and their TLS (`--kubelet-*` flags). Answers for upstream's `pkg/kubelet/client`
//! (`ConnectionInfoGetter`).

use std::sync::Arc;

use proto::Value;
use rustls::ClientConfig;
use shared::cert::{self, ReloadingKey, Trust};
use shared::flags::FlagSet;
use shared::status::Status;

use super::transport::Origin;
use crate::api::Api;
use crate::egress::Egress;
use crate::registry::core::node::NODES;

/// The kubelets' side of the command line.
pub(super) struct Kubelets {
    tls: Arc<ClientConfig>,
    /// For those who read logs and do not care who wrote them.
    anybody: Arc<ClientConfig>,
    preferred: Vec<String>,
    default_port: u16,
    /// The way to nodes and pods.
    pub(super) egress: Egress,
}

impl Kubelets {
    pub(super) fn new(flags: &FlagSet, egress: Egress) -> anyhow::Result<Self> {
        let (authority, certificate, key) = (
            flags.string("kubelet-certificate-authority"),
            flags.string("kubelet-client-certificate"),
            flags.string("kubelet-client-key"),
        );
        // Without effect upstream, too.
        let _ = (flags.duration("kubelet-timeout"), flags.integer("kubelet-read-only-port"));
        let pair = match (certificate.as_str(), key.as_str()) {
            ("", _) | (_, "") => None,
            (certificate, key) => Some(Arc::new(ReloadingKey::from_files(certificate, key)?)),
        };
        let trust = match authority.as_str() {
            // As upstream: without an authority, kubelets are not verified.
            "" => Trust::Anybody,
            authority => Trust::File(authority.into()),
        };
        let anybody = cert::client_tls(Trust::Anybody, pair.clone())?;
        let tls = cert::client_tls(trust, pair)?;
        Ok(Self {
            tls: Arc::new(tls),
            anybody: Arc::new(anybody),
            preferred: flags.list("kubelet-preferred-address-types"),
            default_port: u16::try_from(flags.integer("kubelet-port")).unwrap_or(10250),
            egress,
        })
    }

    /// The kubelet of a node.
    pub(super) async fn origin(&self, api: &Api, node: &str) -> Result<Origin, Status> {
        let node = api.get(NODES, "", node).await?;
        self.locate(&node)
    }

    /// Address of a kubelet whose certificate is not verified.
    pub(super) async fn unverified(&self, api: &Api, node: &str) -> Result<Origin, Status> {
        let tls = Some(Arc::clone(&self.anybody));
        Ok(Origin { tls, ..self.origin(api, node).await? })
    }

    /// The kubelet that a node object describes.
    pub(super) fn locate(&self, node: &Value) -> Result<Origin, Status> {
        let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
        let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).unwrap_or(self.default_port);
        let (tls, egress) = (Some(Arc::clone(&self.tls)), self.egress.clone());
        Ok(Origin { host: self.address(node)?, port, tls, name: None, egress })
    }

    /// The node's address of the most preferred type that it has.
    pub(super) fn address(&self, node: &Value) -> Result<String, Status> {
        let addresses: Vec<(&str, &str)> = node
            .pointer("/status/addresses")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|address| Some((address["type"].as_str()?, address["address"].as_str()?)))
            .collect();
        for wanted in &self.preferred {
            if let Some((_, address)) = addresses.iter().find(|(kind, _)| kind == wanted) {
                return Ok((*address).to_owned());
            }
        }
        Err(Status::unknown(&format!("no preferred addresses found; known addresses: {addresses:?}")))
    }
}
