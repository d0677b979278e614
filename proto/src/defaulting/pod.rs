//! Pods and what they are made of.

use serde_json::{Value, json};

use super::{Object, child, child_or_new, if_nil, if_zero, items, text};
use crate::quantity::Quantity;

/// What only pods get, not pod templates.
pub(super) fn pod(pod: &mut Object) {
    let Some(spec) = child(pod, "spec") else { return };
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            requests_from_limits(container);
        }
    }
    pod_requests(spec);
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

/// Resources that a whole pod can ask for.
fn is_pod_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory")
}

fn amount(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

/// Requests of the whole pod, when its resources are given in part.
fn pod_requests(spec: &mut Object) {
    if !spec.get("resources").is_some_and(Value::is_object) {
        return;
    }
    let totals: Vec<(&str, Quantity)> =
        ["cpu", "memory"].into_iter().filter_map(|name| Some((name, total(spec, name)?))).collect();
    let Some(resources) = child(spec, "resources") else { return };
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut requests = resources.get("requests").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, total) in totals {
        requests.entry(name).or_insert_with(|| Value::String(total.to_string()));
    }
    for (name, limit) in limits {
        if is_pod_resource(&name) || name.starts_with("hugepages-") {
            requests.entry(name).or_insert(limit);
        }
    }
    if !requests.is_empty() {
        resources.insert("requests".to_owned(), Value::Object(requests));
    }
}

/// What the containers together ask for: the sum of those that run side by side, or the peak of initialisation.
fn total(spec: &Object, resource: &str) -> Option<Quantity> {
    let list = |name: &str| spec.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let ask = |c: &Value| amount(c.get("resources")?.get("requests")?.get(resource)?);
    let plus = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(mut a), Some(b)) => {
            a.add(&b);
            Some(a)
        }
        (a, b) => a.or(b),
    };
    let mut running = list("containers").iter().fold(None, |sum, c| plus(sum, ask(c)));
    let mut sidecars = None;
    let mut peak: Option<Quantity> = None;
    for init in list("initContainers") {
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

/// What pods and pod templates get.
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
    round_up(spec, "overhead");
    if let Some(resources) = child(spec, "resources") {
        round_up(resources, "limits");
        round_up(resources, "requests");
    }
}

/// Amounts finer than a thousandth are rounded up.
pub(super) fn round_up(map: &mut Object, list: &str) {
    let Some(list) = child(map, list) else { return };
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
    if let Some(resources) = child(container, "resources") {
        round_up(resources, "limits");
        round_up(resources, "requests");
    }
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
    fn fine_amounts_are_rounded_up() {
        let Value::Object(mut map) = json!({"l": {"cpu": "1001u", "memory": "1Gi", "x": "1n"}}) else { return };
        round_up(&mut map, "l");
        assert_eq!(Value::Object(map), json!({"l": {"cpu": "2m", "memory": "1Gi", "x": "1m"}}));
    }
}
