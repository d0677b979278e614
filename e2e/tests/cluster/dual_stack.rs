//! Addresses of two families: nodes and pods have both, and services have those they ask for (KEP-563).

use std::collections::BTreeSet;

use serde_json::Value;

use e2e::testing::{Cluster, text, url};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: dual}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dual}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: busybox:1.36
        env: [{name: OWN, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}]
        command: [sh, -c, 'mkdir /w; hostname >/w/index.html; echo $OWN >/w/own; exec httpd -f -p "[::]:8080" -h /w']
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: both, namespace: dual}
spec: {ipFamilyPolicy: PreferDualStack, type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: dual}
spec: {ipFamilies: [IPv6], selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#;

/// The texts at a path of an object, in order.
fn texts(object: &Value, path: &str) -> Vec<String> {
    let list = object.pointer(path).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|item| item.as_str().or(item["ip"].as_str()).or(item["address"].as_str())).map(Into::into).collect()
}

/// The families of some addresses, in their order.
fn families(addresses: &[String]) -> String {
    addresses.iter().map(|address| if address.contains(':') { '6' } else { '4' }).collect()
}

/// Asks until every pod has answered.
fn all_answer(cluster: &Cluster, url: &str, pods: &BTreeSet<String>) {
    let mut seen = BTreeSet::new();
    cluster.until(&format!("answers of {pods:?} from {url}"), 30, || {
        seen.insert(cluster.curl(url)?.trim().to_owned());
        if seen == *pods { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

fn cluster_ips(cluster: &Cluster, service: &str) -> Vec<String> {
    texts(&cluster.json(&format!("get service {service} -n dual")), "/spec/clusterIPs")
}

/// The families of a service's slices.
fn slices(cluster: &Cluster, service: &str) -> BTreeSet<String> {
    let list = cluster.json(&format!("get endpointslices -n dual -l kubernetes.io/service-name={service}"));
    list["items"].as_array().into_iter().flatten().map(|slice| text(slice, "/addressType").to_owned()).collect()
}

/// Walks through all of it.
pub fn has_both_families(cluster: &Cluster) {
    let nodes = cluster.json("get nodes")["items"].as_array().cloned().unwrap_or_default();
    for node in &nodes {
        assert_eq!(families(&texts(node, "/spec/podCIDRs")), "46");
        let internal: Vec<String> = texts(node, "/status/addresses");
        assert_eq!(families(&internal[..2]), "46", "{internal:?}");
    }
    cluster.feed("apply -f -", OBJECTS);
    cluster.kubectl("rollout status deployment/web -n dual --timeout=90s");
    let pods = cluster.json("get pods -n dual")["items"].as_array().cloned().unwrap_or_default();
    for pod in &pods {
        let own = texts(pod, "/status/podIPs");
        assert_eq!(families(&own), "46");
        assert_eq!(families(&texts(pod, "/status/hostIPs")), "46");
        for address in &own {
            let told = cluster.until("a pod's page", 30, || cluster.curl(&url(address, ":8080/own")));
            assert_eq!(told.trim(), own.join(","), "what the pod is told of itself");
        }
    }
    let names: BTreeSet<String> = pods.iter().map(|pod| text(pod, "/metadata/name").to_owned()).collect();
    services_have_what_they_ask_for(cluster, &nodes, &names);
    services_change(cluster, &names);
    cluster.kubectl("delete namespace dual --wait=false");
}

fn services_have_what_they_ask_for(cluster: &Cluster, nodes: &[Value], pods: &BTreeSet<String>) {
    let both = cluster_ips(cluster, "both");
    assert_eq!(families(&both), "46");
    let six = cluster_ips(cluster, "six");
    assert_eq!(families(&six), "6");
    for address in both.iter().chain(&six) {
        all_answer(cluster, &url(address, "/"), pods);
    }
    let port = cluster.kubectl("get service both -n dual -o jsonpath={.spec.ports[0].nodePort}");
    for address in nodes.iter().flat_map(|node| texts(node, "/status/addresses").into_iter().take(2)) {
        all_answer(cluster, &url(&address, &format!(":{port}/")), pods);
    }
}

/// The second family can be given up and asked for; the first cannot be changed.
fn services_change(cluster: &Cluster, pods: &BTreeSet<String>) {
    let before = cluster_ips(cluster, "both");
    let policy = |policy: &str| {
        let patch = format!(r#"{{"spec":{{"ipFamilyPolicy":"{policy}"}}}}"#);
        cluster.kubectl_args(&["patch", "service", "both", "-n", "dual", "-p", &patch]);
    };
    let has_slices = |wanted: &[&str]| {
        let wanted: BTreeSet<String> = wanted.iter().map(|&family| family.to_owned()).collect();
        cluster.until("slices of the families", 30, || {
            let found = slices(cluster, "both");
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        });
    };
    has_slices(&["IPv4", "IPv6"]);
    policy("SingleStack");
    assert_eq!(cluster_ips(cluster, "both"), before[..1]);
    has_slices(&["IPv4"]);
    policy("RequireDualStack");
    let after = cluster_ips(cluster, "both");
    assert_eq!((families(&after).as_str(), &after[0]), ("46", &before[0]));
    has_slices(&["IPv4", "IPv6"]);
    all_answer(cluster, &url(&after[1], "/"), pods);
    let said = cluster.refused(r#"patch service both -n dual -p {"spec":{"ipFamilies":["IPv6","IPv4"]}}"#);
    assert!(said.contains("spec.clusterIPs[0]") && said.contains("expected an IPv4 value"), "{said}");
}
