//! PodTolerationRestriction: a namespace's annotations give its pods default tolerations and say which ones
//! they may have. Answers for upstream's `plugin/pkg/admission/podtolerationrestriction`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::status::Status;

use super::always::add_toleration;
use super::resource_quota::best_effort;
use super::{Attributes, Plugin};
use crate::api::{Api, Reader};
use crate::machinery::tree;
use crate::registry::core::namespace::NAMESPACES;

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

/// The plugin.
pub(super) struct PodTolerationRestriction {
    reader: Arc<dyn Reader>,
    api: Api,
    /// Defaults and whitelist of namespaces that say nothing.
    defaults: Vec<Value>,
    whitelist: Vec<Value>,
}

#[async_trait]
impl Plugin for PodTolerationRestriction {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let defaults = self.annotated(a, DEFAULTS).await?.unwrap_or_else(|| self.defaults.clone());
        if let Some(pod) = a.object.as_deref_mut() {
            for toleration in &defaults {
                add_toleration(pod, toleration);
            }
            // Only pods without any requests are kept from nodes that are short of memory.
            if !best_effort(pod) {
                let pressure = "node.kubernetes.io/memory-pressure";
                add_toleration(pod, &json!({"key": pressure, "operator": "Exists", "effect": "NoSchedule"}));
            }
        }
        self.validate(a).await
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let allowed = self.annotated(a, WHITELIST).await?.unwrap_or_else(|| self.whitelist.clone());
        if allowed.is_empty() {
            return Ok(());
        }
        let Some(pod) = a.object() else { return Ok(()) };
        let fits = |t: &Value| allowed.iter().any(|w| covers(w, t));
        if tree::list(pod, "/spec/tolerations").iter().all(fits) {
            return Ok(());
        }
        Err(a.forbidden("pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist"))
    }
}

impl PodTolerationRestriction {
    /// With the defaults and the whitelist of its configuration.
    pub(super) fn new(reader: Arc<dyn Reader>, api: Api, configuration: &Value) -> Self {
        let list = |field: &str| tree::list(configuration, field).to_vec();
        Self { reader, api, defaults: list("/default"), whitelist: list("/whitelist") }
    }

    async fn annotated(&self, a: &Attributes<'_>, key: &str) -> Result<Option<Vec<Value>>, Status> {
        let namespace = match self.reader.get(NAMESPACES, "", a.namespace) {
            Some(namespace) => namespace,
            None => Arc::new(self.api.get(NAMESPACES, "", a.namespace).await?),
        };
        let Some(text) = tree::annotation(&namespace, key) else { return Ok(None) };
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(text).map(Some).map_err(|e| a.forbidden(e.to_string()))
    }
}

/// Reports whether the toleration `wide` tolerates everything that `other` tolerates.
fn covers(wide: &Value, other: &Value) -> bool {
    let field = |t: &Value, f: &str| tree::text(t, f).to_owned();
    let key = field(wide, "/key").is_empty() || field(wide, "/key") == field(other, "/key");
    let effect = field(wide, "/effect").is_empty() || field(wide, "/effect") == field(other, "/effect");
    let seconds = match (tree::int(wide, "/tolerationSeconds"), tree::int(other, "/tolerationSeconds")) {
        (None, _) => true,
        (Some(most), Some(own)) => own <= most,
        (Some(_), None) => false,
    };
    let value = field(wide, "/operator") == "Exists"
        || (field(other, "/operator") != "Exists" && field(wide, "/value") == field(other, "/value"));
    key && effect && seconds && value
}
