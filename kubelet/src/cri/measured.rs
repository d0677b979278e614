//! Calls of the runtime, counted by upstream's names for them. Answers for upstream's `instrumented_services.go`.

use http::{Request, Response};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::Code;
use tower::Service;

/// Upstream's names where they are not the method's own in small letters.
const NAMES: [(&str, &str); 6] = [
    ("RunPodSandbox", "run_podsandbox"),
    ("StopPodSandbox", "stop_podsandbox"),
    ("RemovePodSandbox", "remove_podsandbox"),
    ("PodSandboxStatus", "podsandbox_status"),
    ("ListPodSandbox", "list_podsandbox"),
    ("UpdateContainerResources", "update_container"),
];

/// A channel whose calls are counted.
#[derive(Clone, Debug)]
pub(super) struct Measured<S>(pub(super) S);

impl<S, B, A> Service<Request<B>> for Measured<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Error: std::fmt::Display,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let operation = operation(request.uri().path());
        let begun = Instant::now();
        let called = self.0.call(request);
        Box::pin(async move {
            let answer = called.await;
            let failed = shared::grpc::status(&answer).code() != Code::Ok;
            crate::metrics::runtime_call(&operation, begun.elapsed(), failed);
            answer
        })
    }
}

/// `run_podsandbox` for `/runtime.v1.RuntimeService/RunPodSandbox`.
fn operation(path: &str) -> String {
    let method = path.rsplit('/').next().unwrap_or_default();
    if let Some((_, name)) = NAMES.iter().find(|(known, _)| *known == method) {
        return (*name).to_owned();
    }
    let mut name = String::new();
    for letter in method.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_upstreams_names() {
        for (method, expected) in [
            ("RunPodSandbox", "run_podsandbox"),
            ("ListContainerStats", "list_container_stats"),
            ("ReopenContainerLog", "reopen_container_log"),
            ("UpdateContainerResources", "update_container"),
            ("ImageFsInfo", "image_fs_info"),
            ("Version", "version"),
            ("UpdateRuntimeConfig", "update_runtime_config"),
        ] {
            assert_eq!(operation(&format!("/runtime.v1.RuntimeService/{method}")), expected);
        }
    }
}
