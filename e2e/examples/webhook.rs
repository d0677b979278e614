//! An admission webhook as a program of a pod: it serves at port 8443 with the certificate and key in `/tls`, labels what
//! it is asked about, and refuses what is named `refused`.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::webhook::Webhook;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |name: &str| std::fs::read_to_string(format!("/tls/{name}")).with_context(|| format!("no /tls/{name}"));
    let pair = (read("tls.crt")?, read("tls.key")?);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8443)).await.context("port 8443 is taken")?;
    let _webhook = Webhook::on(listener, &pair, |_, request| Some(review(request)));
    std::future::pending().await
}

fn review(request: &Value) -> Value {
    if request["name"] == "refused" {
        return json!({"allowed": false, "status": {"message": "its name"}});
    }
    let patch = json!([{"op": "add", "path": "/metadata/labels/seen", "value": "by-a-pod"}]).to_string();
    json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch)})
}
