//! Priority: a pod's priority class becomes its priority number; only one class may be the default. Answers for
//! upstream's `plugin/pkg/admission/priority`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use shared::status::Status;

use super::{Attributes, Operation, Plugin};
use crate::api::{Api, Reader};
use crate::machinery::tree;
use crate::registry::core::pod::PODS;
use crate::registry::scheduling::priority_class::PRIORITY_CLASSES;

const SYSTEM: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// The plugin.
pub(super) struct Priority {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads.
    pub api: Api,
}

#[async_trait]
impl Plugin for Priority {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !a.is(PODS) {
            return Ok(());
        }
        match a.operation {
            Operation::Create => self.pod(a).await,
            Operation::Update => {
                // Priority does not change; a client that left it out gets it back.
                let old = a.old_object.and_then(|o| tree::find(o, "/spec/priority")).cloned();
                let old_policy = a.old_object.and_then(|o| tree::find(o, "/spec/preemptionPolicy")).cloned();
                if let Some(pod) = a.object.as_deref_mut() {
                    for (field, value) in [("priority", old), ("preemptionPolicy", old_policy)] {
                        if let Some(value) = value.filter(|_| !tree::has(pod, &format!("/spec/{field}"))) {
                            *tree::field(pod, &["spec", field]) = value;
                        }
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !a.is(PRIORITY_CLASSES) {
            return Ok(());
        }
        if a.operation == Operation::Delete {
            // Of a collection, nothing but the object has the name.
            if a.old_object.is_some_and(|class| SYSTEM.contains(&tree::name(class))) {
                return Err(a.forbidden("this is a system priority class and cannot be deleted"));
            }
            return Ok(());
        }
        let Some(class) = a.object().filter(|c| tree::flag(c, "/globalDefault")) else { return Ok(()) };
        let name = tree::name(class);
        match self.default_class().filter(|d| tree::name(d) != name) {
            None => Ok(()),
            Some(default) => Err(a.forbidden(format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                tree::name(&default)
            ))),
        }
    }
}

impl Priority {
    fn default_class(&self) -> Option<Arc<serde_json::Value>> {
        self.reader
            .list(PRIORITY_CLASSES, None)
            .into_iter()
            .filter(|c| tree::flag(c, "/globalDefault"))
            .min_by_key(|c| (tree::int(c, "/value").unwrap_or(0), tree::name(c).to_owned()))
    }

    async fn pod(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object() else { return Ok(()) };
        let name = tree::text(pod, "/spec/priorityClassName").to_owned();
        let class = if name.is_empty() {
            self.default_class()
        } else {
            match self.reader.get(PRIORITY_CLASSES, "", &name) {
                Some(class) => Some(class),
                None => match self.api.get(PRIORITY_CLASSES, "", &name).await {
                    Ok(class) => Some(Arc::new(class)),
                    Err(status) if status.code == 404 => {
                        return Err(a.forbidden(format!("no PriorityClass with name {name} was found")));
                    }
                    Err(status) => return Err(status),
                },
            }
        };
        let (class_name, priority, policy) = match &class {
            Some(class) => {
                let policy = match tree::text(class, "/preemptionPolicy") {
                    "" => "PreemptLowerPriority",
                    policy => policy,
                };
                (tree::name(class).to_owned(), tree::int(class, "/value").unwrap_or(0), policy.to_owned())
            }
            None => (String::new(), 0, "PreemptLowerPriority".to_owned()),
        };
        let own = tree::int(pod, "/spec/priority");
        if let Some(own) = own.filter(|own| *own != priority) {
            return Err(a.forbidden(format!(
                "the integer value of priority ({own}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
            )));
        }
        let own_policy = tree::text(pod, "/spec/preemptionPolicy");
        if !own_policy.is_empty() && own_policy != policy {
            return Err(a.forbidden(format!(
                "the string value of PreemptionPolicy ({own_policy}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
            )));
        }
        if let Some(pod) = a.object.as_deref_mut() {
            if !class_name.is_empty() {
                *tree::field(pod, &["spec", "priorityClassName"]) = json!(class_name);
            }
            *tree::field(pod, &["spec", "priority"]) = json!(priority);
            *tree::field(pod, &["spec", "preemptionPolicy"]) = json!(policy);
        }
        Ok(())
    }
}
