//! Attacks through what an operator installs for the tenant: webhooks that hang, definitions and policies that cost.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::{Attack, attack, expect};
use crate::client::{Arena, MINE, mine, of_group, pod};

pub fn all() -> Vec<Attack> {
    vec![
        attack("a webhook that hangs, for one's own namespace", webhook_that_hangs),
        attack("a definition whose conversion webhook hangs", conversion_that_hangs),
        attack("a definition with a pattern that backtracks", |arena| {
            let property = json!({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"});
            define(arena, "patterns", &json!({"p": property}), &json!(null));
            let object = json!({"apiVersion": "hostile.example/v1", "kind": "Patterns", "metadata": {"name": "x"}, "p": "a".repeat(100_000)});
            arena.cluster.until("the definition is served", 15, || {
                let answer = arena.post(&of_group("hostile.example/v1", "patterns", ""), &object);
                if answer.status == 422 { Ok(()) } else { Err(format!("{answer:?}")) }
            });
            undefine(arena, "patterns");
        }),
        attack("a definition whose rules cost without end", |arena| {
            let items = json!({"type": "array", "items": {"type": "array", "items": {"type": "string"}}});
            let mut property = items;
            property["x-kubernetes-validations"] =
                json!([{"rule": "self.all(a, self.all(b, a.all(c, b.all(d, c.matches(d)))))"}]);
            let said = try_define(arena, "costly", &json!({"p": property}), &json!(null));
            assert!(said.contains("cost"), "refused for its cost: {said}");
        }),
        attack("a definition as deep and wide as it may be", |arena| {
            let mut deep = json!({"type": "string", "default": "x"});
            for _ in 0..60 {
                deep = json!({"type": "object", "default": {}, "properties": {"d": deep}});
            }
            let wide: serde_json::Map<String, Value> =
                (0..2000).map(|n| (format!("w{n}"), json!({"type": "string", "default": "y".repeat(50)}))).collect();
            define(
                arena,
                "deeps",
                &json!({"deep": deep, "wide": {"type": "object", "default": {}, "properties": wide}}),
                &json!(null),
            );
            arena.cluster.until("the definition is served", 15, || {
                let object =
                    json!({"apiVersion": "hostile.example/v1", "kind": "Deeps", "metadata": {"generateName": "x"}});
                let answer = arena.post(&of_group("hostile.example/v1", "deeps", ""), &object);
                if answer.status == 201 { Ok(()) } else { Err(format!("{answer:?}")) }
            });
            undefine(arena, "deeps");
        }),
        attack("definitions that are none", |arena| {
            let schemas = [
                json!({"a": {"type": "strange"}}),
                json!({"a": {"$ref": "#/definitions/a"}}),
                json!({"a": {"type": "string", "pattern": "("}}),
                json!({"a": {"type": "integer", "default": "x"}}),
                json!({"a": {"type": "array"}}),
                json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self."}]}}),
                json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "(".repeat(5000)}]}}),
            ];
            for schema in &schemas {
                try_define(arena, "nones", schema, &json!(null));
            }
        }),
        attack("a policy that costs without end", |arena| {
            let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "costly"}, "spec": {
                "failurePolicy": "Fail", "matchConstraints": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": MINE}},
                    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
                "validations": [{"expression": "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, (a + b).matches(c + d)))))"}]}});
            let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "costly"},
                "spec": {"policyName": "costly", "validationActions": ["Deny"]}});
            arena.cluster.feed("create -f -", &policy.to_string());
            arena.cluster.feed("create -f -", &binding.to_string());
            let data: serde_json::Map<String, Value> = (0..1000).map(|n| (format!("k{n}"), json!("v"))).collect();
            arena.cluster.until("the policy ends by its cost", 15, || {
                let answer =
                    arena.post(&mine("configmaps", ""), &json!({"metadata": {"generateName": "c-"}, "data": data}));
                if answer.status == 422 { Ok(()) } else { Err(format!("{} {}", answer.status, answer.body)) }
            });
            arena.cluster.kubectl("delete validatingadmissionpolicybinding,validatingadmissionpolicy costly");
        }),
        attack("an aggregated group whose server is away", |arena| {
            let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.away.example"}, "spec": {
                "group": "away.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
                "service": {"name": "nobody", "namespace": MINE}}});
            arena.cluster.feed("create -f -", &service.to_string());
            expect(&arena.ask("GET", "/apis/away.example/v1"), &[403, 503, 404], "the group");
            arena.cluster.kubectl("delete apiservice v1.away.example");
        }),
        attack("runtimes, priorities and schedulers that there are not", |arena| {
            let handler = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nobody"}, "handler": "nobody"});
            arena.cluster.feed("create -f -", &handler.to_string());
            for (number, spec) in [
                json!({"runtimeClassName": "nobody"}),
                json!({"schedulerName": "nobody"}),
                json!({"schedulingGates": [{"name": "never"}]}),
                json!({"nodeName": "nobody"}),
                json!({"volumes": [{"name": "v", "csi": {"driver": "nobody"}}]}),
                json!({"volumes": [{"name": "v", "secret": {"secretName": "nobody"}}]}),
            ]
            .iter()
            .enumerate()
            {
                expect(
                    &arena.post(&mine("pods", ""), &pod(&format!("nobody-{number}"), spec)),
                    &[201],
                    &spec.to_string(),
                );
            }
            arena.cluster.kubectl("delete runtimeclass nobody");
        }),
    ]
}

/// A port of this machine that takes connections and never answers.
fn black_hole() -> (TcpListener, String) {
    let listener = TcpListener::bind("10.89.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, format!("https://{address}/"))
}

fn webhook_that_hangs(arena: &Arena) {
    let (_open, url) = black_hole();
    let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]});
    let hook = |name: &str, policy: &str| {
        json!({"name": name, "clientConfig": {"url": url}, "rules": [rule], "failurePolicy": policy,
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": MINE}}})
    };
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "hangs"},
            "webhooks": [hook("a.hostile.example", "Fail"), hook("b.hostile.example", "Ignore")]});
        arena.cluster.feed("create -f -", &configuration.to_string());
    }
    let body = |number| json!({"metadata": {"name": format!("hung-{number}")}}).to_string();
    let requests = (0..100)
        .map(|number| ("POST".to_owned(), format!("{}?timeout=5s", mine("configmaps", "")), Some(body(number))));
    let statuses = arena.flood(50, requests);
    assert!(statuses.iter().all(|status| *status != 201), "nothing is let in by a webhook that hangs: {statuses:?}");
    arena.cluster.kubectl("delete validatingwebhookconfiguration,mutatingwebhookconfiguration hangs");
}

fn conversion_that_hangs(arena: &Arena) {
    let (_open, url) = black_hole();
    define(
        arena,
        "hangs",
        &json!({"a": {"type": "string"}}),
        &json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"url": url}, "conversionReviewVersions": ["v1"]}}),
    );
    arena.cluster.until("the definition is served", 15, || {
        let object = json!({"apiVersion": "hostile.example/v1", "kind": "Hangs", "metadata": {"generateName": "x"}});
        let answer = arena.post(&of_group("hostile.example/v1", "hangs", ""), &object);
        if answer.status == 201 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    let requests = (0..20).map(|_| {
        ("GET".to_owned(), format!("{}?timeoutSeconds=3&timeout=3s", of_group("hostile.example/v2", "hangs", "")), None)
    });
    let statuses = arena.flood(20, requests);
    assert!(statuses.iter().all(|status| *status != 200), "nothing is converted: {statuses:?}");
    undefine(arena, "hangs");
}

/// A definition of two versions, its objects with these properties and converted so.
fn definition(plural: &str, properties: &Value, conversion: &Value) -> String {
    let kind = plural[..1].to_uppercase() + &plural[1..];
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.hostile.example")}, "spec": {
        "group": "hostile.example", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
        "versions": [version("v1", true), version("v2", false)], "conversion": conversion}})
    .to_string()
}

fn define(arena: &Arena, plural: &str, properties: &Value, conversion: &Value) {
    arena.cluster.feed("create -f -", &definition(plural, properties, conversion));
}

/// Tries to create a definition that the server must refuse; returns the error.
fn try_define(arena: &Arena, plural: &str, properties: &Value, conversion: &Value) -> String {
    let said = arena.cluster.try_kubectl(&["create", "-f", "-"], Some(&definition(plural, properties, conversion)));
    assert!(!said.ok, "{properties} is refused");
    said.err
}

fn undefine(arena: &Arena, plural: &str) {
    arena.cluster.kubectl(&format!("delete crd {plural}.hostile.example --wait=false"));
}
