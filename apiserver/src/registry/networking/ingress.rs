//! Ingress. Answers for upstream's `pkg/registry/networking/ingress`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::strategy::WITH_GENERATION;
use crate::rules::options::{ValidationOption, kept};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::strict_addresses::{AddressRules, ip_at};
use crate::validation::warnings;

pub(crate) const INGRESSES: GroupResource<'static> = GroupResource::new("networking.k8s.io", "ingresses");

pub(crate) static KIND: KindDefinition = KindDefinition::new(INGRESSES)
    .life_cycle(LifeCycle::new().decodes(&["v1beta1"]))
    .addresses(AddressRules::of(&[ip_at("status.loadBalancer.ingress.*.ip").with("status").kept()]))
    .keeps(&[
        kept(ValidationOption::RelaxedServiceNameValidation, &["spec"], validation::networking::has_relaxed_names),
        kept(ValidationOption::InvalidSecretName, &["spec"], validation::networking::has_invalid_secret_names),
        kept(
            ValidationOption::InvalidWildcardHostRule,
            &["spec"],
            validation::networking::has_invalid_wildcard_host_rules,
        ),
    ])
    .strategy(WITH_GENERATION)
    .rules(
        rules(validation::networking::new_ingress)
            .update(validation::networking::ingress_update)
            .changed(&[ObjectMetaUpdate, ObjectMeta, Immutable])
            .status(validation::networking::ingress_status),
    )
    .warns(warnings::networking::ingress)
    .cells(printers::network::ingress);
