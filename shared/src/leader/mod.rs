//! Leader election by a `Lease`, as client-go does it: acquire, renew every retry period, give up the work when the
//! lease could not be renewed within the renew deadline, and hand it back on an orderly shutdown so that the next
//! leader starts at once. Candidates look more often than client-go's, and at the very expiry of what they have seen. The lease is renewed until the work has returned, and only then given back. [`decide`] holds
//! the rule, [`run`] the calls.

#[cfg(test)]
mod succession_tests;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
pub use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use rand::Rng;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::{Fence, Permission};
use crate::events::{EventKind, Recorder};
use crate::run::Shutdown;
use crate::types::object_reference;

/// Lease to hold, and its durations.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the Lease.
    pub lease_name: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Identity of this process: host name, `_`, a unique suffix.
    pub identity: String,
    /// Others wait this long after the last renewal before they take over.
    pub lease_duration: Duration,
    /// The leader stops when it could not renew for this long; shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Pause between two attempts.
    pub retry_period: Duration,
    /// Time of the last renewal, for [`Config::check_health`]. Each election has its own.
    pub renewed: Renewed,
}

/// The lease of this name has been expired for [`EXPIRED_TOLERANCE`], and this process has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("failed election to renew leadership on lease {0}")]
pub struct LeaseExpired(String);

/// The time of a leader's last renewal; nothing while this process does not lead.
#[derive(Clone, Debug, Default)]
pub struct Renewed(Arc<Mutex<Option<Instant>>>);

/// Time since which a lease has expired when its leader counts as unhealthy.
const EXPIRED_TOLERANCE: Duration = Duration::from_secs(20);
/// The least time that a request for the lease is given.
const LEAST_REQUEST_TIME: Duration = Duration::from_secs(1);

impl Config {
    /// The configuration that the `--leader-elect-*` flags of a component describe.
    pub fn from_flags(flags: &crate::flags::FlagSet, host: &str) -> Self {
        Self {
            lease_name: flags.string("leader-elect-resource-name"),
            namespace: flags.string("leader-elect-resource-namespace"),
            identity: identity(host),
            lease_duration: flags.duration("leader-elect-lease-duration"),
            renew_deadline: flags.duration("leader-elect-renew-deadline"),
            retry_period: flags.duration("leader-elect-retry-period"),
            renewed: Renewed::default(),
        }
    }

    /// Fails when this process leads and its lease has been expired for 20 s: it hangs, or cannot end. Answers for
    /// `HealthzAdaptor.Check`.
    ///
    /// # Errors
    /// [`LeaseExpired`].
    pub fn check_health(&self) -> Result<(), LeaseExpired> {
        let late = |at: &Instant| at.elapsed() > self.lease_duration.saturating_add(EXPIRED_TOLERANCE);
        match *self.renewed.0.lock() {
            Some(at) if late(&at) => Err(LeaseExpired(self.lease_name.clone())),
            _ => Ok(()),
        }
    }

    /// Lets writes pass while this process holds the lease and has renewed it within the renew deadline, by a clock that
    /// goes on while the process is stopped. Who is frozen beyond that and thawed writes nothing more, however soon it
    /// learns that it has lost the lease.
    #[must_use]
    pub fn fence(&self) -> Fence {
        let (renewed, deadline) = (self.renewed.clone(), self.renew_deadline);
        Fence::new(move || match *renewed.0.lock() {
            Some(at) if at.elapsed() < deadline => Permission::Granted,
            Some(_) => Permission::Expired,
            None => Permission::Absent,
        })
    }

    /// Time for one request for the lease: a hung one leaves time for another before the renew deadline. Answers for
    /// upstream's `NewFromKubeconfig`.
    fn request_time(&self) -> Duration {
        (self.renew_deadline / 2).max(LEAST_REQUEST_TIME)
    }
}

/// Client-go's bound on the pause between two tries for the lease, in retry periods beyond the first.
const JITTER: f64 = 1.2;
/// Range of a candidate's pause between two looks at the lease, in retry periods. An expiry counts from the look that
/// found the last renewal: who looks as rarely as client-go does, every 1 to 2.2 periods, leads so much later.
const LOOKS: std::ops::RangeInclusive<f64> = 0.4..=0.5;

/// Validates the durations of leader election, with client-go's texts.
pub fn refused(lease: Duration, renew: Duration, retry: Duration) -> Option<&'static str> {
    if lease <= renew {
        Some("leaseDuration must be greater than renewDeadline")
    } else if renew <= retry.mul_f64(JITTER) {
        Some("renewDeadline must be greater than retryPeriod*JitterFactor")
    } else if retry.is_zero() {
        Some("retryPeriod must be greater than zero")
    } else {
        None
    }
}

/// An identity that no other process has, in upstream's form `<host>_<uuid>`.
pub fn identity(host: &str) -> String {
    format!("{host}_{}", uuid::Uuid::new_v4())
}

/// Result of [`run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The process was asked to end.
    Shutdown,
    /// The work ended by itself.
    Finished,
    /// Another process may lead now. The caller must exit: its state is stale.
    Lost,
}

/// Record of the lease as last observed, with the local time: clocks of different machines are never compared.
#[derive(Clone, Debug)]
struct Observed {
    spec: LeaseSpec,
    at: Instant,
}

impl Observed {
    /// Time at which the lease runs out unless it is seen to change before.
    fn expiry(&self) -> Instant {
        self.at + duration(&self.spec)
    }
}

/// Duration for which a lease is its holder's after a renewal.
fn duration(spec: &LeaseSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0))
}

/// Time of a candidate's next look at the lease: after `pause`, or at the lease's expiry where that comes before.
fn next_look(observed: Option<&Observed>, now: Instant, pause: Duration) -> Instant {
    let expiry = observed.map(Observed::expiry).filter(|at| *at > now);
    expiry.into_iter().fold(now + pause, Instant::min)
}

#[derive(Debug, PartialEq)]
enum LeaderStep {
    /// Write this spec.
    Take(LeaseSpec),
    /// Somebody else leads.
    Wait,
}

/// Decides on a lease with `spec` that has been unchanged for `unchanged` by the local clock.
fn decide(config: &Config, spec: &LeaseSpec, unchanged: Duration, now: Timestamp) -> LeaderStep {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let ours = holder == config.identity;
    if !ours && !holder.is_empty() && unchanged < duration(spec) {
        return LeaderStep::Wait;
    }
    let transitions = spec.lease_transitions.unwrap_or(0);
    LeaderStep::Take(LeaseSpec {
        holder_identity: Some(config.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(config.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: if ours { spec.acquire_time.clone() } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
        ..LeaseSpec::default()
    })
}

/// Storage of leases: behind a client, or in the process that serves them.
pub trait Leases: Send + Sync {
    /// Error of reading or writing a lease.
    type Error: std::fmt::Display + Send;

    /// One, where it exists.
    fn get(&self, namespace: &str, name: &str) -> impl Future<Output = Result<Option<Lease>, Self::Error>> + Send;
    /// Makes one.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Self::Error>> + Send;
    /// Replaces one that has not changed since.
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Self::Error>> + Send;
}

/// Leases of one namespace, over the network.
impl Leases for Api<Lease> {
    type Error = kube::Error;

    async fn get(&self, _: &str, name: &str) -> Result<Option<Lease>, kube::Error> {
        self.get_opt(name).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        Self::create(self, &PostParams::default(), lease).await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        Self::replace(self, name, &PostParams::default(), lease).await
    }
}

struct Elector<L> {
    leases: L,
    config: Config,
    observed: Option<Observed>,
    /// The lease as we wrote it last, and when that was begun: nobody can have seen it earlier.
    held: Option<(Lease, Instant)>,
}

#[derive(Debug, thiserror::Error)]
enum Failed<E> {
    #[error("{0}")]
    Refused(E),
    #[error("the request took longer than {0:?}")]
    TimedOut(Duration),
}

impl<L: Leases> Elector<L> {
    /// Tries once for the lease, within the time for a request; true when we hold it afterwards.
    async fn attempt(&mut self) -> Result<bool, Failed<L::Error>> {
        let within = self.config.request_time();
        match tokio::time::timeout(within, self.take()).await {
            Ok(result) => result.map_err(Failed::Refused),
            Err(_) => Err(Failed::TimedOut(within)),
        }
    }

    async fn take(&mut self) -> Result<bool, L::Error> {
        let now = Timestamp::now();
        if let Some(lease) = self.held.clone().filter(|(_, at)| at.elapsed() < self.config.lease_duration) {
            // Nobody else may have written to it: a look at it is worth it only if somebody has.
            match self.renew(lease.0, now).await {
                Ok(()) => return Ok(true),
                Err(error) => tracing::debug!(%error, "Failed to renew lease optimistically, reading it"),
            }
        }
        let found = self.leases.get(&self.config.namespace, &self.config.lease_name).await?;
        let Some(mut lease) = found else {
            let LeaderStep::Take(mut spec) = decide(&self.config, &LeaseSpec::default(), Duration::ZERO, now) else {
                return Ok(false);
            };
            spec.lease_transitions = Some(0);
            let mut lease = Lease { spec: Some(spec), ..Lease::default() };
            lease.metadata.name = Some(self.config.lease_name.clone());
            lease.metadata.namespace = Some(self.config.namespace.clone());
            let began = Instant::now();
            let made = self.leases.create(&lease).await?;
            self.holds(made, began);
            return Ok(true);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let unchanged = self.observe(&spec);
        let LeaderStep::Take(spec) = decide(&self.config, &spec, unchanged, now) else {
            return Ok(false);
        };
        lease.spec = Some(spec);
        self.write(&lease).await?;
        Ok(true)
    }

    async fn renew(&mut self, mut lease: Lease, now: Timestamp) -> Result<(), L::Error> {
        let spec = lease.spec.get_or_insert_default();
        spec.renew_time = Some(MicroTime(now));
        self.write(&lease).await
    }

    async fn write(&mut self, lease: &Lease) -> Result<(), L::Error> {
        let began = Instant::now();
        let written = self.leases.replace(lease).await?;
        self.holds(written, began);
        Ok(())
    }

    fn holds(&mut self, lease: Lease, since: Instant) {
        self.held = Some((lease, since));
        *self.config.renewed.0.lock() = Some(since);
    }

    /// Time at which the work has to have ended, unless the lease is renewed before.
    fn deadline(&self) -> Instant {
        let renewed = self.held.as_ref().map(|(_, at)| *at);
        renewed.map_or_else(Instant::now, |at| at + self.config.renew_deadline)
    }

    /// Duration for which the lease has been unchanged.
    fn observe(&mut self, spec: &LeaseSpec) -> Duration {
        if let Some(observed) = &self.observed
            && observed.spec == *spec
        {
            return observed.at.elapsed();
        }
        self.observed = Some(Observed { spec: spec.clone(), at: Instant::now() });
        Duration::ZERO
    }

    /// Tells of the lease what has become of us.
    fn tell(&self, events: Option<&Recorder>, what: &str) {
        let (Some(events), Some((lease, _))) = (events, &self.held) else { return };
        events.event(
            &object_reference(lease),
            EventKind::Normal,
            "LeaderElection",
            format!("{} {what}", self.config.identity),
        );
    }

    /// Gives the lease back, so that nobody has to wait for it to run out. Who cannot in time lets it run out.
    async fn release(&self) {
        if tokio::time::timeout(self.config.renew_deadline, self.give_back()).await.is_err() {
            tracing::warn!("Failed to release lease in time");
        }
    }

    async fn give_back(&self) {
        let found = self.leases.get(&self.config.namespace, &self.config.lease_name).await;
        let Ok(Some(mut lease)) = found else { return };
        let Some(spec) = lease.spec.as_mut() else { return };
        if spec.holder_identity.as_deref() != Some(&self.config.identity) {
            return;
        }
        let now = MicroTime(Timestamp::now());
        *spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: spec.lease_transitions,
            ..LeaseSpec::default()
        };
        if let Err(error) = self.leases.replace(&lease).await {
            tracing::warn!(%error, "Failed to release lease");
        }
    }
}

/// Waits for the lease, then runs `work` with a token that is cancelled as soon as the lease is lost or the process
/// is to end. On shutdown the lease is renewed until `work` has returned, which is when nothing is written any more, and
/// then released. Where it is lost, `work` is dropped and the caller has to exit at once. Who leads, and no longer leads,
/// is told.
pub async fn run<F, Fut>(
    client: kube::Client,
    config: Config,
    events: &Recorder,
    shutdown: Shutdown,
    work: F,
) -> Outcome
where
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let leases: Api<Lease> = Api::namespaced(client, &config.namespace);
    run_over(leases, config, Some(events), shutdown, work).await
}

/// [`run`] with leases that are kept elsewhere; without `events` nobody is told.
pub async fn run_over<L, F, Fut>(
    leases: L,
    config: Config,
    events: Option<&Recorder>,
    shutdown: Shutdown,
    work: F,
) -> Outcome
where
    L: Leases,
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let mut elector = Elector { leases, config, observed: None, held: None };
    let lease = format!("{}/{}", elector.config.namespace, elector.config.lease_name);
    // As a 0 from the start, so that alerts can tell a candidate from a process that is not there.
    let leading = crate::metrics::gauge(
        "leader_election_master_status",
        "[ALPHA] Leader election status of this process, by lease name: 1 is the leader, 0 a candidate.",
        &["name"],
    )
    .with_label_values(&[&elector.config.lease_name]);
    leading.set(0.0);
    tracing::info!(%lease, "Attempting to acquire leader lease...");
    if !acquire(&mut elector, &shutdown).await {
        return Outcome::Shutdown;
    }
    tracing::info!(%lease, "Successfully acquired lease");
    leading.set(1.0);
    elector.tell(events, "became leader");
    let token = shutdown.token().child_token();
    let mut work = std::pin::pin!(work(token.clone()));
    let outcome = tokio::select! {
        () = &mut work => Outcome::Finished,
        () = renew(&mut elector) => Outcome::Lost,
        () = shutdown.wait() => Outcome::Shutdown,
    };
    elector.tell(events, "stopped leading");
    token.cancel();
    let outcome = match outcome {
        Outcome::Shutdown => tokio::select! {
            () = &mut work => Outcome::Shutdown,
            () = renew(&mut elector) => Outcome::Lost,
        },
        other => other,
    };
    leading.set(0.0);
    if outcome == Outcome::Lost {
        tracing::error!(%lease, "Failed to renew lease");
        return outcome;
    }
    *elector.config.renewed.0.lock() = None;
    elector.release().await;
    outcome
}

/// True once we lead; false when the process is to end first.
async fn acquire<L: Leases>(elector: &mut Elector<L>, shutdown: &Shutdown) -> bool {
    loop {
        let attempt = tokio::select! {
            () = shutdown.wait() => return false,
            attempt = elector.attempt() => attempt,
        };
        match attempt {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "Failed to acquire lease"),
        }
        let pause = elector.config.retry_period.mul_f64(rand::rng().random_range(LOOKS));
        let next = next_look(elector.observed.as_ref(), Instant::now(), pause);
        tokio::select! {
            () = shutdown.wait() => return false,
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Returns when the lease could not be renewed for the renew deadline, or somebody else has it.
async fn renew<L: Leases>(elector: &mut Elector<L>) {
    loop {
        let deadline = elector.deadline();
        let pause = Instant::now() + elector.config.retry_period;
        tokio::time::sleep_until(pause.min(deadline)).await;
        // A process that was frozen may find another one in its place.
        if Instant::now() >= deadline {
            return;
        }
        match tokio::time::timeout_at(deadline, elector.attempt()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(error)) => tracing::warn!(%error, "Failed to renew lease, retrying"),
        }
    }
}
