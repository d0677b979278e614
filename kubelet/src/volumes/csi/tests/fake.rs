//! A driver that serves a socket, keeps what it was asked for, fails when it is told to, and knows what CSI forbids.

use super::super::v1::node_server::{Node, NodeServer};
use super::super::v1::{self, node_service_capability::rpc::Type as Capability};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

/// A failure to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// The call's name, as it is recorded.
    pub call: &'static str,
    pub code: Code,
    /// The work is done all the same.
    pub works: bool,
}

/// An end of a call other than a good one. The driver has done its work all the same, or has not.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mishap {
    /// The driver answers so.
    Answers { code: Code, works: bool },
    /// The kubelet is killed before it has an answer.
    KubeletDies { works: bool },
}

/// State of the driver.
#[derive(Debug, Default)]
pub(super) struct State {
    /// `stage h`, `publish h u`, `unpublish h u`, `unstage h`.
    pub calls: Vec<String>,
    pub faults: VecDeque<Fault>,
    /// An end of the call of this number, counted from nought.
    pub mishap: Option<(usize, Mishap)>,
    made: usize,
    /// Times that the driver was asked about the node.
    pub asked: usize,
    pub staged: BTreeSet<String>,
    /// Targets by volume.
    pub published: BTreeMap<String, BTreeSet<String>>,
    /// Volumes that one pod alone may have.
    pub exclusive: BTreeSet<String>,
    pub busy: BTreeSet<String>,
    /// Calls that CSI forbids.
    pub violations: Vec<String>,
    pub last_publish: Option<v1::NodePublishVolumeRequest>,
    pub last_stage: Option<v1::NodeStageVolumeRequest>,
    pub last_expand: Option<v1::NodeExpandVolumeRequest>,
}

impl State {
    pub(super) fn take_calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }

    /// The end of a call: that of its number, or the first that waits for a call of its name.
    fn mishap(&mut self, name: &str, number: usize) -> Option<Mishap> {
        if let Some((_, mishap)) = self.mishap.take_if(|(at, _)| *at <= number) {
            return Some(mishap);
        }
        let at = self.faults.iter().position(|fault| fault.call == name)?;
        self.faults.remove(at).map(|Fault { code, works, .. }| Mishap::Answers { code, works })
    }

    /// Lets the next call, or the one after so many more, end so.
    pub(super) fn end_next(&mut self, more: usize, mishap: Mishap) {
        self.mishap = Some((self.made + more, mishap));
    }

    fn forbid(&mut self, is_forbidden: bool, what: String) {
        if is_forbidden {
            self.violations.push(what);
        }
    }
}

/// The driver.
#[derive(Clone)]
pub(super) struct Fake {
    pub state: Arc<Mutex<State>>,
    /// Told when the kubelet is to die.
    pub death: Arc<Notify>,
    capabilities: Vec<Capability>,
}

/// A file of a volume's content: it is there as long as the volume is mounted.
const CONTENT: &str = "precious";

fn put(folder: &str) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(Path::new(folder).join(CONTENT), "bytes").expect("written");
}

/// Takes a volume's content from a folder that it is mounted on. Reports whether somebody has deleted it before.
fn take(folder: &str) -> bool {
    fs::remove_file(Path::new(folder).join(CONTENT)).is_err()
}

/// The uid of a pod in a target path.
fn user(target: &str) -> String {
    let mut parts = target.split('/').skip_while(|part| !matches!(*part, "pods" | "publish"));
    match parts.next() {
        Some("publish") => parts.nth(1),
        _ => parts.next(),
    }
    .unwrap_or_default()
    .to_owned()
}

impl Fake {
    pub(super) fn new(capabilities: &[Capability]) -> Self {
        Self { state: Arc::default(), death: Arc::default(), capabilities: capabilities.to_vec() }
    }

    /// Serves a socket until the task is dropped.
    pub(super) fn serve(&self, socket: &Path) -> tokio::task::JoinHandle<()> {
        fs::remove_file(socket).ok();
        let listener = UnixListener::bind(socket).expect("a socket");
        let server = tonic::transport::Server::builder().add_service(NodeServer::new(self.clone()));
        tokio::spawn(
            async move { server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("served") },
        )
    }

    /// Records a call and does its work, unless it is to fail.
    async fn call<T>(
        &self,
        name: &'static str,
        text: String,
        handle: &str,
        work: impl FnOnce(&mut State),
        answer: T,
    ) -> Result<Response<T>, Status> {
        let number = {
            let mut state = self.state.lock();
            let overlaps = !state.busy.insert(handle.to_owned());
            state.forbid(overlaps, format!("{text} while another call for the volume is made"));
            state.calls.push(text);
            state.made += 1;
            state.made - 1
        };
        tokio::task::yield_now().await;
        let mishap = {
            let mut state = self.state.lock();
            state.busy.remove(handle);
            let mishap = state.mishap(name, number);
            let works = match mishap {
                Some(Mishap::Answers { works, .. } | Mishap::KubeletDies { works }) => works,
                None => true,
            };
            if works {
                work(&mut state);
            }
            mishap
        };
        match mishap {
            Some(Mishap::Answers { code, .. }) => Err(Status::new(code, "injected")),
            Some(Mishap::KubeletDies { .. }) => {
                self.death.notify_one();
                std::future::pending().await
            }
            None => Ok(Response::new(answer)),
        }
    }

    fn can(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for Fake {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Answer<v1::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let handle = request.volume_id.clone();
        let work = |state: &mut State| {
            let is_missing = !Path::new(&request.staging_target_path).is_dir();
            state.forbid(is_missing, format!("stage {handle} without a folder"));
            state.staged.insert(request.volume_id.clone());
            put(&request.staging_target_path);
            state.last_stage = Some(request);
        };
        self.call("stage", format!("stage {handle}"), &handle, work, v1::NodeStageVolumeResponse {}).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Answer<v1::NodeUnstageVolumeResponse> {
        let v1::NodeUnstageVolumeRequest { volume_id: handle, staging_target_path: staging } = request.into_inner();
        let work = |state: &mut State| {
            let in_use = state.published.get(&handle).is_some_and(|targets| !targets.is_empty());
            state.forbid(in_use, format!("unstage {handle} before the last unpublish"));
            let was_staged = state.staged.remove(&handle);
            state.forbid(take(&staging) && was_staged, format!("delete through the mount of {handle}"));
        };
        self.call("unstage", format!("unstage {handle}"), &handle, work, v1::NodeUnstageVolumeResponse {}).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Answer<v1::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let (handle, target) = (request.volume_id.clone(), request.target_path.clone());
        let text = format!("publish {handle} {}", user(&target));
        let is_staged = self.can(Capability::StageUnstageVolume) && !handle.starts_with("csi-");
        let work = |state: &mut State| {
            let too_early = is_staged && !state.staged.contains(&handle);
            state.forbid(too_early, format!("publish {handle} before stage"));
            let targets = state.published.entry(handle.clone()).or_default();
            targets.insert(target.clone());
            let is_shared = targets.len() > 1 && state.exclusive.contains(&handle);
            state.forbid(is_shared, format!("publish {handle} for two pods"));
            // A device is a file.
            if request
                .volume_capability
                .as_ref()
                .is_some_and(|c| matches!(c.access_type, Some(v1::volume_capability::AccessType::Block(_))))
            {
                fs::write(&target, "").expect("a file");
            } else {
                put(&target);
            }
            state.last_publish = Some(request);
        };
        self.call("publish", text, &handle, work, v1::NodePublishVolumeResponse {}).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        let v1::NodeUnpublishVolumeRequest { volume_id: handle, target_path: target } = request.into_inner();
        let text = format!("unpublish {handle} {}", user(&target));
        let work = |state: &mut State| {
            let was_published = state.published.entry(handle.clone()).or_default().remove(&target);
            let is_folder = Path::new(&target).is_dir();
            state.forbid(is_folder && take(&target) && was_published, format!("delete through the mount of {handle}"));
            // A file that is no mount can be removed, other than the one that a device is bound over.
            let is_device = target.contains("volumeDevices");
            let is_gone = was_published && !is_device && !Path::new(&target).exists();
            state.forbid(is_gone, format!("delete of the mount of {handle}"));
            crate::trees::remove(target.as_ref()).ok();
            fs::remove_file(&target).ok();
        };
        self.call("unpublish", text, &handle, work, v1::NodeUnpublishVolumeResponse {}).await
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Answer<v1::NodeGetVolumeStatsResponse> {
        let unit = v1::volume_usage::Unit::Bytes.into();
        let usage = vec![v1::VolumeUsage { available: 3, total: 10, used: 7, unit }];
        Ok(Response::new(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Answer<v1::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let handle = request.volume_id.clone();
        let capacity_bytes = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let work = |state: &mut State| {
            let is_published = state.published.get(&handle).is_some_and(|targets| !targets.is_empty());
            state.forbid(!is_published, format!("expand {handle} before publish"));
            state.last_expand = Some(request);
        };
        let answer = v1::NodeExpandVolumeResponse { capacity_bytes };
        self.call("expand", format!("expand {handle}"), &handle, work, answer).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        use v1::node_service_capability::{Rpc, Type};
        let capability = |capability: &Capability| v1::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: (*capability).into() })),
        };
        let capabilities = self.capabilities.iter().map(capability).collect();
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<v1::NodeGetInfoRequest>) -> Answer<v1::NodeGetInfoResponse> {
        self.state.lock().asked += 1;
        Ok(Response::new(v1::NodeGetInfoResponse { node_id: "n1".to_owned(), ..Default::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that stages, below a folder.
    struct Calls {
        root: tempfile::TempDir,
        fake: Fake,
    }

    impl Calls {
        fn new() -> Self {
            let calls = Self {
                root: tempfile::tempdir().expect("a folder"),
                fake: Fake::new(&[Capability::StageUnstageVolume]),
            };
            fs::create_dir_all(calls.staging()).expect("a folder");
            calls
        }

        fn staging(&self) -> String {
            self.root.path().join("staging").display().to_string()
        }

        fn target(&self, uid: &str) -> String {
            self.root.path().join("pods").join(uid).join("mount").display().to_string()
        }

        async fn stage(&self) {
            let staging_target_path = self.staging();
            let call =
                v1::NodeStageVolumeRequest { volume_id: "h".to_owned(), staging_target_path, ..Default::default() };
            self.fake.node_stage_volume(Request::new(call)).await.expect("staged");
        }

        async fn publish(&self, uid: &str) {
            let target_path = self.target(uid);
            let call = v1::NodePublishVolumeRequest { volume_id: "h".to_owned(), target_path, ..Default::default() };
            self.fake.node_publish_volume(Request::new(call)).await.expect("published");
        }

        async fn unpublish(&self, uid: &str) {
            let call = v1::NodeUnpublishVolumeRequest { volume_id: "h".to_owned(), target_path: self.target(uid) };
            self.fake.node_unpublish_volume(Request::new(call)).await.expect("unpublished");
        }

        async fn unstage(&self) {
            let call = v1::NodeUnstageVolumeRequest { volume_id: "h".to_owned(), staging_target_path: self.staging() };
            self.fake.node_unstage_volume(Request::new(call)).await.expect("unstaged");
        }

        fn violations(&self) -> Vec<String> {
            std::mem::take(&mut self.fake.state.lock().violations)
        }
    }

    #[tokio::test]
    async fn every_forbidden_call_is_told() {
        let calls = Calls::new();
        calls.publish("a").await;
        assert_eq!(calls.violations(), ["publish h before stage"]);
        calls.stage().await;
        calls.unstage().await;
        assert_eq!(calls.violations(), ["unstage h before the last unpublish"]);
        calls.stage().await;
        calls.fake.state.lock().exclusive.insert("h".to_owned());
        calls.publish("b").await;
        assert_eq!(calls.violations(), ["publish h for two pods"]);
        calls.unpublish("b").await;
        assert_eq!(calls.violations(), Vec::<String>::new());
        fs::remove_file(Path::new(&calls.target("a")).join(CONTENT)).expect("deleted");
        calls.unpublish("a").await;
        assert_eq!(calls.violations(), ["delete through the mount of h"]);
        calls.publish("a").await;
        crate::trees::remove(calls.target("a").as_ref()).expect("deleted");
        calls.unpublish("a").await;
        assert_eq!(calls.violations(), ["delete of the mount of h"]);
        fs::remove_file(Path::new(&calls.staging()).join(CONTENT)).expect("deleted");
        calls.unstage().await;
        assert_eq!(calls.violations(), ["delete through the mount of h"]);
        let call = v1::NodeExpandVolumeRequest { volume_id: "h".to_owned(), ..Default::default() };
        calls.fake.node_expand_volume(Request::new(call)).await.expect("grown");
        assert_eq!(calls.violations(), ["expand h before publish"]);
        crate::trees::remove(calls.staging().as_ref()).expect("gone");
        tokio::join!(calls.stage(), calls.stage());
        assert!(calls.violations().contains(&"stage h while another call for the volume is made".to_owned()));
    }
}
