//! Autoscalers in version 1, which knows one target of CPU: everything else of version 2 travels in annotations, in the
//! types that version 1 has for it.

use proto::json::{self, Strictness};
use proto::{Value, schema};
use serde_json::json;

use crate::machinery::tree;
use crate::registry::strategy::StrategyCx;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// Sources of a metric spec.
const SOURCES: [&str; 5] = ["object", "pods", "resource", "containerResource", "external"];

/// Converts between the versions.
pub(in crate::registry) fn convert(object: &mut Value, _: &str, version: &str) {
    match (tree::text(object, "/apiVersion"), version) {
        ("autoscaling/v1", "v2") => to_v2(object),
        ("autoscaling/v2", "v1") => to_v1(object),
        _ => {}
    }
}

/// From version 1.
fn to_v2(object: &mut Value) {
    let metrics = noted(object, METRICS, "MetricSpec");
    let current = noted(object, CURRENT_METRICS, "MetricStatus");
    let conditions = noted(object, CONDITIONS, "HorizontalPodAutoscalerCondition");
    let behavior = take_annotation(object, BEHAVIOR).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let mut all: Vec<Value> = metrics.into_iter().flatten().map(|metric| each(&metric, target_in_v2)).collect();
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage").filter(|v| !v.is_null()) {
            let target = json!({"type": "Utilization", "averageUtilization": target});
            all.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
        }
        if !all.is_empty() {
            spec.insert("metrics".to_owned(), Value::Array(all));
        }
        let behavior = behavior.map(|internal| renamed(internal, char::to_lowercase));
        if let Some(behavior) = behavior.filter(|b| b.as_object().is_some_and(|map| !map.is_empty())) {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let now = status.remove("currentCPUUtilizationPercentage").filter(|v| !v.is_null());
        let simple = now.map(|now| {
            vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": now}}})]
        });
        let all = current
            .map(|list| list.iter().map(|metric| each(metric, |kind, source| in_v2(source, states(kind)))).collect());
        if let Some(all) = all.or(simple) {
            status.insert("currentMetrics".to_owned(), Value::Array(all));
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".to_owned(), Value::Array(conditions));
        }
    }
}

/// Takes away what only objects of version 1 have to say.
fn forget_notes(object: &mut Value) {
    for key in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
        take_annotation(object, key);
    }
}

/// Removes annotations of the conversion, which are never stored.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    forget_notes(object);
}

/// See [`prepare_create`].
pub(in crate::registry) fn prepare_update(object: &mut Value, _: &Value) {
    forget_notes(object);
}

/// To version 1.
fn to_v1(object: &mut Value) {
    forget_notes(object);
    let mut notes: Vec<(&str, String)> = Vec::new();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let all = spec.remove("metrics").and_then(|v| v.as_array().cloned()).unwrap_or_default();
        let utilization = |metric: &Value| metric.pointer("/resource/target/averageUtilization").cloned();
        if let Some(target) = all.iter().find(|metric| is_cpu(metric)).and_then(utilization) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        let others = all.iter().filter(|metric| !is_cpu(metric) || utilization(metric).is_none());
        let others: Vec<Value> =
            others.map(|metric| each(metric, |kind, source| in_v1(source, targets(kind)))).collect();
        notes.extend(note(METRICS, "MetricSpec", &others));
        notes.extend(spec.remove("behavior").map(|behavior| (BEHAVIOR, internal(&behavior))));
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let all = status.remove("currentMetrics").and_then(|v| v.as_array().cloned()).unwrap_or_default();
        let used = all.iter().filter(|metric| is_cpu(metric));
        if let Some(now) = used.filter_map(|m| m.pointer("/resource/current/averageUtilization")).next_back() {
            status.insert("currentCPUUtilizationPercentage".to_owned(), now.clone());
        }
        let all: Vec<Value> =
            all.iter().map(|metric| each(metric, |kind, source| in_v1(source, states(kind)))).collect();
        notes.extend(note(CURRENT_METRICS, "MetricStatus", &all));
        let conditions = status.remove("conditions").and_then(|v| v.as_array().cloned()).unwrap_or_default();
        notes.extend(note(CONDITIONS, "HorizontalPodAutoscalerCondition", &conditions));
    }
    for (key, text) in notes {
        annotate(object, key, text);
    }
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

fn take_annotation(object: &mut Value, key: &str) -> Option<String> {
    let annotations = object.pointer_mut("/metadata/annotations")?.as_object_mut()?;
    let text = annotations.remove(key)?;
    if annotations.is_empty() {
        object.pointer_mut("/metadata")?.as_object_mut()?.remove("annotations");
    }
    text.as_str().map(str::to_owned)
}

fn annotate(object: &mut Value, key: &str, text: String) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(annotations) = meta.entry("annotations").or_insert_with(|| json!({})).as_object_mut()
    {
        annotations.insert(key.to_owned(), text.into());
    }
}

/// The list of an annotation, whose items are of a type; what is no such list says nothing.
fn noted(object: &mut Value, key: &str, of: &str) -> Option<Vec<Value>> {
    let schema = schema::message(&format!("k8s.io.api.autoscaling.v1.{of}"))?;
    let list: Vec<Value> = serde_json::from_str(&take_annotation(object, key)?).ok()?;
    let item =
        |item: &Value| json::decode(schema, item.to_string().as_bytes(), Strictness::Ignore).ok().map(|d| d.value);
    list.iter().map(item).collect()
}

/// The annotation of a list that is not empty.
fn note<'k>(key: &'k str, of: &str, list: &[Value]) -> Option<(&'k str, String)> {
    let schema = schema::message(&format!("k8s.io.api.autoscaling.v1.{of}")).filter(|_| !list.is_empty())?;
    let mut text = vec![b'['];
    for (i, item) in list.iter().enumerate() {
        text.extend((i > 0).then_some(b','));
        json::encode(schema, item, &mut text);
    }
    text.push(b']');
    String::from_utf8(text).ok().map(|text| (key, text))
}

/// A metric whose source is another.
fn each(metric: &Value, change: impl Fn(&str, &Value) -> Value) -> Value {
    let sources = SOURCES.iter().filter_map(|kind| Some((*kind, metric.get(kind).filter(|v| !v.is_null())?)));
    let changed = sources.map(|(kind, source)| (kind.to_owned(), change(kind, source)));
    let named = std::iter::once(("type".to_owned(), metric["type"].clone()));
    Value::Object(named.chain(changed).collect())
}

/// A field of a source: its name in version 1, where it is in version 2, and whether it is a quantity that is there
/// always.
type Field = (&'static str, &'static [&'static str], bool);

const NAME: &[&str] = &["metric", "name"];
const SELECTOR: &[&str] = &["metric", "selector"];

/// Target fields of a metric source.
fn targets(kind: &str) -> &'static [Field] {
    const VALUE: &[&str] = &["target", "value"];
    const AVERAGE: &[&str] = &["target", "averageValue"];
    match kind {
        "object" => &[
            ("target", &["describedObject"], false),
            ("metricName", NAME, false),
            ("targetValue", VALUE, true),
            ("selector", SELECTOR, false),
            ("averageValue", AVERAGE, false),
        ],
        "pods" => &[("metricName", NAME, false), ("targetAverageValue", AVERAGE, true), ("selector", SELECTOR, false)],
        "external" => &[
            ("metricName", NAME, false),
            ("metricSelector", SELECTOR, false),
            ("targetValue", VALUE, false),
            ("targetAverageValue", AVERAGE, false),
        ],
        _ => &[
            ("name", &["name"], false),
            ("targetAverageUtilization", &["target", "averageUtilization"], false),
            ("targetAverageValue", AVERAGE, false),
            ("container", &["container"], false),
        ],
    }
}

/// Current fields of a metric source.
fn states(kind: &str) -> &'static [Field] {
    const VALUE: &[&str] = &["current", "value"];
    const AVERAGE: &[&str] = &["current", "averageValue"];
    match kind {
        "object" => &[
            ("target", &["describedObject"], false),
            ("metricName", NAME, false),
            ("currentValue", VALUE, true),
            ("selector", SELECTOR, false),
            ("averageValue", AVERAGE, false),
        ],
        "pods" => &[("metricName", NAME, false), ("currentAverageValue", AVERAGE, true), ("selector", SELECTOR, false)],
        "external" => &[
            ("metricName", NAME, false),
            ("metricSelector", SELECTOR, false),
            ("currentValue", VALUE, true),
            ("currentAverageValue", AVERAGE, false),
        ],
        _ => &[
            ("name", &["name"], false),
            ("currentAverageUtilization", &["current", "averageUtilization"], false),
            ("currentAverageValue", AVERAGE, true),
            ("container", &["container"], false),
        ],
    }
}

/// Value of a field, if set.
fn said(value: &Value, always: bool) -> Option<Value> {
    match value {
        Value::Null => always.then(|| json!("0")),
        value => Some(value.clone()),
    }
}

fn in_v1(source: &Value, fields: &[Field]) -> Value {
    let fields = fields.iter().filter_map(|(name, place, always)| {
        let value = place.iter().fold(source, |value, key| &value[*key]);
        Some(((*name).to_owned(), said(value, *always)?))
    });
    Value::Object(fields.collect())
}

fn in_v2(source: &Value, fields: &[Field]) -> Value {
    let mut object = json!({});
    for (name, place, always) in fields {
        if let Some(value) = said(&source[*name], *always) {
            *tree::field(&mut object, place) = value;
        }
    }
    object
}

/// Version 2 says also by what is scaled.
fn target_in_v2(kind: &str, source: &Value) -> Value {
    let has = |field: &str| !source[field].is_null();
    let by = match kind {
        "object" if !has("averageValue") => "Value",
        "external" if has("targetValue") => "Value",
        "resource" | "containerResource" if has("targetAverageUtilization") => "Utilization",
        _ => "AverageValue",
    };
    let mut object = in_v2(source, targets(kind));
    *tree::field(&mut object, &["target", "type"]) = by.into();
    object
}

/// A behaviour as upstream writes it down: with the names, and all the fields, of its internal type.
fn internal(behavior: &Value) -> String {
    let fields = |value: &Value, names: &[(&str, &str)], write: &dyn Fn(&str, &Value) -> String| {
        let text = names.iter().map(|(internal, name)| format!("\"{internal}\":{}", write(name, &value[*name])));
        format!("{{{}}}", text.collect::<Vec<_>>().join(","))
    };
    let plain = |_: &str, value: &Value| value.to_string();
    let policy = |value: &Value| {
        let names = [("Type", "type"), ("Value", "value"), ("PeriodSeconds", "periodSeconds")];
        fields(value, &names, &plain)
    };
    let rule = |name: &str, value: &Value| match (name, value.as_array()) {
        ("policies", Some(list)) => format!("[{}]", list.iter().map(policy).collect::<Vec<_>>().join(",")),
        _ => value.to_string(),
    };
    let rules = |_: &str, value: &Value| {
        let names = [
            ("StabilizationWindowSeconds", "stabilizationWindowSeconds"),
            ("SelectPolicy", "selectPolicy"),
            ("Policies", "policies"),
            ("Tolerance", "tolerance"),
        ];
        if value.is_null() { "null".to_owned() } else { fields(value, &names, &rule) }
    };
    fields(behavior, &[("ScaleUp", "scaleUp"), ("ScaleDown", "scaleDown")], &rules)
}

/// A tree whose fields begin with other letters, without what is null.
fn renamed<I: Iterator<Item = char>>(value: Value, letter: impl Fn(char) -> I + Copy) -> Value {
    match value {
        Value::Object(map) => {
            let fields = map.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
                let mut letters = name.chars();
                let first = letters.next().into_iter().flat_map(letter);
                (first.chain(letters.clone()).collect::<String>(), renamed(value, letter))
            });
            Value::Object(fields.collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(|item| renamed(item, letter)).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2() -> Value {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
        let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Mi"}}});
        let container = json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 5}}});
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "2"}}});
        let described = json!({"kind": "Ingress", "name": "i", "apiVersion": "networking.k8s.io/v1"});
        let object = json!({"type": "Object", "object": {"describedObject": described, "metric": {"name": "o"}, "target": {"type": "Value", "value": "3"}}});
        let external = json!({"type": "External", "external": {"metric": {"name": "e", "selector": {"matchLabels": {"a": "b"}}}, "target": {"type": "AverageValue", "averageValue": "4"}}});
        let policy = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        json!({"metadata": {"name": "h", "annotations": {"a": "b"}}, "spec": {"maxReplicas": 3,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10, "selectPolicy": "Max", "policies": [policy]}},
            "metrics": [memory, container, pods, object, external, cpu]},
            "status": {"desiredReplicas": 1, "conditions": [{"type": "AbleToScale", "status": "True", "reason": "R"}], "currentMetrics": [
                {"type": "Resource", "resource": {"name": "cpu", "current": {"averageValue": "5m", "averageUtilization": 7}}},
                {"type": "Pods", "pods": {"metric": {"name": "m"}, "current": {"averageValue": "1"}}}]}})
    }

    #[test]
    fn fields_missing_in_v1_become_annotations() {
        let mut object = v2();
        to_v1(&mut object);
        assert_eq!(object["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}));
        assert_eq!(object["status"], json!({"desiredReplicas": 1, "currentCPUUtilizationPercentage": 7}));
        let note = |key: &str| object["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        let metrics = concat!(
            r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Mi"}},"#,
            r#"{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageUtilization":5,"container":"c"}},"#,
            r#"{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"2"}},"#,
            r#"{"type":"Object","object":{"target":{"kind":"Ingress","name":"i","apiVersion":"networking.k8s.io/v1"},"metricName":"o","targetValue":"3"}},"#,
            r#"{"type":"External","external":{"metricName":"e","metricSelector":{"matchLabels":{"a":"b"}},"targetAverageValue":"4"}}]"#
        );
        assert_eq!(note(METRICS), metrics);
        let current = concat!(
            r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":7,"currentAverageValue":"5m"}},"#,
            r#"{"type":"Pods","pods":{"metricName":"m","currentAverageValue":"1"}}]"#
        );
        assert_eq!(note(CURRENT_METRICS), current);
        assert!(note(CONDITIONS).starts_with(r#"[{"type":"AbleToScale","status":"True","#), "{}", note(CONDITIONS));
        let rules = r#"{"StabilizationWindowSeconds":10,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null}"#;
        assert_eq!(note(BEHAVIOR), format!(r#"{{"ScaleUp":null,"ScaleDown":{rules}}}"#));
        assert_eq!(note("a"), "b");
        to_v2(&mut object);
        object["status"]["conditions"][0].as_object_mut().map(|condition| condition.remove("lastTransitionTime"));
        assert_eq!(object, v2());
    }

    #[test]
    fn empty_annotations_are_removed() {
        for note in ["", "{}", "[1]", r#"[{"type": 1}]"#] {
            let mut object = json!({"metadata": {"annotations": {METRICS: note, BEHAVIOR: note}},
                "spec": {"targetCPUUtilizationPercentage": 5}, "status": {"currentCPUUtilizationPercentage": 6}});
            to_v2(&mut object);
            assert_eq!(object["metadata"], json!({}), "{note}");
            assert_eq!(object["spec"]["metrics"].as_array().map(Vec::len), Some(1), "{note}");
            assert_eq!(object["status"]["currentMetrics"][0]["resource"]["current"], json!({"averageUtilization": 6}));
        }
    }
}
