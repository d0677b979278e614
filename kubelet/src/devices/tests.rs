//! A plugin that serves a socket, and a kubelet's devices.

use super::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::v1beta1::registration_client::RegistrationClient;
use super::v1beta1::{self as api, DeviceSpec};
use super::*;
use serde_json::json;
use shared::folder_watch::FolderWatch;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

const PATIENCE: Duration = Duration::from_secs(20);
const GPU: &str = "vendor.test/gpu";

/// A plugin whose list of devices the test sets.
#[derive(Clone)]
struct Fake {
    list: watch::Sender<Vec<(&'static str, &'static str)>>,
    calls: Arc<Mutex<Vec<String>>>,
    is_refusing: Arc<Mutex<bool>>,
}

/// Gives a pod's container its devices, wherever they are; the message of a refusal.
async fn allocate(devices: &Devices, pod: &Pod) -> Result<(), String> {
    let container = &pod.spec.as_ref().expect("a spec").containers[0];
    let outcome = devices.allocate(pod, container, Hint::default()).await;
    outcome.map_err(|refusal| {
        let cause = refusal.message.strip_prefix("Allocate failed due to ");
        cause.and_then(|cause| cause.strip_suffix(", which is unexpected")).expect("upstream's frame").to_owned()
    })
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DevicePlugin for Fake {
    async fn get_device_plugin_options(&self, _: Request<api::Empty>) -> Answer<api::DevicePluginOptions> {
        Ok(Response::new(api::DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }))
    }

    type ListAndWatchStream = std::pin::Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<api::Empty>) -> Answer<Self::ListAndWatchStream> {
        let lists = WatchStream::new(self.list.subscribe());
        Ok(Response::new(Box::pin(lists.map(|list| {
            let device = |(id, health): &(&str, &str)| api::Device {
                id: (*id).to_owned(),
                health: (*health).to_owned(),
                topology: Some(api::TopologyInfo { nodes: vec![api::NumaNode { id: 1 }] }),
            };
            Ok(api::ListAndWatchResponse { devices: list.iter().map(device).collect() })
        }))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Answer<api::PreferredAllocationResponse> {
        let mut wanted = request.into_inner().container_requests.remove(0);
        // The last ones are the best.
        wanted.available_device_i_ds.reverse();
        let device_i_ds = wanted.available_device_i_ds;
        let answer = api::ContainerPreferredAllocationResponse { device_i_ds };
        Ok(Response::new(api::PreferredAllocationResponse { container_responses: vec![answer] }))
    }

    async fn allocate(&self, request: Request<api::AllocateRequest>) -> Answer<api::AllocateResponse> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids.join(",");
        self.calls.lock().push(format!("allocate {ids}"));
        if *self.is_refusing.lock() {
            return Err(Status::internal("no"));
        }
        let device = DeviceSpec {
            container_path: "/dev/gpu".to_owned(),
            host_path: "/dev/null".to_owned(),
            permissions: "rw".to_owned(),
        };
        let answer = ContainerAllocateResponse {
            envs: [("GPUS".to_owned(), ids)].into(),
            devices: vec![device],
            cdi_devices: vec![api::CdiDevice { name: "vendor.test/gpu=0".to_owned() }],
            ..Default::default()
        };
        Ok(Response::new(api::AllocateResponse { container_responses: vec![answer] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Answer<api::PreStartContainerResponse> {
        self.calls.lock().push(format!("prepare {}", request.into_inner().devices_ids.join(",")));
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}

impl Fake {
    fn new(list: &[(&'static str, &'static str)]) -> Self {
        Self { list: watch::Sender::new(list.to_vec()), calls: Arc::default(), is_refusing: Arc::default() }
    }

    /// Serves a socket on a runtime of its own, so that its end closes every connection, as that of a process does.
    fn serve(&self, socket: &Path) -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, service) = (runtime.expect("a runtime"), DevicePluginServer::new(self.clone()));
        std::fs::remove_file(socket).ok();
        let listener = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
        listener.set_nonblocking(true).expect("a socket that does not block");
        runtime.spawn(async move {
            let listener = UnixListener::from_std(listener).expect("a listener");
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("served");
        });
        runtime
    }
}

/// Registers a plugin with a kubelet, as plugins do.
async fn register(root: &Path, resource: &str, version: &str, endpoint: &str) -> Result<(), String> {
    let socket = root.join(FOLDER).join("kubelet.sock");
    std::fs::create_dir_all(root.join(FOLDER)).expect("a folder");
    let mut watch = FolderWatch::default();
    watch.watch(&root.join(FOLDER)).expect("watched");
    let waited = tokio::time::timeout(PATIENCE, async {
        while !socket.exists() {
            watch.changed().await;
        }
    });
    waited.await.expect("the kubelet listens");
    let mut client = RegistrationClient::new(crate::plugins::channel(&socket).expect("a channel"));
    let options = Some(api::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true });
    let (version, endpoint, resource_name) = (version.to_owned(), endpoint.to_owned(), resource.to_owned());
    let request = api::RegisterRequest { version, endpoint, resource_name, options };
    client.register(request).await.map(drop).map_err(|status| status.message().to_owned())
}

fn pod(uid: &str, number: u32) -> Pod {
    let limits = json!({GPU: number.to_string()});
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": uid},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}))
    .expect("a pod")
}

async fn until_counts(devices: &Devices, capacity: usize, allocatable: usize) {
    let wanted = Count { capacity, allocatable };
    let waited = tokio::time::timeout(PATIENCE, async {
        while devices.counts().get(GPU) != Some(&wanted) {
            devices.changed().await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{wanted:?} expected, found {:?}", devices.counts()));
}

#[tokio::test]
async fn devices_are_listed_given_prepared_and_remembered() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join(FOLDER);
    let shutdown = CancellationToken::new();
    let devices = Devices::new(root.path(), vec![0, 1]);
    let serving = tokio::spawn(Arc::clone(&devices).run(shutdown.clone()));
    let fake = Fake::new(&[("a", "Healthy"), ("b", "Healthy"), ("c", "Unhealthy")]);
    let refused = register(root.path(), GPU, "v1alpha", "gpu.sock").await.expect_err("an old version");
    assert_eq!(
        refused,
        "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
    );
    let refused = register(root.path(), "gpu", "v1beta1", "gpu.sock").await.expect_err("no domain");
    assert_eq!(refused, "the ResourceName \"gpu\" is invalid");
    register(root.path(), GPU, "v1beta1", "../gpu.sock").await.expect_err("a socket elsewhere");
    let server = fake.serve(&folder.join("gpu.sock"));
    register(root.path(), GPU, "v1beta1", "gpu.sock").await.expect("registered");
    until_counts(&devices, 3, 2).await;

    allocate(&devices, &pod("u", 1)).await.expect("a device");
    allocate(&devices, &pod("u", 1)).await.expect("it has it");
    let answers = devices.options(&pod("u", 1), "c").await.expect("options");
    assert_eq!(answers[0].envs["GPUS"], "b", "the plugin's choice");
    assert_eq!(std::mem::take(&mut *fake.calls.lock()), ["allocate b", "prepare b"]);
    let granted = devices.of_container("u", "c");
    assert_eq!(granted, [GrantedDevice { resource: GPU.to_owned(), id: "b".to_owned(), nodes: vec![1] }]);
    assert_eq!(devices.healthy().len(), 2);

    *fake.is_refusing.lock() = true;
    let failure = allocate(&devices, &pod("v", 1)).await.expect_err("refused");
    assert_eq!(failure, "rpc error: code = Internal desc = no");
    *fake.is_refusing.lock() = false;
    let failure = allocate(&devices, &pod("v", 2)).await.expect_err("one is left");
    assert_eq!(failure, format!("requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"));
    allocate(&devices, &pod("v", 1)).await.expect("what was refused is free");

    fake.list.send_replace(vec![("a", "Healthy"), ("b", "Unhealthy")]);
    until_counts(&devices, 2, 1).await;

    // Another kubelet knows who has what, and that the plugin has yet to come.
    shutdown.cancel();
    serving.await.expect("ended");
    let next = Devices::new(root.path(), vec![0, 1]);
    assert_eq!(next.of_container("u", "c")[0].id, "b");
    assert_eq!(next.counts()[GPU], Count { capacity: 1, allocatable: 0 });
    let options = next.options(&pod("u", 1), "c").await.expect("a container that starts again has what it had");
    assert_eq!(options.len(), 1);
    let ill = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
    assert_eq!(allocate(&next, &pod("u", 1)).await, Err(ill), "a pod that is made again waits for the plugin");
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(Arc::clone(&next).run(shutdown.clone()));
    while folder.join("gpu.sock").exists() {
        tokio::task::yield_now().await;
    }
    server.shutdown_background();
    let server = fake.serve(&folder.join("gpu.sock"));
    register(root.path(), GPU, "v1beta1", "gpu.sock").await.expect("registered anew");
    until_counts(&next, 2, 1).await;
    next.options(&pod("u", 1), "c").await.expect("it is back");
    let ill = format!("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {GPU}");
    assert_eq!(allocate(&next, &pod("u", 1)).await, Err(ill));
    let more = format!("pod \"v\" container \"c\" changed request for resource \"{GPU}\" from 1 to 2");
    assert_eq!(allocate(&next, &pod("v", 2)).await, Err(more));
    allocate(&next, &pod("v", 1)).await.expect("its device is well");

    // The plugin dies: what it has is ill.
    server.shutdown_background();
    until_counts(&next, 2, 0).await;
    next.retain(|uid| uid == "v");
    assert!(next.of_container("u", "c").is_empty());
    assert!(std::fs::read_to_string(folder.join(checkpoint::FILE)).expect("a checkpoint").contains("\"PodUID\":\"v\""));
    shutdown.cancel();
    serving.await.expect("ended");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_stays_away_has_no_devices() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(root.path().join(FOLDER)).expect("a folder");
    let devices = Devices::new(root.path(), vec![0, 1]);
    // Nobody serves the socket.
    devices.add(GPU, &root.path().join("none.sock"), Some(api::DevicePluginOptions::default()));
    let id = devices.endpoint(GPU).expect("an endpoint").id;
    devices.update(GPU, id, [("a".to_owned(), Device { is_healthy: true, ..Device::default() })].into());
    until_counts(&devices, 1, 0).await;
    let before = tokio::time::Instant::now();
    until_counts_paused(&devices).await;
    assert!(before.elapsed() >= GRACE, "{:?}", before.elapsed());
    let failure = allocate(&devices, &pod("u", 1)).await.expect_err("gone");
    assert_eq!(failure, format!("cannot allocate unregistered device {GPU}"));
}

/// Waits for the count to be zero on a clock that stands still otherwise.
async fn until_counts_paused(devices: &Devices) {
    while devices.counts()[GPU].capacity != 0 {
        devices.changed().await;
    }
}

#[test]
fn names_are_those_of_extended_resources() {
    let handler = DeviceHandler(Devices::new(Path::new("/nonexistent"), Vec::new()));
    let plugin = |name: &str, version: &str| Plugin {
        name: name.to_owned(),
        endpoint: "/s".into(),
        versions: vec![version.to_owned()],
    };
    for (name, version, expected) in [
        (GPU, "v1beta1", true),
        (GPU, "v1", false),
        ("gpu", "v1beta1", false),
        ("kubernetes.io/gpu", "v1beta1", false),
        ("requests.vendor.test/gpu", "v1beta1", false),
        ("vendor.test/", "v1beta1", false),
    ] {
        assert_eq!(handler.validate(&plugin(name, version)).is_ok(), expected, "{name} {version}");
    }
}
