//! The Node authoriser: what a kubelet (`system:node:<name>` in `system:nodes`) may do.
//!
//! Objects its pods use it may read, its own Node, Lease and CSINode it may write, everything else follows
//! the static rules of the `system:node` role. Answers for upstream's node authoriser and its texts.

mod graph;
mod meters;

use std::sync::Arc;

use shared::authn::UserInfo;
use shared::authz::{Attributes, Decision};

pub use graph::{Graph, VertexKind, pod_config_maps, pod_secrets};

use super::follow::Follower;
use super::rbac::Rule;
use crate::api::Reader;
use crate::machinery::GroupResource;
use crate::registry::certificates::pod_certificate_request::POD_CERTIFICATE_REQUESTS;
use crate::registry::coordination::lease::LEASES;
use crate::registry::core::config_map::CONFIG_MAPS;
use crate::registry::core::node::NODES;
use crate::registry::core::persistent_volume::PERSISTENT_VOLUMES;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::core::pod::PODS;
use crate::registry::core::secret::SECRETS;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;
use crate::registry::resource::resource_claim::RESOURCE_CLAIMS;
use crate::registry::resource::resource_slice::RESOURCE_SLICES;
use crate::registry::storage::csi_node::CSI_NODES;
use crate::registry::storage::volume_attachment::VOLUME_ATTACHMENTS;

const USER_PREFIX: &str = "system:node:";
const GROUP: &str = "system:nodes";

/// `None` for users that are no nodes, else the node's name, which may be "" when it cannot be told.
pub fn identity(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(USER_PREFIX)?;
    user.groups.iter().any(|g| g == GROUP).then_some(name)
}

type NodeDecision = (Decision, String);

fn allow() -> NodeDecision {
    (Decision::Allow, String::new())
}

fn no(text: impl Into<String>) -> NodeDecision {
    (Decision::NoOpinion, text.into())
}

/// The authoriser.
pub struct NodeAuthorizer {
    graph: Follower<Graph>,
    rules: Vec<Rule>,
    /// The static rules, which follow feature gates, include pod certificate requests.
    certifies: bool,
}

/// Resources the graph is made of.
const SOURCES: &[GroupResource<'static>] =
    &[PODS, PERSISTENT_VOLUMES, VOLUME_ATTACHMENTS, RESOURCE_SLICES, POD_CERTIFICATE_REQUESTS];

impl NodeAuthorizer {
    /// An authoriser with the static rules every node has.
    pub fn new(reader: Arc<dyn Reader>, rules: Vec<Rule>) -> NodeAuthorizer {
        meters::show();
        let certifies = rules.iter().any(|rule| rule.resources.iter().any(|r| r == POD_CERTIFICATE_REQUESTS.plural));
        NodeAuthorizer { graph: Follower::new(reader, SOURCES), rules, certifies }
    }

    /// Reports whether the resources of the graph have been read.
    pub fn synced(&self) -> bool {
        self.graph.synced()
    }

    /// Decides one request.
    pub fn decide(&self, request: &Attributes) -> NodeDecision {
        let Some(node) = identity(&request.user) else { return no("") };
        if node.is_empty() {
            return no(format!("unknown node for user {:?}", request.user.name));
        }
        if request.resource_request {
            let ask = Ask { on: self, node, request };
            match GroupResource::new(&request.api_group, &request.resource) {
                SECRETS => return ask.read(VertexKind::Secret),
                CONFIG_MAPS => return ask.read(VertexKind::ConfigMap),
                PERSISTENT_VOLUME_CLAIMS if request.subresource == "status" => {
                    return ask.status(VertexKind::Claim);
                }
                PERSISTENT_VOLUME_CLAIMS => return ask.get(VertexKind::Claim),
                PERSISTENT_VOLUMES => return ask.get(VertexKind::Volume),
                RESOURCE_CLAIMS => return ask.get(VertexKind::ResourceClaim),
                VOLUME_ATTACHMENTS => return ask.get(VertexKind::VolumeAttachment),
                SERVICE_ACCOUNTS => return ask.service_account(),
                LEASES => return ask.lease(),
                CSI_NODES => return ask.csi_node(),
                RESOURCE_SLICES => return ask.resource_slice(),
                POD_CERTIFICATE_REQUESTS if self.certifies => return ask.pod_certificate(),
                NODES => return ask.node(),
                PODS => return ask.pod(),
                _ => {}
            }
        }
        if self.rules.iter().any(|rule| rule.allows(request)) { allow() } else { no("") }
    }
}

struct Ask<'a> {
    on: &'a NodeAuthorizer,
    node: &'a str,
    request: &'a Attributes,
}

impl Ask<'_> {
    fn verb(&self) -> &str {
        &self.request.verb
    }

    fn own_name(&self) -> bool {
        self.request.name == self.node
    }

    fn related(&self, kind: VertexKind) -> NodeDecision {
        let (namespace, name) = (&self.request.namespace, &self.request.name);
        if self.on.graph.read().related(self.node, kind, namespace, name) {
            allow()
        } else {
            no(format!("no relationship found between node '{}' and this object", self.node))
        }
    }

    fn named(&self, kind: VertexKind) -> NodeDecision {
        if self.request.name.is_empty() {
            return no("No Object name found");
        }
        self.related(kind)
    }

    fn read(&self, kind: VertexKind) -> NodeDecision {
        if !matches!(self.verb(), "get" | "list" | "watch") {
            return no("can only read resources of this type");
        }
        if !self.request.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if self.request.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.named(kind)
    }

    fn get(&self, kind: VertexKind) -> NodeDecision {
        if self.verb() != "get" {
            return no("can only get individual resources of this type");
        }
        if !self.request.subresource.is_empty() {
            return no("cannot get subresource");
        }
        self.named(kind)
    }

    fn status(&self, kind: VertexKind) -> NodeDecision {
        if !matches!(self.verb(), "update" | "patch") {
            return no("can only get/update/patch this type");
        }
        self.named(kind)
    }

    fn service_account(&self) -> NodeDecision {
        if self.verb() == "get" && self.request.subresource.is_empty() {
            return self.read(VertexKind::ServiceAccount);
        }
        if self.verb() != "create" || self.request.name.is_empty() {
            return no("can only create tokens for individual service accounts");
        }
        if self.request.subresource != "token" {
            return no("can only create token subresource of serviceaccount");
        }
        self.related(VertexKind::ServiceAccount)
    }

    fn lease(&self) -> NodeDecision {
        if !matches!(self.verb(), "get" | "create" | "update" | "patch" | "delete") {
            return no("can only get, create, update, patch, or delete a node lease");
        }
        if self.request.namespace != "kube-node-lease" {
            return no("can only access leases in the \"kube-node-lease\" system namespace");
        }
        if self.verb() != "create" && !self.own_name() {
            return no("can only access node lease with the same name as the requesting node");
        }
        allow()
    }

    fn csi_node(&self) -> NodeDecision {
        if !matches!(self.verb(), "get" | "create" | "update" | "patch" | "delete") {
            return no("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.request.subresource.is_empty() {
            return no("cannot authorize CSINode subresources");
        }
        if self.verb() != "create" && !self.own_name() {
            return no("can only access CSINode with the same name as the requesting node");
        }
        allow()
    }

    fn resource_slice(&self) -> NodeDecision {
        if !self.request.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match self.verb() {
            "create" => allow(),
            "get" | "update" | "patch" | "delete" => self.named(VertexKind::ResourceSlice),
            "watch" | "list" | "deletecollection" if self.selects("spec.nodeName") => allow(),
            "watch" | "list" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn pod_certificate(&self) -> NodeDecision {
        if !self.request.subresource.is_empty() {
            return no("nodes may not access the status subresource of PodCertificateRequests");
        }
        match self.verb() {
            "create" => allow(),
            "get" => self.named(VertexKind::PodCertificateRequest),
            "list" | "watch" if self.selects("spec.nodeName") => allow(),
            "list" | "watch" => no("can only list/watch podcertificaterequests with nodeName field selector"),
            verb => no(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn node(&self) -> NodeDecision {
        match (self.request.subresource.as_str(), self.verb()) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => allow(),
            ("", "get" | "list" | "watch") if self.own_name() => allow(),
            ("", "get" | "list" | "watch") if self.request.name.is_empty() => {
                no(format!("node '{}' cannot read all nodes, only its own Node object", self.node))
            }
            ("", "get" | "list" | "watch") => {
                no(format!("node '{}' cannot read '{}', only its own Node object", self.node, self.request.name))
            }
            _ => no(""),
        }
    }

    fn pod(&self) -> NodeDecision {
        match (self.request.subresource.as_str(), self.verb()) {
            ("", "get") => self.named(VertexKind::Pod),
            ("", "list" | "watch") if self.selects("spec.nodeName") => allow(),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => allow(),
            _ => no(""),
        }
    }

    /// Reports whether the request's field selector requires a field to equal this node's name.
    fn selects(&self, field: &str) -> bool {
        super::field_equals(self.request, field, self.node)
    }
}
