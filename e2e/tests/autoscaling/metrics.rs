//! A metrics API that says of every pod it is told of that it uses so much.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Answers of the metrics server.
#[derive(Clone, Default)]
pub struct Measured {
    /// The pods it knows.
    pub pods: Vec<String>,
    /// CPU that each pod uses; `None` makes the request fail.
    pub cpu: Option<&'static str>,
}

/// Serves `metrics.k8s.io/v1beta1`; lives as long as the runtime.
pub struct Metrics {
    /// Port of the server.
    pub port: u16,
    /// Answers from now on.
    pub measured: Arc<Mutex<Measured>>,
}

fn answer(request: &Request<Incoming>, measured: &Measured) -> (u16, Value) {
    let path = request.uri().path();
    if path == "/apis/metrics.k8s.io/v1beta1" {
        let pods = json!({"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics", "verbs": ["get", "list"]});
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1", "resources": [pods]});
        return (200, list);
    }
    if path != "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods" {
        return (
            404,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}),
        );
    }
    let Some(cpu) = measured.cpu else {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError",
            "message": "nothing was measured"});
        return (500, status);
    };
    let now = jiff_now();
    let of = |name: &String| {
        json!({"metadata": {"name": name, "namespace": "default"}, "timestamp": now, "window": "15s",
            "containers": [{"name": "web", "usage": {"cpu": cpu, "memory": "64Mi"}}]})
    };
    let items: Vec<Value> = measured.pods.iter().map(of).collect();
    (200, json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}))
}

fn jiff_now() -> Value {
    json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::now()))
}

impl Metrics {
    /// With the certificate and key of the server that passes requests on.
    pub async fn start((certificate, key): &(String, String)) -> anyhow::Result<Self> {
        let pair = shared::cert::PemPair { certificate: certificate.clone(), key: key.clone() };
        let pair = Arc::new(shared::cert::ReloadingKey::from_pem(&pair)?);
        let acceptor = TlsAcceptor::from(Arc::new(shared::cert::server_config(pair, false)?));
        let listener = TcpListener::bind("127.0.0.1:0").await.context("a free port")?;
        let port = listener.local_addr()?.port();
        let measured = Arc::new(Mutex::new(Measured::default()));
        let said = Arc::clone(&measured);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, said) = (acceptor.clone(), Arc::clone(&said));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        let (code, body) = answer(&request, &said.lock());
                        let body = Full::new(Bytes::from(body.to_string()));
                        let response = Response::builder().status(code).header("content-type", "application/json");
                        std::future::ready(Ok::<_, Infallible>(response.body(body).expect("a response")))
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    // A caller that goes away ends its connection.
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { port, measured })
    }
}
