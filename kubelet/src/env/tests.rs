use super::*;
use serde_json::json;

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}, "annotations": {"note": "a \"b\"\n"}},
        "spec": spec,
    }))
    .expect("a pod")
}

fn env_of(
    container: serde_json::Value,
    services: &[Arc<Service>],
    sources: &EnvSources,
) -> Result<Vec<(String, String)>, EnvError> {
    let pod = pod(json!({"containers": [container]}));
    let facts = PodFacts { node_name: "n1".into(), host_ips: vec!["10.0.0.1".into()], ..PodFacts::default() };
    let container = pod.spec.as_ref().expect("spec").containers[0].clone();
    container_env(&pod, &container, services, sources, &facts)
}

fn service(namespace: &str, name: &str, ip: &str) -> Arc<Service> {
    let object = json!({"metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": ip, "ports": [{"name": "my-sql", "port": 3306, "protocol": "TCP"}]}});
    Arc::new(serde_json::from_value(object).expect("a service"))
}

#[test]
fn expansion_follows_the_documented_table() {
    let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "$(A)".to_owned())];
    for (input, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("$(A)$(A)", "11"),
        ("$(B)", "$(A)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(MISSING)", "$(MISSING)"),
        ("$(A", "$(A"),
        ("$A", "$A"),
        ("tail$", "tail$"),
        ("ü$(A)ü", "ü1ü"),
    ] {
        assert_eq!(expand_all(&[input.to_owned()], &env).expect("expanded"), [expected], "{input}");
    }
}

#[test]
fn references_that_multiply_are_refused() {
    let doubled = (1..40).map(|n| json!({"name": format!("A{n}"), "value": format!("$(A{0})$(A{0})", n - 1)}));
    let first = json!({"name": "A0", "value": "x".repeat(1024)});
    let env: Vec<_> = std::iter::once(first).chain(doubled).collect();
    let refused = env_of(json!({"name": "c", "env": env}), &[], &EnvSources::default()).expect_err("too large");
    assert_eq!(refused.to_string(), "the environment is larger than 2097152 bytes");

    let env = [("A".to_owned(), "x".repeat(1 << 20))];
    for list in [vec!["$(A)".repeat(100_000)], vec!["$(A)".to_owned(); 100_000]] {
        assert!(matches!(expand_all(&list, &env), Err(EnvError::TooLarge)));
    }
}

#[test]
fn many_variables_are_set_in_time_that_follows_their_number() {
    let data: BTreeMap<String, String> = (0..100_000).map(|n| (format!("K{n}"), String::new())).collect();
    let map = Arc::new(ConfigMap { data: Some(data), ..ConfigMap::default() });
    let mut sources = EnvSources::default();
    sources.config_maps.insert("big".to_owned(), map);
    let container = json!({"name": "c", "envFrom": [{"configMapRef": {"name": "big"}}]});
    assert_eq!(env_of(container, &[], &sources).expect("env").len(), 100_000);
}

#[test]
fn later_variables_see_earlier_ones_and_services() {
    let container = json!({"name": "c", "env": [
        {"name": "FIRST", "value": "one"},
        {"name": "SECOND", "value": "$(FIRST)-$(DB_SERVICE_HOST)-$(LATER)"},
        {"name": "LATER", "value": "x"},
    ]});
    let env = env_of(container, &[service("shop", "db", "10.1.1.1")], &EnvSources::default()).expect("env");
    assert_eq!(env[1], ("SECOND".into(), "one-10.1.1.1-$(LATER)".into()));
}

#[test]
fn service_links_carry_hosts_ports_and_docker_links() {
    let services = [
        service("shop", "my-db", "10.1.1.1"),
        service("other", "far", "10.1.1.2"),
        service("default", "kubernetes", "10.0.0.1"),
        service("shop", "headless", "None"),
    ];
    let env: BTreeMap<_, _> =
        env_of(json!({"name": "c"}), &services, &EnvSources::default()).expect("env").into_iter().collect();
    assert_eq!(env["MY_DB_SERVICE_HOST"], "10.1.1.1");
    assert_eq!(env["MY_DB_SERVICE_PORT"], "3306");
    assert_eq!(env["MY_DB_SERVICE_PORT_MY_SQL"], "3306");
    assert_eq!(env["MY_DB_PORT"], "tcp://10.1.1.1:3306");
    assert_eq!(env["MY_DB_PORT_3306_TCP_ADDR"], "10.1.1.1");
    assert_eq!(env["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
    assert!(!env.keys().any(|name| name.starts_with("FAR") || name.starts_with("HEADLESS")));
}

#[test]
fn missing_objects_and_keys_say_which() {
    let reference = |optional: bool| json!({"name": "c", "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k", "optional": optional}}}]});
    let none = EnvSources::default();
    assert_eq!(env_of(reference(false), &[], &none), Err(EnvError::Missing("configmap \"cm\" not found".into())));
    assert_eq!(env_of(reference(true), &[], &none), Ok(vec![]));
    let mut empty = EnvSources::default();
    empty.config_maps.insert("cm".into(), Arc::default());
    let text = "couldn't find key k in ConfigMap shop/cm";
    assert_eq!(env_of(reference(false), &[], &empty), Err(EnvError::Missing(text.into())));
}

#[test]
fn fields_and_resources() {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Mi"}}, "env": [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "NOTES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
        {"name": "MILLI", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
        {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Ki"}}},
    ]});
    let env = env_of(container, &[], &EnvSources::default()).expect("env");
    let values: Vec<&str> = env.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["web", "web", "note=\"a \\\"b\\\"\\n\"", "n1", "2", "1500", "1024"]);
}

#[test]
fn a_sub_path_needs_a_value_for_each_of_its_variables() {
    let env = [("A".to_owned(), "a".to_owned()), ("EMPTY".to_owned(), String::new())];
    let missing = |names: &str| Err(format!("missing value for {names}"));
    for (expression, expected) in [
        ("logs", Ok("logs".to_owned())),
        ("$(A)/$(A)$$(A)", Ok("a/a$(A)".to_owned())),
        ("$(EMPTY)", missing("EMPTY")),
        ("$(NONE)/$(A)/$(EMPTY)", missing("EMPTY, NONE")),
    ] {
        let expanded = expand_sub_path(expression, &env).map_err(|error| error.to_string());
        assert_eq!(expanded, expected, "{expression}");
    }
}

#[test]
fn variables_come_from_files() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": []}})).expect("pod");
    let sources = EnvSources {
        files: [(("v".to_owned(), "a.env".to_owned()), "X='1'\n".to_owned())].into(),
        ..EnvSources::default()
    };
    let variable = |path: &str, key: &str, optional: bool| {
        let reference = json!({"volumeName": "v", "path": path, "key": key, "optional": optional});
        let container = json!({"name": "c", "env": [{"name": "V", "valueFrom": {"fileKeyRef": reference}}]});
        let container: Container = serde_json::from_value(container).expect("container");
        assert_eq!(references(&container).files, [("v".to_owned(), path.to_owned())]);
        container_env(&pod, &container, &[], &sources, &PodFacts::default()).map_err(|error| error.to_string())
    };
    let found = Ok(vec![("V".to_owned(), "1".to_owned())]);
    assert_eq!(variable("a.env", "X", false), found);
    assert_eq!(variable("a.env", "Y", true), Ok(vec![]));
    assert_eq!(variable("b.env", "X", true), Ok(vec![]));
    assert_eq!(variable("a.env", "Y", false), Err("environment variable key \"Y\" not found in file".to_owned()));
    assert_eq!(variable("b.env", "X", false), Err("couldn't parse env file".to_owned()));
}
