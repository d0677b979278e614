//! PodNodeSelector: a namespace's annotation (or the cluster's default) adds to, and must not clash with, its pods'
//! node selectors; the configuration says which labels a namespace's pods may select by. Answers for upstream's
//! `plugin/pkg/admission/podnodeselector`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::Status;

use super::{Attributes, Plugin, namespaces};
use crate::api::{Api, Reader};
use crate::machinery::tree;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
/// The entry of the configuration for namespaces without an annotation.
const CLUSTER: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// The plugin.
pub(super) struct PodNodeSelector {
    reader: Arc<dyn Reader>,
    api: Api,
    /// By namespace, and for the cluster.
    configured: BTreeMap<String, Labels>,
}

/// `a=b,c=d`; what is no pair is left out.
fn labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned())).collect()
}

impl PodNodeSelector {
    /// With the selectors of its configuration.
    pub(super) fn new(reader: Arc<dyn Reader>, api: Api, configuration: &Value) -> Self {
        let entries = tree::map(configuration, "/podNodeSelectorPluginConfig").into_iter().flatten();
        let configured = entries.map(|(k, v)| (k.clone(), labels(v.as_str().unwrap_or("")))).collect();
        Self { reader, api, configured }
    }

    async fn namespace_selector(&self, namespace: &str) -> Result<Labels, Status> {
        let object = namespaces::find(self.reader.as_ref(), &self.api, namespace).await?;
        Ok(match tree::annotation(&object, ANNOTATION) {
            Some(text) => labels(text),
            None => self.configured.get(CLUSTER).cloned().unwrap_or_default(),
        })
    }

    fn validate_selector(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let Some(allowed) = self.configured.get(a.namespace) else { return Ok(()) };
        let own = a.object().and_then(|pod| tree::map(pod, "/spec/nodeSelector")).into_iter().flatten();
        let mut own = own.map(|(k, v)| (k, v.as_str().unwrap_or("")));
        if own.all(|(k, v)| allowed.get(k).is_some_and(|a| a == v)) || allowed.is_empty() {
            return Ok(());
        }
        Err(a.forbidden("pod node label selector labels conflict with its namespace whitelist"))
    }
}

#[async_trait]
impl Plugin for PodNodeSelector {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let wanted = self.namespace_selector(a.namespace).await?;
        let clash = a.object().is_some_and(|pod| {
            wanted.iter().any(|(k, v)| {
                let own = tree::map(pod, "/spec/nodeSelector").and_then(|s| s.get(k)).and_then(|o| o.as_str());
                own.is_some_and(|o| o != v)
            })
        });
        if clash {
            return Err(a.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        if !wanted.is_empty()
            && let Some(selector) =
                a.object.as_deref_mut().and_then(|pod| tree::map_mut(pod, &["spec", "nodeSelector"]))
        {
            selector.extend(wanted.into_iter().map(|(key, value)| (key, json!(value))));
        }
        self.validate_selector(a)
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        self.validate_selector(a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::{Fixed, Write};

    #[tokio::test]
    async fn selectors_are_added_and_kept_within_bounds() {
        let cluster = Arc::new(Fixed::default());
        cluster.put("", "namespaces", json!({"metadata": {"name": "e", "annotations": {ANNOTATION: "zone=a"}}}));
        cluster.put("", "namespaces", json!({"metadata": {"name": "f"}}));
        let configuration = json!({"podNodeSelectorPluginConfig": {CLUSTER: "os=linux", "e": "zone=a,disk=ssd"}});
        let plugin = PodNodeSelector::new(cluster.clone(), cluster.api(), &configuration);
        let no = |why: &str| Err(format!("pods \"p\" is forbidden: pod node label selector {why}"));
        for (namespace, own, want) in [
            ("e", json!({}), Ok(json!({"zone": "a"}))),
            ("e", json!({"disk": "ssd"}), Ok(json!({"disk": "ssd", "zone": "a"}))),
            ("e", json!({"zone": "b"}), no("conflicts with its namespace node label selector")),
            ("e", json!({"gpu": "yes"}), no("labels conflict with its namespace whitelist")),
            ("f", json!({"gpu": "yes"}), Ok(json!({"gpu": "yes", "os": "linux"}))),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": own}});
            let got = Write::create("", "pods", namespace, pod).admit(&plugin).await;
            assert_eq!(
                got.map(|p| p["spec"]["nodeSelector"].clone()).map_err(|s| s.message),
                want,
                "{namespace} {own}"
            );
        }
    }
}
