//! Coordinated leader election (`CoordinatedLeaderElection`): components that would like to lead say so in a
//! LeaseCandidate, and one of the API servers gives the Lease to the one that suits best. Upstream's
//! leader-election-controller and its collector of candidates that are gone. Answers for upstream's
//! `pkg/controlplane/controller/leaderelection`.
//!
//! [`plan`] decides; here are the calls. Of several servers the one acts that holds a Lease of its own. Nobody's Lease
//! is renewed here: who leads does that, and whom to make room for stands in it.

mod lock;
mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proto::Value;
use shared::leader::{self, Outcome};
use shared::run::Shutdown;
use shared::status::Status;

use crate::api::{Api, DeleteArgs, Reader, ServerContext};
use crate::machinery::identity::server_user;
use crate::machinery::tree;
use crate::registry::coordination::lease::LEASES;
use crate::registry::coordination::lease_candidate::LEASE_CANDIDATES;
use lock::InProcess;
use plan::{LeaderCandidate, LeaseAction};

/// The feature gate.
pub(crate) const GATE: &str = "CoordinatedLeaderElection";
/// The check of it, among those of what is done at start.
pub(crate) const HOOK: &str = "start-kube-apiserver-coordinated-leader-election-controller";

const NAME: &str = "leader-election-controller";
/// While there are candidates, their leases are looked at this often: nobody says when one runs out.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which expired candidates are removed.
const COLLECT: Duration = Duration::from_secs(30 * 60);

/// Elects until the shutdown, whenever this server is the one to do it.
pub(crate) async fn run(cx: ServerContext) {
    let config = leader::Config {
        lease_name: NAME.to_owned(),
        namespace: "kube-system".to_owned(),
        identity: leader::identity(&shared::serve::hostname()),
        lease_duration: cx.flags.duration("coordinated-leadership-lease-duration"),
        renew_deadline: cx.flags.duration("coordinated-leadership-renew-deadline"),
        retry_period: cx.flags.duration("coordinated-leadership-retry-period"),
        renewed: leader::Renewed::default(),
    };
    let elections = Arc::new(Elections { api: cx.api.clone(), reader: cx.reader.clone() });
    loop {
        let leases = InProcess { api: cx.api.clone() };
        let elections = elections.clone();
        let lead = |token| async move { elections.lead(Shutdown::from(token)).await };
        if leader::run_over(leases, config.clone(), None, cx.shutdown.clone(), lead).await == Outcome::Shutdown {
            return;
        }
    }
}

struct Elections {
    api: Api,
    reader: Arc<dyn Reader>,
}

impl Elections {
    /// Elects until told to stop.
    async fn lead(&self, stop: Shutdown) {
        tokio::select! {
            () = stop.wait() => {}
            ((), ()) = futures::future::join(self.elect(), self.collect()) => {}
        }
    }

    async fn elect(&self) {
        loop {
            let seen = self.reader.version(LEASE_CANDIDATES);
            let objects = self.reader.list(LEASE_CANDIDATES, None);
            let all: Vec<LeaderCandidate<'_>> = objects.iter().map(|object| LeaderCandidate::read(object)).collect();
            let leases: BTreeSet<(&str, &str)> = all.iter().map(|one| (one.namespace, one.lease)).collect();
            for (namespace, name) in leases {
                if let Err(error) = self.elect_one(&all, namespace, name).await {
                    tracing::warn!(%error, namespace, name, "Failed to run coordinated leader election");
                }
            }
            let changed = self.reader.changed(LEASE_CANDIDATES, seen);
            if all.is_empty() {
                changed.await;
            } else {
                // In time is as good as at once.
                tokio::time::timeout(LOOK, changed).await.ok();
            }
        }
    }

    /// One step of one election.
    async fn elect_one(&self, all: &[LeaderCandidate<'_>], namespace: &str, name: &str) -> Result<(), Status> {
        let now = Timestamp::now();
        let of_it = |one: &&LeaderCandidate<'_>| one.namespace == namespace && one.lease == name && !one.is_gone(now);
        let candidates: Vec<&LeaderCandidate<'_>> = all.iter().filter(of_it).collect();
        let lease = self.reader.get(LEASES, namespace, name);
        let (strategy, holder) = match plan::step(&candidates, lease.as_deref(), now) {
            Ok(LeaseAction::Wait) => return Ok(()),
            Ok(LeaseAction::Ask(asked)) => return self.ping(asked, now).await,
            Ok(LeaseAction::Elect { strategy, holder }) => (strategy, holder),
            Err(why) => return Err(Status::internal(&why.to_string())),
        };
        let there = match self.api.get(LEASES, namespace, name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = plan::lease(namespace, name, strategy, holder, now);
                return self.api.create(&server_user(), LEASES, namespace, lease).await.map(drop);
            }
            Err(error) => return Err(error),
        };
        match plan::given(&there, strategy, holder, now) {
            Some(lease) => self.api.update(&server_user(), LEASES, "", lease).await.map(drop),
            None => Ok(()),
        }
    }

    /// Asks candidates whether they are still there: they answer by renewing.
    async fn ping(&self, asked: Vec<&LeaderCandidate<'_>>, now: Timestamp) -> Result<(), Status> {
        for one in asked {
            let object = plan::asked(one, now);
            self.api.update(&server_user(), LEASE_CANDIDATES, "", object).await?;
        }
        Ok(())
    }

    async fn collect(&self) {
        loop {
            if let Err(error) = self.remove_gone().await {
                tracing::warn!(%error, "Failed to delete expired LeaseCandidates");
            }
            tokio::time::sleep(COLLECT).await;
        }
    }

    async fn remove_gone(&self) -> Result<(), Status> {
        let now = Timestamp::now();
        let objects: Vec<Value> = self.api.list(LEASE_CANDIDATES, None).await?;
        for object in objects.iter().filter(|object| LeaderCandidate::read(object).is_gone(now)) {
            let args = DeleteArgs {
                // One that came back meanwhile stays.
                resource_version: Some(tree::text(object, "/metadata/resourceVersion").to_owned()),
                ..DeleteArgs::default()
            };
            let (namespace, name) = (tree::namespace(object), tree::name(object));
            match self.api.delete(&server_user(), LEASE_CANDIDATES, namespace, name, args).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
