//! Amounts of resources: what a pod asks for, what a node has. Answers for upstream's `Resource`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use shared::types::is_extended_resource;

fn parse(q: &Quantity) -> proto::quantity::Quantity {
    proto::quantity::Quantity::parse(&q.0).unwrap_or_default()
}

/// The amount in whole units, rounded up. Unreadable text counts as zero: an object that the API server let through
/// must never stop the scheduler.
pub fn value(q: &Quantity) -> i64 {
    parse(q).saturating_value()
}

/// The amount in thousandths, rounded up.
pub fn milli_value(q: &Quantity) -> i64 {
    parse(q).saturating_milli_value()
}

/// CPU that a pod without a request counts for when nodes are compared, in millicores.
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// Memory that a pod without a request counts for when nodes are compared, in bytes.
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts per resource. Extended resources are kept sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resource {
    /// CPU in thousandths of a core.
    pub milli_cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Ephemeral storage in bytes.
    pub ephemeral_storage: i64,
    /// Number of pods (nodes only).
    pub pods: i64,
    /// Everything else, by name.
    pub scalar: Vec<(Arc<str>, i64)>,
}

impl Resource {
    /// Reads a resource list, leaving out what a scheduler does not account for.
    pub fn from_list(list: &BTreeMap<String, Quantity>) -> Self {
        let mut out = Self::default();
        for (name, quantity) in list {
            match name.as_str() {
                "cpu" => out.milli_cpu = milli_value(quantity),
                "memory" => out.memory = value(quantity),
                "ephemeral-storage" => out.ephemeral_storage = value(quantity),
                "pods" => out.pods = value(quantity),
                other if is_scalar(other) => out.set(other, value(quantity)),
                _ => {}
            }
        }
        out
    }

    /// The amount of `name`.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            _ => self.scalar.iter().find(|(n, _)| &**n == name).map_or(0, |(_, v)| *v),
        }
    }

    /// Sets the amount of `name`.
    pub fn set(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.milli_cpu = amount,
            "memory" => self.memory = amount,
            "ephemeral-storage" => self.ephemeral_storage = amount,
            "pods" => self.pods = amount,
            _ => *self.slot(name) = amount,
        }
    }

    fn slot(&mut self, name: &str) -> &mut i64 {
        let at = match self.scalar.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(at) => at,
            Err(at) => {
                self.scalar.insert(at, (Arc::from(name), 0));
                at
            }
        };
        &mut self.scalar[at].1
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    /// Takes `other` away.
    pub fn sub(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    /// Reports whether an amount is the largest there is: a sum that reached it no longer says what it was made of.
    pub fn is_saturated(&self) -> bool {
        [self.milli_cpu, self.memory, self.ephemeral_storage, self.pods].contains(&i64::MAX)
            || self.scalar.iter().any(|(_, amount)| *amount == i64::MAX)
    }

    /// Raises every amount to at least that of `other`.
    pub fn max(&mut self, other: &Self) {
        self.combine(other, Ord::max);
    }

    fn combine(&mut self, other: &Self, f: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = f(self.milli_cpu, other.milli_cpu);
        self.memory = f(self.memory, other.memory);
        self.ephemeral_storage = f(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = f(self.pods, other.pods);
        for (name, amount) in &other.scalar {
            let slot = self.slot(name);
            *slot = f(*slot, *amount);
        }
    }

    /// Reports whether any amount is less than that of `other`.
    pub fn is_less_somewhere(&self, other: &Self) -> bool {
        self.milli_cpu < other.milli_cpu
            || self.memory < other.memory
            || self.ephemeral_storage < other.ephemeral_storage
            || other.scalar.iter().any(|(name, amount)| self.get(name) < *amount)
    }

    /// Reports whether nothing at all is requested.
    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.scalar.iter().all(|(_, v)| *v == 0)
    }
}

/// Reports whether a resource name is one of the counted ones besides CPU, memory, storage and pods.
pub fn is_scalar(name: &str) -> bool {
    is_extended_resource(name)
        || name.starts_with("hugepages-")
        || name.contains("kubernetes.io/")
        || name.starts_with("attachable-volumes-")
}
