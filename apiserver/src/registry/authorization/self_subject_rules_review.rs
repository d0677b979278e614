//! SelfSubjectRulesReview, which is answered and never stored. Answers for
//! upstream's `pkg/registry/authorization/selfsubjectrulesreview`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const SELF_SUBJECT_RULES_REVIEWS: GroupResource<'static> =
    GroupResource::new("authorization.k8s.io", "selfsubjectrulesreviews");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SELF_SUBJECT_RULES_REVIEWS).question();
