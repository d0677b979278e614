//! A real HTTP server on this machine plays the webhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use shared::authn::UserInfo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// A webhook that answers by the user's name, and how often it was asked.
async fn server() -> (Remote, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = vec![0; 8192];
            let mut filled = 0;
            let body = loop {
                filled += stream.read(&mut buffer[filled..]).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&buffer[..filled]).into_owned();
                match text.split_once("\r\n\r\n") {
                    Some((_, body)) if body.ends_with('}') => break body.to_owned(),
                    _ => {}
                }
            };
            let nth = count.fetch_add(1, Ordering::SeqCst);
            let review: Value = serde_json::from_str(&body).expect("json");
            let (code, status) = match review["spec"]["user"].as_str().unwrap_or("") {
                "alice" => (200, json!({"allowed": true, "reason": "a friend"})),
                "mallory" => (200, json!({"allowed": false, "denied": true, "reason": "no"})),
                "both" => (200, json!({"allowed": true, "denied": true})),
                "none" => (200, Value::Null),
                "flaky" if nth == 0 => (500, json!("busy")),
                "flaky" => (200, json!({"allowed": true})),
                "broken" => (403, json!("?")),
                _ => (200, json!({"allowed": false})),
            };
            let text = json!({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status})
                .to_string();
            let head = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", text.len());
            let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
        }
    });
    (Remote::to(&format!("http://127.0.0.1:{port}/authorize"), None, None).expect("a remote"), asked)
}

fn options() -> Options {
    Options {
        name: "w".into(),
        version: "v1".into(),
        authorized_ttl: Duration::from_secs(300),
        unauthorized_ttl: Duration::from_secs(30),
        timeout: Duration::from_secs(3),
        on_error: Decision::NoOpinion,
        conditions: Vec::new(),
    }
}

fn pods(user: &str, namespace: &str) -> Attributes {
    Attributes {
        user: UserInfo { name: user.into(), ..UserInfo::default() },
        verb: "get".into(),
        namespace: namespace.into(),
        resource: "pods".into(),
        resource_request: true,
        ..Attributes::default()
    }
}

#[tokio::test]
async fn responses_of_the_webhook_are_parsed() {
    let (remote, _) = server().await;
    let webhook = Webhook::new(remote, options());
    for (user, want) in [
        ("alice", (Decision::Allow, "a friend".to_owned())),
        ("mallory", (Decision::Deny, "no".to_owned())),
        ("eve", (Decision::NoOpinion, String::new())),
    ] {
        assert_eq!(webhook.decide(&pods(user, "n")).await, (want, None), "{user}");
    }
    let (answer, error) = webhook.decide(&pods("both", "n")).await;
    assert_eq!(answer.0, Decision::Deny);
    assert_eq!(error.as_deref(), Some("webhook subject access review returned both allow and deny response"));
}

#[tokio::test]
async fn answers_are_remembered() {
    let (remote, asked) = server().await;
    let webhook = Webhook::new(remote, options());
    for _ in 0..3 {
        assert_eq!(webhook.decide(&pods("alice", "n")).await.0.0, Decision::Allow);
        assert_eq!(webhook.decide(&pods("eve", "n")).await.0.0, Decision::NoOpinion);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    webhook.decide(&pods("alice", "other")).await;
    assert_eq!(asked.load(Ordering::SeqCst), 3, "another question");
}

#[tokio::test]
async fn temporary_failures_are_retried() {
    let (remote, asked) = server().await;
    let webhook = Webhook::new(remote, options());
    assert_eq!(webhook.decide(&pods("flaky", "n")).await.0.0, Decision::Allow);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    for user in ["broken", "none"] {
        let (answer, error) = webhook.decide(&pods(user, "n")).await;
        assert_eq!(answer.0, Decision::NoOpinion, "{user}");
        assert!(error.is_some(), "{user}");
    }
    let (remote, _) = server().await;
    let strict = Webhook::new(remote, Options { on_error: Decision::Deny, ..options() });
    assert_eq!(strict.decide(&pods("broken", "n")).await.0.0, Decision::Deny, "closed on failure");
}

#[tokio::test]
async fn match_conditions_choose() {
    let (remote, asked) = server().await;
    let conditions = vec![
        "has(request.resourceAttributes)".to_owned(),
        "request.resourceAttributes.namespace == 'kube-system'".to_owned(),
    ];
    let webhook = Webhook::new(remote.clone(), Options { conditions, ..options() });
    assert_eq!(webhook.decide(&pods("alice", "other")).await.0.0, Decision::NoOpinion);
    let path = Attributes { resource_request: false, path: "/x".into(), ..pods("alice", "") };
    assert_eq!(webhook.decide(&path).await, ((Decision::NoOpinion, String::new()), None));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    assert_eq!(webhook.decide(&pods("alice", "kube-system")).await.0.0, Decision::Allow);
    let conditions = vec!["request.nonResourceAttributes.path == '/x'".to_owned()];
    let failing = Webhook::new(remote, Options { conditions, on_error: Decision::Deny, ..options() });
    let (answer, error) = failing.decide(&pods("alice", "n")).await;
    assert_eq!(answer.0, Decision::Deny, "a condition that fails is a failure of the webhook");
    assert!(error.expect("an error").starts_with("cel evaluation error: expression 'request.nonResourceAttributes"));
}
