//! Two clusters on one machine: each works by itself, and stays when the other goes.

use e2e::testing::{Cluster, is_ready};

const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: "busybox:1.36"
      command: [sh, -c, "mkdir /www; cat /token/name > /www/index.html; exec httpd -f -p 8080 -h /www"]
      volumeMounts: [{name: token, mountPath: /token}]
  volumes:
    - name: token
      configMap: {name: whose}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#;

pub fn stand() {
    let first = Cluster::start(&["--nodes", "1"]);
    let second = Cluster::start_named("second", &["--nodes", "1", "--control-plane", "static-pods"]);
    let clusters = [("first", &first), ("second", &second)];
    for (name, cluster) in clusters {
        cluster.load("busybox");
        cluster.kubectl(&format!("create configmap whose --from-literal=name={name}"));
        cluster.feed("apply -f -", WEB);
    }
    for (name, cluster) in clusters {
        answers(name, cluster);
    }
    first.stop();

    answers("second", &second);
    assert_eq!(second.kubectl("exec web -- cat /token/name"), "second", "what was there goes on");
    // A pod's folders lie on mounts of its node, which nobody has taken away.
    second.kubectl("delete pod web");
    second.feed("apply -f -", WEB);
    answers("second", &second);
    let again = Cluster::start(&["--nodes", "1"]);
    assert_eq!(again.layout().network, first.layout().network, "the number of the one that went is free");
    again.stop();
    answers("second", &second);
    second.stop();
}

/// The Service answers from outside of all pods with the name of its cluster.
fn answers(name: &str, cluster: &Cluster) {
    cluster.until(&format!("the pod of {name} is ready"), 60, || {
        let ready = cluster.pods("app=web").iter().any(is_ready);
        if ready { Ok(()) } else { Err(cluster.kubectl("get pods -A -o wide")) }
    });
    let address = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
    cluster.until(&format!("the Service of {name} answers"), 30, || {
        let said = cluster.curl(&format!("http://{address}/"))?;
        if said == name { Ok(()) } else { Err(said) }
    });
}
