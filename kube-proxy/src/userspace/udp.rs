//! UDP packets of one socket: each client has a socket to its endpoint while packets go by.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::balancer::Balancer;

/// Largest packet.
const PACKET: usize = 65_535;
/// Clients of one port at a time. Beyond it the one that was not heard of for the longest time loses its socket.
const CLIENTS: usize = 1_024;
/// Longest silence of a client that keeps its socket.
const IDLE: Duration = Duration::from_secs(10);

/// A client: its address, and the address of this machine that it sent to, from which it has to get answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flow {
    client: SocketAddr,
    to: IpAddr,
}

/// The way of a client's packets.
struct Session {
    socket: Arc<UdpSocket>,
    endpoint: SocketAddr,
    seen: Instant,
    replies: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.replies.abort();
    }
}

/// Asks the kernel to tell the address that a packet was sent to.
pub(super) fn prepare(socket: &UdpSocket, is_v4: bool) -> io::Result<()> {
    match is_v4 {
        true => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        false => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// Carries packets until it is aborted.
pub(super) async fn serve(socket: UdpSocket, balancer: Arc<Mutex<Balancer>>) {
    let socket = Arc::new(socket);
    let mut sessions: HashMap<Flow, Session> = HashMap::new();
    let mut buffer = vec![0; PACKET];
    let mut tidy = tokio::time::interval(IDLE / 2);
    loop {
        let received = tokio::select! {
            received = receive(&socket, &mut buffer) => received,
            _ = tidy.tick() => {
                let balancer = balancer.lock();
                sessions.retain(|_, session| session.seen.elapsed() < IDLE && balancer.has(session.endpoint));
                continue;
            }
        };
        let (length, flow) = match received {
            Ok(received) => received,
            // A client that is gone is told as an error of the next packet.
            Err(error) => {
                tracing::debug!(%error, "Receiving failed");
                continue;
            }
        };
        if let Err(error) = forward(&socket, &mut sessions, &balancer, flow, &buffer[..length]).await {
            tracing::debug!(client = %flow.client, %error, "Packet lost");
            sessions.remove(&flow);
        }
    }
}

async fn forward(
    socket: &Arc<UdpSocket>,
    sessions: &mut HashMap<Flow, Session>,
    balancer: &Mutex<Balancer>,
    flow: Flow,
    packet: &[u8],
) -> io::Result<()> {
    if sessions.get(&flow).is_some_and(|session| !balancer.lock().has(session.endpoint)) {
        sessions.remove(&flow);
    }
    if !sessions.contains_key(&flow) {
        let picked = balancer.lock().pick(flow.client.ip().to_canonical(), Instant::now(), false);
        let endpoint = picked.ok_or_else(|| io::Error::other("no endpoint"))?;
        if sessions.len() >= CLIENTS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.seen).map(|(flow, _)| *flow);
            oldest.map(|flow| sessions.remove(&flow));
        }
        sessions.insert(flow, open(socket, flow, endpoint).await?);
    }
    let Some(session) = sessions.get_mut(&flow) else { return Ok(()) };
    session.seen = Instant::now();
    session.socket.send(packet).await.map(drop)
}

async fn open(socket: &Arc<UdpSocket>, flow: Flow, endpoint: SocketAddr) -> io::Result<Session> {
    let any: IpAddr = if endpoint.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let own = Arc::new(UdpSocket::bind((any, 0)).await?);
    own.connect(endpoint).await?;
    let replies = tokio::spawn(reply(Arc::clone(&own), Arc::clone(socket), flow));
    Ok(Session { socket: own, endpoint, seen: Instant::now(), replies })
}

/// Carries what the endpoint answers.
async fn reply(own: Arc<UdpSocket>, socket: Arc<UdpSocket>, flow: Flow) {
    let mut buffer = vec![0; PACKET];
    loop {
        let sent = match own.recv(&mut buffer).await {
            Ok(length) => send(&socket, flow, &buffer[..length]).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(client = %flow.client, %error, "Answer lost");
        }
    }
}

async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Flow)> {
    let descriptor = socket.as_raw_fd();
    socket.async_io(Interest::READABLE, || receive_now(descriptor, buffer)).await
}

fn receive_now(descriptor: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Flow)> {
    let mut space = nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg::<SockaddrStorage>(descriptor, &mut parts, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
    let to = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(IpAddr::from(u32::from_be(info.ipi_addr.s_addr).to_be_bytes()))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
        _ => None,
    });
    let client = received.address.as_ref().and_then(address);
    match (client, to) {
        (Some(client), Some(to)) => Ok((received.bytes, Flow { client, to })),
        _ => Err(io::Error::other("a packet without an address")),
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

/// Answers from the address that the client sent to: the kernel knows the flow by it.
async fn send(socket: &UdpSocket, flow: Flow, packet: &[u8]) -> io::Result<()> {
    let descriptor = socket.as_raw_fd();
    socket.async_io(Interest::WRITABLE, || send_now(descriptor, flow, packet)).await
}

fn send_now(descriptor: RawFd, flow: Flow, packet: &[u8]) -> io::Result<()> {
    let v4 = |address: std::net::Ipv4Addr| libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: u32::from(address).to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let (info_v4, info_v6);
    let control = match flow.to {
        IpAddr::V4(to) => {
            info_v4 = v4(to);
            ControlMessage::Ipv4PacketInfo(&info_v4)
        }
        IpAddr::V6(to) => {
            info_v6 = libc::in6_pktinfo { ipi6_ifindex: 0, ipi6_addr: libc::in6_addr { s6_addr: to.octets() } };
            ControlMessage::Ipv6PacketInfo(&info_v6)
        }
    };
    let client = SockaddrStorage::from(flow.client);
    sendmsg(descriptor, &[IoSlice::new(packet)], &[control], MsgFlags::MSG_DONTWAIT, Some(&client))?;
    Ok(())
}
