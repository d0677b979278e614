//! The podresources service: which resources the node's pods have, for monitors and operators, on
//! `<root-dir>/pod-resources/kubelet.sock`. Upstream's `pkg/kubelet/apis/podresources`, v1.

use crate::cpus::CpuSet;
use crate::devices::{Devices, GrantedDevice};
use crate::memory::Block;
use crate::pace::Pace;
use crate::plugins::{self, metrics::PodResourcesQuestion};
use crate::pods;
use crate::resource_claims;
use crate::workers::manager::Manager;
use k8s_openapi::api::core::v1::{Container, Pod};
use shared::types::{is_pod_terminal, is_sidecar};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// The interface's messages.
pub mod v1 {
    #![allow(
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        clippy::all,
        missing_docs,
        reason = "generated from the API of pod resources"
    )]
    tonic::include_proto!("v1");
}

/// Folder of the socket, below the root directory.
const FOLDER: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";

/// Calls a second (upstream's `DefaultQPS`).
const QPS: i32 = 100;
/// Calls at once (upstream's `DefaultBurstTokens`).
const BURST: i32 = 10;

/// Refuses calls that come too fast: a monitor that does not wait must not keep the kubelet from its work. Answers for
/// upstream's `LimiterUnaryServerInterceptor`.
fn limit(pace: &Pace, now: Instant) -> Result<(), Status> {
    if pace.accepts(now) { Ok(()) } else { Err(Status::resource_exhausted("rejected by rate limit")) }
}

/// The service over a node's pods and devices.
pub(crate) struct Service {
    manager: Arc<Manager>,
    devices: Arc<Devices>,
}

/// A device, one entry each, as upstream writes them.
fn device(granted: GrantedDevice) -> v1::ContainerDevices {
    let nodes: Vec<v1::NumaNode> = granted.nodes.into_iter().map(|id| v1::NumaNode { id }).collect();
    v1::ContainerDevices {
        resource_name: granted.resource,
        device_ids: vec![granted.id],
        topology: (!nodes.is_empty()).then_some(v1::TopologyInfo { nodes }),
    }
}

/// A device of a claim.
fn dynamic(pod: &Pod, granted: resource_claims::Granted) -> v1::DynamicResource {
    let device = granted.device;
    let resource = v1::ClaimResource {
        cdi_devices: device.cdi_device_ids.into_iter().map(|name| v1::CdiDevice { name }).collect(),
        driver_name: granted.driver,
        pool_name: device.pool_name,
        device_name: device.device_name,
        share_id: device.share_id,
    };
    v1::DynamicResource {
        claim_name: granted.claim,
        claim_namespace: pods::namespace(pod).to_owned(),
        claim_resources: vec![resource],
    }
}

fn memory_of(block: Block) -> v1::ContainerMemory {
    let nodes = block.numa_affinity.into_iter().map(|id| v1::NumaNode { id: i64::from(id) }).collect();
    v1::ContainerMemory { memory_type: block.kind, size: block.size, topology: Some(v1::TopologyInfo { nodes }) }
}

/// Resources of a pod, by the containers that hold them as long as it runs.
fn resources(
    pod: &Pod,
    of_container: impl Fn(&str) -> Vec<GrantedDevice>,
    claimed: impl Fn(&Container) -> Vec<resource_claims::Granted>,
    cpus: impl Fn(&str) -> Vec<i64>,
    memory: impl Fn(&str) -> Vec<Block>,
) -> v1::PodResources {
    let spec = pod.spec.iter();
    let lasting = spec.flat_map(|spec| {
        let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
        sidecars.chain(&spec.containers)
    });
    let containers = lasting.map(|container| v1::ContainerResources {
        name: container.name.clone(),
        devices: of_container(&container.name).into_iter().map(device).collect(),
        cpu_ids: cpus(&container.name),
        memory: memory(&container.name).into_iter().map(memory_of).collect(),
        dynamic_resources: claimed(container).into_iter().map(|granted| dynamic(pod, granted)).collect(),
    });
    v1::PodResources {
        name: pods::name(pod).to_owned(),
        namespace: pods::namespace(pod).to_owned(),
        containers: containers.collect(),
    }
}

/// Counts a question, and answers it.
fn counted<T>(question: PodResourcesQuestion, outcome: Result<T, Status>) -> Result<Response<T>, Status> {
    plugins::metrics::pod_resources(question, &outcome);
    outcome.map(Response::new)
}

impl Service {
    pub(crate) fn new(manager: Arc<Manager>, devices: Arc<Devices>) -> Self {
        Self { manager, devices }
    }

    fn of(&self, pod: &Pod) -> v1::PodResources {
        let of_container = |container: &str| self.devices.of_container(pods::uid(pod), container);
        let cx = self.manager.context();
        let (claims, cpus) = (&cx.claims, |container: &str| cx.cpus.ids(pod, container));
        let with_claims = cx.settings.gates.enabled("KubeletPodResourcesDynamicResources");
        let claimed = |container: &Container| match with_claims {
            true => claims.of_container(pod, container).unwrap_or_default(),
            false => Vec::new(),
        };
        // A claim that is not prepared has no devices yet.
        let memory = |container: &str| cx.memory.of_container(pods::uid(pod), container);
        resources(pod, of_container, claimed, cpus, memory)
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        let pods = self.manager.pods();
        let with_ended = !self.manager.context().settings.gates.enabled("KubeletPodResourcesListUseActivePods");
        let active = pods.iter().filter(|pod| with_ended || !is_pod_terminal(pod));
        let pod_resources = active.map(|pod| self.of(pod)).collect();
        counted(PodResourcesQuestion::List, Ok(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        let devices = self.devices.healthy().into_iter().map(device).collect();
        let cpus = self.manager.context().cpus.allocatable();
        let cpu_ids = cpus.iter().flat_map(CpuSet::ids).map(i64::from).collect();
        let memory = self.manager.context().memory.allocatable().into_iter().map(memory_of).collect();
        counted(PodResourcesQuestion::Allocatable, Ok(v1::AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        if !self.manager.context().settings.gates.enabled("KubeletPodResourcesGet") {
            return counted(PodResourcesQuestion::Get, Err(Status::unknown("PodResources API Get method disabled")));
        }
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let pods = self.manager.pods();
        let found = pods.iter().find(|pod| pods::name(pod) == pod_name && pods::namespace(pod) == pod_namespace);
        let missing = || Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found"));
        let pod_resources = found.map(|pod| Some(self.of(pod))).ok_or_else(missing);
        counted(
            PodResourcesQuestion::Get,
            pod_resources.map(|pod_resources| v1::GetPodResourcesResponse { pod_resources }),
        )
    }
}

/// Serves the socket until shutdown.
pub async fn run(root: &Path, manager: Arc<Manager>, devices: Arc<Devices>, shutdown: CancellationToken) {
    let pace = Arc::new(Pace::new(QPS, BURST));
    let limited = move |request: Request<()>| limit(&pace, Instant::now()).map(|()| request);
    let service = PodResourcesListerServer::with_interceptor(Service::new(manager, devices), limited);
    let socket = root.join(FOLDER).join(SOCKET);
    plugins::serve(&socket, tonic::transport::Server::builder().add_service(service), shutdown).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn calls_that_come_too_fast_are_refused() {
        let (pace, begun) = (Pace::new(QPS, BURST), Instant::now());
        assert!((0..10).all(|_| limit(&pace, begun).is_ok()));
        let refused = limit(&pace, begun).expect_err("the eleventh at once");
        assert_eq!((refused.code(), refused.message()), (tonic::Code::ResourceExhausted, "rejected by rate limit"));
        limit(&pace, begun + Duration::from_millis(10)).expect("a hundred a second");
    }

    #[test]
    fn pods_are_told_with_the_containers_that_last() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
            "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [{"name": "main"}]}}))
        .expect("a pod");
        let granted = |container: &str| match container {
            "main" => vec![GrantedDevice { resource: "r.io/d".to_owned(), id: "a".to_owned(), nodes: vec![1] }],
            _ => Vec::new(),
        };
        let claimed = |container: &Container| {
            let device = resource_claims::Device { device_name: "x".to_owned(), ..Default::default() };
            let (claim, driver) = ("c".to_owned(), "driver.test".to_owned());
            if container.name == "side" { vec![resource_claims::Granted { claim, driver, device }] } else { Vec::new() }
        };
        let told = resources(
            &pod,
            granted,
            claimed,
            |container| if container == "main" { vec![2, 3] } else { Vec::new() },
            |_| Vec::new(),
        );
        assert_eq!((told.containers[0].cpu_ids.len(), told.containers[1].cpu_ids.as_slice()), (0, &[2, 3][..]));
        let dynamic = &told.containers[0].dynamic_resources;
        assert_eq!((dynamic[0].claim_name.as_str(), dynamic[0].claim_namespace.as_str()), ("c", "n"));
        assert_eq!(dynamic[0].claim_resources[0].device_name, "x");
        let names: Vec<&str> = told.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!((told.name.as_str(), told.namespace.as_str(), names.as_slice()), ("p", "n", &["side", "main"][..]));
        let devices = &told.containers[1].devices;
        assert_eq!(devices[0].device_ids, ["a"]);
        assert_eq!(devices[0].topology.as_ref().map(|topology| topology.nodes[0].id), Some(1));
        assert!(told.containers[0].devices.is_empty());
    }
}
