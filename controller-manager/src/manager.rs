//! The process: flags, clients, the secure port, leader election, and the controllers of one term. Answers for
//! upstream's `cmd/kube-controller-manager/app` (`Run`).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use shared::client::{Fence, Throttle, Transport};
use shared::events::Recorder;
use shared::flags::FlagSet;
use shared::leader::{self, Outcome};
use shared::run::{Shutdown, TaskGroup};
use shared::serve::{Configz, Debugging, DelegatedOptions, Health, Probe, SecureOptions, Server, Unhealthy, hostname};
use tokio::sync::Notify;

use crate::cloud::Provider;
use crate::controllers::TABLE;
use crate::engine::context::{Clients, Context, HostPort};
use crate::engine::heartbeat::Heartbeat;
use crate::engine::metrics;
use crate::engine::registry::{Controller, Started, known};
use crate::engine::rest::RestError;
use crate::engine::selection::Selection;
use crate::engine::settings::Settings;
use crate::migration::{self, Lock, Migration};
use crate::options;

/// By then controllers have looked at everything for the first time, and what that took is free.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// Run until shutdown, in no cloud.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    run_in(None, flags, shutdown).await
}

/// Run until shutdown, with a cloud whose routes, load balancers and machines are looked after.
pub async fn run_in(cloud: Option<Arc<dyn Provider>>, flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let known = known(TABLE);
    options::validate(&flags, &known)?;
    let selection = Selection::parse(&flags.list("controllers"), &known)?;
    let settings = Settings::of(&flags, selection);
    let place = HostPort { host: hostname(), debugging: Debugging::default(), cloud };
    let elect = flags.boolean("leader-elect");
    let migration = Migration::from_flags(&flags, &known)?.filter(|_| elect).map(Arc::new);
    let election = leader::Config::from_flags(&flags, &place.host);
    let (start_interval, patience) =
        (flags.duration("controller-start-interval"), flags.duration("controller-shutdown-timeout"));
    let (clients, leases) = clients(&flags, settings.own_accounts).await?;
    let tasks = TaskGroup::new();
    let events = Recorder::new(clients.main.client(), &tasks, &shutdown, "kube-controller-manager", "");
    let health = Health::new();
    if elect {
        let checked = election.clone();
        health.add(&[Probe::Healthz], "leaderElection", move || checked.check_health().map_err(Unhealthy::new));
    }
    serve(&flags, &health, &place.debugging, &tasks, &shutdown).await?;
    let manager = ControllerManager {
        clients,
        leases,
        events,
        settings,
        place,
        health,
        start_interval,
        patience,
        migration,
        tokens: Arc::default(),
        failure: Arc::default(),
        shutdown: shutdown.clone(),
    };
    flags.warn_unread();
    let result = if elect {
        manager.elect(&election).await
    } else {
        manager.clone().lead(Lock::Main, None, shutdown.clone()).await;
        Ok(())
    };
    shutdown.trigger();
    // Whoever has lost the lease has to be gone before another one may lead: nothing is waited for.
    result?;
    tasks.drain(patience).await;
    manager.failure.get().map_or(Ok(()), |why| Err(anyhow::anyhow!("{why}")))
}

/// The ways to the server that the flags describe, and one for leases alone: renewals wait behind no other request.
async fn clients(flags: &FlagSet, own_accounts: bool) -> anyhow::Result<(Clients, Transport)> {
    let options = shared::client::Options {
        kubeconfig: flags.string("kubeconfig"),
        master: flags.string("master"),
        #[allow(clippy::cast_possible_truncation, reason = "a small rate")]
        qps: flags.float("kube-api-qps") as f32,
        burst: u32::try_from(flags.integer("kube-api-burst")).unwrap_or(30),
        user_agent: shared::client::user_agent("kube-controller-manager"),
    };
    let config = shared::client::config(&options).await?;
    // By default controllers are not throttled here: the server's fair queuing does that, and their batches grow slowly.
    let asked = flags.is_set("kube-api-qps") || flags.is_set("kube-api-burst");
    let limits = if asked { (options.qps, options.burst) } else { (0.0, 0) };
    let main =
        shared::client::transport(&config, &Throttle::new(limits.0, limits.1)).context("client configuration")?;
    let leases = shared::client::transport(&config, &Throttle::new(0.0, 0)).context("client configuration")?;
    let authority = crate::csr::authority::chain(config.root_cert.as_deref().unwrap_or_default());
    let anonymous = if own_accounts { Some(without_identity(config)?) } else { None };
    Ok((Clients { main, anonymous, limits, authority }, leases))
}

/// The secure port: health, metrics and debugging pages, for those whom the API server knows and allows.
async fn serve(
    flags: &FlagSet,
    health: &Health,
    debugging: &Debugging,
    tasks: &TaskGroup,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let secure = SecureOptions::from_flags(flags)?;
    let Some(address) = secure.socket_address() else { return Ok(()) };
    let tls = secure.tls(&[], &[])?;
    let gate = DelegatedOptions::from_flags(flags).await?.build(tasks, shutdown)?;
    let configz = Configz::default();
    configz.set(crate::configz::NAME, crate::configz::document(flags));
    Server::secure("kube-controller-manager", address, tls)
        .listening(&secure)
        .access(gate.authenticator, gate.authorizer)
        .health(health)
        .metrics()
        .configz(&configz)
        .debugging(debugging)
        .flags(flags)
        .workers(1)
        .start(tasks, shutdown)
        .context("failed to create listener")
        .map(drop)
}

/// State that every term of leadership needs.
#[derive(Clone)]
struct ControllerManager {
    clients: Clients,
    /// The way that leases go.
    leases: Transport,
    /// Of the process itself.
    events: Recorder,
    settings: Settings,
    place: HostPort,
    health: Health,
    /// Between the starts of two controllers; up to twice that, at random.
    start_interval: Duration,
    /// Time that the controllers of a term may take to end (`--controller-shutdown-timeout`).
    patience: Duration,
    migration: Option<Arc<Migration>>,
    /// The controller that makes tokens has been started.
    tokens: Arc<Notify>,
    /// Reason why the process cannot go on.
    failure: Arc<OnceLock<String>>,
    shutdown: Shutdown,
}

impl ControllerManager {
    /// Lead under the lock, and under the one that is shared with other controller managers if there is one.
    async fn elect(&self, election: &leader::Config) -> anyhow::Result<()> {
        let migrated = async {
            let Some(migration) = &self.migration else { return Ok(()) };
            // Who leads here leads there, too: no process waits for the other lock with one lock held.
            tokio::select! {
                () = self.tokens.notified() => {}
                () = self.shutdown.wait() => return Ok(()),
            }
            let renewed = leader::Renewed::default();
            let election = leader::Config { lease_name: migration.lock.clone(), renewed, ..election.clone() };
            self.lead_elected(Lock::Migration, election).await
        };
        tokio::try_join!(self.lead_elected(Lock::Main, election.clone()), migrated).map(drop)
    }

    async fn lead_elected(&self, lock: Lock, election: leader::Config) -> anyhow::Result<()> {
        let fence = election.fence();
        let work = |token| self.clone().lead(lock, Some(fence), Shutdown::from(token));
        let client = self.leases.client();
        match leader::run(client, election, &self.events, self.shutdown.clone(), work).await {
            Outcome::Lost => Err(anyhow::anyhow!("leaderelection lost")),
            Outcome::Shutdown | Outcome::Finished => Ok(()),
        }
    }

    /// Runs one term of leadership: starts what is selected, waits for the end of the term and then until all of it has
    /// ended. The lease is given back when this returns. Nothing is written while `fence` is closed.
    async fn lead(self, lock: Lock, fence: Option<Fence>, term: Shutdown) {
        let Self { clients, settings, place, .. } = self.clone();
        let clients = fence.iter().fold(clients, Clients::fenced);
        let tasks = TaskGroup::new();
        let cx = Context::new(clients, tasks.clone(), term.clone(), settings, place);
        if let Err(why) = self.start_all(&cx, lock).await {
            // What this or others decide would be wrong or missing: another try begins from nothing.
            let _ = self.failure.set(why.to_string());
            self.shutdown.trigger();
        }
        term.wait().await;
        tasks.drain(self.patience).await;
    }

    async fn start_all(&self, cx: &Context, lock: Lock) -> Result<(), StartError> {
        let heartbeat = Heartbeat::default();
        cx.spawn("heartbeat", heartbeat.clone().beat(cx.shutdown().clone()));
        for controller in migration::led(TABLE, self.migration.as_deref(), lock) {
            // Each waits for what it asks for, and for no other's.
            let started = self.start(&cx.scoped(), controller, &heartbeat).await;
            started.map_err(|source| StartError { controller: controller.name, source })?;
            if controller.name == migration::FIRST {
                self.tokens.notify_one();
            }
        }
        cx.settings().gates.warn_idle();
        cx.factory().start();
        cx.hub().start(cx);
        release_memory_after_start(cx);
        Ok(())
    }

    async fn start(&self, cx: &Context, controller: &Controller, heartbeat: &Heartbeat) -> Result<(), RestError> {
        if !cx.settings().controllers.wants(controller.name, controller.on_by_default) {
            tracing::info!(controller = controller.name, "Controller is disabled");
            return Ok(());
        }
        if !self.start_interval.is_zero() {
            let pause = self.start_interval.mul_f64(rand::random_range(1.0..2.0));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cx.shutdown().wait() => return Ok(()),
            }
        }
        match (controller.start)(cx).await {
            Ok(Started::Yes) => {
                let heartbeat = heartbeat.clone();
                self.health.add(&[Probe::Healthz], controller.name, move || heartbeat.check().map_err(Unhealthy::new));
                metrics::set("running_managed_controllers", &["kube-controller-manager", controller.name], 1.0);
                tracing::info!(controller = controller.name, "Started controller");
            }
            Ok(Started::Skipped) => tracing::warn!(controller = controller.name, "Skipping controller"),
            Err(error) => {
                tracing::error!(controller = controller.name, %error, "Error starting controller");
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A controller that cannot start.
#[derive(Debug, thiserror::Error)]
#[error("error starting {controller}: {source}")]
struct StartError {
    controller: &'static str,
    source: RestError,
}

/// Twice gives back what starting took: when caches are filled, and when everything has been looked at.
fn release_memory_after_start(cx: &Context) {
    let settled = cx.clone();
    cx.spawn("after-start", async move {
        if !settled.factory().wait_synced().await {
            return;
        }
        shared::run::release_memory();
        tokio::select! {
            () = tokio::time::sleep(FIRST_LOOK) => shared::run::release_memory(),
            () = settled.shutdown().wait() => {}
        }
    });
}

/// The way to the same server with nothing presented; controllers add their service accounts' tokens.
fn without_identity(mut config: kube::Config) -> anyhow::Result<Transport> {
    config.auth_info = kube::config::AuthInfo::default();
    shared::client::transport(&config, &Throttle::new(0.0, 0)).context("client configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags that this component does not look at, and why.
    const NOT_READ: &[(&str, &[&str])] = &[
        ("no cloud is built in", &["cloud-config", "external-cloud-volume-plugin"]),
        ("requests are in whatever is read fastest", &["kube-api-content-type"]),
        ("nothing is missed that had to be looked at again", &["min-resync-period"]),
        ("there is nothing to profile locks with", &["contention-profiling"]),
        (
            "every process begins with them",
            &[
                "allow-metric-labels",
                "allow-metric-labels-manifest",
                "disabled-metrics",
                "show-hidden-metrics-for-version",
            ],
        ),
    ];

    #[tokio::test]
    async fn every_other_flag_is_read() {
        const COMPONENT: &str = "kube-controller-manager";
        let usual = FlagSet::of(COMPONENT, &[]).expect("flags");
        let args: Vec<String> = usual
            .all()
            .into_iter()
            .filter(|(name, _)| !matches!(name.as_str(), "help" | "version"))
            .map(|(name, value)| match name.as_str() {
                "tls-sni-cert-key" => format!("--{name}=a.crt,a.key"),
                _ => format!("--{name}={}", value.trim_start_matches('[').trim_end_matches(']')),
            })
            .collect();
        let flags = FlagSet::of(COMPONENT, &args.iter().map(String::as_str).collect::<Vec<_>>()).expect("flags");
        SecureOptions::from_flags(&flags).expect("options");
        DelegatedOptions::from_flags(&flags).await.expect("options");
        let _ = Server::plain(COMPONENT, ([127, 0, 0, 1], 0).into()).flags(&flags);
        // There is no server to reach.
        run(flags.clone(), Shutdown::new()).await.expect_err("no kubeconfig");
        let mut unread = flags.unread();
        unread.sort_unstable();
        let mut want: Vec<&str> = NOT_READ.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        want.sort_unstable();
        assert_eq!(unread, want);
    }

    /// A server that answers every request, and the paths of those that have come.
    async fn serve_paths() -> (std::net::SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let address = listener.local_addr().expect("address");
        let (sender, paths) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut part = [0; 4096];
                    while let Ok(read @ 1..) = stream.read(&mut part).await {
                        let text = String::from_utf8_lossy(&part[..read]).into_owned();
                        let _ = sender.send(text.split(' ').nth(1).unwrap_or_default().to_owned());
                        let reply = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
                        if stream.write_all(reply.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (address, paths)
    }

    /// Sends a request in a task of its own.
    fn ask(client: kube::Client, path: &'static str) {
        let request = http::Request::builder().uri(path).body(Vec::new()).expect("request");
        tokio::spawn(async move { client.request_text(request).await });
    }

    #[tokio::test]
    async fn renewals_of_the_lease_wait_behind_no_other_request() {
        let (address, mut paths) = serve_paths().await;
        let master = format!("--master=http://{address}");
        let args = [master.as_str(), "--kube-api-qps=0.1", "--kube-api-burst=1"];
        let flags = FlagSet::of("kube-controller-manager", &args).expect("flags");
        let (clients, leases) = clients(&flags, false).await.expect("clients");
        // The second one has to wait for ten seconds.
        let main = clients.main.client();
        ask(main.clone(), "/first");
        ask(main, "/second");
        tokio::time::sleep(Duration::from_millis(50)).await;
        ask(leases.client(), "/lease");
        let seen = async {
            let mut seen = Vec::new();
            while !seen.contains(&"/lease".to_owned()) {
                seen.extend(paths.recv().await);
            }
            seen
        };
        let seen = tokio::time::timeout(Duration::from_secs(5), seen).await.expect("the renewal waits");
        assert!(seen.contains(&"/first".to_owned()) && !seen.contains(&"/second".to_owned()), "{seen:?}");
    }
}
