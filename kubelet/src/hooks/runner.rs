//! Runs lifecycle hooks.
//! Answers for upstream's `pkg/kubelet/lifecycle/handlers.go`.

use super::{HookError, HookTarget, Hooks};
use crate::cri::Exec;
use crate::events::{EventSink, EventType};
use crate::metrics;
use crate::probes::http::{self, HttpProblem};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a failed command's output that its event shows.
const OUTPUT_LIMIT: usize = 1024;

/// The real runner: commands through the runtime, requests over the network.
pub struct Runner {
    exec: Arc<dyn Exec>,
    events: Arc<dyn EventSink>,
}

/// A sleep that was begun: counted when it is dropped before its end.
struct Sleep(bool);

impl Drop for Sleep {
    fn drop(&mut self) {
        if !self.0 {
            metrics::sleep_cut_short();
        }
    }
}

impl Runner {
    /// A runner on a runtime.
    pub fn new(exec: Arc<dyn Exec>, events: Arc<dyn EventSink>) -> Self {
        Self { exec, events }
    }

    /// Sends a request; any answer is a success. A server that answers HTTPS with HTTP is asked again over HTTP, without
    /// credentials.
    async fn get(&self, action: &HTTPGetAction, target: HookTarget<'_>, timeout: Duration) -> Result<(), HookError> {
        let request = http::Request::new(action, target.container, target.pod_ip, "kube-lifecycle/1.35")?;
        let Err(error) = http::send(&request, timeout).await else { return Ok(()) };
        let is_plain = matches!(error.cause, HttpProblem::NotTls);
        if !is_plain || http::send(&request.without_tls(), timeout).await.is_err() {
            return Err(error.into());
        }
        metrics::http_fallback();
        let text = format!(
            "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
            request.authority()
        );
        self.events.pod(target.pod, "", EventType::Warning, "LifecycleHTTPFallback", &text);
        Ok(())
    }

    async fn exec(&self, action: &ExecAction, target: HookTarget<'_>, timeout: Duration) -> Result<(), HookError> {
        let command = action.command.clone().unwrap_or_default();
        let output = self.exec.exec_sync(target.container_id, &command, timeout).await;
        let output = output.map_err(|error| HookError::Exec(error.to_string()))?;
        if output.exit_code == 0 {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said[..said.len().min(OUTPUT_LIMIT)]).into_owned();
        Err(HookError::Exec(format!("command '{}' exited with {}: {said}", command.join(" "), output.exit_code)))
    }
}

#[async_trait]
impl Hooks for Runner {
    async fn run(
        &self,
        handler: &LifecycleHandler,
        target: HookTarget<'_>,
        timeout: Duration,
    ) -> Result<(), HookError> {
        let work = async {
            if let Some(action) = &handler.exec {
                return self.exec(action, target, timeout).await;
            }
            if let Some(action) = &handler.http_get {
                return self.get(action, target, timeout).await;
            }
            if let Some(action) = &handler.sleep {
                let mut sleep = Sleep(false);
                tokio::time::sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
                sleep.0 = true;
                return Ok(());
            }
            if handler.tcp_socket.is_some() {
                return Err(HookError::Invalid("tcpSocket is not supported as a lifecycle handler".into()));
            }
            Err(HookError::Invalid("cannot run handler: no action is given".into()))
        };
        tokio::time::timeout(timeout, work).await.unwrap_or(Err(HookError::Timeout(timeout)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::{CriError, ExecOutput};
    use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod};
    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    struct NoExec;

    #[async_trait]
    impl Exec for NoExec {
        async fn exec_sync(&self, _: &str, _: &[String], _: Duration) -> Result<ExecOutput, CriError> {
            Err(CriError::Rpc { code: "Unimplemented", message: String::new() })
        }
    }

    #[derive(Default)]
    struct Events(Mutex<Vec<(String, String)>>);

    impl EventSink for Events {
        fn pod(&self, _: &Pod, _: &str, _: EventType, reason: &str, message: &str) {
            self.0.lock().push((reason.to_owned(), message.to_owned()));
        }
        fn claim(&self, _: &PersistentVolumeClaim, _: EventType, _: &str, _: &str) {}
        fn node(&self, _: EventType, _: &str, _: &str) {}
    }

    /// A server that answers whatever it is sent in plain HTTP with this status; returns its port.
    async fn server(status: &'static str) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut begin = [0; 1024];
                let _ = stream.read(&mut begin).await;
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    async fn run(handler: serde_json::Value, timeout: Duration) -> (Result<(), HookError>, Vec<(String, String)>) {
        let events = Arc::new(Events::default());
        let runner = Runner::new(Arc::new(NoExec), Arc::clone(&events) as _);
        let handler: LifecycleHandler = serde_json::from_value(handler).expect("a handler");
        let (pod, container) = (Pod::default(), Container::default());
        let target = HookTarget { pod: &pod, container: &container, container_id: "c", pod_ip: "127.0.0.1" };
        let result = runner.run(&handler, target, timeout).await;
        let told = std::mem::take(&mut *events.0.lock());
        (result, told)
    }

    #[tokio::test]
    async fn any_answer_to_a_hook_is_a_success() {
        for status in ["200 OK", "404 Not Found", "500 Internal Server Error"] {
            let port = server(status).await;
            let (result, told) = run(json!({"httpGet": {"port": port, "path": "/"}}), Duration::from_secs(5)).await;
            assert!(result.is_ok() && told.is_empty(), "{status}: {result:?}");
        }
        let (result, _) = run(json!({"httpGet": {"port": 1, "path": "/"}}), Duration::from_secs(5)).await;
        assert!(matches!(result, Err(HookError::Http(_))), "nobody listens: {result:?}");
    }

    #[tokio::test]
    async fn server_that_answers_https_with_http_is_asked_over_http() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let port = server("200 OK").await;
        let hook = json!({"httpGet": {"port": port, "path": "/", "scheme": "HTTPS"}});
        let (result, told) = run(hook, Duration::from_secs(5)).await;
        assert!(result.is_ok(), "{result:?}");
        let text =
            format!("request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded");
        assert_eq!(told, [("LifecycleHTTPFallback".to_owned(), text)]);
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_that_is_cut_short_is_counted() {
        let name = "kubelet_sleep_action_terminated_early_total ";
        let counted = || {
            let text = shared::metrics::gather();
            let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let before = counted();
        assert!(run(json!({"sleep": {"seconds": 5}}), Duration::from_secs(10)).await.0.is_ok());
        assert!((counted() - before).abs() < 0.5, "it slept to its end");
        assert!(run(json!({"sleep": {"seconds": 50}}), Duration::from_secs(10)).await.0.is_err());
        assert!((counted() - before - 1.0).abs() < 0.5);
    }
}
