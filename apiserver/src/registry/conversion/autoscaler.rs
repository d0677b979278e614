//! Autoscalers in version 1, which knows one target of CPU: everything else of version 2 travels in annotations, in the
//! types that version 1 has for it.

use proto::json::{self, Strictness};
use proto::{Value, schema};
use serde_json::{Map, json};

use crate::registry::strategy::StrategyCx;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// Where a metric says what it is about.
const SOURCES: [&str; 5] = ["object", "pods", "resource", "containerResource", "external"];

/// From version 1.
pub(super) fn to_v2(object: &mut Value) {
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
        let all = current.map(|list| list.iter().map(|metric| each(metric, state_in_v2)).collect());
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

/// What is stored has no such annotations, whoever wrote them.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    forget_notes(object);
}

/// See [`prepare_create`].
pub(in crate::registry) fn prepare_update(object: &mut Value, _: &Value) {
    forget_notes(object);
}

/// To version 1.
pub(super) fn to_v1(object: &mut Value) {
    forget_notes(object);
    let mut notes: Vec<(&str, String)> = Vec::new();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let all = spec.remove("metrics").and_then(|v| v.as_array().cloned()).unwrap_or_default();
        let utilization = |metric: &Value| metric.pointer("/resource/target/averageUtilization").cloned();
        if let Some(target) = all.iter().find(|metric| is_cpu(metric)).and_then(utilization) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        let others = all.iter().filter(|metric| !is_cpu(metric) || utilization(metric).is_none());
        let others: Vec<Value> = others.map(|metric| each(metric, target_in_v1)).collect();
        notes.extend(note(METRICS, "MetricSpec", &others));
        notes.extend(spec.remove("behavior").map(|behavior| (BEHAVIOR, internal(&behavior))));
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let all = status.remove("currentMetrics").and_then(|v| v.as_array().cloned()).unwrap_or_default();
        let used = all.iter().filter(|metric| is_cpu(metric));
        if let Some(now) = used.filter_map(|m| m.pointer("/resource/current/averageUtilization")).next_back() {
            status.insert("currentCPUUtilizationPercentage".to_owned(), now.clone());
        }
        let all: Vec<Value> = all.iter().map(|metric| each(metric, state_in_v1)).collect();
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

/// An object of what there is.
fn of<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let there = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(there.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// A quantity that version 1 always has.
fn amount(value: &Value) -> Value {
    if value.is_null() { json!("0") } else { value.clone() }
}

/// Name and selector of what is measured, by their names in version 1.
fn metric_of(source: &Value, selector: &str) -> Value {
    of([("name", source["metricName"].clone()), ("selector", source[selector].clone())])
}

fn target_in_v2(kind: &str, source: &Value) -> Value {
    let field = |name: &str| source[name].clone();
    let target = |kind: &str, value: Value, average: Value, utilization: Value| {
        of([("type", kind.into()), ("value", value), ("averageValue", average), ("averageUtilization", utilization)])
    };
    match kind {
        "object" => {
            let average = field("averageValue");
            let by = if average.is_null() { "Value" } else { "AverageValue" };
            let target = target(by, amount(&source["targetValue"]), average, Value::Null);
            of([("describedObject", field("target")), ("metric", metric_of(source, "selector")), ("target", target)])
        }
        "pods" => {
            let target = target("AverageValue", Value::Null, amount(&source["targetAverageValue"]), Value::Null);
            of([("metric", metric_of(source, "selector")), ("target", target)])
        }
        "external" => {
            let by = if source["targetValue"].is_null() { "AverageValue" } else { "Value" };
            let target = target(by, field("targetValue"), field("targetAverageValue"), Value::Null);
            of([("metric", metric_of(source, "metricSelector")), ("target", target)])
        }
        _ => {
            let utilization = field("targetAverageUtilization");
            let by = if utilization.is_null() { "AverageValue" } else { "Utilization" };
            let target = target(by, Value::Null, field("targetAverageValue"), utilization);
            of([("name", field("name")), ("container", field("container")), ("target", target)])
        }
    }
}

fn target_in_v1(kind: &str, source: &Value) -> Value {
    let (metric, target) = (&source["metric"], &source["target"]);
    let (name, selector) = (metric["name"].clone(), metric["selector"].clone());
    match kind {
        "object" => of([
            ("target", source["describedObject"].clone()),
            ("metricName", name),
            ("targetValue", amount(&target["value"])),
            ("selector", selector),
            ("averageValue", target["averageValue"].clone()),
        ]),
        "pods" => {
            of([("metricName", name), ("targetAverageValue", amount(&target["averageValue"])), ("selector", selector)])
        }
        "external" => of([
            ("metricName", name),
            ("metricSelector", selector),
            ("targetValue", target["value"].clone()),
            ("targetAverageValue", target["averageValue"].clone()),
        ]),
        _ => of([
            ("name", source["name"].clone()),
            ("targetAverageUtilization", target["averageUtilization"].clone()),
            ("targetAverageValue", target["averageValue"].clone()),
            ("container", source["container"].clone()),
        ]),
    }
}

fn state_in_v2(kind: &str, source: &Value) -> Value {
    let field = |name: &str| source[name].clone();
    match kind {
        "object" => {
            let current = of([("value", amount(&source["currentValue"])), ("averageValue", field("averageValue"))]);
            of([("describedObject", field("target")), ("metric", metric_of(source, "selector")), ("current", current)])
        }
        "pods" => {
            let current = of([("averageValue", amount(&source["currentAverageValue"]))]);
            of([("metric", metric_of(source, "selector")), ("current", current)])
        }
        "external" => {
            let average = field("currentAverageValue");
            let current = of([("value", amount(&source["currentValue"])), ("averageValue", average)]);
            of([("metric", metric_of(source, "metricSelector")), ("current", current)])
        }
        _ => {
            let utilization = field("currentAverageUtilization");
            let average = amount(&source["currentAverageValue"]);
            let current = of([("averageValue", average), ("averageUtilization", utilization)]);
            of([("name", field("name")), ("container", field("container")), ("current", current)])
        }
    }
}

fn state_in_v1(kind: &str, source: &Value) -> Value {
    let (metric, current) = (&source["metric"], &source["current"]);
    let (name, selector) = (metric["name"].clone(), metric["selector"].clone());
    match kind {
        "object" => of([
            ("target", source["describedObject"].clone()),
            ("metricName", name),
            ("currentValue", amount(&current["value"])),
            ("selector", selector),
            ("averageValue", current["averageValue"].clone()),
        ]),
        "pods" => of([
            ("metricName", name),
            ("currentAverageValue", amount(&current["averageValue"])),
            ("selector", selector),
        ]),
        "external" => of([
            ("metricName", name),
            ("metricSelector", selector),
            ("currentValue", amount(&current["value"])),
            ("currentAverageValue", current["averageValue"].clone()),
        ]),
        _ => of([
            ("name", source["name"].clone()),
            ("currentAverageUtilization", current["averageUtilization"].clone()),
            ("currentAverageValue", amount(&current["averageValue"])),
            ("container", source["container"].clone()),
        ]),
    }
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
    fn what_version_1_lacks_is_noted_in_its_types() {
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
    fn notes_that_say_nothing_are_gone() {
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
