//! Brings the Secrets of a control plane up to date in the cluster that hosts it, and takes them away.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};

use crate::objects::{self, ObjectClient, StoredSecret};
use crate::plan::{Plan, SECRETS};
use crate::restart;

/// Rounds after which somebody else writes too much.
const ROUNDS: usize = 10;

/// Makes, completes and renews the Secrets. Where another run writes one at the same time, its Secret counts: two runs with an
/// authority each would leave certificates that the others do not trust.
///
/// # Errors
/// A Secret cannot be read or written, an authority is damaged, or others keep writing.
pub async fn ensure(host: &mut ObjectClient, plan: &Plan, labels: &BTreeMap<String, String>) -> Result<()> {
    for _ in 0..ROUNDS {
        if ensure_once(host, plan, labels).await? {
            return restart::behind(host, plan).await;
        }
    }
    bail!("somebody else writes the Secrets of {} again and again", plan.name)
}

/// Runs one round; false when another run has written a Secret since it was read.
async fn ensure_once(host: &mut ObjectClient, plan: &Plan, labels: &BTreeMap<String, String>) -> Result<bool> {
    let mut existing: BTreeMap<String, StoredSecret> = BTreeMap::new();
    for what in SECRETS {
        let name = plan.secret(what);
        existing.insert(name.clone(), host.secret(&plan.namespace, &name).await?);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    // The authorities first, as they are planned: what they have issued is worth nothing without them.
    let data_of = |name: &str| existing.get(name).map(|secret| secret.data.clone()).unwrap_or_default();
    for secret in plan.secrets(data_of, now)? {
        let known = existing.get(&secret.name).cloned().unwrap_or_default();
        if known.data == secret.data {
            println!("Secret {} is up to date", secret.name);
            continue;
        }
        let object = objects::secret(&plan.namespace, &secret.name, labels, &secret.data);
        if !host.write_unless_changed(&object, &known.version).await? {
            println!("Secret {} was written by somebody else meanwhile", secret.name);
            return Ok(false);
        }
        for issued in &secret.issued {
            println!("Secret {}: issued a certificate, {issued}", secret.name);
        }
        println!("Secret {} is written", secret.name);
    }
    Ok(true)
}

/// Deletes the Secrets, that for nodes that join among them.
///
/// # Errors
/// When one cannot be deleted.
pub async fn remove(host: &ObjectClient, namespace: &str, name: &str) -> Result<()> {
    for what in SECRETS.iter().chain(&["join"]) {
        let secret = format!("{name}-{what}");
        if host.delete(&objects::secret_path(namespace, &secret)).await? {
            println!("Secret {secret} is deleted");
        }
    }
    Ok(())
}

/// The time until `deadline`.
#[must_use]
pub fn left(deadline: std::time::Instant) -> Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use pki::secret::Data;
    use serde_json::{Value, json};

    use super::*;
    use crate::plan::tests::plan;

    /// Secrets of an API server, by path.
    #[derive(Default)]
    struct Server {
        secrets: BTreeMap<String, Value>,
        writes: u64,
    }

    impl Server {
        fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
            let secret = |path: &str, version: u64, mut object: Value| {
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                (path.to_owned(), object)
            };
            let status = |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code}));
            if path.ends_with("/pods") {
                return (200, json!({"items": []}));
            }
            if path == "/api/v1" {
                return (200, json!({"resources": [{"name": "secrets", "kind": "Secret", "namespaced": true}]}));
            }
            if method == Method::GET {
                return self.secrets.get(path).map_or_else(|| status(404), |secret| (200, secret.clone()));
            }
            let object: Value = serde_json::from_slice(body).expect("an object");
            let name = object["metadata"]["name"].as_str().expect("a name");
            let path = if method == Method::POST { format!("{path}/{name}") } else { path.to_owned() };
            let asked = &object["metadata"]["resourceVersion"];
            let there = self.secrets.get(&path).map(|secret| secret["metadata"]["resourceVersion"].clone());
            if there.unwrap_or_default() != *asked {
                return status(409);
            }
            self.writes += 1;
            let (path, object) = secret(&path, self.writes, object);
            self.secrets.insert(path, object.clone());
            (200, object)
        }
    }

    /// A client of the server, which asks `before` of each write.
    fn client(
        server: &Arc<Mutex<Server>>,
        before: impl Fn(&Mutex<Server>) + Clone + Send + Sync + 'static,
    ) -> ObjectClient {
        let server = Arc::clone(server);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, before) = (Arc::clone(&server), before.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                if head.method != Method::GET {
                    before(&server);
                }
                let (code, answer) = server.lock().answer(&head.method, head.uri.path(), &body);
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).expect("a response"))
            }
        });
        ObjectClient::new(kube::Client::new(service, "default"))
    }

    #[tokio::test]
    async fn two_runs_at_a_time_have_one_authority() {
        let server = Arc::<Mutex<Server>>::default();
        // Another run, which has read nothing either, is the first to write an authority.
        let other = plan().secrets(|_| Data::new(), Duration::from_hours(24 * 20_000)).expect("secrets");
        let ca = other.into_iter().next().expect("the authorities come first");
        let theirs = objects::secret("tenants", &ca.name, &BTreeMap::new(), &ca.data);
        let path = objects::secret_path("tenants", &ca.name);
        let (theirs_too, path_too) = (theirs.clone(), path.clone());
        let mut host = client(&server, move |server| {
            let mut server = server.lock();
            if server.secrets.is_empty() {
                let mut object = theirs_too.clone();
                object["metadata"]["resourceVersion"] = json!("1000");
                server.secrets.insert(path_too.clone(), object);
            }
        });
        ensure(&mut host, &plan(), &BTreeMap::new()).await.expect("Secrets");
        let server = server.lock();
        assert_eq!(server.secrets.len(), SECRETS.len());
        assert_eq!(server.secrets[&path]["data"], theirs["data"], "the first authority stays");
        let admin = &server.secrets[&objects::secret_path("tenants", "t1-apiserver")]["data"];
        assert_eq!(admin["ca.crt"], theirs["data"]["ca.crt"], "and all the rest is of it");
    }

    #[tokio::test]
    async fn a_race_without_end_is_an_error() {
        let server = Arc::<Mutex<Server>>::default();
        let mut host = client(&server, |server| {
            let mut server = server.lock();
            server.writes += 1;
            let (version, path) = (server.writes, objects::secret_path("tenants", "t1-ca"));
            let object = json!({"metadata": {"name": "t1-ca", "resourceVersion": version.to_string()}});
            server.secrets.insert(path, object);
        });
        let refused = ensure(&mut host, &plan(), &BTreeMap::new()).await.expect_err("somebody else writes");
        assert_eq!(refused.to_string(), "somebody else writes the Secrets of t1 again and again");
    }
}
