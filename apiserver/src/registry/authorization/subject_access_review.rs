//! SubjectAccessReview, which is answered and never stored. Answers for
//! upstream's `pkg/registry/authorization/subjectaccessreview`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const SUBJECT_ACCESS_REVIEWS: GroupResource<'static> =
    GroupResource::new("authorization.k8s.io", "subjectaccessreviews");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SUBJECT_ACCESS_REVIEWS).question();
