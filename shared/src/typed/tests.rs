use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::events::v1::Event;
use serde_json::json;

use super::*;

fn read<T: DeserializeOwned + k8s_openapi::Resource>(object: &Value) -> Result<T, String> {
    let schema = || proto::schema::kind_of(T::API_VERSION, T::KIND);
    from_json(schema, object.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn null_for_a_required_time_is_the_zero_time() {
    let condition =
        json!({"type": "Ready", "status": "True", "lastTransitionTime": null, "reason": "r", "message": ""});
    let service = json!({"metadata": {"name": "s"}, "status": {"conditions": [condition]}});
    assert!(serde_json::from_value::<Service>(service.clone()).is_err(), "the derived decoder refuses it");
    let service: Service = read(&service).unwrap();
    let time = &service.status.unwrap().conditions.unwrap()[0].last_transition_time;
    assert_eq!(serde_json::to_value(time).unwrap(), ZERO_TIME);

    let event = json!({"metadata": {"name": "e"}, "eventTime": null, "series": {"count": 1, "lastObservedTime": null}});
    assert!(read::<Event>(&event).is_ok());
}

#[test]
fn members_that_go_takes_are_taken() {
    let objects = [
        json!({"metadata": null, "spec": null, "status": null}),
        json!({"metadata": {"labels": {"a": null}, "creationTimestamp": null, "ownerReferences": [null]}}),
        json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 1, "memory": null}}}]}}),
        json!({"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": null}}}]}}),
        json!({"spec": {"containers": [null]}, "unknown": [1]}),
        json!({"spec": {"containers": []}, "status": {"startTime": "2026-01-02T03:04:05.678+01:00"}}),
    ];
    for object in objects {
        assert!(read::<Pod>(&object).is_ok(), "{object}: {:?}", read::<Pod>(&object));
    }
}

#[test]
fn what_go_refuses_is_refused_in_its_words() {
    let map = json!({"metadata": {"name": "m"}, "binaryData": {"k": "!"}});
    assert_eq!(read::<ConfigMap>(&map).unwrap_err(), "illegal base64 data at input byte 0");
    let pod = json!({"spec": {"containers": [{"ports": [{"containerPort": 80.0}]}]}});
    let why = "json: cannot unmarshal number 80.0 into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32";
    assert_eq!(read::<Pod>(&pod).unwrap_err(), why);
}

#[test]
fn identity_is_read_of_objects_that_are_not() {
    let object = json!({"metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "7"}, "spec": 1});
    let wanted = Identity { namespace: "ns".into(), name: "n".into(), uid: "u".into(), resource_version: "7".into() };
    assert_eq!(Identity::of_json(object.to_string().as_bytes()), Some(wanted.clone()));
    let schema = proto::schema::pod();
    let mut raw = protobuf::encode(schema, &json!({"metadata": object["metadata"]}));
    assert_eq!(Identity::of_protobuf(&raw), Some(wanted.clone()));
    raw.extend([0x12, 0x7f]);
    assert_eq!(Identity::of_protobuf(&raw), Some(wanted), "bytes that end too early follow");
    assert_eq!(Identity::of_json(b"{\"metadata\": {}}"), None);
    assert_eq!(Identity::of_protobuf(b""), None);
}
