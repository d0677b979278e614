//! Deletes certificate requests of pods when they are old: they live for minutes. Answers for
//! `podcertificaterequest-cleaner`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

const NAME: &str = "podcertificaterequest-cleaner";
/// Older requests were answered or never will be.
const AGE: SignedDuration = SignedDuration::from_mins(15);
const EVERY: Duration = Duration::from_mins(1);

/// Wire the cleaner of pod certificate requests.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("PodCertificateRequest") {
            return Ok(Started::Skipped);
        }
        let Some(requests) = cx.served::<PodCertificateRequest>().await? else { return Ok(Started::Skipped) };
        let executor = Arc::new(cx.executor(NAME, NAME));
        let store = requests.store();
        cx.every(NAME, EVERY, move || {
            let (executor, old) = (Arc::clone(&executor), store.list());
            async move {
                for request in old.iter().filter(|r| expired(&r.metadata, clock::now())) {
                    match executor.one(Action::delete::<PodCertificateRequest>(&request.metadata)).await {
                        Err(e) if !e.not_found() => {
                            tracing::warn!(controller = NAME, request = %Key::of(&request.metadata), error = %e, "not deleted");
                        }
                        _ => {}
                    }
                }
            }
        });
        Ok(Started::Yes)
    })
}

fn expired(meta: &ObjectMeta, now: Timestamp) -> bool {
    now.duration_since(object::created(meta)) > AGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_quarter_of_an_hour() {
        let made: ObjectMeta =
            serde_json::from_value(serde_json::json!({"creationTimestamp": "2026-01-01T00:00:00Z"})).expect("meta");
        for (now, want) in [("2026-01-01T00:14:59Z", false), ("2026-01-01T00:15:01Z", true)] {
            assert_eq!(expired(&made, now.parse().expect("time")), want, "{now}");
        }
    }
}
