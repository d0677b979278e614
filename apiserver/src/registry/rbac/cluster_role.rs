//! ClusterRole. Answers for upstream's `pkg/registry/rbac/clusterrole`.

use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CLUSTER_ROLES, rules};

/// The kind.
pub(crate) static KIND: KindDefinition = KindDefinition::new("rbac.authorization.k8s.io", "clusterroles")
    .strategy(CREATES_ON_PUT)
    .rules(rules(validation::rbac::cluster_role).named(NameRule::PathSegment).changed(CLUSTER_ROLES));
