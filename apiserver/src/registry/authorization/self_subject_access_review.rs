//! SelfSubjectAccessReview, which is answered and never stored. Answers for
//! upstream's `pkg/registry/authorization/selfsubjectaccessreview`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const SELF_SUBJECT_ACCESS_REVIEWS: GroupResource<'static> =
    GroupResource::new("authorization.k8s.io", "selfsubjectaccessreviews");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SELF_SUBJECT_ACCESS_REVIEWS).question();
