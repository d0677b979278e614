//! Certificates: those that kubelets rotate, and those that `kubeadm certs` renews.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::lab::Lab;

const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
const CURRENT: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

/// Every kubelet's kubeconfig leads to the pair that it rotates, also the first one's, where kubeadm had embedded one; the API
/// server knows the node by it, and issued it. The first one has asked for another; kubeadm may restart it before it hears.
pub fn are_rotated(lab: &Lab) {
    for name in lab.names() {
        let said = lab.must(name, &format!("kubectl --kubeconfig {KUBECONFIG} config view --raw -o json"));
        let config: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(config["users"][0]["user"], json!({"client-certificate": CURRENT, "client-key": CURRENT}), "{name}");
        lab.until(&format!("the pair of {name} was issued"), 20, || {
            // A link that only leads somewhere on the machine.
            let pair = lab.on(name, &["cat", CURRENT]).out;
            let issued = issued(lab, name)?;
            let made = name == "cp-1" && !issued.is_empty();
            if made || issued.iter().any(|pem| pair.contains(pem.trim())) { Ok(()) } else { Err(format!("{issued:?}")) }
        });
        let said = lab.must(name, &format!("openssl x509 -noout -subject -in {CURRENT}"));
        assert!(said.trim().ends_with(&format!("CN = system:node:{name}")), "{said}");
        let said = lab.must(name, &format!("kubectl --kubeconfig {KUBECONFIG} get node {name}"));
        assert!(said.contains("Ready"), "{said}");
    }
}

/// Certificates that were issued for requests of a node's kubelet, as PEM.
fn issued(lab: &Lab, name: &str) -> Result<Vec<String>, String> {
    let list = lab.json("cp-1", "csr")?;
    let by = |csr: &Value| csr["spec"]["username"].as_str().unwrap_or_default().to_owned();
    let own = format!("system:node:{name}");
    // Only those who joined had a token to ask with.
    let of_node = |csr: &&Value| by(csr) == own || (name != "cp-1" && by(csr).starts_with("system:bootstrap:"));
    let certificate = |csr: &Value| {
        let text = csr["status"]["certificate"].as_str()?;
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).ok()?).ok()
    };
    Ok(list["items"].as_array().into_iter().flatten().filter(of_node).filter_map(certificate).collect())
}

/// All are renewed, and the API server shows the new one.
pub fn renew(lab: &Lab) {
    let said = lab.must("cp-1", "kubeadm certs check-expiration");
    assert!(said.contains("apiserver-kubelet-client") && !said.contains("invalid"), "{said}");
    let before = shown(lab);
    let said = lab.must("cp-1", "kubeadm certs renew all");
    assert!(said.contains("Done renewing certificates"), "{said}");
    lab.until("the API server shows the renewed certificate", 30, || {
        let now = shown(lab);
        if now == before || now.is_empty() { Err(now) } else { Ok(()) }
    });
    lab.until("the administrator's new credential is good", 30, || {
        let said = lab.kubectl("cp-1", "get nodes");
        if said.ok { Ok(()) } else { Err(said.err) }
    });
}

/// The serial number of the certificate that cp-1's API server shows.
fn shown(lab: &Lab) -> String {
    let address = format!("{}:6443", lab.node("cp-1").address);
    let line = format!("openssl s_client -connect {address} </dev/null 2>/dev/null | openssl x509 -noout -serial");
    lab.on("cp-1", &["sh", "-c", &line]).out
}
