//! Families and addresses of a Service before anything is allocated: what a client left out and what can be told from
//! the rest, and what this cluster cannot give. Pure. Answers for upstream's `initIPFamilyFields`.

use proto::Value;
use serde_json::{Map, json};
use shared::address;
use shared::status::field::{Error, Path};

use crate::registry::core::service::{Spec, family, is_headless, needs_cluster_ip, strings, text};
use crate::validation;

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

fn reduced(spec: &Spec, old: &Spec, field: &str) -> bool {
    let now = strings(spec, field).len();
    now > 0 && now < strings(old, field).len()
}

fn same(spec: &Spec, old: &Spec, field: &str) -> bool {
    strings(spec, field) == strings(old, field)
}

/// A service that prefers two families and says nothing new stays as it is, whatever became of the cluster.
pub(super) fn is_settled(spec: &Spec, old: &Spec) -> bool {
    text(spec, "type") == text(old, "type")
        && [spec, old].into_iter().all(|spec| text(spec, "ipFamilyPolicy") == PREFER)
        && ["clusterIPs", "ipFamilies"].into_iter().all(|field| same(spec, old, field))
}

/// Completes a new or changed service; the first of `ours` is the family of those who name none.
///
/// # Errors
/// What is wrong with it, which is said before all else.
pub(super) fn complete(object: &mut Value, old: Option<&Spec>, ours: &[&'static str]) -> Result<(), Vec<Error>> {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if !needs_cluster_ip(spec) || old.is_some_and(|old| is_settled(spec, old)) {
        return Ok(());
    }
    let first = text(spec, "clusterIP").to_owned();
    if strings(spec, "clusterIPs").is_empty() && !first.is_empty() {
        spec.insert("clusterIPs".to_owned(), json!([first]));
    }
    if text(spec, "ipFamilyPolicy").is_empty() {
        let policy = match old.map(|old| text(old, "ipFamilyPolicy")).unwrap_or_default() {
            "" if is_open(spec) => REQUIRE,
            "" => SINGLE,
            before => before,
        };
        spec.insert("ipFamilyPolicy".to_owned(), Value::from(policy));
    }
    none_wrong(validation::service::addressed(object))?;
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    let mut wrong = Vec::new();
    if let Some(old) = old {
        released(spec, old, &mut wrong);
    }
    numbers_fit(spec, &mut wrong);
    infer(spec, ours, &mut wrong);
    none_wrong(wrong)?;
    if !is_open(spec) {
        none_wrong(not_ours(spec, ours))?;
    }
    fill(spec, ours);
    Ok(())
}

fn none_wrong(wrong: Vec<Error>) -> Result<(), Vec<Error>> {
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Headless and without a selector: somebody else says what is behind it, of whatever family.
fn is_open(spec: &Spec) -> bool {
    is_headless(spec) && spec.get("selector").and_then(Value::as_object).is_none_or(Map::is_empty)
}

fn policy_is_wrong(spec: &Spec, why: &str) -> Error {
    Error::invalid(Path::of(&["spec", "ipFamilyPolicy"]), text(spec, "ipFamilyPolicy"), why)
}

/// Releases the second family of a service that asks for `SingleStack`, with its address; dropping one without asking
/// for that is an error.
fn released(spec: &mut Spec, old: &Spec, wrong: &mut Vec<Error>) {
    let single = text(spec, "ipFamilyPolicy") == SINGLE;
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        if !single && reduced(spec, old, field) {
            wrong.push(policy_is_wrong(spec, &format!("must be 'SingleStack' to release the secondary {what}")));
        } else if single
            && same(spec, old, field)
            && let Some(list) = spec.get_mut(field).and_then(Value::as_array_mut)
        {
            list.truncate(1);
        }
    }
}

fn numbers_fit(spec: &Spec, wrong: &mut Vec<Error>) {
    let single = text(spec, "ipFamilyPolicy") == SINGLE;
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if single && strings(spec, field).len() == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            wrong.push(policy_is_wrong(spec, &why));
        }
    }
}

/// Addresses tell their families.
fn infer(spec: &mut Spec, ours: &[&'static str], wrong: &mut Vec<Error>) {
    if is_headless(spec) {
        return;
    }
    let (ips, mut families) = (strings(spec, "clusterIPs"), strings(spec, "ipFamilies"));
    for (i, ip) in ips.iter().enumerate().skip(families.len()) {
        let Some(family) = address::ip(ip).map(|ip| family(&ip)) else { continue };
        if ours.contains(&family) {
            families.push(family.to_owned());
        } else {
            let why = format!("{family} is not configured on this cluster");
            wrong.push(Error::invalid(Path::of(&["spec", "clusterIPs"]).index(i), json!(ips), &why));
        }
    }
    if !families.is_empty() {
        spec.insert("ipFamilies".to_owned(), json!(families));
    }
}

fn not_ours(spec: &Spec, ours: &[&'static str]) -> Vec<Error> {
    let mut wrong = Vec::new();
    if text(spec, "ipFamilyPolicy") == REQUIRE && ours.len() < 2 {
        wrong.push(policy_is_wrong(spec, "this cluster is not configured for dual-stack services"));
    }
    for (i, family) in strings(spec, "ipFamilies").iter().enumerate().filter(|(_, f)| !ours.contains(&f.as_str())) {
        let path = Path::of(&["spec", "ipFamilies"]).index(i);
        wrong.push(Error::invalid(path, family.as_str(), "not configured on this cluster"));
    }
    wrong
}

fn fill(spec: &mut Spec, ours: &[&'static str]) {
    let mut families = strings(spec, "ipFamilies");
    if families.is_empty() {
        families.push(ours.first().copied().unwrap_or("IPv4").to_owned());
    }
    if families.len() == 1 && text(spec, "ipFamilyPolicy") != SINGLE && (ours.len() == 2 || is_open(spec)) {
        families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
    }
    spec.insert("ipFamilies".to_owned(), json!(families));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[&str] = &["IPv4"];
    const TWO: &[&str] = &["IPv4", "IPv6"];

    fn spec(fields: &Value) -> Spec {
        let mut spec = json!({"type": "ClusterIP", "selector": {"a": "b"}});
        proto::merge::merge_patch::apply(&mut spec, fields.clone());
        spec.as_object().cloned().expect("an object")
    }

    fn completed(fields: &Value, old: Option<&Spec>, ours: &[&'static str]) -> Result<Spec, Vec<String>> {
        let mut object = json!({"spec": spec(fields)});
        let done = complete(&mut object, old, ours);
        done.map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Ok(object["spec"].as_object().cloned().unwrap_or_default())
    }

    #[test]
    fn missing_families_are_derived() {
        let both = ["IPv4", "IPv6"];
        let table: &[(Value, &[&'static str], &str, &[&str])] = &[
            (json!({}), ONE, SINGLE, &["IPv4"]),
            (json!({}), TWO, SINGLE, &["IPv4"]),
            (json!({"clusterIP": "fd00::1"}), TWO, SINGLE, &["IPv6"]),
            (json!({"ipFamilyPolicy": PREFER}), ONE, PREFER, &["IPv4"]),
            (json!({"ipFamilyPolicy": PREFER}), TWO, PREFER, &both),
            (json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": ["IPv6"]}), TWO, REQUIRE, &["IPv6", "IPv4"]),
            (json!({"clusterIP": "None"}), TWO, SINGLE, &["IPv4"]),
            (json!({"clusterIP": "None", "selector": null}), ONE, REQUIRE, &both),
        ];
        for (fields, ours, policy, families) in table {
            let done = completed(fields, None, ours).expect("fine");
            assert_eq!(
                (text(&done, "ipFamilyPolicy"), strings(&done, "ipFamilies").iter().map(String::as_str).collect()),
                (*policy, families.to_vec()),
                "{fields}"
            );
        }
        let elsewhere = json!({"type": "ExternalName", "clusterIP": "10.0.0.1"});
        assert_eq!(completed(&elsewhere, None, ONE), Ok(spec(&elsewhere)), "judged by others");
    }

    #[test]
    fn impossible_families_are_errors() {
        let policy = "spec.ipFamilyPolicy: Invalid value: ";
        type Row<'a> = (Value, Option<Value>, &'a [&'static str], &'a [String]);
        let table: &[Row<'_>] = &[
            (
                json!({"ipFamilyPolicy": REQUIRE}),
                None,
                ONE,
                &[format!("{policy}\"RequireDualStack\": this cluster is not configured for dual-stack services")],
            ),
            (
                json!({"ipFamilies": ["IPv6"]}),
                None,
                ONE,
                &["spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster".to_owned()],
            ),
            (
                json!({"clusterIP": "fd00::1"}),
                None,
                ONE,
                &["spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster"
                    .to_owned()],
            ),
            (
                json!({"ipFamilies": ["IPv4", "IPv6"]}),
                None,
                TWO,
                &[format!(
                    "{policy}\"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
                )],
            ),
            (
                json!({"ipFamilyPolicy": PREFER, "ipFamilies": ["IPv4"]}),
                Some(json!({"ipFamilyPolicy": PREFER, "ipFamilies": ["IPv4", "IPv6"]})),
                TWO,
                &[format!("{policy}\"PreferDualStack\": must be 'SingleStack' to release the secondary IP family")],
            ),
        ];
        for (fields, old, ours, want) in table {
            let old = old.as_ref().map(spec);
            assert_eq!(completed(fields, old.as_ref(), ours), Err(want.to_vec()), "{fields}");
        }
    }

    #[test]
    fn single_stack_update_releases_the_second_family() {
        let two =
            json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::9"], "ipFamilies": ["IPv4", "IPv6"]});
        let with = |policy: &str| {
            let mut fields = two.clone();
            fields["ipFamilyPolicy"] = json!(policy);
            fields
        };
        for (old, new, left) in [(REQUIRE, SINGLE, 1), (PREFER, SINGLE, 1), (PREFER, REQUIRE, 2), (PREFER, PREFER, 2)] {
            // Even where the cluster has but one family by now.
            let ours = if new == PREFER { ONE } else { TWO };
            let done = completed(&with(new), Some(&spec(&with(old))), ours).expect("fine");
            assert_eq!(
                [strings(&done, "clusterIPs").len(), strings(&done, "ipFamilies").len()],
                [left, left],
                "{old} {new}"
            );
        }
    }
}
