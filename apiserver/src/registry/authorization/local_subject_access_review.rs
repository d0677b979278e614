//! LocalSubjectAccessReview, which is answered and never stored. Answers for
//! upstream's `pkg/registry/authorization/localsubjectaccessreview`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const LOCAL_SUBJECT_ACCESS_REVIEWS: GroupResource<'static> =
    GroupResource::new("authorization.k8s.io", "localsubjectaccessreviews");

pub(crate) static KIND: KindDefinition = KindDefinition::new(LOCAL_SUBJECT_ACCESS_REVIEWS).question();
