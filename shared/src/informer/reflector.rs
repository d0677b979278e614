//! Keeps one store current: streamed list, then WATCH from there, again from the last revision when the stream
//! ends, and a fresh list when that revision is gone. Answers for client-go's reflector.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::watch::Bookmark;
use kube::core::{Request, Status};
use rand::Rng;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::Scope;
use super::store::Key;
use crate::run::Shutdown;

/// The server ends a watch after this long, spread so that clients do not all come back at once.
const WATCH_SECONDS: std::ops::Range<u32> = 200..290;
/// A stream that is silent for longer than its own timeout is dead.
const SILENCE: Duration = Duration::from_secs(320);
const PAGE: u32 = 500;
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What was put or removed.
pub(super) struct Put {
    pub(super) key: Key,
    pub(super) revision: Option<String>,
}

/// What a reflector knows of an informer: all that depends on the kind is behind it, so that the code that talks to
/// the server exists once. Objects are passed as the JSON text they came in.
pub(super) trait Cache: Send + Sync {
    fn request(&self) -> Request;
    fn kind(&self) -> String;
    fn scope(&self) -> &Scope;
    /// Up to which revision the store is complete.
    fn revision(&self) -> String;
    fn put(&self, object: &str) -> serde_json::Result<Put>;
    fn remove(&self, object: &str) -> serde_json::Result<Put>;
    /// Drops what the list did not name, and opens the latch.
    fn finish_list(&self, seen: &HashSet<Key>, revision: String);
    fn advance(&self, revision: String);
    /// True on the first call.
    fn first_start(&self) -> bool;
    /// Becomes true with the initial list.
    fn subscribe(&self) -> watch::Receiver<bool>;
}

pub(super) struct Reflector {
    cache: Arc<dyn Cache>,
    client: Client,
    shutdown: Shutdown,
    /// False once the server has refused `sendInitialEvents`.
    streaming: bool,
    failures: u32,
}

/// Why a list or a watch ended.
#[derive(Debug)]
enum End {
    /// The server closed the stream: watch on.
    Closed,
    /// The revision is too old: list again.
    Expired,
    /// Something failed: try again later.
    Failed(String),
    /// The server cannot stream lists.
    Unsupported,
}

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
                    tracing::warn!(kind = self.cache.kind(), %error, "Failed to list or watch");
                }
            }
            let delay = self.delay();
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Nothing after an orderly end, doubling with jitter after failures.
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
        let stream = match self.client.request_stream(request).await {
            Ok(stream) => stream.lines(),
            Err(kube::Error::Api(status)) => return refusal(status.code, &status.message, initial.is_some()),
            Err(error) => return End::Failed(error.to_string()),
        };
        let mut stream = pin!(stream);
        if let Some(listed) = initial.take() {
            if let Err(end) = self.receive_initial(&mut stream).await {
                return end;
            }
            *listed = true;
        }
        self.follow(&mut stream).await
    }

    async fn receive_initial<S>(&mut self, stream: &mut S) -> Result<(), End>
    where
        S: Stream<Item = io::Result<String>> + Unpin,
    {
        let mut seen = HashSet::new();
        loop {
            let Line { kind, object } = next(stream).await?;
            match &*kind {
                "ADDED" | "MODIFIED" => {
                    seen.extend(self.put(&object).map(|put| put.key));
                }
                "DELETED" => {
                    seen.remove(&self.cache.remove(object.get()).map_err(undecodable)?.key);
                }
                "BOOKMARK" => {
                    let mark: Bookmark = serde_json::from_str(object.get()).map_err(undecodable)?;
                    if mark.metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|v| v == "true") {
                        self.cache.finish_list(&seen, mark.metadata.resource_version);
                        self.failures = 0;
                        return Ok(());
                    }
                }
                _ => return Err(farewell(&object, true)),
            }
        }
    }

    async fn follow<S>(&mut self, stream: &mut S) -> End
    where
        S: Stream<Item = io::Result<String>> + Unpin,
    {
        loop {
            let line = match next(stream).await {
                Ok(line) => line,
                Err(end) => return end,
            };
            self.failures = 0;
            if let Err(end) = self.apply(&line) {
                return end;
            }
        }
    }

    fn apply(&self, Line { kind, object }: &Line) -> Result<(), End> {
        let revision = match &**kind {
            "ADDED" | "MODIFIED" => self.put(object).and_then(|put| put.revision).unwrap_or_default(),
            "DELETED" => self.cache.remove(object.get()).map_err(undecodable)?.revision.unwrap_or_default(),
            "BOOKMARK" => {
                serde_json::from_str::<Bookmark>(object.get()).map_err(undecodable)?.metadata.resource_version
            }
            _ => return Err(farewell(object, false)),
        };
        self.cache.advance(revision);
        Ok(())
    }

    /// An object that cannot be decoded is left out; it must not keep the others away.
    fn put(&self, object: &RawValue) -> Option<Put> {
        let put = self.cache.put(object.get());
        put.inspect_err(|error| tracing::warn!(kind = self.cache.kind(), %error, "Failed to decode an object")).ok()
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
        let mut seen = HashSet::new();
        loop {
            let request = self.cache.request().list(&params).map_err(|error| End::Failed(error.to_string()))?;
            let page: Page = match self.client.request(request).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) => return Err(refusal(status.code, &status.message, false)),
                Err(error) => return Err(End::Failed(error.to_string())),
            };
            for object in page.items {
                seen.extend(self.put(&object).map(|put| put.key));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    self.cache.finish_list(&seen, page.metadata.resource_version.unwrap_or_default());
                    self.failures = 0;
                    return Ok(());
                }
            }
        }
    }
}

async fn next<S>(stream: &mut S) -> Result<Line, End>
where
    S: Stream<Item = io::Result<String>> + Unpin,
{
    match tokio::time::timeout(SILENCE, stream.next()).await {
        Err(_) => Err(End::Failed("the watch stream is silent".to_owned())),
        Ok(None) => Err(End::Closed),
        Ok(Some(Err(error))) if is_cut(&error) => Err(End::Closed),
        Ok(Some(Err(error))) => Err(End::Failed(error.to_string())),
        Ok(Some(Ok(line))) => parse(&line),
    }
}

/// A stream that ended without a farewell, as a connection of a server that stops does.
fn is_cut(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if one.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = one.source();
    }
    error.to_string().contains("unexpected EOF")
}

/// One line of a watch. The object stays text until the cache decodes it.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Box<RawValue>,
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    items: Vec<Box<RawValue>>,
}

fn parse(line: &str) -> Result<Line, End> {
    serde_json::from_str(line).map_err(|error| match serde_json::from_str::<Status>(line) {
        // The last line of a connection that was cut.
        _ if error.is_eof() => End::Closed,
        Ok(status) if status.code != 0 => refusal(status.code, &status.message, false),
        _ => End::Failed(error.to_string()),
    })
}

fn undecodable(error: serde_json::Error) -> End {
    End::Failed(error.to_string())
}

/// What an ERROR event says.
fn farewell(object: &RawValue, streaming: bool) -> End {
    match serde_json::from_str::<Status>(object.get()) {
        Ok(status) => refusal(status.code, &status.message, streaming),
        Err(error) => undecodable(error),
    }
}

fn refusal(code: u16, message: &str, streaming: bool) -> End {
    match code {
        410 => End::Expired,
        // A server that does not know `sendInitialEvents`, or has it switched off, calls it invalid.
        400 | 422 if streaming => End::Unsupported,
        _ => End::Failed(message.to_owned()),
    }
}
