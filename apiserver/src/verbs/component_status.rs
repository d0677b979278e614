//! Component statuses: never stored, asked anew from the parts of the control plane each time. Answers for upstream's
//! `pkg/registry/core/componentstatus`.

use std::sync::Arc;
use std::time::Duration;

use proto::resources::Row;
use proto::{Value, schema};
use rustls_pki_types::ServerName;
use serde_json::json;
use shared::status::Status;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::engine::Engine;
use super::select::Selection;
use super::table::{self, Include};
use super::{Reply, VerbRequest, accepted};
use crate::negotiate::{self, ObjectForm};
use crate::registry::core::component_status::COMPONENT_STATUSES;

/// Patience with one component.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most bytes of an answer.
const LIMIT: u64 = 4096;
/// Components on this machine and their ports.
const LOCAL: [(&str, u16); 2] = [("scheduler", 10259), ("controller-manager", 10257)];
const ETCD: &str = "etcd-0";

/// A component that is not well, in Go's words.
#[derive(Debug, thiserror::Error)]
enum ComponentError {
    /// Nobody listens on its port.
    #[error("{}: dial tcp 127.0.0.1:{port}: connect: connection refused", get_of(*.port))]
    Refused { port: u16 },
    /// No way to ask over TLS.
    #[error(transparent)]
    Tls(#[from] shared::cert::CertError),
    /// An address that no certificate could have.
    #[error(transparent)]
    Name(#[from] rustls_pki_types::InvalidDnsNameError),
    /// A connection that broke off.
    #[error("{}: {error}", get_of(*.port))]
    Exchange { port: u16, error: std::io::Error },
    /// An answer that says that the component is not well.
    #[error("{}: unhealthy http status code: {code}", get_of(*.port))]
    Unhealthy { port: u16, code: String },
    /// The store is not well.
    #[error(transparent)]
    Store(#[from] crate::storage::Error),
    /// No answer in time.
    #[error("context deadline exceeded")]
    Deadline,
}

fn get_of(port: u16) -> String {
    format!("Get \"https://127.0.0.1:{port}/healthz\"")
}

/// Asks a component on this machine how it is.
async fn ask(port: u16) -> Result<(), ComponentError> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.map_err(|_| ComponentError::Refused { port })?;
    // Any certificate will do: the question is whether somebody answers, and nothing is told.
    let config = shared::cert::client_tls(shared::cert::Trust::Anybody, None)?;
    let name = ServerName::try_from("127.0.0.1")?;
    let talk = async {
        let mut tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        tls.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        // A peer that closes without saying goodbye has still answered.
        let _ = tls.take(LIMIT).read_to_end(&mut answer).await;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = talk.await.map_err(|error| ComponentError::Exchange { port, error })?;
    let code = answer.split(' ').nth(1).unwrap_or("");
    if code == "200" { Ok(()) } else { Err(ComponentError::Unhealthy { port, code: code.to_owned() }) }
}

async fn status(engine: &Engine, name: &str, port: Option<u16>) -> Value {
    let question = async {
        match port {
            Some(port) => ask(port).await,
            None => Ok(engine.store.revision().await.map(drop)?),
        }
    };
    let answer = tokio::time::timeout(PATIENCE, question).await.unwrap_or(Err(ComponentError::Deadline));
    let (status, message) = match answer {
        Ok(()) => ("True", "ok".to_owned()),
        Err(why) => ("False", why.to_string()),
    };
    json!({
        "kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    })
}

/// GET of one.
pub(super) async fn get(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let name = r.info.name.as_str();
    let port = LOCAL.iter().find(|(n, _)| *n == name).map(|(_, p)| *p);
    if port.is_none() && name != ETCD {
        return Err(COMPONENT_STATUSES.not_found(name));
    }
    super::reply_object(engine, r, row, 200, &status(engine, name, port).await)
}

/// GET of all.
pub(super) async fn list(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let accepted = accepted(r, false)?;
    if let Some(refused) = negotiate::not_of_that_form(accepted.shape, row, &row.list_kind) {
        return Err(refused);
    }
    let selection = Selection::read(&r.query, row)?;
    let all = LOCAL.iter().map(|(name, port)| (*name, Some(*port))).chain([(ETCD, None)]);
    let wanted = all.filter(|(name, _)| selection.matches_name(name));
    let mut items: Vec<Value> = futures::future::join_all(wanted.map(|(name, port)| status(engine, name, port))).await;
    let (schema, tree) = match accepted.shape {
        ObjectForm::Table(version) => (
            negotiate::table_kind("v1"),
            table::tabulate(row, version, items.iter(), Include::read(&r.query)?, json!({"resourceVersion": ""}), true),
        ),
        ObjectForm::Metadata(version) | ObjectForm::MetadataList(version) => {
            let items: Vec<Value> = items.iter().map(|t| negotiate::metadata_of(t, version)).collect();
            let tree = json!({"kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": {}, "items": items});
            (negotiate::partial_list_kind("v1"), tree)
        }
        ObjectForm::Object => {
            for map in items.iter_mut().filter_map(Value::as_object_mut) {
                map.remove("kind");
                map.remove("apiVersion");
            }
            let tree = json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items});
            (schema::kind("", "v1", "ComponentStatusList"), tree)
        }
    };
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema, &tree);
    Ok(Reply::new(200, accepted.format.content_type(), body))
}
