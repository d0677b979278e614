//! Brings the Secrets of a control plane up to date in the cluster that hosts it, and takes them away.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::Result;

use crate::objects::{self, ObjectClient};
use crate::pki::Data;
use crate::plan::{Plan, SECRETS};

/// Makes, completes and renews the Secrets.
///
/// # Errors
/// When one cannot be read or written, or an authority is damaged.
pub async fn ensure(host: &mut ObjectClient, plan: &Plan, labels: &BTreeMap<String, String>) -> Result<()> {
    let mut existing: BTreeMap<String, Data> = BTreeMap::new();
    for what in SECRETS {
        let name = plan.secret(what);
        existing.insert(name.clone(), host.secret(&plan.namespace, &name).await?);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    // The authorities first, as they are planned: what they have issued is worth nothing without them.
    for secret in plan.secrets(|name| existing.get(name).cloned().unwrap_or_default(), now)? {
        if existing.get(&secret.name) == Some(&secret.data) {
            println!("Secret {} is up to date", secret.name);
            continue;
        }
        for issued in &secret.issued {
            println!("Secret {}: issued a certificate, {issued}", secret.name);
        }
        host.apply(&objects::secret(&plan.namespace, &secret.name, labels, &secret.data)).await?;
        println!("Secret {} is written", secret.name);
    }
    Ok(())
}

/// Deletes the Secrets, that for nodes that join among them.
///
/// # Errors
/// When one cannot be deleted.
pub async fn remove(host: &ObjectClient, namespace: &str, name: &str) -> Result<()> {
    for what in SECRETS.iter().chain(&["join"]) {
        let secret = format!("{name}-{what}");
        if host.delete(&objects::secret_path(namespace, &secret)).await? {
            println!("Secret {secret} is deleted");
        }
    }
    Ok(())
}

/// The time until `deadline`.
#[must_use]
pub fn left(deadline: std::time::Instant) -> Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}
