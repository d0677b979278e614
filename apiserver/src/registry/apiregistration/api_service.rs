//! APIService. Answers for upstream's `kube-aggregator/pkg/registry/apiservice`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::{CONDITIONAL, METADATA, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CREATE_WITHIN_UPDATE, rules};

pub(crate) const API_SERVICES: GroupResource<'static> = GroupResource::new("apiregistration.k8s.io", "apiservices");

pub(crate) static KIND: KindDefinition = KindDefinition::new(API_SERVICES)
    .strategy(Strategy {
        status_restores: METADATA,
        prepare_create: Some(crate::registry::api_services::prepare_create),
        ..CONDITIONAL
    })
    .rules(
        rules(validation::api_service::service)
            .named(NameRule::PathSegment)
            .changed(CREATE_WITHIN_UPDATE)
            .status(validation::api_service::status),
    )
    .cells(printers::cluster::api_service);
