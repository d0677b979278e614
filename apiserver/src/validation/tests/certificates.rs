//! Requests for certificates, and the verdicts on them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Change, Valid, lines, validate_subresource};

const COLLECTION: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn valid() -> Valid {
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = rcgen::CertificateParams::new(vec![]).and_then(|asked| asked.serialize_request(&key));
    let request = STANDARD.encode(request.and_then(|request| request.pem()).expect("a request"));
    Valid::new(COLLECTION, json!({"spec": {"request": request, "signerName": "a.b/c", "usages": ["signing"]}}))
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status})
}

fn issued(text: &str) -> [Change; 1] {
    [("/status/certificate", json!(STANDARD.encode(text)))]
}

fn refused(why: &str) -> String {
    format!(r#"status.certificate: Invalid value: "<certificate data>": {why}"#)
}

#[test]
fn specifications() {
    const EMPTY: &[&str] = &[
        r#"spec.request: Invalid value: "": PEM block type must be CERTIFICATE REQUEST"#,
        "spec.usages: Required value",
        "spec.signerName: Required value",
    ];
    let legacy = r#"spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": the legacy signerName is not allowed via this API version"#;
    let usages = |list: &[&str]| [("/spec/usages", json!(list))];
    let signer = [("/spec/signerName", json!("kubernetes.io/legacy-unknown"))];
    let mut request = valid();
    request.create(&[
        (&[("/spec", json!({}))], EMPTY),
        (&signer, &[legacy]),
        (&usages(&["signing", "signing"]), &[r#"spec.usages[1]: Duplicate value: "signing""#]),
        (&[("/spec/expirationSeconds", json!(599))], &[
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
        ]),
    ]);
    // What a stored request should not ask for is told at every change of it, but for what older versions took.
    request.object = request.with(&[("/spec/usages", json!(["a", "a"])), signer[0].clone()]);
    for through in ["", "status", "approval"] {
        let judge = |object: &Value| match through {
            "" => super::validate_update(request.row, request.row, object, &request.object),
            through => validate_subresource(request.row, through, object, &request.object),
        };
        request.judge(&[(&[("/metadata/labels", json!({"a": "b"}))], &[]), (&[("/spec", json!({}))], EMPTY)], judge);
    }
}

#[test]
fn verdicts() {
    let request = valid();
    let conditions = |c| [("/status/conditions", json!([c]))];
    request.update(&[(
        &conditions(condition("Approved", "True")),
        &[r#"status.conditions: Forbidden: updates may not add a condition of type "Approved""#],
    )]);
    request.sub("approval", &[
        (&conditions(condition("Approved", "True")), &[]),
        (&conditions(condition("Approved", "False")), &[
            r#"status.conditions[0].status: Unsupported value: "False": supported values: "True""#,
        ]),
        (&conditions(condition("Odd", "Maybe")), &[
            r#"status.conditions[0].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown""#,
        ]),
        (&[("/status/certificate", json!("eA=="))], &[
            &refused("must contain at least one CERTIFICATE PEM block"),
            "status.certificate: Forbidden: updates may not set certificate content",
        ]),
        (&[("/status/conditions", json!([condition("Approved", "True"), condition("Denied", "True")]))], &[
            r#"status.conditions: Invalid value: "Denied": Approved and Denied conditions are mutually exclusive"#,
        ]),
        (&conditions(condition("", "")), &[
            "status.conditions[0].type: Required value",
            "status.conditions[0].status: Required value",
        ]),
    ]);
    let mut denied = request;
    denied.object["status"]["conditions"] = json!([condition("Denied", "True")]);
    denied.sub(
        "status",
        &[(
            &[("/status/conditions", json!([]))],
            &[r#"status.conditions: Forbidden: updates may not remove a condition of type "Denied""#],
        )],
    );
    let mut approved = valid();
    approved.object["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "A"}]);
    approved.sub("status", &[(&[("/status/conditions/0/reason", json!("B"))], &[concat!(
        "status.conditions: Forbidden: updates may not modify a condition of type \"Approved\"\n",
        "@@ -2,7 +2,7 @@\n  {\n   \"Type\": \"Approved\",\n   \"Status\": \"True\",\n-  \"Reason\": \"A\",\n",
        "+  \"Reason\": \"B\",\n   \"Message\": \"\",\n   \"LastUpdateTime\": null,\n   \"LastTransitionTime\": null\n",
    )])]);
}

#[test]
fn certificates() {
    let mut request = valid();
    let pem = shared::cert::self_signed("a", &[], &[]).expect("a pair").certificate;
    request.sub(
        "status",
        &[
            (&issued(&format!("said before\n{pem}{pem}")), &[]),
            (
                &issued(&pem.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1)),
                &[&refused("no PEM block headers are permitted")],
            ),
            (
                &issued("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
                &[&refused("x509: malformed certificate")],
            ),
            (
                &issued(&pem.replace("CERTIFICATE", "X509 CRL")),
                &[&refused(r#"only CERTIFICATE PEM blocks are allowed, found "X509 CRL""#)],
            ),
        ],
    );
    request.sub(
        "status",
        &[(&[("/status/certificate", json!("eA=="))], &[&refused("must contain at least one CERTIFICATE PEM block")])],
    );
    // One that is replaced is judged, unless the one before was none either.
    let odd = &[
        &*refused("must contain at least one CERTIFICATE PEM block"),
        "status.certificate: Forbidden: updates may not modify existing certificate content",
    ];
    request.object["status"]["certificate"] = json!(STANDARD.encode(&pem));
    request.sub("status", &[(&issued("x"), odd)]);
    request.object["status"]["certificate"] = json!("eA==");
    request.sub("status", &[(&issued("y"), &odd[1..])]);
}

#[test]
fn unknown_stored_conditions_are_kept() {
    let request = valid();
    let of = |kind: &str| json!({"type": kind, "status": "True", "lastUpdateTime": null});
    for odd in [json!([of("Approved"), of("Denied")]), json!([of("Failed"), of("Failed")]), json!([of("")])] {
        let new = request.with(&[("/status/conditions", odd.clone())]);
        let judge = |old: &Value| lines(request.row, validate_subresource(request.row, "approval", &new, old));
        assert_eq!(judge(&request.object).len(), 1, "{odd}");
        assert_eq!(judge(&new), [""; 0], "{odd}");
    }
}
