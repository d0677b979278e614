//! Collections that are followed without being held: whoever keeps what it needs of them in a form of its own is told
//! what they hold, by the same list-watch that keeps an informer current.

use std::sync::Arc;

use foldhash::HashSet;
use kube::Client;
use kube::core::Request;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Scope;
use super::frames::{Broken, Raw};
use super::reflector::{Cache, Formats, Listed, Reflector, Revision};
use super::store::Key;
use crate::run::Shutdown;

/// Consumer of a collection. Called on the watch task: must not block.
pub trait Follower: Send + Sync {
    /// The collection's path.
    fn path(&self) -> String;
    /// The kind, for logs.
    fn kind(&self) -> String;
    /// Encodings that watches and lists ask for.
    fn formats(&self) -> Formats;
    /// A list begins: what was told before may be gone.
    fn begin(&self);
    /// An object is there; says its version.
    ///
    /// # Errors
    /// An object that cannot be read is left out.
    fn put(&self, object: Raw<'_>) -> Result<String, Broken>;
    /// An object is gone; says the version of that.
    ///
    /// # Errors
    /// An object that cannot be read: the collection is listed anew.
    fn remove(&self, object: Raw<'_>) -> Result<String, Broken>;
    /// The list is complete.
    fn listed(&self);
    /// The collection could not be listed or watched; it will be tried again.
    fn failed(&self, error: &str);
}

/// Follows a collection until `shutdown`.
pub async fn follow(client: Client, follower: Arc<dyn Follower>, shutdown: Shutdown) {
    let followed = Followed { follower, revision: Mutex::default(), synced: watch::Sender::new(false) };
    Reflector::new(Arc::new(followed), client, shutdown).run().await;
}

struct Followed {
    follower: Arc<dyn Follower>,
    revision: Mutex<String>,
    synced: watch::Sender<bool>,
}

impl Cache for Followed {
    fn request(&self) -> Request {
        Request::new(self.follower.path())
    }

    fn kind(&self) -> String {
        self.follower.kind()
    }

    fn scope(&self) -> &Scope {
        const ALL: &Scope = &Scope { namespace: None, labels: None, fields: None };
        ALL
    }

    fn revision(&self) -> String {
        self.revision.lock().clone()
    }

    fn formats(&self) -> Formats {
        self.follower.formats()
    }

    fn begin_list(&self) {
        self.follower.begin();
    }

    fn put(&self, object: Raw<'_>, _: Listed<'_>) -> Result<Revision, Broken> {
        self.follower.put(object).map(Some)
    }

    fn remove(&self, object: Raw<'_>, _: Listed<'_>) -> Result<Revision, Broken> {
        self.follower.remove(object).map(Some)
    }

    fn is_empty(&self) -> bool {
        // Nothing of it is here.
        true
    }

    fn finish_list(&self, _: Option<&HashSet<Key>>, revision: String) {
        self.advance(revision);
        self.follower.listed();
        self.synced.send_replace(true);
    }

    fn advance(&self, revision: String) {
        if !revision.is_empty() {
            *self.revision.lock() = revision;
        }
    }

    fn failed(&self, error: &str) {
        self.follower.failed(error);
    }

    fn first_start(&self) -> bool {
        true
    }

    fn subscribe(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }
}
