//! PodCertificateRequest. Answers for upstream's `pkg/registry/certificates/podcertificaterequest`.

use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::text;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("certificates.k8s.io", "podcertificaterequests")
    .strategy(Strategy {
        status_restores: METADATA,
        prepare_status: Some(crate::registry::certificates::prepare_pod_status),
        ..CONDITIONAL
    })
    .rules(
        rules(validation::pod_certificate::request)
            .update_only(validation::pod_certificate::request_update)
            .status(validation::issuance::status),
    )
    .cells(printers::policy::pod_certificate_request)
    .selectable(&[
        text("spec.signerName", &["/spec/signerName"]),
        text("spec.podName", &["/spec/podName"]),
        text("spec.nodeName", &["/spec/nodeName"]),
    ]);
