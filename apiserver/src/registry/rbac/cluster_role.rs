//! ClusterRole. Answers for upstream's `pkg/registry/rbac/clusterrole`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::rules::names::NameRule;
use crate::rules::options::{ValidationOption, kept};
use crate::rules::tree;
use crate::validation;
use crate::validation::kind_rules::{self, rules};

pub(crate) const CLUSTER_ROLES: GroupResource<'static> =
    GroupResource::new("rbac.authorization.k8s.io", "clusterroles");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CLUSTER_ROLES)
    .keeps(&[kept(ValidationOption::InvalidLabelValueInSelector, &["aggregationRule"], |rule| {
        tree::list(rule, "clusterRoleSelectors").iter().any(validation::selectors::is_invalid)
    })])
    .strategy(CREATES_ON_PUT)
    .rules(rules(validation::rbac::cluster_role).named(NameRule::PathSegment).changed(kind_rules::CLUSTER_ROLES));
