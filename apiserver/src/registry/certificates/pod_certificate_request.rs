//! PodCertificateRequest. Answers for upstream's `pkg/registry/certificates/podcertificaterequest`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::ownable::except;
use crate::registry::selectable::text;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::validation;
use crate::validation::kind_rules::rules;

pub(crate) const POD_CERTIFICATE_REQUESTS: GroupResource<'static> =
    GroupResource::new("certificates.k8s.io", "podcertificaterequests");

pub(crate) static KIND: KindDefinition = KindDefinition::new(POD_CERTIFICATE_REQUESTS)
    .life_cycle(LifeCycle::new().gate("PodCertificateRequest").introduced(&[("v1beta1", 35)]).fixed_storage())
    // Upstream forgot it there.
    .hides_namespace_label()
    .ownership(|subresource| (subresource == "status").then(|| except(&[&["spec"]])))
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
