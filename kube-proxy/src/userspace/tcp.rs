//! TCP connections of one listener: each is joined with one to an endpoint, and the kernel moves the bytes from one to the
//! other (`splice`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::unistd::pipe2;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};

use super::balancer::Balancer;

/// Patience with one endpoint after the other, upstream's `EndpointDialTimeouts`.
const DIALS: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// Pause when connections cannot be taken: there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// Largest part that is moved at once: what a pipe holds.
const PART: usize = 64 * 1024;

/// Takes connections until it is aborted. Those that were taken go on.
pub(super) async fn serve(listener: TcpListener, balancer: Arc<Mutex<Balancer>>) {
    loop {
        match listener.accept().await {
            Ok((client, from)) => {
                let balancer = Arc::clone(&balancer);
                tokio::spawn(async move {
                    if let Err(error) = join(client, from, &balancer).await {
                        tracing::debug!(%from, %error, "Proxied connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::error!(%error, "Accept failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn join(client: TcpStream, from: SocketAddr, balancer: &Mutex<Balancer>) -> io::Result<()> {
    let endpoint = dial(from, balancer).await?;
    client.set_nodelay(true)?;
    endpoint.set_nodelay(true)?;
    // An error on one way ends both.
    tokio::try_join!(pour(&client, &endpoint), pour(&endpoint, &client)).map(drop)
}

/// Connects to an endpoint; to another one if that does not answer.
async fn dial(from: SocketAddr, balancer: &Mutex<Balancer>) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("no endpoint");
    for (index, patience) in DIALS.into_iter().enumerate() {
        let picked = balancer.lock().pick(from.ip().to_canonical(), Instant::now(), index > 0);
        let Some(endpoint) = picked else { break };
        match tokio::time::timeout(patience, TcpStream::connect(endpoint)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
        tracing::warn!(%endpoint, error = %failed, "Dial failed");
    }
    Err(failed)
}

/// Moves bytes until their source ends, and says so to their destination.
async fn pour(source: &TcpStream, destination: &TcpStream) -> io::Result<()> {
    // An idle connection has no pipe yet.
    source.readable().await?;
    let (outlet, inlet) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    loop {
        let mut held = fill(source, &inlet).await?;
        if held == 0 {
            break;
        }
        while held > 0 {
            held -= drain(&outlet, destination, held).await?;
        }
    }
    SockRef::from(destination).shutdown(std::net::Shutdown::Write)
}

/// The pipe is empty: when nothing can be moved there is nothing to read.
async fn fill(source: &TcpStream, inlet: &OwnedFd) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    source.async_io(Interest::READABLE, || Ok(splice(source, None, inlet, None, PART, flags)?)).await
}

async fn drain(outlet: &OwnedFd, destination: &TcpStream, held: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    let moved =
        destination.async_io(Interest::WRITABLE, || Ok(splice(outlet, None, destination, None, held, flags)?)).await?;
    if moved == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(moved) }
}
