//! The keys by which servers tell one another where they are found: an Endpoints object for each, which goes when its
//! server is not heard of any more. They are no objects of the API.

use proto::{Value, protobuf, schema};
use serde_json::json;
use shared::host_port;

use crate::machinery::tree;
use crate::storage::{self, Store};

/// Seconds a key outlives its server.
const LEASE_SECONDS: i64 = 15;
const PREFIX: &str = "/registry/peerserverleases/";
/// The label that names the server.
const IDENTITY: &str = "apiserverIdentity";

/// Endpoints object stored under a server's key.
fn object(id: &str, host: &str, port: u16, generation: i64) -> Value {
    json!({
        "metadata": {"generation": generation, "labels": {IDENTITY: id}},
        "subsets": [{"addresses": [{"ip": host}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    })
}

/// `host:port` of a server, from what its key holds.
fn address(object: &Value) -> Option<String> {
    let host = tree::text(object, "/subsets/0/addresses/0/ip");
    let port = tree::int(object, "/subsets/0/ports/0/port")?;
    (!host.is_empty()).then(|| host_port::join(host, port))
}

fn decoded(bytes: &[u8]) -> Option<Value> {
    let envelope = protobuf::unwrap(bytes).ok()?;
    protobuf::decode(schema::kind("", "v1", "Endpoints")?, envelope.raw).ok()
}

/// Says that a server is there.
pub(super) async fn renew(store: &Store, id: &str, host: &str, port: u16) -> Result<(), storage::Error> {
    let Some(schema) = schema::kind("", "v1", "Endpoints") else { return Ok(()) };
    let key = store.key(&format!("{PREFIX}{id}"));
    let (there, _) = store.get(&key).await?;
    // Every write changes something, or the key would not live longer.
    let generation = there.as_ref().and_then(|s| tree::int(&decoded(&s.value)?, "/metadata/generation")).unwrap_or(0);
    let body = protobuf::encode(schema, &object(id, host, port, generation + 1));
    let bytes = protobuf::wrap("v1", "Endpoints", &body);
    store.put_if(&key, bytes, there.map_or(0, |s| s.revision), Some(LEASE_SECONDS)).await.map(drop)
}

/// Says that it goes.
pub(super) async fn remove(store: &Store, id: &str) -> Result<(), storage::Error> {
    let key = store.key(&format!("{PREFIX}{id}"));
    if let (Some(there), _) = store.get(&key).await? {
        store.delete_if(&key, there.revision).await?;
    }
    Ok(())
}

/// Addresses of the servers, by identity.
pub(super) async fn addresses(store: &Store) -> Result<Vec<(String, String)>, storage::Error> {
    let prefix = store.key(PREFIX);
    let page = store.page(&prefix, &prefix, 0, 0).await?;
    let found = page.items.iter().filter_map(|item| decoded(&item.value));
    Ok(found.filter_map(|o| Some((tree::label(&o, IDENTITY)?.to_owned(), address(&o)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_addresses_round_trip() {
        for (host, want) in [("10.0.0.1", "10.0.0.1:6443"), ("fd00::1", "[fd00::1]:6443")] {
            let told = object("apiserver-a", host, 6443, 1);
            assert_eq!(address(&told).as_deref(), Some(want));
        }
        assert_eq!(address(&json!({"subsets": []})), None);
    }
}
