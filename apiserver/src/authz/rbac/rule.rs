//! One policy rule: which requests it allows, and which other rules it covers.
//!
//! Pure data and comparisons; answers for upstream's RBAC evaluation helpers.

use std::collections::HashMap;

use serde_json::Value;
use shared::authz::Attributes;
use shared::status::go_quote;

use crate::machinery::tree;

/// Most atoms that rules are split into: four lists of a body's size have more than there is memory.
const MOST_ATOMS: usize = 100_000;

/// A policy rule of a Role or ClusterRole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Verbs, or `*`.
    pub verbs: Vec<String>,
    /// API groups, or `*`.
    pub api_groups: Vec<String>,
    /// Resources, `resource/subresource`, `*/subresource` or `*`.
    pub resources: Vec<String>,
    /// Object names; empty means all.
    pub resource_names: Vec<String>,
    /// URL paths, a trailing `*` matching any rest.
    pub non_resource_urls: Vec<String>,
}

/// The resources a role's rules may be about, as a set of hashes: most roles can be passed over at a glance.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Reach(u64);

impl Reach {
    /// Matches everything.
    pub const ALL: Reach = Reach(u64::MAX);
    /// URLs that are no resources.
    const URLS: u64 = 1 << 63;
    const RESOURCES: u64 = Self::URLS - 1;

    fn bit(resource: &str) -> u64 {
        // FNV-1a: short names, no key needed, as a wrong guess only costs a comparison.
        let hash = resource
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        1 << ((hash >> 32) % 63)
    }

    /// Of a role's rules.
    pub fn of(rules: &[Rule]) -> Reach {
        let mut bits = 0;
        for rule in rules {
            if !rule.non_resource_urls.is_empty() {
                bits |= Self::URLS;
            }
            for resource in &rule.resources {
                let plain = resource.split('/').next().unwrap_or("");
                bits |= if plain == "*" { Self::RESOURCES } else { Self::bit(plain) };
            }
        }
        Reach(bits)
    }

    /// Of a request.
    pub fn wanted(request: &Attributes) -> Reach {
        Reach(if request.resource_request { Self::bit(&request.resource) } else { Self::URLS })
    }

    /// Reports whether two reaches intersect.
    pub fn meets(self, other: Reach) -> bool {
        self.0 & other.0 != 0
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|v| v == wanted)
}

fn has_or_star(list: &[String], wanted: &str) -> bool {
    list.iter().any(|v| v == "*" || v == wanted)
}

fn has_all(list: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|w| has(list, w))
}

fn url_covers(pattern: &str, url: &str) -> bool {
    pattern == url || (pattern.ends_with('*') && url.starts_with(pattern.trim_end_matches('*')))
}

impl Rule {
    /// Reads a rule from its tree.
    pub fn from_value(value: &Value) -> Rule {
        Rule {
            verbs: tree::strings(value, "/verbs"),
            api_groups: tree::strings(value, "/apiGroups"),
            resources: tree::strings(value, "/resources"),
            resource_names: tree::strings(value, "/resourceNames"),
            non_resource_urls: tree::strings(value, "/nonResourceURLs"),
        }
    }

    /// Reads the `rules` of a Role or ClusterRole.
    pub fn list_of(role: &Value) -> Vec<Rule> {
        tree::list(role, "/rules").iter().map(Rule::from_value).collect()
    }

    /// Reports whether the rule allows the request.
    pub fn allows(&self, request: &Attributes) -> bool {
        if !has_or_star(&self.verbs, &request.verb) {
            return false;
        }
        if !request.resource_request {
            return self.non_resource_urls.iter().any(|p| p == "*" || url_covers(p, &request.path));
        }
        has_or_star(&self.api_groups, &request.api_group)
            && self.allows_resource(&request.resource, &request.subresource)
            && (self.resource_names.is_empty() || has(&self.resource_names, &request.name))
    }

    fn allows_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            if rule == "*" {
                return true;
            }
            if subresource.is_empty() {
                return rule == resource;
            }
            match rule.split_once('/') {
                Some((r, s)) => s == subresource && (r == "*" || r == resource),
                None => false,
            }
        })
    }

    /// Number of atoms.
    fn size(&self) -> usize {
        let lists = [&self.api_groups, &self.resources, &self.verbs].map(Vec::len);
        let on_resources = lists.iter().fold(self.resource_names.len().max(1), |n, more| n.saturating_mul(*more));
        on_resources.saturating_add(self.non_resource_urls.len().saturating_mul(self.verbs.len()))
    }

    /// Splits the rule into rules of one verb on one resource (and name) or one URL.
    fn atoms(&self) -> Vec<Rule> {
        let mut atoms = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom = |names: Vec<String>| Rule {
                        verbs: vec![verb.clone()],
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        resource_names: names,
                        non_resource_urls: Vec::new(),
                    };
                    if self.resource_names.is_empty() {
                        atoms.push(atom(Vec::new()));
                    } else {
                        atoms.extend(self.resource_names.iter().map(|n| atom(vec![n.clone()])));
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            for verb in &self.verbs {
                atoms.push(Rule { verbs: vec![verb.clone()], non_resource_urls: vec![url.clone()], ..Rule::default() });
            }
        }
        atoms
    }

    /// Reports whether this rule alone grants everything that `other` grants.
    pub fn covers(&self, other: &Rule) -> bool {
        let set = |own: &[String], sub: &[String]| has(own, "*") || has_all(own, sub);
        let resources = has(&self.resources, "*")
            || other.resources.iter().all(|wanted| {
                has(&self.resources, wanted)
                    || wanted.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
            });
        let names = if other.resource_names.is_empty() {
            self.resource_names.is_empty()
        } else {
            self.resource_names.is_empty() || has_all(&self.resource_names, &other.resource_names)
        };
        let urls = other.non_resource_urls.iter().all(|url| self.non_resource_urls.iter().any(|p| url_covers(p, url)));
        set(&self.verbs, &other.verbs) && set(&self.api_groups, &other.api_groups) && resources && names && urls
    }

    /// The short form used in messages: only the lists that have entries.
    pub fn describe(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted_list(list)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// Go's `%q` of a list of strings: `["a" "b"]`.
pub fn quoted_list<S: AsRef<str>>(list: &[S]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| go_quote(s.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

/// Atoms of `wanted` that no rule of `held` covers. Lists with too many atoms are compared as whole rules: then one
/// rule has to cover all that another grants.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let size = wanted.iter().fold(0_usize, |size, rule| size.saturating_add(rule.size()));
    let split = |rule: &Rule| if size > MOST_ATOMS { vec![rule.clone()] } else { rule.atoms() };
    wanted.iter().flat_map(split).filter(|atom| !held.iter().any(|own| own.covers(atom))).collect()
}

/// Merges rules on the same single resource (and name) by joining their verbs.
pub fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut merged: Vec<Rule> = Vec::new();
    let mut places: HashMap<(String, String, Option<String>), usize> = HashMap::new();
    for rule in rules {
        let place = match (&*rule.api_groups, &*rule.resources, &*rule.resource_names) {
            ([group], [resource], names @ ([] | [_])) if rule.non_resource_urls.is_empty() => {
                let about = (group.clone(), resource.clone(), names.first().cloned());
                *places.entry(about).or_insert(merged.len())
            }
            _ => merged.len(),
        };
        match merged.get_mut(place) {
            Some(twin) => twin.verbs.extend(rule.verbs),
            None => merged.push(rule),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &str) -> Vec<String> {
        list.split_whitespace().map(|w| if w == "core" { String::new() } else { w.to_owned() }).collect()
    }

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str, urls: &str) -> Rule {
        Rule {
            verbs: words(verbs),
            api_groups: words(groups),
            resources: words(resources),
            resource_names: words(names),
            non_resource_urls: words(urls),
        }
    }

    fn on(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.into(),
            api_group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            resource_request: true,
            ..Attributes::default()
        }
    }

    fn at(verb: &str, path: &str) -> Attributes {
        Attributes { verb: verb.into(), path: path.into(), ..Attributes::default() }
    }

    #[test]
    fn rules_match_requests() {
        let all = rule("*", "*", "*", "", "");
        let pods = rule("get list", "core", "pods", "", "");
        let named = rule("get", "core", "secrets", "a b", "");
        let log = rule("get", "core", "pods/log", "", "");
        let scale = rule("update", "*", "*/scale", "", "");
        let urls = rule("get", "", "", "", "/healthz/* /version");
        let any_url = rule("*", "", "", "", "*");
        let table: &[(&Rule, Attributes, bool)] = &[
            (&all, on("delete", "apps", "deployments", "x"), true),
            (&all, on("get", "", "pods/log", "x"), true),
            (&all, at("get", "/version"), false),
            (&pods, on("list", "", "pods", ""), true),
            (&pods, on("watch", "", "pods", ""), false),
            (&pods, on("get", "apps", "pods", ""), false),
            (&pods, on("get", "", "pods/log", "x"), false),
            (&named, on("get", "", "secrets", "b"), true),
            (&named, on("get", "", "secrets", "c"), false),
            (&named, on("get", "", "secrets", ""), false),
            (&log, on("get", "", "pods/log", "x"), true),
            (&log, on("get", "", "pods", "x"), false),
            (&scale, on("update", "apps", "deployments/scale", "x"), true),
            (&scale, on("update", "apps", "deployments", "x"), false),
            (&urls, at("get", "/healthz/etcd"), true),
            (&urls, at("get", "/healthz"), false),
            (&urls, at("get", "/version"), true),
            (&urls, at("post", "/version"), false),
            (&any_url, at("post", "/metrics"), true),
        ];
        for (rule, request, wanted) in table {
            assert_eq!(rule.allows(request), *wanted, "{rule:?} on {request:?}");
            let reaches = Reach::of(std::slice::from_ref(*rule)).meets(Reach::wanted(request));
            assert!(reaches || !wanted, "{rule:?} was passed over for {request:?}");
        }
    }

    #[test]
    fn oversized_rules_are_compared_as_a_whole() {
        let many = |what: &str| (0..100_000).map(|n| format!("{what}{n}")).collect::<Vec<_>>();
        let large = Rule {
            verbs: many("v"),
            api_groups: many("g"),
            resources: many("r"),
            resource_names: many("n"),
            non_resource_urls: Vec::new(),
        };
        assert_eq!(missing(&[rule("get", "core", "pods", "", "")], std::slice::from_ref(&large)).len(), 1);
        assert!(missing(&[rule("*", "*", "*", "", "")], &[large]).is_empty());
    }

    #[test]
    fn missing_permissions_are_found() {
        let held = [rule("get list watch", "core", "pods", "", ""), rule("*", "apps", "*", "", "")];
        let lacks =
            |wanted: Rule| -> Vec<String> { compact(missing(&held, &[wanted])).iter().map(Rule::describe).collect() };
        assert!(lacks(rule("get", "core", "pods", "", "")).is_empty());
        assert!(lacks(rule("get", "core", "pods", "x", "")).is_empty());
        assert!(lacks(rule("delete", "apps", "deployments/scale", "", "")).is_empty());
        assert_eq!(
            lacks(rule("get create delete", "core", "pods services", "", "")),
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["create" "delete"]}"#,
                r#"{APIGroups:[""], Resources:["services"], Verbs:["get" "create" "delete"]}"#
            ]
        );
        assert_eq!(lacks(rule("get", "", "", "", "/metrics")), [r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#]);
        let named = [rule("get", "core", "secrets", "a", "")];
        assert_eq!(missing(&named, &[rule("get", "core", "secrets", "", "")]).len(), 1);
        let scale = [rule("get", "core", "*/scale", "", "")];
        assert!(missing(&scale, &[rule("get", "core", "pods/scale", "", "")]).is_empty());
    }
}
