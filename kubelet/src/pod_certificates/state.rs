//! The way of one projected certificate: asked for, issued, renewed, or refused for good. Pure.
//! Answers for the states of upstream's `podcertificatemanager.go`.

use crate::events::EventType;
use crate::objects::CertificateError;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use shared::cert;

/// A request that is not seen for so long after it was made has been deleted.
pub(super) const ABANDONED: SignedDuration = SignedDuration::from_mins(10);
/// A certificate that was to be renewed so long ago is overdue.
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// Requests that are not there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestMissing {
    /// Just made, and not seen yet.
    #[error("podcertificaterequest.certificates.k8s.io {0:?} not found")]
    NotSeen(String),
    /// Deleted meanwhile.
    #[error("PodCertificateRequest {0:?} appears to have been deleted")]
    Deleted(String),
}

/// A request that was made, with the key that it is for.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// Private key in PEM.
    pub(super) key: String,
    /// Name of the request.
    pub(super) request: String,
    /// Time from which on a request that is not there counts as deleted.
    pub(super) abandon_at: Timestamp,
}

/// A certificate that was issued.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Issued {
    key: String,
    chain: String,
    renew_at: Timestamp,
    ends: Timestamp,
    told_overdue: bool,
    told_expired: bool,
}

/// An event of the pod: its type, reason and message.
pub(super) type Told = (EventType, String, String);

/// The state of one projected certificate.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) enum CertificateState {
    /// Nothing was asked for yet.
    #[default]
    Initial,
    /// The first request is under way.
    Waiting(Asked),
    /// There is a certificate.
    Fresh(Issued),
    /// There is a certificate, and a request for the next one.
    Renewing(Issued, Asked),
    /// Refused for good: the text of the error, and the name of the state in metrics.
    Refused(String, &'static str),
}

/// An outcome of a request.
enum Outcome {
    Pending,
    Issued { chain: String, renew_at: Timestamp, ends: Timestamp },
    Refused { kind: &'static str, reason: String, message: String },
}

impl Outcome {
    fn of(request: &PodCertificateRequest) -> Self {
        let Some(status) = &request.status else { return Self::Pending };
        for condition in status.conditions.iter().flatten() {
            let refused =
                |kind| Self::Refused { kind, reason: condition.reason.clone(), message: condition.message.clone() };
            match condition.type_.as_str() {
                "Denied" => return refused("Denied"),
                "Failed" => return refused("Failed"),
                "Issued" => {
                    let time = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
                        time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
                    };
                    let chain = status.certificate_chain.as_deref().unwrap_or_default();
                    // Comments and headers are not for programs.
                    let chain = cert::certificates(chain.as_bytes()).map(|all| cert::to_pem(&all)).unwrap_or_default();
                    return Self::Issued {
                        chain,
                        renew_at: time(&status.begin_refresh_at),
                        ends: time(&status.not_after),
                    };
                }
                _ => {}
            }
        }
        Self::Pending
    }
}

impl CertificateState {
    /// Private key and chain of certificates, in PEM.
    ///
    /// # Errors
    /// There is none, with upstream's text.
    pub(super) fn bundle(&self) -> Result<(&str, &str), CertificateError> {
        match self {
            Self::Fresh(issued) | Self::Renewing(issued, _) => Ok((&issued.key, &issued.chain)),
            Self::Initial | Self::Waiting(_) => Err(CertificateError::NotIssued),
            Self::Refused(error, _) => Err(CertificateError::Refused(error.clone())),
        }
    }

    /// The name of the state in metrics.
    pub(super) fn metric(&self, now: Timestamp) -> &'static str {
        match self {
            Self::Initial | Self::Waiting(_) => "not_yet_issued",
            Self::Refused(_, name) => name,
            Self::Fresh(issued) | Self::Renewing(issued, _) => match issued {
                issued if now > issued.ends => "expired",
                issued if now > issued.renew_at.saturating_add(OVERDUE).unwrap_or(Timestamp::MAX) => {
                    "overdue_for_refresh"
                }
                _ => "fresh",
            },
        }
    }

    /// Reports whether it is time for a request.
    pub(super) fn wants_request(&self, now: Timestamp) -> bool {
        match self {
            Self::Initial => true,
            Self::Fresh(issued) => now >= issued.renew_at,
            _ => false,
        }
    }

    /// The name of the request that is under way.
    pub(super) fn request(&self) -> Option<&str> {
        match self {
            Self::Waiting(asked) | Self::Renewing(_, asked) => Some(&asked.request),
            _ => None,
        }
    }

    /// A request was made.
    pub(super) fn asked(&mut self, asked: Asked) {
        *self = match std::mem::take(self) {
            Self::Fresh(issued) => Self::Renewing(issued, asked),
            _ => Self::Waiting(asked),
        };
    }

    /// Takes in what has become of the request: none where it is not there. `jitter` keeps pods from renewing all at once.
    ///
    /// # Errors
    /// The request is not there: it has been deleted, and another one is due; or it is not seen yet.
    pub(super) fn observe(
        &mut self,
        request: Option<&PodCertificateRequest>,
        now: Timestamp,
        jitter: SignedDuration,
        tell: &mut dyn FnMut(Told),
    ) -> Result<(), RequestMissing> {
        let (Self::Waiting(asked) | Self::Renewing(_, asked)) = &*self else { return Ok(()) };
        let Some(request) = request else {
            let name = asked.request.clone();
            if now <= asked.abandon_at {
                return Err(RequestMissing::NotSeen(name));
            }
            *self = match std::mem::take(self) {
                Self::Renewing(issued, _) => Self::Fresh(issued),
                _ => Self::Initial,
            };
            return Err(RequestMissing::Deleted(name));
        };
        match Outcome::of(request) {
            Outcome::Pending => {}
            Outcome::Issued { chain, renew_at, ends } => {
                let renew_at = renew_at.saturating_add(jitter).unwrap_or(Timestamp::MAX);
                let key = asked.key.clone();
                *self = Self::Fresh(Issued { key, chain, renew_at, ends, told_overdue: false, told_expired: false });
            }
            Outcome::Refused { kind, reason, message } => {
                let metadata = &request.metadata;
                let name = |text: &Option<String>| text.clone().unwrap_or_default();
                let full_name = format!("{}/{}", name(&metadata.namespace), name(&metadata.name));
                let (was, state) = if kind == "Denied" { ("was denied", "denied") } else { ("failed", "failed") };
                let text = format!("PodCertificateRequest {full_name} {was}, reason={reason:?}, message={message:?}");
                tell((EventType::Warning, kind.to_owned(), text));
                let error =
                    format!("PodCertificateRequest was permanently {state}: reason={reason:?} message={message:?}");
                *self = Self::Refused(error, state);
            }
        }
        Ok(())
    }

    /// Tells once that a certificate was to be renewed long ago, and once that it has ended.
    pub(super) fn warn(&mut self, now: Timestamp, tell: &mut dyn FnMut(Told)) {
        let (Self::Fresh(issued) | Self::Renewing(issued, _)) = self else { return };
        let mut once = |told: &mut bool, is_so: bool, reason: &str, text: &str| {
            if is_so && !std::mem::replace(told, true) {
                tell((EventType::Warning, reason.to_owned(), text.to_owned()));
            }
        };
        let overdue = now > issued.renew_at.saturating_add(OVERDUE).unwrap_or(Timestamp::MAX);
        once(&mut issued.told_overdue, overdue, "CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        once(&mut issued.told_expired, now > issued.ends, "CertificateExpired", "PodCertificate expired");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).expect("a time")
    }

    fn request(condition: &str, fields: Value) -> PodCertificateRequest {
        let mut status = fields;
        status["conditions"] = json!([{"type": condition, "status": "True", "reason": "Why", "message": "said so",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let spec = json!({"signerName": "s/s", "podName": "p", "podUID": "u", "serviceAccountName": "a",
            "serviceAccountUID": "b", "nodeName": "n", "nodeUID": "m", "pkixPublicKey": "", "proofOfPossession": ""});
        let request = json!({"metadata": {"name": "req-1", "namespace": "ns"}, "spec": spec, "status": status});
        serde_json::from_value(request).expect("a request")
    }

    fn issued() -> PodCertificateRequest {
        let authority = rcgen::generate_simple_self_signed(["x".to_owned()]).expect("a certificate");
        request(
            "Issued",
            json!({"certificateChain": format!("noise\n{}", authority.cert.pem()), "notBefore": at(0).to_string(),
            "beginRefreshAt": at(60).to_string(), "notAfter": at(120).to_string()}),
        )
    }

    fn asked(key: &str, minute: i64) -> Asked {
        Asked { key: key.to_owned(), request: "req-1".to_owned(), abandon_at: at(minute) }
    }

    /// Events that a step tells, by their reasons.
    fn told(step: impl FnOnce(&mut dyn FnMut(Told))) -> Vec<String> {
        let mut reasons = Vec::new();
        step(&mut |(_, reason, _)| reasons.push(reason));
        reasons
    }

    #[test]
    fn certificate_is_asked_for_used_and_renewed_while_the_old_one_serves() {
        let mut state = CertificateState::default();
        let none = SignedDuration::ZERO;
        assert!(state.wants_request(at(0)));
        state.asked(asked("first", 10));
        assert!(!state.wants_request(at(99)));
        assert_eq!(state.bundle(), Err(CertificateError::NotIssued));
        state.observe(Some(&request("Other", json!({}))), at(1), none, &mut |_| ()).expect("it is under way");
        assert_eq!((state.metric(at(1)), state.request()), ("not_yet_issued", Some("req-1")));
        state.observe(Some(&issued()), at(1), SignedDuration::from_mins(1), &mut |_| ()).expect("issued");
        let (key, chain) = state.bundle().expect("a bundle");
        assert!(key == "first" && chain.starts_with("-----BEGIN CERTIFICATE-----\n"), "{key} {chain}");
        assert_eq!((state.wants_request(at(60)), state.wants_request(at(61))), (false, true), "with jitter");
        state.asked(asked("second", 75));
        assert_eq!(state.bundle().expect("the old bundle").0, "first");
        state.observe(Some(&issued()), at(62), none, &mut |_| ()).expect("issued");
        assert_eq!(state.bundle().expect("a bundle").0, "second");
    }

    #[test]
    fn request_that_is_gone_is_made_again_and_the_old_certificate_stays() {
        let mut state = CertificateState::default();
        for bundle in [None, Some("key")] {
            state.asked(asked("key", 10));
            let missing = state.observe(None, at(10), SignedDuration::ZERO, &mut |_| ()).expect_err("not seen yet");
            assert_eq!(missing.to_string(), "podcertificaterequest.certificates.k8s.io \"req-1\" not found");
            assert_eq!(state.request(), Some("req-1"));
            let deleted = state.observe(None, at(11), SignedDuration::ZERO, &mut |_| ()).expect_err("deleted");
            assert_eq!(deleted.to_string(), "PodCertificateRequest \"req-1\" appears to have been deleted");
            assert!(state.wants_request(at(61)));
            assert_eq!(state.bundle().ok().map(|(key, _)| key), bundle);
            state.asked(asked("key", 10));
            state.observe(Some(&issued()), at(1), SignedDuration::ZERO, &mut |_| ()).expect("issued");
        }
    }

    #[test]
    fn refusals_are_told_and_final() {
        for (condition, text, metric) in [
            ("Denied", "PodCertificateRequest was permanently denied: reason=\"Why\" message=\"said so\"", "denied"),
            ("Failed", "PodCertificateRequest was permanently failed: reason=\"Why\" message=\"said so\"", "failed"),
        ] {
            let mut state = CertificateState::default();
            state.asked(asked("key", 10));
            let refused = request(condition, json!({}));
            let events = told(|tell| state.observe(Some(&refused), at(1), SignedDuration::ZERO, tell).expect("told"));
            assert_eq!(events, [condition]);
            assert_eq!(state.bundle(), Err(CertificateError::Refused(text.to_owned())));
            assert_eq!((state.metric(at(1)), state.wants_request(at(999))), (metric, false));
        }
    }

    #[test]
    fn certificates_that_nobody_renews_are_told_of_once() {
        let mut state = CertificateState::default();
        state.asked(asked("key", 10));
        state.observe(Some(&issued()), at(1), SignedDuration::ZERO, &mut |_| ()).expect("issued");
        for (minute, metric, events) in [
            (70, "fresh", vec![]),
            (71, "overdue_for_refresh", vec!["CertificateOverdueForRefresh"]),
            (72, "overdue_for_refresh", vec![]),
            (121, "expired", vec!["CertificateExpired"]),
            (122, "expired", vec![]),
        ] {
            assert_eq!(state.metric(at(minute)), metric, "{minute}");
            assert_eq!(told(|tell| state.warn(at(minute), tell)), events, "{minute}");
        }
    }
}
