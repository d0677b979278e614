//! PodTolerationRestriction: a namespace's annotations give its pods default tolerations and say which ones
//! they may have.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use shared::status::Status;

use super::always::add_toleration;
use super::{Attributes, Operation, Plugin};
use crate::access::tree;
use crate::api::Reader;

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const WHITELIST: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

/// The plugin.
pub struct PodTolerationRestriction {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }

    fn mutates(&self) -> bool {
        true
    }

    fn validates(&self) -> bool {
        true
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !a.is("", "pods") {
            return Ok(());
        }
        let defaults = self.annotated(a, DEFAULTS)?;
        if let Some(pod) = a.object.as_deref_mut() {
            for toleration in defaults.iter().flatten() {
                add_toleration(pod, toleration);
            }
        }
        self.validate(a).await
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if !a.is("", "pods") {
            return Ok(());
        }
        let Some(allowed) = self.annotated(a, WHITELIST)?.filter(|l| !l.is_empty()) else { return Ok(()) };
        let Some(pod) = a.object() else { return Ok(()) };
        let fits = |t: &Value| allowed.iter().any(|w| covers(w, t));
        if tree::list(pod, "/spec/tolerations").iter().all(fits) {
            return Ok(());
        }
        Err(a.forbidden("pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist"))
    }
}

impl PodTolerationRestriction {
    fn annotated(&self, a: &Attributes<'_>, key: &str) -> Result<Option<Vec<Value>>, Status> {
        let namespace = self.reader.get("", "namespaces", "", a.namespace);
        let Some(text) = namespace.as_deref().and_then(|n| tree::annotation(n, key)) else { return Ok(None) };
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(text).map(Some).map_err(|e| a.forbidden(e.to_string()))
    }
}

/// Whether everything `other` tolerates, `wide` tolerates too.
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
