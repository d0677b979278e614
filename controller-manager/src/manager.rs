//! The process: flags, clients, the secure port, leader election, and the controllers of one term.

use std::time::Duration;

use anyhow::Context as _;
use shared::flags::FlagSet;
use shared::leader::{self, Outcome};
use shared::run::{Shutdown, TaskGroup};

use crate::controllers::TABLE;
use crate::engine::context::{Clients, Context};
use crate::engine::registry::{Selection, Started, known};
use crate::engine::settings::Settings;

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
    let host = host_name();
    let elect = flags.boolean("leader-elect");
    let election = leader::Config::from_flags(&flags, &host);
    // Controllers are not throttled here: the server's fair queuing is, and their batches grow slowly.
    let main = shared::client::new(&shared::client::Options { qps: 0.0, ..options.clone() }).await?;
    let anonymous = if settings.own_accounts { Some(without_identity(&options).await?) } else { None };
    let tasks = TaskGroup::new();
    flags.warn_unread();

    let work = {
        let (main, tasks) = (main.clone(), tasks.clone());
        move |term: Shutdown| async move { lead(Clients { main, anonymous }, tasks, term, settings, host).await }
    };
    let result = if elect {
        match leader::run(main, election, shutdown.clone(), |token| work(Shutdown::from(token))).await {
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

/// One term of leadership: start what is selected, then wait for its end.
async fn lead(clients: Clients, tasks: TaskGroup, term: Shutdown, settings: Settings, host: String) {
    let cx = Context::new(clients, tasks, term.clone(), settings, host);
    for controller in TABLE {
        if !cx.settings().controllers.wants(controller.name, controller.on_by_default) {
            tracing::info!(controller = controller.name, "Controller is disabled");
            continue;
        }
        match (controller.start)(&cx).await {
            Ok(Started::Yes) => tracing::info!(controller = controller.name, "Started controller"),
            Ok(Started::Skipped) => tracing::warn!(controller = controller.name, "Skipping controller"),
            Err(error) => tracing::error!(controller = controller.name, %error, "Error starting controller"),
        }
    }
    cx.factory().start();
    let settled = cx.clone();
    cx.spawn("after-start", async move {
        if settled.factory().wait_synced().await {
            shared::run::release_memory();
        }
    });
    term.wait().await;
}

/// A client for the same server that presents nothing; controllers add their service accounts' tokens.
async fn without_identity(options: &shared::client::Options) -> anyhow::Result<kube::Client> {
    let mut config = shared::client::config(options).await?;
    config.auth_info = kube::config::AuthInfo::default();
    let client = kube::client::ClientBuilder::try_from(config).context("client configuration")?.build();
    Ok(client)
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "localhost".into(), |h| h.trim().to_owned())
}
