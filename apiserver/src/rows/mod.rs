//! The rows served now: those that are compiled in, as they were chosen at start, and those of custom resources, which
//! come and go.
//!
//! One port for everybody who asks what is served (routing, discovery, caches, admission, in-process writes). Readers
//! take a snapshot and never wait; the one writer is the controller of custom resource definitions. Which compiled-in
//! rows are served and in which version they are stored `registry` chooses by flags and gates ([`ResourceConfig`]). Must
//! not know what is particular about a kind.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};

use arc_swap::ArcSwap;
use base64::Engine as _;
use proto::resources::{self, Resource, Row};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use crate::machinery::GroupResource;

/// Difference from the resources that are served by default.
#[derive(Debug, Default)]
pub struct ResourceConfig {
    /// Rows that are served as well, in discovery order.
    pub on: Vec<&'static Resource>,
    /// Rows that are not.
    pub off: Vec<&'static Resource>,
    /// Rows, served or not, in the place of those that are compiled in: what is stored differs.
    pub stored: Vec<Row>,
}

/// Rows of custom resources by group and plural, versions best first.
type Table = BTreeMap<(Box<str>, Box<str>), Arc<[Row]>>;

/// A handle on the rows; clones share them.
#[derive(Clone, Default)]
pub struct Rows {
    choice: Arc<ResourceConfig>,
    defined: Arc<ArcSwap<Table>>,
    generation: Arc<AtomicU64>,
    news: Arc<Notify>,
}

impl Rows {
    /// With compiled-in rows as they were chosen.
    pub fn of(choice: ResourceConfig) -> Self {
        Self { choice: Arc::new(choice), ..Self::default() }
    }

    /// A compiled-in row as this server has it.
    fn ours(&self, row: &'static Resource) -> Row {
        let same = |r: &&Row| r.plural == row.plural && r.group == row.group && r.version == row.version;
        self.choice.stored.iter().find(same).cloned().unwrap_or(Row::Static(row))
    }

    fn is_on(&self, row: &Resource) -> bool {
        !self.choice.off.iter().any(|off| std::ptr::eq(*off, row))
    }

    /// A row by group, version and plural.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Row> {
        if let Some(row) = resources::find(group, version, plural) {
            return self.is_on(row).then(|| self.ours(row));
        }
        let more = |r: &&&Resource| r.plural == plural && r.group == group && r.version == version;
        if let Some(row) = self.choice.on.iter().find(more) {
            return Some(self.ours(row));
        }
        self.defined_resource(group, plural)?.iter().find(|r| r.version == version).cloned()
    }

    /// A row by group, version and kind.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<Row> {
        if let Some(row) = resources::find_kind(group, version, kind) {
            return self.is_on(row).then(|| self.ours(row));
        }
        let more = |r: &&&Resource| r.kind == kind && r.group == group && r.version == version;
        if let Some(row) = self.choice.on.iter().find(more) {
            return Some(self.ours(row));
        }
        let table = self.defined.load();
        of_group(&table, group).flat_map(|rows| rows.iter()).find(|r| r.version == version && r.kind == kind).cloned()
    }

    /// The row in whose version objects are kept, whatever versions are served: the server's own parts need some that
    /// are not.
    pub fn storage(&self, resource: GroupResource<'_>) -> Option<Row> {
        let same = |r: &&Resource| GroupResource::of(r) == resource;
        match resources::all().iter().find(same).or_else(|| self.choice.on.iter().copied().find(same)) {
            Some(row) => Some(self.ours(row).storage()),
            None => self.defined_storage(resource),
        }
    }

    /// Storage row of a custom resource.
    pub fn defined_storage(&self, resource: GroupResource<'_>) -> Option<Row> {
        self.defined_resource(resource.group, resource.plural)?.first().map(Row::storage)
    }

    /// True when a group that does not come from a definition is served.
    pub fn is_built_in(&self, group: &str) -> bool {
        let built_in = resources::all().iter().any(|row| row.group == group && self.is_on(row));
        built_in || self.choice.on.iter().any(|row| row.group == group)
    }

    /// Every row: the compiled-in ones in discovery order, then custom resources by group, version (best first) and
    /// plural.
    pub fn all(&self) -> Vec<Row> {
        self.built_in().chain(self.defined()).collect()
    }

    /// The compiled-in rows that are served, in discovery order.
    pub fn built_in(&self) -> impl Iterator<Item = Row> + '_ {
        self.types().map(|row| self.ours(row))
    }

    /// Rows for readers that do not depend on the storage version.
    pub fn types(&self) -> impl Iterator<Item = &'static Resource> + '_ {
        resources::all().iter().filter(|row| self.is_on(row)).chain(self.choice.on.iter().copied())
    }

    /// The rows of custom resources alone, ordered as in [`all`](Self::all).
    pub fn defined(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.defined.load().values().flat_map(|r| r.iter().cloned()).collect();
        // Most rows are in order, and of one version.
        rows.sort_by(|a, b| {
            let version = || match a.version == b.version {
                true => Ordering::Equal,
                false => version_rank(&a.version).cmp(&version_rank(&b.version)),
            };
            a.group.cmp(&b.group).then_with(version).then_with(|| a.plural.cmp(&b.plural))
        });
        rows
    }

    /// The rows of custom resources in one group, in no particular order.
    pub fn custom_group(&self, group: &str) -> Vec<Row> {
        of_group(&self.defined.load(), group).flat_map(|rows| rows.iter().cloned()).collect()
    }

    /// Goes up with every change.
    pub fn generation(&self) -> u64 {
        self.generation.load(atomic::Ordering::Acquire)
    }

    /// Waits until the generation is another one than `since`.
    pub async fn changed(&self, since: u64) {
        loop {
            let news = self.news.notified();
            if self.generation() != since {
                return;
            }
            news.await;
        }
    }

    /// Serves these versions of a custom resource from now on; none: serves it no more.
    pub fn set(&self, group: &str, plural: &str, rows: &[Row]) {
        let rows: Arc<[Row]> = rows.into();
        self.defined.rcu(|table| {
            let mut table = Table::clone(table);
            let key = (group.into(), plural.into());
            if rows.is_empty() {
                table.remove(&key);
            } else {
                table.insert(key, rows.clone());
            }
            table
        });
        self.generation.fetch_add(1, atomic::Ordering::AcqRel);
        self.news.notify_waiters();
    }

    fn defined_resource(&self, group: &str, plural: &str) -> Option<Arc<[Row]>> {
        self.defined.load().get(&(group.into(), plural.into())).cloned()
    }
}

fn of_group<'t>(table: &'t Table, group: &str) -> impl Iterator<Item = &'t Arc<[Row]>> {
    let start: (Box<str>, Box<str>) = (group.into(), "".into());
    let group: Box<str> = group.into();
    table.range(start..).take_while(move |((g, _), _)| *g == group).map(|(_, rows)| rows)
}

/// Reports whether a group is built in.
pub fn builtin_group(group: &str) -> bool {
    resources::all().iter().any(|r| r.group == group)
}

/// A compiled-in row of a resource, whatever is served.
pub fn compiled(group: &str, plural: &str) -> Option<&'static Resource> {
    let mut rows = resources::all().iter().chain(resources::optional());
    rows.find(|r| r.group == group && r.plural == plural)
}

/// The row of a compiled-in resource in whose version objects are kept, for any group and plural it is served under.
/// For those who have no server: what that stores may differ.
pub fn builtin(group: &str, plural: &str) -> Option<Row> {
    let any = resources::all().iter().find(|r| r.group == group && r.plural == plural)?;
    Some(Row::from(any).storage())
}

/// The hash legacy discovery names a stored version by.
pub fn storage_hash(group: &str, version: &str, kind: &str) -> String {
    let digest = Sha256::digest(format!("{group}/{version}/{kind}"));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// Sorts versions as clients prefer them: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, then all other names.
pub fn version_rank(version: &str) -> (u8, std::cmp::Reverse<u64>, std::cmp::Reverse<u64>, String) {
    use std::cmp::Reverse;
    let number = |text: &str| -> Option<u64> {
        (!text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let known = || {
        let rest = version.strip_prefix('v')?;
        if let Some(major) = number(rest) {
            return Some((0, Reverse(major), Reverse(0)));
        }
        [(1, "beta"), (2, "alpha")].into_iter().find_map(|(rank, word)| {
            let (major, minor) = rest.split_once(word)?;
            Some((rank, Reverse(number(major)?), Reverse(number(minor)?)))
        })
    };
    match known() {
        Some((rank, major, minor)) => (rank, major, minor, String::new()),
        None => (3, Reverse(0), Reverse(0), version.to_owned()),
    }
}

/// `pods` or `deployments.apps`: the resource as error messages name it.
pub fn qualified(row: &Resource) -> String {
    if row.group.is_empty() { row.plural.to_string() } else { format!("{}.{}", row.plural, row.group) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::resources::Custom;

    fn row(group: &str, version: &str, plural: &str) -> Row {
        let mut row: Resource = resources::find("", "v1", "configmaps").expect("row").clone();
        row.group = group.to_owned().into();
        row.version = version.to_owned().into();
        row.plural = plural.to_owned().into();
        let schema = Arc::new(proto::schema::kind("", "v1", "ConfigMap").expect("a type").clone());
        row.custom = Some(Custom { schema: schema.clone(), list_schema: schema, behind: Arc::new(()) });
        Row::from(Arc::new(row))
    }

    #[test]
    fn rows_are_added_and_removed() {
        let rows = Rows::default();
        let built_in = rows.all().len();
        rows.set("ex.com", "bars", &[row("ex.com", "v1", "bars"), row("ex.com", "v1beta1", "bars")]);
        rows.set("ex.com", "foos", &[row("ex.com", "v2", "foos")]);
        rows.set("ex.com.au", "bars", &[row("ex.com.au", "v1", "bars")]);
        let names: Vec<String> =
            rows.all()[built_in..].iter().map(|r| format!("{}/{}/{}", r.group, r.version, r.plural)).collect();
        assert_eq!(names, ["ex.com/v2/foos", "ex.com/v1/bars", "ex.com/v1beta1/bars", "ex.com.au/v1/bars"]);
        assert!(rows.find("ex.com", "v1beta1", "bars").is_some() && rows.find("ex.com", "v1", "foos").is_none());
        assert!(rows.is_built_in("apps") && !rows.is_built_in("ex.com"));
        assert_eq!(rows.custom_group("ex.com").len(), 3);
        rows.set("ex.com.au", "bars", &[]);
        assert!(rows.find("ex.com.au", "v1", "bars").is_none());
        assert_eq!(rows.generation(), 4);
    }

    #[test]
    fn versions_sort_as_clients_prefer_them() {
        let mut versions = ["foo1", "v1alpha2", "v2", "v10", "v1beta1", "v11beta2", "v01", "v1", "foo10"];
        versions.sort_by_key(|v| version_rank(v));
        assert_eq!(versions, ["v10", "v2", "v1", "v11beta2", "v1beta1", "v1alpha2", "foo1", "foo10", "v01"]);
    }
}
