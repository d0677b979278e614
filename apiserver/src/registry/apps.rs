//! The apps group. Answers for upstream's `pkg/registry/apps`.

pub(super) mod daemon_set {
    //! Daemon sets count the changes of their template in an annotation that old clients read.

    use proto::Value;
    use serde_json::json;

    use crate::registry::strategy::StrategyCx;

    const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

    fn count(object: &Value) -> i64 {
        object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str().and_then(|t| t.parse().ok()).unwrap_or(0)
    }

    fn set(object: &mut Value, n: i64) {
        if !object["metadata"]["annotations"].is_object() {
            object["metadata"]["annotations"] = json!({});
        }
        object["metadata"]["annotations"][TEMPLATE_GENERATION] = json!(n.to_string());
    }

    /// Starts to count.
    pub(in crate::registry) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
        let n = count(object).max(1);
        set(object, n);
    }

    /// Counts on; clients do not decide the number.
    pub(in crate::registry) fn prepare_update(new: &mut Value, old: &Value) {
        let changed = new.pointer("/spec/template") != old.pointer("/spec/template");
        set(new, count(old).max(1) + i64::from(changed));
    }
}
