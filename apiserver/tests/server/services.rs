//! Services of two families.

use serde_json::{Value, json};

use crate::harness::{Cluster, etcd_is_missing};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_family_is_given_back() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--service-cluster-ip-range=10.96.0.0/16,fd00:10::/112".to_owned()]).await;
    let services = "/api/v1/namespaces/default/services";
    let (path, addresses) = (format!("{services}/s"), "/apis/networking.k8s.io/v1/ipaddresses");
    let taken = async |service: &Value| -> Vec<u16> {
        let mut codes = Vec::new();
        for ip in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
            codes.push(c.get(&format!("{addresses}/{}", ip.as_str().unwrap_or_default())).await.code);
        }
        codes
    };
    let spec = json!({"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]});
    let dual = c.post(services, json!({"metadata": {"name": "s"}, "spec": spec})).await.ok();
    assert_eq!(dual["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(taken(&dual).await, [200, 200]);

    // What goes is to be said.
    let first = &dual["spec"]["clusterIPs"][0];
    let one = json!({"spec": {"clusterIPs": [first], "ipFamilies": ["IPv4"]}});
    let (code, _, message) = c.patch(&path, "merge-patch+json", one).await.failure();
    for what in ["clusterIP", "ipFamily"] {
        let want = format!(
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be set to 'SingleStack' when releasing the secondary {what}"
        );
        assert!(code == 422 && message.contains(&want), "{message}");
    }
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let single = c.patch(&path, "merge-patch+json", single).await.ok();
    assert_eq!(single["spec"]["clusterIPs"], json!([first]));
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(taken(&dual).await, [200, 404]);

    let again = json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}});
    let again = c.patch(&path, "merge-patch+json", again).await.ok();
    assert_eq!(again["spec"]["clusterIPs"].as_array().map(Vec::len), Some(2), "{again}");
    let elsewhere = json!({"spec": {"type": "ExternalName", "externalName": "a.example.com"}});
    let elsewhere = c.patch(&path, "merge-patch+json", elsewhere).await.ok();
    assert!(elsewhere["spec"].get("clusterIPs").is_none(), "{elsewhere}");
    assert_eq!(taken(&again).await, [404, 404]);
}
