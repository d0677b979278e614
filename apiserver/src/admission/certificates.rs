//! The certificate plugins: who may approve, sign and attest for a signer, and which subjects may be asked for. Answers
//! for upstream's `plugin/pkg/admission/certificates`.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use serde_json::Value;
use shared::authz;
use shared::status::{Status, field};
use x509_parser::prelude::{FromDer as _, X509Name};

use super::{Attributes, Operation, Plugin};
use crate::authz::Authorization;
use crate::machinery::tree;
use crate::registry::certificates::certificate_signing_request::CERTIFICATE_SIGNING_REQUESTS;
use crate::registry::certificates::cluster_trust_bundle::CLUSTER_TRUST_BUNDLES;
use crate::registry::certificates::pod_certificate_request::POD_CERTIFICATE_REQUESTS;

const GROUP: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Reports whether a user has a verb on a signer: by its name, or by `domain/*`.
async fn may(authorization: &Authorization, a: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or("");
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let question = authz::Attributes {
            user: a.user.clone(),
            verb: verb.to_owned(),
            api_group: GROUP.to_owned(),
            api_version: "*".to_owned(),
            resource: "signers".to_owned(),
            name,
            resource_request: true,
            ..authz::Attributes::default()
        };
        if authorization.allows(&question).await {
            return true;
        }
    }
    false
}

/// CertificateApproval, CertificateSigning or ClusterTrustBundleAttest.
pub(super) struct SignerPermission {
    verb: &'static str,
    what: &'static str,
    authorization: Arc<Authorization>,
}

impl SignerPermission {
    /// Approving requests.
    pub(super) fn approval(authorization: Arc<Authorization>) -> SignerPermission {
        SignerPermission { verb: "approve", what: "approve requests with", authorization }
    }

    /// Signing requests.
    pub(super) fn signing(authorization: Arc<Authorization>) -> SignerPermission {
        SignerPermission { verb: "sign", what: "sign requests with", authorization }
    }

    /// Writing trust bundles.
    pub(super) fn attest(authorization: Arc<Authorization>) -> SignerPermission {
        SignerPermission { verb: "attest", what: "attest for", authorization }
    }

    fn concerns(&self, a: &Attributes<'_>) -> bool {
        let request = a.of(CERTIFICATE_SIGNING_REQUESTS) && a.operation == Operation::Update;
        match self.verb {
            "approve" => request && a.subresource == "approval",
            "sign" => request && a.subresource == "status",
            _ => a.is(CLUSTER_TRUST_BUNDLES),
        }
    }
}

impl SignerPermission {
    /// Requires the right to sign of whoever sets a pod certificate request's chain. Upstream's text reads as if the
    /// object were invalid.
    async fn chain(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let null = Value::Null;
        let (new, old) = (a.object().unwrap_or(&null), a.old_object.unwrap_or(&null));
        let chain = |object| tree::text(object, "/status/certificateChain").to_owned();
        let signer = tree::text(old, "/spec/signerName");
        if chain(new) == chain(old) || may(&self.authorization, a, "sign", signer).await {
            return Ok(());
        }
        let why = format!("User {:?} is not permitted to \"sign\" for signer {signer:?}", a.user.name);
        let error = field::Error::forbidden(field::Path::of(&["spec", "signerName"]), &why);
        Err(Status::invalid(GROUP, &a.resource.kind, tree::name(new), [error]))
    }
}

#[async_trait]
impl Plugin for SignerPermission {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if self.verb == "sign" && a.of(POD_CERTIFICATE_REQUESTS) && a.subresource == "status" {
            return self.chain(a).await;
        }
        if !self.concerns(a) {
            return Ok(());
        }
        let null = Value::Null;
        let (new, old) = (a.object().unwrap_or(&null), a.old_object.unwrap_or(&null));
        let same = |field: &str| new.pointer(field) == old.pointer(field);
        if self.verb == "sign" && same("/status/certificate") && same("/status/conditions") {
            return Ok(());
        }
        if self.verb == "attest" && a.operation == Operation::Update && same("/spec") {
            return Ok(());
        }
        let from = if a.operation == Operation::Update { old } else { new };
        let signer = tree::text(from, "/spec/signerName");
        if (self.verb == "attest" && signer.is_empty()) || may(&self.authorization, a, self.verb, signer).await {
            return Ok(());
        }
        Err(a.forbidden(format!("user not permitted to {} signerName {signer:?}", self.what)))
    }
}

/// Refuses requests to the client signer for the group `system:masters`.
pub(super) struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(request) = a.object().filter(|_| a.is(CERTIFICATE_SIGNING_REQUESTS)) else { return Ok(()) };
        if tree::text(request, "/spec/signerName") != CLIENT_SIGNER {
            return Ok(());
        }
        match organizations(tree::text(request, "/spec/request")) {
            None => Err(a.forbidden("failed to parse CSR: PEM block type must be CERTIFICATE REQUEST")),
            Some(groups) if groups.iter().any(|g| g == "system:masters") => {
                Err(a.forbidden(format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed")))
            }
            Some(_) => Ok(()),
        }
    }
}

/// The organisations of a certificate request given as base64 of PEM; all of them, or what it asks for is not known.
fn organizations(request: &str) -> Option<Vec<String>> {
    with_subject(request, |s| s.iter_organization().map(|o| o.as_str().ok().map(str::to_owned)).collect())?
}

/// The common name of a certificate request given as base64 of PEM.
pub(super) fn common_name(request: &str) -> Option<String> {
    with_subject(request, |s| shared::authn::common_name(s).to_owned())
}

fn with_subject<T>(request: &str, read: impl FnOnce(&X509Name<'_>) -> T) -> Option<T> {
    let pem = base64::engine::general_purpose::STANDARD.decode(request).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    if pem.label != "CERTIFICATE REQUEST" {
        return None;
    }
    let (_, csr) = x509_parser::certification_request::X509CertificationRequest::from_der(&pem.contents).ok()?;
    Some(read(&csr.certification_request_info.subject))
}
