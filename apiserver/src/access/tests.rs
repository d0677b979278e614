//! The chain as a whole, over a cluster in memory.

use serde_json::json;
use shared::authn::{GroupAdder, OrAnonymous, Union};

use super::*;
use crate::admission::testing::Fixed;
use crate::authn::{StaticTokens, Tokens};
use crate::authz::{Mode, rbac};
use crate::flowcontrol::FlowControl;
use crate::serve::info::request_info;
use crate::tokens::{Config, Issuer};

const KEY: &str = include_str!("../../testdata/tokens/rsa.pem");

fn access() -> Access {
    let cluster = Arc::new(Fixed::default());
    let rules = json!([
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]},
        {"verbs": ["get"], "nonResourceURLs": ["/version"]}
    ]);
    cluster.put(rbac::GROUP, "clusterroles", json!({"metadata": {"name": "r"}, "rules": rules}));
    cluster.put(
        rbac::GROUP,
        "clusterrolebindings",
        json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "alice"}, {"kind": "Group", "name": "dev"}]}),
    );
    let file = StaticTokens::parse("f", "secret,alice,1\nroot,root,2,\"system:masters\"").expect("parses");
    let tokens = Tokens::new(vec![Arc::new(file)], vec!["https://k".into()]);
    let authorization = Arc::new(Authorization::new(&[Mode::Node, Mode::Rbac], cluster.clone(), Vec::new()));
    let config = Config { issuers: vec!["https://k".into()], ..Config::default() };
    let accounts = Arc::new(ServiceAccounts::with_key(KEY, config));
    let issuer = Issuer { accounts: accounts.clone(), reader: cluster.clone(), api: cluster.api() };
    let reviews = Reviews { authorization: authorization.clone(), tokens: tokens.clone() };
    Access {
        authenticator: Arc::new(OrAnonymous {
            chain: GroupAdder(Union::new(vec![Arc::new(tokens)])),
            paths: Vec::new(),
        }),
        authorization,
        limiter: ConcurrencyLimiter::Fair(FlowControl::new(
            8,
            std::time::Duration::from_secs(60),
            cluster.clone(),
            true,
        )),
        accounts,
        issuer: Arc::new(issuer),
        reviews: Arc::new(reviews),
        counters: Counters::new(),
        rbac: true,
        modes: None,
    }
}

fn pods(verb: &str) -> RequestInfo {
    RequestInfo {
        is_resource: true,
        verb: verb.into(),
        api_version: "v1".into(),
        namespace: "e".into(),
        resource: "pods".into(),
        path: "/api/v1/namespaces/e/pods".into(),
        ..RequestInfo::default()
    }
}

fn path(path: &str) -> RequestInfo {
    RequestInfo { verb: "get".into(), path: path.into(), ..RequestInfo::default() }
}

async fn send(info: &RequestInfo, headers: &[(&'static str, &'static str)]) -> Result<String, (u16, String)> {
    let mut map = http::HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, http::HeaderValue::from_static(value));
    }
    let head = Head { method: "GET", query: "", headers: &map, certificates: &[], info };
    let access = access();
    let user = access.authenticate(&head).await.map_err(|s| (s.code, s.message))?;
    let impersonated = access.impersonate(&head, &user).await.map_err(|s| (s.code, s.message))?;
    let user = impersonated.map_or(user, |impersonated| impersonated.user);
    let _permit = access.enter(&head, &user).await.map_err(|full| (full.status.code, full.status.message))?;
    let AuthorizationOutcome { annotations, refusal } = access.authorize(&head, &user).await;
    let decision = annotations.get("authorization.k8s.io/decision").map(String::as_str);
    match refusal {
        None => {
            assert_eq!(decision, Some("allow"));
            Ok(user.name)
        }
        Some(AccessError::Status(s)) => {
            assert_ne!(decision, Some("allow"));
            Err((s.code, s.message))
        }
        Some(AccessError::Failure(text)) => Err((500, text)),
    }
}

#[tokio::test]
async fn each_step_refuses_in_its_own_words() {
    const ALICE: (&str, &str) = ("authorization", "Bearer secret");
    const ROOT: (&str, &str) = ("authorization", "Bearer root");
    let refused = |code: u16, text: &str| Err((code, text.to_owned()));
    type Row = (RequestInfo, Vec<(&'static str, &'static str)>, Result<String, (u16, String)>);
    let table: Vec<Row> = vec![
        (pods("get"), vec![ALICE], Ok("alice".into())),
        (path("/version"), vec![ALICE], Ok("alice".into())),
        (pods("delete"), vec![ROOT], Ok("root".into())),
        (pods("get"), vec![("authorization", "Bearer nope")], refused(401, "Unauthorized")),
        (
            pods("list"),
            vec![ALICE],
            refused(
                403,
                "pods is forbidden: User \"alice\" cannot list resource \"pods\" in API group \"\" in the namespace \"e\"",
            ),
        ),
        (path("/metrics"), vec![ALICE], refused(403, "forbidden: User \"alice\" cannot get path \"/metrics\"")),
        (path("/"), vec![], refused(403, "forbidden: User \"system:anonymous\" cannot get path \"/\"")),
        (
            pods("get"),
            vec![ALICE, ("impersonate-user", "eve")],
            refused(
                403,
                "users \"eve\" is forbidden: User \"alice\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            ),
        ),
        (
            pods("get"),
            vec![ALICE, ("impersonate-user", "bob")],
            refused(
                403,
                "pods is forbidden: User \"bob\" cannot get resource \"pods\" in API group \"\" in the namespace \"e\"",
            ),
        ),
        (pods("get"), vec![ROOT, ("impersonate-user", "bob"), ("impersonate-group", "dev")], Ok("bob".into())),
        (
            pods("get"),
            vec![ROOT, ("impersonate-group", "dev")],
            refused(400, "requested [{Group  dev    }] without impersonating a user"),
        ),
    ];
    for (info, headers, want) in table {
        let headers: Vec<(&'static str, &'static str)> = headers;
        assert_eq!(send(&info, &headers).await, want, "{} {} {headers:?}", info.verb, info.path);
    }
}

#[test]
fn list_with_a_name_field_selector_is_authorized_by_name() {
    let headers = http::HeaderMap::new();
    let query = "watch=1&fieldSelector=metadata.name%3Dweb";
    let info = request_info("GET", "/api/v1/namespaces/e/pods", &Query::parse(query));
    let head = Head { method: "GET", query, headers: &headers, certificates: &[], info: &info };
    let question = attributes(&head, &UserInfo::default());
    assert_eq!((question.name.as_str(), question.field_selector.as_str()), ("web", "metadata.name=web"));
}

#[test]
fn audit_ids_are_the_clients_or_new() {
    assert_eq!(audit_id("").len(), 36);
    assert_eq!(audit_id("mine"), "mine");
}
