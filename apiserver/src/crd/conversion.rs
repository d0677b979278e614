//! Conversion of a custom resource as its definition says it. Answers for upstream's `CustomResourceConversion`.

use proto::Value;

use crate::machinery::tree;

/// Conversion of objects between versions.
#[derive(Debug)]
pub enum Conversion {
    /// Only the name of the version changes.
    None,
    /// Somebody outside does it.
    Webhook(Box<Webhook>),
}

/// A conversion webhook.
#[derive(Debug)]
pub struct Webhook {
    pub(super) client: Value,
    /// Review versions it understands, best first.
    pub(super) versions: Vec<String>,
}

impl Conversion {
    /// The conversion of a definition.
    pub fn of(definition: &Value) -> Self {
        if tree::text(definition, "/spec/conversion/strategy") != "Webhook" {
            return Self::None;
        }
        let webhook = &definition["spec"]["conversion"]["webhook"];
        Self::Webhook(Box::new(Webhook {
            client: webhook["clientConfig"].clone(),
            versions: tree::strings(webhook, "/conversionReviewVersions"),
        }))
    }
}
