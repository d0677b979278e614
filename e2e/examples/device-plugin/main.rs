//! A device plugin for tests: two devices that are `/dev/zero`. `device-plugin ROOT RESOURCE` registers with the kubelet whose
//! root directory ROOT is, and anew when the kubelet is another; `device-plugin ROOT` prints who has which devices.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use kubelet::devices::v1beta1 as api;
use kubelet::plugins::channel;
use kubelet::pod_resources::v1::ListPodResourcesRequest;
use kubelet::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

const PERIOD: Duration = Duration::from_millis(100);
const ENDPOINT: &str = "test.sock";

type Answer<T> = Result<Response<T>, Status>;

struct Plugin;

#[tonic::async_trait]
impl api::device_plugin_server::DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<api::Empty>) -> Answer<api::DevicePluginOptions> {
        Ok(Response::new(api::DevicePluginOptions::default()))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<api::Empty>) -> Answer<Self::ListAndWatchStream> {
        let device = |id: &str| api::Device { id: id.to_owned(), health: "Healthy".to_owned(), topology: None };
        let list = api::ListAndWatchResponse { devices: vec![device("one"), device("two")] };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(list)).chain(tokio_stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<api::PreferredAllocationRequest>,
    ) -> Answer<api::PreferredAllocationResponse> {
        Err(Status::unimplemented("not offered"))
    }

    async fn allocate(&self, request: Request<api::AllocateRequest>) -> Answer<api::AllocateResponse> {
        let answer = |wanted: api::ContainerAllocateRequest| {
            let device = |id: &String| api::DeviceSpec {
                container_path: format!("/dev/{id}"),
                host_path: "/dev/zero".to_owned(),
                permissions: "rw".to_owned(),
            };
            api::ContainerAllocateResponse {
                devices: wanted.devices_ids.iter().map(device).collect(),
                envs: [("DEVICES".to_owned(), wanted.devices_ids.join(","))].into(),
                ..Default::default()
            }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(answer).collect();
        Ok(Response::new(api::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Answer<api::PreStartContainerResponse> {
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}

/// Serves and registers, once for each kubelet.
async fn serve(root: &Path, resource: &str) -> anyhow::Result<()> {
    let folder = root.join("device-plugins");
    let kubelet = folder.join("kubelet.sock");
    let mut known = None;
    loop {
        let found = std::fs::metadata(&kubelet).ok();
        // A socket that is made anew may have the inode of the one before.
        let identity = found.map(|found| (found.ino(), found.ctime(), found.ctime_nsec()));
        if identity.is_none() || identity == known {
            tokio::time::sleep(PERIOD).await;
            continue;
        }
        std::fs::remove_file(folder.join(ENDPOINT)).ok();
        let listener = UnixListenerStream::new(UnixListener::bind(folder.join(ENDPOINT))?);
        let service = api::device_plugin_server::DevicePluginServer::new(Plugin);
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(listener));
        let channel = channel(&kubelet).map_err(anyhow::Error::msg)?;
        let request = api::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: ENDPOINT.to_owned(),
            resource_name: resource.to_owned(),
            options: None,
        };
        let registered = api::registration_client::RegistrationClient::new(channel).register(request).await;
        if registered.is_ok() {
            known = identity;
        }
    }
}

/// Prints a line for each container with devices: pod, container, ids.
async fn list(root: &Path) -> anyhow::Result<()> {
    let channel = channel(&root.join("pod-resources/kubelet.sock")).map_err(anyhow::Error::msg)?;
    let pods = PodResourcesListerClient::new(channel).list(ListPodResourcesRequest {}).await?.into_inner();
    for pod in pods.pod_resources {
        for container in pod.containers.iter().filter(|container| !container.devices.is_empty()) {
            let ids: Vec<&str> =
                container.devices.iter().flat_map(|device| &device.device_ids).map(String::as_str).collect();
            println!("{} {} {}", pod.name, container.name, ids.join(","));
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [root] => list(Path::new(root)).await,
        [root, resource] => serve(Path::new(root), resource).await,
        _ => anyhow::bail!("usage: device-plugin ROOT [RESOURCE]"),
    }
}
