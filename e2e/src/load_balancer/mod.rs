//! The load balancer of the one machine: Services of type `LoadBalancer` get an address that leads to the nodes.
//!
//! In: Services, EndpointSlices and Nodes, by watches. Out: `status.loadBalancer` and routes of the machine, where a cloud
//! has load balancers; kube-proxy on the nodes knows the addresses. Never: a Service with a `loadBalancerClass`.

mod plan;
mod routes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use shared::client;
use shared::informer::{Cached, Factory, Store};
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::Notify;

use crate::layout::{Layout, Network};
use crate::machine::{Machine, Process};
use plan::{Ingress, Plan, View};

/// Name of the machine and of its process.
pub const NAME: &str = "load-balancer";
/// Changes that come within this time are one.
const PAUSE: Duration = Duration::from_millis(100);
/// Time before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the machine of the load balancer, on the host's network.
#[must_use]
pub fn machine(layout: &Layout) -> Machine {
    let run = vec!["--run".into(), layout.root.display().to_string(), NAME.into()];
    let families = if layout.dual_stack { vec!["--dual-stack".into()] } else { Vec::new() };
    Machine {
        name: NAME.into(),
        folder: layout.machine(NAME),
        netns: None,
        hostname: None,
        binds: Vec::new(),
        processes: vec![Process::new(NAME, layout.binary("cluster"), [run, families].concat())],
    }
}

/// Removes the routes that the load balancer left.
pub fn remove_routes(network: &Network) {
    routes::remove(&pools(network, true));
}

fn pools(network: &Network, dual_stack: bool) -> Vec<IpNet> {
    let ranges = [Some(&network.load_balancers), dual_stack.then_some(&network.load_balancers_6)];
    ranges.into_iter().flatten().filter_map(|range| range.parse().ok()).collect()
}

/// Runs the load balancer until the process ends.
///
/// # Errors
/// A kubeconfig that cannot be used.
pub fn run(layout: &Layout, dual_stack: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(&layout.admin_conf(), &pools(&layout.network, dual_stack)))
}

async fn serve(kubeconfig: &Path, pools: &[IpNet]) -> Result<()> {
    let options = client::Options {
        kubeconfig: kubeconfig.display().to_string(),
        user_agent: client::user_agent(NAME),
        ..client::Options::default()
    };
    let client = client::new(&options).await?;
    let (tasks, shutdown, changed) = (TaskGroup::new(), Shutdown::new(), Arc::new(Notify::new()));
    let factory = Factory::new(client.clone(), tasks, shutdown);
    let services = followed::<Service>(&factory, &changed);
    let slices = followed::<EndpointSlice>(&factory, &changed);
    let nodes = followed::<Node>(&factory, &changed);
    factory.start();
    factory.wait_synced().await;
    loop {
        let view = View { services: services.list(), slices: slices.list(), nodes: nodes.list() };
        let plan = plan::plan(&view, pools);
        if let Err(error) = apply(&client, &plan, pools).await {
            eprintln!("Failed to sync, retrying: {error:#}");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        for pending in &plan.pending {
            eprintln!("Service is pending: {pending}");
        }
        changed.notified().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Follows the objects of a kind, each change of which wakes the loop.
fn followed<K: Cached>(factory: &Factory, changed: &Arc<Notify>) -> Store<K> {
    let (informer, changed) = (factory.informer::<K>(), Arc::clone(changed));
    informer.add_handler(move |_| changed.notify_one());
    informer.store()
}

/// Routes come first: an address that is shown answers.
async fn apply(client: &kube::Client, plan: &Plan, pools: &[IpNet]) -> Result<()> {
    let (wanted, ranges) = (plan.routes.clone(), pools.to_vec());
    tokio::task::spawn_blocking(move || routes::apply(&wanted, &ranges)).await??;
    for ingress in &plan.ingresses {
        write(client, ingress).await?;
    }
    Ok(())
}

async fn write(client: &kube::Client, to: &Ingress) -> Result<()> {
    let ingress: Vec<_> = to.addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
    let balancer = if ingress.is_empty() { json!({"ingress": null}) } else { json!({"ingress": ingress}) };
    let services: Api<Service> = Api::namespaced(client.clone(), &to.namespace);
    let patch = Patch::Merge(json!({"status": {"loadBalancer": balancer}}));
    match services.patch_status(&to.name, &PatchParams::default(), &patch).await {
        // Deleted meanwhile.
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        written => Ok(written.map(drop)?),
    }
}
