//! One probe attempt: exec, httpGet, tcpSocket or grpc.
//! Answers for upstream's `pkg/kubelet/prober/prober.go` (`runProbe`) and `pkg/probe`.

use super::http;
use crate::cri::Exec;
use k8s_openapi::api::core::v1::{Container, Probe};
use shared::host_port;
use std::time::Duration;
use tokio::net::TcpStream;

/// Results of an attempt, before thresholds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    Success,
    /// Passed, with something a person should know (a redirect to another host).
    Warning(String),
    Failure(String),
    /// The attempt itself could not be made.
    Error(String),
}

/// Inputs of an attempt besides the probe.
pub(super) struct ProbeTarget<'a> {
    pub(super) container: &'a Container,
    pub(super) container_id: &'a str,
    pub(super) pod_ip: &'a str,
}

pub(super) async fn attempt(probe: &Probe, target: &ProbeTarget<'_>, exec: &dyn Exec) -> ProbeOutcome {
    let timeout = Duration::from_secs(u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1));
    if let Some(action) = &probe.exec {
        let command = action.command.clone().unwrap_or_default();
        return run(exec, target.container_id, &command, timeout).await;
    }
    if let Some(action) = &probe.http_get {
        return match http::Request::new(action, target.container, target.pod_ip, "kube-probe/1.35") {
            Ok(request) => get(&request, timeout).await,
            Err(error) => ProbeOutcome::Error(error.to_string()),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(target.pod_ip);
        return match http::port_number(&action.port, target.container) {
            Ok(port) => connect(host, port, timeout).await,
            Err(error) => ProbeOutcome::Error(error.to_string()),
        };
    }
    if let Some(action) = &probe.grpc {
        let service = action.service.as_deref().unwrap_or_default();
        return match u16::try_from(action.port) {
            Ok(port) => health(target.pod_ip, port, service, timeout).await,
            Err(_) => ProbeOutcome::Error(format!("invalid port number: {}", action.port)),
        };
    }
    ProbeOutcome::Error(format!("missing probe handler for {}", target.container.name))
}

async fn run(exec: &dyn Exec, container_id: &str, command: &[String], timeout: Duration) -> ProbeOutcome {
    match exec.exec_sync(container_id, command, timeout).await {
        Ok(output) if output.exit_code == 0 => ProbeOutcome::Success,
        Ok(output) => {
            ProbeOutcome::Failure(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        }
        Err(error) if error.is_timeout() => ProbeOutcome::Failure(format!(
            "command timed out: {:?} timed out after {}s",
            command.join(" "),
            timeout.as_secs()
        )),
        Err(error) => ProbeOutcome::Error(error.to_string()),
    }
}

async fn get(request: &http::Request, timeout: Duration) -> ProbeOutcome {
    match http::send(request, timeout).await {
        Ok(answer) => match (answer.status, answer.redirected_to) {
            (200..400, Some(location)) => ProbeOutcome::Warning(format!(
                "Probe terminated redirects, Response body: {} ({location})",
                answer.body
            )),
            (200..400, None) => ProbeOutcome::Success,
            (status, _) => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
        Err(error) => ProbeOutcome::Failure(error.to_string()),
    }
}

async fn connect(host: &str, port: u16, timeout: Duration) -> ProbeOutcome {
    let shown = host_port::join(host, port);
    match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => ProbeOutcome::Success,
        Ok(Err(error)) => ProbeOutcome::Failure(format!("dial tcp {shown}: connect: {}", http::reason(&error))),
        Err(_) => ProbeOutcome::Failure(format!("dial tcp {shown}: i/o timeout")),
    }
}

/// `grpc.health.v1.Health/Check`: one string in, one enum out.
async fn health(host: &str, port: u16, service: &str, timeout: Duration) -> ProbeOutcome {
    let call = async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", host_port::join(host, port)));
        let endpoint = endpoint.map_err(|error| error.to_string())?.user_agent("kube-probe/1.35");
        let channel =
            endpoint.map_err(|error| error.to_string())?.connect().await.map_err(|error| error.to_string())?;
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.map_err(|error| error.to_string())?;
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let path = ::http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
        client.unary(request, path, codec).await.map_err(|status| status.message().to_owned())
    };
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) if response.get_ref().status == SERVING => ProbeOutcome::Success,
        Ok(Ok(response)) => ProbeOutcome::Failure(format!(
            "service unhealthy (responded with {:?})",
            status_name(response.get_ref().status)
        )),
        Ok(Err(error)) => ProbeOutcome::Failure(format!("error: {error}")),
        Err(_) => ProbeOutcome::Failure(format!("timeout: health rpc did not complete within {}s", timeout.as_secs())),
    }
}

const SERVING: i32 = 1;

fn status_name(status: i32) -> &'static str {
    match status {
        SERVING => "SERVING",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}
