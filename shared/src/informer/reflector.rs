//! Keeps one store current: streamed list, then WATCH from there, again from the last revision when the stream
//! ends, and a fresh list when that revision is gone. Answers for client-go's reflector.

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashSet;
use http::header::{ACCEPT, HeaderValue};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use rand::Rng;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

use super::Scope;
use super::frames::{Broken, FrameType, Frames, Raw, Refusal};
use super::store::Key;
use crate::run::Shutdown;

/// The server ends a watch after this long, spread so that clients do not all come back at once.
const WATCH_SECONDS: std::ops::Range<u32> = 200..290;
const PAGE: u32 = 500;
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// The media types that are asked for; none for the API's own JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Formats {
    /// Of watches.
    pub watch: Option<&'static str>,
    /// Of lists in pages; JSON in any case.
    pub list: Option<&'static str>,
}

/// Of the object that was put or removed.
pub(super) type Revision = Option<String>;
/// The objects that a list has named so far, if that is to be known.
pub(super) type Listed<'a> = Option<&'a mut HashSet<Key>>;

/// Interface of an informer towards its reflector: everything that depends on the kind is behind it, so that the code
/// that talks to the server exists once. Objects are passed as encoded.
pub(super) trait Cache: Send + Sync {
    fn request(&self) -> Request;
    fn kind(&self) -> String;
    fn scope(&self) -> &Scope;
    /// Up to which revision the store is complete.
    fn revision(&self) -> String;
    /// Encodings that watches and lists ask for.
    fn formats(&self) -> Formats;
    /// A list begins.
    fn begin_list(&self) {}
    fn put(&self, object: Raw<'_>, listed: Listed<'_>) -> Result<Revision, Broken>;
    fn remove(&self, object: Raw<'_>, listed: Listed<'_>) -> Result<Revision, Broken>;
    fn is_empty(&self) -> bool;
    /// Drops what the list did not name (if it may hold any such), and opens the latch.
    fn finish_list(&self, seen: Option<&HashSet<Key>>, revision: String);
    fn advance(&self, revision: String);
    /// A list or a watch failed.
    fn failed(&self, error: &str) {
        tracing::warn!(kind = self.kind(), %error, "Failed to list or watch");
    }
    /// A watch was opened that tells of everything from now on.
    fn connected(&self) {}
    /// Waits for [`Cache::connected`] before anything is told.
    fn disconnected(&self) {}
    /// True on the first call.
    fn first_start(&self) -> bool;
    /// Becomes true with the initial list.
    fn subscribe(&self) -> watch::Receiver<bool>;
}

pub(super) struct Reflector {
    cache: Arc<dyn Cache>,
    client: Client,
    shutdown: Shutdown,
    /// False while a list is asked for in pages, because the server could not stream it.
    streaming: bool,
    failures: u32,
}

/// Reasons for which a list or a watch ended.
#[derive(Debug)]
enum End {
    /// The server closed the stream: watch on.
    Closed,
    /// The revision is too old: list again.
    Expired,
    /// Something failed: try again later.
    Failed(String),
    /// The server would not stream the list; it may give pages.
    Unsupported,
}

/// A watch that ends earlier, with nothing received, counts as failed; client-go's `VeryShortWatchError`.
const SHORT_WATCH: Duration = Duration::from_secs(1);

impl Reflector {
    pub(super) fn new(cache: Arc<dyn Cache>, client: Client, shutdown: Shutdown) -> Self {
        Self { cache, client, shutdown, streaming: true, failures: 0 }
    }

    pub(super) async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        let mut listed = false;
        loop {
            let end = tokio::select! {
                () = shutdown.wait() => return,
                end = self.session(&mut listed) => end,
            };
            match end {
                End::Closed => self.failures = 0,
                End::Expired => listed = false,
                End::Unsupported => {
                    self.streaming = false;
                    continue;
                }
                End::Failed(error) => {
                    self.failures = self.failures.saturating_add(1);
                    self.cache.disconnected();
                    self.cache.failed(&error);
                }
            }
            let delay = self.delay();
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Delay before the next attempt: nearly none after an orderly end, doubling with jitter after failures.
    fn delay(&self) -> Duration {
        if self.failures == 0 {
            return Duration::from_millis(rand::rng().random_range(0..50));
        }
        let longest = FIRST_DELAY.saturating_mul(1 << self.failures.min(8)).min(LONGEST_DELAY);
        longest.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    async fn session(&mut self, listed: &mut bool) -> End {
        if *listed {
            return self.watch(None).await;
        }
        if self.streaming {
            return self.watch(Some(listed)).await;
        }
        // The next list may be streamed again: what was in the way need not last.
        self.streaming = true;
        match self.list().await {
            Ok(()) => {
                *listed = true;
                self.watch(None).await
            }
            Err(end) => end,
        }
    }

    /// Watches from the store's revision, or streams the initial list first and says so in `initial`.
    async fn watch(&mut self, mut initial: Option<&mut bool>) -> End {
        let scope = self.cache.scope();
        let params = WatchParams {
            label_selector: scope.labels.clone(),
            field_selector: scope.fields.clone(),
            timeout: Some(rand::rng().random_range(WATCH_SECONDS)),
            bookmarks: true,
            send_initial_events: initial.is_some(),
        };
        let version = if initial.is_some() { String::new() } else { self.cache.revision() };
        let request = match self.cache.request().watch(&params, &version) {
            Ok(request) => request,
            Err(error) => return End::Failed(error.to_string()),
        };
        let mut frames = match Frames::open(&self.client, request, self.cache.formats().watch).await {
            Ok(frames) => frames,
            Err(why) => return refusal(why, initial.is_some()),
        };
        if let Some(listed) = initial.take() {
            if let Err(end) = self.receive_initial(&mut frames).await {
                return end;
            }
            *listed = true;
        }
        self.follow(&mut frames).await
    }

    async fn receive_initial(&mut self, frames: &mut Frames) -> Result<(), End> {
        // Where nothing was before, nothing can be left over.
        let fresh = self.cache.is_empty();
        self.cache.begin_list();
        let mut seen = HashSet::default();
        loop {
            // So many frames may be there at once that others would wait for long.
            consume_budget().await;
            let frame = frames.next().await.map_err(|why| refusal(why, true))?;
            match frame.change() {
                FrameType::Put => drop(self.put(frame.object(), (!fresh).then_some(&mut seen))),
                FrameType::Remove => {
                    self.remove(frame.object(), Some(&mut seen))?;
                }
                FrameType::Bookmark => {
                    let (revision, end) = frame.bookmark().map_err(broken)?;
                    if end {
                        self.cache.finish_list((!fresh).then_some(&seen), revision);
                        self.failures = 0;
                        return Ok(());
                    }
                }
                FrameType::Error => return Err(refusal(frame.refusal(), true)),
            }
        }
    }

    async fn follow(&mut self, frames: &mut Frames) -> End {
        self.cache.connected();
        let (begun, mut received) = (Instant::now(), false);
        loop {
            consume_budget().await;
            let frame = match frames.next().await {
                Ok(frame) => frame,
                // A server that ends every watch at once must not be asked again at once, for ever.
                Err(Refusal::Closed) if !received && begun.elapsed() < SHORT_WATCH => {
                    return End::Failed(
                        "very short watch: the watch ended within a second and no items were received".to_owned(),
                    );
                }
                Err(why) => return refusal(why, false),
            };
            (received, self.failures) = (true, 0);
            let revision = match frame.change() {
                FrameType::Put => self.put(frame.object(), None).unwrap_or_default(),
                FrameType::Remove => match self.remove(frame.object(), None) {
                    Ok(revision) => revision.unwrap_or_default(),
                    Err(end) => return end,
                },
                FrameType::Bookmark => match frame.bookmark() {
                    Ok((revision, _)) => revision,
                    Err(error) => return broken(error),
                },
                FrameType::Error => return refusal(frame.refusal(), false),
            };
            self.cache.advance(revision);
        }
    }

    /// Leaves out an object of which not even the name can be read; it must not keep the others away.
    fn put(&self, object: Raw<'_>, listed: Listed<'_>) -> Revision {
        match self.cache.put(object, listed) {
            Ok(revision) => revision,
            Err(error) => {
                tracing::error!(kind = self.cache.kind(), err = %error, "Failed to decode object without a name");
                None
            }
        }
    }

    /// Lists anew when it is not known what was removed: the list does not name it, so this ends.
    fn remove(&self, object: Raw<'_>, listed: Listed<'_>) -> Result<Revision, End> {
        self.cache.remove(object, listed).map_err(|error| {
            tracing::error!(kind = self.cache.kind(), err = %error, "Failed to decode removed object without a name");
            End::Expired
        })
    }

    /// The list for servers that cannot stream it: pages, each stored before the next is asked for.
    async fn list(&mut self) -> Result<(), End> {
        let scope = self.cache.scope();
        let mut params = ListParams {
            label_selector: scope.labels.clone(),
            field_selector: scope.fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut seen = HashSet::default();
        self.cache.begin_list();
        loop {
            let mut request = self.cache.request().list(&params).map_err(|error| End::Failed(error.to_string()))?;
            if let Some(format) = self.cache.formats().list {
                request.headers_mut().insert(ACCEPT, HeaderValue::from_static(format));
            }
            let page: ListPage = match self.client.request(request).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) => {
                    return Err(refusal(Refusal::Status(status.code, status.message), false));
                }
                Err(error) => return Err(End::Failed(error.to_string())),
            };
            for object in page.items {
                consume_budget().await;
                self.put(Raw::Json(object.get()), Some(&mut seen));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    self.cache.finish_list(Some(&seen), page.metadata.resource_version.unwrap_or_default());
                    self.failures = 0;
                    return Ok(());
                }
            }
        }
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct ListPage {
    metadata: ListMeta,
    items: Vec<Box<RawValue>>,
}

fn broken(error: Broken) -> End {
    End::Failed(error.to_string())
}

fn refusal(why: Refusal, streaming: bool) -> End {
    match why {
        Refusal::Closed => End::Closed,
        Refusal::Status(410, _) => End::Expired,
        // A server that does not know `sendInitialEvents`, or has it switched off, calls it invalid. One whose etcd
        // cannot tell how far it is begins the stream and ends it with an internal error. As client-go does, whatever
        // it says but that it is busy, pages are asked for.
        Refusal::Status(code, _) if streaming && code != 429 => End::Unsupported,
        Refusal::Status(_, message) | Refusal::Failed(message) => End::Failed(message),
    }
}
