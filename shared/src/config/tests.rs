#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

use serde_json::json;

use super::*;
use crate::flags::FlagSet;

const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const SCHEDULER: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn kubelet_text(rest: &str) -> Result<Settings, ConfigError> {
    decode(format!("{KUBELET}{rest}").as_bytes(), "KubeletConfiguration", Unknown::Refuse).map(Settings)
}

fn message(kind: &str, text: &str) -> String {
    decode(text.as_bytes(), kind, Unknown::Refuse).map_or_else(|e| e.to_string(), |v| format!("accepted {v}"))
}

#[test]
fn defaults_fill_what_is_absent() {
    let settings = kubelet_text("authentication:\n  webhook:\n    cacheTTL: 30s\nmaxPods: 0\nhealthzPort: 0\nfailSwapOn: no\nevictionHard: {}\nclusterDNS: [10.0.0.10]\nsyncFrequency: 90s\n").expect("settings");
    assert_eq!(settings.duration("authentication.webhook.cacheTTL"), Duration::from_secs(30));
    assert!(settings.boolean("authentication.webhook.enabled"));
    assert_eq!(settings.integer("maxPods"), 110, "a plain zero is absent");
    assert_eq!(settings.integer("healthzPort"), 0, "a pointer's zero stays");
    assert!(!settings.boolean("failSwapOn"));
    assert_eq!(settings.get("evictionHard"), Some(&json!({})), "a map is not merged");
    assert_eq!(settings.list("clusterDNS"), ["10.0.0.10"]);
    assert_eq!(settings.string("syncFrequency"), "1m30s");
    assert_eq!(settings.string("cgroupDriver"), "cgroupfs");
}

#[test]
fn refusals_read_as_upstream() {
    let kubelet = |rest: &str| format!("{KUBELET}{rest}");
    for (kind, text, want) in [
        ("KubeletConfiguration", kubelet("foo: 1\n"), r#"strict decoding error: unknown field "foo""#),
        (
            "KubeletConfiguration",
            kubelet("authentication:\n  x509:\n    nope: a\nMaxPods: 1\n"),
            r#"strict decoding error: unknown field "MaxPods", unknown field "authentication.x509.nope""#,
        ),
        (
            "KubeletConfiguration",
            kubelet("maxPods: 1\nmaxPods: 2\n"),
            "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"maxPods\" already set in map",
        ),
        (
            "KubeletConfiguration",
            r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":1,"maxPods":2}"#
                .to_owned(),
            r#"strict decoding error: duplicate field "maxPods""#,
        ),
        (
            "KubeletConfiguration",
            kubelet("maxPods: many\n"),
            "json: cannot unmarshal string into Go struct field KubeletConfiguration.maxPods of type int32",
        ),
        (
            "KubeletConfiguration",
            kubelet("maxPods: 5000000000\n"),
            "json: cannot unmarshal number 5000000000 into Go struct field KubeletConfiguration.maxPods of type int32",
        ),
        (
            "KubeletConfiguration",
            kubelet("authentication:\n  anonymous:\n    enabled: 3\n"),
            "json: cannot unmarshal number into Go struct field KubeletAnonymousAuthentication.authentication.anonymous.enabled of type bool",
        ),
        (
            "KubeletConfiguration",
            kubelet("syncFrequency: 5\n"),
            "json: cannot unmarshal number into Go value of type string",
        ),
        ("KubeletConfiguration", kubelet("syncFrequency: 5x\n"), r#"time: unknown unit "x" in duration "5x""#),
        (
            "KubeletConfiguration",
            kubelet("clusterDNS: a\n"),
            "json: cannot unmarshal string into Go struct field KubeletConfiguration.clusterDNS of type []string",
        ),
        (
            "KubeletConfiguration",
            r#"{"kind":"#.to_owned(),
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
        ),
        (
            "KubeletConfiguration",
            "text".to_owned(),
            r#"couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#,
        ),
        ("KubeletConfiguration", "{}".to_owned(), "Object 'Kind' is missing in '{}'"),
        (
            "KubeletConfiguration",
            "apiVersion: kubelet.config.k8s.io/v9\nkind: KubeletConfiguration\n".to_owned(),
            r#"no kind "KubeletConfiguration" is registered for version "kubelet.config.k8s.io/v9""#,
        ),
        (
            "KubeletConfiguration",
            SCHEDULER.to_owned(),
            "couldn't decode as KubeletConfiguration, got kubescheduler.config.k8s.io/v1, Kind=KubeSchedulerConfiguration",
        ),
    ] {
        assert_eq!(message(kind, &text), want, "{text}");
    }
}

#[test]
fn every_kind_takes_its_own_defaults() {
    for line in include_str!("tables/defaults.json").lines().filter(|l| l.starts_with('"')) {
        let (name, _) = line[1..].split_once('"').expect("name");
        let (api_version, kind) = name.split_once(' ').expect("kind");
        let full = defaults(api_version, kind);
        let again =
            decode(full.to_string().as_bytes(), kind, Unknown::Refuse).unwrap_or_else(|e| panic!("{name}: {e}"));
        let without_nulls = |v: &Value| {
            let mut v = v.clone();
            if let Value::Object(fields) = &mut v {
                fields.retain(|_, v| !v.is_null());
            }
            v
        };
        let empty = json!({"apiVersion": api_version, "kind": kind});
        let filled = decode(empty.to_string().as_bytes(), kind, Unknown::Refuse).expect("decodes");
        assert_eq!(without_nulls(&filled), without_nulls(&full), "{name}");
        assert!(again.is_object());
    }
}

#[test]
fn kubelet_flags_without_a_file() {
    let flags = FlagSet::of(
        "kubelet",
        &[
            "--max-pods=7",
            "--eviction-hard=memory.available<5%,nodefs.available<1Gi",
            "--register-with-taints=a=b:NoSchedule,c:NoExecute",
            "--cluster-dns=1.1.1.1,2.2.2.2",
            "--sync-frequency=2m",
            "--manifest-url-header=A:x,A:y",
            "--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi",
        ],
    );
    let settings = kubelet(&flags.expect("flags")).expect("settings");
    assert_eq!(settings.integer("maxPods"), 7);
    assert_eq!(settings.map("evictionHard")["memory.available"], "5%");
    assert_eq!(
        settings.get("registerWithTaints"),
        Some(&json!([{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]))
    );
    assert_eq!(settings.list("clusterDNS"), ["1.1.1.1", "2.2.2.2"]);
    assert_eq!(settings.string("syncFrequency"), "2m0s");
    assert_eq!(settings.get("staticPodURLHeader"), Some(&json!({"A": ["x", "y"]})));
    assert_eq!(settings.get("reservedMemory.0"), None);
    assert_eq!(settings.get("reservedMemory").map(|v| v[1]["numaNode"].clone()), Some(json!(1)));
    assert_eq!(settings.string("authorization.mode"), "AlwaysAllow");
    assert_eq!(settings.integer("readOnlyPort"), 10255);
}

#[test]
fn kubelet_file_drop_ins_and_flags() {
    let folder = std::env::temp_dir().join(format!("config-{}", uuid::Uuid::new_v4()));
    let drop_ins = folder.join("conf.d");
    std::fs::create_dir_all(&drop_ins).expect("folder");
    let file = folder.join("config.yaml");
    std::fs::write(&file, format!("{KUBELET}staticPodPath: manifests\nmaxPods: 50\npodsPerCore: 3\nunknownThing: 1\n"))
        .expect("write");
    std::fs::write(drop_ins.join("10.conf"), format!("{KUBELET}maxPods: 60\nevictionHard:\n  memory.available: 1Mi\n"))
        .expect("write");
    let path = file.to_string_lossy().into_owned();
    let with = |more: &[&str]| {
        let first = format!("--config={path}");
        let mut args = vec![first.as_str()];
        args.extend(more);
        kubelet(&FlagSet::of("kubelet", &args).expect("flags")).expect("settings")
    };
    let settings = with(&["--pods-per-core=4"]);
    assert_eq!(settings.string("staticPodPath"), folder.join("manifests").to_string_lossy());
    assert_eq!((settings.integer("maxPods"), settings.integer("podsPerCore")), (50, 4));
    assert_eq!(settings.string("authorization.mode"), "Webhook");
    assert_eq!(settings.get("unknownThing"), None, "lenient, as upstream");
    let dir = format!("--config-dir={}", drop_ins.to_string_lossy());
    let settings = with(&[&dir]);
    assert_eq!((settings.integer("maxPods"), settings.integer("podsPerCore")), (60, 3));
    assert_eq!(settings.map("evictionHard").len(), 1);
    let missing = FlagSet::of("kubelet", &["--config=/nonexistent"]).expect("flags");
    let error = kubelet(&missing).expect_err("no file").to_string();
    assert!(error.starts_with("failed to load kubelet config file, path: /nonexistent, error: "), "{error}");
    std::fs::remove_dir_all(folder).expect("clean");
}

#[test]
fn scheduler_flags() {
    let flags = FlagSet::of("kube-scheduler", &["--kubeconfig=x", "--leader-elect=false", "--kube-api-qps=7"]);
    let settings = scheduler(&flags.expect("flags")).expect("settings");
    assert_eq!(settings.string("clientConnection.kubeconfig"), "x");
    assert!((settings.float("clientConnection.qps") - 7.0).abs() < f64::EPSILON);
    assert!(!settings.boolean("leaderElection.leaderElect"));
    assert_eq!(settings.integer("parallelism"), 16);
    let args = format!(
        "{SCHEDULER}profiles:\n- schedulerName: a\n  pluginConfig:\n  - name: NodeAffinity\n    args: {{anything: 1}}\n"
    );
    let value = decode(args.as_bytes(), "KubeSchedulerConfiguration", Unknown::Refuse).expect("decodes");
    assert_eq!(value["profiles"][0]["schedulerName"], "a");
}

#[test]
fn gates_of_file_and_flags() {
    let settings = kubelet_text("featureGates:\n  ComponentFlagz: true\n  ComponentStatusz: true\n").expect("settings");
    let flags = FlagSet::of("kubelet", &["--feature-gates=ComponentStatusz=false"]).expect("flags");
    let gates = settings.feature_gates(&flags.feature_gates()).expect("gates");
    assert!(gates.enabled("ComponentFlagz") && !gates.enabled("ComponentStatusz"));
}

#[test]
fn ignored_fields_are_named() {
    let text = "maxPods: 5\ncpuManagerPolicy: static\nevictionHard:\n  nodefs.available: 0%\nauthentication:\n  x509:\n    clientCAFile: /ca\n  webhook:\n    cacheTTL: 1s\n";
    let settings = kubelet_text(text).expect("settings");
    let read = json!({"maxPods": 0, "evictionHard": {}, "authentication": {"webhook": {"cacheTTL": 0}}});
    assert_eq!(settings.ignored(&read), ["authentication.x509", "cpuManagerPolicy"]);
}

/// kubeadm writes the flush frequency as a number, and every zero that its own defaults leave.
#[test]
fn files_that_kubeadm_writes_are_taken() {
    let logging = "logging:\n  flushFrequency: 0\n  options:\n    json:\n      infoBufferSize: \"0\"\n    text:\n      \
        infoBufferSize: \"0\"\n  verbosity: 0\n";
    let rest = "cgroupDriver: systemd\ncpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {}\nmemorySwap: {}\n\
        rotateCertificates: true\nshutdownGracePeriod: 0s\nstaticPodPath: /etc/kubernetes/manifests\nsyncFrequency: 0s\n";
    let kubelet = kubelet_text(&format!("{rest}{logging}")).expect("settings");
    assert_eq!(kubelet.duration("logging.flushFrequency"), Duration::from_secs(5));
    assert_eq!(kubelet.duration("syncFrequency"), Duration::from_secs(60));
    let proxy =
        format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n{logging}");
    let proxy = decode(proxy.as_bytes(), "KubeProxyConfiguration", Unknown::Refuse).map(Settings).expect("settings");
    assert_eq!(proxy.duration("logging.flushFrequency"), Duration::from_secs(5));
}

#[test]
fn the_flush_frequency_is_a_duration_or_nanoseconds() {
    for (text, want) in [
        ("1500000000", "1.5s"),
        ("2s", "2s"),
        ("1.5", "json: cannot unmarshal number 1.5 into Go value of type time.Duration"),
        ("true", "json: cannot unmarshal bool into Go value of type string"),
    ] {
        let got = kubelet_text(&format!("logging:\n  flushFrequency: {text}\n"));
        let got =
            got.map_or_else(|error| error.to_string(), |settings| settings.string("logging.flushFrequency").to_owned());
        assert!(got.ends_with(want), "{text}: {got}");
    }
}
