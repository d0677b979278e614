//! RoleBinding. Answers for upstream's `pkg/registry/rbac/rolebinding`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const ROLE_BINDINGS: GroupResource<'static> =
    GroupResource::new("rbac.authorization.k8s.io", "rolebindings");

pub(crate) static KIND: KindDefinition = KindDefinition::new(ROLE_BINDINGS)
    .strategy(CREATES_ON_PUT)
    .rules(
        rules(validation::rbac::role_binding)
            .named(NameRule::PathSegment)
            .update(validation::rbac::reference_stays)
            .changed(CREATE_AND_UPDATE),
    )
    .cells(printers::policy::binding);
