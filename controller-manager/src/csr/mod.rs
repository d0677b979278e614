//! Certificate signing requests: approves kubelets', signs what is approved, sweeps out what is old. Answers for
//! upstream's `pkg/controller/certificates/{approver`,cleaner,signer}.

pub mod authority;
mod certificate;
pub mod request;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use parking_lot::Mutex;
use shared::informer::{Event, Informer, Store};
use shared::workqueue::Queue;

use self::authority::{Authority, AuthorityError};
use self::request::{APISERVER_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, Request};
use crate::engine::action::{Action, body};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::settings::KeyPairFiles;
use crate::engine::worker::{self, Synced};

type Csr = CertificateSigningRequest;

const ACCOUNT: &str = "certificate-controller";
const SWEEP: Duration = Duration::from_hours(1);
/// No certificate is asked to serve for less.
const SHORTEST: Duration = Duration::from_mins(10);
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

/// The controllers of requests have a queue each, and one name for all.
fn queue() -> Queue<Key> {
    Queue::with_backoff("certificate", Duration::from_millis(200), Duration::from_secs(1000))
}

fn parse(csr: &Csr) -> Result<Request, RestError> {
    let name = object::name(&csr.metadata);
    request::parse(&csr.spec.request.0).map_err(|e| RestError::other(format!("unable to parse csr {name:?}: {e}")))
}

/// Returns the lifetime of a certificate: as requested, within limits.
fn lifetime(asked: Option<i32>, longest: Duration) -> Duration {
    let Some(asked) = asked else { return longest };
    let asked = Duration::from_secs(u64::try_from(asked).unwrap_or(0));
    if asked > longest { longest } else { asked.max(SHORTEST) }
}

struct Approver {
    executor: Executor,
    requests: Store<Csr>,
}

/// Wire the approving controller.
pub fn start_approving(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let requests = cx.informer::<Csr>();
        let queue = queue();
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
        if decided || issued(&csr) {
            return Ok(None);
        }
        let parsed = parse(&csr)?;
        if csr.spec.signer_name != KUBELET_CLIENT
            || parsed.check_kubelet_client(csr.spec.usages.as_deref().unwrap_or_default()).is_err()
        {
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
        let tried = if own { "selfnodeclient nodeclient" } else { "nodeclient" };
        let (name, why) = (&key.name, "but subject access review was not approved");
        Err(RestError::other(format!("recognized csr {name:?} as [{tried}] {why}")))
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
    authorities: Vec<Named>,
    ttl: Duration,
}

/// The authority of a signer.
struct Named {
    signer: &'static str,
    files: KeyPairFiles,
    /// Authority as read last, for as long as the files are being replaced.
    last: Mutex<Arc<Authority>>,
}

impl Named {
    async fn load(signer: &'static str, files: &KeyPairFiles) -> Result<Self, AuthorityError> {
        let last = Authority::load(&files.cert, &files.key).await?;
        Ok(Self { signer, files: files.clone(), last: Mutex::new(Arc::new(last)) })
    }

    /// The authority of today: its files may be replaced at any time.
    async fn current(&self) -> Arc<Authority> {
        match Authority::load(&self.files.cert, &self.files.key).await {
            Ok(now) => *self.last.lock() = Arc::new(now),
            Err(error) => tracing::warn!(signer = self.signer, %error, "signing with the authority of before"),
        }
        Arc::clone(&self.last.lock())
    }
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
                authorities.push(Named::load(signer, pair).await.map_err(RestError::other)?);
            }
        }
        if authorities.is_empty() {
            return Ok(Started::Skipped);
        }
        let requests = cx.informer::<Csr>();
        let queue = queue();
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
        let Some(named) = self.authorities.iter().find(|named| named.signer == csr.spec.signer_name) else {
            return Ok(None);
        };
        let mut copy = Csr::clone(&csr);
        let wanted = csr.spec.usages.clone().unwrap_or_default();
        let (ttl, now) = (lifetime(csr.spec.expiration_seconds, self.ttl), clock::now());
        let asked = parse(&csr)?;
        match asked.check(named.signer, &wanted) {
            Ok(()) => {
                let signed = named.current().await.sign(&asked, &wanted, ttl, now);
                let pem = signed.map_err(|e| RestError::other(format!("error auto signing csr: {e}")))?;
                copy.status.get_or_insert_default().certificate = Some(ByteString(pem.into_bytes()));
            }
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

/// Reports whether a request has served its purpose, or never will. One whose certificate cannot be read stays.
#[must_use]
pub fn stale(csr: &Csr, now: Timestamp) -> bool {
    let Ok(expired) = expired(csr, now) else { return false };
    let conditions: Vec<_> = csr.status.iter().flat_map(|s| s.conditions.iter().flatten()).collect();
    let older =
        |since: Option<Timestamp>, seconds: i64| since.is_some_and(|s| now.as_second() - s.as_second() > seconds);
    let served = conditions.iter().any(|c| {
        let since = c.last_update_time.as_ref().map(|t| t.0);
        match c.type_.as_str() {
            "Approved" => issued(csr) && (expired || older(since, KEEP_DONE)),
            "Denied" | "Failed" => older(since, KEEP_DONE),
            _ => false,
        }
    });
    let made = csr.metadata.creation_timestamp.as_ref().map(|t| t.0);
    served || (conditions.is_empty() && older(made, KEEP_PENDING))
}

/// Reports whether the certificate has expired.
fn expired(csr: &Csr, now: Timestamp) -> Result<bool, ()> {
    if !issued(csr) {
        return Ok(false);
    }
    let pem = csr.status.as_ref().and_then(|s| s.certificate.as_ref()).ok_or(())?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem.0).map_err(|_| ())?;
    let certificate = block.parse_x509().map_err(|_| ())?;
    Ok(certificate.validity().not_after.timestamp() < now.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A certificate that serves from one year to another.
    fn certificate(from: i32, to: i32) -> Value {
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let made = params.self_signed(&rcgen::KeyPair::generate().expect("key")).expect("certificate");
        json!(ByteString(made.pem().into_bytes()))
    }

    #[test]
    fn what_is_swept_out() {
        let now = "2026-01-02T00:00:00Z".parse().expect("time");
        let with = |kind: &str, at: &str, certificate: &Value| json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": at}], "certificate": certificate});
        let (lately, before) = ("2026-01-01T23:30:00Z", "2026-01-01T22:30:00Z");
        let (none, good, over) = (Value::Null, certificate(2020, 2030), certificate(2020, 2025));
        for (name, created, status, want) in [
            ("pending", "2026-01-01T12:00:00Z", json!({}), false),
            ("pending for a day", "2025-12-31T12:00:00Z", json!({}), true),
            ("denied lately", "2025-12-01T00:00:00Z", with("Denied", lately, &none), false),
            ("denied long ago", "2025-12-01T00:00:00Z", with("Denied", before, &none), true),
            ("failed long ago", "2025-12-01T00:00:00Z", with("Failed", before, &none), true),
            ("something else", "2025-12-01T00:00:00Z", with("Example", before, &none), false),
            ("issued lately", "2025-12-01T00:00:00Z", with("Approved", lately, &good), false),
            ("issued long ago", "2025-12-01T00:00:00Z", with("Approved", before, &good), true),
            ("issued and over", "2025-12-01T00:00:00Z", with("Approved", lately, &over), true),
            ("over, and not approved", "2025-12-01T00:00:00Z", with("Example", lately, &over), false),
            ("no certificate", "2025-12-01T00:00:00Z", with("Approved", before, &json!("eA==")), false),
            ("approved, not issued", "2025-12-01T00:00:00Z", with("Approved", before, &none), false),
        ] {
            let csr: Csr = serde_json::from_value(json!({"metadata": {"name": "c", "creationTimestamp": created},
                "spec": {"request": "", "signerName": KUBELET_CLIENT}, "status": status}))
            .expect("csr");
            assert_eq!(stale(&csr, now), want, "{name}");
        }
    }

    #[tokio::test]
    async fn an_authority_is_replaced_under_way() {
        let directory = std::env::temp_dir().join(format!("authority-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = |name: &str| directory.join(name).to_str().expect("text").to_owned();
        let files = KeyPairFiles { cert: path("ca.crt"), key: path("ca.key") };
        let put = |year: i32| {
            let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("key");
            std::fs::write(&files.cert, params.self_signed(&key).expect("certificate").pem()).expect("written");
            std::fs::write(&files.key, key.serialize_pem()).expect("written");
        };
        put(2040);
        let named = Named::load(LEGACY, &files).await.expect("authority");
        let first = named.current().await;
        put(2041);
        assert!(named.current().await.not_after() > first.not_after());
        let other = rcgen::KeyPair::generate().expect("key").serialize_pem();
        for key in ["half", &other] {
            std::fs::write(&files.key, key).expect("written");
            assert!(named.current().await.not_after() > first.not_after(), "the last good one");
        }
        assert!(Authority::load(&files.cert, &files.key).await.is_err(), "they are no pair");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn lifetimes() {
        let hour = Duration::from_hours(1);
        for (asked, longest, want) in [
            (None, hour, hour),
            (Some(7200), hour, hour),
            (Some(1800), hour, Duration::from_mins(30)),
            (Some(60), hour, SHORTEST),
            (Some(-1), hour, SHORTEST),
            (Some(120), Duration::from_mins(1), Duration::from_mins(1)),
        ] {
            assert_eq!(lifetime(asked, longest), want, "{asked:?}");
        }
    }
}
