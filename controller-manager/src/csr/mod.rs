//! Certificate signing requests: approves kubelets', signs what is approved, sweeps out what is old.

pub mod authority;
pub mod der;
pub mod request;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use shared::informer::{Event, Informer, Store};
use shared::workqueue::Queue;

use self::authority::Authority;
use self::request::{APISERVER_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY};
use crate::engine::action::{Action, body};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

type Csr = CertificateSigningRequest;

const ACCOUNT: &str = "certificate-controller";
const SWEEP: Duration = Duration::from_hours(1);
const KEEP_DONE: i64 = 3600;
const KEEP_PENDING: i64 = 24 * 3600;

fn condition<'a>(csr: &'a Csr, kind: &str) -> Option<&'a CertificateSigningRequestCondition> {
    csr.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

fn issued(csr: &Csr) -> bool {
    csr.status.as_ref().and_then(|s| s.certificate.as_ref()).is_some_and(|c| !c.0.is_empty())
}

fn add(csr: &mut Csr, kind: &str, reason: &str, message: String, now: Timestamp) {
    let time = Some(object::seconds(now));
    csr.status.get_or_insert_default().conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: kind.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: time.clone(),
        last_transition_time: time,
    });
}

fn watch(informer: &Informer<Csr>, queue: &Queue<Key>) {
    let wake = queue.clone();
    informer.add_handler(move |event: &Event<Csr>| {
        if !matches!(event, Event::Deleted(_)) {
            wake.add(Key::of(&event.object().metadata));
        }
    });
}

struct Approver {
    executor: Executor,
    requests: Store<Csr>,
}

/// Wire the approving controller.
pub fn start_approving(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let requests = cx.informer::<Csr>();
        let queue: Queue<Key> =
            Queue::with_backoff("certificate_csrapproving", Duration::from_millis(200), Duration::from_secs(1000));
        let this = Arc::new(Approver { executor: cx.executor(ACCOUNT, ACCOUNT), requests: requests.store() });
        watch(&requests, &queue);
        worker::run(cx, "csrapproving", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Approver {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(csr) = self.requests.get("", &key.name) else { return Ok(None) };
        let decided = condition(&csr, "Approved").is_some() || condition(&csr, "Denied").is_some();
        if decided || issued(&csr) || csr.spec.signer_name != KUBELET_CLIENT {
            return Ok(None);
        }
        let Ok(parsed) = request::parse(&csr.spec.request.0) else { return Ok(None) };
        if parsed.check_kubelet_client(csr.spec.usages.as_deref().unwrap_or_default()).is_err() {
            return Ok(None);
        }
        let own = csr.spec.username.as_deref() == Some(parsed.common_name.as_str());
        let mut tries = vec![("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")];
        if own {
            tries.insert(
                0,
                ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
            );
        }
        for (subresource, message) in tries {
            if self.allowed(&csr, subresource).await? {
                let mut copy = Csr::clone(&csr);
                add(&mut copy, "Approved", "AutoApproved", message.into(), clock::now());
                return self.executor.one(Action::update_sub(&copy, "approval")).await.map(|()| None);
            }
        }
        Err(RestError::other(format!(
            "recognized csr {:?} as {:?} but subject access review was not approved",
            key.name,
            ["selfnodeclient", "nodeclient"]
        )))
    }

    async fn allowed(&self, csr: &Csr, subresource: &str) -> Result<bool, RestError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: csr.spec.username.clone(),
                uid: csr.spec.uid.clone(),
                groups: csr.spec.groups.clone(),
                extra: csr.spec.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("certificates.k8s.io".into()),
                    resource: Some("certificatesigningrequests".into()),
                    verb: Some("create".into()),
                    subresource: Some(subresource.into()),
                    version: Some("*".into()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.executor.rest.post_whole(&SubjectAccessReview::url_path(&(), None), &body(&review)).await?;
        Ok(answer["status"]["allowed"] == true)
    }
}

struct Signer {
    executor: Executor,
    requests: Store<Csr>,
    /// By signer name.
    authorities: Vec<(&'static str, Authority)>,
    ttl: Duration,
}

/// Wire the signing controller.
pub fn start_signing(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let files = &cx.settings().signing;
        let pairs = [
            (KUBELET_SERVING, &files.kubelet_serving),
            (KUBELET_CLIENT, &files.kubelet_client),
            (APISERVER_CLIENT, &files.apiserver_client),
            (LEGACY, &files.legacy_unknown),
        ];
        let mut authorities = Vec::new();
        for (signer, own) in pairs {
            let pair = if own.given() { own } else { &files.default };
            if pair.given() {
                authorities.push((signer, Authority::load(&pair.cert, &pair.key).await.map_err(RestError::other)?));
            }
        }
        if authorities.is_empty() {
            return Ok(Started::Skipped);
        }
        let requests = cx.informer::<Csr>();
        let queue: Queue<Key> =
            Queue::with_backoff("certificate_csrsigning", Duration::from_millis(200), Duration::from_secs(1000));
        let this = Arc::new(Signer {
            executor: cx.executor(ACCOUNT, ACCOUNT),
            requests: requests.store(),
            authorities,
            ttl: files.duration,
        });
        watch(&requests, &queue);
        worker::run(cx, "csrsigning", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Signer {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(csr) = self.requests.get("", &key.name) else { return Ok(None) };
        let approved = condition(&csr, "Approved").is_some() && condition(&csr, "Denied").is_none();
        if !approved || condition(&csr, "Failed").is_some() || issued(&csr) {
            return Ok(None);
        }
        let Some((signer, authority)) = self.authorities.iter().find(|(name, _)| *name == csr.spec.signer_name) else {
            return Ok(None);
        };
        let mut copy = Csr::clone(&csr);
        let wanted = csr.spec.usages.clone().unwrap_or_default();
        let asked = csr.spec.expiration_seconds.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
        let ttl = asked.map_or(self.ttl, |a| a.min(self.ttl));
        let now = clock::now();
        let signed = request::parse(&csr.spec.request.0)
            .and_then(|r| r.check(signer, &wanted).map(|()| r))
            .and_then(|r| authority.sign(&r, &wanted, ttl, now));
        match signed {
            Ok(pem) => copy.status.get_or_insert_default().certificate = Some(ByteString(pem.into_bytes())),
            Err(e) => add(&mut copy, "Failed", "SignerValidationFailure", e.to_string(), now),
        }
        self.executor.one(Action::update_status(&copy)).await.map(|()| None)
    }
}

/// Wire the cleaner.
pub fn start_cleaning(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let requests = cx.informer::<Csr>().store();
        let executor = cx.executor(ACCOUNT, ACCOUNT);
        cx.every("csrcleaner", SWEEP, move || {
            let (executor, all) = (executor.clone(), requests.list());
            async move {
                for csr in all.iter().filter(|c| stale(c, clock::now())) {
                    if let Err(error) = executor.one(Action::delete::<Csr>(&csr.metadata)).await {
                        tracing::warn!(csr = object::name(&csr.metadata), %error, "not removed");
                    }
                }
            }
        });
        Ok(Started::Yes)
    })
}

/// Whether a request has served its purpose, or never will.
#[must_use]
pub fn stale(csr: &Csr, now: Timestamp) -> bool {
    let conditions = csr.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let mut pending = true;
    for c in conditions {
        let since = c.last_update_time.as_ref().map_or(now, |t| t.0);
        let age = now.as_second() - since.as_second();
        let done = match c.type_.as_str() {
            "Approved" => {
                pending = false;
                issued(csr) && age > KEEP_DONE
            }
            "Denied" | "Failed" => {
                pending = false;
                age > KEEP_DONE
            }
            _ => false,
        };
        if done {
            return true;
        }
    }
    let age = now.as_second() - object::created(&csr.metadata).as_second();
    (pending && age > KEEP_PENDING) || expired(csr, now)
}

fn expired(csr: &Csr, now: Timestamp) -> bool {
    let Some(pem) = csr.status.as_ref().and_then(|s| s.certificate.as_ref()) else { return false };
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(&pem.0) else { return false };
    block.parse_x509().is_ok_and(|c| c.validity().not_after.timestamp() < now.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_is_swept_out() {
        let now = "2026-01-02T00:00:00Z".parse().expect("time");
        let with = |kind: &str, at: &str, certificate: Value| json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": at}], "certificate": certificate});
        for (name, created, status, want) in [
            ("pending", "2026-01-01T12:00:00Z", json!({}), false),
            ("pending for a day", "2025-12-31T12:00:00Z", json!({}), true),
            ("denied lately", "2025-12-01T00:00:00Z", with("Denied", "2026-01-01T23:30:00Z", Value::Null), false),
            ("denied long ago", "2025-12-01T00:00:00Z", with("Denied", "2026-01-01T22:30:00Z", Value::Null), true),
            ("issued", "2025-12-01T00:00:00Z", with("Approved", "2026-01-01T22:30:00Z", json!("eA==")), true),
            (
                "approved, not issued",
                "2025-12-01T00:00:00Z",
                with("Approved", "2026-01-01T22:30:00Z", Value::Null),
                false,
            ),
        ] {
            let csr: Csr = serde_json::from_value(json!({"metadata": {"name": "c", "creationTimestamp": created},
                "spec": {"request": "", "signerName": KUBELET_CLIENT}, "status": status}))
            .expect("csr");
            assert_eq!(stale(&csr, now), want, "{name}");
        }
    }
}
