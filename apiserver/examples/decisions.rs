//! Cost of an authorization decision among 5,000 roles and 10,000 bindings: one JSON line per request, with its limit.
//! Measured in CPU time, so that others on the machine do not count.

use apiserver::authz::Observer as _;
use apiserver::authz::rbac::{GROUP, Index};
use apiserver::machinery::GroupResource;
use serde_json::json;
use shared::authn::UserInfo;
use shared::authz::{Attributes, Decision};

/// Microseconds of processor time.
const LIMIT: f64 = 5.0;
const ROUNDS: u32 = 100_000;

fn main() {
    let index = index();
    // The last rule that is looked at decides, or none: the dearest questions.
    for (name, verb, resource, wanted) in
        [("allow", "list", "r2007", Decision::Allow), ("deny", "delete", "deployments", Decision::NoOpinion)]
    {
        let request = question(verb, resource);
        let started = thread_nanos();
        for _ in 0..ROUNDS {
            let (decision, _) = std::hint::black_box(&index).decide(std::hint::black_box(&request));
            assert_eq!(decision, wanted);
        }
        #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
        let each = (thread_nanos() - started) as f64 / f64::from(ROUNDS) / 1000.0;
        let line = json!({
            "figure": format!("authorisation decision ({name}), 5000 roles, 10000 bindings"),
            "value": (each * 100.0).round() / 100.0, "unit": "us", "limit": LIMIT, "ok": each <= LIMIT,
        });
        println!("{line}");
    }
}

/// A resource of RBAC's group.
fn rbac(plural: &str) -> GroupResource<'_> {
    GroupResource::new(GROUP, plural)
}

/// Half of the roles and bindings for the cluster, half in a hundred namespaces; 40 of the bindings are the asker's.
fn index() -> Index {
    let mut index = Index::default();
    for i in 0..2500 {
        let rules = json!({"rules": [
            {"verbs": ["get", "list", "watch"], "apiGroups": ["apps"], "resources": [format!("r{i}"), "deployments"]},
            {"verbs": ["update", "patch"], "apiGroups": [""], "resources": [format!("s{i}"), "configmaps"]},
            {"verbs": ["*"], "apiGroups": ["example.com"], "resources": ["*/scale"]}]});
        index.observe(rbac("clusterroles"), "", &format!("c{i}"), Some(&rules));
        index.observe(rbac("roles"), &format!("ns{}", i % 100), &format!("l{i}"), Some(&rules));
    }
    for i in 0..5000 {
        let subjects = json!([{"kind": "User", "name": format!("u{}", i % 500)}, {"kind": "Group", "name": format!("g{}", i % 250)}]);
        let (name, role) = (format!("b{i}"), format!("c{}", i % 2500));
        let binding =
            json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects});
        index.observe(rbac("clusterrolebindings"), "", &name, Some(&binding));
        let (namespace, role) = (format!("ns{}", i % 100), format!("l{}", i % 2500));
        let binding = json!({"metadata": {"name": name, "namespace": namespace}, "roleRef": {"kind": "Role", "name": role}, "subjects": subjects});
        index.observe(rbac("rolebindings"), &namespace, &name, Some(&binding));
    }
    index
}

fn question(verb: &str, resource: &str) -> Attributes {
    let groups = vec!["g7".to_owned(), "system:authenticated".to_owned()];
    Attributes {
        user: UserInfo { name: "u7".to_owned(), groups, ..UserInfo::default() },
        verb: verb.to_owned(),
        namespace: "ns7".to_owned(),
        api_group: "apps".to_owned(),
        resource: resource.to_owned(),
        resource_request: true,
        ..Attributes::default()
    }
}

fn thread_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}
