//! Asking for a certificate: a CertificateSigningRequest is made, and watched until it is signed or refused.
//! Answers for `RequestCertificate` and `WaitForCertificate` of upstream's `client-go/util/certificate/csr`.

use crate::metrics::Role;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};

use super::store::Leaf;

/// The longest wait for an approval.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Before a watch that ended is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// Contents of a certificate request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateContents {
    signer: &'static str,
    usage: &'static str,
    node: String,
    /// Sorted.
    names: Vec<String>,
    /// Sorted.
    addresses: Vec<IpAddr>,
}

impl CertificateContents {
    /// Role of the certificate: serving or client.
    pub(super) fn role(&self) -> Role {
        match self.usage {
            "server auth" => Role::Serving,
            _ => Role::Client,
        }
    }

    /// Certificate that a kubelet shows the API server.
    pub(super) fn client(node: &str) -> Self {
        Self {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            usage: "client auth",
            node: node.to_owned(),
            names: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// Certificate that a kubelet shows its clients: its host name and its addresses. `None` without an address, which
    /// signers refuse.
    pub(super) fn serving(node: &str, host: &str, addresses: &[IpAddr]) -> Option<Self> {
        let mut addresses = addresses.to_vec();
        let names = match host.parse::<IpAddr>() {
            Ok(ip) => {
                addresses.push(ip);
                Vec::new()
            }
            Err(_) => vec![host.to_owned()],
        };
        addresses.sort();
        addresses.dedup();
        if addresses.is_empty() {
            return None;
        }
        Some(Self {
            signer: "kubernetes.io/kubelet-serving",
            usage: "server auth",
            node: node.to_owned(),
            names,
            addresses,
        })
    }

    /// True for a certificate with these names, whatever else the signer put in. Those of a client certificate are of no
    /// account.
    pub(super) fn is_met_by(&self, leaf: &Leaf) -> bool {
        self.addresses.is_empty()
            || (self.names.iter().all(|name| leaf.names.contains(name))
                && self.addresses.iter().all(|address| leaf.addresses.contains(address)))
    }

    /// Has a certificate issued, and returns it with its key, in PEM.
    ///
    /// # Errors
    /// It was refused, or nobody approved of it in time.
    pub(super) async fn obtain(&self, client: &kube::Client) -> anyhow::Result<(String, String)> {
        let subject = format!("system:node:{}", self.node);
        let made = shared::cert::signing_request(&subject, &["system:nodes"], &self.names, &self.addresses)?;
        let issued = tokio::time::timeout(PATIENCE, self.send(client, &made.request)).await;
        let certificate = issued.context("timed out waiting for the certificate signing request to be approved")??;
        Ok((certificate, made.key))
    }

    async fn send(&self, client: &kube::Client, request: &str) -> anyhow::Result<String> {
        let api: Api<CertificateSigningRequest> = Api::all(client.clone());
        let wanted = CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: Some("csr-".to_owned()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.as_bytes().to_vec()),
                signer_name: self.signer.to_owned(),
                usages: Some(vec!["digital signature".to_owned(), self.usage.to_owned()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let made =
            api.create(&PostParams::default(), &wanted).await.context("cannot create certificate signing request")?;
        let name = made.metadata.name.unwrap_or_default();
        let only = WatchParams::default().fields(&format!("metadata.name={name}"));
        loop {
            match api.watch(&only, "0").await {
                Ok(events) => {
                    pin_mut!(events);
                    while let Some(Ok(event)) = events.next().await {
                        match event {
                            WatchEvent::Added(csr) | WatchEvent::Modified(csr) => {
                                if let Some(outcome) = outcome(&csr) {
                                    return outcome;
                                }
                            }
                            WatchEvent::Deleted(_) => bail!("certificate signing request {name} was deleted"),
                            _ => {}
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, csr = name, "Could not watch the certificate signing request"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Result of a request, if it has ended.
fn outcome(csr: &CertificateSigningRequest) -> Option<anyhow::Result<String>> {
    let name = csr.metadata.name.as_deref().unwrap_or_default();
    let status = csr.status.as_ref()?;
    for condition in status.conditions.iter().flatten() {
        if matches!(condition.type_.as_str(), "Denied" | "Failed") {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            return Some(Err(anyhow::anyhow!(
                "certificate signing request {name} is {}, reason: {}, message: {}",
                condition.type_.to_lowercase(),
                text(&condition.reason),
                text(&condition.message)
            )));
        }
    }
    let approved = status.conditions.iter().flatten().any(|condition| condition.type_ == "Approved");
    let pem = status.certificate.as_ref().filter(|pem| approved && !pem.0.is_empty())?;
    Some(String::from_utf8(pem.0.clone()).context("the issued certificate is not PEM"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn requests_end_one_way_or_the_other() {
        let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "r", "message": "m"}]);
        for (status, want) in [
            (Value::Null, None),
            (json!({}), None),
            (json!({"conditions": condition("Approved")}), None),
            (json!({"certificate": "eA=="}), None),
            (json!({"conditions": condition("Approved"), "certificate": "eA=="}), Some(Ok("x"))),
            (
                json!({"conditions": condition("Denied")}),
                Some(Err("certificate signing request c is denied, reason: r, message: m")),
            ),
            (
                json!({"conditions": condition("Failed")}),
                Some(Err("certificate signing request c is failed, reason: r, message: m")),
            ),
        ] {
            let csr = serde_json::from_value(
                json!({"metadata": {"name": "c"}, "spec": {"request": "", "signerName": "s"}, "status": status}),
            );
            let got = outcome(&csr.expect("a request")).map(|got| got.map_err(|error| error.to_string()));
            let want = want.map(|want: Result<&str, &str>| want.map(str::to_owned).map_err(str::to_owned));
            assert_eq!(got, want, "{status}");
        }
    }

    #[test]
    fn serving_certificates_name_the_node() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(CertificateContents::serving("n", "n", &[]), None, "no signer takes that");
        let wanted = CertificateContents::serving("n", "n", &[ip("192.0.2.2"), ip("192.0.2.1")]).expect("addresses");
        let mut leaf =
            Leaf { names: vec!["n".to_owned()], addresses: vec![ip("192.0.2.1"), ip("192.0.2.2")], ..Leaf::default() };
        assert!(wanted.is_met_by(&leaf));
        leaf.addresses.pop();
        assert!(!wanted.is_met_by(&leaf), "an address is missing");
        assert!(CertificateContents::client("n").is_met_by(&leaf));
    }
}
