//! Ranges on a disk of their own.

use super::*;
use serde_json::json;

fn pod(uid: &str, host_users: Option<bool>) -> Pod {
    let mut pod: Pod =
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"containers": []}})).expect("pod");
    pod.spec.as_mut().expect("spec").host_users = host_users;
    pod
}

fn range(first: u32, ranges: u32) -> IdRange {
    IdRange { first, length: ranges * UNIT }
}

fn able() -> Handlers {
    Some([("", true), ("old", false)].map(|(name, able)| (name.to_owned(), able)).into())
}

fn of(namespaces: &UserNamespaces, uid: &str) -> Result<(u32, u32), NamespaceError> {
    let found = mappings(Some(namespaces), &pod(uid, Some(false)), "", &able())?.expect("a namespace");
    assert_eq!((found.mode(), &found.uids), (v1::NamespaceMode::Pod, &found.gids));
    let [v1::IdMapping { host_id, container_id: 0, length }] = found.uids[..] else { panic!("{found:?}") };
    Ok((host_id, length))
}

#[test]
fn pods_have_ranges_of_their_own_over_restarts_until_they_are_released() {
    let root = tempfile::tempdir().expect("folder");
    let start = || UserNamespaces::new(root.path(), range(2 * UNIT, 3), None, 3).expect("enough");
    let namespaces = start();
    let mut given = ["a", "b", "c"].map(|uid| of(&namespaces, uid).expect("a range"));
    assert_eq!(of(&namespaces, "a").expect("a range"), given[0], "the same again");
    let error = of(&namespaces, "d").expect_err("none is left");
    assert_eq!(error.to_string(), "create user namespace: could not find an empty slot to allocate a user namespace");
    let again = start();
    assert_eq!(["a", "b", "c"].map(|uid| of(&again, uid).expect("a range")), given);
    again.release("b");
    assert!(!root.path().join("pods/b/userns").exists());
    assert_eq!(of(&again, "d").expect("a range"), given[1], "the one that was given back");
    again.retain(|uid| uid == "a");
    assert_eq!(again.allocations.lock().by_pod.keys().collect::<Vec<_>>(), ["a"]);
    given.sort_unstable();
    assert_eq!(given, [2, 3, 4].map(|number| (number * UNIT, UNIT)));
}

#[test]
fn the_file_is_upstreams() {
    let root = tempfile::tempdir().expect("folder");
    let namespaces = UserNamespaces::new(root.path(), range(UNIT, 1), None, 1).expect("enough");
    of(&namespaces, "a").expect("a range");
    let text = fs::read_to_string(root.path().join("pods/a/userns")).expect("a file");
    let mapping = r#"[{"hostId":65536,"containerId":0,"length":65536}]"#;
    assert_eq!(text, format!("{{\"uidMappings\":{mapping},\"gidMappings\":{mapping}}}"));
}

#[test]
fn ranges_have_to_fit_the_configuration() {
    let root = tempfile::tempdir().expect("folder");
    let new = |ids: IdRange, per_pod: Option<i64>, pods: i64| {
        let found = UserNamespaces::new(root.path(), ids, per_pod, pods);
        found.map(|namespaces| (namespaces.first, namespaces.count)).map_err(|error| error.to_string())
    };
    let ids = |first: u32, length: u32| IdRange { first, length };
    assert_eq!(new(IdRange::ALL, None, 110), Ok((1, 65535)));
    assert_eq!(new(IdRange::ALL, Some(131_072), 110), Ok((1, 32767)));
    for (found, text) in [
        (new(ids(1, UNIT), None, 1), "kubelet user assigned ID 1 is not a multiple of 65536"),
        (new(ids(0, UNIT), None, 1), "kubelet user assigned ID 0 must be greater or equal to 65536"),
        (new(ids(UNIT, 1), None, 1), "kubelet user assigned IDs length 1 is not a multiple of 65536"),
        (new(ids(UNIT, UNIT), None, 2), "kubelet user assigned IDs are not enough to support 2 pods"),
        (new(IdRange::ALL, Some(1000), 1), "kubelet user namespace length 1000 is not a multiple of 65536"),
    ] {
        assert_eq!(found, Err(text.to_owned()));
    }
}

#[test]
fn what_pods_have_on_the_disk_is_checked() {
    let mapping =
        |host: u32, inside: u32, length: u32| json!([{"hostId": host, "containerId": inside, "length": length}]);
    let one = mapping(UNIT, 0, UNIT);
    for (uids, gids, text) in [
        (json!([]), json!([]), "no more than one mapping allowed."),
        (one.clone(), json!([]), "GID and UID mappings should be identical."),
        (one.clone(), mapping(2 * UNIT, 0, UNIT), "GID and UID mapping should be identical"),
        (mapping(UNIT, 1, UNIT), mapping(UNIT, 1, UNIT), "UID 0 must be mapped"),
        (mapping(UNIT, 0, 1), mapping(UNIT, 0, 1), "wrong user namespace length 1"),
        (mapping(5, 0, UNIT), mapping(5, 0, UNIT), "wrong user namespace offset specified 5"),
        (mapping(9 * UNIT, 0, UNIT), mapping(9 * UNIT, 0, UNIT), "id 589824 is out of range"),
    ] {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("pods/a");
        fs::create_dir_all(&folder).expect("folder");
        fs::write(folder.join("userns"), json!({"uidMappings": uids, "gidMappings": gids}).to_string()).expect("file");
        let error = UserNamespaces::new(root.path(), range(UNIT, 2), None, 2).expect_err(text).to_string();
        assert!(error.starts_with("record pod mappings for existing pod \"a\": ") && error.ends_with(text), "{error}");
    }
    let root = tempfile::tempdir().expect("folder");
    for uid in ["a", "b"] {
        fs::create_dir_all(root.path().join("pods").join(uid)).expect("folder");
        let file = json!({"uidMappings": one, "gidMappings": one}).to_string();
        fs::write(root.path().join("pods").join(uid).join("userns"), file).expect("file");
    }
    let error = UserNamespaces::new(root.path(), range(UNIT, 2), None, 2).expect_err("one range twice").to_string();
    assert!(error.ends_with("already taken"), "{error}");
}

#[test]
fn pods_without_a_namespace_of_their_own_are_told_to_be_the_nodes() {
    let root = tempfile::tempdir().expect("folder");
    let namespaces = UserNamespaces::new(root.path(), IdRange::ALL, None, 1).expect("enough");
    for host_users in [None, Some(true)] {
        let found = mappings(Some(&namespaces), &pod("a", host_users), "", &None).expect("allowed").expect("told");
        assert_eq!((found.mode(), found.uids.len()), (v1::NamespaceMode::Node, 0));
    }
    assert_eq!(mappings(None, &pod("a", None), "", &None).expect("nothing"), None);
    let off = "the feature gate \"UserNamespacesSupport\" is disabled: can't set spec.HostUsers";
    let refused = mappings(None, &pod("a", Some(true)), "", &able()).expect_err("the gate is off");
    assert_eq!(refused.to_string(), off);
}

#[test]
fn pods_are_refused_where_the_runtime_has_no_namespaces_for_them() {
    let root = tempfile::tempdir().expect("folder");
    let namespaces = UserNamespaces::new(root.path(), IdRange::ALL, None, 1).expect("enough");
    let refused = |handler: &str, handlers: Handlers| {
        mappings(Some(&namespaces), &pod("a", Some(false)), handler, &handlers).expect_err("refused").to_string()
    };
    let of = |handler: &str| {
        format!("can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces")
    };
    let runtime = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    assert_eq!(refused("", None), format!("{runtime}: runtime handlers are not set"));
    assert_eq!(refused("", Some(BTreeMap::new())), format!("{runtime}: the handler \"\" is not known"));
    assert_eq!(refused("old", able()), of("old"));
    assert_eq!(refused("new", able()), format!("{}: the handler \"new\" is not known", of("new")));
    assert!(!root.path().join("pods/a").exists(), "nothing was given");
}
