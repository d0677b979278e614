//! Clients that read and write all the time. What never reached a server, or whose connection broke, is sent again, as every
//! client of Kubernetes does; what a server refused is a failure, but for the deletion of what was perhaps never made.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http::{Method, Request};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use e2e::testing::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Readers of one object, readers of all, and writers.
const CLIENTS: (usize, usize, usize) = (2, 1, 2);
/// Pause of a client between two requests.
const PAUSE: Duration = Duration::from_millis(10);
/// Time that one attempt gets.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Time after which no further attempt is made.
const ALL: Duration = Duration::from_secs(12);
/// Time after a fault in which requests may take long.
const ADJUSTMENT: Duration = Duration::from_secs(2);
/// Clients that write at the same time, each one request.
pub const WRITERS: u64 = CLIENTS.2 as u64;

/// Counts of what clients saw.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub reads: u64,
    pub failed_reads: u64,
    pub writes: u64,
    pub failed_writes: u64,
    /// Requests that were sent more than once.
    pub retried: u64,
    slowest_read: Duration,
    slowest_write: Duration,
    /// Durations of requests that were begun after [`ADJUSTMENT`].
    adjusted: Vec<Duration>,
    last_failure: String,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reads, {} failed, slowest {} ms; {} writes, {} failed, slowest {} ms; {} sent again; p99 after {} s {} ms",
            self.reads,
            self.failed_reads,
            self.slowest_read.as_millis(),
            self.writes,
            self.failed_writes,
            self.slowest_write.as_millis(),
            self.retried,
            ADJUSTMENT.as_secs(),
            self.p99().as_millis(),
        )?;
        if self.last_failure.is_empty() { Ok(()) } else { write!(f, "; last failure: {}", self.last_failure) }
    }
}

impl Tally {
    /// Adds the counts of another time.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.failed_reads += other.failed_reads;
        self.writes += other.writes;
        self.failed_writes += other.failed_writes;
        self.retried += other.retried;
        self.slowest_read = self.slowest_read.max(other.slowest_read);
        self.slowest_write = self.slowest_write.max(other.slowest_write);
        self.adjusted.extend(&other.adjusted);
    }

    /// The time in which 99 of 100 requests were done that were begun two seconds after the fault.
    pub fn p99(&self) -> Duration {
        let mut sorted = self.adjusted.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
    }

    fn count_read(&mut self, path: &str, request: &Outcome, faulty: Option<Instant>) {
        self.reads += 1;
        self.slowest_read = self.slowest_read.max(request.took);
        self.failed_reads += u64::from(request.result.is_err());
        self.count(&Method::GET, path, request, faulty);
    }

    fn count_write(&mut self, method: &Method, path: &str, request: &Outcome, faulty: Option<Instant>) {
        self.writes += 1;
        self.slowest_write = self.slowest_write.max(request.took);
        self.failed_writes += u64::from(request.result.is_err());
        self.count(method, path, request, faulty);
    }

    fn count(&mut self, method: &Method, path: &str, request: &Outcome, faulty: Option<Instant>) {
        self.retried += u64::from(request.retried);
        if faulty.is_some_and(|faulty| request.began >= faulty + ADJUSTMENT) {
            self.adjusted.push(request.took);
        }
        if let Err((_, failure)) = &request.result {
            self.last_failure = format!("{method} {path}: {failure}");
        }
    }
}

/// Outcome of a request, with all attempts.
struct Outcome {
    began: Instant,
    took: Duration,
    /// Once was not enough.
    retried: bool,
    /// Code of a refusal, 0 for no answer, and its text.
    result: Result<(), (u16, String)>,
}

/// Clients at work, each with a connection of its own.
pub struct Traffic {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// State that the clients share.
#[derive(Default)]
struct Shared {
    tally: Mutex<Tally>,
    stop: AtomicBool,
    /// The beginning of the fault.
    faulty: Mutex<Option<Instant>>,
}

/// Number of the next object. Names are never used again: a member that was frozen may create an object late that a client,
/// which heard nothing, created anew and deleted.
static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Traffic {
    /// Makes the object that clients read.
    pub fn prepare(cluster: &Cluster) {
        cluster.kubectl("create configmap read --from-literal=a=b");
        // Another test of the process may have chosen it before.
        rustls::crypto::ring::default_provider().install_default().ok();
    }

    /// Starts them.
    pub fn start(cluster: &Cluster) -> Self {
        let shared = Arc::<Shared>::default();
        let kubeconfig = cluster.layout().admin_conf().display().to_string();
        let clients = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let thread = std::thread::spawn(move || runtime.block_on(work(kubeconfig, clients)));
        Self { shared, thread }
    }

    /// Notes that the fault begins now.
    pub fn note_fault(&self) {
        *self.shared.faulty.lock() = Some(Instant::now());
    }

    /// Ends them and returns what they counted.
    pub fn stop(self) -> Tally {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the clients end");
        std::mem::take(&mut *self.shared.tally.lock())
    }
}

async fn work(kubeconfig: String, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    let (readers, listers, writers) = CLIENTS;
    for at in 0..readers + listers + writers {
        let client = connect(&kubeconfig).await;
        let shared = Arc::clone(&shared);
        clients.spawn(async move {
            while !shared.stop.load(Ordering::Relaxed) {
                if at < readers {
                    read(&client, &format!("{MAPS}/read"), &shared).await;
                } else if at < readers + listers {
                    read(&client, MAPS, &shared).await;
                } else {
                    write(&client, &shared).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    clients.join_all().await;
}

async fn connect(kubeconfig: &str) -> Client {
    let options = shared::client::Options {
        kubeconfig: kubeconfig.to_owned(),
        user_agent: "ha-test".to_owned(),
        ..shared::client::Options::default()
    };
    shared::client::new(&options).await.expect("a client")
}

async fn read(client: &Client, path: &str, shared: &Shared) {
    let outcome = attempts(client, &Method::GET, path, &Value::Null).await;
    let faulty = *shared.faulty.lock();
    shared.tally.lock().count_read(path, &outcome, faulty);
}

/// Creates an object and deletes it again.
async fn write(client: &Client, shared: &Shared) {
    let name = format!("written-{}", SERIAL.fetch_add(1, Ordering::Relaxed));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let created = attempts(client, &Method::POST, MAPS, &map).await;
    let faulty = *shared.faulty.lock();
    shared.tally.lock().count_write(&Method::POST, MAPS, &created, faulty);

    let path = format!("{MAPS}/{name}");
    let mut deleted = attempts(client, &Method::DELETE, &path, &Value::Null).await;
    // The server did not know whether it made the object: that it did not is no failure of its own.
    if created.result.is_err() && matches!(deleted.result, Err((404, _))) {
        deleted.result = Ok(());
    }
    let faulty = *shared.faulty.lock();
    shared.tally.lock().count_write(&Method::DELETE, &path, &deleted, faulty);
}

/// Sends a request until a server answers it.
async fn attempts(client: &Client, method: &Method, path: &str, body: &Value) -> Outcome {
    let began = Instant::now();
    let mut retried = false;
    let result = loop {
        let text = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(text).expect("a request");
        let last = match tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await {
            Ok(Ok(_)) => break Ok(()),
            // A write whose answer was lost was done.
            Ok(Err(kube::Error::Api(status)))
                if retried && matches!(status.code, 404 | 409) && *method != Method::GET =>
            {
                break Ok(());
            }
            Ok(Err(kube::Error::Api(status))) => break Err((status.code, status.message.clone())),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if began.elapsed() > ALL {
            break Err((0, last));
        }
        retried = true;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    Outcome { began, took: began.elapsed(), retried, result }
}
