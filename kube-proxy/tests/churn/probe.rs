//! Connections to a service that does not change, while all others do.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kube_proxy::plan::Family;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use testkit::network::Space;

/// Name of the service.
pub const NAME: &str = "steady";
/// Pause between two connections.
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(5);
/// Port of its server.
const PORT: u16 = 8_080;

/// Times at which somebody takes rules away: while the number is odd, and around its change, connections may fail.
#[derive(Clone, Default)]
pub struct Disturbance(Arc<AtomicU64>);

impl Disturbance {
    /// Begins or ends.
    pub fn turn(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The address of the service, and that of its server, which is the node.
fn addresses(family: Family) -> (SocketAddr, SocketAddr) {
    let (service, node) = match family {
        Family::V4 => ("10.96.0.250", "192.0.2.1"),
        Family::V6 => ("2001:db8:96::250", "2001:db8:1::1"),
    };
    let at = |address: &str, port| SocketAddr::new(address.parse().expect("an address"), port);
    (at(service, 80), at(node, PORT))
}

/// The service with its endpoint.
pub fn objects(
    family: Family,
) -> (k8s_openapi::api::core::v1::Service, k8s_openapi::api::discovery::v1::EndpointSlice) {
    let (service, server) = addresses(family);
    let service = json!({"metadata": {"name": NAME, "namespace": "n"}, "spec": {"clusterIP": service.ip(),
        "clusterIPs": [service.ip()], "ports": [{"port": 80, "protocol": "TCP"}]}});
    let slice = json!({"metadata": {"name": NAME, "namespace": "n", "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": family.address_type(), "endpoints": [{"addresses": [server.ip()]}],
        "ports": [{"port": PORT, "protocol": "TCP"}]});
    let service = serde_json::from_value(service).expect("a service");
    (service, serde_json::from_value(slice).expect("a slice"))
}

/// A client of the service in the node's namespace.
pub struct Probe {
    stop: Arc<AtomicBool>,
    client: JoinHandle<Result<u32, String>>,
}

impl Probe {
    /// Starts the server, and the client once there are rules.
    pub fn start(space: &Space, family: Family, disturbance: Disturbance) -> Self {
        let (service, server) = addresses(family);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let client = space.run(move || {
            let listener = TcpListener::bind(server).expect("a port");
            std::thread::spawn(move || listener.incoming().flatten().for_each(echo));
            std::thread::spawn(move || ask_until(&stopped, service, &disturbance))
        });
        Self { stop, client }
    }

    /// Ends it: the number of connections, all of which were good.
    pub fn finish(self) -> Result<u32, String> {
        self.stop.store(true, Ordering::SeqCst);
        self.client.join().expect("the client ends")
    }
}

fn echo(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = [0; 1];
        while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
    });
}

fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut buffer = [7; 1];
    stream.write_all(&buffer)?;
    stream.read_exact(&mut buffer)
}

/// Connects from the next port of all, round and round: the kernel remembers for two minutes how it led a connection that was
/// begun while rules were away, and would lead the next one from the same port there, too.
fn connect(service: SocketAddr, ports: &mut impl Iterator<Item = u16>) -> std::io::Result<TcpStream> {
    let any: IpAddr = if service.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
    let socket = Socket::new(Domain::for_address(service), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    let bound = |port: u16| socket.bind(&SocketAddr::new(any, port).into()).is_ok();
    ports.by_ref().find(|port| bound(*port)).expect("a free port");
    socket.connect_timeout(&service.into(), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket.into())
}

/// Connects anew again and again, and asks over a connection that stays, too.
fn ask_until(stop: &AtomicBool, service: SocketAddr, disturbance: &Disturbance) -> Result<u32, String> {
    let (mut count, mut kept) = (0, None);
    let mut ports = (20_000..60_000).cycle();
    while !stop.load(Ordering::SeqCst) {
        let before = disturbance.now();
        let outcome = connect(service, &mut ports).and_then(|mut stream| ask(&mut stream).map(|()| stream));
        let outcome = outcome.and_then(|stream| ask(kept.get_or_insert(stream)));
        let is_disturbed = before % 2 == 1 || disturbance.now() != before;
        match outcome {
            Ok(()) => count += 1,
            Err(_) if is_disturbed => kept = None,
            Err(error) => return Err(format!("after {count} connections: {error}")),
        }
        std::thread::sleep(PAUSE);
    }
    Ok(count)
}
