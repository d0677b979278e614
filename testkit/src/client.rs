//! An HTTP client that hides nothing.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::pki::{Identity, Pki};

type Https = hyper_rustls::HttpsConnector<HttpConnector>;

/// Requests of one identity to one server.
#[derive(Clone)]
pub struct Client {
    http: HttpClient<Https, Full<Bytes>>,
    /// Host and port.
    authority: String,
    token: Option<String>,
}

/// An answer.
pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub bytes: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    pub fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().filter_map(|v| v.to_str().ok()).collect()
    }

    /// Code, reason and message of a failure.
    pub fn failure(&self) -> (u16, String, String) {
        let status = self.json();
        let text = |name: &str| status[name].as_str().unwrap_or("").to_owned();
        if status["kind"] == "Status" {
            assert_eq!(
                status["code"].as_u64(),
                Some(u64::from(self.code)),
                "the code of the Status is that of HTTP: {status}"
            );
        }
        (self.code, text("reason"), text("message"))
    }

    /// The object of a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.code), "{} {}", self.code, self.text());
        self.json()
    }

    /// Fails unless this is that failure.
    #[track_caller]
    pub fn fails(&self, code: u16, reason: &str, message: &str) {
        let (c, r, m) = self.failure();
        assert_eq!((c, r.as_str(), m.as_str()), (code, reason, message), "{}", self.text());
    }
}

impl Client {
    /// Of a server on the loopback.
    pub fn new(port: u16, pki: &Pki, identity: Identity) -> Self {
        Self::at(&format!("127.0.0.1:{port}"), pki, identity)
    }

    /// Of a server at a host and port.
    pub fn at(authority: &str, pki: &Pki, identity: Identity) -> Self {
        let roots = shared::cert::root_store(pki.ca.as_bytes()).expect("roots");
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots);
        let tls = match pki.pair(&identity) {
            Some((certificate, key)) => tls
                .with_client_auth_cert(
                    shared::cert::certificates(certificate.as_bytes()).expect("certificate"),
                    shared::cert::private_key(key.as_bytes()).expect("key"),
                )
                .expect("client tls"),
            None => tls.with_no_client_auth(),
        };
        // A head and a body are two writes.
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        let https = https.enable_http1().enable_http2().wrap_connector(tcp);
        let token = if let Identity::Token(t) = identity { Some(t) } else { None };
        Self { http: HttpClient::builder(TokioExecutor::new()).build(https), authority: authority.to_owned(), token }
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<Bytes>) -> Request<Full<Bytes>> {
        let method = Method::from_bytes(method.as_bytes()).expect("method");
        let mut b = Request::builder().method(method).uri(format!("https://{}{path}", self.authority));
        if !headers.iter().any(|(name, _)| *name == "User-Agent") {
            b = b.header("User-Agent", "test/1");
        }
        if let Some(t) = &self.token {
            b = b.header("Authorization", format!("Bearer {t}"));
        }
        for (name, value) in headers {
            b = b.header(*name, *value);
        }
        b.body(Full::new(body.unwrap_or_default())).expect("request")
    }

    /// Any request; an error where nobody answers.
    pub async fn try_call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Bytes>,
    ) -> Result<Answer, String> {
        let response =
            self.http.request(self.request(method, path, headers, body)).await.map_err(|e| format!("{e:?}"))?;
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.into_body().collect().await.map_err(|e| format!("{e:?}"))?.to_bytes();
        Ok(Answer { code, headers, bytes })
    }

    /// An error where nobody answers.
    pub async fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.try_call("GET", path, &[], None).await
    }

    /// Any request.
    pub async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<Bytes>) -> Answer {
        match self.try_call(method, path, headers, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer to {method} {path}: {error}"),
        }
    }

    /// Any request; `content_type` is `Accept` where there is no body.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: Option<Bytes>) -> Answer {
        let name = if body.is_some() { "Content-Type" } else { "Accept" };
        let headers = [(name, content_type)];
        self.call(method, path, if content_type.is_empty() { &[] } else { &headers }, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", None).await
    }

    pub async fn post(&self, path: &str, object: Value) -> Answer {
        self.send("POST", path, "application/json", Some(Bytes::from(object.to_string()))).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.send("PUT", path, "application/json", Some(Bytes::from(object.to_string()))).await
    }

    pub async fn patch(&self, path: &str, kind: &str, patch: Value) -> Answer {
        self.send("PATCH", path, &format!("application/{kind}"), Some(Bytes::from(patch.to_string()))).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "", None).await
    }

    pub async fn delete_with(&self, path: &str, options: Value) -> Answer {
        self.send("DELETE", path, "application/json", Some(Bytes::from(options.to_string()))).await
    }

    /// The first object of a watch, beginning with what there is, that is as wanted. Waits half a minute.
    pub async fn watch_until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = self.frames(path, |frame| {
            last = frame["object"].clone();
            wanted(&last)
        });
        let found = tokio::time::timeout(std::time::Duration::from_secs(30), found).await;
        assert!(found.is_ok(), "{path} never became as wanted: {last}");
        last
    }

    /// Frames of a watch, until `take` says so (true) or it ends (false).
    pub async fn try_watch(&self, path: &str, mut take: impl FnMut(Value) -> bool) -> Result<bool, String> {
        let response = self.http.request(self.request("GET", path, &[], None)).await.map_err(|e| format!("{e:?}"))?;
        if response.status() != 200 {
            return Ok(false);
        }
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                text.extend_from_slice(data);
            }
            while let Some(end) = text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                // What was cut off is told again when the watch is resumed.
                if take(serde_json::from_slice(&line).map_err(|e| e.to_string())?) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Frames of a watch, until `enough` or its end.
    pub async fn watch(&self, path: &str, enough: usize) -> Vec<Value> {
        let mut seen = 0;
        self.frames(path, |_| {
            seen += 1;
            seen >= enough
        })
        .await
    }

    async fn frames(&self, path: &str, mut last: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let response = self.http.request(self.request("GET", path, &[], None)).await.expect("a watch");
        assert_eq!(response.status(), 200, "{path}");
        let mut body = response.into_body();
        let (mut text, mut frames) = (Vec::new(), Vec::new());
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                text.extend_from_slice(data);
            }
            while let Some(end) = text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                frames.push(serde_json::from_slice(&line).expect("a frame"));
                if frames.last().is_some_and(&mut last) {
                    return frames;
                }
            }
        }
        frames
    }
}
