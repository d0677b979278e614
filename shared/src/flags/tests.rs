#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

use super::*;

fn flags(component: &str, args: &[&str]) -> FlagSet {
    FlagSet::of(component, args).expect("flags")
}

fn message(component: &str, args: &[&str]) -> String {
    match FlagSet::of(component, args) {
        Err(Stop::Usage { message, .. }) => message,
        Err(other) => format!("{other:?}"),
        Ok(_) => "accepted".to_owned(),
    }
}

#[test]
fn every_flag_and_its_default_parses() {
    let facts: serde_json::Value = serde_json::from_str(include_str!("../../testdata/flags.json")).expect("facts");
    let mut seen = 0;
    for (component, sections) in facts.as_object().expect("components") {
        let set = flags(component, &[]);
        for (name, fact) in sections.as_object().expect("sections").values().flat_map(|s| s.as_object().expect("flags"))
        {
            let default = fact["default"].as_str().expect("default");
            assert!(set.knows(name), "{component} --{name}");
            seen += 1;
            let bare = default.trim_start_matches('[').trim_end_matches(']');
            if name == "version" || name == "help" || bare == "<nil>" || name == "tls-sni-cert-key" {
                continue;
            }
            let spelled = format!("--{}={bare}", name.replace('-', "_"));
            let given = FlagSet::of(component, &[&spelled]);
            let given = given.unwrap_or_else(|e| panic!("{component} {spelled}: {e}"));
            assert!(given.is_set(name), "{component} {spelled}");
            let kind = fact["type"].as_str().expect("type");
            match kind {
                "duration" => assert_eq!(format_duration(given.duration(name)), default, "{name}"),
                "bool" => assert_eq!(given.boolean(name).to_string(), default, "{name}"),
                "int" | "int32" | "int64" | "uint" | "Level" => assert_eq!(given.integer(name).to_string(), default),
                "stringSlice" => assert_eq!(given.list(name), set.list(name), "{name}"),
                _ => assert_eq!(given.string(name), bare, "{name}"),
            }
        }
    }
    assert_eq!(seen, 593);
}

#[test]
fn spellings() {
    for args in [&["--kube_api-burst=7"][..], &["--kube-api-burst", "7"]] {
        assert_eq!(flags("kube-scheduler", args).integer("kube-api-burst"), 7);
    }
    assert!(!flags("kube-scheduler", &["--leader-elect=false"]).boolean("leader-elect"));
    assert!(flags("kube-scheduler", &["--leader-elect"]).boolean("leader-elect"));
    for args in [&["-v", "4"][..], &["-v=4"], &["-v4"], &["--v=4"]] {
        assert_eq!(flags("kubelet", args).integer("v"), 4);
    }
    let twice = flags("kube-controller-manager", &["--controllers=-a,b", "--controllers", "*"]);
    assert_eq!(twice.list("controllers"), ["-a", "b", "*"]);
    assert_eq!(flags("kube-controller-manager", &[]).list("controllers"), ["*"]);
    let labels = flags("kubelet", &["--node-labels=a=b,c"]).map("node-labels");
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), [("a".into(), "b".into()), ("c".into(), String::new())]);
    assert_eq!(flags("kube-apiserver", &[]).port_range("service-node-port-range"), (30000, 2768));
}

#[test]
fn refusals() {
    for (component, args, want) in [
        ("kube-scheduler", &["--foo"][..], "unknown flag: --foo"),
        ("kube-scheduler", &["--foo_bar=1"], "unknown flag: --foo_bar"),
        ("kubelet", &["--foo"], "failed to parse kubelet flag: unknown flag: --foo"),
        ("kube-scheduler", &["--config"], "flag needs an argument: --config"),
        ("kube-scheduler", &["-x"], "unknown shorthand flag: 'x' in -x"),
        ("kube-scheduler", &["-v"], "flag needs an argument: 'v' in -v"),
        ("kube-scheduler", &["--=x"], "bad flag syntax: --=x"),
        ("kube-scheduler", &["x"], r#""kube-scheduler" does not take any arguments, got ["x"]"#),
        (
            "kube-scheduler",
            &["--leader-elect=maybe"],
            r#"invalid argument "maybe" for "--leader-elect" flag: strconv.ParseBool: parsing "maybe": invalid syntax"#,
        ),
        (
            "kube-scheduler",
            &["-v=x"],
            r#"invalid argument "x" for "-v, --v" flag: strconv.ParseInt: parsing "x": invalid syntax"#,
        ),
        (
            "kube-scheduler",
            &["--leader-elect-lease-duration=5"],
            r#"invalid argument "5" for "--leader-elect-lease-duration" flag: time: missing unit in duration "5""#,
        ),
        ("kube-scheduler", &["--feature-gates=Foo=true"], "unrecognized feature gate: Foo"),
    ] {
        assert_eq!(message(component, args), want, "{component} {args:?}");
    }
}

#[test]
fn help_and_version() {
    assert!(matches!(FlagSet::of("kubelet", &["--version"]), Err(Stop::Version(v)) if v == "Kubernetes v1.35.4\n"));
    let Err(Stop::Version(raw)) = FlagSet::of("kubelet", &["--version=raw"]) else { panic!("no version") };
    assert!(
        raw.starts_with("version.Info{Major:\"1\", Minor:\"35\", ") && raw.contains("GitVersion:\"v1.35.4\""),
        "{raw}"
    );
    let Err(Stop::Help(help)) = FlagSet::of("kube-scheduler", &["-h"]) else { panic!("no help") };
    assert!(
        help.contains("\nSecure serving flags:\n\n") && help.contains("      --secure-port int   (default 10259)\n"),
        "{help}"
    );
}

#[test]
fn unread_flags_are_known() {
    let set = flags("kube-scheduler", &["--master=x", "--v=2", "--config=y"]);
    let _ = set.string("config");
    assert_eq!(set.unread(), ["master"]);
}
