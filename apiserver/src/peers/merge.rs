//! Discovery of all servers in one. Pure: what each of them says comes in as its groups (`APIGroupDiscovery`). Answers
//! for upstream's `pkg/util/peerproxy`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::machinery::tree;

/// An order that agrees with all lists: what one of them has before another thing is before it. What no list puts in
/// order stands by its name, and so does what they do not agree on.
fn agreed<'n>(lists: &[Vec<&'n str>]) -> Vec<&'n str> {
    let all: BTreeSet<&str> = lists.iter().flatten().copied().collect();
    if let Some(whole) = lists.iter().find(|list| list.len() == all.len()) {
        return whole.clone();
    }
    let mut after: BTreeMap<&str, BTreeSet<&str>> = all.iter().map(|name| (*name, BTreeSet::new())).collect();
    for pair in lists.iter().flat_map(|list| list.windows(2)).filter(|pair| pair[0] != pair[1]) {
        after.entry(pair[1]).or_default().insert(pair[0]);
    }
    let (mut left, mut order) = (all, Vec::new());
    while let Some(first) = left.first().copied() {
        let free = left.iter().copied().find(|name| after[name].iter().all(|before| !left.contains(before)));
        let next = free.unwrap_or(first);
        left.remove(next);
        order.push(next);
    }
    order
}

/// Lists of named things as one list. Of several of one name `join` makes one.
fn joined(lists: Vec<Vec<Value>>, name: fn(&Value) -> &str, join: fn(Value, Value) -> Value) -> Vec<Value> {
    let names: Vec<Vec<String>> =
        lists.iter().map(|list| list.iter().map(|item| name(item).to_owned()).collect()).collect();
    let borrowed: Vec<Vec<&str>> = names.iter().map(|list| list.iter().map(String::as_str).collect()).collect();
    let order = agreed(&borrowed);
    let mut items: BTreeMap<String, Value> = BTreeMap::new();
    for item in lists.into_iter().flatten() {
        let key = name(&item).to_owned();
        let item = match items.remove(&key) {
            Some(there) => join(there, item),
            None => item,
        };
        items.insert(key, item);
    }
    order.into_iter().filter_map(|name| items.remove(name)).collect()
}

pub(super) fn group_name(group: &Value) -> &str {
    tree::text(group, "/metadata/name")
}

fn list_of(value: &mut Value, field: &str) -> Vec<Value> {
    match value.get_mut(field).map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Both versions of a group: what is said of a resource last holds.
fn version(mut a: Value, mut b: Value) -> Value {
    let both = vec![list_of(&mut a, "resources"), list_of(&mut b, "resources")];
    a["resources"] = joined(both, |resource| tree::text(resource, "/resource"), |_, last| last).into();
    a
}

fn group(mut a: Value, mut b: Value) -> Value {
    let both = vec![list_of(&mut a, "versions"), list_of(&mut b, "versions")];
    a["versions"] = joined(both, |v| tree::text(v, "/version"), version).into();
    a
}

/// The groups of all servers, our own first.
pub(super) fn groups(all: Vec<Vec<Value>>) -> Vec<Value> {
    joined(all, group_name, group)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn orders_agree_with_all_lists() {
        for (lists, want) in [
            (&["a c", "c b"][..], "a c b"),
            (&["b a", "a b"], "b a"),
            (&["x a", "x b"], "x a b"),
            (&["b", "a"], "a b"),
            (&["a b", "b a c"], "b a c"),
            (&["a b", "b c", "c a"], "a b c"),
        ] {
            let lists: Vec<Vec<&str>> = lists.iter().map(|list| list.split(' ').collect()).collect();
            assert_eq!(agreed(&lists).join(" "), want, "{lists:?}");
        }
    }

    #[test]
    fn groups_versions_and_resources_are_joined() {
        let of = |name: &str, versions: &[(&str, &[&str])]| {
            let resources =
                |names: &[&str]| names.iter().map(|n| json!({"resource": n, "said": name})).collect::<Vec<_>>();
            let versions: Vec<Value> =
                versions.iter().map(|(v, r)| json!({"version": v, "resources": resources(r)})).collect();
            json!({"metadata": {"name": name}, "versions": versions})
        };
        let shown = |groups: &[Value]| -> Vec<String> {
            let parts = |group: &Value| {
                let versions = tree::list(group, "/versions").iter().map(|v| {
                    let names = tree::list(v, "/resources").iter().map(|r| tree::text(r, "/resource"));
                    format!("{}({})", tree::text(v, "/version"), names.collect::<Vec<_>>().join(","))
                });
                format!("{}:{}", group_name(group), versions.collect::<Vec<_>>().join(" "))
            };
            groups.iter().map(parts).collect()
        };
        let own = vec![of("apps", &[("v1", &["a", "c"])]), of("batch", &[("v1", &["jobs"])])];
        let other = vec![of("apps", &[("v2", &["a"]), ("v1", &["b", "c"])]), of("zoo", &[("v1", &["ants"])])];
        let merged = groups(vec![own, other]);
        assert_eq!(shown(&merged), ["apps:v2(a) v1(a,b,c)", "batch:v1(jobs)", "zoo:v1(ants)"]);
    }
}
