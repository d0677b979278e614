//! Pods and what they are made of.

use serde_json::{Value, json};

use super::{Object, child, child_or_new, if_nil, if_zero, items, text};
use crate::quantity::Quantity;

/// Annotations by which kubelets of old were told of init containers.
const INIT_CONTAINERS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-container-statuses",
];

/// Drops annotations that stood for init containers, as upstream does whenever it reads a pod or a template of pods: no old
/// kubelet is to believe them.
pub(super) fn template(template: &mut Object) {
    let Some(metadata) = child(template, "metadata") else { return };
    let Some(annotations) = child(metadata, "annotations").filter(|annotations| !annotations.is_empty()) else {
        return;
    };
    INIT_CONTAINERS.iter().for_each(|name| drop(annotations.remove(*name)));
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Defaults of pods beyond those of pod templates.
pub(super) fn pod(pod: &mut Object) {
    template(pod);
    let Some(spec) = child(pod, "spec") else { return };
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            requests_from_limits(container);
        }
    }
    pod_resources(spec);
    if_nil(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for list in ["containers", "initContainers"] {
            for container in items(spec, list) {
                for port in items(container, "ports") {
                    let number = port.get("containerPort").cloned().unwrap_or_default();
                    if_zero(port, "hostPort", number);
                }
            }
        }
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = child(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if let Some(requests) = child_or_new(resources, "requests") {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

/// Resources that a whole pod can ask for and that may be promised more often than they are there.
const SHARED: [&str; 2] = ["cpu", "memory"];

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn amount(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

/// Resources of the whole pod, when they are given in part: limits of huge pages are those of its containers, and what
/// has limits requests what its containers do, or the limits.
fn pod_resources(spec: &mut Object) {
    let Some(resources) = spec.get("resources").and_then(Value::as_object) else { return };
    let given = |list: &str| resources.get(list).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut limits, mut requests) = (given("limits"), given("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let fill = |list: &mut Object, (kind, name): (&str, &str)| {
        if let Some(total) = total(spec, kind, name).filter(|_| !list.contains_key(name)) {
            list.insert(name.to_owned(), Value::String(total.to_string()));
        }
    };
    for name in huge_limits(spec).iter().filter(|name| !requests.contains_key(*name)) {
        fill(&mut limits, ("limits", name));
    }
    if !limits.is_empty() {
        SHARED.iter().for_each(|name| fill(&mut requests, ("requests", name)));
    }
    for (name, limit) in limits.iter().filter(|(name, _)| SHARED.contains(&name.as_str()) || is_huge(name)) {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    let Some(resources) = child(spec, "resources") else { return };
    for (kind, list) in [("limits", limits), ("requests", requests)] {
        if !list.is_empty() {
            resources.insert(kind.to_owned(), Value::Object(list));
        }
    }
}

fn list<'s>(spec: &'s Object, name: &str) -> &'s [Value] {
    spec.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Sizes of huge pages that containers have limits of.
fn huge_limits(spec: &Object) -> Vec<String> {
    let containers = ["containers", "initContainers"].into_iter().flat_map(|kind| list(spec, kind));
    let limits = containers.filter_map(|c| c.get("resources")?.get("limits")?.as_object());
    limits.flat_map(Object::keys).filter(|name| is_huge(name)).cloned().collect()
}

/// Total of the containers: the sum of those that run side by side, or the peak of initialization.
fn total(spec: &Object, kind: &str, resource: &str) -> Option<Quantity> {
    let ask = |c: &Value| amount(c.get("resources")?.get(kind)?.get(resource)?);
    let plus = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(mut a), Some(b)) => {
            a.add(&b);
            Some(a)
        }
        (a, b) => a.or(b),
    };
    let mut running = list(spec, "containers").iter().fold(None, |sum, c| plus(sum, ask(c)));
    let mut sidecars = None;
    let mut peak: Option<Quantity> = None;
    for init in list(spec, "initContainers") {
        let own = ask(init);
        let now = if init.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            running = plus(running, own.clone());
            sidecars = plus(sidecars, own);
            sidecars.clone()
        } else {
            plus(sidecars.clone(), own)
        };
        if now > peak {
            peak = now;
        }
    }
    if peak > running { peak } else { running }
}

/// Defaults of pods and pod templates.
pub(super) fn pod_spec(spec: &mut Object) {
    if_zero(spec, "dnsPolicy", "ClusterFirst");
    if_zero(spec, "restartPolicy", "Always");
    if_nil(spec, "securityContext", Object::new());
    if_nil(spec, "terminationGracePeriodSeconds", 30);
    if_zero(spec, "schedulerName", "default-scheduler");
    // One account under two names.
    let account = match text(spec, "serviceAccountName") {
        "" => text(spec, "serviceAccount").to_owned(),
        name => name.to_owned(),
    };
    if !account.is_empty() {
        spec.insert("serviceAccountName".to_owned(), Value::String(account.clone()));
        spec.insert("serviceAccount".to_owned(), Value::String(account));
    }
}

/// Amounts finer than a thousandth are rounded up.
pub(super) fn round_up(list: &mut Object) {
    for (_, value) in list.iter_mut() {
        let fine = value.as_str().is_some_and(|t| t.ends_with(['n', 'u']) || t.contains("e-") || t.contains("E-"));
        if !fine {
            continue;
        }
        if let Some(quantity) = amount(value) {
            let rounded = Quantity::from_milli(quantity.milli_value(), quantity.format());
            if rounded != quantity {
                *value = Value::String(rounded.to_string());
            }
        }
    }
}

/// Any container, ephemeral ones included.
pub(super) fn container(container: &mut Object) {
    if text(container, "imagePullPolicy").is_empty() {
        let policy = pull_policy(text(container, "image"));
        container.insert("imagePullPolicy".to_owned(), Value::from(policy));
    }
    if_zero(container, "terminationMessagePath", "/dev/termination-log");
    if_zero(container, "terminationMessagePolicy", "File");
}

/// `Always` for the tag `latest`, also when it is implied.
fn pull_policy(image: &str) -> &'static str {
    if image_tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

/// The tag of a valid image reference; `latest` when it has neither tag nor digest.
fn image_tag(image: &str) -> Option<&str> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let last = rest.rfind('/').map_or(0, |i| i + 1);
    let (name, tag) = match rest[last..].rfind(':') {
        Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
        None => (rest, None),
    };
    // The first part may be a registry with a port and upper-case letters.
    let path = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path,
        _ => name,
    };
    let valid_path = !path.is_empty()
        && path.split('/').all(|part| {
            let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            edge(part.bytes().next())
                && edge(part.bytes().last())
                && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'.' | b'_' | b'-'))
        });
    let valid_tag = tag.is_none_or(|t| {
        !t.is_empty()
            && t.len() <= 128
            && t.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
            && !t.starts_with(['.', '-'])
    });
    let valid_digest = digest.is_none_or(|d| d.split_once(':').is_some_and(|(_, hex)| hex.len() >= 32));
    if !valid_path || !valid_tag || !valid_digest {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag),
        (None, None) => Some("latest"),
        (None, Some(_)) => None,
    }
}

pub(super) fn probe(probe: &mut Object) {
    if_zero(probe, "timeoutSeconds", 1);
    if_zero(probe, "periodSeconds", 10);
    if_zero(probe, "successThreshold", 1);
    if_zero(probe, "failureThreshold", 3);
}

pub(super) fn http_get(action: &mut Object) {
    if_zero(action, "path", "/");
    if_zero(action, "scheme", "HTTP");
}

pub(super) fn field_selector(selector: &mut Object) {
    if_zero(selector, "apiVersion", "v1");
}

pub(super) fn port_protocol(port: &mut Object) {
    if_zero(port, "protocol", "TCP");
}

pub(super) fn volume(volume: &mut Object) {
    let has_source = volume.iter().any(|(name, value)| name != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    if let Some(image) = child(volume, "image") {
        let policy = pull_policy(text(image, "reference"));
        if_zero(image, "pullPolicy", policy);
    }
}

pub(super) fn default_mode(source: &mut Object) {
    if_nil(source, "defaultMode", 0o644);
}

pub(super) fn host_path(source: &mut Object) {
    if_nil(source, "type", "");
}

pub(super) fn token_projection(projection: &mut Object) {
    if_nil(projection, "expirationSeconds", 3600);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policies_follow_the_tag() {
        for (image, policy) in [
            ("img", "Always"),
            ("img:latest", "Always"),
            ("reg.io:5000/a/img", "Always"),
            ("reg.io:5000/a/img:1", "IfNotPresent"),
            ("img:1", "IfNotPresent"),
            ("Bad", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("img@sha256:0123456789012345678901234567890123456789012345678901234567890123", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn annotations_that_stood_for_init_containers_are_dropped_wherever_pods_are_made_of() {
        for (version, kind, path) in [
            ("v1", "Pod", ""),
            ("v1", "PodTemplate", "/template"),
            ("v1", "ReplicationController", "/spec/template"),
            ("apps/v1", "Deployment", "/spec/template"),
            ("apps/v1", "ReplicaSet", "/spec/template"),
            ("apps/v1", "DaemonSet", "/spec/template"),
            ("apps/v1", "StatefulSet", "/spec/template"),
            ("batch/v1", "Job", "/spec/template"),
            ("batch/v1", "CronJob", "/spec/jobTemplate/spec/template"),
        ] {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let message = crate::schema::kind(group, version, kind).expect("a kind");
            for (kept, stored) in [(json!({"a": "b"}), Some(json!({"a": "b"}))), (json!({}), None)] {
                let mut object = json!({});
                let at = path.split('/').skip(1).fold(&mut object, |at, name| &mut at[name]);
                *at = json!({"metadata": {"annotations": kept}});
                for name in INIT_CONTAINERS {
                    at["metadata"]["annotations"][name] = json!("[]");
                }
                crate::defaulting::apply(message, &mut object);
                let annotations = object.pointer(&format!("{path}/metadata/annotations"));
                assert_eq!(annotations, stored.as_ref(), "{kind}");
            }
        }
    }

    #[test]
    fn fine_amounts_are_rounded_up() {
        let fine = || json!({"cpu": "1001u", "memory": "1Gi", "x": "1n"});
        let whole = json!({"cpu": "2m", "memory": "1Gi", "x": "1m"});
        for (version, kind, path) in [
            ("v1", "Pod", "/spec/overhead"),
            ("v1", "PersistentVolume", "/spec/capacity"),
            ("v1", "PersistentVolumeClaim", "/status/allocatedResources"),
            ("v1", "ResourceQuota", "/spec/hard"),
            ("v1", "Node", "/status/capacity"),
            ("node.k8s.io/v1", "RuntimeClass", "/overhead/podFixed"),
        ] {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let mut object = json!({});
            path.split('/').skip(1).fold(&mut object, |at, name| &mut at[name]).clone_from(&fine());
            let message = crate::schema::kind(group, version, kind).expect("a kind");
            crate::defaulting::apply(message, &mut object);
            assert_eq!(object.pointer(path), Some(&whole), "{kind}");
        }
    }

    #[test]
    fn pods_have_resources_as_a_whole_in_part() {
        let with = |resources: Value| json!({"name": "c", "image": "i", "resources": resources});
        let container = with(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"hugepages-2Mi": "4Mi"}}));
        let init = with(json!({"requests": {"cpu": "3"}}));
        for (given, want) in [
            (json!({}), json!({})),
            // Where nothing is limited, nothing follows.
            (json!({"requests": {"cpu": "2", "hugepages-2Mi": "2Mi"}}), Value::Null),
            (
                json!({"requests": {"cpu": "2"}}),
                json!({"limits": {"hugepages-2Mi": "4Mi"},
                    "requests": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}}),
            ),
            (
                json!({"limits": {"cpu": "9", "hugepages-2Mi": "8Mi", "example.com/x": "1"}}),
                json!({"limits": {"cpu": "9", "hugepages-2Mi": "8Mi", "example.com/x": "1"},
                    "requests": {"cpu": "3", "memory": "1Gi", "hugepages-2Mi": "8Mi"}}),
            ),
        ] {
            let mut object = json!({"spec": {"containers": [container], "initContainers": [init], "resources": given}});
            pod(object.as_object_mut().expect("an object"));
            let want = if want.is_null() { &given } else { &want };
            assert_eq!(&object["spec"]["resources"], want, "{given}");
        }
    }
}
