//! Port-forward for WebSocket clients: the messages carry a SPDY connection's bytes, which go to the kubelet
//! unchanged (KEP-4006, `SPDY/3.1+portforward.k8s.io`). Answers for upstream's
//! `apiserver/pkg/util/proxy/streamtunnel.go` (`TunnelingHandler`).

use bytes::BytesMut;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tungstenite::Message;
use tungstenite::protocol::{Role, WebSocketConfig};

/// The subprotocol that asks for a tunnel.
pub(super) const SUBPROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// Prefix of protocol names in a tunnel.
pub(super) const PREFIX: &str = "SPDY/3.1+";
/// The kubelet's name for what is inside.
pub(super) const STREAM_PROTOCOL: &str = "portforward.k8s.io";

const CHUNK: usize = 32 << 10;
/// Longest message, and frame, of a client.
const LONGEST_MESSAGE: usize = 32 << 20;

/// The server's end of a WebSocket on a connection that has switched to it. Tunnels are another library's upstream,
/// which is strict.
async fn websocket<C: AsyncRead + AsyncWrite + Unpin>(client: C) -> WebSocketStream<C> {
    let limits = WebSocketConfig::default();
    let limits = limits.max_message_size(Some(LONGEST_MESSAGE)).max_frame_size(Some(LONGEST_MESSAGE));
    WebSocketStream::from_raw_socket(client, Role::Server, Some(limits)).await
}

/// Carries bytes both ways until either side ends.
pub(super) async fn tunnel<C, K>(client: C, kubelet: K)
where
    C: AsyncRead + AsyncWrite + Unpin,
    K: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = carry(websocket(client).await, kubelet).await {
        tracing::debug!(%error, "Port-forward connection failed");
    }
}

async fn carry<C, K>(socket: WebSocketStream<C>, kubelet: K) -> Result<(), tungstenite::Error>
where
    C: AsyncRead + AsyncWrite + Unpin,
    K: AsyncRead + AsyncWrite + Unpin,
{
    let (mut read, mut write) = tokio::io::split(kubelet);
    let (mut sink, mut stream) = socket.split();
    let back = async {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        while read.read_buf(&mut buffer).await? > 0 {
            sink.send(Message::Binary(buffer.split().freeze())).await?;
            buffer.reserve(CHUNK);
        }
        sink.send(Message::Close(None)).await
    };
    let there = async {
        while let Some(message) = stream.next().await {
            match message? {
                Message::Close(_) => break,
                Message::Binary(bytes) => {
                    write.write_all(&bytes).await?;
                    write.flush().await?;
                }
                _ => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = back => ended,
        ended = there => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[tokio::test]
    async fn bytes_pass_unchanged() {
        let (client, ours) = tokio::io::duplex(1024);
        let (kubelet, mut theirs) = tokio::io::duplex(1024);
        let carried = tokio::spawn(tunnel(ours, kubelet));
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        client.send(Message::Binary(Bytes::from_static(b"there"))).await.expect("open");
        let mut there = [0; 5];
        theirs.read_exact(&mut there).await.expect("open");
        assert_eq!(&there, b"there");
        theirs.write_all(b"back").await.expect("open");
        assert_eq!(
            client.next().await.expect("open").expect("a message"),
            Message::Binary(Bytes::from_static(b"back"))
        );
        drop(theirs);
        assert!(matches!(client.next().await, Some(Ok(Message::Close(_)))));
        drop(client);
        carried.await.expect("it ends");
    }
}
