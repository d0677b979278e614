//! Time that passes from a leader's death to the next one's lease, on a simulated clock.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};

use super::tests::{Remote, config, held_by};
use super::{Config, Lease, Leases, Observed, Renewed, next_look, run_over};
use crate::run::Shutdown;

/// The longest that one message takes; a look is two of them, and to take the lease two more.
const LONGEST: Duration = Duration::from_millis(40);

/// Lease storage that notes when each write arrived, and of whom.
#[derive(Clone)]
struct Noted(Remote, Arc<Mutex<Vec<(Instant, String)>>>);

impl Noted {
    fn note(&self, written: &Lease) {
        let holder = written.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
        self.1.lock().push((Instant::now(), holder));
    }
}

impl Leases for Noted {
    type Error = String;

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Lease>, String> {
        self.0.get(namespace, name).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, String> {
        self.0.create(lease).await.inspect(|lease| self.note(lease))
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, String> {
        self.0.replace(lease).await.inspect(|lease| self.note(lease))
    }
}

#[test]
fn candidate_looks_after_a_pause_and_at_the_expiry() {
    let now = Instant::now() + Duration::from_secs(100);
    let pause = Duration::from_millis(900);
    // (holder, milliseconds since its lease of 15 s was seen to change) → milliseconds until the next look
    let table = [
        (None, 900),
        (Some(("other", 0)), 900),
        (Some(("other", 14_000)), 900),
        (Some(("other", 14_500)), 500),
        (Some(("other", 14_999)), 1),
        (Some(("other", 15_000)), 900),
        (Some(("other", 99_000)), 900),
    ];
    for (seen, expected) in table {
        let observed =
            seen.map(|(holder, ago)| Observed { spec: held_by(holder, 1), at: now - Duration::from_millis(ago) });
        let next = next_look(observed.as_ref(), now, pause);
        assert_eq!(next - now, Duration::from_millis(expected), "{seen:?}");
    }
}

/// Kills the leader of two after a while: the time from its last renewal, and from its death, to the next one's lease.
async fn succession(seed: u64) -> (Duration, Duration) {
    let noted = Noted(Remote::new(seed, 0, LONGEST), Arc::default());
    let mut dice = StdRng::seed_from_u64(seed);
    let start = |name: &str| {
        let config = Config { identity: name.to_owned(), renewed: Renewed::default(), ..config() };
        let leases = noted.clone();
        tokio::spawn(async move {
            run_over(leases, config, None, Shutdown::new(), |_| std::future::pending()).await;
        })
    };
    let leader = start("leader");
    sleep(Duration::from_millis(dice.random_range(500..3_000))).await;
    let candidate = start("candidate");
    sleep(Duration::from_millis(dice.random_range(5_000..30_000))).await;
    leader.abort();
    let died = Instant::now();
    sleep(Duration::from_secs(30)).await;
    candidate.abort();
    let writes = noted.1.lock();
    let taken = writes.iter().find(|(_, holder)| holder == "candidate").expect("taken").0;
    let renewed = writes.iter().rfind(|(_, holder)| holder == "leader").expect("held").0;
    (taken - renewed, taken - died)
}

#[tokio::test(start_paused = true)]
async fn next_leader_waits_for_the_lease_and_no_longer() {
    let Config { lease_duration, retry_period, .. } = config();
    let longest = lease_duration + retry_period / 2 + LONGEST * 6;
    for seed in 0..300 {
        let (since_renewal, since_death) = succession(seed).await;
        assert!(since_renewal >= lease_duration, "seed {seed}: taken {since_renewal:?} after the last renewal");
        assert!(since_death <= longest, "seed {seed}: {since_death:?} after the death");
    }
}
