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
use proto::protobuf::{Error, Wire, fields};
use shared::informer::Text;

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
    ($type:ty { $($number:literal => $field:ident $(as $how:ident)?),+ $(,)? }) => {
        impl $crate::engine::wire::Wired for $type {
            fn add(&mut self, value: proto::protobuf::Wire<'_>) -> Result<(), proto::protobuf::Error> {
                for field in proto::protobuf::fields(value.bytes(stringify!($type))?) {
                    let (number, value) = field?;
                    match number {
                        $($number => wired!(@ self.$field, value $(, $how)?)?,)+
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
pub fn read<T: Wired + Default>(raw: &[u8]) -> Result<T, String> {
    let mut object = T::default();
    object.add(Wire::Bytes(raw)).map_err(|error| error.to_string())?;
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
                (1, value) => key.add(value)?,
                (2, value) => item.add(value)?,
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
            (1, value) => seconds.add(value)?,
            (2, value) => nanos.add(value)?,
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
            if let (1, value) = field? {
                self.0.add(value)?;
            }
        }
        Ok(())
    }
}

optional!(bool, i32, i64, NodeSpec, NodeStatus, LeaseSpec);

wired!(OwnerReference { 1 => kind, 3 => name, 4 => uid, 5 => api_version, 6 => controller, 7 => block_owner_deletion });
impl Wired for ObjectMeta {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        for field in fields(value.bytes("metadata")?) {
            let (number, value) = field?;
            match number {
                1 => self.name.add(value)?,
                2 => self.generate_name.add(value)?,
                3 => self.namespace.add(value)?,
                5 => self.uid.add(value)?,
                6 => self.resource_version.add(value)?,
                7 => self.generation = Some(value.int("generation")?).filter(|n| *n != 0),
                8 => self.creation_timestamp.add(value)?,
                9 => self.deletion_timestamp.add(value)?,
                10 => self.deletion_grace_period_seconds.add(value)?,
                11 => self.labels.add(value)?,
                12 => self.annotations.add(value)?,
                13 => self.owner_references.add(value)?,
                14 => self.finalizers.add(value)?,
                // Managed fields are for others.
                _ => {}
            }
        }
        Ok(())
    }
}

// Of a node's status most is for others: images alone are most of it.
wired!(Node { 1 => metadata, 2 => spec, 3 => status });
wired!(NodeSpec { 1 => pod_cidr, 3 => provider_id, 4 => unschedulable, 5 => taints, 7 => pod_cidrs });
wired!(NodeStatus {
    2 => allocatable,
    3 => phase,
    4 => conditions,
    5 => addresses,
    9 => volumes_in_use,
    10 => volumes_attached,
});
wired!(Taint { 1 => key, 2 => value, 3 => effect, 4 => time_added });
wired!(NodeCondition {
    1 => type_,
    2 => status,
    3 => last_heartbeat_time,
    4 => last_transition_time,
    5 => reason,
    6 => message,
});
wired!(NodeAddress { 1 => type_, 2 => address });
wired!(AttachedVolume { 1 => name, 2 => device_path });

wired!(Lease { 1 => metadata, 2 => spec });
wired!(LeaseSpec { 1 => holder_identity, 2 => lease_duration_seconds, 4 => renew_time });

/// A node as caches hold it.
///
/// # Errors
/// Bytes of another shape.
pub fn node(raw: &[u8]) -> Result<Node, String> {
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
        assert_eq!(node(&bytes("v1", "Node", &object)), Ok(want));
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
        assert_eq!(read::<Lease>(&bytes("coordination.k8s.io/v1", "Lease", &object)), Ok(want));
    }
}
