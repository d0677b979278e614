//! CertificateSigningRequest. Answers for upstream's `pkg/registry/certificates/certificates`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::text;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CERTIFICATE_REQUESTS, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("certificates.k8s.io", "certificatesigningrequests")
    .strategy(Strategy {
        prepare_create: Some(crate::registry::certificates::prepare_create),
        prepare_update: Some(crate::registry::certificates::prepare_update),
        prepare_status: Some(crate::registry::certificates::prepare_status),
        counts: Some(crate::registry::certificates::issued),
        ..PLAIN
    })
    .rules(
        rules(validation::certificates::request)
            .named(NameRule::PathSegment)
            .update(validation::certificates::request_update)
            .changed(CERTIFICATE_REQUESTS)
            .status(validation::certificates::request_status)
            .status_changed(CERTIFICATE_REQUESTS),
    )
    .cells(printers::policy::signing_request)
    .selectable(&[text("spec.signerName", &["/spec/signerName"])]);
