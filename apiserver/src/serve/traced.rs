//! The audit trail of a request, to its end. Answers for upstream's `WithAudit`.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use bytes::Bytes;

use crate::audit::Trail;

/// Audit trail of a request, completed also when its client goes away before the response.
pub(super) struct AuditGuard(pub(super) Option<Trail>);

impl Drop for AuditGuard {
    fn drop(&mut self) {
        if let Some(trail) = self.0.take() {
            trail.complete_later();
        }
    }
}

/// Writes down how a request ended; for one that goes on, that it began, and how it ends when it does.
pub(super) async fn complete_audit(mut trail: Trail, response: HttpResponse) -> HttpResponse {
    trail.answered(response.status().as_u16());
    if trail.is_long_running() {
        trail.started().await;
    }
    if trail.is_long_running() && response.status().as_u16() < 400 {
        return response.map_body(|_, body| BoxBody::new(Traced { body, trail: Some(trail) }));
    }
    trail.completed().await;
    response
}

/// Awaits the work on a response and catches its panic. The future stays in place, because it is large.
pub(super) async fn catch_panic(mut work: Pin<&mut impl Future<Output = HttpResponse>>) -> Result<HttpResponse, Panic> {
    let polled = std::future::poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| work.as_mut().poll(cx));
        match std::panic::catch_unwind(poll) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(Panic(panic))),
        }
    });
    polled.await
}

/// Payload of a panic, which leaves the request without a response.
pub(super) struct Panic(Box<dyn Any + Send>);

impl Panic {
    /// Writes it down, and goes on with it: the connection ends.
    pub(super) async fn pass(self, kept: &mut AuditGuard) -> ! {
        let why = shared::run::panic_text(&*self.0).unwrap_or("unknown");
        if let Some(trail) = kept.0.take() {
            trail.panicked(why).await;
        }
        std::panic::resume_unwind(self.0)
    }
}

/// A body that says when it has ended, or when nobody reads it any more.
struct Traced {
    body: BoxBody,
    trail: Option<Trail>,
}

impl MessageBody for Traced {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(trail) = self.trail.take() {
            trail.complete_later();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures::FutureExt as _;
    use serde_json::{Value, json};
    use shared::authz::Attributes;
    use shared::flags::FlagSet;
    use shared::run::{Shutdown, TaskGroup};

    use super::*;
    use crate::audit::{Audit, Origin};
    use crate::egress::Egress;

    #[tokio::test]
    async fn panic_is_audited_and_resumed() {
        let path = |what: &str| std::env::temp_dir().join(format!("{what}-{}", uuid::Uuid::new_v4()));
        let (policy, log) = (path("policy"), path("log"));
        let rules = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
        std::fs::write(&policy, rules).expect("written");
        let flags = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
            "--audit-log-mode=blocking".to_owned(),
        ];
        let flags = FlagSet::of("kube-apiserver", &flags.each_ref().map(String::as_str)).expect("flags");
        let (tasks, shutdown) = (TaskGroup::new(), Shutdown::new());
        let audit = Audit::from_flags(&flags, &Egress::default(), &tasks, &shutdown).await.expect("flags");
        let headers = http::HeaderMap::new();
        let origin = Origin { audit_id: "1", uri: "/x", headers: &headers, peer: None, long_running: false };
        let trail = audit.expect("wanted").begin(&Attributes::default(), &origin);
        let mut kept = AuditGuard(trail);
        let work = async { std::panic::resume_unwind(Box::new("an index")) };
        let panic = catch_panic(pin!(work)).await.expect_err("a panic");
        assert!(AssertUnwindSafe(panic.pass(&mut kept)).catch_unwind().await.is_err());
        assert!(catch_panic(pin!(async { HttpResponse::Ok().finish() })).await.is_ok());
        tasks.drain(Duration::from_secs(5)).await;
        let text = std::fs::read_to_string(&log).expect("a log");
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let want = json!({"metadata": {}, "status": "Failure", "message": "APIServer panic'd: an index",
            "reason": "InternalError", "code": 500});
        assert_eq!((events.len(), &events[0]["stage"], &events[0]["responseStatus"]), (1, &json!("Panic"), &want));
        for path in [policy, log] {
            std::fs::remove_file(path).expect("removed");
        }
    }
}
