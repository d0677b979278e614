//! A node that lets nobody in: without a tunnel neither its kubelet nor its pods are reached, with one both are.

use std::path::Path;

use crate::joining::{Joined, image};
use crate::tenant::Tenant;
use crate::{Helm, webhook};
use e2e::testing::Cluster;

/// Values of a tenant with a tunnel.
const VALUES: [&str; 2] = ["--set=konnectivity.enabled=true", "--set=konnectivity.nodePort=30444"];
/// The protocol between API servers and the tunnel that the chart has not by default.
pub const OTHER_MODE: &str = "--set=konnectivity.mode=http-connect";
const METRICS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/addons/metrics-server.yaml");
/// Message of the condition of the aggregated API.
const CONDITION: &str = "jsonpath={.status.conditions[?(@.type==\"Available\")].status}";

/// The tenant gets a tunnel while it is written to. Logs and shells of a pod go through it, and so do an admission webhook
/// and an aggregated API that are pods of the node.
pub fn is_needed(cluster: &Cluster, helm: &Helm, tenant: &mut Tenant, node: &Joined, agent: &Path) -> bool {
    node.load(agent);
    let metrics = image("metrics-server");
    let aggregated = metrics.exists();
    if aggregated {
        node.load(&metrics);
        tenant.kubectl(&format!("apply -f {METRICS}"));
        tenant.kubectl("rollout status -n kube-system deployment/metrics-server --timeout=120s");
    }
    webhook::is_installed(cluster, tenant, node);
    node.hide();
    cluster.until("the node is out of reach", 60, || {
        let said = tenant.try_kubectl(&["logs", "web", "--request-timeout=5s"]);
        if said.ok { Err(said.out) } else { Ok(()) }
    });
    webhook::is_missed(cluster, tenant);
    tenant.gets(helm, &VALUES);
    tenant.kubectl("rollout status -n kube-system daemonset/konnectivity-agent --timeout=120s");
    node.still_works(tenant);
    has_an_agent_at_each_server(cluster, tenant);
    tenant.passes_its_test(helm);
    webhook::is_called(cluster, tenant);
    if aggregated {
        is_served_by_a_pod(cluster, tenant);
    }
    true
}

/// The agent is connected to the servers of both API servers: whichever is asked reaches the node.
fn has_an_agent_at_each_server(cluster: &Cluster, tenant: &Tenant) {
    cluster.until("both servers have a lease", 60, || {
        let leases = tenant.kubectl("get leases -n kube-system -l k8s-app=konnectivity-server -o name");
        if leases.lines().count() == 2 { Ok(()) } else { Err(leases) }
    });
    cluster.until("every request reaches the node", 60, || {
        for _ in 0..8 {
            let said = tenant.try_kubectl(&["get", "--raw", "/api/v1/nodes/tenant-1/proxy/healthz"]);
            if said.out != "ok" {
                return Err(said.out + &said.err);
            }
        }
        Ok(())
    });
}

fn is_served_by_a_pod(cluster: &Cluster, tenant: &Tenant) {
    cluster.until("the aggregated API is reached", 90, || {
        let said = tenant.try_kubectl(&["get", "apiservice", "v1beta1.metrics.k8s.io", "-o", CONDITION]);
        if said.out == "True" { Ok(()) } else { Err(said.out + &said.err) }
    });
    cluster.until("kubectl top tells of the node", 90, || {
        let said = tenant.try_kubectl(&["top", "node", "tenant-1", "--no-headers"]);
        if said.out.contains("tenant-1") { Ok(()) } else { Err(said.out + &said.err) }
    });
}
