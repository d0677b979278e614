//! ClusterRoleBinding. Answers for upstream's `pkg/registry/rbac/clusterrolebinding`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CLUSTER_ROLES, rules};

pub(crate) const CLUSTER_ROLE_BINDINGS: GroupResource<'static> =
    GroupResource::new("rbac.authorization.k8s.io", "clusterrolebindings");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CLUSTER_ROLE_BINDINGS)
    .strategy(CREATES_ON_PUT)
    .rules(
        rules(validation::rbac::cluster_role_binding)
            .named(NameRule::PathSegment)
            .update(validation::rbac::reference_stays)
            .changed(CLUSTER_ROLES),
    )
    .cells(printers::policy::binding);
