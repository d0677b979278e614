//! Structs as upstream's messages show them: named and ordered like the Go structs behind the API, with nothing left
//! out; and the difference between two of them, line by line.

use proto::schema::{Card, Field, Message, ValueKind};
use proto::{Value, json};

use super::tree::get;

const POD_SPEC: &str = "k8s.io.api.core.v1.PodSpec";
const EPHEMERAL: &str = "k8s.io.api.core.v1.EphemeralContainer";
const CLAIM_SPEC: &str = "k8s.io.api.core.v1.PersistentVolumeClaimSpec";
const REQUEST_STATUS: &str = "k8s.io.api.certificates.v1.CertificateSigningRequestStatus";
const VOLUME_SOURCE: &str = "k8s.io.api.core.v1.PersistentVolumeSource";

/// Fields whose order differs from the API's. What lies in the security context there is named `securityContext`.
const POD_SPEC_FIELDS: [&str; 35] = [
    "volumes",
    "initContainers",
    "containers",
    "ephemeralContainers",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "dnsPolicy",
    "nodeSelector",
    "serviceAccountName",
    "automountServiceAccountToken",
    "nodeName",
    "securityContext",
    "imagePullSecrets",
    "hostname",
    "subdomain",
    "setHostnameAsFQDN",
    "affinity",
    "schedulerName",
    "tolerations",
    "hostAliases",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
    "dnsConfig",
    "readinessGates",
    "runtimeClassName",
    "overhead",
    "enableServiceLinks",
    "topologySpreadConstraints",
    "os",
    "schedulingGates",
    "resourceClaims",
    "resources",
    "hostnameOverride",
];
/// Fields of a pod's spec that the security context holds.
const HOST_FIELDS: [&str; 5] = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];
const POD_SECURITY_FIELDS: [&str; 13] = [
    "seLinuxOptions",
    "windowsOptions",
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "seccompProfile",
    "appArmorProfile",
    "seLinuxChangePolicy",
];
const CLAIM_SPEC_FIELDS: [&str; 9] = [
    "accessModes",
    "selector",
    "resources",
    "volumeName",
    "storageClassName",
    "volumeMode",
    "dataSource",
    "dataSourceRef",
    "volumeAttributesClassName",
];

/// Words of a name that Go writes otherwise than with a capital letter in front.
const NAMES: [(&str, &str); 31] = [
    ("apiGroup", "APIGroup"),
    ("apiVersion", "APIVersion"),
    ("awsElasticBlockStore", "AWSElasticBlockStore"),
    ("cephfs", "CephFS"),
    ("csi", "CSI"),
    ("dnsConfig", "DNSConfig"),
    ("dnsPolicy", "DNSPolicy"),
    ("fc", "FC"),
    ("fsGroup", "FSGroup"),
    ("fsGroupChangePolicy", "FSGroupChangePolicy"),
    ("fsType", "FSType"),
    ("gcePersistentDisk", "GCEPersistentDisk"),
    ("gmsaCredentialSpec", "GMSACredentialSpec"),
    ("gmsaCredentialSpecName", "GMSACredentialSpecName"),
    ("grpc", "GRPC"),
    ("httpGet", "HTTPGet"),
    ("httpHeaders", "HTTPHeaders"),
    ("ip", "IP"),
    ("iqn", "IQN"),
    ("iscsi", "ISCSI"),
    ("iscsiInterface", "ISCSIInterface"),
    ("nfs", "NFS"),
    ("os", "OS"),
    ("pdName", "PDName"),
    ("rbd", "RBD"),
    ("seLinuxChangePolicy", "SELinuxChangePolicy"),
    ("seLinuxOptions", "SELinuxOptions"),
    ("storageos", "StorageOS"),
    ("tcpSocket", "TCPSocket"),
    ("tty", "TTY"),
    ("uid", "UID"),
];

fn go_name(name: &str) -> String {
    if let Some((_, go)) = NAMES.iter().find(|(json, _)| *json == name) {
        return (*go).to_owned();
    }
    let mut chars = name.chars();
    chars.next().map(|c| c.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

struct Writer {
    out: Vec<u8>,
}

impl Writer {
    fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn key(&mut self, name: &str) {
        if self.out.last() != Some(&b'{') {
            self.text(",");
        }
        json::encode_any(&Value::from(name), &mut self.out);
        self.text(":");
    }

    fn message(&mut self, schema: &Message, value: &Value) {
        // Types shared by all groups have their API's names.
        if schema.name.starts_with("k8s.io.apimachinery.") {
            encode(schema, value, &mut self.out);
            return;
        }
        self.text("{");
        match &*schema.name {
            POD_SPEC => self.pod_spec(schema, value),
            CLAIM_SPEC => self.fields(schema, value, CLAIM_SPEC_FIELDS),
            _ => {
                for field in schema.fields.iter() {
                    match &field.kind {
                        // Go embeds it, and its fields have names of their own.
                        ValueKind::Message(m) if m.name.ends_with(".ObjectMeta") => {
                            self.spliced(m, get(value, &field.json))
                        }
                        _ => self.field(field, get(value, &field.json)),
                    }
                }
            }
        }
        self.text("}");
    }

    fn spliced(&mut self, schema: &Message, value: &Value) {
        let mut inner = Vec::new();
        encode(schema, value, &mut inner);
        if inner.len() > 2 {
            if self.out.last() != Some(&b'{') {
                self.text(",");
            }
            self.out.extend_from_slice(&inner[1..inner.len() - 1]);
        }
    }

    fn fields(&mut self, schema: &Message, value: &Value, names: impl IntoIterator<Item = &'static str>) {
        for name in names {
            if let Some(field) = schema.field(name) {
                self.field(field, get(value, name));
            }
        }
    }

    fn pod_spec(&mut self, schema: &Message, spec: &Value) {
        for name in POD_SPEC_FIELDS {
            let Some(field) = schema.field(name) else { continue };
            match &field.kind {
                ValueKind::Message(context) if name == "securityContext" => {
                    self.key("SecurityContext");
                    self.text("{");
                    self.fields(schema, spec, HOST_FIELDS);
                    self.fields(context, get(spec, name), POD_SECURITY_FIELDS);
                    self.text("}");
                }
                _ => self.field(field, get(spec, name)),
            }
        }
        self.fields(schema, spec, ["workloadRef"]);
    }

    fn field(&mut self, field: &Field, value: &Value) {
        self.key(&go_name(&field.json));
        self.value(field, value);
    }

    fn value(&mut self, field: &Field, value: &Value) {
        match (field.card, value) {
            // A list or map that was sent empty is there; one that was not sent is not.
            (Card::Repeated, Value::Array(list)) => {
                self.text("[");
                for (i, item) in list.iter().enumerate() {
                    if i > 0 {
                        self.text(",");
                    }
                    self.one(&field.kind, item);
                }
                self.text("]");
            }
            (Card::Map, Value::Object(map)) => {
                self.text("{");
                for (name, item) in map {
                    self.key(name);
                    self.one(&field.kind, item);
                }
                self.text("}");
            }
            (Card::Single, value) if !value.is_null() => self.one(&field.kind, value),
            (Card::Single, _) if !field.pointer => self.zero(&field.kind),
            _ => self.text("null"),
        }
    }

    fn one(&mut self, kind: &ValueKind, value: &Value) {
        match kind {
            ValueKind::Message(m) => self.message(m, value),
            _ => json::encode_any(value, &mut self.out),
        }
    }

    fn zero(&mut self, kind: &ValueKind) {
        match kind {
            ValueKind::Message(m) => self.message(m, &Value::Null),
            ValueKind::Bool => self.text("false"),
            ValueKind::String => self.text("\"\""),
            ValueKind::Int32 | ValueKind::Int64 | ValueKind::Double | ValueKind::IntOrString => self.text("0"),
            ValueKind::Quantity => self.text("\"0\""),
            _ => self.text("null"),
        }
    }
}

/// Encodes a value as the API does; a struct that was not sent is empty.
fn encode(schema: &Message, value: &Value, out: &mut Vec<u8>) {
    let empty = Value::Object(serde_json::Map::new());
    json::encode(schema, if value.is_null() { &empty } else { value }, out);
}

fn compact(schema: &Message, value: &Value) -> Vec<u8> {
    let mut writer = Writer { out: Vec::new() };
    writer.message(schema, value);
    writer.out
}

/// The value of a field, or one of its elements.
pub(super) fn of_field(field: &Field, whole: bool, value: &Value) -> Option<String> {
    let mut writer = Writer { out: Vec::new() };
    if whole {
        writer.value(field, value);
    } else {
        writer.one(&field.kind, value);
    }
    String::from_utf8(writer.out).ok()
}

/// Diff of a pod's spec in upstream's format.
pub(super) fn pod_diff(old: &Value, new: &Value) -> String {
    diff(POD_SPEC, old, new)
}

/// Diff of an ephemeral container.
pub(super) fn ephemeral_diff(old: &Value, new: &Value) -> String {
    diff(EPHEMERAL, old, new)
}

/// Diff of a claim's spec.
pub(super) fn claim_diff(old: &Value, new: &Value) -> String {
    diff(CLAIM_SPEC, old, new)
}

/// Diff of a persistent volume's source.
pub(super) fn volume_diff(old: &Value, new: &Value) -> String {
    diff(VOLUME_SOURCE, old, new)
}

/// Diff of the conditions of a certificate signing request.
pub(super) fn request_conditions_diff(old: Value, new: Value) -> String {
    let Some(field) = proto::schema::message(REQUEST_STATUS).and_then(|m| m.field("conditions")) else {
        return String::new();
    };
    let text = |value: &Value| of_field(field, true, value).unwrap_or_default();
    changed_lines(text(&old).as_bytes(), text(&new).as_bytes())
}

fn diff(name: &str, old: &Value, new: &Value) -> String {
    let Some(schema) = proto::schema::message(name) else { return String::new() };
    changed_lines(&compact(schema, old), &compact(schema, new))
}

fn changed_lines(old: &[u8], new: &[u8]) -> String {
    let lines = |compact: &[u8]| -> Vec<String> {
        let mut wide = Vec::new();
        json::indent(compact, &mut wide);
        let text = String::from_utf8_lossy(&wide).into_owned();
        // One space for each level.
        text.lines().map(|l| l[(l.len() - l.trim_start_matches(' ').len()) / 2..].to_owned()).collect()
    };
    let hunks = super::lines::unified(&lines(old), &lines(new));
    if hunks.is_empty() { hunks } else { format!("\n{hunks}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A default pod with its token volume, as upstream stores it.
    fn spec() -> Value {
        let token = json!({"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}});
        let roots = json!({"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}});
        let namespace = json!({"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}});
        let tolerations: Vec<Value> = ["not-ready", "unreachable"]
            .iter()
            .map(|t| {
                json!({"key": format!("node.kubernetes.io/{t}"), "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": 300})
            })
            .collect();
        json!({
            "volumes": [{"name": "v", "projected": {"sources": [token, roots, namespace], "defaultMode": 420}}],
            "containers": [{"name": "c", "image": "img", "resources": {},
                "volumeMounts": [{"name": "v", "readOnly": true, "mountPath": "/m"}],
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always"}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {},
            "schedulerName": "default-scheduler", "tolerations": tolerations, "priority": 0,
            "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
        })
    }

    #[test]
    fn diffs_match_upstream() {
        let mut new = spec();
        new["restartPolicy"] = json!("Never");
        let want = concat!(
            "\n@@ -133,7 +133,7 @@\n   }\n  ],\n  \"EphemeralContainers\": null,\n- \"RestartPolicy\": \"Always\",\n",
            "+ \"RestartPolicy\": \"Never\",\n  \"TerminationGracePeriodSeconds\": 30,\n",
            "  \"ActiveDeadlineSeconds\": null,\n  \"DNSPolicy\": \"ClusterFirst\",\n"
        );
        assert_eq!(pod_diff(&spec(), &new), want);
        assert_eq!(pod_diff(&spec(), &spec()), "");
        let claim = |mode: &str| json!({"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}});
        assert_eq!(
            claim_diff(&claim("ReadWriteOnce"), &claim("ReadOnlyMany")),
            "\n@@ -1,6 +1,6 @@\n {\n  \"AccessModes\": [\n-  \"ReadWriteOnce\"\n+  \"ReadOnlyMany\"\n  ],\n  \"Selector\": null,\n  \"Resources\": {\n"
        );
    }

    /// A list that is there without elements is not one that is not there.
    #[test]
    fn empty_is_not_absent() {
        for (pod, shown) in [
            (json!({"containers": [{"name": "c", "env": []}]}), r#""Env":[]"#),
            (json!({"containers": [{"name": "c"}]}), r#""Env":null"#),
            (json!({"containers": []}), r#""Containers":[]"#),
            (json!({"nodeSelector": {}}), r#""NodeSelector":{}"#),
            (json!({"containers": null}), r#""Containers":null"#),
        ] {
            let schema = proto::schema::message(POD_SPEC).expect("schema");
            let text = String::from_utf8(compact(schema, &pod)).expect("text");
            assert!(text.contains(shown), "{pod}: {text}");
        }
    }

    #[test]
    fn templates_name_everything() {
        let schema = proto::schema::message("k8s.io.api.apps.v1.DeploymentSpec").expect("schema");
        let field = schema.field("template").expect("field");
        let shown = |value: Value| of_field(field, true, &value).expect("text");
        let text = shown(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}));
        assert!(text.starts_with(r#"{"labels":{"a":"b"},"Spec":{"Volumes":null,"InitContainers":null,"#), "{text}");
        assert!(text.contains(r#""SecurityContext":{"HostNetwork":false,"HostPID":false,"#), "{text}");
        assert!(text.ends_with(r#""Resources":null,"HostnameOverride":null,"WorkloadRef":null}}"#), "{text}");
        assert!(shown(json!({})).starts_with(r#"{"Spec":{"#));
    }
}
