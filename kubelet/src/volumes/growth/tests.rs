//! Claims at each stage of growth, and plugins that fail.

use super::*;
use crate::events::tests::Recorded;
use crate::objects::ObjectError;
use async_trait::async_trait;

/// A claim that is patched, as the API server keeps it.
pub(crate) struct Stored(pub(crate) Mutex<Value>);

/// A JSON merge patch.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, change) in changes {
        match (change.is_null(), target.as_object_mut()) {
            (true, Some(target)) => _ = target.remove(name),
            (false, Some(target)) => merge(target.entry(name.clone()).or_insert(Value::Null), change),
            _ => {}
        }
    }
}

impl Stored {
    fn new(status: &Value) -> Arc<Self> {
        let asked = json!({"resources": {"requests": {"storage": "2Gi"}}});
        Arc::new(Self(Mutex::new(json!({"metadata": {"name": "c"}, "spec": asked, "status": status}))))
    }

    fn claim(&self) -> PersistentVolumeClaim {
        serde_json::from_value(self.0.lock().clone()).expect("a claim")
    }
}

#[async_trait]
impl ObjectSource for Stored {
    async fn patch_claim_status(
        &self,
        _: &str,
        _: &str,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        merge(&mut self.0.lock(), patch);
        Ok(Arc::new(self.claim()))
    }
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": {"nodeName": "n", "containers": []}}))
        .expect("a pod")
}

fn growing(state: &str) -> Value {
    json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": state}, "conditions": [{"type": "FileSystemResizePending", "status": "True"}]})
}

/// A node with one volume of two gibibytes.
struct Node {
    stored: Arc<Stored>,
    events: Arc<Recorded>,
    grower: Grower,
}

impl Node {
    fn new(status: &Value) -> Self {
        let (stored, events) = (Stored::new(status), Arc::new(Recorded::default()));
        let (objects, sink): (Arc<dyn ObjectSource>, Arc<dyn EventSink>) = (stored.clone(), events.clone());
        Self { stored, events, grower: Grower::new(objects, sink) }
    }

    /// Grows the volume for a pod with a plugin that answers so: the sizes that the plugin was asked for.
    async fn grow_for(
        &self,
        uid: &str,
        is_read_only: bool,
        answer: Result<(), GrowthFailure>,
    ) -> (Result<(), String>, Option<Sizes>) {
        let (claim, mut asked) = (self.stored.claim(), None);
        let pod = pod(uid);
        let request =
            GrowthRequest { pod: &pod, claim: &claim, volume: "pv", unique: "d/v", size: "2Gi", is_read_only };
        let outcome = self.grower.grow(request, async |sizes| {
            asked = Some(sizes);
            answer
        });
        (outcome.await.map_err(|error| error.to_string()), asked)
    }

    async fn grow(&self, answer: Result<(), GrowthFailure>) -> (Result<(), String>, Option<Sizes>) {
        self.grow_for("u", false, answer).await
    }

    fn status(&self) -> Value {
        self.stored.0.lock()["status"].clone()
    }
}

const SIZES: Sizes = Sizes { old: 1 << 30, new: 2 << 30 };

#[test]
fn volumes_grow_when_the_controller_has_done_its_part() {
    let claim = |status: &Value| Stored::new(status).claim();
    let known = |size: i64| VolumeGrowth { size, ..VolumeGrowth::default() };
    let grow = |party| GrowthStep::Grow("2Gi".to_owned(), 2 << 30, party);
    let recovering = |is_stale| grow(Party::Recovering { is_stale });
    let size = |size: &str| json!({"capacity": {"storage": size}});
    let grown = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}});
    let failed = VolumeGrowth { has_failed: true, ..known(1 << 30) };
    let in_use = VolumeGrowth { is_in_use: true, ..known(1 << 30) };
    let other = json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "1536Mi"},
        "allocatedResourceStatuses": {"storage": PENDING}});
    for (status, is_read_only, known, expected) in [
        (size("1Gi"), false, known(1 << 30), grow(Party::Legacy)),
        (size("2Gi"), false, known(2 << 30), GrowthStep::Nothing),
        (size("1Gi"), true, known(1 << 30), GrowthStep::ReadOnly),
        (size("nonsense"), false, known(0), GrowthStep::Nothing),
        (json!({}), false, known(0), GrowthStep::Nothing),
        // A resizer that writes down how far it is.
        (growing(PENDING), false, known(1 << 30), recovering(false)),
        (growing(IN_PROGRESS), false, failed.clone(), recovering(false)),
        (growing("ControllerResizeInProgress"), false, known(1 << 30), GrowthStep::Nothing),
        (growing(INFEASIBLE), false, known(1 << 30), GrowthStep::Nothing),
        (growing(PENDING), false, in_use, GrowthStep::Nothing),
        // The user asks for another size after a failure.
        (other, false, failed, GrowthStep::Grow("1536Mi".to_owned(), 3 << 29, Party::Recovering { is_stale: true })),
        // Another node has grown a volume that this one has, too.
        (grown.clone(), false, known(1 << 30), grow(Party::Done)),
        (grown, false, known(2 << 30), GrowthStep::Nothing),
        (size("2Gi"), false, known(1 << 30), grow(Party::Done)),
    ] {
        assert_eq!(step(&claim(&status), "2Gi", is_read_only, &known), expected, "{status} {known:?}");
    }
}

#[tokio::test]
async fn claim_and_pod_are_told_of_growth() {
    let node = Node::new(&growing(PENDING));
    assert_eq!(node.grow(Ok(())).await, (Ok(()), Some(SIZES)));
    let status = json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {}});
    assert_eq!(node.status(), status);
    let text = "Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume \"pv\" n";
    assert_eq!(node.events.taken(), [text, text]);
    assert_eq!(node.grow(Ok(())).await, (Ok(()), None), "it has grown");
    let node = Node::new(&json!({"capacity": {"storage": "1Gi"}}));
    assert_eq!(node.grow_for("u", true, Ok(())).await, (Ok(()), None));
    assert_eq!(node.grow_for("u", true, Ok(())).await, (Ok(()), None));
    let text = "Warning FileSystemResizeFailed MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only \
                file system";
    assert_eq!(node.events.taken(), [text, text], "told once");
}

#[tokio::test]
async fn failures_are_written_down_and_tried_again_where_that_may_help() {
    let failure = |message: &str| GrowthFailure { message: message.to_owned(), ..GrowthFailure::default() };
    let last = || GrowthFailure { is_final: true, ..failure("full") };
    let text = "failed to expand pvc with full";
    // Nobody knows.
    let node = Node::new(&growing(PENDING));
    assert_eq!(node.grow(Err(failure("away"))).await.0, Err("away".to_owned()));
    assert_eq!(node.status()["allocatedResourceStatuses"]["storage"], IN_PROGRESS);
    assert_eq!(node.status()["conditions"].as_array().map(Vec::len), Some(1));
    // It has failed, and is tried again.
    assert_eq!(node.grow(Err(last())).await.0, Err("full".to_owned()));
    assert_eq!(node.status()["allocatedResourceStatuses"]["storage"], IN_PROGRESS);
    assert_eq!(node.status()["conditions"][1]["message"], text);
    assert_eq!(node.grow(Ok(())).await, (Ok(()), Some(SIZES)));
    assert_eq!(node.status()["conditions"], Value::Null, "all conditions of growth are gone");
    // It can never be so large.
    let node = Node::new(&growing(PENDING));
    let never = GrowthFailure { is_infeasible: true, ..last() };
    assert_eq!(node.grow(Err(never)).await.0, Err("full".to_owned()));
    assert_eq!(node.status()["allocatedResourceStatuses"]["storage"], INFEASIBLE);
    assert_eq!(node.grow(Ok(())).await, (Ok(()), None), "the controller has to decide");
    // It cannot grow while pods have it.
    let node = Node::new(&growing(PENDING));
    let in_use = GrowthFailure { is_in_use: true, ..last() };
    assert_eq!(node.grow(Err(in_use)).await, (Ok(()), Some(SIZES)));
    assert_eq!(node.grow(Ok(())).await, (Ok(()), None));
    assert_eq!(node.grow_for("v", false, Ok(())).await, (Ok(()), None));
    node.grower.forget("u");
    assert_eq!(node.grow_for("v", false, Ok(())).await, (Ok(()), None), "a pod has it still");
    node.grower.forget("v");
    assert_eq!(node.grow_for("w", false, Ok(())).await, (Ok(()), Some(SIZES)));
    // A resizer of old, and a driver that grows nothing on nodes.
    let node = Node::new(&json!({"capacity": {"storage": "1Gi"}}));
    assert_eq!(node.grow(Err(last())).await.0, Err("full".to_owned()));
    let unable = GrowthFailure { is_unsupported: true, ..last() };
    assert_eq!(node.grow(Err(unable)).await, (Ok(()), Some(SIZES)));
    assert_eq!(node.grow(Ok(())).await, (Ok(()), None));
    assert_eq!(node.status(), json!({"capacity": {"storage": "1Gi"}}));
}

#[tokio::test]
async fn a_volume_that_another_node_has_grown_grows_here_too() {
    let node = Node::new(&json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "1Gi"}}));
    assert_eq!(node.grow(Ok(())).await, (Ok(()), None), "the controller is at it");
    merge(
        &mut node.stored.0.lock(),
        &json!({"status": {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}}),
    );
    assert_eq!(node.grow(Ok(())).await, (Ok(()), Some(SIZES)));
    assert_eq!(node.status(), json!({"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}));
    assert_eq!(node.grow(Ok(())).await, (Ok(()), None));
}
