//! CertificateSigningRequest. Answers for upstream's `pkg/registry/certificates/certificates`.

use proto::merge::apply::Ownable;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::ownable::except;
use crate::registry::selectable::text;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CERTIFICATE_REQUESTS, rules};

pub(crate) const CERTIFICATE_SIGNING_REQUESTS: GroupResource<'static> =
    GroupResource::new("certificates.k8s.io", "certificatesigningrequests");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CERTIFICATE_SIGNING_REQUESTS)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .ownership(ownable)
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

/// Fields of a request: its specification never changes, and approvers and signers have a part of the status each.
fn ownable(subresource: &str) -> Option<Ownable> {
    Some(match subresource {
        "approval" => except(&[&["spec"], &["status", "certificate"]]),
        "status" => except(&[&["spec"], &["status", "conditions"]]),
        _ => except(&[&["spec"], &["status"]]),
    })
}
