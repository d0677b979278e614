//! ClusterTrustBundle. Answers for upstream's `pkg/registry/certificates/clustertrustbundle`.

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::life_cycle::LifeCycle;
use crate::registry::selectable::text;
use crate::registry::strategy::CONDITIONAL;
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;

pub(crate) const CLUSTER_TRUST_BUNDLES: GroupResource<'static> =
    GroupResource::new("certificates.k8s.io", "clustertrustbundles");

pub(crate) static KIND: KindDefinition = KindDefinition::new(CLUSTER_TRUST_BUNDLES)
    .life_cycle(LifeCycle::new().gate("ClusterTrustBundle").introduced(&[("v1beta1", 33)]).fixed_storage())
    .strategy(CONDITIONAL)
    .rules(
        rules(validation::trust_bundle::bundle)
            .named(NameRule::PathSegment)
            .update(validation::trust_bundle::bundle_update)
            .changed(&[ObjectMeta, ObjectMetaUpdate, Immutable]),
    )
    .cells(printers::policy::trust_bundle)
    .selectable(&[text("spec.signerName", &["/spec/signerName"])]);
