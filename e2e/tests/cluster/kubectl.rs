//! The verbs of the stock kubectl, and that they print what people expect.

use e2e::testing::{Cluster, text};

const WEB: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {tier: test}}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password, labels: {tier: test}}
stringData: {word: sesame}
---
apiVersion: v1
kind: Pod
metadata: {name: shell, labels: {app: shell, tier: test}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'echo started; echo "color is $COLOR"; mkdir /www; echo hello >/www/index.html; exec httpd -f -p 8080 -h /www']
    env:
    - name: COLOR
      valueFrom: {configMapKeyRef: {name: settings, key: color}}
    volumeMounts:
    - {name: secret, mountPath: /secret}
  volumes:
  - name: secret
    secret: {secretName: password}
"#;

/// create, get in all its forms, describe, explain and the rest of the read-only verbs.
pub fn create_and_look(cluster: &Cluster) {
    let said = cluster.feed("create -f -", WEB);
    assert_eq!(said, "configmap/settings created\nsecret/password created\npod/shell created\n");
    cluster.kubectl("wait --for=condition=Ready pod/shell --timeout=60s");
    let table = cluster.kubectl("get pods");
    let mut lines = table.lines();
    assert_eq!(columns(lines.next()), ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(columns(lines.next())[..4], ["shell", "1/1", "Running", "0"]);
    assert!(cluster.kubectl("get pods -o wide").contains("10.244."));
    assert_eq!(cluster.kubectl("get pod shell -o jsonpath={.spec.containers[0].image}"), "busybox:1.36");
    assert!(cluster.kubectl("get pod shell -o yaml").contains("\n  name: shell\n"));
    assert_eq!(cluster.kubectl("get pods -o custom-columns=N:.metadata.name").trim(), "N\nshell");
    assert_eq!(cluster.kubectl("get pods -l app=none").trim(), "");
    assert_eq!(cluster.kubectl("get pods --field-selector status.phase=Running -o name").trim(), "pod/shell");
    let nodes = cluster.kubectl("get nodes");
    assert_eq!(nodes.matches(" Ready ").count(), 2, "{nodes}");
    let described: String = cluster.kubectl("describe pod shell").split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Successfully assigned default/shell to node-", "Normal Started", "QoS Class: BestEffort"] {
        assert!(described.contains(part), "{part} is missing in {described}");
    }
    assert!(cluster.kubectl("explain pod.spec.containers.image").contains("FIELD: image <string>"));
    assert!(cluster.kubectl("api-resources").contains("replicationcontrollers"));
    assert!(cluster.kubectl("api-versions").contains("apps/v1"));
    assert_eq!(cluster.kubectl("auth can-i create pods").trim(), "yes");
    let denied = cluster.try_kubectl(&["auth", "can-i", "create", "pods", "--as", "nobody"], None);
    assert_eq!(denied.out.trim(), "no");
    assert!(cluster.kubectl("cluster-info").contains("is running at"));
    assert!(cluster.kubectl("version").contains("Server Version: v1.35"));
    assert!(cluster.kubectl("events --for pod/shell").contains("Scheduled"));
    let missing = cluster.refused("get pod nowhere");
    assert_eq!(missing.trim(), "Error from server (NotFound): pods \"nowhere\" not found");
}

fn columns(line: Option<&str>) -> Vec<&str> {
    line.unwrap_or_default().split_whitespace().collect()
}

/// apply on both sides, label, annotate, the three patches, and what the server refuses.
pub fn change(cluster: &Cluster) {
    let map = |color: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: applied\ndata:\n  color: {color}\n  keep: \"yes\"\n"
        )
    };
    assert!(cluster.feed("apply -f -", &map("red")).contains("created"));
    assert!(cluster.feed("apply -f -", &map("red")).contains("unchanged"));
    assert!(cluster.feed("apply -f -", &map("green")).contains("configured"));
    assert!(cluster.feed("diff -f -", &map("green")).is_empty());
    let server = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: served\ndata:\n  a: one\n  b: two\n";
    assert!(cluster.feed("apply --server-side -f -", server).contains("serverside-applied"));
    let conflict = cluster.try_kubectl(
        &["apply", "--server-side", "--field-manager=other", "-f", "-"],
        Some(&server.replace("one", "three")),
    );
    assert!(conflict.err.contains("conflict with \"kubectl\": .data.a"), "{}", conflict.err);
    cluster.feed("apply --server-side -f -", &server.replace("  b: two\n", ""));
    assert_eq!(
        cluster.kubectl("get cm served -o jsonpath={.data}"),
        r#"{"a":"one"}"#,
        "a field no longer applied goes"
    );

    cluster.kubectl("label configmap applied size=big");
    assert_eq!(cluster.kubectl("get cm -l size=big -o name").trim(), "configmap/applied");
    cluster.kubectl("annotate configmap applied note=x");
    cluster.kubectl_args(&["patch", "cm", "applied", "--type=merge", "-p", r#"{"data":{"merge":"1"}}"#]);
    cluster.kubectl_args(&["patch", "cm", "applied", "--type=json", "-p", r#"[{"op":"remove","path":"/data/merge"}]"#]);
    cluster.kubectl_args(&["patch", "cm", "applied", "-p", r#"{"data":{"strategic":"1"}}"#]);
    assert_eq!(cluster.kubectl("get cm applied -o jsonpath={.data.strategic}"), "1");

    let immutable = cluster.try_kubectl(&["patch", "pod", "shell", "-p", r#"{"spec":{"nodeName":"elsewhere"}}"#], None);
    assert!(immutable.err.contains("pod updates may not change fields other than"), "{}", immutable.err);
    let unknown = cluster
        .try_kubectl(&["create", "-f", "-"], Some("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\nspec: 1\n"));
    assert!(unknown.err.contains("unknown field \"spec\""), "{}", unknown.err);
    let bad = cluster.refused("create configmap Not_A_Name");
    assert!(bad.contains("a lowercase RFC 1123 subdomain must consist of"), "{bad}");
}

/// logs, exec, cp, proxy, expose, run with attach.
pub fn run_and_talk(cluster: &Cluster) {
    assert_eq!(cluster.kubectl("logs shell"), "started\ncolor is blue\n");
    assert_eq!(cluster.kubectl("logs shell --tail=1"), "color is blue\n");
    assert_eq!(cluster.kubectl("exec shell -- cat /secret/word"), "sesame");
    let failing = cluster.try_kubectl(&["exec", "shell", "--", "sh", "-c", "echo oops >&2; exit 3"], None);
    assert!(failing.err.contains("oops") && failing.err.contains("exit code 3"), "{}", failing.err);
    let echoed = cluster.try_kubectl(&["exec", "-i", "shell", "--", "cat"], Some("over and back"));
    assert_eq!(echoed.out, "over and back", "{}", echoed.err);
    let folder = std::env::temp_dir().join(format!("ironclad-cp-{}", std::process::id()));
    std::fs::write(&folder, "copied").expect("a file to copy");
    cluster.kubectl(&format!("cp {} shell:/tmp/file", folder.display()));
    std::fs::remove_file(&folder).expect("the file is ours");
    assert_eq!(cluster.kubectl("exec shell -- cat /tmp/file"), "copied");
    assert_eq!(cluster.kubectl("get --raw /api/v1/namespaces/default/pods/shell:8080/proxy/"), "hello\n");
    cluster.kubectl("expose pod shell --port=80 --target-port=8080 --name=shell");
    let ip = cluster.kubectl("get svc shell -o jsonpath={.spec.clusterIP}");
    for node in ["node-1", "node-2"] {
        cluster.until(&format!("the service answers on {node}"), 30, || {
            let said = cluster
                .try_on_node(node, &["curl", "-sS", "--noproxy", "*", "--max-time", "2", &format!("http://{ip}")]);
            if said.out == "hello\n" { Ok(()) } else { Err(said.err) }
        });
    }
    let mut once: Vec<&str> =
        "run once --image=busybox:1.36 --restart=Never --attach --rm -q -- sh -c".split(' ').collect();
    once.push("sleep 2; echo ran");
    let ran = cluster.kubectl_args(&once);
    assert_eq!(ran.trim(), "ran");
}

/// Deployments: rollout, history, undo, scale.
pub fn roll_out(cluster: &Cluster) {
    cluster.kubectl("create deployment web --image=busybox:1.36 --replicas=2 -- sleep 1000");
    assert!(cluster.kubectl("rollout status deployment/web --timeout=60s").contains("successfully rolled out"));
    cluster.kubectl_args(&[
        "patch", "deployment", "web", "-p",
        r#"{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"busybox","env":[{"name":"A","value":"b"}]}]}}}}"#,
    ]);
    cluster.kubectl("rollout status deployment/web --timeout=90s");
    let history = cluster.kubectl("rollout history deployment/web");
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    cluster.kubectl("rollout undo deployment/web");
    cluster.kubectl("rollout status deployment/web --timeout=120s");
    cluster.kubectl("rollout restart deployment/web");
    cluster.kubectl("rollout status deployment/web --timeout=120s");
    cluster.kubectl("scale deployment/web --replicas=3");
    cluster.kubectl("rollout status deployment/web --timeout=60s");
    let table = cluster.kubectl("get deployment web");
    assert!(table.contains("3/3"), "{table}");
}

/// Cascades: background, orphan, foreground; drain; and namespaces.
pub fn delete(cluster: &Cluster) {
    cluster.kubectl("cordon node-2");
    assert!(cluster.kubectl("get node node-2").contains("SchedulingDisabled"));
    cluster.kubectl("drain node-2 --ignore-daemonsets --force --delete-emptydir-data --timeout=90s");
    let left = cluster.kubectl("get pods --field-selector spec.nodeName=node-2 -o name");
    assert_eq!(left.trim(), "");
    cluster.kubectl("uncordon node-2");
    cluster.kubectl("taint node node-2 test=x:NoSchedule");
    cluster.kubectl("taint node node-2 test-");

    cluster.kubectl("delete deployment web --cascade=orphan");
    let sets = cluster.json("get rs -l app=web");
    let orphans = sets["items"].as_array().cloned().unwrap_or_default();
    assert!(!orphans.is_empty() && orphans.iter().all(|set| set.pointer("/metadata/ownerReferences").is_none()));
    cluster.kubectl("delete rs -l app=web --cascade=foreground --timeout=60s");
    assert!(cluster.pods("app=web").iter().all(|pod| pod.pointer("/metadata/deletionTimestamp").is_some()));

    cluster.kubectl("create namespace short-lived");
    cluster.kubectl("create configmap inside -n short-lived");
    cluster.kubectl("delete namespace short-lived --timeout=60s");
    assert!(cluster.refused("get ns short-lived").contains("NotFound"));
    cluster.try_kubectl(&["delete", "pod,service,configmap,secret", "-l", "tier=test", "--now"], None);
    cluster.kubectl("delete service,pod shell --ignore-not-found --now");
    let account = cluster.json("get serviceaccount default");
    assert_eq!(text(&account, "/metadata/name"), "default");
}
