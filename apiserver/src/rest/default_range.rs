//! The ServiceCIDR of `--service-cluster-ip-range`, which this server makes, lets have a second family, and marks
//! ready. Answers for upstream's `pkg/controlplane/controller/defaultservicecidr`.

use std::collections::HashSet;
use std::time::Duration;

use proto::Value;
use serde_json::json;
use shared::status::Status;

use super::address_ranges::DEFAULT;
use super::repair::{EventWriter, RepairEvent};
use crate::api::Api;
use crate::machinery::identity::server_user;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::networking::service_cidr::SERVICE_CIDRS;

/// Time between two looks at it.
const EVERY: Duration = Duration::from_secs(10);
const COMPONENT: &str = "kubernetes-service-cidr-controller";

/// Action on the default ServiceCIDR.
#[derive(Debug, PartialEq, Eq)]
enum RangeAction {
    Nothing,
    Create,
    /// Add the second range.
    Widen,
    /// Set the `Ready` condition.
    Approve,
    /// Something is wrong with it that an administrator has to see to.
    Tell(String, String),
}

fn step(there: Option<&Value>, ours: &[String]) -> RangeAction {
    let Some(there) = there else { return RangeAction::Create };
    let cidrs = tree::strings(there, "/spec/cidrs");
    if ours.len() == 2 && cidrs.len() == 1 && ours[0] == cidrs[0] {
        return RangeAction::Widen;
    }
    if !meta::text(there, "deletionTimestamp").is_empty() {
        return RangeAction::Nothing;
    }
    if cidrs != ours {
        let message = format!(
            "The default ServiceCIDR [{}] does not match the controller flag configurations [{}]",
            cidrs.join(" "),
            ours.join(" ")
        );
        return RangeAction::Tell("KubernetesDefaultServiceCIDRInconsistent".to_owned(), message);
    }
    let ready = tree::list(there, "/status/conditions").iter().find(|c| tree::text(c, "/type") == "Ready");
    match ready.map(|c| (c, tree::text(c, "/status"))) {
        Some((_, "True")) => RangeAction::Nothing,
        Some((condition, "False")) => {
            let message = format!("Configuration matches, but {}", tree::text(condition, "/message"));
            RangeAction::Tell(tree::text(condition, "/reason").to_owned(), message)
        }
        _ => RangeAction::Approve,
    }
}

/// Status with the `Ready` condition that this server sets.
fn ready() -> Value {
    let condition = json!({
        "type": "Ready", "status": "True", "message": "Kubernetes default Service CIDR is ready",
        "lastTransitionTime": meta::now(),
    });
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": DEFAULT},
        "status": {"conditions": [condition]}})
}

/// Controller of the default ServiceCIDR.
pub(crate) struct DefaultRange {
    api: Api,
    ours: Vec<String>,
    teller: EventWriter,
    /// Reasons of events sent already, which are not repeated.
    told: HashSet<String>,
}

impl DefaultRange {
    /// Over these ranges.
    pub(crate) fn new(api: Api, ours: Vec<String>) -> Self {
        Self { teller: EventWriter::new(api.clone(), COMPONENT), api, ours, told: HashSet::new() }
    }

    async fn write_event(&mut self, about: &Value, reason: &str, message: String) {
        if self.told.insert(reason.to_owned()) {
            let complaint = RepairEvent { reason: reason.to_owned().into(), action: None, message };
            self.teller.tell(("networking.k8s.io/v1", "ServiceCIDR"), about, &complaint).await;
        }
    }

    /// One look.
    ///
    /// # Errors
    /// It is not there, and could not be made.
    pub(crate) async fn reconcile(&mut self) -> Result<(), Status> {
        let found = match self.api.get(SERVICE_CIDRS, "", DEFAULT).await {
            Err(e) if !e.is_not_found() => return Err(e),
            found => found.ok(),
        };
        let (mut next, mut object) = (step(found.as_ref(), &self.ours), found.unwrap_or_default());
        if next == RangeAction::Create {
            let new = json!({"metadata": {"name": DEFAULT}, "spec": {"cidrs": self.ours}});
            object = match self.api.create(&server_user(), SERVICE_CIDRS, "", new).await {
                Err(e) if e.is_already_exists() => return Ok(()),
                made => made?,
            };
            next = RangeAction::Approve;
        }
        match next {
            RangeAction::Widen => {
                object["spec"]["cidrs"] = json!(self.ours);
                if let Err(why) = self.api.update(&server_user(), SERVICE_CIDRS, "", object.clone()).await {
                    let (one, all) = (self.ours[0].clone(), self.ours.join(" "));
                    let message = format!(
                        "The default ServiceCIDR can not be upgraded from {one} to dual stack [{all}] : {}",
                        why.message
                    );
                    self.write_event(&object, "KubernetesDefaultServiceCIDRError", message).await;
                }
            }
            RangeAction::Approve => {
                let applied = self.api.apply(&server_user(), (SERVICE_CIDRS, "status"), COMPONENT, ready()).await;
                if applied.is_err() {
                    let message = "The default ServiceCIDR Status can not be set to Ready=True".to_owned();
                    self.write_event(&object, "KubernetesDefaultServiceCIDRError", message).await;
                }
            }
            RangeAction::Tell(reason, message) => self.write_event(&object, &reason, message).await,
            RangeAction::Create | RangeAction::Nothing => {}
        }
        Ok(())
    }

    /// Looks until dropped.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::time::sleep(EVERY).await;
            if let Err(error) = self.reconcile().await {
                tracing::warn!(%error, "Failed to reconcile the default ServiceCIDR");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::testing::Fixed;
    use crate::api::Reader as _;

    #[tokio::test]
    async fn default_service_cidr_is_created_widened_and_ready() {
        let cluster = Arc::new(Fixed::default());
        let range = |ours: &[&str]| DefaultRange::new(cluster.api(), ours.iter().map(|r| (*r).to_owned()).collect());
        let shown = || {
            let there = cluster.get(SERVICE_CIDRS, "", DEFAULT).expect("there");
            (
                tree::strings(&there, "/spec/cidrs").join(" "),
                tree::text(&there, "/status/conditions/0/status").to_owned(),
            )
        };
        let messages = || -> Vec<String> {
            cluster
                .list(crate::machinery::GroupResource::new("", "events"), None)
                .iter()
                .map(|e| tree::text(e, "/message").to_owned())
                .collect()
        };
        range(&["10.0.0.0/24"]).reconcile().await.expect("made");
        assert_eq!(shown(), ("10.0.0.0/24".to_owned(), "True".to_owned()));
        let mut two = range(&["10.0.0.0/24", "fd00::/64"]);
        two.reconcile().await.expect("widened");
        two.reconcile().await.expect("nothing to do");
        assert_eq!(shown(), ("10.0.0.0/24 fd00::/64".to_owned(), "True".to_owned()));
        assert!(messages().is_empty());
        // What was configured otherwise stays, and is told of once.
        let mut other = range(&["10.1.0.0/24"]);
        for _ in 0..2 {
            other.reconcile().await.expect("told");
        }
        let want = "The default ServiceCIDR [10.0.0.0/24 fd00::/64] does not match the controller flag configurations [10.1.0.0/24]";
        assert_eq!((shown().0.as_str(), messages()), ("10.0.0.0/24 fd00::/64", vec![want.to_owned()]));
    }

    #[test]
    fn conditions_of_others_are_kept() {
        let object = |status: &str, going: Option<&str>| {
            json!({"metadata": {"deletionTimestamp": going}, "spec": {"cidrs": ["10.0.0.0/24"]},
                "status": {"conditions": [{"type": "Ready", "status": status, "reason": "R", "message": "m"}]}})
        };
        let ours = ["10.0.0.0/24".to_owned()];
        for (there, want) in [
            (object("True", None), RangeAction::Nothing),
            (object("Unknown", None), RangeAction::Approve),
            (object("Unknown", Some("2020-01-01T00:00:00Z")), RangeAction::Nothing),
            (object("False", None), RangeAction::Tell("R".to_owned(), "Configuration matches, but m".to_owned())),
        ] {
            assert_eq!(step(Some(&there), &ours), want, "{there}");
        }
    }
}
