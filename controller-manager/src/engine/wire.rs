//! Objects from the protobuf in which the server sends them, without a tree or a text in between.
//!
//! A type names its fields and their numbers ([`wired!`](crate::engine::wire::wired)); what it does not name is skipped
//! unread. As in JSON, texts that Go leaves empty are absent. For kinds that are very many or change very often: nodes,
//! leases here, pods in [`super::pod_reader`]; endpoints are not even read ([`super::packed`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{AttachedVolume, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use proto::numbers::api_resource::quantity;
use proto::numbers::map_entry;
use proto::numbers::meta_v1::{object_meta, time};
use proto::protobuf::{Error, Wire, fields};
use shared::informer::Text;
use shared::typed::ReadError;

/// Target of a field's occurrences.
pub trait Wired {
    /// One occurrence of the field.
    ///
    /// # Errors
    /// Bytes of another shape.
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error>;
}

/// Table of a message's field numbers. Fields that Go has as a `pointer` are there also when they are empty.
macro_rules! wired {
    (@ $field:expr, $value:ident) => { $crate::engine::wire::Wired::add(&mut $field, $value) };
    (@ $field:expr, $value:ident, pointer) => {
        $crate::engine::wire::Wired::add($field.get_or_insert_default(), $value)
    };
    ($type:ident as $group:ident::$message:ident { $($name:ident => $field:ident $(as $how:ident)?),+ $(,)? }) => {
        impl $crate::engine::wire::Wired for $type {
            fn add(&mut self, value: proto::protobuf::Wire<'_>) -> Result<(), proto::protobuf::Error> {
                for field in proto::protobuf::fields(value.bytes(stringify!($type))?) {
                    let (number, value) = field?;
                    match number {
                        $(proto::numbers::$group::$message::$name => wired!(@ self.$field, value $(, $how)?)?,)+
                        _ => {}
                    }
                }
                Ok(())
            }
        }
    };
}
pub(super) use wired;

/// An object, without its envelope.
///
/// # Errors
/// Bytes of another shape.
pub fn read<T: Wired + Default>(raw: &[u8]) -> Result<T, ReadError> {
    let mut object = T::default();
    object.add(Wire::Bytes(raw))?;
    Ok(object)
}

/// The text of a field; broken text names nothing that exists.
pub(super) fn text<'a>(value: Wire<'a>) -> Result<&'a str, Error> {
    Ok(std::str::from_utf8(value.bytes("string")?).unwrap_or_default())
}

macro_rules! texts {
    ($($type:ty),+) => { $(
        impl Wired for $type {
            fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
                *self = text(value)?.into();
                Ok(())
            }
        }

        impl Wired for Option<$type> {
            fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
                *self = Some(text(value)?).filter(|text| !text.is_empty()).map(Into::into);
                Ok(())
            }
        }
    )+ };
}
texts!(String, Box<str>, Arc<str>, Text);

macro_rules! optional {
    ($($type:ty),+) => { $(
        impl Wired for Option<$type> {
            fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
                self.get_or_insert_default().add(value)
            }
        }
    )+ };
}
pub(super) use optional;

impl Wired for bool {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        *self = value.int("bool")? != 0;
        Ok(())
    }
}

impl Wired for i32 {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        *self = i32::try_from(value.int("int32")?).unwrap_or_default();
        Ok(())
    }
}

impl Wired for i64 {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        *self = value.int("int64")?;
        Ok(())
    }
}

impl<T: Wired + Default> Wired for Vec<T> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        let mut item = T::default();
        item.add(value)?;
        self.push(item);
        Ok(())
    }
}

impl<T: Wired + Default> Wired for Option<Vec<T>> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        self.get_or_insert_default().add(value)
    }
}

impl<V: Wired + Default> Wired for BTreeMap<String, V> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        let (mut key, mut item) = (String::new(), V::default());
        for field in fields(value.bytes("map")?) {
            match field? {
                (map_entry::KEY, value) => key.add(value)?,
                (map_entry::VALUE, value) => item.add(value)?,
                _ => {}
            }
        }
        self.insert(key, item);
        Ok(())
    }
}

impl<V: Wired + Default> Wired for Option<BTreeMap<String, V>> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        self.get_or_insert_default().add(value)
    }
}

/// Seconds and nanoseconds; `None` for the time that Go calls zero.
fn moment(value: Wire<'_>) -> Result<Option<Timestamp>, Error> {
    let message = value.bytes("Time")?;
    let (mut seconds, mut nanos) = (0, 0);
    for field in fields(message) {
        match field? {
            (time::SECONDS, value) => seconds.add(value)?,
            (time::NANOS, value) => nanos.add(value)?,
            _ => {}
        }
    }
    Ok(Timestamp::new(seconds, nanos).ok().filter(|_| !message.is_empty()))
}

impl Wired for Option<Time> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        // To the second, as JSON has it.
        let whole = moment(value)?.map(|at| Timestamp::from_second(at.as_second()).unwrap_or(at));
        *self = whole.map(Time);
        Ok(())
    }
}

impl Wired for Option<MicroTime> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        *self = moment(value)?.map(MicroTime);
        Ok(())
    }
}

impl Wired for Quantity {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        for field in fields(value.bytes("Quantity")?) {
            if let (quantity::STRING, value) = field? {
                self.0.add(value)?;
            }
        }
        Ok(())
    }
}

optional!(bool, i32, i64, NodeSpec, NodeStatus, LeaseSpec);

wired!(OwnerReference as meta_v1::owner_reference { KIND => kind, NAME => name, UID => uid, API_VERSION => api_version, CONTROLLER => controller, BLOCK_OWNER_DELETION => block_owner_deletion });
impl Wired for ObjectMeta {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        for field in fields(value.bytes("metadata")?) {
            let (number, value) = field?;
            match number {
                object_meta::NAME => self.name.add(value)?,
                object_meta::GENERATE_NAME => self.generate_name.add(value)?,
                object_meta::NAMESPACE => self.namespace.add(value)?,
                object_meta::UID => self.uid.add(value)?,
                object_meta::RESOURCE_VERSION => self.resource_version.add(value)?,
                object_meta::GENERATION => self.generation = Some(value.int("generation")?).filter(|n| *n != 0),
                object_meta::CREATION_TIMESTAMP => self.creation_timestamp.add(value)?,
                object_meta::DELETION_TIMESTAMP => self.deletion_timestamp.add(value)?,
                object_meta::DELETION_GRACE_PERIOD_SECONDS => self.deletion_grace_period_seconds.add(value)?,
                object_meta::LABELS => self.labels.add(value)?,
                object_meta::ANNOTATIONS => self.annotations.add(value)?,
                object_meta::OWNER_REFERENCES => self.owner_references.add(value)?,
                object_meta::FINALIZERS => self.finalizers.add(value)?,
                // Managed fields are for others.
                _ => {}
            }
        }
        Ok(())
    }
}

// Of a node's status most is for others: images alone are most of it.
wired!(Node as core_v1::node { METADATA => metadata, SPEC => spec, STATUS => status });
wired!(NodeSpec as core_v1::node_spec { POD_CIDR => pod_cidr, PROVIDER_ID => provider_id, UNSCHEDULABLE => unschedulable, TAINTS => taints, POD_CIDRS => pod_cidrs });
wired!(NodeStatus as core_v1::node_status {
    ALLOCATABLE => allocatable,
    PHASE => phase,
    CONDITIONS => conditions,
    ADDRESSES => addresses,
    VOLUMES_IN_USE => volumes_in_use,
    VOLUMES_ATTACHED => volumes_attached,
});
wired!(Taint as core_v1::taint { KEY => key, VALUE => value, EFFECT => effect, TIME_ADDED => time_added });
wired!(NodeCondition as core_v1::node_condition {
    TYPE => type_,
    STATUS => status,
    LAST_HEARTBEAT_TIME => last_heartbeat_time,
    LAST_TRANSITION_TIME => last_transition_time,
    REASON => reason,
    MESSAGE => message,
});
wired!(NodeAddress as core_v1::node_address { TYPE => type_, ADDRESS => address });
wired!(AttachedVolume as core_v1::attached_volume { NAME => name, DEVICE_PATH => device_path });

wired!(Lease as coordination_v1::lease { METADATA => metadata, SPEC => spec });
wired!(LeaseSpec as coordination_v1::lease_spec { HOLDER_IDENTITY => holder_identity, LEASE_DURATION_SECONDS => lease_duration_seconds, RENEW_TIME => renew_time });

/// A node as caches hold it.
///
/// # Errors
/// Bytes of another shape.
pub fn node(raw: &[u8]) -> Result<Node, ReadError> {
    let mut node = read(raw)?;
    super::slim::node(&mut node);
    Ok(node)
}

#[cfg(test)]
mod tests {
    use proto::{protobuf, schema};
    use serde_json::{Value, json};

    use super::*;

    fn bytes(api_version: &str, kind: &str, object: &Value) -> Vec<u8> {
        protobuf::encode(schema::kind_of(api_version, kind).expect("a known kind"), object)
    }

    fn metadata() -> Value {
        json!({"name": "n", "uid": "u", "resourceVersion": "7", "generation": 2, "generateName": "n-", "creationTimestamp": "2026-01-02T03:04:05Z",
            "deletionTimestamp": "2026-01-02T03:04:06Z", "deletionGracePeriodSeconds": 0,
            "labels": {"a": "b", "c": ""}, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}, "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "o", "controller": true,
                "blockOwnerDeletion": false}]})
    }

    #[test]
    fn nodes_are_what_json_says() {
        let object = json!({"metadata": metadata(),
            "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"], "providerID": "p", "unschedulable": true,
                "taints": [{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
                    {"key": "k", "effect": "NoSchedule"}]},
            "status": {"phase": "Running", "allocatable": {"cpu": "4", "memory": "1Gi"}, "capacity": {"cpu": "4"},
                "images": [{"names": ["i"], "sizeBytes": 5}], "volumesInUse": ["v"],
                "volumesAttached": [{"name": "v", "devicePath": "d"}],
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m",
                    "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}});
        let mut want: Node = serde_json::from_value(object.clone()).expect("node");
        super::super::slim::node(&mut want);
        assert_eq!(node(&bytes("v1", "Node", &object)).expect("a node"), want);
        let bare = json!({"metadata": {"name": "bare"}});
        let read = node(&bytes("v1", "Node", &bare)).expect("node");
        assert_eq!(read.metadata, serde_json::from_value(bare["metadata"].clone()).expect("metadata"));
        assert!(node(&[0x0a, 0xff]).is_err());
    }

    #[test]
    fn leases_are_what_json_says() {
        let object = json!({"metadata": metadata(), "spec": {"holderIdentity": "n", "leaseDurationSeconds": 40,
            "renewTime": "2026-01-02T03:04:05.123456Z"}});
        let want: Lease = serde_json::from_value(object.clone()).expect("lease");
        assert_eq!(read::<Lease>(&bytes("coordination.k8s.io/v1", "Lease", &object)).expect("a lease"), want);
    }
}
