//! The admission plugins that are off by default, with `--admission-control-config-file` where they take one: what they
//! let in, change and refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, Remote, etcd_is_missing, file};
use crate::plugins::pod;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A namespace with these annotations and a service account.
async fn namespace(c: &Cluster, name: &str, annotations: Value) -> String {
    c.post("/api/v1/namespaces", json!({"metadata": {"name": name, "annotations": annotations}})).await.ok();
    let path = format!("/api/v1/namespaces/{name}");
    c.post(&format!("{path}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await.ok();
    path
}

/// A file with an AdmissionConfiguration of these plugins, next to which a plugin's own file may lie.
fn configuration(c: &Cluster, plugins: Value) -> String {
    let all = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins});
    format!("--admission-control-config-file={}", file(c.dir(), "admission.yaml", &all.to_string()))
}

fn enable(plugins: &[&str]) -> String {
    format!("--enable-admission-plugins=NodeRestriction,{}", plugins.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_tolerations_and_events_are_bounded() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    std::fs::write(c.dir().join("limits.yaml"), "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: [{type: Namespace, qps: 1, burst: 2}]\n").expect("written");
    let file = configuration(
        &c,
        json!([
            {"name": "PodNodeSelector", "configuration": {"podNodeSelectorPluginConfig": {"clusterDefaultNodeSelector": "os=linux", "zoned": "zone=a,disk=ssd"}}},
            {"name": "PodTolerationRestriction", "configuration": {"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
                "default": [{"key": "shared", "operator": "Exists"}], "whitelist": []}},
            {"name": "EventRateLimit", "path": "limits.yaml"},
        ]),
    );
    c.restart_with(vec![enable(&["PodNodeSelector", "PodTolerationRestriction", "EventRateLimit"]), file]).await;

    let plain = namespace(&c, "plain", json!({})).await;
    let made = c.post(&format!("{plain}/pods"), pod("p", json!({}))).await.ok();
    assert_eq!(made["spec"]["nodeSelector"], json!({"os": "linux"}), "the cluster's default");
    let tolerated = made["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    assert!(tolerated.iter().any(|t| t["key"] == "shared"), "{made}");
    let zoned = namespace(&c, "zoned", json!({"scheduler.alpha.kubernetes.io/node-selector": "zone=a"})).await;
    let made = c.post(&format!("{zoned}/pods"), pod("p", json!({"nodeSelector": {"disk": "ssd"}}))).await.ok();
    assert_eq!(made["spec"]["nodeSelector"], json!({"disk": "ssd", "zone": "a"}));
    for (selector, why) in [
        (json!({"zone": "b"}), "pod node label selector conflicts with its namespace node label selector"),
        (json!({"gpu": "yes"}), "pod node label selector labels conflict with its namespace whitelist"),
    ] {
        let refused = c.post(&format!("{zoned}/pods"), pod("x", json!({"nodeSelector": selector}))).await;
        refused.fails(403, "Forbidden", &format!("pods \"x\" is forbidden: {why}"));
    }

    let whitelist = r#"[{"key": "node.kubernetes.io/not-ready"}, {"key": "node.kubernetes.io/unreachable"}, {"key": "mine", "operator": "Exists"}]"#;
    let whitelist = whitelist
        .replace("ready\"}", "ready\", \"operator\": \"Exists\"}")
        .replace("able\"}", "able\", \"operator\": \"Exists\"}");
    let annotations = json!({"scheduler.alpha.kubernetes.io/tolerationsWhitelist": whitelist, "scheduler.alpha.kubernetes.io/defaultTolerations": "[]"});
    let strict = namespace(&c, "strict", annotations).await;
    let tolerant = |key: &str| json!({"tolerations": [{"key": key, "operator": "Exists"}]});
    c.post(&format!("{strict}/pods"), pod("p", tolerant("mine"))).await.ok();
    c.post(&format!("{strict}/pods"), pod("x", tolerant("theirs"))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist"#,
    );

    let event = |name: String, namespace: &str| json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace}, "reason": "r", "message": "m", "source": {"component": "c"}});
    let all = (0..6).map(|i| c.post("/api/v1/namespaces/plain/events", event(format!("e{i}"), "plain")));
    let answers = futures::future::join_all(all).await;
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.code == 201);
    assert!((2..=4).contains(&taken.len()), "a burst of two, and one more each second: {}", taken.len());
    let why = "Too many requests: Too many requests: limit reached on type Namespace for key plain";
    refused[0].fails(429, "TooManyRequests", why);
    c.post("/api/v1/namespaces/zoned/events", event("e".to_owned(), "zoned")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_decides_about_images() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let remote = Remote::start(c.pki(), move |_, body| {
        count.fetch_add(1, Ordering::AcqRel);
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let images = review["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let bad = images.iter().any(|i| i["image"].as_str().is_some_and(|i| i.starts_with("evil/")));
        let pardoned = review["spec"]["annotations"]["mine.image-policy.k8s.io/break-glass"] == "yes";
        let status = match bad && !pardoned {
            true => json!({"allowed": false, "reason": "evil is not our registry"}),
            false => json!({"allowed": true}),
        };
        (200, json!({"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "status": status}).to_string())
    })
    .await;
    let kubeconfig = remote.kubeconfig(c.dir(), "images.conf", "/images");
    let policy = |kubeconfig: &str, open: bool| {
        json!([{"name": "ImagePolicyWebhook", "configuration":
        {"imagePolicy": {"kubeConfigFile": kubeconfig, "allowTTL": 50, "denyTTL": 50, "retryBackoff": 1, "defaultAllow": open}}}])
    };
    let file = configuration(&c, policy(&kubeconfig, false));
    c.restart_with(vec![enable(&["ImagePolicyWebhook", "AlwaysPullImages"]), file]).await;
    let pods = format!("{}/pods", namespace(&c, "images", json!({})).await);
    let of = |name: &str, image: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}]}});
    let made = c.post(&pods, of("good", "good/i")).await.ok();
    assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "Always");
    let evil =
        r#"pods "bad" is forbidden: image policy webhook backend denied one or more images: evil is not our registry"#;
    c.post(&pods, of("bad", "evil/i")).await.fails(403, "Forbidden", evil);
    let before = asked.load(Ordering::Acquire);
    c.post(&pods, of("bad", "evil/i")).await.fails(403, "Forbidden", evil);
    assert_eq!(asked.load(Ordering::Acquire), before, "an answer is remembered");
    let mut pardoned = of("pardoned", "evil/i");
    pardoned["metadata"]["annotations"] = json!({"mine.image-policy.k8s.io/break-glass": "yes"});
    c.post(&pods, pardoned).await.ok();
    // An image is changed into one that may not run.
    let change = json!({"spec": {"containers": [{"name": "c", "image": "evil/j"}]}});
    let refused = c.patch(&format!("{pods}/good"), "strategic-merge-patch+json", change).await;
    assert_eq!(refused.code, 403, "{}", refused.text());

    // A server that cannot be asked: closed, unless it is to be open.
    let dead = c.dir().join("dead.conf").display().to_string();
    let text = std::fs::read_to_string(&kubeconfig).expect("read").replace(&remote.url(), "https://127.0.0.1:1");
    std::fs::write(&dead, text).expect("written");
    for (open, code) in [(false, 403), (true, 201)] {
        let file = configuration(&c, policy(&dead, open));
        c.restart_with(vec![enable(&["ImagePolicyWebhook"]), file]).await;
        let made = c.post(&pods, of(&format!("open-{open}"), "good/k")).await;
        assert_eq!(made.code, code, "{}", made.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_without_a_configuration() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| {
        vec![enable(&[
            "NamespaceAutoProvision",
            "NamespaceExists",
            "LimitPodHardAntiAffinityTopology",
            "ExtendedResourceToleration",
            "OwnerReferencesPermissionEnforcement",
            "DenyServiceExternalIPs",
        ])]
    })
    .await;
    let made = c.post("/api/v1/namespaces/made/configmaps", json!({"metadata": {"name": "m"}})).await.ok();
    assert_eq!(made["metadata"]["namespace"], "made");
    assert_eq!(c.get("/api/v1/namespaces/made").await.code, 200, "it was made for it");
    // A dry run makes nothing, so there is nothing to be in.
    let dry = c.post("/api/v1/namespaces/absent/configmaps?dryRun=All", json!({"metadata": {"name": "m"}})).await;
    dry.fails(404, "NotFound", r#"namespaces "absent" not found"#);
    assert_eq!(c.get("/api/v1/namespaces/absent").await.code, 404);
    let ns = namespace(&c, "strict", json!({})).await;
    let pods = format!("{ns}/pods");
    let apart = |key: &str| {
        let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"a": "b"}}});
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    c.post(&pods, pod("apart", apart("kubernetes.io/hostname"))).await.ok();
    c.post(&pods, pod("x", apart("zone"))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed"#,
    );
    let mut greedy = pod("greedy", json!({}));
    greedy["spec"]["containers"][0]["resources"] =
        json!({"limits": {"vendor.io/gpu": "1"}, "requests": {"vendor.io/gpu": "1"}});
    let greedy = c.post(&pods, greedy).await.ok();
    let tolerations = greedy["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let tolerated = json!({"key": "vendor.io/gpu", "operator": "Exists", "effect": "NoSchedule"});
    assert!(tolerations.contains(&tolerated), "{tolerations:?}");

    let service =
        |ips: Value| json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": ips}});
    c.post(&format!("{ns}/services"), service(json!(["192.0.2.9"]))).await.fails(
        403,
        "Forbidden",
        r#"services "s" is forbidden: Use of external IPs is denied by admission control."#,
    );
    c.post(&format!("{ns}/services"), service(json!([]))).await.ok();
    let add = json!({"spec": {"externalIPs": ["192.0.2.9"]}});
    assert_eq!(c.patch(&format!("{ns}/services/s"), "merge-patch+json", add).await.code, 403);

    // Alice may write config maps, but delete none: she may not have others' deletion follow.
    let grant = async |name: &str, rules: Value| {
        c.post(&format!("{RBAC}/namespaces/strict/roles"), json!({"metadata": {"name": name}, "rules": rules}))
            .await
            .ok();
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
        c.post(&format!("{RBAC}/namespaces/strict/rolebindings"), binding).await.ok();
    };
    grant("write", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "update", "patch"]}]))
        .await;
    let alice = c.client(Identity::Alice);
    let owned = |name: &str, blocks: bool| {
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "apart", "uid": "u", "blockOwnerDeletion": blocks});
        json!({"metadata": {"name": name, "ownerReferences": [owner]}})
    };
    let maps = format!("{ns}/configmaps");
    alice.post(&maps, json!({"metadata": {"name": "free"}})).await.ok();
    alice.post(&maps, owned("x", false)).await.fails(
        403,
        "Forbidden",
        r#"configmaps "x" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>"#,
    );
    grant("delete", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}])).await;
    alice.post(&maps, owned("owned", false)).await.ok();
    alice.post(&maps, owned("x", true)).await.fails(
        403,
        "Forbidden",
        r#"configmaps "x" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"#,
    );
    grant("finalize", json!([{"apiGroups": [""], "resources": ["pods/finalizers"], "verbs": ["update"]}])).await;
    alice.post(&maps, owned("blocking", true)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn always_deny_names_itself() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    // Not the whole server: what it makes for itself is there already.
    c.restart_with(vec![enable(&["AlwaysDeny"])]).await;
    c.post("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "m"}})).await.fails(
        403,
        "Forbidden",
        r#"configmaps "m" is forbidden: admission control is denying all modifications"#,
    );
    c.get("/api/v1/namespaces/default/configmaps").await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_addresses_behind_their_gate() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let services = "/api/v1/namespaces/default/services";
    let odd = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "externalIPs": ["010.1.2.3"]}});
    c.post(services, odd("before")).await.ok();
    c.restart_with(vec!["--feature-gates=StrictIPCIDRValidation=true".to_owned()]).await;
    let message =
        "Service \"after\" is invalid: spec.externalIPs[0]: Invalid value: \"010.1.2.3\": must not have leading 0s";
    c.post(services, odd("after")).await.fails(422, "Invalid", message);
    // What was there stays, and nothing odd joins it.
    let path = format!("{services}/before");
    c.patch(&path, "merge-patch+json", json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
    let more = json!({"spec": {"externalIPs": ["010.1.2.3", "::ffff:1.2.3.4"]}});
    let refused = c.patch(&path, "merge-patch+json", more).await;
    assert!(refused.code == 422 && refused.text().contains("spec.externalIPs[1]"), "{}", refused.text());
}
