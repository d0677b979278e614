//! One webhook of a configuration, and whether it wants to see a request. Answers for upstream's
//! `pkg/admission/plugin/webhook/accessors.go`, `ShouldCallHook`.

use std::sync::Arc;
use std::time::Duration;

use proto::resources::Row;
use serde_json::Value;
use shared::status::Status;

use super::super::NOTHING;
use super::super::matching::MatchRequest;
use crate::machinery::tree;

/// One webhook that wants to see a request, and the version it wants to see it in.
pub(super) struct Hook {
    configuration: Arc<Value>,
    at: usize,
    /// The resource as the webhook's rules know it.
    pub(super) shown: Row,
}

impl Hook {
    /// The webhook at a place in a configuration, if it wants to see the request.
    pub(super) fn matching(
        configuration: &Arc<Value>,
        at: usize,
        scene: &MatchRequest<'_>,
    ) -> Result<Option<Self>, Status> {
        let Some(spec) = tree::list(configuration, "/webhooks").get(at) else { return Ok(None) };
        let rules = tree::list(spec, "/rules");
        let Some(shown) = scene.by_rules(rules, tree::text(spec, "/matchPolicy")) else { return Ok(None) };
        let selected = scene.selected(spec)?;
        Ok(selected.then(|| Self { configuration: configuration.clone(), at, shown }))
    }

    pub(super) fn spec(&self) -> &Value {
        tree::list(&self.configuration, "/webhooks").get(self.at).unwrap_or(NOTHING)
    }

    pub(super) fn name(&self) -> &str {
        tree::text(self.spec(), "/name")
    }

    pub(super) fn configuration_name(&self) -> &str {
        tree::name(&self.configuration)
    }

    /// Tells it from all others.
    pub(super) fn id(&self) -> String {
        format!("{}/{}/{}", self.configuration_name(), self.name(), self.at)
    }

    pub(super) fn has_conditions(&self) -> bool {
        !tree::list(self.spec(), "/matchConditions").is_empty()
    }

    pub(super) fn ignores_failures(&self) -> bool {
        tree::text(self.spec(), "/failurePolicy") == "Ignore"
    }

    pub(super) fn wants_reinvocation(&self) -> bool {
        tree::text(self.spec(), "/reinvocationPolicy") == "IfNeeded"
    }

    /// Reports whether a dry run may call the webhook (`sideEffects`).
    pub(super) fn harmless(&self) -> bool {
        matches!(tree::text(self.spec(), "/sideEffects"), "None" | "NoneOnDryRun")
    }

    pub(super) fn timeout(&self) -> Duration {
        let seconds = tree::int(self.spec(), "/timeoutSeconds").unwrap_or(10).clamp(1, 30);
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// `v1`, or `v1beta1` for a webhook that knows nothing newer.
    pub(super) fn review_version(&self) -> &'static str {
        let known = tree::strings(self.spec(), "/admissionReviewVersions");
        match known.iter().find(|v| matches!(v.as_str(), "v1" | "v1beta1")).map(String::as_str) {
            Some("v1beta1") => "v1beta1",
            _ => "v1",
        }
    }
}
