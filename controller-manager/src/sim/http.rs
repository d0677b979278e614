//! The simulated server's front: requests in, answers and watch streams out, with faults on the way.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use parking_lot::Mutex;
use proto::resources::{self, Resource};
use serde_json::{Value, json};
use shared::client::{Transport, erased};
use tokio_util::sync::CancellationToken;

use super::faults::{Fate, Fault, lag, of_write, unlistable};
use super::measured;
use super::store::{Name, Store, WatchEvent, key};
use super::verbs::{self, Refusal, refuse};

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Pause between two looks whether a resource is still stalled.
const STALL: Duration = Duration::from_millis(100);

/// The server.
pub(super) struct Server {
    pub(super) store: Mutex<Store>,
    fault: Fault,
    writes: AtomicU64,
    /// The server is away.
    down: AtomicBool,
    /// Cut to end every watch.
    watches: Mutex<CancellationToken>,
    /// Writes like `PATCH pods`, or POSTs of a resource that stands alone, are refused with this message.
    pub(super) refusing: Mutex<Option<(String, String)>>,
    /// Answers of metrics servers, by path.
    pub(super) measured: Mutex<BTreeMap<String, Value>>,
    /// Every write of the controllers, as `VERB path`.
    pub(super) log: Mutex<Vec<String>>,
    /// Every read that is no watch, as a path with its query.
    pub(super) reads: Mutex<Vec<String>>,
    /// Time that each write takes.
    pub(super) delay: Mutex<Duration>,
    /// Somebody else writes to the object of the next write like `PATCH nodes` just before it.
    pub(super) meddling: Mutex<Option<String>>,
    /// A resource whose lists and watches fail.
    pub(super) unlistable: Mutex<String>,
    /// A resource whose watches tell nothing new.
    pub(super) stalled: Mutex<String>,
    /// Source of lags, and how many there were.
    seed: u64,
    lags: AtomicU64,
}

/// The way of one manager to the server. Requests of one that is frozen are on the way until it thaws.
#[derive(Clone, Default)]
pub(super) struct Way {
    pub(super) dead: CancellationToken,
    pub(super) frozen: Arc<tokio::sync::watch::Sender<bool>>,
}

/// A request path taken apart.
struct Target {
    row: &'static Resource,
    namespace: String,
    name: Option<String>,
    sub: String,
}

/// Returns the served resources: all kinds that are on, and of the others some, which no discovery shows.
pub(super) fn rows() -> impl Iterator<Item = &'static Resource> {
    const OPTIONAL: [&str; 2] = ["devicetaintrules", "storageversionmigrations"];
    let optional = resources::optional().iter().filter(|r| OPTIONAL.contains(&&*r.plural));
    resources::all().iter().chain(optional)
}

/// Returns the discovery document of a group version; None when the path is no group version's, or an unknown one's.
fn group_version(path: &str) -> Option<Value> {
    let (group, version) = match path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => ("", (*version).to_owned()),
        ["apis", group, version] => (*group, (*version).to_owned()),
        _ => return None,
    };
    let rows = rows().filter(|r| r.group == group && r.version == version);
    let names: Vec<Value> = rows.map(|r| json!({"name": r.plural, "kind": r.kind})).collect();
    (!names.is_empty()).then(|| json!({"kind": "APIResourceList", "resources": names}))
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", ns, plural, more @ ..] if !matches!(*plural, "status" | "finalize") => {
            (*ns, [&[*plural], more].concat())
        }
        other => ("", other.to_vec()),
    };
    let plural = rest.first()?;
    let row = rows().find(|r| r.plural == *plural && r.group == group && r.version == version)?;
    Some(Target {
        row,
        namespace: namespace.to_owned(),
        name: rest.get(1).map(|n| (*n).to_owned()),
        sub: rest.get(2).copied().unwrap_or_default().to_owned(),
    })
}

fn query<'a>(request: &'a Request<Bytes>, name: &str) -> Option<&'a str> {
    request.uri().query()?.split('&').find_map(|p| p.strip_prefix(name)?.strip_prefix('='))
}

/// Returns the discovery document, which never changes, so that it is made once.
fn discovery(core: bool) -> Bytes {
    static SERVED: LazyLock<[Bytes; 2]> = LazyLock::new(|| {
        let groups = proto::discovery::groups(resources::all());
        [false, true].map(|core| {
            let served = proto::discovery::aggregated(&groups, core, "v2");
            Bytes::from(if core { served } else { measured::with_custom(served) }.to_string())
        })
    });
    SERVED[usize::from(core)].clone()
}

fn whole(code: u16, value: &Value) -> Answer {
    text(code, Bytes::from(value.to_string()))
}

fn text(code: u16, body: Bytes) -> Answer {
    let body = Full::new(body).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

fn refusal(r: &Refusal) -> Answer {
    let causes = if r.cause.is_empty() { json!([]) } else { json!([{"reason": r.cause, "message": r.message}]) };
    whole(
        r.code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": r.code,
        "reason": r.reason, "message": r.message, "details": {"causes": causes}}),
    )
}

/// Reports whether an object matches a field selector of plain equalities.
fn selected(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|t| !t.is_empty()).all(|term| {
        let (path, wanted) = term.split_once("%3D").or_else(|| term.split_once('=')).unwrap_or((term, ""));
        let found = object.pointer(&format!("/{}", path.replace('.', "/")));
        found.and_then(Value::as_str).unwrap_or_default() == wanted.replace("%2F", "/")
    })
}

/// Only the metadata of an object.
fn partial(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

impl Server {
    pub(super) fn new(fault: Fault) -> Arc<Self> {
        Self::seeded(fault, 0)
    }

    /// With what the seed makes of the fault.
    pub(super) fn seeded(fault: Fault, seed: u64) -> Arc<Self> {
        let unlistable = if fault == Fault::Unlistable { unlistable(seed) } else { "" };
        Arc::new(Self {
            store: Mutex::default(),
            fault,
            writes: AtomicU64::new(0),
            down: AtomicBool::new(false),
            watches: Mutex::default(),
            refusing: Mutex::default(),
            measured: Mutex::default(),
            log: Mutex::default(),
            reads: Mutex::default(),
            delay: Mutex::default(),
            meddling: Mutex::default(),
            unlistable: Mutex::new(unlistable.to_owned()),
            stalled: Mutex::default(),
            seed,
            lags: AtomicU64::new(0),
        })
    }

    /// The way to it, which is open until it is dead.
    pub(super) fn transport(self: &Arc<Self>, way: &Way) -> Transport {
        let (server, way) = (Arc::clone(self), way.clone());
        Transport::new("default", move |request: Request<Bytes>| {
            let (server, way) = (Arc::clone(&server), way.clone());
            Box::pin(async move {
                if way.dead.is_cancelled() {
                    return Err(std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the client is dead").into());
                }
                let mut frozen = way.frozen.subscribe();
                if *frozen.borrow() {
                    drop(frozen.wait_for(|frozen| !frozen).await);
                    // What it writes when it thaws is held back by the fence of its connections.
                    if request.method() != http::Method::GET {
                        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "not the leader").into());
                    }
                }
                // In a task of its own: what a server does takes no time of its clients.
                Ok(erased(tokio::spawn(server.answer(request)).await??))
            })
        })
    }

    /// End every watch; with `forget`, what happened meanwhile is not told any more either.
    pub(super) fn cut(&self, forget: bool) {
        std::mem::take(&mut *self.watches.lock()).cancel();
        if forget {
            self.store.lock().compact();
        }
    }

    /// Refuse everything, or serve again.
    pub(super) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
        if down {
            self.cut(false);
        }
    }

    /// Reports whether nobody is served.
    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    async fn answer(self: Arc<Self>, request: Request<Bytes>) -> Result<Answer, std::io::Error> {
        if self.is_down() {
            return Err(std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused"));
        }
        let path = request.uri().path().to_owned();
        if request.method() == http::Method::GET && query(&request, "watch").is_none() {
            self.reads.lock().push(request.uri().to_string());
        }
        if request.method() == http::Method::GET && (path == "/api" || path == "/apis") {
            return Ok(text(200, discovery(path == "/api")));
        }
        if let Some(list) = group_version(&path).filter(|_| request.method() == http::Method::GET) {
            return Ok(whole(200, &list));
        }
        if measured::answers(&path) {
            let selector = query(&request, "labelSelector").unwrap_or_default();
            let said = measured::answer(&self.store.lock(), &self.measured.lock(), &path, selector);
            let missing = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                "message": "the server could not find the metric"});
            return Ok(said.map_or_else(|| whole(404, &missing), |list| whole(200, &list)));
        }
        let Some(target) = target(&path) else {
            return Ok(whole(
                404,
                &json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "the server could not find the requested resource"}),
            ));
        };
        if request.method() == http::Method::GET {
            if target.name.is_none() && *self.unlistable.lock() == *target.row.plural {
                let message = "Internal error occurred: unable to transform key".to_owned();
                return Ok(refusal(&Refusal { code: 500, reason: "InternalError", message, cause: "" }));
            }
            return Ok(self.read(&target, &request));
        }
        let verb = request.method().as_str().to_owned();
        let content_type = header(&request, "content-type");
        let as_one = header(&request, "accept").contains("as=PartialObjectMetadata;");
        let body = request.into_body();
        let body = match proto::protobuf::decode_envelope(&body) {
            Ok(object) => object,
            Err(_) => serde_json::from_slice(&body).unwrap_or(Value::Null),
        };
        let about_events = target.row.plural == "events";
        let fate = if about_events {
            Fate::Done
        } else {
            self.log.lock().push(format!("{verb} {path}"));
            of_write(self.fault, self.writes.fetch_add(1, Ordering::SeqCst))
        };
        let delay = *self.delay.lock();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match fate {
            Fate::Refused => {
                return Ok(refusal(&Refusal {
                    code: 500,
                    reason: "InternalError",
                    message: "injected".into(),
                    cause: "",
                }));
            }
            Fate::Later(delay) => tokio::time::sleep(delay).await,
            Fate::Second => self.meddle(&target),
            Fate::Done | Fate::Unheard => {}
        }
        if self.meddling.lock().take_if(|write| **write == format!("{verb} {}", target.row.plural)).is_some() {
            self.meddle(&target);
        }
        let done = self.write(&target, &verb, &content_type, body);
        if fate == Fate::Unheard && done.is_ok() {
            return Err(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "connection reset"));
        }
        Ok(match done {
            // Everything is deleted all the same.
            Ok(_) if as_one && verb == "DELETE" && target.name.is_none() => refusal(&Refusal {
                code: 406,
                reason: "NotAcceptable",
                message: "you requested PartialObjectMetadata, but the requested object is a list".into(),
                cause: "",
            }),
            Ok(object) => whole(if verb == "POST" { 201 } else { 200 }, &object),
            Err(r) => refusal(&r),
        })
    }

    fn write(&self, t: &Target, verb: &str, content_type: &str, body: Value) -> Result<Value, Refusal> {
        let asked = [format!("{verb} {}", t.row.plural), t.row.plural.to_string()];
        let about = &asked[..if verb == "POST" { 2 } else { 1 }];
        if let Some((_, why)) = self.refusing.lock().as_ref().filter(|(what, _)| about.contains(what)) {
            return refuse(403, "Forbidden", why.clone());
        }
        let mut store = self.store.lock();
        let name: Name = (t.namespace.clone(), t.name.clone().unwrap_or_default());
        match (verb, &t.name) {
            ("POST", None) => verbs::create(&mut store, t.row, &t.namespace, body),
            ("POST", Some(_)) if t.sub == "eviction" => verbs::delete(&mut store, t.row, &name, &body["deleteOptions"]),
            ("PUT", Some(_)) if t.sub == "scale" => {
                let with = json!({"spec": {"replicas": body["spec"]["replicas"]}});
                verbs::patch(&mut store, t.row, &name, "", "application/merge-patch+json", with)
            }
            ("PUT", Some(_)) => verbs::update(&mut store, t.row, &name, &t.sub, body),
            ("PATCH", Some(_)) => verbs::patch(&mut store, t.row, &name, &t.sub, content_type, body),
            ("DELETE", Some(_)) => verbs::delete(&mut store, t.row, &name, &body),
            ("DELETE", None) => {
                for object in store.list(&key(t.row), &t.namespace) {
                    verbs::delete(&mut store, t.row, &super::store::name_of(&object), &body)?;
                }
                Ok(json!({"kind": "Status", "status": "Success"}))
            }
            _ => refuse(405, "MethodNotAllowed", "the server does not allow this method on the requested resource"),
        }
    }

    /// Somebody else changes the object.
    fn meddle(&self, t: &Target) {
        let Some(name) = &t.name else { return };
        let mut store = self.store.lock();
        let name = (t.namespace.clone(), name.clone());
        if let Some(mut object) = store.get(&key(t.row), &name).cloned() {
            let n = object["metadata"]["annotations"]["sim/meddled"].as_str().and_then(|v| v.parse::<u32>().ok());
            object["metadata"]["annotations"]["sim/meddled"] = json!((n.unwrap_or(0) + 1).to_string());
            store.put(&key(t.row), object);
        }
    }

    fn read(self: &Arc<Self>, t: &Target, request: &Request<Bytes>) -> Answer {
        let only_meta = header(request, "accept").contains("PartialObjectMetadata");
        if let Some(name) = &t.name {
            let store = self.store.lock();
            let name = (t.namespace.clone(), name.clone());
            return match store.get(&key(t.row), &name) {
                Some(object) if t.sub == "scale" => whole(200, &measured::scale(object)),
                Some(object) if only_meta => whole(200, &partial(object)),
                Some(object) => whole(200, object),
                None => verbs::not_found::<Value>(t.row, &name).map_or_else(|r| refusal(&r), |v| whole(200, &v)),
            };
        }
        if query(request, "watch").is_some_and(|w| w == "true" || w == "1") {
            return self.watch(t, request, only_meta);
        }
        let store = self.store.lock();
        let fields = query(request, "fieldSelector").unwrap_or_default();
        let mut items: Vec<Value> = store.list(&key(t.row), &t.namespace);
        items.retain(|o| selected(o, fields));
        let mut meta = json!({"resourceVersion": store.revision.to_string()});
        let begin: usize = query(request, "continue").and_then(|token| token.parse().ok()).unwrap_or(0);
        let limit: usize =
            query(request, "limit").and_then(|n| n.parse().ok()).filter(|n| *n > 0).unwrap_or(usize::MAX);
        let end = begin.saturating_add(limit);
        if items.len() > end {
            (meta["continue"], meta["remainingItemCount"]) = (json!(end.to_string()), json!(items.len() - end));
        }
        let items = items.into_iter().skip(begin).take(limit);
        let items: Vec<Value> = if only_meta { items.map(|o| partial(&o)).collect() } else { items.collect() };
        whole(
            200,
            &json!({"kind": t.row.list_kind, "apiVersion": t.row.api_version(), "metadata": meta, "items": items}),
        )
    }

    fn watch(self: &Arc<Self>, t: &Target, request: &Request<Bytes>, only_meta: bool) -> Answer {
        let initial = query(request, "sendInitialEvents") == Some("true");
        // Without a version, a watch begins with what there is.
        let fresh = query(request, "resourceVersion").is_none_or(str::is_empty);
        let from: u64 = query(request, "resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let (resource, namespace) = (key(t.row), t.namespace.clone());
        let mut first: Vec<String> = Vec::new();
        let fields = query(request, "fieldSelector").unwrap_or_default().to_owned();
        let shape = move |o: &Value| if only_meta { partial(o) } else { o.clone() };
        let (news, mut at) = {
            let mut store = self.store.lock();
            if initial || fresh {
                for object in store.list(&resource, &namespace).iter().filter(|o| selected(o, &fields)) {
                    first.push(line("ADDED", &shape(object)));
                }
            }
            if initial {
                first.push(line("BOOKMARK", &json!({"kind": t.row.kind, "apiVersion": t.row.api_version(), "metadata": {
                    "resourceVersion": store.revision.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}}})));
            }
            if initial || fresh {
                (store.subscribe(&resource), store.revision)
            } else if from < store.compacted {
                let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"});
                return whole(200, &json!({"type": "ERROR", "object": gone}));
            } else {
                (store.subscribe(&resource), from)
            }
        };
        let (server, cut) = (Arc::clone(self), self.watches.lock().clone());
        let later = futures::stream::unfold((news, cut), move |(mut news, cut)| {
            let server = Arc::clone(&server);
            let (resource, namespace) = (resource.clone(), namespace.clone());
            let from = at;
            // What a server does takes no time of its clients, who poll this.
            let (lines, last) = shared::run::apart(|| {
                let changes = server.since(from, &resource, &namespace);
                let last = changes.iter().map(|c| c.revision).max().unwrap_or(from).max(from);
                let shown = changes.iter().filter(|c| selected(&c.object, &fields));
                (shown.map(|c| line(c.kind, &shape(&c.object))).collect::<String>(), last)
            });
            at = last;
            async move {
                if !lines.is_empty() {
                    return Some((lines, (news, cut)));
                }
                let more = async {
                    news.changed().await.ok()?;
                    server.late(&resource.1).await;
                    Some(())
                };
                tokio::select! {
                    () = cut.cancelled() => None,
                    more = more => more.map(|()| (String::new(), (news, cut))),
                }
            }
        });
        let all: Pin<Box<dyn Stream<Item = String> + Send>> = Box::pin(futures::stream::iter(first).chain(later));
        let frames =
            all.filter(|l| std::future::ready(!l.is_empty())).map(|l| Ok(http_body::Frame::data(Bytes::from(l))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    /// Waits as long as watches of a resource are behind.
    async fn late(&self, plural: &str) {
        while *self.stalled.lock() == plural {
            tokio::time::sleep(STALL).await;
        }
        if self.fault == Fault::Lag {
            tokio::time::sleep(lag(self.seed, self.lags.fetch_add(1, Ordering::SeqCst))).await;
        }
    }

    fn since(&self, from: u64, resource: &(String, String), namespace: &str) -> Vec<WatchEvent> {
        let store = self.store.lock();
        let here = |c: &&WatchEvent| {
            c.resource == *resource && (namespace.is_empty() || c.object["metadata"]["namespace"] == namespace)
        };
        store.since(from).iter().filter(here).cloned().collect()
    }
}

fn header(request: &Request<Bytes>, name: &str) -> String {
    request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}
