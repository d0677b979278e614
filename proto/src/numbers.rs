//! Field numbers of messages, as the IDL in `k8s/` has them: `numbers::core_v1::pod_spec::NODE_NAME`. For readers and
//! writers of protobuf that name a few fields and no schema.
#![allow(missing_docs, reason = "each constant is the number of the field of its name")]

include!(concat!(env!("OUT_DIR"), "/numbers.rs"));

/// Entry of a map, as protobuf writes maps.
pub mod map_entry {
    pub const KEY: u32 = 1;
    pub const VALUE: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::{core_v1, discovery_v1, meta_v1};

    #[test]
    fn names_of_fields_are_those_of_the_idl() {
        assert_eq!((core_v1::pod_spec::NODE_NAME, core_v1::pod_status::POD_IPS), (10, 12));
        assert_eq!((core_v1::node_spec::POD_CIDRS, core_v1::node_spec::PROVIDER_ID), (7, 3));
        assert_eq!(core_v1::volume_source::AWS_ELASTIC_BLOCK_STORE, 4);
        assert_eq!((meta_v1::object_meta::UID, discovery_v1::endpoint_slice::PORTS), (5, 3));
    }
}
