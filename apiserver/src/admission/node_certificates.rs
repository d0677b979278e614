//! NodeRestriction: certificates that a kubelet asks for on behalf of pods. Answers for upstream's
//! `admitPodCertificateRequest`.

use shared::status::Status;
use shared::types::MIRROR;

use super::node_restriction::NodeRestriction;
use super::{Attributes, NOTHING, Operation};
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::core::node::NODES;
use crate::registry::core::pod::PODS;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;

impl NodeRestriction {
    /// Nodes ask for certificates of their own pods, as what they are. What a late cache may have caused is no verdict:
    /// asking again may help.
    pub(super) async fn pod_certificate(&self, a: &Attributes<'_>, node: &str) -> Result<(), Status> {
        if a.operation != Operation::Create {
            return Err(a.forbidden("unexpected operation"));
        }
        if !a.subresource.is_empty() {
            return Err(a.forbidden(format!("unexpected subresource {}", a.subresource)));
        }
        let request = a.object().unwrap_or(NOTHING);
        let of = |field: &str| tree::text(request, &format!("/spec/{field}"));
        let late = |why: String| Err(Status::unknown(&why));
        if of("nodeName") != node {
            return Err(a.forbidden(format!(
                "PodCertificateRequest.Spec.NodeName={:?}, which is not the requesting node {node:?}",
                of("nodeName")
            )));
        }
        let named = async |resource: GroupResource<'static>, kind: &str, namespace: &str, name: &str| {
            let shown = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
            let why = |s: Status| {
                format!("while retrieving {kind} {shown:?} named in the PodCertificateRequest: {}", s.message)
            };
            self.find(resource, namespace, name).await.map_err(|s| Status::unknown(&why(s)))
        };
        let own = named(NODES, "node", "", node).await?;
        let pod_shown = format!("{}/{}", a.namespace, of("podName"));
        let uid = tree::text(&own, "/metadata/uid");
        if uid != of("nodeUID") {
            return late(format!(
                "PodCertificateRequest for pod {pod_shown:?} names node UID {:?}, inconsistent with the running node ({uid:?})",
                of("nodeUID")
            ));
        }
        let pod = named(PODS, "pod", a.namespace, of("podName")).await?;
        let uid = tree::text(&pod, "/metadata/uid");
        if uid != of("podUID") {
            return late(format!(
                "PodCertificateRequest for pod {pod_shown:?} contains pod UID ({:?}) which differs from running pod {uid:?}",
                of("podUID")
            ));
        }
        if tree::text(&pod, "/spec/nodeName") != node {
            return Err(a.forbidden(format!(
                "pod {pod_shown:?} is not running on node {node:?} named in the PodCertificateRequest"
            )));
        }
        if tree::annotation(&pod, MIRROR).is_some() {
            return Err(a.forbidden(format!("pod {pod_shown:?} is a mirror pod")));
        }
        let account = tree::text(&pod, "/spec/serviceAccountName");
        if account != of("serviceAccountName") {
            return Err(a.forbidden(format!(
                "PodCertificateRequest for pod {pod_shown:?} contains serviceAccountName ({:?}) that differs from running pod ({account:?})",
                of("serviceAccountName")
            )));
        }
        let account = named(SERVICE_ACCOUNTS, "service account", a.namespace, account).await?;
        let uid = tree::text(&account, "/metadata/uid");
        if uid != of("serviceAccountUID") {
            return late(format!(
                "PodCertificateRequest for pod {pod_shown:?} names service account UID {:?}, which differs from the running service account ({uid:?})",
                of("serviceAccountUID")
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::testing::{Fixed, Write};
    use crate::authz::Authorization;
    use serde_json::json;
    use shared::authn::UserInfo;

    async fn try_it(cluster: &Arc<Fixed>, write: Write<'_>) -> Result<(), String> {
        let authorization = Arc::new(Authorization::of(Vec::new()));
        let (reader, api) = (cluster.clone(), cluster.api());
        let plugin = NodeRestriction { reader, api, authorization, audiences: true, requests: true };
        let node =
            UserInfo { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..UserInfo::default() };
        write.by(&node).admit(&plugin).await.map(drop).map_err(|s| s.message)
    }

    #[tokio::test]
    async fn certificates_of_its_own_pods() {
        let cluster = Arc::new(Fixed::default());
        let object = |name: &str| json!({"metadata": {"name": name, "namespace": "e", "uid": format!("{name}-uid")}});
        cluster.put("", "nodes", json!({"metadata": {"name": "n1", "uid": "n1-uid"}}));
        cluster.put("", "serviceaccounts", object("sa"));
        for (name, node, mirror) in [("p", "n1", false), ("q", "n2", false), ("m", "n1", true)] {
            let mut pod = object(name);
            pod["spec"] = json!({"nodeName": node, "serviceAccountName": "sa"});
            if mirror {
                pod["metadata"]["annotations"] = json!({MIRROR: "x"});
            }
            cluster.put("", "pods", pod);
        }
        let (group, plural) = ("certificates.k8s.io", "podcertificaterequests");
        let request = |pod: &str, field: &str, value: &str| {
            let mut spec = json!({"podName": pod, "podUID": format!("{pod}-uid"), "nodeName": "n1", "nodeUID": "n1-uid",
                "serviceAccountName": "sa", "serviceAccountUID": "sa-uid"});
            spec[field] = json!(value);
            json!({"metadata": {"name": "r"}, "spec": spec})
        };
        let fine = request("p", "nodeName", "n1");
        assert_eq!(try_it(&cluster, Write::create(group, plural, "e", fine.clone())).await, Ok(()));
        for (request, text) in [
            (
                request("p", "nodeName", "n2"),
                r#"podcertificaterequests.certificates.k8s.io "r" is forbidden: PodCertificateRequest.Spec.NodeName="n2", which is not the requesting node "n1""#,
            ),
            (
                request("q", "nodeName", "n1"),
                r#"podcertificaterequests.certificates.k8s.io "r" is forbidden: pod "e/q" is not running on node "n1" named in the PodCertificateRequest"#,
            ),
            (
                request("m", "nodeName", "n1"),
                r#"podcertificaterequests.certificates.k8s.io "r" is forbidden: pod "e/m" is a mirror pod"#,
            ),
            (
                request("p", "nodeUID", "x"),
                r#"PodCertificateRequest for pod "e/p" names node UID "x", inconsistent with the running node ("n1-uid")"#,
            ),
            (
                request("p", "podUID", "x"),
                r#"PodCertificateRequest for pod "e/p" contains pod UID ("x") which differs from running pod "p-uid""#,
            ),
            (
                request("p", "serviceAccountName", "x"),
                r#"podcertificaterequests.certificates.k8s.io "r" is forbidden: PodCertificateRequest for pod "e/p" contains serviceAccountName ("x") that differs from running pod ("sa")"#,
            ),
            (
                request("p", "serviceAccountUID", "x"),
                r#"PodCertificateRequest for pod "e/p" names service account UID "x", which differs from the running service account ("sa-uid")"#,
            ),
        ] {
            assert_eq!(try_it(&cluster, Write::create(group, plural, "e", request)).await, Err(text.to_owned()));
        }
        let update = Write::update(group, plural, "status", "r", fine.clone(), fine);
        let text = r#"podcertificaterequests.certificates.k8s.io "r" is forbidden: unexpected operation"#;
        assert_eq!(try_it(&cluster, update).await, Err(text.to_owned()));
    }
}
