//! Credentials of all sorts, each seen through the server's own port, believed and not.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use apiserver::tokens::SigningKey;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::harness::{Answer, Cluster, Identity, Remote, audited, etcd_is_missing, eventually, file};

const KEY: &str = include_str!("../../testdata/tokens/rsa.pem");

fn key() -> SigningKey {
    SigningKey::parse(KEY.as_bytes()).expect("a key")
}

/// A token with these claims, signed by the issuer's key.
fn signed(claims: &Value) -> String {
    let key = key();
    let part = |v: Value| URL_SAFE_NO_PAD.encode(v.to_string());
    let message = format!("{}.{}", part(json!({"alg": "RS256", "kid": key.public.id})), part(claims.clone()));
    format!("{message}.{}", key.sign(&message).expect("signed"))
}

/// An issuer of tokens over HTTPS.
async fn issuer(c: &Cluster) -> Remote {
    let url: Arc<OnceLock<String>> = Arc::default();
    let own = url.clone();
    let remote = Remote::start(c.pki(), move |path, _| {
        let own = own.get().cloned().unwrap_or_default();
        let document = match path {
            "/.well-known/openid-configuration" => json!({"issuer": own, "jwks_uri": format!("{own}/keys")}),
            "/keys" => json!({"keys": [{"kty": "oct", "k": "AAAA", "kid": "weak"}, key().public.jwk()]}),
            _ => return (404, "{}".to_owned()),
        };
        (200, document.to_string())
    })
    .await;
    url.set(remote.url()).expect("once");
    remote
}

fn configuration(dir: &Path, issuer: &Remote, prefix: &str) -> String {
    let ca = issuer.ca().replace('\n', "\n      ");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n\
         anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\njwt:\n- issuer:\n    url: {}\n    audiences: [cluster, other]\n    \
         audienceMatchPolicy: MatchAny\n    certificateAuthority: |\n      {ca}\n  \
         claimValidationRules:\n  - {{expression: \"claims.hd == 'example.com'\", message: wrong domain}}\n  \
         claimMappings:\n    username: {{expression: \"'{prefix}' + claims.sub\"}}\n    groups: {{claim: groups, prefix: 'oidc:'}}\n    \
         extra: [{{key: example.com/tenant, valueExpression: claims.tenant}}]\n  \
         userValidationRules:\n  - {{expression: \"!user.username.contains('root')\", message: not him}}\n",
        issuer.url()
    );
    let (draft, file) = (dir.join("authentication.draft"), dir.join("authentication.yaml"));
    std::fs::write(&draft, text).expect("written");
    std::fs::rename(&draft, &file).expect("in place");
    file.display().to_string()
}

async fn who(c: &Cluster, token: &str) -> Answer {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    c.client(Identity::Token(token.to_owned())).post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review).await
}

/// The user of a token, once the server knows it by that name.
async fn becomes(c: &Cluster, token: &str, wanted: &str) -> Value {
    eventually(wanted, async || {
        Some(who(c, token).await.json()["status"]["userInfo"].clone()).filter(|user| user["username"] == wanted)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_other_issuers() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let issuer = issuer(&c).await;
    let file = configuration(c.dir(), &issuer, "o:");
    c.restart_with(vec![format!("--authentication-config={file}")]).await;
    let now = jiff::Timestamp::now().as_second();
    let claims = json!({"iss": issuer.url(), "aud": "cluster", "sub": "jane", "exp": now + 3600, "iat": now, "jti": "j1",
        "hd": "example.com", "groups": ["dev"], "tenant": "t1"});
    let with = |field: &str, value: Value| {
        let mut claims = claims.clone();
        claims[field] = value;
        claims
    };
    let good = signed(&claims);
    let user = becomes(&c, &good, "o:jane").await;
    assert_eq!(user["groups"], json!(["oidc:dev", "system:authenticated"]));
    assert_eq!(user["extra"]["example.com/tenant"], json!(["t1"]));
    assert_eq!(user["extra"]["authentication.kubernetes.io/credential-id"], json!(["JTI=j1"]));
    let unsigned = {
        let part = |v: Value| URL_SAFE_NO_PAD.encode(v.to_string());
        format!("{}.{}.", part(json!({"alg": "none"})), part(claims.clone()))
    };
    let by_secret = {
        // The public key taken for a shared secret: the oldest trick.
        let part = |v: Value| URL_SAFE_NO_PAD.encode(v.to_string());
        let message = format!("{}.{}", part(json!({"alg": "HS256", "kid": "weak"})), part(claims.clone()));
        let secret = jsonwebtoken::EncodingKey::from_secret(&[0, 0, 0]);
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &secret, jsonwebtoken::Algorithm::HS256);
        format!("{message}.{}", signature.expect("signed"))
    };
    let mut forged = good.clone();
    forged.replace_range(good.len() - 8.., "AAAAAAAA");
    for (what, token) in [
        ("another audience", signed(&with("aud", json!("vault")))),
        ("expired", signed(&with("exp", json!(now - 10)))),
        ("not yet", signed(&with("nbf", json!(now + 1000)))),
        ("a rule of claims", signed(&with("hd", json!("evil.example")))),
        ("a rule of users", signed(&with("sub", json!("root")))),
        ("another issuer", signed(&with("iss", json!("https://evil.example")))),
        ("no signature", unsigned),
        ("a shared secret", by_secret),
        ("a wrong signature", forged),
    ] {
        assert_eq!(who(&c, &token).await.code, 401, "{what}");
    }
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": signed(&with("hd", json!("x")))}});
    let answer = c.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.ok();
    let error = answer["status"]["error"].as_str().unwrap_or("").to_owned();
    assert!(error.contains("validation expression 'claims.hd == 'example.com'' failed: wrong domain"), "{error}");

    // Without a credential only some paths are open; a credential that is bad is never taken for none.
    let nobody = c.client(Identity::Anonymous);
    assert_eq!(nobody.get("/livez").await.code, 200);
    assert_eq!(nobody.get("/version").await.code, 401);
    assert_eq!(c.client(Identity::Token("nonsense".into())).get("/livez").await.code, 401);

    let metrics = c.get("/metrics").await.text();
    for name in ["fetch_last_timestamp_seconds", "fetch_last_key_set_info"] {
        assert!(metrics.contains(&format!("\napiserver_authentication_jwt_authenticator_jwks_{name}{{")), "{name}");
    }
    configuration(c.dir(), &issuer, "n:");
    becomes(&c, &signed(&with("jti", json!("j2"))), "n:jane").await;
}

/// Starts an issuer of distributed claims with the groups, which requires a token.
async fn groups_elsewhere(c: &Cluster) -> Remote {
    let url: Arc<OnceLock<String>> = Arc::default();
    let own = url.clone();
    let remote = Remote::start(c.pki(), move |path, _| {
        let own = own.get().cloned().unwrap_or_default();
        let claims = json!({"iss": own, "aud": "cluster", "exp": jiff::Timestamp::now().as_second() + 3600});
        let with = |field: &str, value: Value| {
            let mut claims = claims.clone();
            claims[field] = value;
            signed(&claims)
        };
        let document = match path {
            "/.well-known/openid-configuration" => {
                json!({"issuer": own, "jwks_uri": format!("{own}/keys")}).to_string()
            }
            "/keys" => json!({"keys": [key().public.jwk()]}).to_string(),
            "/groups" => with("groups", json!(["far", "away"])),
            "/nothing" => with("roles", json!(["far"])),
            "/late" => {
                let mut late = claims.clone();
                late["exp"] = json!(1);
                signed(&late)
            }
            "/nonsense" => "nonsense".to_owned(),
            _ => return (404, String::new()),
        };
        (200, document)
    })
    .await;
    url.set(remote.url()).expect("once");
    remote
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_are_not_in_the_token() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let (issuer, elsewhere) = (issuer(&c).await, groups_elsewhere(&c).await);
    let file = configuration(c.dir(), &issuer, "o:");
    c.restart_with(vec![format!("--authentication-config={file}")]).await;
    let now = jiff::Timestamp::now().as_second();
    let token = |path: &str| {
        let source = json!({"endpoint": format!("{}{path}", elsewhere.url()), "access_token": "t"});
        signed(&json!({"iss": issuer.url(), "aud": "cluster", "sub": "jane", "exp": now + 3600, "hd": "example.com",
            "tenant": "t1", "_claim_names": {"groups": "src"}, "_claim_sources": {"src": source}}))
    };
    let user = becomes(&c, &token("/groups"), "o:jane").await;
    assert_eq!(user["groups"], json!(["oidc:far", "oidc:away", "system:authenticated"]));
    for (path, why) in [
        ("/nothing", "did not contain claim: groups"),
        ("/late", "oidc: could not expand distributed claims: verify distributed claim token: oidc: token is expired"),
        ("/nonsense", "failed for claim \"groups\": malformed token"),
        (
            "/gone",
            "while getting distributed claim \"groups\": error while getting distributed claim JWT: 404 Not Found",
        ),
    ] {
        assert_eq!(who(&c, &token(path)).await.code, 401, "{path}");
        let review =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token(path)}});
        let answer = c.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.ok();
        let error = answer["status"]["error"].as_str().unwrap_or("");
        assert!(error.contains(why), "{path}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_knows_tokens() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let remote = Remote::start(c.pki(), |_, body| {
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let status = match review["spec"]["token"].as_str() {
            Some("jane") => json!({"authenticated": true, "user": {"username": "jane", "uid": "7", "groups": ["dev"], "extra": {"a": ["b"]}}}),
            Some("elsewhere") => json!({"authenticated": true, "audiences": ["vault"], "user": {"username": "jane"}}),
            Some("broken") => json!({"authenticated": false, "error": "the directory is down"}),
            _ => json!({"authenticated": false}),
        };
        (200, json!({"apiVersion": review["apiVersion"], "kind": "TokenReview", "status": status}).to_string())
    })
    .await;
    let kubeconfig = remote.kubeconfig(c.dir(), "tokens.conf", "/authenticate");
    c.restart_with(vec![
        format!("--authentication-token-webhook-config-file={kubeconfig}"),
        "--authentication-token-webhook-version=v1".to_owned(),
    ])
    .await;
    let user = who(&c, "jane").await.ok()["status"]["userInfo"].clone();
    assert_eq!(
        user,
        json!({"username": "jane", "uid": "7", "groups": ["dev", "system:authenticated"], "extra": {"a": ["b"]}})
    );
    for token in ["elsewhere", "broken", "nobody"] {
        assert_eq!(who(&c, token).await.code, 401, "{token}");
    }
    assert_eq!(who(&c, "jane").await.code, 201);
    let metrics = c.get("/metrics").await.text();
    for line in [
        "fetch_total{status=\"ok\"} ",
        "fetch_total{status=\"error\"} ",
        "active_fetch_count{status=\"in_flight\"} ",
        "request_duration_seconds_count{status=\"hit\"} ",
    ] {
        assert!(metrics.contains(&format!("\nauthentication_token_cache_{line}")), "{line}");
    }
}

/// A silent webhook does not make a request exceed its timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_silent() {
    if etcd_is_missing() {
        return;
    }
    // Connections are made, and nobody takes them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let c = Cluster::start_with(|dir, _| {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]});
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{resources: [configmaps]}]}]\n";
        let mut flags = audited(dir, policy);
        flags.push(format!("--authentication-token-webhook-config-file={}", file(dir, "tokens.conf", &config.to_string())));
        flags
    })
    .await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["CREATE"]});
    let webhook = json!({"name": "a.example.com", "clientConfig": {"url": url}, "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 30});
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    c.post(hooks, json!({"metadata": {"name": "a"}, "webhooks": [webhook]})).await.ok();
    let late = r#"{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}"#;
    let maps = "/api/v1/namespaces/default/configmaps?timeout=500ms";
    let stranger = c.client(Identity::Token("unknown".to_owned()));
    // The webhook counts once the cache has it.
    let body = || Some(json!({"metadata": {"generateName": "m"}}).to_string().into());
    let created = async || {
        let answer = c.send("POST", maps, "application/json", body()).await;
        (answer.code != 201).then_some(answer)
    };
    for answer in [stranger.get(maps).await, eventually("a webhook", created).await] {
        assert_eq!((answer.code, answer.text()), (504, format!("{late}\n")));
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    }
    // It is written down as what became of it where it stood.
    let log = std::fs::read_to_string(c.dir().join("audit.log")).expect("a log");
    let said = |stage: &str, message: &str| {
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        events.filter(|e| e["stage"] == stage && e["responseStatus"]["message"] == message).count()
    };
    assert_eq!(said("ResponseStarted", "Unauthorized"), 1, "{log}");
    let expired = "Timeout: request did not complete within requested timeout - context deadline exceeded";
    assert_eq!(said("ResponseComplete", expired), 1, "{log}");
    let metrics = c.get("/metrics").await.text();
    let given_up =
        "apiserver_request_terminations_total{code=\"504\",component=\"apiserver\",group=\"\",resource=\"configmaps\"";
    assert_eq!(metrics.matches(given_up).count(), 2, "a read and a write");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_in_a_file_bootstrap_tokens_and_authorities_that_change() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| {
        std::fs::write(dir.join("tokens.csv"), "opensesame,zoe,42,\"dev,ops\"\n").expect("written");
        vec![
            format!("--token-auth-file={}", dir.join("tokens.csv").display()),
            "--enable-bootstrap-token-auth=true".to_owned(),
        ]
    })
    .await;
    let zoe = who(&c, "opensesame").await.ok()["status"]["userInfo"].clone();
    assert_eq!(zoe, json!({"username": "zoe", "uid": "42", "groups": ["dev", "ops", "system:authenticated"]}));
    assert_eq!(who(&c, "opensesam").await.code, 401);

    let until = jiff::Timestamp::now() + std::time::Duration::from_secs(3600);
    let secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": until.to_string(),
            "usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:east"}});
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    c.post(secrets, secret).await.ok();
    let node = eventually("the token counts", async || {
        let answer = who(&c, "abcdef.0123456789abcdef").await;
        (answer.code == 201).then(|| answer.json()["status"]["userInfo"].clone())
    })
    .await;
    let groups = json!(["system:bootstrappers", "system:bootstrappers:east", "system:authenticated"]);
    assert_eq!((&node["username"], &node["groups"]), (&json!("system:bootstrap:abcdef"), &groups));
    assert_eq!(who(&c, "abcdef.0123456789abcdee").await.code, 401, "another secret");
    let patch = json!({"stringData": {"usage-bootstrap-authentication": "false"}});
    c.patch(&format!("{secrets}/bootstrap-token-abcdef"), "merge-patch+json", patch).await.ok();
    let gone = async || (who(&c, "abcdef.0123456789abcdef").await.code == 401).then_some(());
    eventually("the token is for nothing", gone).await;

    // The file of authorities is followed: who was a stranger is known, without a restart.
    let foreign = c.client(Identity::Foreign);
    assert_eq!(foreign.get("/api/v1/namespaces").await.code, 401);
    std::fs::write(c.dir().join("ca.crt"), format!("{}{}", c.pki().ca, c.pki().foreign_ca)).expect("written");
    let known = async || (c.client(Identity::Foreign).get("/api/v1/namespaces").await.code == 200).then_some(());
    eventually("another authority is believed", known).await;
    c.get("/api/v1/namespaces").await.ok();
    // Other servers of the cluster learn it, too.
    let told = "/api/v1/namespaces/kube-system/configmaps?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3Dextension-apiserver-authentication";
    let foreign = c.pki().foreign_ca.replace("\r\n", "\n");
    let of = |object: &Value| object["data"]["client-ca-file"].as_str().unwrap_or_default().to_owned();
    c.client(Identity::Admin).watch_until(told, |object| of(object).contains(foreign.trim())).await;
}
