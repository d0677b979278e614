//! An API service as the server reads it, and the priorities of groups that are served here.

use proto::Value;

use crate::machinery::tree;
use crate::registry::api_services::AVAILABLE;
use crate::registry::apiregistration::api_service::API_SERVICES;
use crate::rows::builtin_group;

/// The group of API services.
pub const GROUP: &str = API_SERVICES.group;

/// Header of a request that was sent on to a peer: nobody does it again.
pub const PROXIED: &str = "x-kubernetes-peer-proxied";

/// A group and a version of it.
pub type GroupVersion = (Box<str>, Box<str>);

/// Says who looks after an API service.
pub(super) const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Service of an aggregated server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceReference {
    /// Namespace of the service.
    pub namespace: String,
    /// Name of the service.
    pub name: String,
    /// One of its ports.
    pub port: i64,
    /// PEM of who signs for it; the system's authorities when empty.
    pub bundle: Vec<u8>,
    /// The server's certificate is not verified (`insecureSkipTLSVerify`).
    pub insecure: bool,
}

/// Fields of an API service that matter for serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiService {
    /// `version.group`
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Value of the `autoregister` label; empty for services that somebody else manages.
    pub managed: String,
    /// Group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// `groupPriorityMinimum`: higher ones come first.
    pub group_priority: i64,
    /// `versionPriority` within the group.
    pub version_priority: i64,
    /// Another server; none for what is answered here.
    pub behind: Option<ServiceReference>,
    /// The condition `Available`: status, reason and message.
    pub available: Option<(String, String, String)>,
}

impl ApiService {
    /// Reads one.
    pub fn read(object: &Value) -> Self {
        let text = |pointer: &str| tree::text(object, pointer).to_owned();
        let behind = tree::has(object, "/spec/service").then(|| ServiceReference {
            namespace: text("/spec/service/namespace"),
            name: text("/spec/service/name"),
            port: tree::int(object, "/spec/service/port").unwrap_or(443),
            // Validation lets nothing else through.
            bundle: base64::Engine::decode(
                &base64::engine::general_purpose::STANDARD,
                tree::text(object, "/spec/caBundle"),
            )
            .unwrap_or_default(),
            insecure: tree::flag(object, "/spec/insecureSkipTLSVerify"),
        });
        let condition = tree::list(object, "/status/conditions").iter().find(|c| c["type"] == AVAILABLE);
        let of = |c: &Value, field: &str| c[field].as_str().unwrap_or("").to_owned();
        Self {
            name: tree::name(object).to_owned(),
            uid: text("/metadata/uid"),
            managed: tree::label(object, AUTOMANAGED).unwrap_or_default().to_owned(),
            group: text("/spec/group"),
            version: text("/spec/version"),
            group_priority: tree::int(object, "/spec/groupPriorityMinimum").unwrap_or(0),
            version_priority: tree::int(object, "/spec/versionPriority").unwrap_or(0),
            behind,
            available: condition.map(|c| (of(c, "status"), of(c, "reason"), of(c, "message"))),
        }
    }

    /// The key in a directory.
    pub fn key(&self) -> GroupVersion {
        (self.group.as_str().into(), self.version.as_str().into())
    }

    /// The condition says so.
    pub fn is_available(&self) -> bool {
        self.available.as_ref().is_some_and(|(status, _, _)| status == "True")
    }

    /// Path of its resources: `/apis/<group>/<version>`.
    pub fn path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}

/// Priorities of a group and version served here: the group's, the version's. Custom resources come last.
pub fn preference(group: &str, version: &str) -> (i64, i64) {
    let of_group = match group {
        "" => return (18000, 1),
        // Served by the aggregator itself: named before all others.
        GROUP => 20000,
        "apps" => 17800,
        "events.k8s.io" => 17750,
        "authentication.k8s.io" => 17700,
        "authorization.k8s.io" => 17600,
        "autoscaling" => 17500,
        "batch" => 17400,
        "certificates.k8s.io" => 17300,
        "networking.k8s.io" => 17200,
        "policy" => 17100,
        "rbac.authorization.k8s.io" => 17000,
        "storage.k8s.io" => 16800,
        "admissionregistration.k8s.io" | "apiextensions.k8s.io" => 16700,
        "scheduling.k8s.io" => 16600,
        "coordination.k8s.io" => 16500,
        "node.k8s.io" => 16300,
        "discovery.k8s.io" | "resource.k8s.io" => 16200,
        "flowcontrol.apiserver.k8s.io" => 16100,
        "internal.apiserver.k8s.io" => 16000,
        "storagemigration.k8s.io" => 15800,
        group if builtin_group(group) => 2000,
        _ => return (1000, 100),
    };
    let of_version = match (group, version) {
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        (_, "v1") | ("resource.k8s.io", "v1beta2") => 15,
        ("coordination.k8s.io", "v1beta1") => 13,
        ("admissionregistration.k8s.io", "v1beta1") | ("coordination.k8s.io", "v1alpha2") => 12,
        ("certificates.k8s.io", "v1alpha1") | ("resource.k8s.io", "v1alpha3") => 1,
        _ => 9,
    };
    (of_group, of_version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn api_services_are_parsed() {
        let object = json!({"metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 50,
                "service": {"namespace": "kube-system", "name": "metrics-server"}, "caBundle": "YQ=="},
            "status": {"conditions": [{"type": "Available", "status": "False", "reason": "MissingEndpoints", "message": "m"}]}});
        let read = ApiService::read(&object);
        let behind = read.behind.clone().expect("a service");
        assert_eq!((behind.name.as_str(), behind.port, behind.bundle.as_slice()), ("metrics-server", 443, &b"a"[..]));
        assert_eq!((read.path().as_str(), read.is_available()), ("/apis/metrics.k8s.io/v1beta1", false));
        assert_eq!(read.available.map(|a| a.1).as_deref(), Some("MissingEndpoints"));
    }
}
