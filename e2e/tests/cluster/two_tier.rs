//! The example of the README: a database, two web servers, a node port.

use std::collections::BTreeSet;

use e2e::testing::{Cluster, is_ready, text};

const NODES: [&str; 2] = ["10.89.0.11", "10.89.0.12"];

/// The page shows what is in the database, through both nodes.
pub fn comes_up(cluster: &Cluster) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/two-tier");
    cluster.kubectl(&format!("create -f {folder}/mysql.yaml"));
    cluster.until("the database is ready", 120, || ready(cluster, "app=mysql", 1));
    cluster.kubectl(&format!("create -f {folder}/myweb.yaml"));
    cluster.until("the web servers are ready", 180, || ready(cluster, "app=myweb", 2));
    let nodes: BTreeSet<String> =
        cluster.pods("app=myweb").iter().map(|pod| text(pod, "/spec/nodeName").to_owned()).collect();
    assert_eq!(nodes.len(), 2, "the replicas are spread over the nodes");
    page_works(cluster);
    let service = cluster.json("get service mysql");
    assert!(text(&service, "/spec/clusterIP").starts_with("10."), "{service}");
    // Services can be reached where the API server is, which calls webhooks in pods.
    let service = cluster.json("get service myweb");
    let url = format!("http://{}:8080/demo/", text(&service, "/spec/clusterIP"));
    cluster.until("the page of the service", 30, || cluster.curl(&url));
}

/// The page through every node port.
pub fn page_works(cluster: &Cluster) {
    for node in NODES {
        let page =
            cluster.until(&format!("the page of {node}"), 60, || cluster.curl(&format!("http://{node}:30001/demo/")));
        for content in ["Congratulations!!", "our team", "HPE"] {
            assert!(page.contains(content), "{node} answers {page}");
        }
    }
}

fn ready(cluster: &Cluster, selector: &str, count: usize) -> Result<(), String> {
    let pods = cluster.pods(selector);
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    if ready == count { Ok(()) } else { Err(cluster.kubectl(&format!("get pods -o wide -l {selector}"))) }
}

/// A deleted pod is replaced, and the page never depends on which pods there are.
pub fn survives_a_deleted_pod(cluster: &Cluster) {
    let victim = text(&cluster.pods("app=myweb")[0], "/metadata/name").to_owned();
    cluster.kubectl(&format!("delete pod {victim}"));
    cluster.until("the pod is replaced", 120, || ready(cluster, "app=myweb", 2));
    assert!(cluster.pods("app=myweb").iter().all(|pod| text(pod, "/metadata/name") != victim));
    page_works(cluster);
}
