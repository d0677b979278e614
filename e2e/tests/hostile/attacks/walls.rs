//! Attacks on the walls between namespaces: paths, permissions, names of others.

use serde_json::{Value, json};

use super::{Attack, attack, expect};
use crate::client::{Answer, Arena, MINE, THEIR_SECRET, THEIRS, mine, of_group, pod};
use e2e::testing::text;

pub fn all() -> Vec<Attack> {
    vec![
        attack("another namespace below one's own: DELETE", |arena| {
            let answer = arena.ask("DELETE", &format!("/api/v1/namespaces/{MINE}/namespaces/{THEIRS}"));
            expect(&answer, &[404], "DELETE");
        }),
        attack("another namespace below one's own: reads, watches and patches", |arena| {
            for path in
                ["namespaces/mallory/namespaces", "watch/namespaces/mallory/namespaces", "namespaces/mallory/nodes"]
            {
                expect(&arena.ask("GET", &format!("/api/v1/{path}")), &[404], path);
            }
            let patch = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": null}}});
            let answer = arena.patch(&format!("/api/v1/namespaces/{MINE}/namespaces/{THEIRS}"), &patch);
            expect(&answer, &[404], "PATCH");
        }),
        attack("paths that mean another place", other_spellings),
        attack("deletecollection by a field selector with a permission for one name", delete_collection_by_name),
        attack("a binding to cluster-admin in one's own namespace", |arena| {
            let binding = json!({"metadata": {"name": "root"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "eve", "namespace": MINE}]});
            let group = "rbac.authorization.k8s.io/v1";
            expect(&arena.post(&of_group(group, "rolebindings", ""), &binding), &[201], "in one's own namespace");
            expect(&arena.post(&format!("/apis/{group}/clusterrolebindings"), &binding), &[403], "for the cluster");
            let theirs = format!("/apis/{group}/namespaces/{THEIRS}/rolebindings");
            expect(&arena.post(&theirs, &binding), &[403], "in another namespace");
            stays_out(arena);
        }),
        attack("a role in another namespace", |arena| {
            let role = json!({"metadata": {"name": "all"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]});
            let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{THEIRS}/roles");
            expect(&arena.post(&path, &role), &[403], "a role");
        }),
        attack("impersonation and front-proxy headers", |arena| {
            let secrets = format!("/api/v1/namespaces/{THEIRS}/secrets");
            for header in [
                "Impersonate-User: system:admin",
                "Impersonate-Group: system:masters",
                "Impersonate-Uid: 0",
                "X-Remote-User: system:admin",
                "X-Remote-Group: system:masters",
            ] {
                let answer = arena.send("GET", &secrets, &["-H", header], None);
                assert!(matches!(answer.status, 400 | 401 | 403 | 500) && !leaks(&answer), "{header}: {answer:?}");
            }
        }),
        attack("tokens of others' accounts", |arena| {
            let request =
                json!({"spec": {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": i64::MAX}});
            let of = |namespace: &str, account: &str| {
                format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token")
            };
            expect(&arena.post(&of("kube-system", "generic-garbage-collector"), &request), &[403], "a controller's");
            expect(&arena.post(&of(THEIRS, "default"), &request), &[403], "another tenant's");
            expect(&arena.post(&of(MINE, "eve"), &request), &[422], "without an end");
        }),
        attack("slices and endpoints that name another's Service or pods", |arena| {
            let address = text(&their_pod(arena), "/status/podIP").to_owned();
            let slice = json!({"metadata": {"name": "web", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
                "endpoints": [{"addresses": [address], "targetRef": {"kind": "Pod", "namespace": THEIRS, "name": "web"}}],
                "ports": [{"name": "", "port": 8080}]});
            let answer = arena.post(&of_group("discovery.k8s.io/v1", "endpointslices", ""), &slice);
            expect(&answer, &[201], "a slice");
        }),
        attack("endpoints on the node's own and the cloud's addresses", |arena| {
            for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "::ffff:127.0.0.1"] {
                let endpoints = json!({"metadata": {"name": "inside"}, "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80}]}]});
                expect(&arena.post(&mine("endpoints", ""), &endpoints), &[422], address);
                let family = if address.contains(':') { "IPv6" } else { "IPv4" };
                let slice = json!({"metadata": {"name": "inside"}, "addressType": family, "endpoints": [{"addresses": [address]}]});
                expect(&arena.post(&of_group("discovery.k8s.io/v1", "endpointslices", ""), &slice), &[422], address);
            }
        }),
        attack("another's node port and cluster address", |arena| {
            let theirs = arena.cluster.json(&format!("-n {THEIRS} get service web"));
            let with = |more: Value| json!({"metadata": {"name": "thief"}, "spec": more});
            let port = with(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}));
            expect(&arena.post(&mine("services", ""), &port), &[422], "the node port");
            let address = with(json!({"clusterIP": theirs["spec"]["clusterIP"], "ports": [{"port": 80}]}));
            expect(&arena.post(&mine("services", ""), &address), &[422], "the address");
            for external in ["127.0.0.1", "169.254.169.254", "0.0.0.0"] {
                let service = with(json!({"externalIPs": [external], "ports": [{"port": 80}]}));
                expect(&arena.post(&mine("services", ""), &service), &[422], external);
            }
        }),
        attack("the node's port through the API server", |arena| {
            for path in
                ["nodes/node-1/proxy/pods", "nodes/node-1:10250/proxy/pods", "nodes/https:node-1:10250/proxy/configz"]
            {
                expect(&arena.ask("GET", &format!("/api/v1/{path}")), &[403], path);
                let below = format!("/api/v1/namespaces/{MINE}/{path}");
                expect(&arena.ask("GET", &below), &[404, 403], path);
            }
        }),
        attack("a Service that leads to the kubelet", |arena| {
            let service = json!({"metadata": {"name": "kubelet"}, "spec": {"ports": [{"port": 10250}]}});
            let endpoints = json!({"metadata": {"name": "kubelet"}, "subsets": [{"addresses": [{"ip": "10.89.0.11"}], "ports": [{"port": 10250}]}]});
            expect(&arena.post(&mine("services", ""), &service), &[201], "the Service");
            expect(&arena.post(&mine("endpoints", ""), &endpoints), &[201], "its endpoints");
            let answer = arena.ask("GET", &mine("services", "https:kubelet:/proxy/pods"));
            assert!(!matches!(answer.status, 200..300), "the kubelet lists its pods: {answer:?}");
        }),
        attack("eviction and binding of another's pods", |arena| {
            let name = text(&their_pod(arena), "/metadata/name").to_owned();
            let eviction =
                json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": THEIRS}});
            let path = format!("/api/v1/namespaces/{THEIRS}/pods/{name}/eviction");
            expect(&arena.post(&path, &eviction), &[403], "an eviction");
            let mine_path = mine("pods", &format!("{name}/eviction"));
            expect(
                &arena.post(&mine_path, &eviction),
                &[400, 404],
                "an eviction of another namespace in one's own path",
            );
            let binding =
                json!({"metadata": {"name": name, "namespace": THEIRS}, "target": {"kind": "Node", "name": "../x"}});
            expect(&arena.post(&mine("bindings", ""), &binding), &[400, 404], "a binding");
        }),
        attack("an owner in another namespace", |arena| {
            let theirs = arena.cluster.json(&format!("-n {THEIRS} get deployment web"));
            let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": theirs["metadata"]["uid"],
                "blockOwnerDeletion": true, "controller": true}]);
            let path = mine("configmaps", "owned");
            let object = json!({"metadata": {"name": "owned", "ownerReferences": owner}});
            expect(&arena.post(&mine("configmaps", ""), &object), &[201], "the object");
            arena.wait_until_gone(&path, 30);
        }),
        attack("a pod that claims another's ReplicaSet", |arena| {
            let theirs = arena.cluster.json(&format!("-n {THEIRS} get replicasets"));
            let owners: Vec<Value> = theirs["items"]
                .as_array()
                .into_iter()
                .flatten()
                .take(1)
                .map(|set| {
                    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set["metadata"]["name"],
                    "uid": set["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true})
                })
                .collect();
            let mut cuckoo = pod("cuckoo", &json!({}));
            cuckoo["metadata"]["ownerReferences"] = json!(owners);
            cuckoo["metadata"]["labels"] = json!({"app": "web"});
            expect(&arena.post(&mine("pods", ""), &cuckoo), &[201], "the pod");
        }),
        attack("volumes that lead out of the pod", |arena| {
            let mounts = |sub: &str| {
                json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "main", "image": "busybox:1.36",
                "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": sub}]}]})
            };
            for sub in ["../../..", "/etc", "a/../../b"] {
                expect(&arena.post(&mine("pods", ""), &pod("out", &mounts(sub))), &[422], sub);
            }
            let projected = |path: &str| json!({"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": path, "fieldRef": {"fieldPath": "metadata.name"}}]}}]});
            for path in ["../../x", "/x", "..x/../../y"] {
                expect(&arena.post(&mine("pods", ""), &pod("out", &projected(path))), &[422], path);
            }
        }),
    ]
}

fn their_pod(arena: &Arena) -> Value {
    arena.cluster.json(&format!("-n {THEIRS} get pods -l app=web"))["items"][0].clone()
}

fn leaks(answer: &Answer) -> bool {
    answer.body.contains(THEIR_SECRET)
}

/// Asserts that the tenant reads nothing of the other.
fn stays_out(arena: &Arena) {
    expect(&arena.ask("GET", &format!("/api/v1/namespaces/{THEIRS}/secrets")), &[403], "their secrets");
    expect(&arena.ask("GET", "/api/v1/secrets"), &[403], "all secrets");
}

fn other_spellings(arena: &Arena) {
    stays_out(arena);
    for path in [
        "//api/v1/namespaces/alice/secrets",
        "/api//v1/namespaces/alice/secrets",
        "/api/v1/namespaces/mallory/../alice/secrets",
        "/api/v1/namespaces/mallory/%2e%2e/alice/secrets",
        "/api/v1/namespaces/mallory%2f..%2falice/secrets",
        "/api/v1/namespaces/mallory/pods/..%2f..%2falice%2fsecrets",
        "/api/v1/namespaces/mallory/secrets/..%2f..%2f..%2fsecrets%2falice%2fprivate",
        "/api/v1/./namespaces/alice/secrets",
        "/apis/../api/v1/namespaces/alice/secrets",
        "/api/v1/namespaces/alice%00/secrets",
        "/api/v1/namespaces/ALICE/secrets",
        "/api/v1/watch/namespaces/alice/secrets?timeoutSeconds=1",
        "/api/v1/secrets?fieldSelector=metadata.namespace%3Dmallory",
        "/api/v1/namespaces/mallory/secrets?fieldSelector=metadata.namespace%3Dalice",
        "/api/v1/namespaces//secrets/private",
        "/api/v1/namespaces/mallory/secrets//private",
        "/api/v1/namespaces/mallory;/alice/secrets",
    ] {
        let answer = arena.ask("GET", path);
        assert!(!leaks(&answer), "{path} shows another's secret: {answer:?}");
        assert!(!matches!(answer.status, 0 | 500..), "{path}: {answer:?}");
    }
}

fn delete_collection_by_name(arena: &Arena) {
    let role = json!({"metadata": {"name": "one"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"],
        "resourceNames": ["one"], "verbs": ["deletecollection", "list"]}]});
    let binding = json!({"metadata": {"name": "one"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"},
        "subjects": [{"kind": "ServiceAccount", "name": "one", "namespace": MINE}]});
    let group = "rbac.authorization.k8s.io/v1";
    expect(&arena.post(&mine("serviceaccounts", ""), &json!({"metadata": {"name": "one"}})), &[201], "the account");
    expect(&arena.post(&of_group(group, "roles", ""), &role), &[201], "the role");
    expect(&arena.post(&of_group(group, "rolebindings", ""), &binding), &[201], "the binding");
    let token = arena.post(&mine("serviceaccounts", "one/token"), &json!({"spec": {}}));
    let token = text(&token.json(), "/status/token").to_owned();
    let selected = format!("{}?fieldSelector=metadata.name%3Done", mine("configmaps", ""));
    let listed = arena.cluster.until("the binding counts", 10, || {
        let answer = arena.send_as(&token, "GET", &selected, &[], None);
        if answer.status == 200 { Ok(answer) } else { Err(answer.body) }
    });
    expect(&listed, &[200], "a list of one name");
    expect(&arena.send_as(&token, "DELETE", &selected, &[], None), &[403], "deletecollection");
}
