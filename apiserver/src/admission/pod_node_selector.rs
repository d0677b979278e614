//! PodNodeSelector: a namespace's annotation adds to, and must not clash with, its pods' node selectors.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use shared::status::Status;

use super::{Attributes, Operation, Plugin};
use crate::access::tree;
use crate::api::Reader;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";

/// The plugin.
pub struct PodNodeSelector {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }

    fn mutates(&self) -> bool {
        true
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !a.is("", "pods") {
            return Ok(());
        }
        let Some(namespace) = self.reader.get("", "namespaces", "", a.namespace) else { return Ok(()) };
        let Some(text) = tree::annotation(&namespace, ANNOTATION) else { return Ok(()) };
        let wanted: Vec<(String, String)> = text
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))
            .collect();
        let clash = a.object().is_some_and(|pod| {
            wanted.iter().any(|(k, v)| {
                let own = tree::map(pod, "/spec/nodeSelector").and_then(|s| s.get(k)).and_then(|o| o.as_str());
                own.is_some_and(|o| o != v)
            })
        });
        if clash {
            return Err(a.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        if let Some(selector) = a.object.as_deref_mut().and_then(|pod| tree::map_mut(pod, &["spec", "nodeSelector"])) {
            for (key, value) in wanted {
                selector.insert(key, json!(value));
            }
        }
        Ok(())
    }
}
