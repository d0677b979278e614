//! Requests that are wrong before there is a body: in their parameters, in who sends them, in where they lead.

use serde_json::{Value, json};

use crate::bad_input::names;
use crate::harness::Identity;
use crate::{cluster, workspace};

#[tokio::test(flavor = "multi_thread")]
async fn selectors_and_options() {
    let Some((c, ns)) = workspace("bad-queries").await else { return };
    let maps = format!("{ns}/configmaps");
    c.post(&maps, json!({"metadata": {"name": "a", "labels": {"k": "v4999"}}})).await.ok();
    for (query, message) in [
        ("labelSelector=a%3D%3D%3Db", "unable to parse requirement: found '=', expected: identifier"),
        ("labelSelector=a+in+b", "unable to parse requirement: found 'b' expected: '('"),
        ("fieldSelector=a", "invalid selector: 'a'; can't understand 'a'"),
        (
            "fieldSelector=spec.foo%3D1",
            r#""spec.foo" is not a known field selector: only "metadata.name", "metadata.namespace""#,
        ),
        (
            "labelSelector=-a",
            "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        ("limit=abc", r#"strconv.ParseInt: parsing "abc": invalid syntax"#),
        ("limit=", r#"strconv.ParseInt: parsing "": invalid syntax"#),
        ("limit=9223372036854775808", r#"strconv.ParseInt: parsing "9223372036854775808": value out of range"#),
        (
            "continue=abcd%3D%3D",
            "invalid continue token: continue key is not valid: illegal base64 data at input byte 4",
        ),
        (
            "continue=abc",
            "invalid continue token: continue key is not valid: invalid character 'i' looking for beginning of value",
        ),
    ] {
        c.get(&format!("{maps}?{query}")).await.fails(400, "BadRequest", message);
    }
    // As Go's encoder has it.
    assert!(c.get(&format!("{maps}?labelSelector=-a")).await.text().contains(r"\u003cnil\u003e"));
    // No value is an empty one, nothing compared with nothing says nothing, and what cannot be unescaped is passed over.
    assert!(names(&c, &format!("{maps}?labelSelector=k+in+()")).await.is_empty());
    for query in ["fieldSelector=%3D", "limit=%zz", "limit=1;x"] {
        let there = names(&c, &format!("{maps}?{query}")).await;
        assert!(there.contains(&"a".to_owned()), "{query}: {there:?}");
    }
    // Thousands of values are a selector like any other.
    let values: Vec<String> = (0..5000).map(|i| format!("v{i}")).collect();
    assert_eq!(names(&c, &format!("{maps}?labelSelector=k+in+({})", values.join(","))).await, ["a"]);
    let long = c.get(&format!("{maps}?labelSelector=k%3D{}", "x".repeat(60_000))).await;
    assert_eq!((long.code, long.failure().1.as_str()), (400, "BadRequest"));
    let many = (0..5000).map(|i| format!("k{i}")).collect::<Vec<_>>().join(",");
    assert!(names(&c, &format!("{maps}?labelSelector={many}")).await.is_empty());
    let deep = c.get(&format!("{maps}?labelSelector={}", "(".repeat(20_000))).await;
    assert_eq!(deep.code, 400);

    let html = c.send("GET", &maps, "text/html", None).await;
    assert_eq!(html.code, 406);
    let table = c.send("GET", &maps, "application/json;as=Table;v=v9;g=meta.k8s.io", None).await;
    assert_eq!((table.code, table.failure().1.as_str()), (406, "NotAcceptable"));
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_none() {
    let Some(server) = cluster().await else { return };
    let path = "/api/v1/namespaces/default/configmaps";
    for identity in [Identity::Expired, Identity::Foreign] {
        let c = server.client(identity.clone());
        let answer = c.get(path).await;
        answer.fails(401, "Unauthorized", "Unauthorized");
        let body = json!({"metadata": {"name": "never"}});
        c.post(path, body).await.fails(401, "Unauthorized", "Unauthorized");
    }
    let admin = server.client(Identity::Admin);
    let account = "/api/v1/namespaces/default/serviceaccounts/robot";
    admin.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "robot"}})).await.ok();
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let good = admin.post(&format!("{account}/token"), request).await.ok()["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let parts: Vec<&str> = good.split('.').collect();
    let forbidden = r#"configmaps is forbidden: User "system:serviceaccount:default:robot" cannot list resource "configmaps" in API group "" in the namespace "default""#;
    server.client(Identity::Token(good.clone())).get(path).await.fails(403, "Forbidden", forbidden);

    use base64::Engine as _;
    let code = |v: Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(v.to_string());
    let mut claims: Value =
        serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(parts[1]).expect("base64"))
            .expect("claims");
    claims["sub"] = json!("system:serviceaccount:kube-system:namespace-controller");
    let flipped =
        if parts[2].starts_with('A') { parts[2].replacen('A', "B", 1) } else { format!("A{}", &parts[2][1..]) };
    for (what, token) in [
        ("a word", "nope".to_owned()),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("another signature", format!("{}.{}.{flipped}", parts[0], parts[1])),
        ("other claims", format!("{}.{}.{}", parts[0], code(claims.clone()), parts[2])),
        ("no algorithm", format!("{}.{}.", code(json!({"alg": "none", "typ": "JWT"})), code(claims))),
        ("long", "x".repeat(8_000)),
    ] {
        let (status, reason, _) = server.client(Identity::Token(token)).get(path).await.failure();
        assert_eq!((status, reason.as_str()), (401, "Unauthorized"), "{what}");
    }
    // A token outlives neither its account nor a new account of that name.
    admin.delete(account).await.ok();
    let status = server.client(Identity::Token(good.clone())).get(path).await.code;
    assert_eq!(status, 401, "the account is gone");
    admin.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "robot"}})).await.ok();
    assert_eq!(server.client(Identity::Token(good)).get(path).await.code, 401, "another account");
    admin.delete(account).await.ok();
    admin.get(&format!("{path}/never")).await.fails(404, "NotFound", r#"configmaps "never" not found"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_lead_nowhere() {
    let Some((c, ns)) = workspace("bad-paths").await else { return };
    let before = c.get(&format!("{ns}/configmaps")).await.ok()["items"].clone();
    let long = format!("{ns}/configmaps/{}", "x".repeat(5_000));
    for path in [
        "/foo",
        "/api/v9/pods",
        "/apis/nosuch.io/v1/things",
        "/apis/apps/v9/deployments",
        "/api/v1/nosuch",
        "/api/v1/namespaces/bad-paths/pods/x/nosuch",
        "/api/v1/namespaces/bad-paths/configmaps/%00",
        "/api/v1/namespaces/bad-paths/configmaps/%ff%fe",
        "/api/v1/namespaces/bad-paths/configmaps/a%2Fb",
        "/api/v1/namespaces/../../../etc/passwd",
        "/api/v1/namespaces/%2e%2e/configmaps/x",
        &long,
    ] {
        for method in ["GET", "DELETE"] {
            let answer = c.call(method, path, &[], None).await;
            assert!((400..500).contains(&answer.code), "{method} {path}: {} {}", answer.code, answer.text());
        }
    }
    for query in [
        "limit=1&limit=2",
        "%zz",
        "=",
        "&&&",
        "watch=1&timeoutSeconds=x",
        "labelSelector=%ff",
        "pretty=%00",
        "resourceVersion=-1",
        "limit=99999999999999999999",
    ] {
        let answer = c.get(&format!("{ns}/configmaps?{query}")).await;
        assert!(answer.code < 500 || query.contains("ersion"), "{query}: {} {}", answer.code, answer.text());
    }
    assert_eq!(c.get(&format!("{ns}/configmaps")).await.ok()["items"], before);
}
