//! Sequences of calls that drivers see.

mod fake;
mod lives;

use super::operations::{Csi, VolumeGroup};
use super::v1::node_service_capability::rpc::Type as Capability;
use super::volume::tests::{driver, persistent};
use super::{AttachError, CsiError, Drivers, Selinux, Volume, VolumeFailure, v1};
use crate::objects::{ObjectError, ObjectSource};
use crate::plugins::{Handler as _, Plugin};
use crate::volumes::growth::{GrowthFailure, Sizes};
use crate::volumes::tokens::Tokens;
use async_trait::async_trait;
use fake::{Fake, Fault};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tonic::Code;

/// Objects of the API server; the attachment of every volume is there.
struct Objects {
    driver: Option<CSIDriver>,
    is_away: AtomicBool,
    /// Status of all attachments.
    attachment: Value,
}

impl Objects {
    fn new(driver: Option<CSIDriver>) -> Self {
        let attachment = json!({"attached": true, "attachmentMetadata": {"lun": "7"}});
        Self { driver, is_away: AtomicBool::new(false), attachment }
    }
}

#[async_trait]
impl ObjectSource for Objects {
    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let data = BTreeMap::from([("key".to_owned(), ByteString(format!("{namespace}/{name}").into_bytes()))]);
        Ok(Arc::new(Secret { data: Some(data), ..Secret::default() }))
    }
    async fn csi_driver(&self, _: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(ObjectError::NoApiServer);
        }
        Ok(self.driver.clone().map(Arc::new))
    }
    async fn volume_attachment(&self, _: &str) -> Result<Arc<VolumeAttachment>, ObjectError> {
        let spec = json!({"attacher": "d", "nodeName": "node", "source": {"persistentVolumeName": "pv"}});
        let attachment = json!({"metadata": {"name": "a"}, "spec": spec, "status": self.attachment});
        Ok(Arc::new(serde_json::from_value(attachment).expect("an attachment")))
    }
    async fn token(&self, _: &Pod, spec: TokenRequestSpec) -> Result<TokenRequestStatus, ObjectError> {
        let expires = "2126-01-01T00:00:00Z".parse().expect("a time");
        let expiration_timestamp = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(expires);
        Ok(TokenRequestStatus { token: format!("for {:?}", spec.audiences), expiration_timestamp })
    }
}

/// A node with a driver.
struct Setup {
    root: TempDir,
    fake: Fake,
    objects: Arc<Objects>,
    csi: Csi,
    drivers: Arc<Drivers>,
    server: tokio::task::JoinHandle<()>,
}

const ALL: [Capability; 2] = [Capability::StageUnstageVolume, Capability::ExpandVolume];

fn csi(root: &TempDir, objects: &Arc<Objects>, drivers: &Arc<Drivers>) -> Csi {
    let objects = Arc::clone(objects);
    let mut csi = Csi::new((root.path(), "node"), false, objects, Arc::clone(drivers), Arc::new(Tokens::default()));
    csi.blocks = crate::volumes::block::tests::faked(root.path());
    csi
}

/// Sizes of a volume that the controller has enlarged.
const SIZES: Sizes = Sizes { old: 1 << 30, new: 2 << 30 };

impl Setup {
    async fn new(capabilities: &[Capability], object: Option<Value>) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let fake = Fake::new(capabilities);
        let server = fake.serve(&root.path().join("csi.sock"));
        let (drivers, objects) = (Arc::new(Drivers::new(None, "node")), Arc::new(Objects::new(object.map(driver))));
        let csi = csi(&root, &objects, &drivers);
        let setup = Self { root, fake, objects, csi, drivers, server };
        setup.register().await;
        setup
    }

    fn plugin(&self) -> Plugin {
        let endpoint = self.root.path().join("csi.sock");
        Plugin { name: "d".to_owned(), endpoint, versions: vec!["1.0.0".to_owned()] }
    }

    async fn register(&self) {
        self.drivers.register(&self.plugin()).await.expect("registered");
    }

    /// Another kubelet in the place of this one.
    async fn restart(&mut self) {
        self.drivers = Arc::new(Drivers::new(None, "node"));
        self.csi = csi(&self.root, &self.objects, &self.drivers);
        self.register().await;
    }

    async fn mount(&self, uid: &str, volume: &Volume) -> Result<PathBuf, VolumeFailure> {
        self.mount_for(&pod(uid), volume, None).await
    }

    async fn mount_for(
        &self,
        pod: &Pod,
        volume: &Volume,
        group: Option<VolumeGroup>,
    ) -> Result<PathBuf, VolumeFailure> {
        let ready = self.csi.prepare(pod, volume).await?;
        self.csi.publish(pod, volume, group, ready).await
    }

    /// Unmounts what a pod has, as the worker does: until it succeeds.
    async fn unmount(&self, uid: &str) {
        let mut outcome = self.csi.unpublish(uid).await;
        for _ in 0..20 {
            if outcome.is_ok() {
                return;
            }
            outcome = self.csi.unpublish(uid).await;
        }
        outcome.expect("unmounted in the end");
    }

    fn calls(&self) -> Vec<String> {
        self.fake.state.lock().take_calls()
    }

    fn fail(&self, call: &'static str, code: Code, works: bool) {
        self.fake.state.lock().faults.push_back(Fault { call, code, works });
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        // A scenario may end with devices in pods' hands.
        crate::volumes::mounts::unmount_all(self.root.path()).ok();
    }
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": uid},
        "spec": {"containers": [], "serviceAccountName": "a"}}))
    .expect("a pod")
}

fn volume(change: Value) -> Volume {
    Volume::persistent(&persistent(change), false).expect("a volume")
}

fn inline(pod: &Pod) -> Volume {
    let volume = serde_json::from_value(json!({"name": "v", "csi": {"driver": "d", "volumeAttributes": {"a": "b"}}}));
    Volume::inline(pod, &volume.expect("a volume")).expect("inline")
}

/// A step of a scenario.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The pod's volume is made ready; the text is that of the failure.
    Mount(&'static str),
    Fails(&'static str),
    Unmount(&'static str),
    UnmountFails(&'static str),
    /// The volume, which the controller has enlarged, grows under a pod.
    Grow(&'static str),
    GrowFails(&'static str),
    Fault(&'static str, Code, bool),
    Restart,
    Sweep,
}
use Step::{Fails, Fault as Inject, Grow, GrowFails, Mount, Restart, Sweep, Unmount, UnmountFails};

async fn run(name: &str, capabilities: &[Capability], change: Value, steps: &[Step], expected: &[&str]) {
    let mut setup = Setup::new(capabilities, None).await;
    let volume = volume(change);
    for step in steps {
        match *step {
            Mount(uid) => drop(setup.mount(uid, &volume).await.unwrap_or_else(|error| panic!("{name}: {error:?}"))),
            Fails(uid) => drop(setup.mount(uid, &volume).await.expect_err(name)),
            Unmount(uid) => setup.csi.unpublish(uid).await.unwrap_or_else(|error| panic!("{name}: {error}")),
            UnmountFails(uid) => drop(setup.csi.unpublish(uid).await.expect_err(name)),
            Grow(uid) => {
                let outcome = setup.csi.expand(&pod(uid), &volume, SIZES).await;
                outcome.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            }
            GrowFails(uid) => drop(setup.csi.expand(&pod(uid), &volume, SIZES).await.expect_err(name)),
            Inject(call, code, works) => setup.fail(call, code, works),
            Restart => setup.restart().await,
            Sweep => setup.csi.sweep().await,
        }
    }
    assert_eq!(setup.calls(), expected, "{name}");
    assert_eq!(setup.fake.state.lock().violations, Vec::<String>::new(), "{name}");
}

const LIFE: [&str; 4] = ["stage h", "publish h a", "unpublish h a", "unstage h"];

#[tokio::test]
async fn calls_come_in_the_order_that_csi_demands() {
    let bare: [Capability; 0] = [];
    let block = json!({"volumeMode": "Block"});
    let away = Code::Unavailable;
    let none = json!({});
    #[rustfmt::skip]
    let scenarios: &[Scenario] = &[
        ("one pod", &ALL, &none, &[Mount("a"), Unmount("a")], &LIFE),
        ("a container that is started again", &ALL, &none, &[Mount("a"), Mount("a"), Unmount("a")], &LIFE),
        ("a driver that does not stage", &bare, &none, &[Mount("a"), Unmount("a")], &["publish h a", "unpublish h a"]),
        ("two pods", &ALL, &none, &[Mount("a"), Mount("b"), Unmount("a"), Unmount("b")],
            &["stage h", "publish h a", "publish h b", "unpublish h a", "unpublish h b", "unstage h"]),
        ("a device", &ALL, &block, &[Mount("a"), Unmount("a")], &LIFE),
        ("a device of two pods", &ALL, &block, &[Mount("a"), Mount("b"), Unmount("b"), Unmount("a")],
            &["stage h", "publish h a", "publish h b", "unpublish h b", "unpublish h a", "unstage h"]),
        ("a device of a driver that does not stage", &bare, &block, &[Mount("a"), Unmount("a")], &["publish h a", "unpublish h a"]),
        ("unmounted twice", &ALL, &none, &[Mount("a"), Unmount("a"), Unmount("a")], &LIFE),
        ("mounted again", &ALL, &none, &[Mount("a"), Unmount("a"), Mount("b")],
            &["stage h", "publish h a", "unpublish h a", "unstage h", "stage h", "publish h b"]),
        ("staging is refused", &ALL, &none, &[Inject("stage", Code::Internal, false), Fails("a"), Unmount("a"), Sweep], &["stage h"]),
        ("staging is refused, and not again", &ALL, &none, &[Inject("stage", Code::Internal, false), Fails("a"), Mount("a")],
            &["stage h", "stage h", "publish h a"]),
        ("nobody knows if it was staged", &ALL, &none, &[Inject("stage", away, true), Fails("a"), Unmount("a"), Sweep], &["stage h", "unstage h"]),
        ("a pod still waits for what may be staged", &ALL, &none, &[Inject("stage", away, true), Fails("a"), Sweep, Mount("a")],
            &["stage h", "stage h", "publish h a"]),
        ("publishing is refused", &ALL, &none, &[Inject("publish", Code::InvalidArgument, false), Fails("a"), Unmount("a"), Sweep],
            &["stage h", "publish h a", "unstage h"]),
        ("nobody knows if it was published", &ALL, &none, &[Inject("publish", away, true), Fails("a"), Unmount("a")], &LIFE),
        ("nobody knows, and it was not", &ALL, &none, &[Inject("publish", Code::DeadlineExceeded, false), Fails("a"), Unmount("a")], &LIFE),
        ("publishing is refused a second pod", &ALL, &none,
            &[Mount("a"), Inject("publish", Code::Internal, false), Fails("b"), Unmount("b"), Unmount("a")],
            &["stage h", "publish h a", "publish h b", "unpublish h a", "unstage h"]),
        ("unpublishing fails", &ALL, &none, &[Mount("a"), Inject("unpublish", Code::Internal, false), UnmountFails("a"), Unmount("a")],
            &["stage h", "publish h a", "unpublish h a", "unpublish h a", "unstage h"]),
        ("nobody knows if it was unpublished", &ALL, &none, &[Mount("a"), Inject("unpublish", away, true), UnmountFails("a"), Unmount("a")],
            &["stage h", "publish h a", "unpublish h a", "unpublish h a", "unstage h"]),
        ("unstaging fails", &ALL, &none, &[Mount("a"), Inject("unstage", Code::Internal, false), Unmount("a"), Sweep],
            &["stage h", "publish h a", "unpublish h a", "unstage h", "unstage h"]),
        ("unstaging fails, and a pod comes", &ALL, &none, &[Mount("a"), Inject("unstage", away, true), Unmount("a"), Mount("b")],
            &["stage h", "publish h a", "unpublish h a", "unstage h", "stage h", "publish h b"]),
        ("the kubelet dies", &ALL, &none, &[Mount("a"), Restart, Unmount("a")], &LIFE),
        ("the kubelet dies, and the pod runs on", &ALL, &none, &[Mount("a"), Restart, Mount("a"), Unmount("a")],
            &["stage h", "publish h a", "stage h", "publish h a", "unpublish h a", "unstage h"]),
        ("the kubelet dies with two pods", &ALL, &none, &[Mount("a"), Mount("b"), Restart, Unmount("a"), Sweep, Unmount("b")],
            &["stage h", "publish h a", "publish h b", "unpublish h a", "unpublish h b", "unstage h"]),
        ("the kubelet dies when it may be staged", &ALL, &none, &[Inject("stage", away, true), Fails("a"), Restart, Sweep], &["stage h", "unstage h"]),
        ("the kubelet dies when it may be published", &ALL, &none, &[Inject("publish", away, true), Fails("a"), Restart, Sweep, Unmount("a")], &LIFE),
        ("the kubelet dies when it may be unpublished", &ALL, &none,
            &[Mount("a"), Inject("unpublish", away, true), UnmountFails("a"), Restart, Sweep, Unmount("a")],
            &["stage h", "publish h a", "unpublish h a", "unpublish h a", "unstage h"]),
        ("the kubelet dies when it may be unstaged", &ALL, &none, &[Mount("a"), Inject("unstage", away, true), Unmount("a"), Restart, Sweep, Sweep],
            &["stage h", "publish h a", "unpublish h a", "unstage h", "unstage h"]),
        ("the kubelet dies with a device", &ALL, &block, &[Mount("a"), Restart, Sweep, Unmount("a"), Sweep], &LIFE),
        ("a sweep leaves what is used", &ALL, &none, &[Mount("a"), Sweep, Mount("b"), Sweep], &["stage h", "publish h a", "publish h b"]),
        ("one pod alone", &ALL, &json!({"accessModes": ["ReadWriteOncePod"]}), &[Mount("a"), Fails("b"), Unmount("a"), Mount("b")],
            &["stage h", "publish h a", "unpublish h a", "publish h b"]),
    ];
    play(scenarios).await;
}

#[tokio::test]
async fn growth_is_asked_for_between_publish_and_unpublish() {
    let (away, none) = (Code::Unavailable, json!({}));
    let grown = ["stage h", "publish h a", "expand h", "unpublish h a", "unstage h"];
    let twice = ["stage h", "publish h a", "expand h", "expand h", "unpublish h a", "unstage h"];
    #[rustfmt::skip]
    let scenarios: &[Scenario] = &[
        ("it grows", &ALL, &none, &[Mount("a"), Grow("a"), Unmount("a")], &grown),
        ("a device grows", &ALL, &json!({"volumeMode": "Block"}), &[Mount("a"), Grow("a"), Unmount("a")], &grown),
        ("a driver that does not stage grows it", &[Capability::ExpandVolume], &none, &[Mount("a"), Grow("a"), Unmount("a")],
            &["publish h a", "expand h", "unpublish h a"]),
        ("a driver that cannot grow it is not asked", &[Capability::StageUnstageVolume], &none, &[Mount("a"), GrowFails("a"), Unmount("a")], &LIFE),
        ("growing fails, and not again", &ALL, &none,
            &[Mount("a"), Inject("expand", Code::Internal, false), GrowFails("a"), Grow("a"), Unmount("a")], &twice),
        ("nobody knows if it has grown", &ALL, &none,
            &[Mount("a"), Inject("expand", away, true), GrowFails("a"), Grow("a"), Unmount("a")], &twice),
        ("it can never be so large, and the pod has it all the same", &ALL, &none,
            &[Mount("a"), Inject("expand", Code::OutOfRange, false), GrowFails("a"), Mount("a"), Unmount("a")], &grown),
        ("the pod goes before it has grown", &ALL, &none,
            &[Mount("a"), Inject("expand", away, false), GrowFails("a"), Unmount("a"), Sweep], &grown),
        ("the kubelet dies when it may have grown", &ALL, &none,
            &[Mount("a"), Inject("expand", away, true), GrowFails("a"), Restart, Mount("a"), Grow("a"), Unmount("a")],
            &["stage h", "publish h a", "expand h", "stage h", "publish h a", "expand h", "unpublish h a", "unstage h"]),
        ("two pods see it grow", &ALL, &none, &[Mount("a"), Mount("b"), Grow("b"), Unmount("a"), Unmount("b")],
            &["stage h", "publish h a", "publish h b", "expand h", "unpublish h a", "unpublish h b", "unstage h"]),
        ("what may be unpublished does not hinder growth for another pod", &ALL, &none,
            &[Mount("a"), Mount("b"), Inject("unpublish", away, true), UnmountFails("a"), Grow("b"), Unmount("a"), Unmount("b")],
            &["stage h", "publish h a", "publish h b", "unpublish h a", "expand h", "unpublish h a", "unpublish h b", "unstage h"]),
    ];
    play(scenarios).await;
}

/// Name, what the driver can do, what is special about the volume, what happens, and the calls that the driver sees.
type Scenario<'a> = (&'a str, &'a [Capability], &'a Value, &'a [Step], &'a [&'a str]);

async fn play(scenarios: &[Scenario<'_>]) {
    for (name, capabilities, change, steps, expected) in scenarios {
        run(name, capabilities, (*change).clone(), steps, expected).await;
    }
}

#[tokio::test]
async fn drivers_are_told_what_they_ask_for() {
    let object = json!({"podInfoOnMount": true, "tokenRequests": [{"audience": "x"}], "requiresRepublish": true});
    let setup = Setup::new(&ALL, Some(object)).await;
    let change = json!({"csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"k": "v"},
        "nodeStageSecretRef": {"name": "s", "namespace": "t"}, "nodePublishSecretRef": {"name": "p", "namespace": "t"}},
        "mountOptions": ["noatime"]});
    let volume = volume(change);
    let path = setup.mount("a", &volume).await.expect("mounted");
    assert!(path.ends_with("pods/a/volumes/kubernetes.io~csi/pv/mount"), "{path:?}");
    let stage = setup.fake.state.lock().last_stage.clone().expect("staged");
    let staging = setup.root.path().join("plugins/kubernetes.io/csi/d").join(super::volume::digest("h"));
    assert_eq!(stage.staging_target_path, staging.join("globalmount").display().to_string());
    assert_eq!(stage.publish_context["lun"], "7");
    assert_eq!(stage.secrets["key"], "t/s");
    assert_eq!(stage.volume_context.len(), 1, "the pod is not the staging's business");
    let publish = setup.fake.state.lock().last_publish.clone().expect("published");
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    assert_eq!(publish.secrets["key"], "t/p");
    assert_eq!(publish.volume_context["csi.storage.k8s.io/pod.name"], "p");
    let tokens = "{\"x\":{\"expirationTimestamp\":\"2126-01-01T00:00:00Z\",\"token\":\"for [\\\"x\\\"]\"}}";
    assert_eq!(publish.volume_context["csi.storage.k8s.io/serviceAccount.tokens"], tokens);
    assert_eq!(publish.volume_capability, stage.volume_capability);
    let capability = serde_json::json!(format!("{:?}", publish.volume_capability));
    assert!(capability.to_string().contains("noatime") && capability.to_string().contains("ext4"), "{capability}");
    setup.calls();
    let ready = setup.csi.prepare_again(&pod("a"), &volume).await.expect("ready");
    setup.csi.publish(&pod("a"), &volume, None, ready).await.expect("refreshed");
    assert_eq!(setup.calls(), ["publish h a"], "it asked for it");
}

#[tokio::test]
async fn tokens_may_be_secrets() {
    let object = json!({"tokenRequests": [{"audience": ""}], "serviceAccountTokenInSecrets": true});
    let setup = Setup::new(&ALL, Some(object)).await;
    setup.mount("a", &volume(json!({}))).await.expect("mounted");
    let publish = setup.fake.state.lock().last_publish.clone().expect("published");
    assert!(publish.secrets.contains_key("csi.storage.k8s.io/serviceAccount.tokens"));
    assert!(publish.volume_context.is_empty());
}

#[tokio::test]
async fn inline_volumes_live_and_die_with_their_pod() {
    let setup = Setup::new(&ALL, Some(json!({"volumeLifecycleModes": ["Ephemeral"], "attachRequired": true}))).await;
    let volume = inline(&pod("a"));
    setup.mount("a", &volume).await.expect("mounted");
    setup.unmount("a").await;
    let handle = &volume.handle;
    assert_eq!(setup.calls(), [format!("publish {handle} a"), format!("unpublish {handle} a")]);
    assert_eq!(setup.csi.in_use(), Vec::<String>::new());
    let refused = Setup::new(&ALL, None).await;
    let failure = refused.mount("a", &volume).await.expect_err("refused");
    let text = "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)";
    assert!(matches!(&failure, VolumeFailure::Publish(error) if error.to_string() == text), "{failure:?}");
}

#[tokio::test]
async fn a_group_gets_the_files_or_the_driver_gives_them() {
    const GROUP: VolumeGroup = VolumeGroup { id: 4_711, on_root_mismatch: true };
    let change = json!({"csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}});
    let setup = Setup::new(&ALL, None).await;
    let path = setup.mount_for(&pod("a"), &volume(change.clone()), Some(GROUP)).await.expect("mounted");
    let found = std::fs::metadata(path).expect("a folder");
    assert_eq!((found.gid(), found.mode() & 0o7070), (4_711, 0o2070));
    let setup = Setup::new(&[Capability::VolumeMountGroup], None).await;
    let path = setup.mount_for(&pod("a"), &volume(change), Some(GROUP)).await.expect("mounted");
    assert_ne!(std::fs::metadata(path).expect("a folder").gid(), 4_711);
    let publish = setup.fake.state.lock().last_publish.clone().expect("published");
    assert!(format!("{:?}", publish.volume_capability).contains("4711"));
}

#[tokio::test]
async fn drivers_that_do_not_grow_a_volume_say_whether_to_ask_again() {
    let setup = Setup::new(&ALL, None).await;
    let volume = volume(json!({}));
    setup.mount("a", &volume).await.expect("mounted");
    setup.csi.expand(&pod("a"), &volume, SIZES).await.expect("grown");
    let asked = setup.fake.state.lock().last_expand.clone().expect("a request");
    assert_eq!(asked.capacity_range.map(|range| range.required_bytes), Some(2 << 30));
    assert!(asked.volume_path.ends_with("/pv/mount") && asked.staging_target_path.ends_with("/globalmount"));
    let failure = |code: &str| GrowthFailure {
        message: format!("Expander.NodeExpand failed to expand the volume : rpc error: code = {code} desc = injected"),
        is_final: true,
        ..GrowthFailure::default()
    };
    for (code, expected) in [
        (Code::Unavailable, GrowthFailure { is_final: false, ..failure("Unavailable") }),
        (Code::Internal, failure("Internal")),
        (Code::OutOfRange, GrowthFailure { is_infeasible: true, ..failure("OutOfRange") }),
        (Code::FailedPrecondition, GrowthFailure { is_in_use: true, ..failure("FailedPrecondition") }),
    ] {
        setup.fail("expand", code, false);
        assert_eq!(setup.csi.expand(&pod("a"), &volume, SIZES).await, Err(expected));
    }
    let setup = Setup::new(&[], None).await;
    let failure = setup.csi.expand(&pod("a"), &volume, SIZES).await.expect_err("unable");
    assert!(failure.is_unsupported, "{failure:?}");
    assert_eq!(failure.message, "NodeExpand is not supported by the CSI driver d");
}

#[tokio::test]
async fn a_driver_that_is_away_is_named() {
    let setup = Setup::new(&ALL, None).await;
    let volume = volume(json!({}));
    setup.mount("a", &volume).await.expect("mounted");
    setup.drivers.deregister(&setup.plugin()).await.expect("deregistered");
    let missing = "driver name d not found in the list of registered CSI drivers";
    let failure = setup.mount("b", &volume).await.expect_err("no driver");
    let text = format!("kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: {missing}");
    assert!(matches!(&failure, VolumeFailure::Stage(error) if error.to_string() == text), "{failure:?}");
    let failure = setup.csi.unpublish("a").await.expect_err("no driver");
    assert!(failure.to_string().ends_with(missing), "{failure}");
    setup.register().await;
    setup.unmount("a").await;
    setup.unmount("b").await;
    assert_eq!(setup.calls(), LIFE);
    setup.server.abort();
}

#[tokio::test]
async fn what_an_earlier_kubelet_mounted_is_in_use() {
    let mut setup = Setup::new(&ALL, None).await;
    setup.mount("a", &volume(json!({}))).await.expect("mounted");
    setup.restart().await;
    assert_eq!(setup.csi.in_use(), ["kubernetes.io/csi/d^h"]);
    setup.unmount("a").await;
    assert_eq!(setup.csi.in_use(), Vec::<String>::new());
    let left = std::fs::read_dir(setup.root.path().join("plugins/kubernetes.io/csi/d")).expect("a folder").count();
    assert_eq!(left, 0, "nothing is left of it");
}

#[tokio::test(start_paused = true)]
async fn a_volume_waits_until_the_node_says_that_it_is_attached() {
    let root = tempfile::tempdir().expect("a folder");
    let drivers = Arc::new(Drivers::new(None, "node"));
    let objects = Arc::new(Objects::new(None));
    let csi = Csi::new((root.path(), "node"), true, objects, drivers, Arc::new(Tokens::default()));
    let (pod, volume) = (pod("a"), volume(json!({})));
    let failure = csi.prepare(&pod, &volume).await.err();
    assert!(matches!(failure, Some(VolumeFailure::Attach(AttachError::Late))), "{failure:?}");
    assert_eq!(csi.in_use(), ["kubernetes.io/csi/d^h"]);
    let status =
        json!({"volumesInUse": csi.in_use(), "volumesAttached": [{"name": csi.in_use()[0], "devicePath": ""}]});
    let node: Node = serde_json::from_value(json!({"status": status})).expect("a node");
    let observe = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        csi.observe_node(&Arc::new(node));
    };
    let (ready, ()) = tokio::join!(csi.prepare(&pod, &volume), observe);
    assert!(ready.is_ok());
    csi.unpublish("a").await.expect("nothing was mounted");
    assert_eq!(csi.in_use(), Vec::<String>::new(), "the pod has given up");
}

#[tokio::test]
async fn a_node_with_as_many_volumes_as_it_can_have_says_so_and_asks_how_many() {
    const NO_ROOM: Option<i32> = Some(8);
    for (code, gate, period, is_full) in [
        (NO_ROOM, true, Some(60), true),
        // The attacher does not say why, or for another reason.
        (None, true, Some(60), false),
        (Some(13), true, Some(60), false),
        // The driver's number does not change.
        (NO_ROOM, true, None, false),
        (NO_ROOM, false, Some(60), false),
    ] {
        let mut setup = Setup::new(&ALL, None).await;
        let object = driver(json!({"nodeAllocatableUpdatePeriodSeconds": period}));
        let attachment = json!({"attached": false, "attachError": {"message": "no room", "errorCode": code}});
        setup.objects = Arc::new(Objects { attachment, ..Objects::new(Some(object)) });
        setup.drivers = Arc::new(Drivers::new(None, "node").with_changing_counts(gate));
        setup.csi = csi(&setup.root, &setup.objects, &setup.drivers);
        setup.register().await;
        let asked = setup.fake.state.lock().asked;
        let failure = setup.mount("a", &volume(json!({}))).await.expect_err("no room");
        let (was_full, error) = match failure {
            VolumeFailure::Exhausted(error) => (true, error.to_string()),
            VolumeFailure::Attach(error) => (false, error.to_string()),
            other => panic!("{other:?}"),
        };
        assert_eq!((was_full, error.as_str()), (is_full, "no room"), "{code:?} {gate} {period:?}");
        let asked = setup.fake.state.lock().asked - asked;
        assert_eq!(asked, usize::from(is_full), "{code:?} {gate} {period:?}");
        assert_eq!(setup.calls(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_volume_is_mounted_with_the_label_of_its_pod() {
    let mut setup = Setup::new(&ALL, Some(json!({"seLinuxMount": true}))).await;
    setup.csi = csi(&setup.root, &setup.objects, &setup.drivers).with_selinux(Selinux::of_test(false));
    let labelled = |uid: &str, level: &str| -> Pod {
        let container = json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        let context = json!({"seLinuxOptions": {"level": level}});
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": uid},
            "spec": {"containers": [container], "securityContext": context}}))
        .expect("a pod")
    };
    let volume = volume(json!({"accessModes": ["ReadWriteOncePod"], "mountOptions": ["noatime"]})).used_as("v");
    setup.mount_for(&labelled("a", "s0:c1,c2"), &volume, None).await.expect("mounted");
    let flags = |capability: &Option<v1::VolumeCapability>| {
        let access = capability.as_ref().and_then(|found| found.access_type.clone());
        match access {
            Some(v1::volume_capability::AccessType::Mount(mount)) => mount.mount_flags,
            other => panic!("{other:?}"),
        }
    };
    let expected = ["noatime", "context=\"system_u:object_r:container_file_t:s0:c1,c2\""];
    {
        let state = setup.fake.state.lock();
        let staged = state.last_stage.as_ref().expect("staged");
        assert_eq!(flags(&staged.volume_capability), expected);
        let published = state.last_publish.as_ref().expect("published");
        assert_eq!(flags(&published.volume_capability), expected);
    }
    assert!(setup.csi.is_labelled("a", "pv"), "the runtime relabels nothing");
    let other = setup.mount_for(&labelled("b", "s0:c3"), &volume, None).await.expect_err("another pod has it");
    assert!(matches!(&other, VolumeFailure::Publish(CsiError::InUse)), "{other:?}");
    // What stays staged with the old label is staged anew with the next one.
    setup.fail("unstage", Code::Internal, false);
    setup.unmount("b").await;
    setup.unmount("a").await;
    assert!(!setup.csi.is_labelled("a", "pv"));
    setup.mount_for(&labelled("b", "s0:c3"), &volume, None).await.expect("mounted");
    let expected = ["stage h", "publish h a", "unpublish h a", "unstage h", "unstage h", "stage h", "publish h b"];
    assert_eq!(setup.calls(), expected);
    let record = std::fs::read_to_string(setup.root.path().join("pods/b/volumes/kubernetes.io~csi/pv/vol_data.json"));
    let expected = "\"seLinuxMountContext\":\"system_u:object_r:container_file_t:s0:c3\"";
    assert!(record.expect("a record").contains(expected));
}
