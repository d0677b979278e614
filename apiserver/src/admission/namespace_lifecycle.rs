//! NamespaceLifecycle: nothing is created in a namespace that is missing or going away, and the system's
//! namespaces stay. Answers for upstream's `pkg/admission/plugin/namespace/lifecycle`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use shared::status::Status;

use super::{Attributes, Operation, Plugin};
use crate::api::{Api, Reader};
use crate::machinery::tree;
use crate::registry::authorization::local_subject_access_review::LOCAL_SUBJECT_ACCESS_REVIEWS;
use crate::registry::core::namespace::NAMESPACES;

/// Time after its deletion in which the cached state of a namespace is not trusted.
const DOUBTED: Duration = Duration::from_secs(30);
/// Most namespaces that are doubted at one time.
const MOST_DOUBTED: usize = 100;

/// Namespaces whose deletion went through here a moment ago: the cache may not have heard of it.
#[derive(Default)]
pub(super) struct RecentlyDeleted(Mutex<VecDeque<(String, Instant)>>);

impl RecentlyDeleted {
    fn add(&self, name: &str, now: Instant) {
        let mut all = self.0.lock();
        all.retain(|(other, at)| other != name && now.duration_since(*at) < DOUBTED);
        if all.len() >= MOST_DOUBTED {
            all.pop_front();
        }
        all.push_back((name.to_owned(), now));
    }

    fn has(&self, name: &str, now: Instant) -> bool {
        self.0.lock().iter().any(|(other, at)| other == name && now.duration_since(*at) < DOUBTED)
    }
}

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The plugin.
pub(super) struct NamespaceLifecycle {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads, for a namespace that the cache has not heard of or may not have heard the latest of.
    pub api: Api,
    /// Namespaces that are asked for live.
    pub doubted: RecentlyDeleted,
}

#[async_trait]
impl Plugin for NamespaceLifecycle {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let namespaces = a.of(NAMESPACES);
        if a.operation == Operation::Delete {
            if namespaces && IMMORTAL.contains(&a.name) {
                return Err(NAMESPACES.forbidden(a.name, "this namespace may not be deleted"));
            }
            if namespaces {
                self.doubted.add(a.name, Instant::now());
            }
            return Ok(());
        }
        if a.namespace.is_empty() || namespaces || a.of(LOCAL_SUBJECT_ACCESS_REVIEWS) {
            return Ok(());
        }
        let doubted = a.operation == Operation::Create && self.doubted.has(a.namespace, Instant::now());
        let cached = if doubted { None } else { self.reader.get(NAMESPACES, "", a.namespace) };
        let phase = match &cached {
            Some(namespace) => tree::text(namespace, "/status/phase").to_owned(),
            None => {
                let live = self.api.get(NAMESPACES, "", a.namespace).await?;
                tree::text(&live, "/status/phase").to_owned()
            }
        };
        if a.operation != Operation::Create || phase != "Terminating" {
            return Ok(());
        }
        let mut status = a.forbidden(format!(
            "unable to create new content in namespace {} because it is being terminated",
            a.namespace
        ));
        let why = format!("namespace {} is being terminated", a.namespace);
        status.add_cause("NamespaceTerminating", &why, "metadata.namespace");
        Err(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_doubted_for_a_while() {
        let (doubted, now) = (RecentlyDeleted::default(), Instant::now());
        doubted.add("a", now);
        doubted.add("b", now + Duration::from_secs(20));
        let at = |name: &str, seconds: u64| doubted.has(name, now + Duration::from_secs(seconds));
        assert_eq!([at("a", 29), at("a", 30), at("b", 30), at("c", 1)], [true, false, true, false]);
        for i in 0..MOST_DOUBTED {
            doubted.add(&format!("n{i}"), now + Duration::from_secs(21));
        }
        assert!(!at("b", 21) && at("n0", 21) && doubted.0.lock().len() == MOST_DOUBTED);
    }
}
