//! Attacks by the shape of objects: null where times are due, depth, size, bytes that are nothing.

use serde_json::{Value, json};

use super::{Attack, attack, expect};
use crate::client::{MINE, container, mine, of_group, pod};

const JSON: &str = "Content-Type: application/json";
const YAML: &str = "Content-Type: application/yaml";
const PROTOBUF: &str = "Content-Type: application/vnd.kubernetes.protobuf";
const JSON_PATCH: &str = "Content-Type: application/json-patch+json";
const STRATEGIC: &str = "Content-Type: application/strategic-merge-patch+json";
const APPLY: &str = "Content-Type: application/apply-patch+yaml";

pub fn all() -> Vec<Attack> {
    vec![
        attack("a Service whose condition has no time", |arena| {
            let service =
                json!({"metadata": {"name": "untimed"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 1}]}});
            expect(&arena.post(&mine("services", ""), &service), &[201], "the Service");
            let condition =
                json!({"type": "x", "status": "True", "reason": "y", "message": "", "lastTransitionTime": null});
            let answer =
                arena.patch(&mine("services", "untimed/status"), &json!({"status": {"conditions": [condition]}}));
            expect(&answer, &[200, 422], "its status");
        }),
        attack("that Service deleted", |arena| {
            expect(&arena.ask("DELETE", &mine("services", "untimed")), &[200], "DELETE");
        }),
        attack("statuses of pods with null in every place", |arena| {
            expect(&arena.post(&mine("pods", ""), &pod("hollow", &json!({}))), &[201], "the pod");
            arena.wait_until_running("hollow");
            for status in [
                json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": null, "lastProbeTime": null}]}),
                json!({"startTime": null, "podIPs": null, "hostIPs": null}),
                json!({"containerStatuses": [{"name": "main", "state": {"running": {"startedAt": null}}, "ready": true, "restartCount": 0, "image": "", "imageID": ""}]}),
                json!({"containerStatuses": [{"name": null, "state": null, "lastState": null, "ready": null, "restartCount": null, "image": null, "imageID": null}]}),
                json!({"initContainerStatuses": [{"name": "x"}], "ephemeralContainerStatuses": [{"name": "y", "state": {"terminated": {"exitCode": i32::MAX}}}]}),
                json!({"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "?watch=true"}]}),
            ] {
                let answer = arena.patch(&mine("pods", "hollow/status"), &json!({"status": status}));
                expect(&answer, &[200, 422], &status.to_string());
            }
        }),
        attack("times as early and as late as there are", |arena| {
            expect(&arena.post(&mine("pods", ""), &pod("timeless", &json!({}))), &[201], "the pod");
            arena.wait_until_running("timeless");
            let budget = json!({"metadata": {"name": "timeless"}, "spec": {"selector": {"matchLabels": {"n": "one"}}}});
            let budgets = |name| of_group("policy/v1", "poddisruptionbudgets", name);
            expect(&arena.post(&budgets(""), &budget), &[201], "the budget");
            for (number, time) in
                ["0001-01-01T00:00:00Z", "9999-12-30T22:00:00Z", "9999-12-31T23:59:59Z"].iter().enumerate()
            {
                let ready =
                    json!({"type": "Ready", "status": "True", "lastTransitionTime": time, "lastProbeTime": time});
                let ended = json!({"terminated": {"exitCode": 0, "startedAt": time, "finishedAt": time}});
                for status in [
                    json!({"startTime": time, "conditions": [ready]}),
                    json!({"containerStatuses": [{"name": "main", "state": ended, "ready": true, "restartCount": 0, "image": "", "imageID": ""}]}),
                ] {
                    let answer = arena.patch(&mine("pods", "timeless/status"), &json!({"status": status}));
                    expect(&answer, &[200, 422], &status.to_string());
                }
                let disrupted = json!({"status": {"disruptedPods": {"timeless": time}}});
                expect(&arena.patch(&budgets("timeless/status"), &disrupted), &[200, 422], "the budget");
                let micro = time.replace('Z', ".000000Z");
                let lease = json!({"metadata": {"name": format!("timeless-{number}")}, "spec":
                    {"holderIdentity": "x", "leaseDurationSeconds": i32::MAX, "acquireTime": micro, "renewTime": micro}});
                expect(
                    &arena.post(&of_group("coordination.k8s.io/v1", "leases", ""), &lease),
                    &[201, 422],
                    "the lease",
                );
                let spec = json!({"ttlSecondsAfterFinished": i32::MAX, "template": {"spec":
                    {"restartPolicy": "Never", "containers": [container(&["true"])]}}});
                let jobs = |name: &str| of_group("batch/v1", "jobs", name);
                let name = format!("timeless-{number}");
                expect(&arena.post(&jobs(""), &json!({"metadata": {"name": name}, "spec": spec})), &[201], "the Job");
                let status = json!({"status": {"startTime": time, "completionTime": time}});
                expect(&arena.patch(&jobs(&format!("{name}/status")), &status), &[200, 422], "the Job's status");
            }
        }),
        attack("statuses of workloads with null and extreme numbers", |arena| {
            let template = json!({"metadata": {"labels": {"h": "h"}}, "spec": {"containers": [{"name": "m", "image": "busybox:1.36"}]}});
            let spec = json!({"replicas": 0, "selector": {"matchLabels": {"h": "h"}}, "template": template});
            for resource in ["deployments", "replicasets", "statefulsets"] {
                let made = arena
                    .post(&of_group("apps/v1", resource, ""), &json!({"metadata": {"name": "hollow"}, "spec": spec}));
                expect(&made, &[201], resource);
                let condition =
                    json!({"type": "Available", "status": "True", "lastTransitionTime": null, "lastUpdateTime": null});
                for status in [
                    json!({"conditions": [condition]}),
                    json!({"observedGeneration": i64::MAX}),
                    json!({"replicas": i32::MAX, "readyReplicas": i32::MAX}),
                ] {
                    let path = of_group("apps/v1", resource, "hollow/status");
                    expect(&arena.patch(&path, &json!({"status": status})), &[200, 422], resource);
                }
            }
        }),
        attack("slices, leases and budgets with null in every place", |arena| {
            let slices = of_group("discovery.k8s.io/v1", "endpointslices", "");
            for slice in [
                json!({"metadata": {"name": "null-0"}, "addressType": "IPv4", "endpoints": null, "ports": null}),
                json!({"metadata": {"name": "null-1"}, "addressType": "IPv4", "endpoints": [{"addresses": null}]}),
                json!({"metadata": {"name": "null-2"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": null}, "hints": null, "nodeName": null, "zone": null}], "ports": [{"port": null, "name": null, "protocol": null}]}),
            ] {
                expect(&arena.post(&slices, &slice), &[201, 422], &slice.to_string());
            }
            let lease = json!({"metadata": {"name": "null"}, "spec": {"renewTime": null, "acquireTime": null, "leaseDurationSeconds": null}});
            expect(&arena.post(&of_group("coordination.k8s.io/v1", "leases", ""), &lease), &[201], "a lease");
            let budget = json!({"metadata": {"name": "null"}, "spec": {"minAvailable": null, "selector": null}});
            expect(&arena.post(&of_group("policy/v1", "poddisruptionbudgets", ""), &budget), &[201], "a budget");
            let status = json!({"status": {"disruptedPods": {"x": null, "y": "0001-01-01T00:00:00Z"}, "observedGeneration": i64::MAX}});
            expect(
                &arena.patch(&of_group("policy/v1", "poddisruptionbudgets", "null/status"), &status),
                &[200, 422],
                "its status",
            );
        }),
        attack("a pod with null in every place that takes it", |arena| {
            let hollow = json!({"metadata": {"name": "nulls", "labels": null, "annotations": null, "ownerReferences": null, "finalizers": null, "creationTimestamp": null},
                "spec": {"volumes": null, "tolerations": null, "affinity": null, "securityContext": null, "terminationGracePeriodSeconds": 0, "nodeSelector": null,
                    "containers": [{"name": "m", "image": "busybox:1.36", "command": ["sleep", "9"], "args": null, "env": null, "ports": null,
                        "resources": {"limits": null, "requests": null}, "volumeMounts": null, "securityContext": null}]}, "status": null});
            expect(&arena.post(&mine("pods", ""), &hollow), &[201], "the pod");
            arena.wait_until_running("nulls");
        }),
        attack("metadata that only the server writes", |arena| {
            let managed = |fields: Value| {
                json!({"metadata": {"name": "managed", "uid": "../x", "generation": i64::MIN, "resourceVersion": "", "selfLink": "../x",
                "deletionTimestamp": "0001-01-01T00:00:00Z", "deletionGracePeriodSeconds": i64::MAX,
                "managedFields": [{"manager": "\n", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields, "time": null}]}})
            };
            for fields in [
                json!({}),
                json!(null),
                json!({"f:": {}}),
                json!({"k:{": {}}),
                json!({"v:\"": {}}),
                json!("x"),
                json!({"i:99999999999999999999": {}}),
            ] {
                expect(
                    &arena.post(&mine("configmaps", ""), &managed(fields.clone())),
                    &[201, 400, 422, 500],
                    &fields.to_string(),
                );
                arena.ask("DELETE", &mine("configmaps", "managed"));
            }
        }),
        attack("finalizers that nobody removes", |arena| {
            for number in 0..20 {
                let object =
                    json!({"metadata": {"name": format!("stays-{number}"), "finalizers": ["example.com/never"]}});
                expect(&arena.post(&mine("configmaps", ""), &object), &[201], "an object");
                let path = mine("configmaps", &format!("stays-{number}?propagationPolicy=Foreground"));
                expect(&arena.ask("DELETE", &path), &[200, 202], "DELETE");
            }
        }),
        attack("documents nested without end", |arena| {
            for (kind, open, close) in [(JSON, "{\"a\":", "}"), (JSON, "[", "]"), (YAML, "[", "]"), (YAML, "{a: ", "}")]
            {
                let body = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
                expect(
                    &arena.send("POST", &mine("configmaps", ""), &["-H", kind], Some(&body)),
                    &[400, 413, 422],
                    kind,
                );
            }
        }),
        attack("a document of aliases that multiply", |arena| {
            let mut body =
                String::from("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\ndata:\n  a0: &a0 lol\n");
            for level in 1..12 {
                let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
                body.push_str(&format!("  a{level}: &a{level} [{aliases}]\n"));
            }
            expect(&arena.send("POST", &mine("configmaps", ""), &["-H", YAML], Some(&body)), &[400, 413, 422], "YAML");
        }),
        attack("patches that grow", |arena| {
            expect(
                &arena.post(
                    &mine("configmaps", ""),
                    &json!({"metadata": {"name": "grows"}, "data": {"a": "x".repeat(1000)}}),
                ),
                &[201],
                "the object",
            );
            let copies: Vec<Value> =
                (0..10_001).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")})).collect();
            let path = mine("configmaps", "grows");
            expect(
                &arena.send("PATCH", &path, &["-H", JSON_PATCH], Some(&json!(copies).to_string())),
                &[413, 422],
                "10,001 operations",
            );
            let doubled: Vec<Value> =
                (0..40).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")})).collect();
            let answer = arena.send("PATCH", &path, &["-H", JSON_PATCH], Some(&json!(doubled).to_string()));
            expect(&answer, &[400, 413, 422, 500], "copies of copies");
        }),
        attack("directives of strategic merge patches", |arena| {
            expect(&arena.post(&mine("pods", ""), &pod("directed", &json!({}))), &[201], "the pod");
            for patch in [
                json!({"spec": {"containers": [{"$patch": "x"}]}}),
                json!({"spec": {"$patch": "delete"}}),
                json!({"spec": {"$setElementOrder/containers": [{"name": 1}]}}),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": {"a": 1}}}),
                json!({"metadata": {"$retainKeys": "x"}}),
                json!({"$patch": "replace"}),
            ] {
                let answer =
                    arena.send("PATCH", &mine("pods", "directed"), &["-H", STRATEGIC], Some(&patch.to_string()));
                expect(&answer, &[200, 400, 422, 500], &patch.to_string());
            }
        }),
        attack("bodies beyond what is stored", |arena| {
            let large = |bytes: usize| json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(bytes)}});
            let answer = arena.post(&mine("configmaps", ""), &large(4 << 20));
            expect(&answer, &[413], "4 MiB");
            expect(&arena.post(&mine("configmaps", ""), &large(2 << 20)), &[413, 422, 500], "2 MiB");
            for number in 0..20 {
                let object =
                    json!({"metadata": {"name": format!("large-{number}")}, "data": {"a": "x".repeat(1_000_000)}});
                expect(&arena.post(&mine("configmaps", ""), &object), &[201], "1 MB");
            }
            for number in 0..20 {
                arena.ask("DELETE", &mine("configmaps", &format!("large-{number}")));
            }
        }),
        attack("bodies that are nothing", |arena| {
            for (kind, body) in [
                (JSON, ""),
                (JSON, "null"),
                (JSON, "[]"),
                (JSON, "1e99999"),
                (JSON, "{\"metadata\": {\"name\": 1}}"),
                (JSON, "{\"metadata\": []}"),
                (JSON, "{\"kind\": \"Pod\", \"apiVersion\": \"v1\"}"),
                (JSON, "{\"data\": {\"a\": {\"b\": 1}}, \"metadata\": {\"name\": \"x\"}}"),
                (PROTOBUF, ""),
                (PROTOBUF, "k8s"),
                (PROTOBUF, "k8s\u{0}"),
                (PROTOBUF, "k8s\u{0}\u{7f}\u{7f}\u{7f}\u{7f}"),
                (PROTOBUF, "{}"),
                (YAML, "&a *a"),
                (YAML, "- - - -"),
                (YAML, "\u{0}"),
                (YAML, "!!binary x"),
                ("Content-Type: text/html", "x"),
                ("Content-Type: \"", "x"),
            ] {
                let answer = arena.send("POST", &mine("configmaps", ""), &["-H", kind], Some(body));
                assert!(matches!(answer.status, 400..=422), "{kind} {body:?}: {answer:?}");
            }
        }),
        attack("names said twice and members of no kind", |arena| {
            let twice = r#"{"metadata": {"name": "twice", "name": "other", "namespace": "mallory"}, "data": {"a": "1", "a": "2"}, "nothing": {"a": [null]}}"#;
            expect(
                &arena.send("POST", &mine("configmaps", ""), &["-H", JSON], Some(twice)),
                &[201],
                "names said twice",
            );
            let strict = format!("{}?fieldValidation=Strict", mine("configmaps", ""));
            expect(&arena.send("POST", &strict, &["-H", JSON], Some(twice)), &[400], "strictly");
            let other = json!({"metadata": {"name": "x", "namespace": "alice"}});
            expect(&arena.post(&mine("configmaps", ""), &other), &[400], "another namespace in the body");
        }),
        attack("thousands of fields applied by many managers", |arena| {
            let data: serde_json::Map<String, Value> =
                (0..3000).map(|n| (format!("k{n}"), json!(format!("v{n}")))).collect();
            let object =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": data})
                    .to_string();
            for manager in 0..15 {
                let path = mine("configmaps", &format!("applied?fieldManager=m{manager}&force=true"));
                let answer = arena.send("PATCH", &path, &["-H", APPLY], Some(&object));
                expect(&answer, &[200, 201, 413, 500], "an apply");
            }
        }),
        attack("a namespace of ten thousand words in one selector", |arena| {
            let words: Vec<String> = (0..2_000).map(|n| format!("w{n}")).collect();
            let listed =
                arena.ask("GET", &format!("{}?labelSelector=a%20in%20({})", mine("pods", ""), words.join(",")));
            expect(&listed, &[200, 400, 414, 431], "a long selector");
            let terms: Vec<Value> =
                (0..500).map(|n| json!({"key": format!("k{n}"), "operator": "NotIn", "values": words[..20]})).collect();
            let picky = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}}});
            expect(&arena.post(&mine("pods", ""), &pod("picky", &picky)), &[201], "a pod");
            let apart: Vec<Value> = (0..300).map(|n| json!({"weight": 100, "podAffinityTerm": {"topologyKey": format!("k{n}"), "namespaceSelector": {}, "labelSelector": {}}})).collect();
            let scored =
                json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": apart}}});
            for number in 0..10 {
                expect(
                    &arena.post(&mine("pods", ""), &pod(&format!("apart-{number}"), &scored)),
                    &[201],
                    "a pod with many terms",
                );
            }
        }),
        attack("one's own namespace filled with objects of one kind", |arena| {
            let body = |number| {
                json!({"metadata": {"name": format!("many-{number}")}, "spec": {"ports": [{"port": 1}], "clusterIP": "None", "selector": {"m": "m"}}}).to_string()
            };
            let requests = (0..500).map(|number| ("POST".to_owned(), mine("services", ""), Some(body(number))));
            let statuses = arena.flood(20, requests);
            let made = statuses.iter().filter(|&&status| status == 201).count();
            assert!(made == 500, "{made} Services were made in {MINE}");
            let requests =
                (0..500).map(|number| ("DELETE".to_owned(), mine("services", &format!("many-{number}")), None));
            arena.flood(20, requests);
        }),
    ]
}
