//! Settings parsed from flags before anything connects, so that an invalid flag fails at once.

use std::sync::Arc;

use anyhow::Context as _;
use ipnet::IpNet;
use shared::flags::FlagSet;

use crate::bootstrap::StorageVersions;
use crate::egress::Egress;
use crate::negotiate::Media;
use crate::registry::FieldGates;
use crate::registry::resource_config;
use crate::rest::kubernetes_service::{self, ReconcilerType};
use crate::rest::node_ports::PortRange;
use crate::rest::{BindingEffects, ServiceRanges};
use crate::rows::Rows;
use crate::serve::ResponsePolicy;
use crate::serve::listen::Addresses;
use crate::storage::{self, Caching};
use crate::verbs::engine::WritePolicy;

/// Settings parsed from all flags.
pub(super) struct Settings {
    pub(super) addresses: Addresses,
    pub(super) response_policy: ResponsePolicy,
    pub(super) egress: Egress,
    /// Endpoint reconciler type.
    pub(super) way: ReconcilerType,
    /// The node port of that service.
    pub(super) node_port: Option<u16>,
    /// Memory budget of cached encodings, in bytes.
    pub(super) encodings: usize,
    /// Resources with watch caches.
    pub(super) caching: Caching,
    /// Ranges of Services.
    pub(super) services: ServiceRanges,
    pub(super) objects: Objects,
}

/// Settings of objects and their storage.
pub(super) struct Objects {
    pub(super) rows: Rows,
    pub(super) binding: BindingEffects,
    pub(super) policy: WritePolicy,
    pub(super) gated: FieldGates,
    pub(super) versions: Option<Arc<StorageVersions>>,
    /// Seconds events live.
    pub(super) event_ttl: i64,
}

impl Settings {
    pub(super) fn read(flags: &FlagSet) -> anyhow::Result<Self> {
        let addresses = Addresses::read(flags);
        let services = services(flags)?;
        let response_policy = ResponsePolicy::from_flags(flags)?;
        let way = ReconcilerType::from_flags(flags)?;
        let node_port = kubernetes_service::node_port(flags, services.ports)?;
        let rows = rows(flags)?;
        Ok(Self {
            egress: Egress::from_flags(flags)?,
            encodings: encodings(flags)?,
            caching: Caching::from_flags(flags)?,
            objects: Objects {
                policy: policy(flags, response_policy.shortest_watch)?,
                gated: FieldGates::new(&flags.feature_gates()),
                versions: StorageVersions::from_flags(flags, &rows),
                event_ttl: i64::try_from(flags.duration("event-ttl").as_secs()).unwrap_or(3600),
                rows,
                binding: BindingEffects {
                    clears_nomination: flags.enabled("ClearingNominatedNodeNameAfterBinding"),
                    labels: flags.enabled("PodTopologyLabelsAdmission"),
                },
            },
            addresses,
            services,
            response_policy,
            way,
            node_port,
        })
    }
}

fn policy(flags: &FlagSet, shortest_watch: u64) -> anyhow::Result<WritePolicy> {
    Ok(WritePolicy {
        allow_privileged: flags.boolean("allow-privileged"),
        media: Media { cbor: flags.enabled("CBORServingAndStorage"), stores_json: storage::stores_json(flags)? },
        delete_workers: usize::try_from(flags.integer("delete-collection-workers")).unwrap_or(1).clamp(1, 64),
        collects_garbage: flags.boolean("enable-garbage-collector"),
        shortest_watch,
        watch_lists: flags.enabled("WatchList"),
        deletes_corrupt: flags.enabled("AllowUnsafeMalformedObjectDeletion"),
    })
}

fn services(flags: &FlagSet) -> anyhow::Result<ServiceRanges> {
    let text = flags.string("service-cluster-ip-range");
    let text = if text.is_empty() { "10.0.0.0/24".to_owned() } else { text };
    let mut ranges = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let range: IpNet = part.parse().with_context(|| format!("invalid --service-cluster-ip-range {part:?}"))?;
        ranges.push(range.trunc());
    }
    anyhow::ensure!(ranges.len() <= 2, "service-cluster-ip-range must not contain more than two entries");
    let text = flags.string("service-node-port-range");
    let ports = PortRange::parse(&text).with_context(|| format!("invalid --service-node-port-range {text:?}"))?;
    Ok(ServiceRanges { addresses: ranges, ports })
}

fn rows(flags: &FlagSet) -> anyhow::Result<Rows> {
    let emulated = resource_config::EmulatedApis::from_flags(flags)?;
    let choice = resource_config::select_resources(&flags.map("runtime-config"), &flags.feature_gates(), emulated)?;
    Ok(Rows::of(choice))
}

fn encodings(flags: &FlagSet) -> anyhow::Result<usize> {
    let megabytes = flags.integer("watch-cache-encodings-mb");
    let megabytes = usize::try_from(megabytes).ok().filter(|mb| *mb <= 1 << 20);
    Ok(megabytes.context("--watch-cache-encodings-mb must be between 0 and 1048576")? << 20)
}
