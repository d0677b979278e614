//! Values that earlier releases allowed in pods: stored objects that use one may keep it.

use proto::Value;
use shared::status::field::Path;

use super::{annotations, placement, resources, security};
use crate::rules::names::label_value;
use crate::rules::options::FieldErrors;
use crate::rules::tree::{at, entries, get, list, text, texts};
use crate::validation::selectors::label_selector;
use crate::validation::volume::local_path;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn wrong(judge: impl FnOnce(&Path, &mut FieldErrors)) -> bool {
    let mut out = FieldErrors::default();
    judge(&Path::new(""), &mut out);
    !out.is_empty()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|kind| list(spec, kind))
}

/// Costs of deletion that are no numbers.
pub(in crate::validation) fn has_invalid_deletion_cost(metadata: &Value) -> bool {
    !annotations::costs_a_number(metadata)
}

/// Huge pages in parts, of containers or of what the sandbox costs.
pub(in crate::validation) fn has_indivisible_huge_pages(spec: &Value) -> bool {
    let parts = |holder: &Value, key: &str| entries(holder, key).any(|(name, value)| !resources::divides(name, value));
    let asks = |c: &Value| ["limits", "requests"].iter().any(|key| parts(get(c, "resources"), key));
    containers(spec).any(asks) || parts(spec, "overhead")
}

/// Other pods, by values that no label has.
pub(in crate::validation) fn has_invalid_selectors(spec: &Value) -> bool {
    let odd = |term: &Value| wrong(|path, out| placement::selectors(term, true, path, out));
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let terms = at(spec, &["affinity", kind]);
        list(terms, REQUIRED).iter().any(odd)
            || list(terms, PREFERRED).iter().any(|weighted| odd(get(weighted, "podAffinityTerm")))
    })
}

fn has_invalid_label_values(node_selector: &Value) -> bool {
    let expressions = |term| list(term, "matchExpressions").iter().flat_map(|r| texts(r, "values"));
    list(node_selector, "nodeSelectorTerms").iter().flat_map(expressions).any(|value| !label_value(value).is_empty())
}

/// Nodes, by values that no label has.
pub(in crate::validation) fn requires_invalid_label_values(spec: &Value) -> bool {
    has_invalid_label_values(at(spec, &["affinity", "nodeAffinity", REQUIRED]))
}

/// Reports whether the node affinity of a persistent volume has invalid label values.
pub(crate) fn has_invalid_node_affinity(spec: &Value) -> bool {
    has_invalid_label_values(at(spec, &["nodeAffinity", "required"]))
}

/// Pods to be spread among, by selectors that are wrong in any way.
pub(in crate::validation) fn has_invalid_spread_selectors(spec: &Value) -> bool {
    let odd = |c: &Value| wrong(|path, out| label_selector(get(c, "labelSelector"), path, out));
    list(spec, "topologySpreadConstraints").iter().any(odd)
}

/// Reports whether a topology spread constraint has invalid `matchLabelKeys`.
pub(in crate::validation) fn has_invalid_spread_keys(spec: &Value) -> bool {
    let odd = |c: &Value| wrong(|path, out| placement::label_keys(c, path, out));
    list(spec, "topologySpreadConstraints").iter().any(odd)
}

/// Reports whether `matchLabelKeys` are invalid where they are not merged into the selector.
pub(in crate::validation) fn has_invalid_legacy_spread_keys(spec: &Value) -> bool {
    let odd = |c: &Value| wrong(|path, out| placement::unmerged_keys(c, path, out));
    list(spec, "topologySpreadConstraints").iter().any(odd)
}

/// Tokens that lead out of their volume.
pub(in crate::validation) fn has_non_local_token_paths(spec: &Value) -> bool {
    let sources = list(spec, "volumes").iter().flat_map(|v| list(get(v, "projected"), "sources"));
    let mut targets = sources.map(|source| text(get(source, "serviceAccountToken"), "path"));
    targets.any(|target| wrong(|path, out| local_path(target, path, out)))
}

/// Sysctls of what is shared with the host.
pub(in crate::validation) fn has_host_namespaced_sysctls(spec: &Value) -> bool {
    let sysctls = list(get(spec, "securityContext"), "sysctls");
    sysctls.iter().any(|sysctl| security::of_the_host(text(sysctl, "name"), spec).is_some())
}

/// Block devices where users are not those of the host.
pub(in crate::validation) fn has_volume_devices_with_user_namespaces(spec: &Value) -> bool {
    get(spec, "hostUsers") == &Value::Bool(false) && containers(spec).any(|c| !list(c, "volumeDevices").is_empty())
}
