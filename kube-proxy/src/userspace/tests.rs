use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

async fn listener(protocol: Protocol, endpoints: &[SocketAddr]) -> Listener {
    let listener = open(protocol, Family::V4, 0, false).await.expect("a listener");
    listener.balancer.lock().set(endpoints.to_vec(), None);
    listener
}

fn at(listener: &Listener) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], listener.port))
}

/// A server that answers each connection with its name, then with all that it was sent once that ends.
async fn echo(name: &'static str) -> SocketAddr {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a server");
    let address = server.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.ok();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.ok();
                stream.write_all(&all).await.ok();
            });
        }
    });
    address
}

async fn name(stream: &mut TcpStream) -> String {
    let mut name = [0];
    timeout(PATIENCE, stream.read_exact(&mut name)).await.expect("in time").expect("a name");
    String::from_utf8_lossy(&name).into_owned()
}

#[tokio::test]
async fn bytes_go_both_ways_after_one_way_has_ended() {
    let listener = listener(Protocol::Tcp, &[echo("a").await]).await;
    let mut stream = TcpStream::connect(at(&listener)).await.expect("a connection");
    assert_eq!(name(&mut stream).await, "a");
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    stream.write_all(&sent).await.expect("sent");
    stream.shutdown().await.expect("the end is told");
    let mut received = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut received)).await.expect("in time").expect("all of it");
    assert_eq!(received, sent);
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_passed_over() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address");
    let listener = listener(Protocol::Tcp, &[gone, echo("b").await]).await;
    for _ in 0..4 {
        let mut stream = TcpStream::connect(at(&listener)).await.expect("a connection");
        assert_eq!(name(&mut stream).await, "b");
    }
}

#[tokio::test]
async fn open_connections_survive_a_change_of_endpoints() {
    let listener = listener(Protocol::Tcp, &[echo("a").await]).await;
    let mut old = TcpStream::connect(at(&listener)).await.expect("a connection");
    assert_eq!(name(&mut old).await, "a");
    let other = echo("b").await;
    listener.balancer.lock().set(vec![other], None);
    let mut new = TcpStream::connect(at(&listener)).await.expect("a connection");
    assert_eq!(name(&mut new).await, "b");
    let address = at(&listener);
    drop(listener);
    old.write_all(b"still here").await.expect("sent");
    old.shutdown().await.expect("the end is told");
    let mut rest = String::new();
    timeout(PATIENCE, old.read_to_string(&mut rest)).await.expect("in time").expect("all of it");
    assert_eq!(rest, "still here");
    // The task that is aborted lets go of its socket when it is next asked.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

/// A server that answers packets with its name and the number of clients that it has seen.
async fn answering(name: &'static str) -> SocketAddr {
    let server = UdpSocket::bind("127.0.0.1:0").await.expect("a server");
    let address = server.local_addr().expect("its address");
    tokio::spawn(async move {
        let mut clients = BTreeSet::new();
        let mut buffer = [0; 64];
        while let Ok((_, from)) = server.recv_from(&mut buffer).await {
            clients.insert(from);
            server.send_to(format!("{name}{}", clients.len()).as_bytes(), from).await.ok();
        }
    });
    address
}

async fn ask(socket: &UdpSocket) -> String {
    let mut buffer = [0; 64];
    socket.send(b"?").await.expect("sent");
    let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("in time").expect("an answer");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[tokio::test]
async fn packets_of_a_client_go_one_way_until_its_endpoint_is_gone() {
    let listener = listener(Protocol::Udp, &[answering("a").await]).await;
    let mut clients = Vec::new();
    for number in 1..=3 {
        let client = UdpSocket::bind("127.0.0.1:0").await.expect("a client");
        // The answer comes from the address that was asked, which another one would not take.
        client.connect(at(&listener)).await.expect("connected");
        assert_eq!(ask(&client).await, format!("a{number}"));
        clients.push(client);
    }
    assert_eq!(ask(&clients[0]).await, "a3", "no new client for the server");
    let other = answering("b").await;
    listener.balancer.lock().set(vec![other], None);
    assert_eq!(ask(&clients[0]).await, "b1");
}

#[tokio::test]
async fn ports_are_taken_from_the_range() {
    let all = |text: &str, count: usize| -> Vec<u16> {
        let mut range = PortRange::parse(text);
        (0..count).map(|_| range.next()).collect()
    };
    assert_eq!(all("30100-30102", 4), [30_100, 30_101, 30_102, 30_100]);
    assert_eq!(all("30100+1", 3), [30_100, 30_101, 30_100]);
    assert_eq!(all("30100", 2), [30_100, 30_100]);
    for text in ["", "0-0", "5-4", "x", "70000", "1+70000"] {
        assert_eq!(all(text, 2), [0, 0], "{text}");
    }
    let taken = listener(Protocol::Tcp, &[]).await;
    let options = Options::new(Family::V4);
    let fields = Fields(serde_json::json!({"portRange": format!("{0}-{0}", taken.port)}));
    let mut proxy = Userspace::new(options, &fields);
    assert!(proxy.open(Protocol::Tcp).await.is_err(), "the range is full");
}
