//! Events about this node and about services, as upstream's proxy records them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use shared::events::{EventKind, Recorder};
use shared::run::{Shutdown, TaskGroup};

/// Records what operators look for.
#[derive(Clone)]
pub(crate) struct ProxyEvents {
    recorder: Recorder,
    node: ObjectReference,
}

impl ProxyEvents {
    /// A recorder for the node of this name.
    #[must_use]
    pub(crate) fn new(client: Client, tasks: &TaskGroup, shutdown: &Shutdown, node: &str) -> Self {
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        };
        Self { recorder: Recorder::new(client, tasks, shutdown, "kube-proxy", node), node: about }
    }

    /// The proxy has begun its work.
    pub(crate) fn starting(&self) {
        self.recorder.event_v1(&self.node, None, EventKind::Normal, "Starting", "StartKubeProxy", "");
    }

    /// The health-check node port of a service cannot be listened on.
    pub(crate) fn health_check_failed(&self, namespace: &str, name: &str, port: u16, error: &std::io::Error) {
        let about = ObjectReference {
            kind: Some("Service".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(format!("{namespace}/{name}")),
            ..ObjectReference::default()
        };
        let message =
            format!("node {} failed to start healthcheck \"{namespace}/{name}\" on port {port}: {error}", self.host());
        self.recorder.event_v1(&about, None, EventKind::Warning, "FailedToStartServiceHealthcheck", "Listen", message);
    }

    fn host(&self) -> &str {
        self.node.name.as_deref().unwrap_or_default()
    }
}
