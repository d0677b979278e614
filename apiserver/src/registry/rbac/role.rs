//! Role. Answers for upstream's `pkg/registry/rbac/role`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;
use crate::registry::strategy::CREATES_ON_PUT;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::{CREATE_AND_UPDATE, rules};

pub(crate) const ROLES: GroupResource<'static> = GroupResource::new("rbac.authorization.k8s.io", "roles");

pub(crate) static KIND: KindDefinition = KindDefinition::new(ROLES)
    .strategy(CREATES_ON_PUT)
    .rules(rules(validation::rbac::role).named(NameRule::PathSegment).changed(CREATE_AND_UPDATE));
