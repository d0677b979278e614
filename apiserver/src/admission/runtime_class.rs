//! RuntimeClass: pods take over their runtime class's overhead, node selector and tolerations. Answers for upstream's
//! `plugin/pkg/admission/runtimeclass`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::Status;

use super::{Attributes, Plugin, resource_list};
use crate::api::{Api, Reader};
use crate::machinery::tree;
use crate::registry::core::pod::PODS;
use crate::registry::node::runtime_class::RUNTIME_CLASSES;

/// The plugin.
pub(super) struct RuntimeClass {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads.
    pub api: Api,
}

#[async_trait]
impl Plugin for RuntimeClass {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(class) = self.class(a).await? else { return Ok(()) };
        let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
        match take_over(pod, &class) {
            Ok(()) => Ok(()),
            Err(why) => Err(a.forbidden(why.to_string())),
        }
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let class = self.class(a).await?;
        let Some(pod) = a.object().filter(|_| a.is(PODS)) else { return Ok(()) };
        let overhead = resource_list::read(pod, "/spec/overhead");
        let fixed = class.map(|c| resource_list::read(&c, "/overhead/podFixed")).unwrap_or_default();
        if tree::has(pod, "/spec/overhead") && fixed.is_empty() && !overhead.is_empty() {
            return Err(
                a.forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
            );
        }
        if !fixed.is_empty() && overhead != fixed {
            return Err(a.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"));
        }
        Ok(())
    }
}

impl RuntimeClass {
    async fn class(&self, a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
        let name = match a.object() {
            Some(pod) if a.is(PODS) => tree::text(pod, "/spec/runtimeClassName").to_owned(),
            _ => return Ok(None),
        };
        if name.is_empty() {
            return Ok(None);
        }
        if let Some(class) = self.reader.get(RUNTIME_CLASSES, "", &name) {
            return Ok(Some(class));
        }
        match self.api.get(RUNTIME_CLASSES, "", &name).await {
            Ok(class) => Ok(Some(Arc::new(class))),
            Err(status) if status.code == 404 => {
                Err(a.forbidden(format!("pod rejected: RuntimeClass {name:?} not found")))
            }
            Err(status) => Err(status),
        }
    }
}

/// A pod that contradicts its runtime class.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ConflictWithClass {
    /// Another overhead.
    #[error("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")]
    Overhead,
    /// A node selector that asks for another value.
    #[error("conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {value}")]
    NodeSelector {
        /// Key of the selector.
        key: String,
        /// Value of the runtime class.
        wanted: String,
        /// Value of the pod.
        value: String,
    },
}

fn take_over(pod: &mut Value, class: &Value) -> Result<(), ConflictWithClass> {
    let fixed = resource_list::read(class, "/overhead/podFixed");
    if !fixed.is_empty() {
        let own = resource_list::read(pod, "/spec/overhead");
        if !own.is_empty() && own != fixed {
            return Err(ConflictWithClass::Overhead);
        }
        *tree::field(pod, &["spec", "overhead"]) = resource_list::write(&fixed);
    }
    let selector = tree::map(class, "/scheduling/nodeSelector").cloned().unwrap_or_default();
    if !selector.is_empty()
        && let Some(own) = tree::map_mut(pod, &["spec", "nodeSelector"])
    {
        for (key, wanted) in selector {
            let wanted_text = wanted.as_str().unwrap_or("").to_owned();
            match own.get(&key).and_then(Value::as_str) {
                Some(value) if value != wanted_text => {
                    let value = value.to_owned();
                    return Err(ConflictWithClass::NodeSelector { key, wanted: wanted_text, value });
                }
                _ => drop(own.insert(key, json!(wanted_text))),
            }
        }
    }
    let tolerations = tree::list(class, "/scheduling/tolerations").to_vec();
    if !tolerations.is_empty()
        && let Some(own) = tree::list_mut(pod, &["spec", "tolerations"])
    {
        for toleration in tolerations {
            if !own.contains(&toleration) {
                own.push(toleration);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_takes_over_overhead_and_scheduling() {
        let class = json!({"overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}});
        let mut pod = json!({"spec": {"nodeSelector": {"zone": "a"}}});
        assert_eq!(take_over(&mut pod, &class), Ok(()));
        assert_eq!(pod["spec"]["overhead"], json!({"cpu": "250m"}));
        assert_eq!(pod["spec"]["nodeSelector"], json!({"zone": "a", "vm": "yes"}));
        assert_eq!(pod["spec"]["tolerations"], json!([{"key": "vm", "operator": "Exists"}]));
        let mut other = json!({"spec": {"nodeSelector": {"vm": "no"}}});
        assert_eq!(
            take_over(&mut other, &class).map_err(|e| e.to_string()),
            Err("conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no".to_owned())
        );
    }
}
