//! `/explain` on the secure port: what `kube-scheduler explain` tells, from the running scheduler's own view.
//!
//! GET with `namespace` and `pod` for a pod that exists, POST with a manifest for one that does not. Access is decided as
//! for any path that is no resource. Reads only.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use actix_web::web::{Bytes, Data, Query, ServiceConfig, get};
use actix_web::{HttpResponse, http::StatusCode};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::ListParams;
use serde_json::Value;
use shared::client::typed;

use super::core::Core;
use crate::explain::{Priorities, from_manifest, priorities, table, with_priority};
use crate::framework::explain::Explanation;
use crate::framework::{Context, Status};
use crate::model::{NodeInfo, PodInfo, Snapshot};

/// Path of the endpoint.
pub(super) const PATH: &str = "/explain";

/// Parts that answers need; filled in once the scheduler is made.
#[derive(Default)]
pub(super) struct ExplainInputs {
    pub(super) core: OnceLock<Arc<Core>>,
    /// For priority classes, which the scheduler itself does not watch.
    pub(super) client: OnceLock<kube::Client>,
}

type Params = Query<HashMap<String, String>>;

/// Adds the path.
pub(super) fn routes(config: &mut ServiceConfig, source: Arc<ExplainInputs>) {
    let route = get().to(existing);
    config.app_data(Data::from(source)).route(PATH, route).route(PATH, actix_web::web::post().to(what_if));
}

fn refused(code: StatusCode, why: impl std::fmt::Display) -> HttpResponse {
    HttpResponse::build(code).content_type("text/plain; charset=utf-8").body(format!("{why}\n"))
}

async fn existing(source: Data<ExplainInputs>, params: Params) -> HttpResponse {
    let Some(core) = source.core.get() else { return refused(StatusCode::SERVICE_UNAVAILABLE, "not ready") };
    let namespace = params.get("namespace").map_or("default", String::as_str);
    let Some(name) = params.get("pod") else { return refused(StatusCode::BAD_REQUEST, "pod is missing") };
    match (core.pods)(namespace, name) {
        Some(pod) => answer(core, PodInfo::clone(&pod), &params),
        None => refused(StatusCode::NOT_FOUND, format!("pods \"{name}\" not found")),
    }
}

async fn what_if(source: Data<ExplainInputs>, params: Params, body: Bytes) -> HttpResponse {
    let Some(core) = source.core.get() else { return refused(StatusCode::SERVICE_UNAVAILABLE, "not ready") };
    let manifest: Value = match proto::yaml::decode_any(&body) {
        Ok(manifest) => manifest,
        Err(e) => return refused(StatusCode::BAD_REQUEST, e),
    };
    let namespace = params.get("namespace").map_or("default", String::as_str);
    match from_manifest(&manifest, namespace) {
        Ok(pod) => {
            let pod = with_priority(pod, &classes(&source).await);
            answer(core, PodInfo::from_api(&pod), &params)
        }
        Err(e) => refused(StatusCode::BAD_REQUEST, format!("{e:#}")),
    }
}

async fn classes(source: &ExplainInputs) -> Priorities {
    let Some(client) = source.client.get() else { return Priorities::new() };
    match typed::page::<PriorityClass>(client, &ListParams::default()).await {
        Ok(list) => priorities(&list.items),
        Err(error) => {
            tracing::warn!(%error, "Priority classes cannot be read, going without");
            Priorities::new()
        }
    }
}

fn answer(core: &Core, pod: PodInfo, params: &HashMap<String, String>) -> HttpResponse {
    let explanation = match explain(core, pod) {
        Ok(explanation) => explanation,
        Err(why) => return refused(StatusCode::UNPROCESSABLE_ENTITY, why.to_string()),
    };
    if params.get("output").is_some_and(|o| o == "table") {
        return HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(table(&explanation));
    }
    HttpResponse::Ok().json(explanation)
}

/// Reasons for which a pod cannot be explained.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExplainError {
    /// The pod names a scheduler that is not here.
    #[error("no profile is called {0:?}")]
    NoProfile(String),
    /// A plugin fails.
    #[error("{}: {}", .0.plugin, .0)]
    Plugin(Status),
}

/// Explains a pod from the running scheduler's view.
pub(super) fn explain(core: &Core, mut info: PodInfo) -> Result<Explanation, ExplainError> {
    let bound_to = info.node_name.take();
    let mut nodes = core.cache.lock().nodes();
    for node in nodes.iter_mut().filter(|n| bound_to.as_ref() == Some(n.name())) {
        let mut without = NodeInfo::clone(node);
        without.remove(&info.uid);
        *node = Arc::new(without);
    }
    let snapshot = Snapshot::of(nodes);
    let nominated = core.queue.lock().nominated();
    let profile = core.profiles.get(&info.scheduler_name);
    let profile = profile.ok_or_else(|| ExplainError::NoProfile(info.scheduler_name.to_string()))?;
    let now = jiff::Timestamp::now();
    let cx = Context { snapshot: &snapshot, listers: &*core.stores, nominated: &nominated, now };
    let mut explanation = profile.explain(cx, &info).map_err(ExplainError::Plugin)?;
    explanation.bound_to = bound_to.map(|n| n.to_string());
    Ok(explanation)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use shared::authn::Anonymous;
    use shared::authz::{AlwaysAllow, Authorizer, PathAllowList};
    use shared::run::{Shutdown, TaskGroup};
    use shared::serve::{Health, Probe, Server};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::driver::tests::World;
    use crate::testing::{node, pod};

    async fn ask(address: SocketAddr, method: &str, target: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        let length = body.len();
        let text = format!(
            "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).await.expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answers");
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (code.unwrap_or_default(), answer)
    }

    fn serve(core: Arc<Core>, authorizer: Arc<dyn Authorizer>, tasks: &TaskGroup, stop: &Shutdown) -> SocketAddr {
        let (source, health) = (Arc::new(ExplainInputs::default()), Health::new());
        assert!(source.core.set(core).is_ok());
        health.add(&Probe::ALL, "ping", || Ok(()));
        Server::plain("test", "127.0.0.1:0".parse().expect("address"))
            .access(Arc::new(Anonymous), authorizer)
            .health(&health)
            .routes(move |config| routes(config, Arc::clone(&source)))
            .start(tasks, stop)
            .expect("starts")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_those_who_may_are_told() {
        let world = World::start(0);
        world.core.node_seen(node("n").base());
        world.add(&pod("large").cpu("9"));
        let (tasks, stop) = (TaskGroup::new(), Shutdown::new());
        let only_health: Arc<dyn Authorizer> = Arc::new(PathAllowList::new(&["/healthz".into()]));
        let closed = serve(Arc::clone(&world.core), only_health, &tasks, &stop);
        let open = serve(Arc::clone(&world.core), Arc::new(AlwaysAllow), &tasks, &stop);
        let (get, manifest) =
            ("/explain?pod=large", r#"{"kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}"#);

        assert_eq!(ask(closed, "GET", "/healthz", "").await.0, 200);
        for (method, target, verb) in [("GET", get, "get"), ("POST", PATH, "post")] {
            let (code, answer) = ask(closed, method, target, manifest).await;
            assert_eq!(code, 403, "{answer}");
            let why = format!(r#"forbidden: User \"system:anonymous\" cannot {verb} path \"/explain\""#);
            assert!(answer.contains(&why), "{answer}");
        }
        let (code, answer) = ask(open, "GET", get, "").await;
        assert!(code == 200 && answer.contains("0/1 nodes are available: 1 Insufficient cpu."), "{answer}");
        let (code, answer) = ask(open, "POST", PATH, manifest).await;
        assert!(code == 200 && answer.contains("1/1 nodes are available"), "{answer}");
        assert_eq!(ask(open, "GET", "/explain?pod=nobody", "").await.0, 404);
        assert_eq!(ask(open, "POST", PATH, "kind: Service").await.0, 400);
        stop.trigger();
        assert!(tasks.drain(Duration::from_secs(20)).await);
    }

    /// Threads that serve requests may not block, and an extender has to be asked from them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn extenders_are_asked_for_an_explanation() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}/", listener.local_addr().expect("address"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 8192];
                let _ = stream.read(&mut request).await;
                let body = r#"{"nodeNames": [], "failedNodes": {"n": "the extender says no"}}"#;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        let config = serde_json::json!({"urlPrefix": url, "httpTimeout": "5s", "filterVerb": "filter", "weight": 1,
            "nodeCacheCapable": true});
        let objects = crate::driver::extender::Objects {
            pods: shared::informer::Store::default(),
            nodes: shared::informer::Store::default(),
        };
        let settings = serde_json::json!({"extenders": [config]});
        let extenders = crate::driver::extender::extenders(&settings, &objects, None).expect("extenders");
        let world = World::with_extenders(0, extenders);
        world.core.node_seen(node("n").base());
        world.add(&pod("small").cpu("1"));
        let (tasks, stop) = (TaskGroup::new(), Shutdown::new());
        let open = serve(Arc::clone(&world.core), Arc::new(AlwaysAllow), &tasks, &stop);
        let (code, answer) = ask(open, "GET", "/explain?pod=small", "").await;
        assert!(code == 200 && answer.contains("the extender says no"), "{answer}");
        stop.trigger();
        assert!(tasks.drain(Duration::from_secs(20)).await);
    }
}
