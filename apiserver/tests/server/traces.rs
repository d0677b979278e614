//! `--tracing-config-file`: what a collector is told of a request, and what those are told that are asked for it.

use serde_json::{Value, json};
use shared::flags::FlagSet;
use shared::run::Shutdown;

use crate::harness::{Cluster, Collector, Identity, Webhook, etcd_is_missing, eventually};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server that tells a collector of what requests bring a trace of, and its webhook.
async fn traced(collector: &Collector) -> (Cluster, Webhook) {
    let address = collector.address();
    let c = Cluster::start_with(|dir, _| {
        let file = dir.join("tracing.yaml");
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: {address}\nsamplingRatePerMillion: 0\n"
        );
        std::fs::write(&file, text).expect("written");
        vec![format!("--tracing-config-file={}", file.display())]
    })
    .await;
    let webhook = Webhook::start(c.pki(), |_, _| Some(json!({"allowed": true}))).await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let hook = json!({"name": "h.example.com", "clientConfig": webhook.config("/x"), "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "matchPolicy": "Equivalent"});
    let configuration = json!({"metadata": {"name": "judges"}, "webhooks": [hook]});
    c.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", configuration).await.ok();
    (c, webhook)
}

fn body(name: &str) -> Option<bytes::Bytes> {
    Some(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn request_trace_covers_all_steps() {
    if etcd_is_missing() {
        return;
    }
    let collector = Collector::start().await;
    let (c, webhook) = traced(&collector).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let headers = [("traceparent", parent.as_str()), ("content-type", "application/json"), ("audit-id", "of-the-test")];
    // The webhook counts once the cache has it.
    let asked = async || {
        let name = format!("m{}", webhook.traceparents().len() + usize::from(rand::random::<u16>()));
        assert_eq!(c.call("POST", MAPS, &headers, body(&name)).await.code, 201);
        webhook.traceparents().pop()
    };
    let told = eventually("the webhook is asked", asked).await;
    assert_eq!((&told[3..35], &told[53..]), (trace, "01"), "{told}");

    let request = "POST /api/v1/namespaces/{:namespace}/configmaps";
    let names = [
        request,
        "authentication",
        "authorization",
        "priorityandfairness",
        "Create",
        "Call validating webhook",
        "HTTP POST",
        "Create etcd3",
        "etcdserverpb.KV/Txn",
    ];
    let spans = eventually("told of", async || collector.trace(trace, &names)).await;
    let of = |name: &str| spans.iter().find(|span| span.name == name).expect(name);
    let hex = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let root = of(request);
    assert_eq!(hex(&root.parent), "b7ad6b7169203331");
    for (key, want) in [("http.request.method", "POST"), ("http.target", MAPS), ("audit-id", "of-the-test")] {
        assert_eq!(root.text(key), want);
    }
    let verb = spans.iter().find(|span| span.name == "Create" && span.parent == root.id).expect("below the request");
    assert_eq!((verb.text("url"), verb.text("resource"), verb.text("namespace")), (MAPS, "configmaps", "default"));
    let call = of("Call validating webhook");
    let above = |id: &[u8]| spans.iter().find(|span| span.id == id).map_or("", |span| span.name.as_str());
    assert_eq!(
        (above(&call.parent), call.text("configuration"), call.text("webhook")),
        ("Create", "judges", "h.example.com")
    );
    let post = spans.iter().find(|span| hex(&span.id) == told[36..52]).expect("whom the webhook was told of");
    assert_eq!((post.name.as_str(), above(&post.parent)), ("HTTP POST", "Call validating webhook"));
    let stored = of("Create etcd3");
    assert!(stored.text("key").starts_with("/configmaps/default/m"), "{stored:?}");
    let txn = spans.iter().find(|span| span.name == "etcdserverpb.KV/Txn" && above(&span.parent) == "Create etcd3");
    assert_eq!(txn.expect("etcd is asked").text("rpc.system"), "grpc");

    // Reads say which cache they ask, and how the answer is put in words.
    let (other, of_read) =
        ("1af7651916cd43dd8448eb211c80319c", format!("00-{}-b7ad6b7169203331-01", "1af7651916cd43dd8448eb211c80319c"));
    let headers = [("traceparent", of_read.as_str()), ("audit-id", "of-the-reads")];
    assert_eq!(c.call("GET", MAPS, &headers, None).await.code, 200);
    let one = format!("{MAPS}/kube-root-ca.crt?resourceVersion=0");
    assert!(matches!(c.call("GET", &one, &headers, None).await.code, 200 | 404));
    let names = ["List", "cacher.GetList", "Get", "cacher.Get", "SerializeObject"];
    let spans = eventually("told of", async || collector.trace(other, &names)).await;
    let of = |name: &str| spans.iter().find(|span| span.name == name).expect(name);
    let said = |name: &str, keys: &[&str]| keys.iter().map(|key| of(name).text(key).to_owned()).collect::<Vec<_>>();
    assert_eq!(said("cacher.GetList", &["audit-id", "type"]), ["of-the-reads", "configmaps"]);
    assert_eq!(
        said("cacher.Get", &["audit-id", "key", "resource-version"]),
        ["of-the-reads", "/configmaps/default/kube-root-ca.crt", "0"]
    );
    assert_eq!(
        said("SerializeObject", &["audit-id", "method", "url", "mediaType"]),
        ["of-the-reads", "GET", MAPS, "application/json"]
    );
    assert_eq!(of("cacher.GetList").parent, of("List").id);

    // Of those who may not have their own way the trace is not gone on with, and nobody asked for others.
    let headers = [("traceparent", parent.as_str())];
    assert_eq!(c.client(Identity::Alice).call("GET", MAPS, &headers, None).await.code, 403);
    assert!(collector.trace(trace, &["GET /api/v1/namespaces/{:namespace}/configmaps"]).is_none());
}

/// Trace context is passed on even where this server records no spans.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_handed_on_all_the_same() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let webhook = Webhook::start(c.pki(), |_, _| Some(json!({"allowed": true}))).await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let hook = json!({"name": "h.example.com", "clientConfig": webhook.config("/x"), "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"]});
    let configuration = json!({"metadata": {"name": "judges"}, "webhooks": [hook]});
    c.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", configuration).await.ok();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let headers = [("traceparent", parent), ("content-type", "application/json")];
    let asked = async || {
        let name = format!("m{}", rand::random::<u16>());
        c.call("POST", MAPS, &headers, body(&name)).await;
        webhook.traceparents().pop()
    };
    assert_eq!(eventually("the webhook is asked", asked).await, parent);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_wrong_are_refused() {
    let file = std::env::temp_dir().join(format!("tracing-{}.yaml", std::process::id()));
    let text = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "TracingConfiguration", "samplingRatePerMillion": -1,
        "endpoint": "http://localhost:4317"});
    std::fs::write(&file, Value::to_string(&text)).expect("written");
    let run = async |file: String| {
        let args = [format!("--tracing-config-file={file}"), "--etcd-servers=http://127.0.0.1:1".to_owned()];
        let flags = FlagSet::of("kube-apiserver", &args.each_ref().map(String::as_str)).expect("flags");
        apiserver::run(flags, Shutdown::new()).await.expect_err("refused").to_string()
    };
    assert_eq!(
        run(file.display().to_string()).await,
        "failed to validate tracing configuration: [samplingRatePerMillion: Invalid value: -1: sampling rate must be positive, \
         endpoint: Invalid value: \"http://localhost:4317\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract]"
    );
    assert_eq!(
        run("/nowhere".to_owned()).await,
        "failed to read tracing config: unable to read tracing configuration from \"/nowhere\": open /nowhere: no such file or directory"
    );
    std::fs::remove_file(file).expect("removed");
}
