//! Clients that read and write all the time. What never reached a server, or whose connection broke, is sent again, as every
//! client of Kubernetes does; what a server refused is a failure.

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
    last_failure: String,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reads, {} failed, slowest {} ms; {} writes, {} failed, slowest {} ms; {} sent again",
            self.reads,
            self.failed_reads,
            self.slowest_read.as_millis(),
            self.writes,
            self.failed_writes,
            self.slowest_write.as_millis(),
            self.retried,
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
    }
}

/// Clients at work, each with a connection of its own.
pub struct Traffic {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Traffic {
    /// Makes the object that clients read.
    pub fn prepare(cluster: &Cluster) {
        cluster.kubectl("create configmap read --from-literal=a=b");
        // Another test of the process may have chosen it before.
        rustls::crypto::ring::default_provider().install_default().ok();
    }

    /// Starts them.
    pub fn start(cluster: &Cluster) -> Self {
        let (tally, stop) = (Arc::<Mutex<Tally>>::default(), Arc::<AtomicBool>::default());
        let kubeconfig = cluster.layout().admin_conf().display().to_string();
        let (counts, end) = (Arc::clone(&tally), Arc::clone(&stop));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let thread = std::thread::spawn(move || runtime.block_on(work(kubeconfig, counts, end)));
        Self { tally, stop, thread }
    }

    /// Ends them and returns what they counted.
    pub fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the clients end");
        std::mem::take(&mut *self.tally.lock())
    }
}

async fn work(kubeconfig: String, tally: Arc<Mutex<Tally>>, stop: Arc<AtomicBool>) {
    let mut clients = JoinSet::new();
    let serial = Arc::new(AtomicU64::new(0));
    let (readers, listers, writers) = CLIENTS;
    for at in 0..readers + listers + writers {
        let client = connect(&kubeconfig).await;
        let (tally, stop, serial) = (Arc::clone(&tally), Arc::clone(&stop), Arc::clone(&serial));
        clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                if at < readers {
                    read(&client, &format!("{MAPS}/read"), &tally).await;
                } else if at < readers + listers {
                    read(&client, MAPS, &tally).await;
                } else {
                    write(&client, serial.fetch_add(1, Ordering::Relaxed), &tally).await;
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

async fn read(client: &Client, path: &str, tally: &Mutex<Tally>) {
    let (outcome, took, retried) = attempts(client, &Method::GET, path, &Value::Null).await;
    let mut tally = tally.lock();
    tally.reads += 1;
    tally.retried += u64::from(retried);
    tally.slowest_read = tally.slowest_read.max(took);
    if let Err(failure) = outcome {
        tally.failed_reads += 1;
        tally.last_failure = format!("GET {path}: {failure}");
    }
}

/// Creates an object and deletes it again.
async fn write(client: &Client, serial: u64, tally: &Mutex<Tally>) {
    let name = format!("written-{serial}");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    for (method, path, body) in
        [(Method::POST, MAPS.to_owned(), map), (Method::DELETE, format!("{MAPS}/{name}"), Value::Null)]
    {
        let (outcome, took, retried) = attempts(client, &method, &path, &body).await;
        let mut tally = tally.lock();
        tally.writes += 1;
        tally.retried += u64::from(retried);
        tally.slowest_write = tally.slowest_write.max(took);
        if let Err(failure) = outcome {
            tally.failed_writes += 1;
            tally.last_failure = format!("{method} {path}: {failure}");
        }
    }
}

/// Sends a request until a server answers it; how long that took, and whether once was not enough.
async fn attempts(client: &Client, method: &Method, path: &str, body: &Value) -> (Result<(), String>, Duration, bool) {
    let began = Instant::now();
    let mut retried = false;
    loop {
        let text = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(text).expect("a request");
        let last = match tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await {
            Ok(Ok(_)) => return (Ok(()), began.elapsed(), retried),
            // A write whose answer was lost was done.
            Ok(Err(kube::Error::Api(status)))
                if retried && matches!(status.code, 404 | 409) && *method != Method::GET =>
            {
                return (Ok(()), began.elapsed(), retried);
            }
            Ok(Err(kube::Error::Api(status))) => {
                return (Err(format!("{} {}", status.code, status.message)), began.elapsed(), retried);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if began.elapsed() > ALL {
            return (Err(last), began.elapsed(), retried);
        }
        retried = true;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
