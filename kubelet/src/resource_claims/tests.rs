//! A driver that serves a socket, and the claims of a kubelet.

use super::state::tests::{claim, pod};
use super::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use super::v1alpha1::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use super::*;
use crate::objects::ObjectError;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

struct Objects;

#[async_trait]
impl ObjectSource for Objects {
    async fn resource_claim(&self, _: &str, _: &str) -> Result<Arc<ResourceClaim>, ObjectError> {
        Ok(Arc::new(claim(json!({}))))
    }
}

/// A driver, and the calls that all of them have seen.
#[derive(Clone)]
struct Fake {
    name: &'static str,
    calls: Arc<Mutex<Vec<String>>>,
    /// Errors to come.
    errors: Arc<Mutex<Vec<&'static str>>>,
    /// Held as long as preparations are to wait.
    hold: Arc<tokio::sync::Mutex<()>>,
    /// Way to a kubelet that has asked about devices' health.
    health: Arc<tokio::sync::watch::Sender<Option<HealthSender>>>,
}

type HealthSender = tokio::sync::mpsc::Sender<Result<v1alpha1::NodeWatchResourcesResponse, Status>>;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DraPlugin for Fake {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Answer<v1::NodePrepareResourcesResponse> {
        let claim = request.into_inner().claims.remove(0);
        self.calls.lock().push(format!("prepare {} {}", self.name, claim.name));
        // The work goes on when the caller is gone: gRPC for Go does not stop it either.
        let (hold, calls, name) = (Arc::clone(&self.hold), Arc::clone(&self.calls), self.name);
        let work = tokio::spawn(async move {
            if hold.try_lock().is_err() {
                drop(hold.lock().await);
                calls.lock().push(format!("prepared {name}"));
            }
        });
        work.await.expect("done");
        let error = self.errors.lock().pop().unwrap_or_default().to_owned();
        let device = v1::Device {
            device_name: "d".to_owned(),
            cdi_device_ids: vec![format!("{}/x=d", self.name)],
            ..v1::Device::default()
        };
        let answer = v1::NodePrepareResourceResponse { devices: vec![device], error };
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims: [(claim.uid, answer)].into() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Answer<v1::NodeUnprepareResourcesResponse> {
        let claim = request.into_inner().claims.remove(0);
        self.calls.lock().push(format!("unprepare {} {}", self.name, claim.name));
        let error = self.errors.lock().pop().unwrap_or_default().to_owned();
        let answer = v1::NodeUnprepareResourceResponse { error };
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims: [(claim.uid, answer)].into() }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Fake {
    type NodeWatchResourcesStream = ReceiverStream<Result<v1alpha1::NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<v1alpha1::NodeWatchResourcesRequest>,
    ) -> Answer<Self::NodeWatchResourcesStream> {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        self.health.send_replace(Some(sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl Fake {
    /// Tells of the health of its one device, once somebody has asked.
    async fn tell(&self, health: v1alpha1::HealthStatus) {
        let mut asked = self.health.subscribe();
        let sender = asked.wait_for(Option::is_some).await.expect("asked").clone().expect("asked");
        let device = v1alpha1::DeviceIdentifier { device_name: "d".to_owned(), ..Default::default() };
        let told = v1alpha1::DeviceHealth { device: Some(device), health: health.into(), ..Default::default() };
        sender.send(Ok(v1alpha1::NodeWatchResourcesResponse { devices: vec![told] })).await.expect("told");
    }
}

struct Setup {
    root: TempDir,
    fakes: [Fake; 2],
    claims: Arc<ResourceClaims>,
}

impl Setup {
    async fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let calls = Arc::new(Mutex::default());
        let fake = |name| Fake {
            name,
            calls: Arc::clone(&calls),
            errors: Arc::default(),
            hold: Arc::default(),
            health: Arc::default(),
        };
        let fakes = [fake("one.test"), fake("two.test")];
        for fake in &fakes {
            let listener = UnixListener::bind(root.path().join(fake.name)).expect("a socket");
            let server = tonic::transport::Server::builder()
                .add_service(DraPluginServer::new(fake.clone()))
                .add_service(DraResourceHealthServer::new(fake.clone()));
            tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        }
        let claims = ResourceClaims::new((root.path(), "node"), Arc::new(Objects), None);
        Self { root, fakes, claims }
    }

    fn plugin(&self, name: &str) -> Plugin {
        let versions = vec!["v1.DRAPlugin".to_owned()];
        Plugin { name: name.to_owned(), endpoint: self.root.path().join(name), versions }
    }

    async fn register(&self) {
        for fake in &self.fakes {
            let handler = ClaimHandler(Arc::clone(&self.claims));
            handler.register(&self.plugin(fake.name)).await.expect("registered");
        }
    }

    async fn restart(&mut self) {
        self.claims = ResourceClaims::new((self.root.path(), "node"), Arc::new(Objects), None);
        self.register().await;
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.fakes[0].calls.lock())
    }

    fn devices(&self, uid: &str) -> Result<Vec<String>, ClaimError> {
        let pod = pod(uid);
        let granted = self.claims.of_container(&pod, &pod.spec.as_ref().expect("spec").containers[0])?;
        Ok(granted.into_iter().flat_map(|granted| granted.device.cdi_device_ids).collect())
    }
}

#[tokio::test]
async fn claims_are_prepared_for_the_first_pod_and_given_back_after_the_last() {
    let mut setup = Setup::new().await;
    let failure = setup.claims.prepare(&pod("u")).await.expect_err("no driver");
    assert_eq!(failure.to_string(), "prepare dynamic resources: DRA driver one.test is not registered");
    setup.claims.unprepare("u").await.expect("nothing to give back");
    setup.register().await;
    setup.claims.prepare(&pod("u")).await.expect("prepared");
    setup.claims.prepare(&pod("u")).await.expect("it is");
    setup.claims.prepare(&pod("v")).await.expect("it is");
    assert_eq!(setup.calls(), ["prepare one.test c", "prepare two.test c"]);
    assert_eq!(setup.devices("u").expect("devices"), ["one.test/x=d", "two.test/x=d"]);
    setup.claims.unprepare("u").await.expect("the other has it");
    assert_eq!(setup.calls(), Vec::<String>::new());

    // Another kubelet: it gives back what this one prepared.
    setup.restart().await;
    assert_eq!(setup.devices("v").expect("devices").len(), 2, "known from the checkpoint");
    assert_eq!(setup.claims.pods(), ["v"]);
    setup.claims.unprepare("v").await.expect("given back");
    assert_eq!(setup.calls(), ["unprepare one.test c", "unprepare two.test c"]);
    setup.devices("v").expect_err("it is given back");
    let failure = setup.claims.prepare(&pod("w")).await.expect_err("not reserved for it");
    assert_eq!(
        failure.to_string(),
        "prepare dynamic resources: pod p (w) is not allowed to use ResourceClaim c (claim)"
    );
}

#[tokio::test]
async fn failures_are_tried_again_and_nothing_is_forgotten() {
    let mut setup = Setup::new().await;
    setup.register().await;
    setup.fakes[1].errors.lock().push("busy");
    let failure = setup.claims.prepare(&pod("u")).await.expect_err("the second fails");
    assert_eq!(failure.to_string(), "prepare dynamic resources: NodePrepareResources failed for ResourceClaim c: busy");
    setup.calls();
    // The pod is deleted before it ever ran, and the kubelet dies, too.
    setup.restart().await;
    setup.fakes[0].errors.lock().push("busy");
    let failure = setup.claims.unprepare("u").await.expect_err("the first fails");
    assert_eq!(
        failure.to_string(),
        "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim c: busy"
    );
    setup.claims.unprepare("u").await.expect("given back");
    setup.claims.unprepare("u").await.expect("it is");
    assert_eq!(setup.calls(), ["unprepare one.test c", "unprepare one.test c", "unprepare two.test c"]);
    setup.claims.prepare(&pod("u")).await.expect("prepared anew");
}

#[tokio::test]
async fn what_is_given_back_is_prepared_to_its_end_first() {
    let setup = Setup::new().await;
    setup.register().await;
    let held = setup.fakes[0].hold.lock().await;
    let given_up = tokio::time::timeout(Duration::from_millis(200), setup.claims.prepare(&pod("u"))).await;
    assert!(given_up.is_err(), "the driver takes its time");
    let claims = Arc::clone(&setup.claims);
    let ending = tokio::spawn(async move { claims.unprepare("u").await });
    tokio::task::yield_now().await;
    drop(held);
    ending.await.expect("ended").expect("given back");
    let expected = [
        "prepare one.test c",
        "prepared one.test",
        "prepare two.test c",
        "unprepare one.test c",
        "unprepare two.test c",
    ];
    assert_eq!(setup.calls(), expected);
}

#[tokio::test]
async fn a_driver_stays_while_one_of_its_processes_does() {
    let setup = Setup::new().await;
    setup.register().await;
    let handler = ClaimHandler(Arc::clone(&setup.claims));
    let old = setup.plugin("one.test");
    let new = Plugin { endpoint: setup.root.path().join("two.test"), ..old.clone() };
    handler.register(&new).await.expect("registered");
    handler.deregister(&old).await.expect("deregistered");
    setup.claims.prepare(&pod("u")).await.expect("the new one answers");
    assert_eq!(setup.calls()[0], "prepare two.test c");
    handler.deregister(&new).await.expect("deregistered");
    let failure = setup.claims.unprepare("u").await.expect_err("nobody is left");
    assert_eq!(failure.to_string(), "unprepare dynamic resources: DRA driver one.test is not registered");
}

#[tokio::test]
async fn pods_tell_of_claimed_devices_that_are_ill() {
    let setup = Setup::new().await;
    setup.claims.watch_health();
    setup.register().await;
    let mut pod = pod("u");
    let made = json!({"resourceClaimStatuses": [{"name": "entry", "resourceClaimName": "c"}]});
    pod.status = serde_json::from_value(made).expect("a status");
    setup.claims.prepare(&pod).await.expect("prepared");
    let container: Container =
        serde_json::from_value(json!({"name": "c", "resources": {"claims": [{"name": "entry"}]}}))
            .expect("a container");
    let health = || -> Vec<String> {
        let mut healths = setup.claims.health(&pod, &container);
        let devices = healths.remove("claim:entry").expect("the claim");
        assert!(healths.is_empty(), "{healths:?}");
        devices.into_iter().filter_map(|device| Some(format!("{} {}", device.resource_id, device.health?))).collect()
    };
    let (first, unknown) = ("one.test/x=d".to_owned(), "two.test/x=d Unknown".to_owned());
    let told = |health: &str| vec![format!("{first} {health}"), unknown.clone()];
    assert_eq!(health(), told("Unknown"), "nobody has told of it");
    let timely = |told| tokio::time::timeout(Duration::from_secs(60), told);
    for (status, expected) in
        [(v1alpha1::HealthStatus::Unhealthy, "Unhealthy"), (v1alpha1::HealthStatus::Healthy, "Healthy")]
    {
        setup.fakes[0].tell(status).await;
        let pods = timely(setup.claims.updates.take()).await.expect("a change");
        assert_eq!((pods, health()), (BTreeSet::from(["u".to_owned()]), told(expected)));
    }
    // What a driver has told is gone with it.
    let handler = ClaimHandler(Arc::clone(&setup.claims));
    handler.deregister(&setup.plugin("one.test")).await.expect("deregistered");
    let forgotten = async {
        while health() != told("Unknown") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), forgotten).await.expect("forgotten");
    // A claim that the pod names itself is in no status of it: upstream tells nothing of its devices.
    pod.status = None;
    assert!(setup.claims.health(&pod, &container).is_empty());
}
