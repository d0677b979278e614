//! SelfSubjectReview, which is answered and never stored. Answers for
//! upstream's `pkg/registry/authentication/selfsubjectreview`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const SELF_SUBJECT_REVIEWS: GroupResource<'static> =
    GroupResource::new("authentication.k8s.io", "selfsubjectreviews");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SELF_SUBJECT_REVIEWS).question();
