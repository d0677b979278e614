//! A real HTTPS server on this machine plays the webhook.

use std::collections::VecDeque;

use base64::Engine as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::admission::testing::{Fixed, Write};

/// Answers reviews in turn with what it was given, and keeps what it was asked. A text sends elsewhere.
struct Server {
    port: u16,
    bundle: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

async fn serve(answers: Vec<Value>) -> Server {
    let pair = shared::cert::self_signed("localhost", &["127.0.0.1".parse().expect("ip")], &[]).expect("pair");
    let key = shared::cert::certified_key(pair.certificate.as_bytes(), pair.key.as_bytes()).expect("key");
    let config =
        shared::cert::server_config(Arc::new(rustls::sign::SingleCertAndKey::from(key)), false).expect("config");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let log = asked.clone();
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, log, answers) = (acceptor.clone(), log.clone(), answers.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut buffer = Vec::new();
                loop {
                    let mut chunk = [0; 4096];
                    let Ok(n) = stream.read(&mut chunk).await else { return };
                    if n == 0 {
                        return;
                    }
                    buffer.extend_from_slice(&chunk[..n]);
                    let Some(review) = body(&buffer) else { continue };
                    buffer.clear();
                    let mut response = answers.lock().pop_front().unwrap_or_else(|| json!({"allowed": true}));
                    if let Some(elsewhere) = response.as_str() {
                        let head = "HTTP/1.1 307 Elsewhere\r\ncontent-length: 0\r\nlocation: ";
                        if stream.write_all(format!("{head}{elsewhere}\r\n\r\n").as_bytes()).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    response["uid"] = review["request"]["uid"].clone();
                    log.lock().push(review);
                    let answer =
                        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
                            .to_string();
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
                    if stream.write_all(format!("{head}{answer}").as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Server { port, bundle: base64::engine::general_purpose::STANDARD.encode(pair.certificate), asked }
}

fn body(buffer: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(buffer).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

fn patch(operations: &Value) -> Value {
    json!({"allowed": true, "patchType": "JSONPatch", "patch": base64::engine::general_purpose::STANDARD.encode(operations.to_string())})
}

impl Server {
    fn hook(&self, more: Value) -> Value {
        let mut hook = json!({
            "name": "a.example.com",
            "clientConfig": {"url": format!("https://127.0.0.1:{}/x", self.port), "caBundle": self.bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
        });
        if let (Some(hook), Value::Object(more)) = (hook.as_object_mut(), more) {
            hook.extend(more);
        }
        hook
    }
}

fn cluster(plural: &str, hooks: &[Value]) -> Arc<Fixed> {
    let cluster = Arc::new(Fixed::default());
    cluster.put(GROUP, plural, json!({"metadata": {"name": "c"}, "webhooks": hooks}));
    cluster.put("", "namespaces", json!({"metadata": {"name": "e", "labels": {"team": "a"}}}));
    cluster
}

fn mutating(hooks: &[Value]) -> MutatingWebhooks {
    let cluster = cluster("mutatingwebhookconfigurations", hooks);
    MutatingWebhooks::new(cluster.means(), &Value::Null).expect("no credentials to read")
}

fn validating(hooks: &[Value]) -> ValidatingWebhooks {
    let cluster = cluster("validatingwebhookconfigurations", hooks);
    ValidatingWebhooks::new(cluster.means(), &Value::Null).expect("no credentials to read")
}

fn config_map() -> Write<'static> {
    Write::create("", "configmaps", "e", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}))
}

#[tokio::test]
async fn a_patch_is_applied_and_the_question_is_complete() {
    let server = serve(vec![patch(&json!([{"op": "add", "path": "/data", "value": {"a": "b"}}]))]).await;
    let plugin = mutating(&[server.hook(json!({}))]);
    let object = config_map().admit(&plugin).await.expect("admitted");
    assert_eq!(object["data"], json!({"a": "b"}));
    let asked = server.asked.lock()[0].clone();
    let request = &asked["request"];
    assert_eq!(asked["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!(
        (&request["operation"], &request["namespace"], &request["name"]),
        (&json!("CREATE"), &json!("e"), &json!("x"))
    );
    assert_eq!(request["userInfo"]["username"], "alice");
}

#[tokio::test]
async fn webhook_is_reinvoked_if_needed() {
    let add = |key: &str| patch(&json!([{"op": "add", "path": format!("/metadata/{key}"), "value": "1"}]));
    let server = serve(vec![add("one"), add("two"), add("three")]).await;
    let first = server.hook(json!({"reinvocationPolicy": "IfNeeded"}));
    let plugin = mutating(&[first, server.hook(json!({"name": "b.example.com"}))]);
    let object = config_map().admit_twice(&plugin).await.expect("admitted");
    assert_eq!(object["metadata"], json!({"name": "x", "one": "1", "two": "1", "three": "1"}));
    assert_eq!(server.asked.lock().len(), 3);
}

#[tokio::test]
async fn redirects_are_followed() {
    let server =
        serve(vec![json!("/there"), patch(&json!([{"op": "add", "path": "/data", "value": {"a": "b"}}]))]).await;
    let object = config_map().admit(&mutating(&[server.hook(json!({}))])).await.expect("admitted");
    assert_eq!(object["data"], json!({"a": "b"}));
    let server = serve(vec![json!("/there"); 11]).await;
    let refused = config_map().admit(&mutating(&[server.hook(json!({}))])).await.expect_err("no end");
    let why =
        format!("failed to call webhook: Post \"https://127.0.0.1:{}/there\": stopped after 10 redirects", server.port);
    assert!(refused.message.ends_with(&why), "{}", refused.message);
}

#[tokio::test]
async fn refusals_are_worded_as_upstream_words_them() {
    for (answer, code, message) in [
        (
            json!({"allowed": false, "status": {"message": "no", "code": 403}}),
            403,
            "admission webhook \"a.example.com\" denied the request: no",
        ),
        (
            json!({"allowed": false, "status": {"reason": "Why"}}),
            400,
            "admission webhook \"a.example.com\" denied the request: Why",
        ),
        (json!({"allowed": false}), 400, "admission webhook \"a.example.com\" denied the request without explanation"),
    ] {
        let server = serve(vec![answer]).await;
        let refused = config_map().validate(&validating(&[server.hook(json!({}))])).await.expect_err("refused");
        assert_eq!((refused.code, refused.message.as_str()), (code, message));
    }
}

#[tokio::test]
async fn webhooks_match_rules_and_selectors() {
    let table = [
        (json!({}), 1),
        (
            json!({"rules": [{"operations": ["DELETE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]}),
            0,
        ),
        (json!({"namespaceSelector": {"matchLabels": {"team": "a"}}}), 1),
        (json!({"namespaceSelector": {"matchLabels": {"team": "b"}}}), 0),
        (json!({"objectSelector": {"matchLabels": {"x": "y"}}}), 0),
        (json!({"matchConditions": [{"name": "c", "expression": "object.metadata.name != 'x'"}]}), 0),
        (json!({"matchConditions": [{"name": "c", "expression": "request.namespace == 'e'"}]}), 1),
        (
            json!({"matchConditions": [{"name": "c", "expression": "!authorizer.requestResource.check('delete').allowed()"}]}),
            0,
        ),
    ];
    for (more, want) in table {
        let server = serve(vec![]).await;
        config_map().validate(&validating(&[server.hook(more.clone())])).await.expect("let through");
        assert_eq!(server.asked.lock().len(), want, "{more}");
    }
}

#[tokio::test]
async fn failures_follow_the_policy() {
    let server = serve(vec![]).await;
    let dead = json!({"clientConfig": {"url": "https://127.0.0.1:1/x", "caBundle": server.bundle}});
    let refused = config_map().validate(&validating(&[server.hook(dead.clone())])).await.expect_err("refused");
    assert_eq!(refused.code, 500);
    let text = "Internal error occurred: failed calling webhook \"a.example.com\": failed to call webhook: \
        Post \"https://127.0.0.1:1/x?timeout=5s\": dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!(refused.message, text);
    let mut ignored = dead;
    ignored["failurePolicy"] = json!("Ignore");
    assert!(config_map().validate(&validating(&[server.hook(ignored)])).await.is_ok());
    // A certificate nobody vouched for.
    let other = serve(vec![]).await;
    let foreign =
        json!({"clientConfig": {"url": format!("https://127.0.0.1:{}/x", other.port), "caBundle": server.bundle}});
    assert!(config_map().validate(&validating(&[server.hook(foreign)])).await.is_err());
}

#[tokio::test]
async fn webhooks_match_the_object_as_mutated_so_far() {
    let label = patch(&json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]));
    let server = serve(vec![label]).await;
    let selects = |name: &str, selector: Value| server.hook(json!({"name": name, "objectSelector": selector}));
    let hooks = [
        selects("a.example.com", json!({"matchLabels": {"a": "b"}})),
        selects("b.example.com", json!({})),
        selects("c.example.com", json!({"matchLabels": {"a": "b"}})),
        selects("d.example.com", json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]})),
    ];
    config_map().admit(&mutating(&hooks)).await.expect("admitted");
    assert_eq!(server.asked.lock().len(), 2);
}

#[tokio::test]
async fn answers_that_make_no_sense_are_failures() {
    let with = |more: Value| {
        let mut answer = patch(&json!([{"op": "add", "path": "/data", "value": {}}]));
        answer.as_object_mut().expect("an answer").extend(more.as_object().expect("fields").clone());
        answer
    };
    let encoded = |text: &str| json!(base64::engine::general_purpose::STANDARD.encode(text));
    for (answer, mutates, why) in [
        (
            with(json!({"patchType": null})),
            true,
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        (
            with(json!({"patch": null})),
            true,
            "received invalid webhook response: webhook returned response.patchType but not response.patch",
        ),
        (with(json!({})), false, "received invalid webhook response: validating webhook may not return response.patch"),
        (with(json!({"patchType": "MergePatch"})), true, "unsupported patch type \"MergePatch\""),
        (with(json!({"patch": encoded("{}")})), true, "received undecodable patch in webhook response: "),
    ] {
        for policy in ["Fail", "Ignore"] {
            let server = serve(vec![answer.clone()]).await;
            let hook = server.hook(json!({"failurePolicy": policy}));
            let done = if mutates {
                config_map().admit(&mutating(&[hook])).await
            } else {
                config_map().validate(&validating(&[hook])).await
            };
            match done {
                Ok(_) => assert_eq!(policy, "Ignore", "{why}"),
                Err(e) => assert!(policy == "Fail" && e.message.contains(&format!(": {why}")), "{}", e.message),
            }
        }
    }
}

#[tokio::test]
async fn dry_runs_need_a_harmless_webhook() {
    let server = serve(vec![]).await;
    let plugin = validating(&[server.hook(json!({"sideEffects": "Some"}))]);
    let refused = config_map().dry().validate(&plugin).await.expect_err("refused");
    assert_eq!(refused.message, "admission webhook \"a.example.com\" does not support dry run");
    assert!(config_map().dry().validate(&validating(&[server.hook(json!({}))])).await.is_ok());
}
