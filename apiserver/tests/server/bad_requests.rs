//! Requests that are wrong before there is a body: in their parameters, in who sends them, in where they lead.

use serde_json::{Value, json};

use crate::bad_input::names;
use crate::harness::{Client, Identity};
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
    // No value is an empty one, nothing compared with nothing says nothing, and what cannot be unescaped is passed
    // over.
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

const NOWHERE: &str = "the server could not find the requested resource";

/// The router goes by names alone; what comes after it understands more.
async fn what_a_router_offers(c: &Client, maps: &str) {
    let only = |types: &str| format!("only the following media types are accepted: {types}");
    let none = |types: &str| format!("406: Not Acceptable\n\nAvailable representations: {types}");
    let all = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let streams = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    for (path, accept, want) in [
        ("/api", "application/*", none(all)),
        ("/apis/apps/v1", "application/*", none(all)),
        ("/version", "application/yaml", none("application/json")),
        (maps, "application/*", none(&format!("{all}, {streams}"))),
        (maps, "application/json;as=Foo", only(all)),
        (&format!("{maps}?watch=1"), "application/yaml, application/json", only(streams)),
    ] {
        let answer = c.call("GET", path, &[("Accept", accept), ("User-Agent", "x")], None).await;
        assert_eq!(answer.code, 406, "{path} {accept}");
        if !accept.contains("yaml") {
            assert_eq!(answer.json()["message"], want, "{path} {accept}");
        }
    }
    for path in ["/apis", "/apis/apps"] {
        assert_eq!(c.call("GET", path, &[("Accept", "application/*")], None).await.code, 200, "{path}");
    }
}

/// Malformed request lines are refused by the router, the query parser and the keys of the store, in upstream's words.
#[tokio::test(flavor = "multi_thread")]
async fn request_lines_that_are_almost_right() {
    let Some((c, ns)) = workspace("almost-right").await else { return };
    let maps = format!("{ns}/configmaps");
    for (method, path, want) in [
        ("GET", format!("{maps}/%2e"), (400, "Name parameter invalid: \".\": may not be '.'")),
        ("DELETE", format!("{maps}/%2e%2e"), (400, "Name parameter invalid: \"..\": may not be '..'")),
        ("GET", format!("{maps}/a%25b"), (400, "Name parameter invalid: \"a%b\": may not contain '%'")),
        ("GET", format!("{maps}?limit="), (400, "strconv.ParseInt: parsing \"\": invalid syntax")),
        (
            "GET",
            format!("{maps}?limit=99999999999999999999"),
            (400, "strconv.ParseInt: parsing \"99999999999999999999\": value out of range"),
        ),
        ("GET", "/api/v2".to_owned(), (404, NOWHERE)),
        ("GET", format!("{maps}/../configmaps"), (404, NOWHERE)),
        ("GET", format!("{maps}//a"), (404, NOWHERE)),
        ("GET", format!("/api/v1//namespaces{}", &ns["/api/v1/namespaces".len()..]), (404, NOWHERE)),
    ] {
        let (code, _, message) = c.call(method, &path, &[], None).await.failure();
        assert_eq!((code, message.as_str()), want, "{method} {path}");
    }
    for path in [format!("/{maps}"), "//".to_owned(), "//healthz".to_owned(), "/openapi/v2/".to_owned()] {
        let answer = c.get(&path).await;
        assert_eq!((answer.code, answer.text().as_str()), (404, "404 page not found\n"), "{path}");
    }
    // No namespace at all is every namespace.
    assert_eq!(c.get("/api/v1/namespaces//configmaps").await.ok()["kind"], "ConfigMapList");
    // Parameters that cannot be read are none.
    for query in ["limit=1;b=2", "labelSelector=%zz", "%zz=1"] {
        assert_eq!(c.get(&format!("{maps}?{query}")).await.code, 200, "{query}");
    }
    for (path, code) in [("/api", 405), ("/api/v1", 405), ("/version", 405), ("/apis/apps/v1", 405), ("/healthz", 200)]
    {
        assert_eq!(c.call("HEAD", path, &[], None).await.code, code, "{path}");
    }
    // Groups answer whatever is asked; their versions, as far as a router answers for them, do not.
    for (path, code) in [
        ("/apis", 200),
        ("/apis/apps", 200),
        ("/apis/apiregistration.k8s.io", 405),
        ("/apis/apps/v1", 405),
        ("/apis/apps/v9", 404),
        ("/apis/none.example.com", 404),
        ("/apis/none.example.com/v1", 404),
    ] {
        for method in ["POST", "DELETE", "OPTIONS"] {
            assert_eq!(c.call(method, path, &[], None).await.code, code, "{method} {path}");
        }
    }
    what_a_router_offers(&c, &maps).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    for (media, code) in [
        ("APPLICATION/JSON", 201),
        ("application/json;", 201),
        ("application/json;;", 415),
        ("application/json;x", 415),
    ] {
        let (path, headers) = (format!("{maps}?dryRun=All"), [("Content-Type", media)]);
        let answer = c.call("POST", &path, &headers, Some(map.clone().into())).await;
        assert_eq!(answer.code, code, "{media}");
    }
    let (headers, body) = ([("Content-Type", "application/json")], r#"{"kind":"ConfigMap"}"#);
    let answer = c.call("DELETE", &format!("{maps}/a"), &headers, Some(body.into())).await;
    let why = r#"no kind "ConfigMap" is registered for version "meta.k8s.io/v1" in scheme "pkg/runtime/scheme.go:111""#;
    answer.fails(400, "BadRequest", why);
    let text = map.replace("\"a\"", "\"\u{1}\"");
    let answer = c.call("POST", &maps, &[("Content-Type", "application/json")], Some(text.into())).await;
    let (_, _, message) = answer.failure();
    assert!(message.ends_with(" ...)") && message.len() < 240, "{message}");
}
