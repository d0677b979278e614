//! Endpoint slices of names.

use serde_json::json;

use super::Valid;

#[test]
fn names_have_a_domain() {
    let slice = Valid::new(
        "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices",
        json!({"addressType": "FQDN", "endpoints": [{"addresses": ["a.example."]}]}),
    );
    let address = "/endpoints/0/addresses/0";
    let long = format!("a.{}", "b".repeat(64));
    slice.create(&[
        (&[(address, json!(""))], &["endpoints[0].addresses[0]: Required value"]),
        (&[(address, json!("a."))], &[
            r#"endpoints[0].addresses[0]: Invalid value: "a": should be a domain with at least two segments separated by dots"#,
        ]),
        (&[(address, json!(long))], &[
            &format!(r#"endpoints[0].addresses[0]: Invalid value: "{}": must be no more than 63 characters"#, "b".repeat(64)),
        ]),
    ]);
}
