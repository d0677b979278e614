//! DefaultIngressClass: ingresses without a class get the default one. Answers for upstream's
//! `plugin/pkg/admission/network/defaultingressclass`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use shared::status::Status;

use super::{Attributes, Plugin, storage};
use crate::api::Reader;
use crate::machinery::tree;
use crate::registry::networking::ingress_class::INGRESS_CLASSES;

/// The plugin.
pub(super) struct DefaultIngressClass {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for DefaultIngressClass {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(ingress) = a.object.as_deref_mut() else { return Ok(()) };
        if tree::has(ingress, "/spec/ingressClassName")
            || tree::annotation(ingress, "kubernetes.io/ingress.class").is_some()
        {
            return Ok(());
        }
        let mut classes = self.reader.list(INGRESS_CLASSES, None);
        classes.retain(|c| tree::annotation(c, "ingressclass.kubernetes.io/is-default-class") == Some("true"));
        if let Some(class) = storage::newest(classes) {
            *tree::field(ingress, &["spec", "ingressClassName"]) = json!(tree::name(&class));
        }
        Ok(())
    }
}
