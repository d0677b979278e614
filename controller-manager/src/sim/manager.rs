//! The controllers as the process runs them, against the simulated server; they can die and be replaced.

use std::sync::Arc;

use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};

use super::http::{Server, Way};
use crate::cloud::Provider;
use crate::controllers::TABLE;
use crate::engine::context::{Clients, Context, HostPort};
use crate::engine::registry::known;
use crate::engine::selection::Selection;
use crate::engine::settings::Settings;

/// One term of leadership.
pub(super) struct Manager {
    shutdown: Shutdown,
    way: Way,
}

impl Manager {
    /// Start the controllers with these flags.
    pub(super) async fn start(server: &Arc<Server>, flags: &[String]) -> Self {
        let way = Way::default();
        let (cx, shutdown) = Self::context_over(server, flags, None, &way);
        for controller in TABLE {
            if cx.settings().controllers.wants(controller.name, controller.on_by_default) {
                // Those that lack a key file are skipped, as in the process.
                let _ = (controller.start)(&cx.scoped()).await;
            }
        }
        cx.factory().start();
        cx.hub().start(&cx);
        Self { shutdown, way }
    }

    /// Returns the context that controllers are started with, and the signal that ends them.
    pub(super) fn context(
        server: &Arc<Server>,
        flags: &[String],
        cloud: Option<Arc<dyn Provider>>,
    ) -> (Context, Shutdown) {
        Self::context_over(server, flags, cloud, &Way::default())
    }

    fn context_over(
        server: &Arc<Server>,
        flags: &[String],
        cloud: Option<Arc<dyn Provider>>,
        way: &Way,
    ) -> (Context, Shutdown) {
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        let flags = FlagSet::of("kube-controller-manager", &args).unwrap_or_else(|e| panic!("{e:?}"));
        let selection = Selection::parse(&flags.list("controllers"), &known(TABLE)).expect("known controllers");
        let settings = Settings::of(&flags, selection);
        let shutdown = Shutdown::from(way.dead.clone());
        let main = server.transport(way);
        let clients = Clients { main, anonymous: None, limits: (0.0, 0), authority: String::new() };
        let cx = Context::new(
            clients,
            TaskGroup::new(),
            shutdown.clone(),
            settings,
            HostPort { host: "host".into(), cloud, ..HostPort::default() },
        );
        (cx, shutdown)
    }

    /// Stops it where it is.
    pub(super) fn freeze(&self) {
        self.way.frozen.send_replace(true);
    }

    /// Lets it go on: what it had sent is done, what it sends is held back, and it learns that it does not lead any more.
    pub(super) fn thaw(&self) {
        self.kill();
        self.way.frozen.send_replace(false);
    }

    /// Ends the manager, whatever it is doing.
    pub(super) fn kill(&self) {
        self.shutdown.trigger();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.kill();
    }
}
