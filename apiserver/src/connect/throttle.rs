//! `--max-connection-bytes-per-sec`: so much passes through an upgraded connection in each direction, and no more.
//! Answers for upstream's `MaxConnectionBytesPerSec`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shared::client::Stream;
use shared::flags::FlagSet;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::egress::BoxStream;

/// Interval over which bytes are counted.
const MOMENT: Duration = Duration::from_millis(100);

/// Limit in bytes per second; 0 is unlimited (`--max-connection-bytes-per-sec`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BandwidthLimit(u64);

impl BandwidthLimit {
    /// None unless the flag says a number of bytes.
    pub(super) fn from_flags(flags: &FlagSet) -> Self {
        Self(u64::try_from(flags.integer("max-connection-bytes-per-sec")).unwrap_or(0))
    }

    /// A connection on which no more passes.
    pub(super) fn on(self, connection: impl Stream + 'static) -> BoxStream {
        let connection: BoxStream = Box::pin(connection);
        if self.0 == 0 {
            return connection;
        }
        Box::pin(Throttled { connection, read: Direction::new(self.0), write: Direction::new(self.0) })
    }
}

/// State of a limit within the current interval.
#[derive(Debug)]
struct RateState {
    /// Bytes of a moment, and how long that is.
    each: usize,
    moment: Duration,
    left: usize,
    ends: Instant,
}

impl RateState {
    fn new(rate: u64, now: Instant) -> Self {
        // Of what is less than a byte a moment, the moments are longer.
        let (each, moment) = match rate / 10 {
            0 => (1, Duration::from_secs(1) / u32::try_from(rate.max(1)).unwrap_or(1)),
            each => (usize::try_from(each).unwrap_or(usize::MAX), MOMENT),
        };
        Self { each, moment, left: each, ends: now + moment }
    }

    /// Returns the number of bytes that may pass now, or the time from which some may.
    fn allows(&mut self, now: Instant) -> Result<usize, Instant> {
        if now >= self.ends {
            (self.left, self.ends) = (self.each, now + self.moment);
        }
        if self.left > 0 { Ok(self.left) } else { Err(self.ends) }
    }
}

/// One direction.
struct Direction {
    pace: RateState,
    sleep: Pin<Box<Sleep>>,
}

impl Direction {
    fn new(rate: u64) -> Self {
        let now = Instant::now();
        Self { pace: RateState::new(rate, now), sleep: Box::pin(tokio::time::sleep_until(now)) }
    }

    /// Returns the number of bytes that may pass; pending while that is zero.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        loop {
            match self.pace.allows(Instant::now()) {
                Ok(most) => return Poll::Ready(most),
                Err(then) => {
                    self.sleep.as_mut().reset(then);
                    ready!(self.sleep.as_mut().poll(cx));
                }
            }
        }
    }
}

struct Throttled {
    connection: BoxStream,
    read: Direction,
    write: Direction,
}

impl AsyncRead for Throttled {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let most = ready!(this.read.poll(cx)).min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(this.connection.as_mut().poll_read(cx, &mut part))?;
        let count = part.filled().len();
        buf.advance(count);
        this.read.pace.left -= count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Throttled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let most = ready!(this.write.poll(cx)).min(buf.len());
        let count = ready!(this.connection.as_mut().poll_write(cx, &buf[..most]))?;
        this.write.pace.left -= count;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn limited(flag: &str) -> (BoxStream, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let flags = FlagSet::of("kube-apiserver", &[flag]).expect("flags");
        let near: BoxStream = Box::pin(near);
        (BandwidthLimit::from_flags(&flags).on(near), far)
    }

    #[test]
    fn so_much_passes_in_a_second() {
        let start = Instant::now();
        for (rate, seconds, want) in [(1000, 5, 5000), (25, 2, 40), (20, 3, 60), (3, 4, 12)] {
            let (mut pace, mut now, mut passed) = (RateState::new(rate, start), start, 0);
            while now < start + Duration::from_secs(seconds) {
                match pace.allows(now) {
                    Ok(most) => {
                        passed += most;
                        pace.left -= most;
                    }
                    Err(then) => now = then,
                }
            }
            assert!(passed.abs_diff(want) <= 1, "{rate}: {passed}");
        }
    }

    #[tokio::test]
    async fn both_directions_are_held_back() {
        for (flag, least) in [("--max-connection-bytes-per-sec=1000", 150), ("--max-connection-bytes-per-sec=0", 0)] {
            let (mut near, mut far) = limited(flag);
            let (sent, mut there) = (vec![7; 300], vec![0; 300]);
            let since = Instant::now();
            near.write_all(&sent).await.expect("written");
            let written = since.elapsed().as_millis();
            far.read_exact(&mut there).await.expect("read");
            assert_eq!(there, sent);
            far.write_all(&sent).await.expect("written");
            let since = Instant::now();
            near.read_exact(&mut there).await.expect("read");
            assert!(written >= least && since.elapsed().as_millis() >= least, "{flag}: {written}");
        }
    }
}
