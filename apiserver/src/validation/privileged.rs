//! Privileged containers and processes of the host, on servers that do not allow them.

use proto::Value;
use shared::status::field::{Error, Path};

use super::pod_template::PodTemplate;
use super::tree::{flag, get, list};

/// One error for each privileged container of a pod or a pod template, and one where any is a process of the host.
pub(crate) fn privileged(template: Option<PodTemplate>, object: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    let Some(template) = template else { return out };
    let (spec, path) = (get(template.of(object), "spec"), Path::of(&template.keys("spec")));
    if super::pod::windows::has_host_process(spec) {
        out.push(Error::forbidden(&path, "hostProcess containers are disallowed by cluster policy"));
    }
    for key in ["containers", "initContainers", "ephemeralContainers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            if flag(get(container, "securityContext"), "privileged") {
                let path = path.child(key).index(i).child("securityContext").child("privileged");
                out.push(Error::forbidden(path, "disallowed by cluster policy"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::resources::Resource;
    use serde_json::json;

    #[test]
    fn wherever_a_pod_is_described() {
        let spec = json!({
            "initContainers": [{"name": "i", "securityContext": {"privileged": true}}],
            "containers": [{"name": "a", "securityContext": {"privileged": false}}, {"name": "b"}],
        });
        let row = |group, plural| proto::resources::find(group, "v1", plural).expect("row");
        let texts = |row: &Resource, object: Value| -> Vec<String> {
            privileged(crate::registry::pod_template(row), &object).iter().map(ToString::to_string).collect()
        };
        let why = "initContainers[0].securityContext.privileged: Forbidden: disallowed by cluster policy";
        for (group, plural, object, path) in [
            ("", "pods", json!({"spec": spec}), "spec"),
            ("", "podtemplates", json!({"template": {"spec": spec}}), "template.spec"),
            ("apps", "deployments", json!({"spec": {"template": {"spec": spec}}}), "spec.template.spec"),
            (
                "batch",
                "cronjobs",
                json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}}),
                "spec.jobTemplate.spec.template.spec",
            ),
        ] {
            assert_eq!(texts(row(group, plural), object), [format!("{path}.{why}")]);
        }
        let process = json!({"windowsOptions": {"hostProcess": true}});
        for spec in [
            json!({"securityContext": process, "containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "a", "securityContext": process}]}),
        ] {
            let why = "spec: Forbidden: hostProcess containers are disallowed by cluster policy";
            assert_eq!(texts(row("", "pods"), json!({"spec": spec})), [why]);
        }
        assert!(texts(row("", "configmaps"), json!({"spec": spec})).is_empty());
    }
}
