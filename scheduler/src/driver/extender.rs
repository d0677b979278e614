//! Extenders over HTTP: upstream's wire format, TLS and timeouts. Answers for upstream's `HTTPExtender`.
//!
//! The scheduling cycle waits for the answers, as it has to: it hands its thread over meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shared::client::{Fence, Throttle, Transport};
use shared::flags::parse_duration;
use shared::informer::Store;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::framework::extender::{Extender, ExtenderError, Extenders, Filtered, Victims, Weighed};
use crate::model::{NodeInfo, PodInfo};

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 << 20;

/// One extender, as configured.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    url_prefix: String,
    filter_verb: String,
    preempt_verb: String,
    prioritize_verb: String,
    weight: i64,
    bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    https: bool,
    tls_config: Option<Tls>,
    http_timeout: String,
    node_cache_capable: bool,
    managed_resources: Vec<Managed>,
    ignorable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Tls {
    insecure: bool,
    server_name: String,
    cert_file: String,
    key_file: String,
    ca_file: String,
    cert_data: String,
    key_data: String,
    ca_data: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Managed {
    name: String,
}

/// Whole objects that extenders are sent.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) pods: Store<Pod>,
    pub(super) nodes: Store<Node>,
}

struct HttpExtender {
    config: Config,
    managed: HashSet<String>,
    client: kube::Client,
    /// Client over the same connections that only the leader may use.
    binder: kube::Client,
    objects: Objects,
    timeout: Duration,
    /// The scheduler's runtime.
    runtime: Handle,
}

/// Makes the extenders of a complete configuration; ignorable ones come last. Bindings pass `fence`.
///
/// # Errors
/// Addresses and certificates that cannot be used.
pub(super) fn extenders(settings: &Value, objects: &Objects, fence: Option<&Fence>) -> anyhow::Result<Extenders> {
    let mut out: Extenders = Vec::new();
    for value in settings.get("extenders").and_then(Value::as_array).into_iter().flatten() {
        let config: Config = serde_json::from_value(value.clone()).context("reading an extender")?;
        let timeout = parse_duration(&config.http_timeout).unwrap_or_default();
        let transport = transport(&config).with_context(|| format!("extender {}", config.url_prefix))?;
        out.push(Arc::new(HttpExtender {
            managed: config.managed_resources.iter().map(|m| m.name.clone()).collect(),
            objects: objects.clone(),
            runtime: Handle::try_current()?,
            timeout,
            client: transport.client(),
            binder: transport.behind(fence).client(),
            config,
        }));
    }
    out.sort_by_key(|e| e.ignorable());
    Ok(out)
}

fn pem(data: &str, file: &str) -> anyhow::Result<Option<Vec<u8>>> {
    use base64::Engine;
    if !data.is_empty() {
        return Ok(Some(base64::engine::general_purpose::STANDARD.decode(data)?));
    }
    if file.is_empty() { Ok(None) } else { Ok(Some(std::fs::read(file).with_context(|| file.to_owned())?)) }
}

fn transport(config: &Config) -> anyhow::Result<Transport> {
    let url: http::Uri = config.url_prefix.parse()?;
    let mut out = kube::Config::new(url.clone());
    let tls = config.tls_config.clone().unwrap_or_default();
    if let Some(ca) = pem(&tls.ca_data, &tls.ca_file)? {
        use rustls_pki_types::{CertificateDer, pem::PemObject};
        let all = CertificateDer::pem_slice_iter(&ca).collect::<Result<Vec<_>, _>>();
        out.root_cert = Some(all.context("CA certificates")?.iter().map(|c| c.to_vec()).collect());
    }
    if let (Some(cert), Some(key)) = (pem(&tls.cert_data, &tls.cert_file)?, pem(&tls.key_data, &tls.key_file)?) {
        use base64::Engine;
        let encode = |bytes| base64::engine::general_purpose::STANDARD.encode(bytes);
        out.auth_info.client_certificate_data = Some(encode(cert));
        out.auth_info.client_key_data = Some(encode(key).into());
    }
    if !tls.server_name.is_empty() {
        out.tls_server_name = Some(tls.server_name);
    }
    // Without a CA and with HTTPS asked for, upstream does not verify either.
    out.accept_invalid_certs = tls.insecure || config.https && out.root_cert.is_none();
    shared::client::transport(&out, &Throttle::new(0.0, 0))
}

/// Keys as Go reads them: in any case.
fn folded(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map.into_iter().map(|(k, v)| (k.to_ascii_lowercase(), v)).collect(),
        _ => Map::new(),
    }
}

fn texts(value: Option<&Value>) -> HashMap<String, String> {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries.map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect()
}

fn refused(answer: &Map<String, Value>) -> Result<(), ExtenderError> {
    match answer.get("error").and_then(Value::as_str) {
        Some(error) if !error.is_empty() => Err(ExtenderError::Refused(error.to_owned())),
        _ => Ok(()),
    }
}

impl HttpExtender {
    async fn send(&self, client: &kube::Client, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let url = format!("{}/{verb}", self.config.url_prefix.trim_end_matches('/'));
        let failed = |e: &dyn std::fmt::Display| ExtenderError::Post { url: url.clone(), message: e.to_string() };
        // The client puts the prefix of its address in front.
        let request = http::Request::post(format!("/{verb}"))
            .extension(shared::client::Once)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(|e| failed(&e))?;
        let exchange = async {
            let response = client.send(request).await.map_err(|e| failed(&e))?;
            let code = response.status();
            if code != http::StatusCode::OK {
                let (verb, url) = (verb.to_owned(), url.clone());
                return Err(ExtenderError::Code { verb, url, code: code.as_u16() });
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|e| failed(&e))?;
            serde_json::from_slice(&body.to_bytes()).map_err(|e| failed(&e))
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(done) => done,
            Err(_) => Err(failed(&"context deadline exceeded (Client.Timeout exceeded while awaiting headers)")),
        }
    }

    /// For the scheduling cycle, which is no task of its own while it decides.
    fn ask(&self, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let here = Handle::try_current()?;
        if here.runtime_flavor() == RuntimeFlavor::MultiThread {
            return tokio::task::block_in_place(|| here.block_on(self.send(&self.client, verb, body)));
        }
        // A thread that serves `/explain` may not block, and drives nothing while it waits.
        let apart = || self.runtime.block_on(self.send(&self.client, verb, body));
        let joined = std::thread::scope(|threads| threads.spawn(apart).join());
        joined.unwrap_or(Err(ExtenderError::Panicked))
    }

    fn pod(&self, pod: &PodInfo) -> Value {
        let object = self.objects.pods.get(&pod.namespace, &pod.name);
        object.and_then(|p| serde_json::to_value(&*p).ok()).unwrap_or(Value::Null)
    }

    /// The nodes that the question is about, by name alone or whole.
    fn args(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Value {
        let pod = self.pod(pod);
        if self.config.node_cache_capable {
            let names: Vec<&str> = nodes.iter().map(|n| &**n.name()).collect();
            return json!({"Pod": pod, "Nodes": null, "NodeNames": names});
        }
        let whole = nodes.iter().filter_map(|n| self.objects.nodes.get("", n.name()));
        let items: Vec<Value> = whole.filter_map(|n| serde_json::to_value(&*n).ok()).collect();
        json!({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": null})
    }
}

#[async_trait]
impl Extender for HttpExtender {
    fn name(&self) -> &str {
        &self.config.url_prefix
    }

    fn ignorable(&self) -> bool {
        self.config.ignorable
    }

    fn interested(&self, pod: &PodInfo) -> bool {
        if self.managed.is_empty() {
            return true;
        }
        let Some(object) = self.objects.pods.get(&pod.namespace, &pod.name) else { return false };
        let Some(spec) = &object.spec else { return false };
        let resources =
            spec.containers.iter().chain(spec.init_containers.iter().flatten()).filter_map(|c| c.resources.as_ref());
        let lists = resources.flat_map(|r| [r.requests.as_ref(), r.limits.as_ref()]).flatten();
        lists.flat_map(|l| l.keys()).any(|name| self.managed.contains(name))
    }

    fn filters(&self) -> bool {
        !self.config.filter_verb.is_empty()
    }

    fn preempts(&self) -> bool {
        !self.config.preempt_verb.is_empty()
    }

    fn binds(&self) -> bool {
        !self.config.bind_verb.is_empty()
    }

    fn filter(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Result<Filtered, ExtenderError> {
        let answer = folded(self.ask(&self.config.filter_verb, &self.args(pod, nodes))?);
        refused(&answer)?;
        let names = answer.get("nodenames").and_then(Value::as_array).filter(|_| self.config.node_cache_capable);
        let whole = || answer.get("nodes").and_then(|n| n.get("items")).and_then(Value::as_array);
        let fine: Vec<String> = match (names, whole()) {
            (Some(names), _) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            (None, Some(items)) => {
                items.iter().filter_map(|n| n.pointer("/metadata/name")?.as_str()).map(str::to_owned).collect()
            }
            (None, None) => Vec::new(),
        };
        let asked: HashSet<&str> = nodes.iter().map(|node| &**node.name()).collect();
        if let Some(name) = fine.iter().find(|name| !asked.contains(name.as_str())) {
            return Err(ExtenderError::UnknownNode { url: self.config.url_prefix.clone(), node: name.clone() });
        }
        Ok(Filtered {
            fine,
            failed: texts(answer.get("failednodes")),
            hopeless: texts(answer.get("failedandunresolvablenodes")),
        })
    }

    fn prioritize(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Result<Option<Weighed>, ExtenderError> {
        if self.config.prioritize_verb.is_empty() {
            return Ok(None);
        }
        let answer = self.ask(&self.config.prioritize_verb, &self.args(pod, nodes))?;
        let entries = answer.as_array().into_iter().flatten().cloned().map(folded);
        let score = |e: Map<String, Value>| Some((e.get("host")?.as_str()?.to_owned(), e.get("score")?.as_i64()?));
        Ok(Some((entries.filter_map(score).collect(), self.config.weight)))
    }

    fn preempt(
        &self,
        pod: &PodInfo,
        victims: &HashMap<String, Victims>,
    ) -> Result<HashMap<String, Victims>, ExtenderError> {
        let meta = self.config.node_cache_capable;
        let one = |v: &Victims| {
            let pods: Vec<Value> =
                v.pods.iter().map(|p| if meta { json!({"UID": &*p.uid}) } else { self.pod(p) }).collect();
            json!({"Pods": pods, "NumPDBViolations": v.violations})
        };
        let all: Map<String, Value> = victims.iter().map(|(node, v)| (node.clone(), one(v))).collect();
        let (whole, meta) = if meta { (Value::Null, all.into()) } else { (Value::Object(all), Value::Null) };
        let args = json!({"Pod": self.pod(pod), "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta});
        let answer = folded(self.ask(&self.config.preempt_verb, &args)?);
        let mut out = HashMap::new();
        for (node, value) in answer.get("nodenametometavictims").and_then(Value::as_object).into_iter().flatten() {
            let Some(known) = victims.get(node) else {
                let (url, node) = (self.config.url_prefix.clone(), node.clone());
                return Err(ExtenderError::UnknownCandidate { url, node });
            };
            let value = folded(value.clone());
            let by_uid: HashMap<&str, &Arc<PodInfo>> = known.pods.iter().map(|pod| (&*pod.uid, pod)).collect();
            let mut left = Victims {
                violations: value
                    .get("numpdbviolations")
                    .and_then(Value::as_u64)
                    .and_then(|n| n.try_into().ok())
                    .unwrap_or(0),
                ..Victims::default()
            };
            for pod in value.get("pods").and_then(Value::as_array).into_iter().flatten().cloned().map(folded) {
                let uid = pod.get("uid").and_then(Value::as_str).unwrap_or_default();
                let victim = by_uid.get(uid).ok_or_else(|| {
                    let (url, uid) = (self.config.url_prefix.clone(), uid.to_owned());
                    ExtenderError::UnknownVictim { url, uid, node: node.clone() }
                })?;
                left.pods.push(Arc::clone(victim));
            }
            out.insert(node.clone(), left);
        }
        Ok(out)
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ExtenderError> {
        let args = json!({"PodName": &*pod.name, "PodNamespace": &*pod.namespace, "PodUID": &*pod.uid, "Node": node});
        refused(&folded(self.send(&self.binder, &self.config.bind_verb, &args).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, pod};
    use shared::client::Permission;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server that gives one answer to each of the questions it notes down.
    async fn server(answers: Vec<(u16, Value)>) -> (String, tokio::task::JoinHandle<Vec<(String, Value)>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}/scheduler/", listener.local_addr().expect("address"));
        let task = tokio::spawn(async move {
            let mut asked = Vec::new();
            for (code, answer) in answers {
                let (mut stream, _) = listener.accept().await.expect("connection");
                let mut seen = Vec::new();
                let (head, body) = loop {
                    let mut part = [0; 4096];
                    let n = stream.read(&mut part).await.expect("read");
                    seen.extend_from_slice(&part[..n]);
                    let text = String::from_utf8_lossy(&seen).into_owned();
                    if let Some((head, body)) = text.split_once("\r\n\r\n")
                        && let Ok(body) = serde_json::from_str::<Value>(body)
                    {
                        break (head.to_owned(), body);
                    }
                };
                asked.push((head.lines().next().unwrap_or_default().to_owned(), body));
                let text = answer.to_string();
                let reply =
                    format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
                stream.write_all(reply.as_bytes()).await.expect("write");
            }
            asked
        });
        (url, task)
    }

    fn made(url: &str, more: Value) -> Arc<dyn Extender> {
        fenced(url, more, None)
    }

    fn fenced(url: &str, more: Value, fence: Option<&Fence>) -> Arc<dyn Extender> {
        let mut config = json!({"urlPrefix": url, "httpTimeout": "5s", "filterVerb": "filter", "prioritizeVerb": "prioritize",
            "bindVerb": "bind", "preemptVerb": "preempt", "weight": 3, "nodeCacheCapable": true});
        for (k, v) in more.as_object().into_iter().flatten() {
            config[k] = v.clone();
        }
        let objects = Objects { pods: Store::default(), nodes: Store::default() };
        extenders(&json!({"extenders": [config]}), &objects, fence).expect("extender").remove(0)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_wire_format_is_upstreams() {
        let (url, task) = server(vec![
            (
                200,
                json!({"nodeNames": ["b"], "FailedNodes": {"a": "full"}, "failedAndUnresolvableNodes": {"c": "never"}}),
            ),
            (200, json!([{"Host": "a", "Score": 4}, {"host": "b", "score": 9}])),
            (200, json!({"Error": "too late"})),
            (500, json!({})),
            (200, json!({"nodeNames": ["z"]})),
        ])
        .await;
        let extender = made(&url, json!({}));
        let infos = [node("a").with(&[]), node("b").with(&[]), node("c").with(&[])];
        let nodes: Vec<&NodeInfo> = infos.iter().map(|n| &**n).collect();
        let p = pod("p").info();
        let said = extender.filter(&p, &nodes).expect("answer");
        assert_eq!(
            (said.fine, said.failed["a"].as_str(), said.hopeless["c"].as_str()),
            (vec!["b".to_owned()], "full", "never")
        );
        let (scores, weight) = extender.prioritize(&p, &nodes).expect("answer").expect("scores");
        assert_eq!((scores["a"], scores["b"], weight), (4, 9, 3));
        assert_eq!(extender.bind(&p, "a").await.expect_err("refused").to_string(), "too late");
        let why = extender.filter(&p, &nodes).expect_err("refused").to_string();
        assert_eq!(why, format!("failed filter with extender at URL {url}filter, code 500"));
        let why = extender.filter(&p, &nodes).expect_err("refused").to_string();
        assert!(why.ends_with("claims a filtered node \"z\" which is not found in the input node list"), "{why}");
        let asked = task.await.expect("server");
        assert!(asked[0].0.starts_with("POST /scheduler/filter "), "{}", asked[0].0);
        assert_eq!(asked[0].1, json!({"Pod": null, "Nodes": null, "NodeNames": ["a", "b", "c"]}));
        assert_eq!(asked[2].1, json!({"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"}));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_the_leader_has_an_extender_bind() {
        let (url, task) = server(vec![(200, json!({"nodeNames": ["a"]}))]).await;
        let extender = fenced(&url, json!({}), Some(&Fence::new(|| Permission::Expired)));
        let why = extender.bind(&pod("p").info(), "a").await.expect_err("held back").to_string();
        assert!(why.ends_with("the request was not sent: the lease has expired"), "{why}");
        let infos = [node("a").with(&[])];
        let nodes: Vec<&NodeInfo> = infos.iter().map(|n| &**n).collect();
        assert_eq!(extender.filter(&pod("p").info(), &nodes).expect("anybody may ask").fine, ["a"]);
        assert_eq!(task.await.expect("server").len(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn victims_are_named_by_uid() {
        let kept = json!({"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 1}}});
        let (url, task) = server(vec![(200, kept)]).await;
        let victims = Victims { pods: vec![Arc::new(pod("v").info()), Arc::new(pod("w").info())], violations: 2 };
        let all = [("a".to_owned(), victims.clone()), ("b".to_owned(), victims)].into();
        let left = made(&url, json!({})).preempt(&pod("p").info(), &all).expect("answer");
        assert_eq!((left.len(), left["a"].pods.len(), left["a"].violations), (1, 1, 1));
        let asked = task.await.expect("server");
        assert_eq!(asked[0].1["NodeNameToMetaVictims"]["b"]["Pods"], json!([{"UID": "uid-v"}, {"UID": "uid-w"}]));
        assert_eq!(asked[0].1["NodeNameToVictims"], Value::Null);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_pods_with_managed_resources_matter() {
        let extender = made("http://127.0.0.1:1", json!({"managedResources": [{"name": "x.com/a"}]}));
        assert!(!extender.interested(&pod("p").info()));
        assert!(made("http://127.0.0.1:1", json!({})).interested(&pod("p").info()));
    }
}
