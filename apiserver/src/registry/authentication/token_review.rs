//! TokenReview, which is answered and never stored. Answers for
//! upstream's `pkg/registry/authentication/tokenreview`.

use crate::machinery::GroupResource;
use crate::registry::kind::KindDefinition;

pub(crate) const TOKEN_REVIEWS: GroupResource<'static> = GroupResource::new("authentication.k8s.io", "tokenreviews");

pub(crate) static KIND: KindDefinition = KindDefinition::new(TOKEN_REVIEWS).question();
