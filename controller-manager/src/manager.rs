//! The process: flags, clients, the secure port, leader election, and the controllers of one term.

use std::time::Duration;

use anyhow::Context as _;
use shared::client::{Throttle, Transport};
use shared::flags::FlagSet;
use shared::leader::{self, Outcome};
use shared::run::{Shutdown, TaskGroup};
use shared::serve::{Configz, DelegatedOptions, Health, Probe, SecureOptions, Server, hostname};

use crate::controllers::TABLE;
use crate::engine::context::{Clients, Context};
use crate::engine::metrics;
use crate::engine::registry::{Selection, Started, known};
use crate::engine::settings::Settings;

/// By then controllers have looked at everything for the first time, and what that took is free.
const FIRST_LOOK: Duration = Duration::from_secs(30);
/// How long controllers may take to finish what they are at.
const DRAIN: Duration = Duration::from_secs(5);

/// Run until shutdown.
pub async fn run(flags: FlagSet, shutdown: Shutdown) -> anyhow::Result<()> {
    let selection = Selection::parse(&flags.list("controllers"), &known(TABLE))?;
    let settings = Settings::of(&flags, selection);
    let options = shared::client::Options {
        kubeconfig: flags.string("kubeconfig"),
        master: flags.string("master"),
        #[allow(clippy::cast_possible_truncation, reason = "a small rate")]
        qps: flags.float("kube-api-qps") as f32,
        burst: u32::try_from(flags.integer("kube-api-burst")).unwrap_or(30),
        user_agent: shared::client::user_agent("kube-controller-manager"),
    };
    let host = hostname();
    let elect = flags.boolean("leader-elect");
    let election = leader::Config::from_flags(&flags, &host);
    let config = shared::client::config(&options).await?;
    // By default controllers are not throttled here: the server's fair queuing does that, and their batches grow slowly.
    let asked = flags.is_set("kube-api-qps") || flags.is_set("kube-api-burst");
    let throttle = if asked { Throttle::new(options.qps, options.burst) } else { Throttle::new(0.0, 0) };
    let main = shared::client::transport(&config, &throttle).context("client configuration")?;
    let authority = crate::csr::authority::chain(config.root_cert.as_deref().unwrap_or_default());
    let anonymous = if settings.own_accounts { Some(without_identity(config)?) } else { None };
    let tasks = TaskGroup::new();
    let health = Health::new();
    health.add(&[Probe::Healthz], "leaderElection", || Ok(()));
    serve(&flags, &health, &tasks, &shutdown).await?;
    flags.warn_unread();

    let work = {
        let (main, tasks) = (main.clone(), tasks.clone());
        move |term: Shutdown| async move {
            lead(Clients { main, anonymous, authority }, tasks, term, settings, host, health).await
        }
    };
    let result = if elect {
        match leader::run(main.client(), election, shutdown.clone(), |token| work(Shutdown::from(token))).await {
            Outcome::Lost => Err(anyhow::anyhow!("leaderelection lost")),
            Outcome::Shutdown | Outcome::Finished => Ok(()),
        }
    } else {
        work(shutdown.clone()).await;
        Ok(())
    };
    shutdown.trigger();
    tasks.drain(DRAIN).await;
    result
}

/// The secure port: health, metrics and debugging pages, for those whom the API server knows and allows.
async fn serve(flags: &FlagSet, health: &Health, tasks: &TaskGroup, shutdown: &Shutdown) -> anyhow::Result<()> {
    let secure = SecureOptions::from_flags(flags)?;
    let Some(address) = secure.socket_address() else { return Ok(()) };
    let tls = secure.tls(&[], &[])?;
    let gate = DelegatedOptions::from_flags(flags).await?.build(tasks, shutdown)?;
    let configz = Configz::default();
    configz.set(crate::configz::NAME, crate::configz::document(flags));
    let bound = Server::secure("kube-controller-manager", address, tls)
        .access(gate.authenticator, gate.authorizer)
        .health(health)
        .metrics()
        .configz(&configz)
        .flags(flags)
        .workers(1)
        .start(tasks, shutdown)
        .context("failed to create listener")?;
    tracing::info!(address = %bound, "Serving securely");
    Ok(())
}

/// One term of leadership: start what is selected, then wait for its end.
async fn lead(clients: Clients, tasks: TaskGroup, term: Shutdown, settings: Settings, host: String, health: Health) {
    let cx = Context::new(clients, tasks, term.clone(), settings, host);
    for controller in TABLE {
        if !cx.settings().controllers.wants(controller.name, controller.on_by_default) {
            tracing::info!(controller = controller.name, "Controller is disabled");
            continue;
        }
        match (controller.start)(&cx).await {
            Ok(Started::Yes) => {
                health.add(&[Probe::Healthz], controller.name, || Ok(()));
                metrics::set("running_managed_controllers", &["kube-controller-manager", controller.name], 1.0);
                tracing::info!(controller = controller.name, "Started controller");
            }
            Ok(Started::Skipped) => tracing::warn!(controller = controller.name, "Skipping controller"),
            Err(error) => tracing::error!(controller = controller.name, %error, "Error starting controller"),
        }
    }
    cx.factory().start();
    cx.hub().start(&cx);
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
    term.wait().await;
}

/// The way to the same server with nothing presented; controllers add their service accounts' tokens.
fn without_identity(mut config: kube::Config) -> anyhow::Result<Transport> {
    config.auth_info = kube::config::AuthInfo::default();
    shared::client::transport(&config, &Throttle::new(0.0, 0)).context("client configuration")
}
