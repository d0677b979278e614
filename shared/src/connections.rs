//! Limits of the connections that a server holds: in all, and fairly by source address.
//!
//! A connection is a stranger's until a request on it has been authenticated ([`Standing::authenticated`]). Strangers may
//! hold all places but a reserve, so that those who have authenticated find one. Nobody waits for a place and nobody new
//! is turned away for others' sake: at the limit the oldest stranger of the source that holds the most strangers makes
//! room. Upstream has no such limit: there the file descriptors end, for everybody at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Divisor of all places: that part is a reserve which strangers do not get.
const RESERVE: usize = 8;
/// Divisor of all places: beyond that part, connections of one source stay strangers' when they authenticate.
const SHARE: usize = 4;
/// Divisor of the file descriptors: that part is for other things than connections of clients.
const OTHER_FILES: usize = 4;

/// Source of connections: an address, or the network of 64 bits that an IPv6 host may take addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ConnectionSource(IpAddr);

impl From<IpAddr> for ConnectionSource {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()),
            address => Self(address),
        }
    }
}

/// Connections of one source.
#[derive(Debug, Default)]
struct Held {
    /// By age.
    strangers: BTreeSet<u64>,
    known: usize,
}

impl Held {
    /// The number of its oldest stranger.
    fn oldest(&self) -> Reverse<u64> {
        Reverse(self.strangers.first().copied().unwrap_or(u64::MAX))
    }
}

/// The accounts of a server's connections.
#[derive(Debug)]
struct Table {
    most: usize,
    next: u64,
    known: usize,
    strangers: usize,
    sources: HashMap<ConnectionSource, Held>,
    /// Sources by how many strangers they hold, then by the age of the oldest; the last one makes room.
    by_strangers: BTreeSet<(usize, Reverse<u64>, ConnectionSource)>,
}

impl Table {
    fn new(most: usize) -> Self {
        let (sources, by_strangers) = (HashMap::new(), BTreeSet::new());
        Self { most: most.max(RESERVE), next: 0, known: 0, strangers: 0, sources, by_strangers }
    }

    /// Changes what a source holds, and keeps the sums true.
    fn change<T>(&mut self, source: ConnectionSource, change: impl FnOnce(&mut Held) -> T) -> T {
        let held = self.sources.entry(source).or_default();
        let (strangers, known, oldest) = (held.strangers.len(), held.known, held.oldest());
        let changed = change(held);
        let (strangers_now, known_now, oldest_now) = (held.strangers.len(), held.known, held.oldest());
        if strangers_now == 0 && known_now == 0 {
            self.sources.remove(&source);
        }
        if (strangers, oldest) != (strangers_now, oldest_now) {
            self.by_strangers.remove(&(strangers, oldest, source));
            if strangers_now > 0 {
                self.by_strangers.insert((strangers_now, oldest_now, source));
            }
        }
        self.strangers = self.strangers + strangers_now - strangers;
        self.known = self.known + known_now - known;
        changed
    }

    /// Takes a connection in. The answer is its number, and that of the one which makes room for it: itself, where only
    /// known ones are left.
    fn admit(&mut self, source: ConnectionSource) -> (u64, Option<u64>) {
        let number = self.next;
        self.next += 1;
        self.change(source, |held| held.strangers.insert(number));
        let is_full = self.strangers > self.most - self.most / RESERVE || self.strangers + self.known > self.most;
        (number, if is_full { self.make_room() } else { None })
    }

    /// Takes a place from the oldest stranger of the source with the most of them.
    fn make_room(&mut self) -> Option<u64> {
        let (_, _, source) = *self.by_strangers.last()?;
        self.change(source, |held| held.strangers.pop_first())
    }

    /// A stranger is known from now on. Not where its source has its share already, or the connection has no place.
    fn authenticated(&mut self, source: ConnectionSource, number: u64) -> bool {
        let share = self.most / SHARE;
        self.change(source, |held| {
            let becomes_known = held.known < share && held.strangers.remove(&number);
            held.known += usize::from(becomes_known);
            becomes_known
        })
    }

    /// A connection has ended.
    fn leave(&mut self, source: ConnectionSource, number: u64, is_known: bool) {
        self.change(source, |held| match is_known {
            true => held.known = held.known.saturating_sub(1),
            false => drop(held.strangers.remove(&number)),
        });
    }
}

/// The connections of one server; see the module.
#[derive(Debug)]
pub struct ConnectionLimits(Mutex<(Table, BTreeMap<u64, Arc<Signal>>)>);

impl ConnectionLimits {
    /// At most so many connections, and no more than the process' file descriptors allow.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        let files = open_files().map_or(most, |files| files - files / OTHER_FILES);
        Self::exactly(most.min(files))
    }

    fn exactly(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((Table::new(most), BTreeMap::new()))))
    }

    /// Gives a connection from this address a place, which another loses where there is none left.
    #[must_use]
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Standing {
        let (source, signal) = (ConnectionSource::from(address), Arc::<Signal>::default());
        let mut inner = self.0.lock();
        let (table, signals) = &mut *inner;
        let (number, shed) = table.admit(source);
        signals.insert(number, Arc::clone(&signal));
        let shed = shed.and_then(|shed| signals.remove(&shed));
        drop(inner);
        if let Some(shed) = shed {
            shed.give();
        }
        Standing(Arc::new(ConnectionPlace {
            limits: Arc::clone(self),
            source,
            number,
            known: AtomicBool::new(false),
            signal,
        }))
    }

    /// Connections that have a place.
    #[must_use]
    pub fn held(&self) -> usize {
        let inner = self.0.lock();
        inner.0.known + inner.0.strangers
    }
}

#[derive(Debug, Default)]
struct Signal {
    given: AtomicBool,
    reads: AtomicWaker,
    writes: AtomicWaker,
}

impl Signal {
    fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.reads.wake();
        self.writes.wake();
    }

    fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct ConnectionPlace {
    limits: Arc<ConnectionLimits>,
    source: ConnectionSource,
    number: u64,
    known: AtomicBool,
    signal: Arc<Signal>,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut inner = self.limits.0.lock();
        inner.0.leave(self.source, self.number, *self.known.get_mut());
        inner.1.remove(&self.number);
    }
}

/// Standing of a connection's client. The place is free when the last of its clones is gone.
#[derive(Clone, Debug)]
pub struct Standing(Arc<ConnectionPlace>);

impl Standing {
    /// A request on the connection was authenticated.
    pub fn authenticated(&self) {
        let place = &*self.0;
        if place.known.load(Ordering::Acquire) || place.signal.is_given() {
            return;
        }
        let mut inner = place.limits.0.lock();
        if !place.known.load(Ordering::Acquire) && inner.0.authenticated(place.source, place.number) {
            place.known.store(true, Ordering::Release);
        }
    }

    /// True when another has got the place: the connection is to end.
    #[must_use]
    pub fn is_shed(&self) -> bool {
        self.0.signal.is_given()
    }
}

/// A connection that ends when it loses its place, to whoever serves it as if its client had gone.
#[derive(Debug)]
pub struct Limited<T> {
    io: T,
    standing: Standing,
}

impl<T> Limited<T> {
    /// Over a connection.
    pub fn new(io: T, standing: Standing) -> Self {
        Self { io, standing }
    }

    /// The connection itself.
    pub fn inner(&self) -> &T {
        &self.io
    }

    /// The standing of its client.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Registered first and looked at again after that, so that no signal is missed.
    fn is_shed(&self, waker: impl Fn(&Signal) -> &AtomicWaker, cx: &Context<'_>) -> bool {
        let signal = &*self.standing.0.signal;
        waker(signal).register(cx.waker());
        signal.is_given()
    }

    fn written(&self, polled: Poll<io::Result<usize>>, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        if polled.is_pending() && self.is_shed(|signal| &signal.writes, cx) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        polled
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Limited<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.standing.is_shed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let polled = Pin::new(&mut self.io).poll_read(cx, into);
        if polled.is_pending() && self.is_shed(|signal| &signal.reads, cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Limited<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, part);
        self.written(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.written(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Reads the soft limit of open files.
fn open_files() -> Option<usize> {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).ok()?;
    usize::try_from(soft).ok()
}

/// Lets the process have as many files open as it may be allowed, as Go's runtime does when it starts.
pub(crate) fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| match soft < hard {
        true => setrlimit(Resource::RLIMIT_NOFILE, hard, hard),
        false => Ok(()),
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "Failed to raise the limit of open files");
    }
}

#[cfg(test)]
mod tests;
