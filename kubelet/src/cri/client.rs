//! The gRPC client. Channels connect lazily and reconnect with the transport's own back-off; every call but streams
//! and pulls has a deadline.
//! Answers for `remote_runtime.go` and `remote_image.go` of upstream's `cri-client`.

use super::measured::Measured;
use super::{CriError, Exec, ExecOutput, Runtime, labels, v1};
use crate::bounded::Bounded;
use async_trait::async_trait;
use shared::grpc::{self, Traced};
use shared::traces::Tracer;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use v1::image_service_client::ImageServiceClient;
use v1::runtime_service_client::RuntimeServiceClient;

/// Largest answer that is accepted (a node with thousands of containers and images).
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// A pull may take long, but not forever.
const PULL_DEADLINE: Duration = Duration::from_secs(60 * 60);
/// Extra time for calls that wait on purpose (stop with grace, exec with a timeout).
const SLACK: Duration = Duration::from_secs(15);

/// A runtime behind a unix socket.
#[derive(Clone, Debug)]
pub struct Client {
    runtime: RuntimeServiceClient<Measured<Traced<Bounded<Channel>>>>,
    images: ImageServiceClient<Measured<Traced<Bounded<Channel>>>>,
    timeout: Duration,
}

impl Client {
    /// Connects lazily. Endpoints are `unix:///path` or a bare path; an empty image endpoint means the runtime's.
    pub fn new(runtime: &str, images: &str, timeout: Duration, tracer: &Tracer) -> Result<Self, CriError> {
        let runtime_channel = channel(runtime)?;
        let image_channel =
            if images.is_empty() || images == runtime { runtime_channel.clone() } else { channel(images)? };
        let counted = |channel| Measured(Traced::new(channel, tracer.clone()));
        let [runtime_channel, image_channel] = [runtime_channel, image_channel].map(counted);
        let timeout = if timeout.is_zero() { Duration::from_secs(120) } else { timeout };
        Ok(Self {
            runtime: RuntimeServiceClient::new(runtime_channel).max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(image_channel).max_decoding_message_size(MAX_MESSAGE),
            timeout,
        })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        deadline(message, self.timeout)
    }
}

fn channel(endpoint: &str) -> Result<Bounded<Channel>, CriError> {
    let uri = if endpoint.starts_with('/') { format!("unix://{endpoint}") } else { endpoint.to_owned() };
    if !uri.starts_with("unix:") {
        return Err(CriError::Rpc {
            code: "InvalidArgument",
            message: format!("protocol of endpoint {endpoint:?} is not supported, only unix is"),
        });
    }
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|e| CriError::Rpc { code: "InvalidArgument", message: format!("endpoint {endpoint:?}: {e}") })?;
    Ok(Bounded::new(endpoint.connect_timeout(Duration::from_secs(3)).connect_lazy()))
}

/// The longest time that a container has to stop, in seconds. Runtimes count nanoseconds in 64 bits: of more, containerd makes
/// none at all.
const LONGEST_STOP: i64 = i64::MAX / 1_000_000_000;

/// The longest deadline of a call. gRPC has no words for much longer ones, and tonic panics.
const LONGEST_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

fn deadline<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout.min(LONGEST_DEADLINE));
    request
}

fn error(status: Status) -> CriError {
    CriError::Rpc { code: grpc::name(status.code()), message: status.message().to_owned() }
}

fn missing(what: &str) -> CriError {
    CriError::Rpc { code: "Internal", message: format!("the runtime's answer has no {what}") }
}

fn by_pod(uid: Option<&str>) -> BTreeMap<String, String> {
    uid.map(|uid| (labels::POD_UID.to_owned(), uid.to_owned())).into_iter().collect()
}

#[async_trait]
impl Exec for Client {
    async fn exec_sync(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecOutput, CriError> {
        let message = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        };
        // No deadline of our own when none was asked for: hooks are bounded by their caller.
        let request = if timeout.is_zero() { Request::new(message) } else { deadline(message, timeout + SLACK) };
        let answer = self.runtime.clone().exec_sync(request).await.map_err(error)?.into_inner();
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }
}

#[async_trait]
impl Runtime for Client {
    async fn version(&self) -> Result<v1::VersionResponse, CriError> {
        let request = self.request(v1::VersionRequest { version: "0.1.0".to_owned() });
        Ok(self.runtime.clone().version(request).await.map_err(error)?.into_inner())
    }

    async fn status(&self) -> Result<v1::StatusResponse, CriError> {
        let request = self.request(v1::StatusRequest { verbose: false });
        Ok(self.runtime.clone().status(request).await.map_err(error)?.into_inner())
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, CriError> {
        let request = self.request(v1::RuntimeConfigRequest {});
        Ok(self.runtime.clone().runtime_config(request).await.map_err(error)?.into_inner())
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), CriError> {
        let request = self.request(v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(v1::RuntimeConfig {
                network_config: Some(v1::NetworkConfig { pod_cidr: pod_cidr.to_owned() }),
            }),
        });
        self.runtime.clone().update_runtime_config(request).await.map_err(error)?;
        Ok(())
    }

    async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String, CriError> {
        let message = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        // Twice the usual time: the pause image may have to be pulled and networks take their time.
        let request = deadline(message, self.timeout * 2);
        Ok(self.runtime.clone().run_pod_sandbox(request).await.map_err(error)?.into_inner().pod_sandbox_id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = self.request(v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() });
        self.runtime.clone().stop_pod_sandbox(request).await.map_err(error)?;
        Ok(())
    }

    async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = self.request(v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() });
        self.runtime.clone().remove_pod_sandbox(request).await.map_err(error)?;
        Ok(())
    }

    async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, CriError> {
        let request = self.request(v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false });
        let answer = self.runtime.clone().pod_sandbox_status(request).await.map_err(error)?.into_inner();
        answer.status.ok_or_else(|| missing("sandbox status"))
    }

    async fn sandbox_info(&self, id: &str) -> Result<String, CriError> {
        let request = self.request(v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true });
        let answer = self.runtime.clone().pod_sandbox_status(request).await.map_err(error)?.into_inner();
        Ok(answer.info.get("info").cloned().unwrap_or_default())
    }

    async fn list_sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<v1::PodSandbox>, CriError> {
        let filter = v1::PodSandboxFilter { label_selector: by_pod(pod_uid), ..Default::default() };
        let request = self.request(v1::ListPodSandboxRequest { filter: Some(filter) });
        Ok(self.runtime.clone().list_pod_sandbox(request).await.map_err(error)?.into_inner().items)
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, CriError> {
        let request = self.request(v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        });
        Ok(self.runtime.clone().create_container(request).await.map_err(error)?.into_inner().container_id)
    }

    async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let request = self.request(v1::StartContainerRequest { container_id: id.to_owned() });
        self.runtime.clone().start_container(request).await.map_err(error)?;
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: i64) -> Result<(), CriError> {
        let grace = grace.clamp(0, LONGEST_STOP);
        let message = v1::StopContainerRequest { container_id: id.to_owned(), timeout: grace };
        let wait = self.timeout.saturating_add(Duration::from_secs(u64::try_from(grace).unwrap_or(0)));
        self.runtime.clone().stop_container(deadline(message, wait)).await.map_err(error)?;
        Ok(())
    }

    async fn update_container(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<(), CriError> {
        let request = self.request(v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..Default::default()
        });
        self.runtime.clone().update_container_resources(request).await.map_err(error)?;
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = self.request(v1::RemoveContainerRequest { container_id: id.to_owned() });
        self.runtime.clone().remove_container(request).await.map_err(error)?;
        Ok(())
    }

    async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<v1::Container>, CriError> {
        let filter = v1::ContainerFilter { label_selector: by_pod(pod_uid), ..Default::default() };
        let request = self.request(v1::ListContainersRequest { filter: Some(filter) });
        Ok(self.runtime.clone().list_containers(request).await.map_err(error)?.into_inner().containers)
    }

    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, CriError> {
        let request = self.request(v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false });
        let answer = self.runtime.clone().container_status(request).await.map_err(error)?.into_inner();
        answer.status.ok_or_else(|| missing("container status"))
    }

    async fn reopen_log(&self, id: &str) -> Result<(), CriError> {
        let request = self.request(v1::ReopenContainerLogRequest { container_id: id.to_owned() });
        self.runtime.clone().reopen_container_log(request).await.map_err(error)?;
        Ok(())
    }

    async fn checkpoint_container(&self, id: &str, location: &str, timeout: Duration) -> Result<(), CriError> {
        let message = v1::CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.to_owned(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        };
        let wait = if timeout.is_zero() { self.timeout } else { timeout };
        self.runtime.clone().checkpoint_container(deadline(message, wait)).await.map_err(error)?;
        Ok(())
    }

    async fn exec(&self, message: v1::ExecRequest) -> Result<String, CriError> {
        Ok(self.runtime.clone().exec(self.request(message)).await.map_err(error)?.into_inner().url)
    }

    async fn attach(&self, message: v1::AttachRequest) -> Result<String, CriError> {
        Ok(self.runtime.clone().attach(self.request(message)).await.map_err(error)?.into_inner().url)
    }

    async fn port_forward(&self, message: v1::PortForwardRequest) -> Result<String, CriError> {
        Ok(self.runtime.clone().port_forward(self.request(message)).await.map_err(error)?.into_inner().url)
    }

    async fn container_stats(&self) -> Result<Vec<v1::ContainerStats>, CriError> {
        let request = self.request(v1::ListContainerStatsRequest { filter: None });
        Ok(self.runtime.clone().list_container_stats(request).await.map_err(error)?.into_inner().stats)
    }

    async fn list_images(&self) -> Result<Vec<v1::Image>, CriError> {
        let request = self.request(v1::ListImagesRequest { filter: None });
        Ok(self.images.clone().list_images(request).await.map_err(error)?.into_inner().images)
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>, CriError> {
        let request = self.request(v1::ImageStatusRequest { image: Some(image), verbose: false });
        let found = self.images.clone().image_status(request).await.map_err(error)?.into_inner().image;
        Ok(found.filter(|image| !image.id.is_empty()))
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Result<String, CriError> {
        let message = v1::PullImageRequest { image: Some(image), auth, sandbox_config: Some(sandbox) };
        let request = deadline(message, PULL_DEADLINE);
        Ok(self.images.clone().pull_image(request).await.map_err(error)?.into_inner().image_ref)
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), CriError> {
        let request = self.request(v1::RemoveImageRequest { image: Some(image) });
        self.images.clone().remove_image(request).await.map_err(error)?;
        Ok(())
    }

    async fn image_fs(&self) -> Result<v1::ImageFsInfoResponse, CriError> {
        let request = self.request(v1::ImageFsInfoRequest {});
        Ok(self.images.clone().image_fs_info(request).await.map_err(error)?.into_inner())
    }

    async fn events(&self) -> Result<tokio::sync::mpsc::Receiver<v1::ContainerEventResponse>, CriError> {
        let request = Request::new(v1::GetEventsRequest {});
        let mut stream = self.runtime.clone().get_container_events(request).await.map_err(error)?.into_inner();
        let (sender, receiver) = tokio::sync::mpsc::channel(256);
        tokio::spawn(async move {
            while let Ok(Some(event)) = stream.message().await {
                if sender.send(event).await.is_err() {
                    break;
                }
            }
        });
        Ok(receiver)
    }
}
