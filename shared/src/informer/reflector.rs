//! Keeps one store current: streamed list, then WATCH from there, again from the last revision when the stream
//! ends, and a fresh list when that revision is gone. Answers for client-go's reflector.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, Stream, StreamExt};
use kube::Client;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{ObjectList, Request, Status};
use rand::Rng;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::store::key;
use super::{Informer, Object};
use crate::run::Shutdown;

/// The server ends a watch after this long, spread so that clients do not all come back at once.
const WATCH_SECONDS: std::ops::Range<u32> = 200..290;
/// A stream that is silent for longer than its own timeout is dead.
const SILENCE: Duration = Duration::from_secs(320);
const PAGE: u32 = 500;
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

pub(super) struct Reflector<K> {
    informer: Informer<K>,
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

impl<K: Object> Reflector<K> {
    pub(super) fn new(informer: Informer<K>, client: Client, shutdown: Shutdown) -> Self {
        Self { informer, client, shutdown, streaming: true, failures: 0 }
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
                    tracing::warn!(kind = %K::kind(&()), %error, "Failed to list or watch");
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

    fn request(&self) -> Request {
        Request::new(K::url_path(&(), self.informer.0.scope.namespace.as_deref()))
    }

    /// Watches from the store's revision, or streams the initial list first and says so in `initial`.
    async fn watch(&mut self, mut initial: Option<&mut bool>) -> End {
        let scope = &self.informer.0.scope;
        let params = WatchParams {
            label_selector: scope.labels.clone(),
            field_selector: scope.fields.clone(),
            timeout: Some(rand::rng().random_range(WATCH_SECONDS)),
            bookmarks: true,
            send_initial_events: initial.is_some(),
        };
        let version = if initial.is_some() { String::new() } else { self.informer.0.store.resource_version() };
        let request = match self.request().watch(&params, &version) {
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
            match next::<K, S>(stream).await? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    seen.insert(key(&object));
                    self.put(object);
                }
                WatchEvent::Deleted(object) => {
                    let key = key(&object);
                    seen.remove(&key);
                    self.remove(&key, Some(object));
                }
                WatchEvent::Bookmark(mark) => {
                    if mark.metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|v| v == "true") {
                        self.finish_list(&seen, mark.metadata.resource_version);
                        return Ok(());
                    }
                }
                WatchEvent::Error(status) => return Err(refusal(status.code, &status.message, true)),
            }
        }
    }

    async fn follow<S>(&mut self, stream: &mut S) -> End
    where
        S: Stream<Item = io::Result<String>> + Unpin,
    {
        loop {
            let event = match next::<K, S>(stream).await {
                Ok(event) => event,
                Err(end) => return end,
            };
            self.failures = 0;
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.meta().resource_version.clone();
                    self.put(object);
                    self.advance(version);
                }
                WatchEvent::Deleted(object) => {
                    let version = object.meta().resource_version.clone();
                    let key = key(&object);
                    self.remove(&key, Some(object));
                    self.advance(version);
                }
                WatchEvent::Bookmark(mark) => self.advance(Some(mark.metadata.resource_version)),
                WatchEvent::Error(status) => return refusal(status.code, &status.message, false),
            }
        }
    }

    /// The list for servers that cannot stream it: pages, each stored before the next is asked for.
    async fn list(&mut self) -> Result<(), End> {
        let scope = &self.informer.0.scope;
        let mut params = ListParams {
            label_selector: scope.labels.clone(),
            field_selector: scope.fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut seen = HashSet::new();
        loop {
            let request = self.request().list(&params).map_err(|error| End::Failed(error.to_string()))?;
            let page: ObjectList<K> = match self.client.request(request).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) => return Err(refusal(status.code, &status.message, false)),
                Err(error) => return Err(End::Failed(error.to_string())),
            };
            for object in page.items {
                seen.insert(key(&object));
                self.put(object);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    self.finish_list(&seen, page.metadata.resource_version.unwrap_or_default());
                    return Ok(());
                }
            }
        }
    }

    fn put(&self, mut object: K) {
        object.meta_mut().managed_fields = None;
        if let Some(transform) = &*self.informer.0.transform.lock() {
            transform(&mut object);
        }
        let handlers = self.informer.0.handlers.lock();
        if let Some(event) = self.informer.0.store.put(object) {
            handlers.iter().for_each(|handler| handler(&event));
        }
    }

    fn remove(&self, key: &(String, String), last: Option<K>) {
        let handlers = self.informer.0.handlers.lock();
        if let Some(event) = self.informer.0.store.remove(key, last) {
            handlers.iter().for_each(|handler: &super::Handler<K>| handler(&event));
        }
    }

    fn advance(&self, version: Option<String>) {
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.informer.0.store.set_resource_version(version);
        }
    }

    /// Drops what the list did not name, and opens the latch.
    fn finish_list(&mut self, seen: &HashSet<(String, String)>, version: String) {
        for key in self.informer.0.store.keys() {
            if !seen.contains(&key) {
                self.remove(&key, None);
            }
        }
        self.advance(Some(version));
        self.failures = 0;
        self.informer.0.synced.send_replace(true);
    }
}

async fn next<K: Object, S>(stream: &mut S) -> Result<WatchEvent<K>, End>
where
    S: Stream<Item = io::Result<String>> + Unpin,
{
    match tokio::time::timeout(SILENCE, stream.next()).await {
        Err(_) => Err(End::Failed("the watch stream is silent".to_owned())),
        Ok(None) => Err(End::Closed),
        Ok(Some(Err(error))) if is_cut(&error) => Err(End::Closed),
        Ok(Some(Err(error))) => Err(End::Failed(error.to_string())),
        Ok(Some(Ok(line))) => event(&line),
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

/// One line of a watch. The object is left as text until its type is known, so that each kind has one decoder only:
/// decoding both in one go would generate a second, for objects that come before their type.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

fn event<K: Object>(line: &str) -> Result<WatchEvent<K>, End> {
    let parsed = serde_json::from_str(line).and_then(|Line { kind, object }| {
        let object = object.get();
        Ok(match kind {
            "ADDED" => WatchEvent::Added(serde_json::from_str(object)?),
            "MODIFIED" => WatchEvent::Modified(serde_json::from_str(object)?),
            "DELETED" => WatchEvent::Deleted(serde_json::from_str(object)?),
            "BOOKMARK" => WatchEvent::Bookmark(serde_json::from_str(object)?),
            _ => WatchEvent::Error(serde_json::from_str(object)?),
        })
    });
    parsed.map_err(|error| match serde_json::from_str::<Status>(line) {
        // The last line of a connection that was cut.
        _ if error.is_eof() => End::Closed,
        Ok(status) if status.code != 0 => refusal(status.code, &status.message, false),
        _ => End::Failed(error.to_string()),
    })
}

fn refusal(code: u16, message: &str, streaming: bool) -> End {
    match code {
        410 => End::Expired,
        // A server that does not know `sendInitialEvents`, or has it switched off, calls it invalid.
        400 | 422 if streaming => End::Unsupported,
        _ => End::Failed(message.to_owned()),
    }
}
