//! Tests of the configuration. The server's tests cover its effect.

use super::{Egress, NetworkContext, Transports, config};

fn read(selections: &str) -> Result<Vec<(NetworkContext, String)>, String> {
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: {selections}"
    );
    let read = config::read(text.as_bytes()).map_err(|e| format!("{e:#}"))?;
    Ok(read.into_iter().map(|(name, way)| (name, format!("{way:?}"))).collect())
}

#[test]
fn networks_are_reached_as_configured() {
    for (selections, expected) in [
        ("[]", vec![]),
        ("[{name: cluster, connection: {proxyProtocol: Direct}}]", vec![(NetworkContext::Cluster, "Direct")]),
        (
            "[{name: Cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: /run/k.sock}}}}, \
             {name: controlplane, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://proxy:8131'}}}}]",
            vec![
                (NetworkContext::Cluster, "Grpc(\"/run/k.sock\")"),
                (NetworkContext::ControlPlane, "HttpConnect(proxy:8131)"),
            ],
        ),
        (
            "[{name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /run/p.sock}}}}]",
            vec![(NetworkContext::Etcd, "HttpConnect(/run/p.sock)")],
        ),
        ("[{name: master, connection: {proxyProtocol: Direct}}]", vec![(NetworkContext::ControlPlane, "Direct")]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|(name, way)| (name, way.to_owned())).collect();
        assert_eq!(read(selections), Ok(expected), "{selections}");
    }
}

#[test]
fn errors_match_upstream() {
    const AT: &str = "failed to validate egress selector configuration: service.connection";
    for (connection, told) in [
        (
            "{proxyProtocol: Direct, transport: {}}",
            ".transport: Invalid value: \"direct\": config must be absent for direct connect",
        ),
        ("{proxyProtocol: HTTPConnect}", ".transport: Required value: transport must be set for HTTPConnect"),
        ("{proxyProtocol: HTTPConnect, transport: {}}", ".tcp: Required value: One of TCP or UDS must be set"),
        (
            "{proxyProtocol: GRPC, transport: {tcp: {url: 'http://a'}}}",
            ".uds: Required value: UDS must be set with GRPC",
        ),
        (
            "{proxyProtocol: GRPC, transport: {uds: {}}}",
            ".udsName: Invalid value: \"nil\": must be present for UDS connections",
        ),
        (
            "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'a:1'}}}",
            ".url: Invalid value: \"a:1\": supported connection protocols are http:// and https://",
        ),
        (
            "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a:1'}}}",
            ".tlsConfig: Required value: TLSConfig must be present when using HTTPS",
        ),
        (
            "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientKey: /nowhere}}}}",
            ".tlsConfig.clientCert: Invalid value: \"nil\": Using TLS requires clientCert, service.connection\
             .tlsConfig.clientKey: Invalid value: \"/nowhere\": TLS client key does not exist",
        ),
        (
            "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://a:1', tlsConfig: {}}}}",
            ".tlsConfig: Invalid value: \"nil\": config must not be present when using HTTP",
        ),
        (
            "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a:1'}, uds: {udsName: /x}}}",
            ".tcp: Invalid value: {\"URL\":\"https://a:1\",\"TLSConfig\":null}: TCP and UDS cannot both be set",
        ),
        (
            "{proxyProtocol: SOCKS}",
            ".protocol: Unsupported value: \"SOCKS\": supported values: \"Direct\", \"HTTPConnect\", \"GRPC\"",
        ),
    ] {
        let said = read(&format!("[{{name: cluster, connection: {connection}}}]")).expect_err(connection);
        assert_eq!(said.replace(['[', ']'], ""), format!("{AT}{told}"), "{connection}");
    }
    let direct = "connection: {proxyProtocol: Direct}";
    let odd = "connection: {proxyProtocol: SOCKS}";
    let said = read(&format!("[{{name: moon, {direct}}}, {{name: etcd, {direct}}}, {{name: Etcd, {odd}}}]"));
    assert_eq!(
        said.expect_err("three mistakes"),
        "failed to validate egress selector configuration: [service.connection.protocol: Unsupported value: \"SOCKS\": \
         supported values: \"Direct\", \"HTTPConnect\", \"GRPC\", service.connection: Unsupported value: \"moon\": supported \
         values: \"cluster\", \"controlplane\", \"etcd\", service.connection[2]: Duplicate value: \"etcd\"]"
    );
}

#[test]
fn other_kinds_and_fields_are_refused() {
    for (text, told) in [
        (
            "apiVersion: apiserver.k8s.io/v1\nkind: EgressSelectorConfiguration\n",
            "no kind \"EgressSelectorConfiguration\" is registered for version \"apiserver.k8s.io/v1\"",
        ),
        (
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\nfoo: 1\n",
            "strict decoding error: unknown field \"foo\"",
        ),
    ] {
        let said = format!("{:#}", config::read(text.as_bytes()).expect_err("refused"));
        assert_eq!(said, format!("failed to read egress selector config: {told}"), "{text}");
    }
}

/// Only 200 is a yes.
#[tokio::test]
async fn a_proxy_that_says_something_else() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let answers = ["HTTP/1.1 201 Created\r\n\r\n", "", "HTTP/1.1 200 OK\r\n\r\n"];
    let proxy = super::http_connect::Proxy::tcp(address.clone(), None).expect("a proxy");
    let served = async {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = [0; 512];
            assert!(stream.read(&mut head).await.expect("a head") > 0);
            stream.write_all(answer.as_bytes()).await.expect("answered");
        }
    };
    let asked = async {
        let mut told = Vec::new();
        for _ in answers {
            told.push(proxy.dial("a:1").await.err().map(|(_, why)| why));
        }
        told
    };
    let (told, ()) = tokio::join!(asked, served);
    let want = [
        Some(format!("proxy error from {address} while dialing a:1, code 201: 201 Created")),
        Some(format!("reading HTTP response from CONNECT to a:1 via proxy {address} failed: unexpected EOF")),
        None,
    ];
    assert_eq!(told, want);
}

/// A configuration that names a network needs an egress for it; one that does not, connects directly.
#[test]
fn required_egress_networks() {
    let of = |named| Egress(std::sync::Arc::new(Transports { named, ..Transports::default() }));
    for (named, want) in [
        (None, Some("egress lookup required with egress selector type \"controlplane\"")),
        (Some(vec![NetworkContext::Cluster]), Some("egress lookup for \"controlplane\" is not configured")),
        (Some(vec![NetworkContext::ControlPlane]), None),
    ] {
        let refused = of(named).demanded(NetworkContext::ControlPlane).err().map(|e| e.to_string());
        assert_eq!(refused.as_deref(), want);
    }
}
