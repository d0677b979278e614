//! The controllers as the process runs them, against the simulated server; they can die and be replaced.

use std::sync::Arc;

use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};

use super::http::Server;
use crate::cloud::Provider;
use crate::controllers::TABLE;
use crate::engine::context::{Clients, Context, Place};
use crate::engine::registry::{Selection, known};
use crate::engine::settings::Settings;

/// One term of leadership.
pub(super) struct Manager {
    shutdown: Shutdown,
}

impl Manager {
    /// Start the controllers with these flags.
    pub(super) async fn start(server: &Arc<Server>, flags: &[String]) -> Self {
        let (cx, shutdown) = Self::context(server, flags, None);
        for controller in TABLE {
            if cx.settings().controllers.wants(controller.name, controller.on_by_default) {
                // Those that lack a key file are skipped, as in the process.
                let _ = (controller.start)(&cx.scoped()).await;
            }
        }
        cx.factory().start();
        cx.hub().start(&cx);
        Self { shutdown }
    }

    /// What controllers are started with, and what ends them.
    pub(super) fn context(
        server: &Arc<Server>,
        flags: &[String],
        cloud: Option<Arc<dyn Provider>>,
    ) -> (Context, Shutdown) {
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        let flags = FlagSet::of("kube-controller-manager", &args).unwrap_or_else(|e| panic!("{e:?}"));
        let selection = Selection::parse(&flags.list("controllers"), &known(TABLE)).expect("known controllers");
        let settings = Settings::of(&flags, selection);
        let shutdown = Shutdown::new();
        let main = server.transport(shutdown.token().clone());
        let clients = Clients { main, anonymous: None, limits: (0.0, 0), authority: String::new() };
        let cx = Context::new(
            clients,
            TaskGroup::new(),
            shutdown.clone(),
            settings,
            Place { host: "host".into(), cloud, ..Place::default() },
        );
        (cx, shutdown)
    }

    /// It is gone, whatever it was doing.
    pub(super) fn kill(&self) {
        self.shutdown.trigger();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.kill();
    }
}
