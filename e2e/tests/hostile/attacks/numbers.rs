//! Attacks by numbers: the largest, the smallest and the negative in every numeric field that a tenant writes.

use serde_json::{Value, json};

use super::{Attack, attack, expect};
use crate::client::{Arena, MINE, merge, mine, of_group, pod};

const I32: i32 = i32::MAX;
const I64: i64 = i64::MAX;

pub fn all() -> Vec<Attack> {
    vec![
        attack("a pod with the longest grace period, deleted by force", |arena| {
            let patient = pod("patient", &json!({"terminationGracePeriodSeconds": I64}));
            expect(&arena.post(&mine("pods", ""), &patient), &[201], "the pod");
            arena.wait_until_running("patient");
            expect(&arena.ask("DELETE", &mine("pods", "patient")), &[200], "DELETE");
            // The runtime counts in nanoseconds and takes this time for a negative one: the pod may be gone already.
            expect(&arena.ask("DELETE", &mine("pods", "patient?gracePeriodSeconds=0")), &[200, 404], "by force");
            no_container_is_left(arena, "patient");
        }),
        attack("a toleration of the longest time on a node with that taint", |arena| {
            arena.cluster.kubectl("taint node node-1 hostile=yes:NoExecute");
            for (number, seconds) in [I64, i64::MIN, -1, 0, I64 / 1000].into_iter().enumerate() {
                let tolerant = pod(
                    &format!("tolerant-{number}"),
                    &json!({"nodeName": "node-1",
                    "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]}),
                );
                expect(&arena.post(&mine("pods", ""), &tolerant), &[201], "the pod");
            }
            arena.wait_until_gone(&mine("pods", "tolerant-1"), 20);
            expect(&arena.ask("GET", &mine("pods", "tolerant-0")), &[200], "the pod that tolerates for ever");
            arena.cluster.kubectl("taint node node-1 hostile:NoExecute-");
        }),
        attack("probes with the largest and smallest numbers", |arena| {
            let probe = |field: &str, value: i64| {
                let mut probe = json!({"exec": {"command": ["true"]}});
                probe[field] = json!(value);
                json!({"containers": [{"name": "main", "image": "busybox:1.36", "command": ["sleep", "60"],
                    "readinessProbe": probe, "startupProbe": probe}]})
            };
            for (number, field) in
                ["initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold"].iter().enumerate()
            {
                let large = pod(&format!("probe-{number}"), &probe(field, I32.into()));
                expect(&arena.post(&mine("pods", ""), &large), &[201], field);
                expect(&arena.post(&mine("pods", ""), &pod("negative", &probe(field, -1))), &[422], field);
                expect(&arena.post(&mine("pods", ""), &pod("beyond", &probe(field, I64))), &[400], field);
            }
            arena.wait_until_running("probe-0");
        }),
        attack("requests whose sum no number holds, on a node by name", |arena| {
            let request = |memory: &str, cpu: &str| {
                json!({"name": "a", "image": "busybox:1.36",
                "resources": {"requests": {"memory": memory, "cpu": cpu, "ephemeral-storage": memory}}})
            };
            for (number, (memory, cpu)) in [
                ("4611686018427387904", "4611686018427387"),
                ("9223372036854775807", "9223372036854775807"),
                ("8Ei", "9E"),
            ]
            .iter()
            .enumerate()
            {
                let mut second = request(memory, cpu);
                second["name"] = json!("b");
                for (kind, place) in [("named", json!({"nodeName": "node-1"})), ("queued", json!({}))] {
                    let mut spec = json!({"containers": [request(memory, cpu), second]});
                    merge(&mut spec, &place);
                    expect(&arena.post(&mine("pods", ""), &pod(&format!("{kind}-{number}"), &spec)), &[201], memory);
                }
                arena.cluster.until("the pod does not fit", 20, || {
                    let answer = arena.ask("GET", &mine("pods", &format!("named-{number}")));
                    if answer.json()["status"]["phase"] == "Failed" { Ok(()) } else { Err(answer.body) }
                });
            }
        }),
        attack("quantities at the edge of their grammar", |arena| {
            for quantity in [
                "1E1000000000",
                "1e-1000000000",
                "-1",
                "0x10",
                "1Eii",
                "1n",
                "99999999999999999999999999999999Ei",
                "1..1",
                "NaN",
                "",
            ] {
                let quota = json!({"metadata": {"name": "edge"}, "spec": {"hard": {"requests.memory": quantity}}});
                let answer = arena.post(&mine("resourcequotas", ""), &quota);
                expect(&answer, &[201, 400, 422], quantity);
                arena.ask("DELETE", &mine("resourcequotas", "edge"));
                let limited =
                    json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": quantity}}]});
                expect(&arena.post(&mine("pods", ""), &pod("edge", &limited)), &[201, 400, 422], quantity);
                arena.ask("DELETE", &mine("pods", "edge?gracePeriodSeconds=0"));
            }
        }),
        attack("a pod's other numbers", |arena| {
            let accepted = [
                json!({"activeDeadlineSeconds": I32}),
                json!({"securityContext": {"runAsUser": I32, "fsGroup": I32}}),
                json!({"topologySpreadConstraints": [{"maxSkew": I32, "topologyKey": "x", "whenUnsatisfiable": "ScheduleAnyway"}]}),
                json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
                    "preference": {"matchExpressions": [{"key": "x", "operator": "Gt", "values": [I64.to_string()]}]}}]}}}),
                json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "9E"}}]}),
            ];
            for (number, spec) in accepted.iter().enumerate() {
                expect(
                    &arena.post(&mine("pods", ""), &pod(&format!("number-{number}"), spec)),
                    &[201],
                    &spec.to_string(),
                );
            }
            let refused = [
                json!({"activeDeadlineSeconds": 0}),
                json!({"activeDeadlineSeconds": I64}),
                json!({"priority": I32}),
                json!({"securityContext": {"runAsUser": I64}}),
                json!({"securityContext": {"supplementalGroups": [-1]}}),
                json!({"containers": [{"name": "m", "image": "x", "ports": [{"containerPort": 65536}]}]}),
                json!({"hostNetwork": true, "containers": [{"name": "m", "image": "x", "ports": [{"containerPort": 1, "hostPort": 2}]}]}),
                json!({"containers": [{"name": "m", "image": "x", "resources": {"requests": {"cpu": "-1"}}}]}),
                json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "x", "whenUnsatisfiable": "DoNotSchedule"}]}),
            ];
            for spec in &refused {
                expect(&arena.post(&mine("pods", ""), &pod("refused", spec)), &[403, 422], &spec.to_string());
            }
        }),
        attack("a Service's numbers", |arena| {
            for ports in [
                json!([{"port": 0}]),
                json!([{"port": 65536}]),
                json!([{"port": 1, "targetPort": -1}]),
                json!([{"port": 1, "nodePort": 80}]),
            ] {
                let service = json!({"metadata": {"name": "number"}, "spec": {"type": "NodePort", "ports": ports}});
                expect(&arena.post(&mine("services", ""), &service), &[422], &ports.to_string());
            }
            let sticky = |seconds: i64| {
                json!({"metadata": {"name": "sticky"}, "spec": {"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}, "ports": [{"port": 1}]}})
            };
            expect(&arena.post(&mine("services", ""), &sticky(86401)), &[422], "a day and a second");
            expect(&arena.post(&mine("services", ""), &sticky(I64)), &[400], "beyond 32 bits");
            expect(&arena.post(&mine("services", ""), &sticky(86400)), &[201], "a day");
        }),
        attack("Deployments and ReplicaSets of as many replicas as there are numbers", |arena| {
            workload(
                arena,
                "deployments",
                &json!({"replicas": I32, "progressDeadlineSeconds": I32, "revisionHistoryLimit": I32,
                "strategy": {"rollingUpdate": {"maxSurge": "2147483647%", "maxUnavailable": 0}}}),
                &[201],
            );
            workload(
                arena,
                "deployments",
                &json!({"minReadySeconds": I32, "progressDeadlineSeconds": I32}),
                &[201, 422],
            );
            workload(arena, "replicasets", &json!({"replicas": I32, "minReadySeconds": I32}), &[201]);
            workload(arena, "deployments", &json!({"replicas": -1}), &[422]);
            workload(arena, "deployments", &json!({"replicas": I64}), &[400]);
            quota_holds(arena);
        }),
        attack("StatefulSets with the largest ordinals", |arena| {
            for (ordinals, policy) in [(I32, "Parallel"), (I32 - 1, "OrderedReady"), (0, "Parallel")] {
                workload(
                    arena,
                    "statefulsets",
                    &json!({"replicas": I32, "serviceName": "x", "podManagementPolicy": policy,
                    "ordinals": {"start": ordinals}, "minReadySeconds": I32,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": I32}}}),
                    &[201, 422],
                );
            }
            quota_holds(arena);
        }),
        attack("DaemonSets with the largest numbers", |arena| {
            workload(
                arena,
                "daemonsets",
                &json!({"minReadySeconds": I32, "revisionHistoryLimit": I32,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}}),
                &[201],
            );
        }),
        attack("Jobs with the largest numbers", |arena| {
            for more in [
                json!({"parallelism": I32, "completions": I32, "backoffLimit": I32, "activeDeadlineSeconds": I64, "ttlSecondsAfterFinished": I32}),
                json!({"parallelism": I32, "backoffLimit": 0, "activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}),
                json!({"parallelism": 5, "completions": I32, "completionMode": "Indexed"}),
                json!({"parallelism": 1, "completions": 100_000, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "maxFailedIndexes": 10_000}),
                json!({"parallelism": I32, "completions": 1, "podFailurePolicy": {"rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [I32]}}]}}),
                json!({"parallelism": 1, "completions": -1}),
            ] {
                job(arena, &more);
            }
            quota_holds(arena);
        }),
        attack("CronJobs of every second of all time", |arena| {
            let schedules = [
                "* * * * *",
                "@every 1s",
                "@every 1ns",
                "0 0 31 2 *",
                "* * * * * *",
                "99999999999999999999 * * * *",
                "*/0 * * * *",
                "TZ=../../etc/passwd * * * * *",
            ];
            for (number, schedule) in schedules.iter().enumerate() {
                let template = json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "busybox:1.36"}]}}}});
                let cron = json!({"metadata": {"name": format!("cron-{number}")}, "spec": {"schedule": schedule, "jobTemplate": template,
                    "startingDeadlineSeconds": I64, "successfulJobsHistoryLimit": I32, "failedJobsHistoryLimit": I32}});
                let answer = arena.post(&of_group("batch/v1", "cronjobs", ""), &cron);
                expect(&answer, &[201, 422], schedule);
            }
        }),
        attack("autoscalers with the largest numbers", |arena| {
            let metric = |value: Value| json!({"type": "Resource", "resource": {"name": "cpu", "target": value}});
            for (number, target) in [
                json!({"type": "Utilization", "averageUtilization": I32}),
                json!({"type": "AverageValue", "averageValue": "9E"}),
                json!({"type": "AverageValue", "averageValue": "1n"}),
            ]
            .into_iter()
            .enumerate()
            {
                let scaler = json!({"metadata": {"name": format!("scaler-{number}")}, "spec": {"minReplicas": I32, "maxReplicas": I32, "metrics": [metric(target)],
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"},
                    "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": I32, "periodSeconds": 1800}]}}}});
                expect(
                    &arena.post(&of_group("autoscaling/v2", "horizontalpodautoscalers", ""), &scaler),
                    &[201],
                    "the autoscaler",
                );
            }
        }),
        attack("disruption budgets beyond all", |arena| {
            for (number, (field, value)) in [
                ("minAvailable", json!("2147483647%")),
                ("maxUnavailable", json!(I32)),
                ("minAvailable", json!(I32)),
                ("maxUnavailable", json!("100%")),
                ("minAvailable", json!(-1)),
                ("minAvailable", json!("99999999999999999999%")),
            ]
            .into_iter()
            .enumerate()
            {
                let mut budget = json!({"metadata": {"name": format!("budget-{number}")}, "spec": {"selector": {}}});
                budget["spec"][field] = value;
                expect(&arena.post(&of_group("policy/v1", "poddisruptionbudgets", ""), &budget), &[201, 422], field);
            }
        }),
        attack("quotas and limits of the largest quantities", |arena| {
            let quota = json!({"metadata": {"name": "largest"}, "spec": {"hard": {"requests.cpu": "9E", "requests.memory": "9223372036854775807",
                "count/configmaps": "9E", "limits.cpu": "9223372036854775807"}}});
            expect(&arena.post(&mine("resourcequotas", ""), &quota), &[201], "a quota");
            let limits = json!({"metadata": {"name": "largest"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "9E", "memory": "9E"},
                "defaultRequest": {"cpu": "1n", "memory": "1n"}, "maxLimitRequestRatio": {"cpu": "9E"}}]}});
            expect(&arena.post(&mine("limitranges", ""), &limits), &[201, 422], "limits");
            let sized = json!({"containers": [{"name": "m", "image": "busybox:1.36", "resources": {"limits": {"cpu": "9E", "memory": "9223372036854775807"}}}]});
            expect(&arena.post(&mine("pods", ""), &pod("sized", &sized)), &[201, 403], "a pod");
            arena.ask("DELETE", &mine("limitranges", "largest"));
            arena.ask("DELETE", &mine("resourcequotas", "largest"));
        }),
        attack("parameters of lists, watches, logs and deletions at their ends", |arena| {
            let ends = [
                "0",
                "-1",
                "2147483648",
                "9223372036854775807",
                "9223372036854775808",
                "-9223372036854775808",
                "1e9",
                "x",
                "%00",
            ];
            expect(&arena.post(&mine("pods", ""), &pod("ends", &json!({}))), &[201], "the pod");
            arena.wait_until_running("ends");
            for end in ends {
                for target in [
                    mine("pods", &format!("ends/log?sinceSeconds={end}")),
                    mine("pods", &format!("ends/log?tailLines={end}")),
                    mine("pods", &format!("ends/log?limitBytes={end}")),
                    format!("{}?limit={end}", mine("pods", "")),
                    format!("{}?resourceVersion={end}&resourceVersionMatch=Exact", mine("pods", "")),
                    format!("{}?continue={end}", mine("pods", "")),
                    format!("{}?watch=true&timeoutSeconds=1&resourceVersion={end}", mine("pods", "")),
                    format!("{}?timeoutSeconds={end}", mine("configmaps", "")),
                ] {
                    let answer = arena.send("GET", &target, &["--max-time", "5"], None);
                    // Versions that are no number are an error of the store, upstream too.
                    let no_version = answer.status == 500 && answer.body.contains("resourceVersion: Invalid value");
                    assert!(no_version || matches!(answer.status, 200 | 400 | 410 | 422 | 504), "{target}: {answer:?}");
                }
            }
            for grace in ["9223372036854775807", "-9223372036854775808", "-1", "9223372036854775808"] {
                let target = mine("pods", &format!("ends?gracePeriodSeconds={grace}"));
                expect(&arena.ask("DELETE", &target), &[200, 202, 400, 404, 422], grace);
            }
        }),
        attack("scales, leases, claims and events with the largest numbers", |arena| {
            workload(arena, "deployments", &json!({"replicas": 0}), &[201]);
            let first = arena.ask("GET", &of_group("apps/v1", "deployments", ""));
            let name = first.json()["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            for replicas in [-1, i64::from(i32::MIN), i64::from(I32) + 1] {
                let answer = arena.patch(
                    &of_group("apps/v1", "deployments", &format!("{name}/scale")),
                    &json!({"spec": {"replicas": replicas}}),
                );
                expect(&answer, &[400, 422], "a scale");
            }
            let lease = json!({"metadata": {"name": "long"}, "spec": {"leaseDurationSeconds": I32, "leaseTransitions": I32,
                "renewTime": "9999-12-31T23:59:59.999999Z", "acquireTime": "0001-01-01T00:00:00.000000Z", "holderIdentity": "x"}});
            expect(&arena.post(&of_group("coordination.k8s.io/v1", "leases", ""), &lease), &[201], "a lease");
            let claim = json!({"metadata": {"name": "large"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "9223372036854775807"}}}});
            expect(&arena.post(&mine("persistentvolumeclaims", ""), &claim), &[201], "a claim");
            let event = json!({"metadata": {"name": "often"}, "count": I32, "firstTimestamp": "0001-01-01T00:00:00Z", "lastTimestamp": "9999-12-31T23:59:59Z",
                "involvedObject": {"kind": "Pod", "namespace": MINE, "name": "x"}});
            expect(&arena.post(&mine("events", ""), &event), &[201], "an event");
        }),
    ]
}

/// Creates a workload of `apps/v1` with these fields over one that would be accepted.
fn workload(arena: &Arena, resource: &str, more: &Value, statuses: &[u16]) {
    let mut spec = json!({"selector": {"matchLabels": {"w": "w"}}, "template": {"metadata": {"labels": {"w": "w"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "m", "image": "busybox:1.36", "command": ["sleep", "60"]}]}}});
    merge(&mut spec, more);
    let object = json!({"metadata": {"generateName": "work-"}, "spec": spec});
    expect(&arena.post(&of_group("apps/v1", resource, ""), &object), statuses, &more.to_string());
}

fn job(arena: &Arena, more: &Value) {
    let mut spec = json!({"template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "m", "image": "busybox:1.36", "command": ["false"]}]}}});
    merge(&mut spec, more);
    let object = json!({"metadata": {"generateName": "job-"}, "spec": spec});
    expect(&arena.post(&of_group("batch/v1", "jobs", ""), &object), &[201, 422], &more.to_string());
}

/// Asserts that there are no more pods than the quota lets in.
fn quota_holds(arena: &Arena) {
    let pods = arena.ask("GET", &mine("pods", "")).json()["items"].as_array().map_or(0, Vec::len);
    assert!(pods <= 15, "{pods} pods where the quota lets 15 in");
}

/// Waits until the runtime has no container of a pod any more.
fn no_container_is_left(arena: &Arena, pod: &str) {
    arena.cluster.until("the containers are gone", 20, || {
        let said = arena.cluster.on_node("node-1", &["ctr", "-n", "k8s.io", "containers", "list"]);
        let tasks = arena.cluster.on_node("node-1", &["ctr", "-n", "k8s.io", "tasks", "list"]);
        let runs = tasks.lines().filter(|line| line.contains("RUNNING")).count();
        // The other tenant's pod has a sandbox and a container; nothing else runs when the attacker's are gone.
        if runs <= 2 { Ok(()) } else { Err(format!("{pod}: {said}\n{tasks}")) }
    });
}
