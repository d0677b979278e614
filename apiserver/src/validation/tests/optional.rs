//! Kinds that are off by default.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, PublicKeyData as _, SigningKey as _};
use serde_json::json;

use super::Valid;

/// A certificate of a key, which may be an authority's, from now on for some hours.
fn certificate(key: &KeyPair, ca: bool, hours: i64) -> (String, [String; 2]) {
    let now = jiff::Timestamp::now().as_second();
    let mut parameters = CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
    let at = |second: i64| std::time::UNIX_EPOCH + std::time::Duration::from_secs(second.unsigned_abs());
    (parameters.not_before, parameters.not_after) = (at(now).into(), at(now + hours * 3600).into());
    if ca {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let times = [now, now + hours * 3600].map(|s| jiff::Timestamp::from_second(s).unwrap().to_string());
    (parameters.self_signed(key).unwrap().pem(), times)
}

#[test]
fn trust_bundles() {
    let key = KeyPair::generate().unwrap();
    let (authority, leaf) = (certificate(&key, true, 1).0, certificate(&key, false, 1).0);
    let path = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let body = json!({"metadata": {"name": "a.b:c:x"}, "spec": {"signerName": "a.b/c", "trustBundle": authority}});
    let bundle = Valid::new(path, body);
    let anchors = |text: &str| vec![("/spec/trustBundle", json!(text))];
    let wrong = |why: &str| format!(r#"spec.trustBundle: Invalid value: "<value omitted>": {why}"#);
    let block = |label: &str, inside: &str| format!("-----BEGIN {label}-----\n{inside}\n-----END {label}-----\n");
    for (text, why) in [
        (String::new(), "at least one trust anchor must be provided"),
        (format!("{authority}{authority}"), "duplicate trust anchor (indices [0 1])"),
        (format!("{authority}{leaf}"), "entry 1 does not have the CA bit set"),
        (block("PRIVATE KEY", "AAAA"), "entry 0 has bad block type: PRIVATE KEY"),
        (block("CERTIFICATE", "AAAA"), "entry 0 does not parse as X.509"),
        (block("CERTIFICATE", "A: b\n\nAAAA"), "entry 0 has PEM block headers"),
    ] {
        bundle.create(&[(&anchors(&text), &[&wrong(why)])]);
        bundle.update(&[(&anchors(&text), &[&wrong(why)])]);
    }
    bundle.create(&[
        (&[("/metadata/name", json!("x"))], &[
            r#"metadata.name: Invalid value: "x": ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:"#,
        ]),
        (&[("/spec/signerName", Value::Null)], &[
            r#"metadata.name: Invalid value: "a.b:c:x": ClusterTrustBundle without signer name must not have ":" in its name"#,
        ]),
    ]);
    let signers = [("/spec/signerName", json!("a.b/d"))];
    bundle.update(&[(&signers, &[
        r#"metadata.name: Invalid value: "a.b:c:x": ClusterTrustBundle for signerName a.b/d must be named with prefix a.b:d:"#,
        r#"spec.signerName: Invalid value: "a.b/d": field is immutable"#,
    ])]);
}

const UID: &str = "6a1c1d5c-0000-4000-8000-000000000001";

fn request(key: &KeyPair) -> Valid {
    let encoded = |bytes: &[u8]| STANDARD.encode(bytes);
    let spec = json!({"signerName": "a.b/c", "podName": "p", "podUID": UID, "serviceAccountName": "s",
        "serviceAccountUID": "u", "nodeName": "n", "nodeUID": "u",
        "pkixPublicKey": encoded(&key.subject_public_key_info()), "proofOfPossession": encoded(&key.sign(UID.as_bytes()).unwrap())});
    Valid::new("/apis/certificates.k8s.io/v1beta1/namespaces/n/podcertificaterequests", json!({"spec": spec}))
}

#[test]
fn requests_of_pods_for_certificates() {
    let key = KeyPair::generate().unwrap();
    let request = request(&key);
    assert_eq!(request.object["spec"]["maxExpirationSeconds"], 86400, "by default");
    let unproven = "spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature";
    request.create(&[
        (&[("/spec/podUID", json!("x"))], &[unproven]),
        (&[("/spec/nodeUID", json!(""))], &[r#"spec.nodeUID: Invalid value: "": must not be empty"#]),
        (&[("/spec/pkixPublicKey", json!("AAAA"))], &[
            r#"spec.pkixPublicKey: Invalid value: "AAAA": must be a valid PKIX-serialized public key"#,
        ]),
        (&[("/spec/maxExpirationSeconds", json!(60))], &[
            "spec.maxExpirationSeconds: Invalid value: 60: must be in the range [3600, 7862400]",
        ]),
        (&[("/spec/signerName", json!("kubernetes.io/x")), ("/spec/maxExpirationSeconds", json!(86401))], &[
            "spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]",
        ]),
        (&[("/spec/unverifiedUserAnnotations", json!({"A": "b"}))], &[
            r#"spec.unverifiedUserAnnotations: Invalid value: "a": must be a domain-prefixed key (such as "acme.io/foo")"#,
        ]),
    ]);
    let errors = |signer: &str| {
        let mut out = crate::rules::options::FieldErrors::default();
        crate::validation::certificates::signer_name(signer, &shared::status::field::Path::new("s"), &mut out);
        out.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        errors("x"),
        ["s: Invalid value: \"x\": must be a fully qualified domain and path of the form 'example.com/signer-name'"]
    );
    assert_eq!(errors("a/b/c").len(), 1);
    let wrong = errors("a._/c");
    assert!(
        wrong[0].starts_with(r#"s: Invalid value: "a._": validating label "_": a lowercase RFC 1123 label"#),
        "{wrong:?}"
    );
}

#[test]
fn pod_certificate_request_status() {
    let key = KeyPair::generate().unwrap();
    let request = request(&key);
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let issued = |key: &KeyPair, hours: i64| {
        let (chain, [begin, end]) = certificate(key, false, hours);
        let refresh = end.parse::<jiff::Timestamp>().unwrap() - jiff::SignedDuration::from_mins(30);
        json!({"conditions": condition("Issued"), "certificateChain": chain, "notBefore": begin, "notAfter": end,
            "beginRefreshAt": refresh.to_string()})
    };
    let status = |status: Value| vec![("/status", status)];
    let good = issued(&key, 2);
    request.sub("status", &[
        (&status(good.clone()), &[]),
        (&status(json!({"conditions": condition("Denied")})), &[]),
        (&status(json!({"conditions": condition("Other")})), &[
            r#"status.conditions.[0].type: Unsupported value: "Other": supported values: "Issued", "Denied", "Failed""#,
        ]),
        (&status(json!({"conditions": condition("Failed"), "certificateChain": "x"})), &[
            "status: Invalid value: non-condition status fields must be empty when denying or failing the PodCertificateRequest",
        ]),
        (&status(json!({"certificateChain": "x"})), &[
            r#"status: Invalid value: status is immutable unless transitioning to "Issued", "Denied", or "Failed""#,
        ]),
        (&status(json!({"conditions": condition("Issued"), "certificateChain": "x"})), &[
            r#"status.certificateChain: Invalid value: "x": issued certificate chain must contain at least one certificate"#,
        ]),
    ]);
    let found = |object: &Value| {
        let errors = super::validate_subresource(request.row, "status", object, &request.object);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let with = |change: &dyn Fn(&mut Value)| {
        let mut status = good.clone();
        change(&mut status);
        found(&request.with(&[("/status", status)]))
    };
    let other = issued(&KeyPair::generate().unwrap(), 2);
    for (got, want) in [
        (with(&|s| *s = other.clone()), "leaf certificate was not issued to the requested public key"),
        (
            with(&|s| *s = issued(&key, 25)),
            "25h0m0s: leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)",
        ),
        (
            with(&|s| s["notBefore"] = json!("2026-01-01T00:00:00Z")),
            "2026-01-01 00:00:00 +0000 UTC: must be set to the NotBefore time encoded in the leaf certificate",
        ),
        (with(&|s| s["beginRefreshAt"] = s["notBefore"].clone()), "must be at least 10 minutes after status.notBefore"),
        (
            with(&|s| s["notAfter"] = Value::Null),
            "Required value: must be present and consistent with the issued certificate",
        ),
        (
            with(&|s| {
                s["certificateChain"] =
                    json!(format!("{}-----BEGIN X-----\n-----END X-----", s["certificateChain"].as_str().unwrap()))
            }),
            "issued certificate chain must consist entirely of CERTFICATE PEM blocks",
        ),
    ] {
        assert!(matches!(&*got, [one] if one.ends_with(want)), "{want}: {got:?}");
    }
    // What has ended stays so.
    let ended = request.with(&[("/status", json!({"conditions": condition("Denied")}))]);
    let errors =
        super::validate_subresource(request.row, "status", &request.with(&[("/status", good.clone())]), &ended);
    assert_eq!(errors[0].body(), "Invalid value: immutable after PodCertificateRequest is issued, denied, or failed");
}

#[test]
fn candidates() {
    let spec = json!({"leaseName": "l", "binaryVersion": "1.35.0", "emulationVersion": "1.35.0-rc.1", "strategy": "OldestEmulationVersion"});
    let path = "/apis/coordination.k8s.io/v1beta1/namespaces/n/leasecandidates";
    let candidate = Valid::new(path, json!({"metadata": {"name": "A_b.c-"}, "spec": spec}));
    candidate.create(&[
        (&[("/spec/leaseName", json!(""))], &["spec.leaseName: Required value"]),
        (&[("/spec/binaryVersion", json!("1.35"))], &[
            r#"spec.binaryVersion: Invalid value: "1.35": must be a valid semantic version"#,
            r#"spec.binaryVersion: Invalid value: "1.35": must be greater than or equal to `emulationVersion`"#,
        ]),
        (&[("/spec/binaryVersion", json!("1.35.0-beta.2"))], &[
            r#"spec.binaryVersion: Invalid value: "1.35.0-beta.2": must be greater than or equal to `emulationVersion`"#,
        ]),
        (&[("/spec/emulationVersion", json!(""))], &[
            "spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'",
        ]),
        (&[("/spec/strategy", json!("Mine"))], &[
            r#"spec.strategy.strategy: Unsupported value: "Mine": supported values: "OldestEmulationVersion""#,
        ]),
        (&[("/spec/strategy", json!("a.b/mine"))], &[]),
    ]);
    candidate.update(&[(
        &[("/spec/leaseName", json!("m"))],
        &[r#"spec.leaseName: Invalid value: "m": field is immutable"#],
    )]);
}

#[test]
fn migrations_and_workloads() {
    let path = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";
    let migration = Valid::new(path, json!({"spec": {"resource": {"group": "apps", "resource": "deployments"}}}));
    migration.create(&[(
        &[("/spec/resource/resource", json!(""))],
        &["spec.resource.resource: Required value: resource is required to be set"],
    )]);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    migration.sub(
        "status",
        &[
            (&[("/status", json!({"resourceVersion": "7", "conditions": [condition("Succeeded")]}))], &[]),
            (
                &[("/status", json!({"resourceVersion": "07"}))],
                &[r#"status.resourceVersion: Invalid value: "07": resource version is not well formed: 07"#],
            ),
        ],
    );
    let both = migration.with(&[(
        "/status",
        json!({"resourceVersion": "7", "conditions": [condition("Succeeded"), condition("Running")]}),
    )]);
    let errors = super::validate_subresource(migration.row, "status", &both, &migration.object);
    assert_eq!(errors[0].detail, "Running condition cannot be true when success condition is true");

    let path = "/apis/scheduling.k8s.io/v1alpha1/namespaces/n/workloads";
    let workload =
        Valid::new(path, json!({"spec": {"podGroups": [{"name": "a", "policy": {"gang": {"minCount": 2}}}]}}));
    workload.create(&[
        (&[("/spec/podGroups", json!([]))], &["spec.podGroups: Required value: must have at least one item"]),
        (
            &[("/spec/podGroups/0/policy", json!({}))],
            &["spec.podGroups[0].policy: Required value: exactly one of `basic`, `gang` is required"],
        ),
        (
            &[("/spec/podGroups/0/policy/gang/minCount", json!(0))],
            &["spec.podGroups[0].policy.gang.minCount: Invalid value: 0: must be greater than zero"],
        ),
        (
            &[("/spec/podGroups/1", json!({"name": "a", "policy": {"basic": {}}}))],
            &[r#"spec.podGroups[1].name: Duplicate value: "a""#],
        ),
        (&[("/spec/controllerRef", json!({"kind": "Job", "name": ""}))], &["spec.controllerRef.name: Required value"]),
    ]);
}

#[test]
fn rules_that_taint_devices() {
    let spec =
        json!({"deviceSelector": {"driver": "d.example.com", "pool": "p"}, "taint": {"key": "k", "effect": "None"}});
    let rule = Valid::new("/apis/resource.k8s.io/v1alpha3/devicetaintrules", json!({"spec": spec}));
    rule.create(&[
        (
            &[("/spec/taint/effect", json!("x"))],
            &[r#"spec.taint.effect: Unsupported value: "x": supported values: "NoExecute", "NoSchedule", "None""#],
        ),
        (&[("/spec/taint/effect", json!(""))], &["spec.taint.effect: Required value"]),
        (&[("/spec/deviceSelector/pool", json!(""))], &["spec.deviceSelector.pool: Required value"]),
        (&[("/spec/deviceSelector", Value::Null)], &[]),
    ]);
    rule.update(&[(&[("/spec/taint/effect", json!("NoExecute"))], &[])]);
}
