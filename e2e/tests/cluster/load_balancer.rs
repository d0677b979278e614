//! Services of type `LoadBalancer`: their addresses answer on the machine, by all nodes or by those with endpoints.

use serde_json::Value;

use e2e::testing::{Cluster, url};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: balanced, labels: {app: web}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: busybox:1.36
    command: [sh, -c, 'mkdir /w; hostname >/w/index.html; exec httpd -f -p "[::]:8080" -h /w']
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: everywhere, namespace: balanced}
spec: {type: LoadBalancer, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: balanced}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: foreign, namespace: balanced}
spec: {type: LoadBalancer, loadBalancerClass: example.com/lb, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#;

fn addresses(cluster: &Cluster, service: &str) -> Vec<String> {
    let found = cluster.json(&format!("get service {service} --namespace=balanced"));
    let ingress = found.pointer("/status/loadBalancer/ingress").and_then(Value::as_array).cloned().unwrap_or_default();
    ingress.iter().filter_map(|ingress| ingress["ip"].as_str()).map(str::to_owned).collect()
}

/// Each Service that is not for another implementation has an address of each of its families, which answers while it has
/// the Service, and refuses connections afterwards.
pub fn gives_addresses(cluster: &Cluster, families: usize) {
    cluster.namespace("balanced");
    cluster.feed("apply -f -", OBJECTS);
    let mut given = Vec::new();
    for (service, wanted) in [("everywhere", families), ("local", 1)] {
        let found = cluster.until(&format!("{service} has addresses"), 30, || {
            let found = addresses(cluster, service);
            if found.len() == wanted { Ok(found) } else { Err(format!("{found:?}")) }
        });
        for address in &found {
            cluster.until(&format!("{service} answers at {address}"), 60, || {
                match cluster.curl(&url(address, "/"))?.trim() {
                    "web" => Ok(()),
                    other => Err(other.to_owned()),
                }
            });
        }
        given.extend(found);
    }
    assert!(addresses(cluster, "foreign").is_empty(), "a Service of another class has an address");
    cluster
        .kubectl("patch service everywhere --namespace=balanced --type=merge -p {\"spec\":{\"type\":\"ClusterIP\"}}");
    cluster.until("a Service that is no load balancer has lost its addresses", 30, || {
        let left = addresses(cluster, "everywhere");
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    cluster.kubectl("delete namespace balanced");
    for address in &given {
        cluster.until(&format!("{address} refuses connections"), 30, || match cluster.curl(&url(address, "/")) {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer),
        });
    }
}
