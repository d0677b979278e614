//! Keeps the usage in the status of resource quotas true when objects go away. Answers for upstream's
//! `pkg/controller/resourcequota`.
//!
//! In: quotas, pods, services, claims, and what else the server has in a namespace. Out: the status of quotas.
//! [`usage`] counts; admission, which counts upwards, is the server's.

pub mod devices;
pub mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota, ResourceQuotaStatus, Service};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::jiff::Timestamp;
use proto::quantity::{Format, Quantity};
use serde::de::IgnoredAny;
use shared::informer::{Event, Informer, Store};
use shared::metrics::Passage;
use shared::workqueue::Queue;

use self::devices::MadeForPods;
use self::usage::Usage;
use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::Served;
use crate::engine::executor::Executor;
use crate::engine::metadata::{Hub, MetadataChange};
use crate::engine::object::{self, Key};
use crate::engine::paged::Pages;
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::{BRIEF_LIST, RestError};
use crate::engine::worker::{self, Synced};

/// Resources of the core group that quotas name without `count/`.
const PLAIN: [&str; 4] = ["configmaps", "secrets", "replicationcontrollers", "resourcequotas"];

struct Quotas {
    executor: Executor,
    quotas: Store<ResourceQuota>,
    pods: Store<Pod>,
    services: Store<Service>,
    claims: Store<PersistentVolumeClaim>,
    devices: Option<Store<ResourceClaim>>,
    /// Device classes, where pods request devices as extended resources.
    classes: Option<Store<DeviceClass>>,
    hub: Hub,
    /// There are classes of attributes of volumes.
    attributes: bool,
}

/// Wire the resource quota controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (quotas, pods) = (cx.informer::<ResourceQuota>(), cx.pods());
        let (services, claims) = (cx.informer::<Service>(), cx.informer::<PersistentVolumeClaim>());
        let devices = match cx.gate("DynamicResourceAllocation") {
            true => cx.served::<ResourceClaim>().await?,
            false => None,
        };
        let classes = match cx.gate("DRAExtendedResource") {
            true => cx.served::<DeviceClass>().await?,
            false => None,
        };
        let queue: Queue<Key> = Queue::new("resourcequota_primary");
        // Quotas that say nothing of usage yet do not wait for those that are counted anew.
        let first: Queue<Key> = Queue::new("resourcequota_priority");
        let this = Arc::new(Quotas {
            executor: cx.executor("resourcequota-controller", "resourcequota-controller"),
            quotas: quotas.store(),
            pods: pods.store(),
            services: services.store(),
            claims: claims.store(),
            devices: devices.as_ref().map(Informer::store),
            classes: classes.as_ref().map(Informer::store),
            hub: cx.hub().clone(),
            attributes: cx.gate("VolumeAttributesClass"),
        });
        watch_quotas(&quotas, &queue, &first);
        let replenish = replenisher(quotas.store(), queue.clone());
        watch_pods(&pods, replenish.clone());
        watch_services(&services, replenish.clone());
        watch_claims(&claims, this.attributes, replenish.clone());
        if let Some(devices) = &devices {
            watch_devices(devices, replenish.clone());
        }
        let with_devices = devices.is_some();
        cx.hub().listen(move |served: &Served, change: &MetadataChange<'_>| {
            if let MetadataChange::Deleted(meta) = change
                && !meta.namespace.is_empty()
                && !is_counted_elsewhere(&served.group, &served.plural, with_devices)
            {
                replenish(&meta.namespace, Counted::Objects(served));
            }
        });
        cx.hub().request();
        for queue in [&first, &queue] {
            worker::run(cx, "resourcequota", cx.settings().workers.resource_quota, queue, &this, |s, key| async move {
                s.sync(&key).await
            });
        }
        let (all, wake) = (quotas.store(), queue.clone());
        cx.every("resourcequota", cx.settings().quota_period, move || {
            for quota in all.list() {
                let queue = if is_urgent(&quota) { &first } else { &wake };
                queue.add(Key::of(&quota.metadata));
            }
            std::future::ready(())
        });
        Ok(Started::Yes)
    })
}

fn watch_quotas(quotas: &Informer<ResourceQuota>, queue: &Queue<Key>, first: &Queue<Key>) {
    let (wake, urgent) = (queue.clone(), first.clone());
    quotas.add_handler(move |event: &Event<ResourceQuota>| {
        // Usage written by admission is no reason to count anew.
        let changed = match event {
            Event::Updated { old, new } => old.spec != new.spec || new.status.as_ref().is_none_or(|s| s.hard.is_none()),
            _ => true,
        };
        if changed {
            let queue = if is_urgent(event.object()) { &urgent } else { &wake };
            queue.add(Key::of(&event.object().metadata));
        }
    });
}

/// Quotas of a namespace are counted anew when a pod gives something back.
fn watch_pods(pods: &Informer<Pod>, again: impl Fn(&str, Counted<'_>) + Send + Sync + 'static) {
    pods.add_handler(move |event: &Event<Pod>| match event {
        Event::Deleted(p) => again(object::namespace(&p.metadata), Counted::Pods),
        Event::Updated { old, new } if usage::gives_back(old, new, clock::now()) => {
            again(object::namespace(&new.metadata), Counted::Pods)
        }
        _ => {}
    });
}

/// Quotas of a namespace are counted anew when a service goes, or becomes one of another kind.
fn watch_services(services: &Informer<Service>, again: impl Fn(&str, Counted<'_>) + Send + Sync + 'static) {
    services.add_handler(move |event: &Event<Service>| {
        let kind = |s: &Service| s.spec.as_ref().and_then(|x| x.type_.clone());
        match event {
            Event::Deleted(s) => again(object::namespace(&s.metadata), Counted::Services),
            Event::Updated { old, new } if kind(old) != kind(new) => {
                again(object::namespace(&new.metadata), Counted::Services)
            }
            _ => {}
        }
    });
}

/// Quotas of a namespace are counted anew when a claim goes, or counts otherwise.
fn watch_claims(
    claims: &Informer<PersistentVolumeClaim>,
    attributes: bool,
    again: impl Fn(&str, Counted<'_>) + Send + Sync + 'static,
) {
    claims.add_handler(move |event: &Event<PersistentVolumeClaim>| match event {
        Event::Deleted(c) => again(object::namespace(&c.metadata), Counted::Claims),
        Event::Updated { old, new } if usage::claim_changes(old, new, attributes) => {
            again(object::namespace(&new.metadata), Counted::Claims)
        }
        _ => {}
    });
}

/// Quotas of a namespace are counted anew when a claim of devices goes.
fn watch_devices(devices: &Informer<ResourceClaim>, again: impl Fn(&str, Counted<'_>) + Send + Sync + 'static) {
    devices.add_handler(move |event: &Event<ResourceClaim>| {
        if let Event::Deleted(c) = event {
            again(object::namespace(&c.metadata), Counted::Devices);
        }
    });
}

/// A change for which a quota may have to be counted anew.
#[derive(Clone, Copy)]
enum Counted<'a> {
    Pods,
    Services,
    Claims,
    Devices,
    /// Of which only the number counts.
    Objects(&'a Served),
}

impl Counted<'_> {
    /// Reports whether a quota name is about this. It may say yes for more than upstream's evaluators track.
    fn is_limited_by(self, name: &str) -> bool {
        let number = name.strip_prefix("count/");
        match self {
            Self::Pods => match number {
                Some(of) => of == "pods",
                None => !name.starts_with("services") && !PLAIN.contains(&name) && !name.contains("storage.k8s.io/"),
            },
            Self::Services => number.unwrap_or(name).starts_with("services"),
            Self::Claims => name.contains("persistentvolumeclaims") || name.contains("storage"),
            Self::Devices => name.contains("resource.k8s.io") || name.starts_with("requests."),
            Self::Objects(served) => match number {
                Some(of) => of == served.group_resource(),
                None => served.group.is_empty() && name == served.plural,
            },
        }
    }
}

/// Reports whether informers of their own tell of a resource; of claims for devices where those are followed.
fn is_counted_elsewhere(group: &str, plural: &str, devices: bool) -> bool {
    match group {
        "" => matches!(plural, "pods" | "services" | "persistentvolumeclaims"),
        _ => devices && (group, plural) == ("resource.k8s.io", "resourceclaims"),
    }
}

/// Reports whether nobody can be held to the quota yet: its limits are not in its status, or their usage is not.
fn is_urgent(quota: &ResourceQuota) -> bool {
    let (spec, status) = (quota.spec.as_ref(), quota.status.as_ref());
    let (Some(hard), used) = (status.and_then(|s| s.hard.as_ref()), status.and_then(|s| s.used.as_ref())) else {
        return true;
    };
    let wanted = spec.and_then(|s| s.hard.as_ref());
    wanted.is_some_and(|wanted| wanted != hard) || hard.keys().any(|name| used.is_none_or(|u| !u.contains_key(name)))
}

/// Wakes the quotas of a namespace in which something went away.
fn replenisher(
    quotas: Store<ResourceQuota>,
    queue: Queue<Key>,
) -> impl Fn(&str, Counted<'_>) + Clone + Send + Sync + 'static {
    let changes = Arc::new(Passage::new("resource_quota_controller_resource_changes"));
    move |namespace: &str, counted: Counted<'_>| {
        let _under_way = changes.begin();
        let limits = |quota: &ResourceQuota| {
            let hard = quota.spec.as_ref().and_then(|s| s.hard.as_ref());
            hard.is_some_and(|hard| hard.keys().any(|name| counted.is_limited_by(name)))
        };
        for quota in quotas.list_namespace(namespace).iter().filter(|quota| limits(quota)) {
            queue.add(Key::of(&quota.metadata));
        }
    }
}

impl Quotas {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(quota) = self.quotas.get(&key.namespace, &key.name) else { return Ok(None) };
        let Some(spec) = quota.spec.as_ref() else { return Ok(None) };
        let hard = spec.hard.clone().unwrap_or_default();
        let now = clock::now();
        let mut sum = Usage::new();
        for pod in self.pods.list_namespace(&key.namespace).iter().filter(|p| usage::in_scope(spec, p)) {
            usage::add(&mut sum, &usage::pod(pod, now));
        }
        let in_scope = |c: &&Arc<PersistentVolumeClaim>| usage::claim_in_scope(spec, c, self.attributes);
        for claim in self.claims.list_namespace(&key.namespace).iter().filter(in_scope) {
            usage::add(&mut sum, &usage::claim(claim));
        }
        let scoped = usage::scoped(spec);
        if !scoped {
            for service in self.services.list_namespace(&key.namespace) {
                usage::add(&mut sum, &usage::service(&service));
            }
            let claims = self.devices.as_ref().map(|all| all.list_namespace(&key.namespace)).unwrap_or_default();
            let made = MadeForPods::among(&claims);
            for claim in &claims {
                usage::add(&mut sum, &self.device_claim(claim, &made, now));
            }
        }
        let mut used: Usage = hard
            .keys()
            .filter(|n| usage::tracked(n, self.classes.is_some()))
            .map(|n| (n.clone(), amount(&sum, n)))
            .collect();
        let mut failed = None;
        for name in hard.keys() {
            // What cannot be counted now does not keep the rest from being told.
            match self.count(&key.namespace, name, scoped).await {
                Ok(Some(n)) => drop(used.insert(name.clone(), Quantity::from_int(n, Format::DecimalSI))),
                Ok(None) => {}
                Err(e) => failed = Some(e),
            }
        }
        let old = quota.status.as_ref();
        let status = status(&hard, old.and_then(|s| s.used.as_ref()), &used);
        let done = || failed.map_or(Ok(None), Err);
        if old.is_some_and(|old| same(old, &status)) {
            return done();
        }
        let mut copy = ResourceQuota::clone(&quota);
        copy.status = Some(status);
        // Admission writes to the same status: on a conflict everything is counted anew.
        let Action::Update { path, body } = Action::update_status(&copy) else { return done() };
        match self.executor.rest.put(&path, &body).await {
            Err(e) if !e.not_found() => Err(e),
            _ => done(),
        }
    }

    /// Returns the usage of a claim of devices; `made` are those of its namespace that were made for pods.
    fn device_claim(&self, claim: &ResourceClaim, made: &MadeForPods<'_>, now: Timestamp) -> Usage {
        let mut used = devices::claim(claim);
        if let Some(classes) = &self.classes {
            let pod = devices::owner(claim)
                .and_then(|owner| self.pods.get(object::namespace(&claim.metadata), &owner.name))
                .filter(|pod| made.is(claim, pod))
                .map(|pod| usage::pod(&pod, now));
            let resource_of = |class: &str| classes.get("", class)?.spec.extended_resource_name.clone();
            devices::extend(&mut used, resource_of, &pod.unwrap_or_default());
        }
        used
    }

    /// The number of objects of the resource that a quota name means: none that a scope is about. None for resources
    /// counted otherwise, and for those that nobody serves.
    async fn count(&self, namespace: &str, name: &str, scoped: bool) -> Result<Option<i64>, RestError> {
        let (plural, group) = match name.strip_prefix("count/") {
            Some(rest) => rest.split_once('.').unwrap_or((rest, "")),
            None if PLAIN.contains(&name) => (name, ""),
            None => return Ok(None),
        };
        if is_counted_elsewhere(group, plural, self.devices.is_some()) {
            return Ok(None);
        }
        let catalogue = self.hub.catalogue();
        let Some(served) = catalogue.preferred.iter().find(|s| s.group == group && s.plural == plural && s.namespaced)
        else {
            return Ok(None);
        };
        if scoped {
            return Ok(Some(0));
        }
        let path = served.path(Some(namespace));
        let (mut pages, mut total) = (Pages::of(&self.executor.rest, &path, BRIEF_LIST), 0);
        while let Some(page) = pages.next::<IgnoredAny>().await? {
            total += page.items.len();
            if let Some(left) = page.remaining() {
                total += usize::try_from(left).unwrap_or(0);
                break;
            }
        }
        Ok(i64::try_from(total).ok())
    }
}

fn amount(sum: &Usage, name: &str) -> Quantity {
    sum.get(name).cloned().unwrap_or_else(|| Quantity::from_int(0, Format::DecimalSI))
}

/// The status with the usage of the resources that are limited. Of what is not tracked now there is what was told
/// before, if anything was.
#[must_use]
pub fn status(
    hard: &BTreeMap<String, Stored>,
    before: Option<&BTreeMap<String, Stored>>,
    used: &Usage,
) -> ResourceQuotaStatus {
    let told = |name: &String| {
        let amount = used.get(name).map(|q| Stored(q.to_string()));
        Some((name.clone(), amount.or_else(|| before?.get(name).cloned())?))
    };
    ResourceQuotaStatus { hard: Some(hard.clone()), used: Some(hard.keys().filter_map(told).collect()) }
}

fn same(a: &ResourceQuotaStatus, b: &ResourceQuotaStatus) -> bool {
    let eq = |a: Option<&BTreeMap<String, Stored>>, b: Option<&BTreeMap<String, Stored>>| {
        let read = |m: Option<&BTreeMap<String, Stored>>| -> BTreeMap<String, Option<Quantity>> {
            m.into_iter().flatten().map(|(k, q)| (k.clone(), Quantity::parse(&q.0).ok())).collect()
        };
        a.is_some() == b.is_some() && read(a) == read(b)
    };
    eq(a.hard.as_ref(), b.hard.as_ref()) && eq(a.used.as_ref(), b.used.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quota_is_counted_anew_for_what_it_limits() {
        let served =
            |group: &str, plural: &str| Served { group: group.into(), plural: plural.into(), ..Served::default() };
        let (maps, widgets) = (served("", "configmaps"), served("example.com", "widgets"));
        for (name, counted, expected) in [
            ("requests.cpu", Counted::Pods, true),
            ("count/pods", Counted::Pods, true),
            ("hugepages-2Mi", Counted::Pods, true),
            ("requests.example.com/gpu", Counted::Pods, true),
            ("count/configmaps", Counted::Pods, false),
            ("services.nodeports", Counted::Pods, false),
            ("services.nodeports", Counted::Services, true),
            ("count/services", Counted::Services, true),
            ("requests.storage", Counted::Claims, true),
            ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", Counted::Claims, true),
            ("requests.cpu", Counted::Claims, false),
            ("gpu.deviceclass.resource.k8s.io/devices", Counted::Devices, true),
            ("configmaps", Counted::Objects(&maps), true),
            ("count/configmaps", Counted::Objects(&maps), true),
            ("count/secrets", Counted::Objects(&maps), false),
            ("count/widgets.example.com", Counted::Objects(&widgets), true),
        ] {
            assert_eq!(counted.is_limited_by(name), expected, "{name}");
        }
    }

    #[test]
    fn who_does_not_wait() {
        for (spec, status, want) in [
            (json!({"pods": "1"}), json!(null), true),
            (json!({"pods": "1"}), json!({"hard": {"pods": "1"}}), true),
            (json!({"pods": "1"}), json!({"hard": {"pods": "1"}, "used": {"pods": "0"}}), false),
            (json!({"pods": "2"}), json!({"hard": {"pods": "1"}, "used": {"pods": "0"}}), true),
            (json!({"pods": "1", "cpu": "1"}), json!({"hard": {"pods": "1", "cpu": "1"}, "used": {"pods": "0"}}), true),
        ] {
            let quota = serde_json::from_value(json!({"spec": {"hard": spec}, "status": status})).expect("quota");
            assert_eq!(is_urgent(&quota), want, "{spec} {status}");
        }
    }

    #[test]
    fn only_limited_resources_are_reported() {
        let q = |s: &str| Stored(s.to_owned());
        let hard = BTreeMap::from([("pods".to_owned(), q("10")), ("requests.cpu".to_owned(), q("4"))]);
        let zero = Quantity::from_int(0, Format::DecimalSI);
        let sum = Usage::from([
            ("pods".to_owned(), Quantity::from_int(2, Format::DecimalSI)),
            ("requests.cpu".to_owned(), zero),
            ("secrets".to_owned(), Quantity::from_int(3, Format::DecimalSI)),
        ]);
        let got = status(&hard, None, &sum);
        assert_eq!(got.used, Some(BTreeMap::from([("pods".to_owned(), q("2")), ("requests.cpu".to_owned(), q("0"))])));
        let mut other = got.clone();
        other.used.get_or_insert_default().insert("requests.cpu".into(), q("0m"));
        assert!(same(&got, &other), "compared by value");
        let hard = BTreeMap::from(["bananas", "count/gone.example.com", "pods"].map(|n| (n.to_owned(), q("9"))));
        let before = BTreeMap::from([("count/gone.example.com".to_owned(), q("4")), ("pods".to_owned(), q("7"))]);
        let got = status(&hard, Some(&before), &sum).used.expect("used");
        let told: Vec<_> = got.iter().map(|(name, q)| (name.as_str(), q.0.as_str())).collect();
        assert_eq!(told, [("count/gone.example.com", "4"), ("pods", "2")], "nothing is known of the others");
    }
}
