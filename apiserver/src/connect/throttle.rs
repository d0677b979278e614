//! `--max-connection-bytes-per-sec`: so much passes through an upgraded connection in each direction, and no more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shared::flags::FlagSet;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::egress::BoxStream;

/// What passes is counted in moments of this length.
const MOMENT: Duration = Duration::from_millis(100);

/// How much may pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit(u64);

impl Limit {
    /// None unless the flag says a number of bytes.
    pub(super) fn from_flags(flags: &FlagSet) -> Self {
        Self(u64::try_from(flags.integer("max-connection-bytes-per-sec")).unwrap_or(0))
    }

    /// A connection on which no more passes.
    pub(super) fn on(self, connection: BoxStream) -> BoxStream {
        if self.0 == 0 {
            return connection;
        }
        Box::pin(Throttled { connection, read: Pace::new(self.0), write: Pace::new(self.0) })
    }
}

/// One direction.
struct Pace {
    /// Bytes of a moment, and how long that is.
    each: usize,
    moment: Duration,
    left: usize,
    ends: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Pace {
    fn new(rate: u64) -> Self {
        let moments = rate.min(10);
        let each = usize::try_from(rate / moments.max(1)).unwrap_or(usize::MAX);
        let moment = if rate < 10 { Duration::from_secs(1) / u32::try_from(rate.max(1)).unwrap_or(1) } else { MOMENT };
        let now = Instant::now();
        Self { each, moment, left: each, ends: now + moment, sleep: Box::pin(tokio::time::sleep_until(now)) }
    }

    /// How much may pass now; waits where that is nothing.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        loop {
            let now = Instant::now();
            if now >= self.ends {
                (self.left, self.ends) = (self.each, now + self.moment);
            }
            if self.left > 0 {
                return Poll::Ready(self.left);
            }
            self.sleep.as_mut().reset(self.ends);
            ready!(self.sleep.as_mut().poll(cx));
        }
    }
}

struct Throttled {
    connection: BoxStream,
    read: Pace,
    write: Pace,
}

impl AsyncRead for Throttled {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let most = ready!(this.read.poll(cx)).min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(this.connection.as_mut().poll_read(cx, &mut part))?;
        let count = part.filled().len();
        buf.advance(count);
        this.read.left -= count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Throttled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let most = ready!(this.write.poll(cx)).min(buf.len());
        let count = ready!(this.connection.as_mut().poll_write(cx, &buf[..most]))?;
        this.write.left -= count;
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
        (Limit::from_flags(&flags).on(near), far)
    }

    #[tokio::test(start_paused = true)]
    async fn so_much_passes_in_a_second() {
        for (rate, bytes, seconds) in [(0, 30_000, 0), (1000, 5000, 5), (20, 40, 2), (3, 9, 3)] {
            let flag = format!("--max-connection-bytes-per-sec={rate}");
            let sent = vec![7; bytes];
            let (mut near, mut far) = limited(&flag);
            let since = Instant::now();
            near.write_all(&sent).await.expect("written");
            let took = since.elapsed().as_millis();
            let want = seconds * 1000_u128;
            assert!((want.saturating_sub(400)..=want + 400).contains(&took), "writing at {rate}: {took}");
            let mut there = vec![0; bytes];
            far.read_exact(&mut there).await.expect("read");
            assert_eq!(there, sent);

            far.write_all(&sent).await.expect("written");
            let since = Instant::now();
            near.read_exact(&mut there).await.expect("read");
            let took = since.elapsed().as_millis();
            assert!((want.saturating_sub(400)..=want + 400).contains(&took), "reading at {rate}: {took}");
        }
    }
}
