//! The tree of a kubelet that makes no cgroups. Answers for upstream's `podContainerManagerNoop`.

use super::{CgroupError, Cgroups, Usage};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// For `--cgroups-per-qos=false`: pods have no cgroup of their own.
#[derive(Debug, Default)]
pub struct NoCgroups;

impl Cgroups for NoCgroups {
    fn ensure_tree(&self, _: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        Ok(())
    }
    fn enforce(&self, _: &str, _: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        Ok(())
    }
    fn pods_memory(&self) -> Option<(u64, u64)> {
        None
    }
    fn update_tiers(&self, _: &[&Pod]) -> Result<(), CgroupError> {
        Ok(())
    }
    fn ensure_pod(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    fn grow_pod(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    fn pod_parent(&self, _: &Pod) -> String {
        String::new()
    }
    fn remove_pod(&self, _: &str) -> Result<(), CgroupError> {
        Ok(())
    }
    fn tree(&self) -> Vec<String> {
        Vec::new()
    }
    fn pods(&self) -> Vec<String> {
        Vec::new()
    }
    fn usage(&self, _: &str) -> Option<Usage> {
        None
    }
}
