//! Certificates: those that kubelets rotate, and those that `kubeadm certs` renews.

use crate::lab::Lab;

const CURRENT: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

/// Every kubelet's kubeconfig leads to the certificate that it rotates, also the first one's, where kubeadm had embedded one.
pub fn rotate(lab: &Lab) {
    for name in ["cp-1", "cp-2", "w-1"] {
        let text = std::fs::read_to_string(lab.file(name, "/etc/kubernetes/kubelet.conf")).expect("a kubeconfig");
        assert!(text.contains(CURRENT), "{name}: {text}");
        let user = format!("system:node:{name}");
        lab.until(&format!("a certificate of {name} was issued"), 20, || {
            let list = lab.json("cp-1", "csr")?;
            let requests = list["items"].as_array().cloned().unwrap_or_default();
            let issued = requests.iter().filter(|csr| csr["status"]["certificate"].is_string());
            let own = |csr: &&serde_json::Value| {
                let by = csr["spec"]["username"].as_str().unwrap_or_default();
                by == user || by.starts_with("system:bootstrap:")
            };
            if issued.filter(own).count() > 0 { Ok(()) } else { Err(list.to_string()) }
        });
    }
    // The first one's was rotated by itself: there is no bootstrap token that it could have come from.
    lab.until("cp-1 replaced the certificate that kubeadm made", 20, || {
        let list = lab.json("cp-1", "csr")?;
        let found = list["items"].as_array().is_some_and(|all| {
            all.iter()
                .any(|csr| csr["spec"]["username"] == "system:node:cp-1" && csr["status"]["certificate"].is_string())
        });
        if found { Ok(()) } else { Err(list.to_string()) }
    });
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
